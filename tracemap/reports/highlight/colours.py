"""What colour a token has, by a letter: `assets/shared/source.css` and `terminal/tables.py` say which each one is.

MLIR is coloured where it is shown: in the page by its script, which gets the lexer's patterns from here, so that a page
need not hold the tokens of a large model. Files of Python are few and small: a page holds the tokens of their lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from tracemap.reports.escaping import as_shown

if TYPE_CHECKING:
    from pygments.lexer import Lexer
    from pygments.token import _TokenType

Coloured = tuple[str, int, int]
"""A colour, and where in a line it begins and ends."""


@cache
def _colours() -> Sequence[tuple[_TokenType, str]]:
    """Token types and their colours; the first that contains a token's type counts."""
    from pygments.token import Comment, Error, Keyword, Name, Number, Operator, String

    return (
        (Comment, "c"),
        (Error, "e"),
        (Keyword.Type, "t"),
        (Keyword, "k"),
        (Name.Variable, "v"),
        (Name.Function.Magic, "y"),
        (Name.Function, "f"),
        (Name.Class, "f"),
        (Name.Decorator, "d"),
        (Name.Constant, "a"),
        (Name.Attribute, "p"),
        (Name.Builtin, "y"),
        (Name.Label, "o"),
        (Number, "n"),
        (Operator.Word, "k"),
        (String, "s"),
    )


@cache
def colour_of(token: _TokenType) -> str:
    """The colour of a type of tokens; empty where they have that of other text."""
    return next((colour for kind, colour in _colours() if kind in token.split()), "")


def rules_of_mlir() -> list[tuple[str, str]]:
    """The patterns of MLIR's tokens in the order in which they are tried, and the colour of each."""
    from tracemap.reports.highlight.mlir import MlirLexer

    return [(pattern, colour_of(token)) for pattern, token in MlirLexer.tokens["root"]]


@cache
def _mlir() -> Lexer:
    from tracemap.reports.highlight.mlir import MlirLexer

    return MlirLexer()


def colours_of_mlir(line: str) -> list[Coloured]:
    """What is coloured of a line of MLIR."""
    (found,) = coloured_lines(_mlir(), [line])
    return found


def colours_of_python(lines: Sequence[str]) -> list[list[Coloured]]:
    """What is coloured of each line of a file of Python, counted in UTF-16 units of the line as pages show it."""
    from pygments.lexers.python import PythonLexer

    # Blanks at ends of lines have no colour, and Pygments' lexer would look through lines of blanks again and again.
    shown = [line.rstrip() for line in as_shown("\n".join(lines)).split("\n")]
    found = coloured_lines(PythonLexer(), shown)
    return [list(_in_utf16(line, _joined(ranges))) for line, ranges in zip(shown, found, strict=True)]


def coloured_lines(lexer: Lexer, lines: Sequence[str]) -> list[list[Coloured]]:
    """What a lexer colours of each line of a text; a token of several lines is coloured on each."""
    found: list[list[Coloured]] = [[]]
    begin = 0
    for _, token, text in lexer.get_tokens_unprocessed("\n".join(lines)):
        colour = colour_of(token)
        for number, part in enumerate(text.split("\n")):
            if number:
                found.append([])
                begin = 0
            if colour and part:
                found[-1].append((colour, begin, begin + len(part)))
            begin += len(part)
    return found


def _joined(ranges: Iterable[Coloured]) -> Iterator[Coloured]:
    """Ranges without bounds between neighbours of one colour: a string is several tokens of Python."""
    last: Coloured = ("", 0, 0)
    for colour, begin, end in ranges:
        if (colour, begin) == (last[0], last[2]):
            last = colour, last[1], end
            continue
        if last[0]:
            yield last
        last = colour, begin, end
    if last[0]:
        yield last


def _in_utf16(line: str, ranges: Iterable[Coloured]) -> Iterator[Coloured]:
    """Ranges as scripts count: what is beyond the first 65,536 characters counts twice."""
    if line.isascii():
        yield from ranges
        return
    at = [0]
    for char in line:
        at.append(at[-1] + 1 + (char > "\uffff"))
    for colour, begin, end in ranges:
        yield colour, at[begin], at[end]
