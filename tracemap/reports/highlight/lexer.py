"""MLIR in tokens of Pygments: any dialect, custom and generic forms, phase dumps.

MLIR's tokens need no context, so one alternation with named groups does. It scans each character a bounded number of
times (possessive repeats, no token that looks far ahead in vain): hostile text stays linear, large dumps quick.
Joining the tokens gives the text back exactly, whatever its line ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pygments.token import Comment, Error, Keyword, Name, Number, Operator, Punctuation, String, Whitespace, _TokenType

_SUFFIX = r"[A-Za-z0-9_$.\-]"
_PATTERNS: tuple[tuple[str, str, _TokenType], ...] = (
    ("space", r"\s++", Whitespace),
    ("comment", r"//[^\n]*+", Comment.Single),
    ("value", rf"%{_SUFFIX}++(?:\#\d++)?", Name.Variable),
    ("opname", r'"[A-Za-z_][\w$]*+(?:\.[\w$]++)++"(?=\()', Name.Function),
    # A string ends with its line at the latest, so that a lone quote does not make every later quote scan the rest.
    ("string", r'"(?:[^"\\\n]|\\[^\n]|\\$)*+"?', String.Double),
    ("symbol", r'@(?:[A-Za-z_][\w$.\-]*+|"(?:[^"\\\n]|\\[^\n])*+"?)', Name.Function.Magic),
    ("location", r"\#loc\d*+(?![\w$.])|\bloc(?=\()", Name.Decorator),
    ("attribute", rf"\#{_SUFFIX}++", Name.Constant),
    ("type", rf"!{_SUFFIX}++", Keyword.Type),
    ("label", rf"\^{_SUFFIX}++", Name.Label),
    ("hex", r"0x[0-9A-Fa-f]++(?!\w)", Number.Hex),
    ("shape", r"(?:(?:\d++|\?|\[\d++\])x)++", Number.Integer),
    ("float", r"\d++\.\d*+(?:[eE][+\-]?\d++)?", Number.Float),
    ("integer", r"\d++", Number.Integer),
    (
        "builtin",
        r"(?:tensor|memref|vector|tuple|complex|index|none|[su]?i\d++|bf16|tf32|f\d++(?:E\d++M\d++\w*+)?)(?![\w$.])",
        Keyword.Type,
    ),
    ("literal", r"(?:true|false|unit|dense(?:_resource)?|sparse|array|affine_(?:map|set))(?![\w$.])", Keyword.Constant),
    ("operation", r"[A-Za-z_][\w$]*+(?:\.[A-Za-z_0-9$][\w$]*+)++", Name.Function),
    ("key", r"[A-Za-z_][\w$]*+(?=[ \t]*+=(?!=))", Name.Attribute),
    ("word", r"[A-Za-z_][\w$]*+", Keyword),
    ("operator", r"->|==|>=|<=|[=+*/\-?]", Operator),
    ("punctuation", r"\{-#|#-\}|::|\.\.\.|[()\[\]{}<>,:;.|!&#@%^]", Punctuation),
    ("error", r".", Error),
)
_TOKEN = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern, _ in _PATTERNS), re.DOTALL)
_TYPES: dict[str | None, _TokenType] = {name: token_type for name, _, token_type in _PATTERNS}


def mlir_tokens(text: str) -> Iterator[tuple[int, _TokenType, str]]:
    """Triples of offset, token type and text, as lexers of Pygments give them; the texts join to `text` exactly."""
    for match in _TOKEN.finditer(text):
        # Every alternative is named, and the last one takes any character.
        yield match.start(), _TYPES[match.lastgroup], match[0]
