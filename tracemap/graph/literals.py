"""Long literals of a bundle's texts: their content is kept once, and named where it stood.

A model may hold its weights as text, megabytes in a line, which nobody reads and which a bundle would keep several
times. Each lies below `literals/` under the SHA-256 of its content, as bytes where it is hexadecimal; in a text there
is its beginning and that name. What is put back is what was there, character for character.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

LITERALS_FOLDER: Final = "literals"
LONGEST: Final = 1024
"""Letters of a literal that stays where it is."""

# A string (also one in which hexadecimal numbers stand), or the list in `dense<[…]>`.
_LITERAL = re.compile(r'"((?:[^"\\\n]++|\\.)*+)"|(?<=dense<)(\[[^>"]*+)')
_MARK = " in literals/"
_NAMED = re.compile(rf"(.{{2}}).{{14}}…[0-9,]+ (?:bytes|letters){_MARK}([0-9a-f]{{64}}\.(?:bin|txt))\n*", re.DOTALL)


def taken_out(text: str, last_columns: Mapping[int, int]) -> tuple[str, dict[str, bytes]]:
    """The text with names in place of its long literals, and their content by name.

    A literal stays where an op begins behind it on its line, so that all ops keep their places. `last_columns`: of each
    line with an op where the last one begins, both from 1.
    """
    found: dict[str, bytes] = {}
    if max(map(len, text.split("\n"))) <= LONGEST or _MARK in text:
        return text, found
    pieces, done = [], 0
    for start, end in _long_literals(text, last_columns):
        name, content = _content(literal := text[start:end])
        found[name] = content
        beginning = literal[:16].replace("\n", " ")
        counted = f"{len(content):,} {'bytes' if name.endswith('.bin') else 'letters'}"
        # As many line ends as before: the lines below keep their numbers.
        pieces += [text[done:start], f"{beginning}…{counted}{_MARK}{name}", "\n" * literal.count("\n")]
        done = end
    return "".join([*pieces, text[done:]]), found


def _long_literals(text: str, last_columns: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Where long literals lie that no op stands behind.

    A resource (`name: "0x04000000…"`) begins with its alignment, which stays: what follows may stand elsewhere, too.
    """
    line, counted = 1, 0
    for match in _LITERAL.finditer(text):
        start, end = match.span(match.lastindex or 0)
        if text.startswith(': "0x', start - 3):
            start += len("0x04000000")
        if end - start <= LONGEST:
            continue
        line += text.count("\n", counted, end)
        counted = end
        first, column = line - text.count("\n", start, end), start - text.rfind("\n", 0, start)
        if last_columns.get(line, 0) <= (column if first == line else 0):
            yield start, end


def _content(literal: str) -> tuple[str, bytes]:
    """The name and the content of a literal."""
    content, kind = _hexadecimal(literal), "bin"
    if not content:
        content, kind = literal.encode(errors="surrogatepass"), "txt"
    return f"{hashlib.sha256(content).hexdigest()}.{kind}", content


def _hexadecimal(literal: str) -> bytes:
    """The bytes that a literal stands for; none where they would not give it back as it is."""
    digits = literal.removeprefix("0x")
    try:
        content = bytes.fromhex(digits)
    except ValueError:
        return b""
    return content if content.hex().upper() == digits else b""


def put_back(text: str, content_of: Callable[[str], bytes]) -> str:
    """The text with its literals again; `content_of` reads one by its name."""

    def literal(match: re.Match[str]) -> str:
        beginning, name = match.groups()
        content = content_of(name)
        if name.endswith(".txt"):
            return content.decode(errors="surrogatepass")
        return ("0x" if beginning == "0x" else "") + content.hex().upper()

    return _NAMED.sub(literal, text) if _MARK in text else text
