"""Escaping of untrusted text for terminals, JSON and spreadsheets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

REORDERING: Final = "".join(map(chr, (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))))
"""Invisible characters that reorder text or start a new line."""
_CONTROLS: Final = re.compile(f"[\x00-\x1f\x7f-\x9f{REORDERING}]")
_CONTROLS_OF_JSON: Final = re.compile(f"[\x7f-\x9f{REORDERING}]")

_NEEDS_QUOTES: Final = re.compile(r'[",;\t\r\n]')
_FORMULA_START: Final = "[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
"""First characters of a formula in spreadsheets; the last four are full-width forms of the first four."""
IS_FORMULA: Final = f"^'*{_FORMULA_START}"
"""Pattern of cells that need a `'`. SQL's `regexp_matches` uses it too, like the next pattern."""
IS_PREFIXED: Final = f"^'+{_FORMULA_START}"
"""Pattern of cells that have a `'`. A text that starts with `'` gets another one, so that the escape is reversible."""
_FORMULA: Final = re.compile(IS_FORMULA)
_PREFIXED: Final = re.compile(IS_PREFIXED)


def for_terminal(text: str) -> str:
    """Escape control characters, which could send commands to a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def lines_for_terminal(text: str) -> str:
    """Like `for_terminal`, but keep line ends and tabs, for example in the output of a compiler."""
    return "\n".join("\t".join(map(for_terminal, line.rstrip("\r").split("\t"))) for line in text.split("\n"))


def without_controls(text: str) -> str:
    """Escape control characters and characters that reorder text."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def json_without_controls(text: str) -> str:
    """Escape the same characters in a JSON text with JSON's escapes; JSON itself forbids only some of them."""
    return _CONTROLS_OF_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def escape_formula(text: str) -> str:
    """Prefix a cell with `'` if a spreadsheet would read it as a formula, as OWASP recommends.

    >>> escape_formula("=1+1"), unescape_formula("'=1+1"), escape_formula("matmul")
    ("'=1+1", '=1+1', 'matmul')
    """
    return "'" + text if _FORMULA.match(text) else text


def unescape_formula(text: str) -> str:
    """Inverse of `escape_formula`."""
    return text[1:] if _PREFIXED.match(text) else text


def csv_line(cells: Sequence[int | str]) -> str:
    """A CSV line. Texts are escaped with `escape_formula`, and quoted if any common separator would split them."""
    texts = [str(cell) if isinstance(cell, int) else escape_formula(cell) for cell in cells]
    quoted = ('"' + text.replace('"', '""') + '"' if _NEEDS_QUOTES.search(text) else text for text in texts)
    return ",".join(quoted) + "\n"
