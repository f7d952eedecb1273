"""Hostile text made harmless for terminals and spreadsheets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

REORDERING: Final = "".join(map(chr, (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))))
"""Characters that nobody sees and that reorder text, or begin a line in it."""
_CONTROLS: Final = re.compile(f"[\x00-\x1f\x7f-\x9f{REORDERING}]")
_CONTROLS_OF_JSON: Final = re.compile(f"[\x7f-\x9f{REORDERING}]")

_APART: Final = re.compile(r'[",;\t\r\n]')
_BEGINS: Final = "[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
"""What a spreadsheet takes for the beginning of a formula; the last four are wide forms of the first."""
IS_FORMULA: Final = f"^'*{_BEGINS}"
"""Of a cell that needs a `'`; also for SQL's `regexp_matches`, as the next one."""
IS_PREFIXED: Final = f"^'+{_BEGINS}"
"""Of a cell that has one: so that both can be told apart, a text that has one already gets another."""
_FORMULA: Final = re.compile(IS_FORMULA)
_PREFIXED: Final = re.compile(IS_PREFIXED)


def for_terminal(text: str) -> str:
    """The text with control characters, which could steer a terminal, written as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def lines_for_terminal(text: str) -> str:
    """As `for_terminal`, of a text whose line ends and tabs are to stay, such as what a compiler said."""
    return "\n".join("\t".join(map(for_terminal, line.rstrip("\r").split("\t"))) for line in text.split("\n"))


def without_controls(text: str) -> str:
    """The text with control characters and those that reorder text written as escapes; all else stays as it is."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def json_without_controls(text: str) -> str:
    """A JSON text in which such characters, of which JSON forbids only some, are written as its escapes."""
    return _CONTROLS_OF_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def inert_cell(text: str) -> str:
    """A text as a cell of a table: `'` before what a spreadsheet would take for a formula, as OWASP recommends.

    >>> inert_cell("=1+1"), plain_cell("'=1+1"), inert_cell("matmul")
    ("'=1+1", '=1+1', 'matmul')
    """
    return "'" + text if _FORMULA.match(text) else text


def plain_cell(text: str) -> str:
    """The text that a cell stands for: the inverse of `inert_cell`."""
    return text[1:] if _PREFIXED.match(text) else text


def csv_line(cells: Sequence[int | str]) -> str:
    """A line of a CSV; texts are inert, and in quotes where another separator than the comma would split them."""
    return ",".join(str(cell) if isinstance(cell, int) else _quoted(inert_cell(cell)) for cell in cells) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _APART.search(text) else text
