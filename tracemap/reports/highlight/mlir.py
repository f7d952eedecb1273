r"""A lexer of MLIR for Pygments: any dialect, custom and generic forms, phase dumps; `pygmentize -l mlir` finds it.

Each pattern means the same in Python and in JavaScript, as pages colour by them too: no named groups, no possessive
repeats, nothing captured, and no `\s`, which takes in more in JavaScript. No token but blanks goes on over lines.
No pattern can divide what it takes in several ways or looks far ahead in vain: hostile text takes linear time.
"""

from __future__ import annotations

import re
from typing import ClassVar

from pygments.lexer import RegexLexer
from pygments.token import Comment, Error, Keyword, Name, Number, Operator, Punctuation, String, Whitespace

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
