"""A model's text without its locations, every other character in its place."""

from __future__ import annotations

import re

from tracemap.locations import STRING

# What matters when looking for `loc(`: strings and comments, in which it means nothing, and blobs at the end.
_LOC = re.compile(r'"(?:[^"\\\n]++|\\.)*+"|//[^\n]*|(?<![\w.$#@%!-])loc\s*\(')
_INSIDE_LOC = re.compile(STRING + r"|[()]", re.DOTALL)


def blank_locations(text: str) -> str:
    """The text with every trailing `loc(…)` replaced by spaces, so that all other characters keep their place.

    Locations that are values of something (`#loc = loc(…)`, `{attribute = loc(…)}`) stay: they give no operation its
    position, and without them the text would not parse.
    """
    if "loc" not in text:
        return text
    pieces: list[str] = []
    done = 0
    position = 0
    while (match := _LOC.search(text, position)) is not None:
        position = match.end()
        if not match.group().startswith("loc") or _is_value(text, match.start()):
            continue
        position = _closing(text, match.end())
        pieces += [text[done : match.start()], re.sub(r"[^\n]", " ", text[match.start() : position])]
        done = position
    return "".join([*pieces, text[done:]])


def _is_value(text: str, position: int) -> bool:
    while position > 0 and text[position - 1].isspace():
        position -= 1
    return position > 0 and text[position - 1] in "=,[<"


def _closing(text: str, position: int) -> int:
    """The position after the parenthesis that closes the one just before `position`."""
    depth = 1
    while depth and (match := _INSIDE_LOC.search(text, position)) is not None:
        depth += (match.group() == "(") - (match.group() == ")")
        position = match.end()
    return position if depth == 0 else len(text)
