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
# Pages use the patterns, too, so they mean the same in Python and in JavaScript: no named groups, no possessive
# quantifiers, no captures, and no `\s`, which matches more in JavaScript. Only blanks span lines. No pattern is
# ambiguous or looks far ahead, so hostile text takes linear time.


_STRING = r'"(?:[^"\\\n]|\\.)*\\?"?'
"""A string ends at the end of its line at the latest, so that an unclosed quote does not cause quadratic time."""


class MlirLexer(RegexLexer):
    """Lexer for MLIR, as IREE and other compilers print it; the texts of its tokens add up to the input."""

    name = "MLIR"
    url = "https://mlir.llvm.org/docs/LangRef/"
    aliases: ClassVar[list[str]] = ["mlir"]
    filenames: ClassVar[list[str]] = ["*.mlir"]
    flags = re.ASCII  # `\w`, `\d` and `\b` as in JavaScript
    tokens = {  # noqa: RUF012 - as in Pygments' own lexers
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
# A letter is the colour of a token. `assets/shared/source.css` and `terminal/tables.py` define the colours.
#
# The script of a page colours MLIR with the patterns above, so that a page need not hold the tokens of a large model.
# Python files are few and small, so a page holds their tokens.


Coloured = tuple[str, int, int]
"""A colour, and the begin and end of its range in a line."""


@cache
def _colours() -> Sequence[tuple[_TokenType, str]]:
    """Token types and their colours; the first type that contains a token's type wins."""
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
    """The colour of a token type; empty for the default colour."""
    return next((colour for kind, colour in _colours() if kind in token.split()), "")


def rules_of_mlir() -> list[tuple[str, str]]:
    """Patterns and colours of MLIR tokens, in the order of matching."""
    return [(pattern, colour_of(token)) for pattern, token in MlirLexer.tokens["root"]]


@cache
def _mlir() -> Lexer:

    return MlirLexer()


def colours_of_mlir(line: str) -> list[Coloured]:
    """Coloured ranges of a line of MLIR."""
    (ranges,) = coloured_lines(_mlir(), [line])
    return ranges


def colours_of_python(lines: Sequence[str]) -> list[list[Coloured]]:
    """Coloured ranges by line of a Python file, in UTF-16 units of the lines as pages show them."""
    from pygments.lexers.python import PythonLexer

    # Strip trailing blanks, which have no colour: Pygments' lexer takes quadratic time on lines of blanks.
    shown = [line.rstrip() for line in as_shown("\n".join(lines)).split("\n")]
    coloured = coloured_lines(PythonLexer(), shown)
    return [list(_in_utf16(line, _merged(ranges))) for line, ranges in zip(shown, coloured, strict=True)]


def coloured_lines(lexer: Lexer, lines: Sequence[str]) -> list[list[Coloured]]:
    """Coloured ranges by line; tokens of several lines have a range on each of them."""
    ranges: list[list[Coloured]] = [[]]
    begin = 0
    for _, token, text in lexer.get_tokens_unprocessed("\n".join(lines)):
        colour = colour_of(token)
        for number, part in enumerate(text.split("\n")):
            if number:
                ranges.append([])
                begin = 0
            if colour and part:
                ranges[-1].append((colour, begin, begin + len(part)))
            begin += len(part)
    return ranges


def _merged(ranges: Iterable[Coloured]) -> Iterator[Coloured]:
    """Merge adjacent ranges of the same colour, as a Python string is several tokens."""
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
    """Ranges in UTF-16 units, as scripts count them: characters after U+FFFF count twice."""
    if line.isascii():
        yield from ranges
        return
    offsets = [0]
    for char in line:
        offsets.append(offsets[-1] + 1 + (char > "\uffff"))
    for colour, begin, end in ranges:
        yield colour, offsets[begin], offsets[end]
