"""Syntax highlighting of MLIR and Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from pygments.lexer import RegexLexer
from pygments.token import Comment, Error, Keyword, Name, Number, Operator, Punctuation, String, Whitespace

from tracemap.reports.escaping import as_shown

if TYPE_CHECKING:
    from pygments.lexer import Lexer
    from pygments.token import _TokenType


# ---- mlir
#
# A lexer of MLIR for Pygments: any dialect, custom and generic forms, phase dumps; `pygmentize -l mlir` finds it.
#
# Each pattern means the same in Python and in JavaScript, as pages colour by them too: no named groups, no possessive
# repeats, nothing captured, and no `\s`, which takes in more in JavaScript. No token but blanks goes on over lines. No
# pattern can divide what it takes in several ways or looks far ahead in vain: hostile text takes linear time.


_STRING = r'"(?:[^"\\\n]|\\.)*\\?"?'
"""It ends with its line at the latest, so that a lone quote does not make every later quote scan the rest."""


class MlirLexer(RegexLexer):
    """MLIR, as IREE and other compilers print it; the texts of the tokens join to the text exactly."""

    name = "MLIR"
    url = "https://mlir.llvm.org/docs/LangRef/"
    aliases: ClassVar[list[str]] = ["mlir"]
    filenames: ClassVar[list[str]] = ["*.mlir"]
    flags = re.ASCII  # `\w`, `\d` and `\b` as in JavaScript
    tokens = {  # noqa: RUF012 - as Pygments' own lexers have it
        "root": [
            (r"[ \t\n\r\f\v]+", Whitespace),
            (r"//.*", Comment.Single),
            (r"%[\w$.\-]+(?:#\d+)?", Name.Variable),
            (r'"[A-Za-z_][\w$]*(?:\.[\w$]+)+"(?=\()', Name.Function),
            (_STRING, String.Double),
            (rf"@(?:[A-Za-z_][\w$.\-]*|{_STRING})", Name.Function.Magic),
            (r"#loc\d*(?![\w$.])|\bloc(?=\()", Name.Decorator),
            (r"#[\w$.\-]+", Name.Constant),
            (r"![\w$.\-]+", Keyword.Type),
            (r"\^[\w$.\-]+", Name.Label),
            (r"0x[0-9A-Fa-f]+(?!\w)", Number.Hex),
            (r"(?:(?:\d+|\?|\[\d+\])x)+", Number.Integer),  # the shape of a tensor
            (r"\d+\.\d*(?:[eE][+\-]?\d+)?", Number.Float),
            (r"\d+", Number.Integer),
            (
                r"(?:tensor|memref|vector|tuple|complex|index|none|[su]?i\d+|bf16|tf32|f\d+(?:E\d+M\d\w*)?)(?![\w$.])",
                Keyword.Type,
            ),
            (
                r"(?:true|false|unit|dense(?:_resource)?|sparse|array|affine_(?:map|set))(?![\w$.])",
                Keyword.Constant,
            ),
            (r"[A-Za-z_][\w$]*(?:\.[\w$]+)+", Name.Function),  # an operation
            (r"[A-Za-z_][\w$]*(?=[ \t]*=(?!=))", Name.Attribute),
            (r"[A-Za-z_][\w$]*", Keyword),
            (r"->|==|>=|<=|[=+*/\-?]", Operator),
            (r"\{-#|#-\}|::|\.\.\.|[()\[\]{}<>,:;.|!&#@%^]", Punctuation),
            (r".", Error),
        ]
    }


# ---- colours
#
# What colour a token has, by a letter: `assets/shared/source.css` and `terminal/tables.py` say which each one is.
#
# MLIR is coloured where it is shown: in the page by its script, which gets the lexer's patterns from here, so that a
# page need not hold the tokens of a large model. Files of Python are few and small: a page holds the tokens of their
# lines.


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
    return [(pattern, colour_of(token)) for pattern, token in MlirLexer.tokens["root"]]


@cache
def _mlir() -> Lexer:

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
