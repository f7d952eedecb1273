"""Source text to escaped, highlighted HTML, line by line."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from pygments.lexer import Lexer
from pygments.token import (
    Comment,
    Error,
    Keyword,
    Name,
    Number,
    Operator,
    String,
    _TokenType,
)

_CLASSES: tuple[tuple[_TokenType, str], ...] = (
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
"""Token types and the class names that `page.css` colours; the first that contains a token's type."""

_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;", "\r": None, "\0": "\ufffd"}
    # Invisible characters that reorder text are shown by name: what stands on a line must be what one sees there.
    | {chr(code): f"⟨U+{code:04X}⟩" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
)


def lines_of(text: str) -> list[str]:
    r"""The lines of a text as compilers count them: only `\n` (or `\r\n`) ends a line."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def highlighted_lines(text: str, language: str) -> list[str]:
    """One string of escaped HTML per line of `text`; `language` as in `SourceFile`."""
    lines = [""]
    for token_class, value in _merged(_lexer(language).get_tokens_unprocessed(text)):
        first, *rest = value.translate(_ESCAPES).split("\n")
        lines[-1] += _span(token_class, first)
        lines.extend(_span(token_class, piece) for piece in rest)
    if lines[-1] == "":
        lines.pop()
    return lines


def _lexer(language: str) -> Lexer:
    # Python's lexer and its tables cost start-up time that pages without Python need not pay.
    if language == "python":
        from pygments.lexers.python import PythonLexer

        return PythonLexer()
    if language == "mlir":
        from tracemap.reports.lexer import MlirLexer

        return MlirLexer()
    from pygments.lexers.special import TextLexer

    return TextLexer()


@cache
def _token_class(token_type: _TokenType) -> str:
    return next((name for kind, name in _CLASSES if token_type is kind or kind in token_type.split()), "")


def _merged(tokens: Iterable[tuple[int, _TokenType, str]]) -> Iterable[tuple[str, str]]:
    """Neighbours of one class joined, white space with whatever precedes it: fewer elements make a quicker page."""
    pending_class = ""
    pending: list[str] = []
    for _, token_type, value in tokens:
        token_class = _token_class(token_type)
        if token_class != pending_class and not (value.isspace() and "\n" not in value):
            if pending:
                yield pending_class, "".join(pending)
            pending_class, pending = token_class, []
        pending.append(value)
    if pending:
        yield pending_class, "".join(pending)


def _span(token_class: str, escaped: str) -> str:
    return f'<span class="{token_class}">{escaped}</span>' if token_class and escaped else escaped
