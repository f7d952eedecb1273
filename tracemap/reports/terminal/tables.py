"""Tables for terminals, and the same as plain text where the output is piped.

A terminal's table fits its width: texts are shortened in their middle, sentences folded between words, and where that
is not enough columns are left out, which is said. What is piped has all of it, one line a row. No line ends in blanks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from tracemap.diagnostics import Diagnostic
from tracemap.sanitize import for_terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_GAP = 2
_EASY = 24
"""Texts are not shortened below this for columns of `EXTRA`."""
EXTRA = 60
"""Columns whose `leave` is as large or larger are worth less than names that can be read."""
_NARROWEST = 4
_STYLES = {
    "a": "magenta",
    "c": "dim",
    "d": "dim",
    "f": "bold",
    "n": "green",
    "o": "magenta",
    "p": "cyan",
    "s": "green",
    "t": "cyan",
    "y": "magenta",
}
"""What terminals show of the colours of tokens: of their own, those that are readable on light and on dark ones."""
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above a column, and how its cells may be made to fit.

    Of several columns that have no room the one with the largest `leave` goes first; 0: it stays. Texts are shortened
    to `least` columns of the terminal, 0: not as long as anything else can be done. `words`: cells are sentences;
    `at_end`: they are code, which is shortened at its end. `mlir`: terminals that show colours colour it.
    """

    text: str
    right: bool = False
    leave: int = 0
    least: int = 0
    words: bool = False
    at_end: bool = False
    mlir: bool = False


def number(text: str, leave: int = 0) -> Heading:
    """A column of numbers, which are aligned at their right."""
    return Heading(text, right=True, leave=leave)


def console(out: TextIO) -> Console:
    """What prints to `out`: as wide as its terminal, and with styles where it is one and nobody forbids them."""
    from rich.console import Console

    styled = out.isatty() and not os.environ.get("NO_COLOR")
    environment = dict(os.environ)
    if not environment.get("COLUMNS", "").strip("0"):  # some shells say so where they do not know; lines would be empty
        environment.pop("COLUMNS", None)
    return Console(
        file=out,
        _environ=environment,
        color_system="auto" if styled else None,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not out.isatty(),
    )


def say(to: Console, text: str, style: str = "") -> None:
    """Print a line of text; on a terminal it goes on in further ones, between words. No line ends in blanks."""
    from rich.text import Text

    safe = Text(for_terminal(text), style=style)
    for part in [safe] if to.soft_wrap or not text else safe.wrap(to, to.width):
        part.rstrip()
        to.print(part, soft_wrap=True)


def print_table(
    to: Console,
    title: str,
    headings: Sequence[Heading],
    rows: Iterable[Sequence[object]],
    *,
    gap: bool = True,
    advice: str = "",
) -> None:
    """Print a table.

    Args:
        to: where to.
        title: what stands above it; nothing where it is empty.
        headings: one per column.
        rows: the cells of each row; a tuple is a cell of several lines.
        gap: an empty line above the title.
        advice: what to do where columns are left out.
    """
    cells = [[_lines(cell) for cell in row] for row in rows]
    natural, width = _natural(headings, cells), _width(to)
    if width is not None:  # what reads a pipe has the same columns whatever they hold
        natural = {at: wide for at, wide in natural.items() if any(any(row[at]) for row in cells)} or natural
    kept = _fitted(headings, natural, width)
    if title:
        if gap:
            say(to, "")
        say(to, title, "bold")
    _print_row(
        to, [[_short(for_terminal(headings[at].text), width)] for at, width in kept.items()], headings, kept, "dim"
    )
    for row in cells:
        shown = (
            [row[at] for at in kept]
            if width is None  # nothing is longer than its column
            else [_folded(to, row[at], wide, headings[at]) for at, wide in kept.items()]
        )
        _print_row(to, shown, headings, kept, "")
    left_out = [headings[at].text for at in natural if at not in kept]
    if left_out:
        say(to, f"(no room for: {', '.join(left_out)}{advice})", "dim")


def _lines(cell: object) -> list[str]:
    """Brackets in names of a model are no markup, control characters do not reach the terminal."""
    return [for_terminal(str(line)) for line in (cell if isinstance(cell, tuple) else (cell,))]


def _width(to: Console) -> int | None:
    """The width of the terminal; None where lines may be of any length."""
    return None if to.soft_wrap else to.width


# ---- what fits


def _wide(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _natural(headings: Sequence[Heading], cells: Sequence[Sequence[Sequence[str]]]) -> dict[int, int]:
    """The width of each column that shows everything."""
    widths = {at: _wide(for_terminal(heading.text)) for at, heading in enumerate(headings)}
    for row in cells:
        for at, lines in enumerate(row):
            for line in lines:
                if (wide := _wide(line)) > widths[at]:
                    widths[at] = wide
    return widths


def _fitted(headings: Sequence[Heading], natural: dict[int, int], width: int | None) -> dict[int, int]:
    """The widths of the columns that are shown."""
    from rich.cells import cell_len

    kept = dict(natural)
    while width is not None and _excess(kept, width) > 0:
        leave = max(kept, key=lambda at: (headings[at].leave, at))
        extra = headings[leave].leave >= EXTRA
        floors = {
            at: max(cell_len(headings[at].text), headings[at].least, _EASY if extra else 0)
            for at in kept
            if headings[at].least
        }
        shrunk = _shrunk(kept, floors, width)
        if _excess(shrunk, width) > 0 and headings[leave].leave:
            del kept[leave]
        elif _excess(shrunk, width) > 0:
            # A part of a number would be another one: rather has the line no room.
            return _shrunk(kept, {at: _NARROWEST for at in kept if not headings[at].right}, width)
        else:
            return shrunk
    return kept


def _excess(widths: dict[int, int], width: int) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1) - width


def _shrunk(widths: dict[int, int], floors: dict[int, int], width: int) -> dict[int, int]:
    """Take from the widest of the columns that have a floor, until all columns fit or these are at their floor."""
    shrunk = dict(widths)
    for _ in range(_excess(widths, width)):
        above = [at for at, floor in floors.items() if shrunk[at] > floor]
        if not above:
            break
        shrunk[max(above, key=lambda at: shrunk[at])] -= 1
    return shrunk


# ---- what is drawn


def _folded(to: Console, lines: Sequence[str], width: int, heading: Heading) -> list[str]:
    """The lines of a cell, none wider than its column."""
    if all(_wide(line) <= width for line in lines):
        return [line.rstrip() for line in lines] if heading.words else list(lines)
    if not heading.words:
        return [_short(line, width, at_end=heading.at_end) for line in lines]
    from rich.text import Text

    return [part.plain.rstrip() for line in lines for part in Text(line).wrap(to, width)] or [""]


def _short(text: str, width: int, *, at_end: bool = False) -> str:
    """A text without what comes before its last part: paths and names differ at their ends, more so at the last."""
    if _wide(text) <= width:
        return text
    from rich.cells import set_cell_size

    head = width - 1 if at_end else (width - 1) // 3
    begin = set_cell_size(text[:width], head)
    return (begin if at_end else begin.rstrip()) + _ELLIPSIS + _end(text, width - 1 - head)


def _end(text: str, width: int) -> str:
    """As much of the end of a text as fits; of long ones no more is looked at."""
    from rich.cells import cell_len

    begin = len(text)
    while begin and (width := width - cell_len(text[begin - 1])) >= 0:
        begin -= 1
    return text[begin:]


def _print_row(
    to: Console, cells: Sequence[Sequence[str]], headings: Sequence[Heading], kept: dict[int, int], style: str
) -> None:
    """Print the cells of a row, side by side; as many lines as the highest has."""
    for number_ in range(max(map(len, cells), default=0)):
        parts = []
        for lines, (at, width) in zip(cells, kept.items(), strict=True):
            text = lines[number_] if number_ < len(lines) else ""
            letters = width if text.isascii() else width + len(text) - _wide(text)
            parts.append(text.rjust(letters) if headings[at].right else text.ljust(letters))
        _print_line(to, parts, [headings[at].mlir for at in kept], style)


def _print_line(to: Console, parts: Sequence[str], mlir: Sequence[bool], style: str) -> None:
    """Print a line of a row; without styles at once, as rich takes a hundred times as long."""
    line = (" " * _GAP).join(parts).rstrip()
    if not (to.color_system and (style or any(mlir))):
        to.file.write(line + "\n")
        return
    from rich.text import Text

    row = Text(line, style=style)
    if not style:  # the row of headings has one
        _colour(row, parts, mlir)
    to.print(row, soft_wrap=True)


def _colour(row: Text, parts: Sequence[str], mlir: Sequence[bool]) -> None:
    """Colours the cells of a row that are MLIR."""
    from tracemap.reports.highlight import colours_of_mlir

    offset = 0
    for part, is_mlir in zip(parts, mlir, strict=True):
        for colour, begin, end in colours_of_mlir(part) if is_mlir else ():
            row.stylize(_STYLES.get(colour, ""), offset + begin, offset + end)
        offset += len(part) + _GAP


def print_diagnostics(to: Console, diagnostics: Iterable[Diagnostic]) -> None:
    """What a reader must know before trusting the result, one line each."""
    for diagnostic in diagnostics:
        say(to, f"note [{diagnostic.slug}]: {diagnostic.message}")
