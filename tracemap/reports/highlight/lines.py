"""Source text to escaped, highlighted HTML, line by line."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from pygments.token import Comment, Error, Keyword, Name, Number, Operator, String, _TokenType

from tracemap.reports.escaping import for_markup
from tracemap.reports.highlight.lexer import mlir_tokens
from tracemap.reports.labels import lines_of

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
"""Token types and the class names that `source.css` colours; the first that contains a token's type."""


def highlighted_lines(text: str, language: str) -> list[str]:
    """One string of escaped HTML per line of `text`; `language` as in `SourceFile`."""
    span = cache(_span)  # models repeat themselves: most tokens are met again
    return lines_of("".join([span(token_type, value) for _, token_type, value in _tokens(text, language)]))


def _tokens(text: str, language: str) -> Iterable[tuple[int, _TokenType, str]]:
    # Python's lexer and its tables cost start-up time that pages without Python need not pay.
    if language == "python":
        from pygments.lexers.python import PythonLexer

        return PythonLexer().get_tokens_unprocessed(text)
    return mlir_tokens(text)


def _span(token_type: _TokenType, value: str) -> str:
    """The token as an element; one per line where it spans several, for lines are elements too."""
    escaped = for_markup(value)
    token_class = _token_class(token_type)
    if not token_class:
        return escaped
    return "\n".join(f'<span class="{token_class}">{line}</span>' if line else "" for line in escaped.split("\n"))


@cache
def _token_class(token_type: _TokenType) -> str:
    return next((name for kind, name in _CLASSES if token_type is kind or kind in token_type.split()), "")
