"""Tables for terminals, and as plain text for pipes.

On a terminal, tables fit its width. They shorten names in the middle and wrap sentences between words. If that is not
enough, they drop columns and name them below. Piped tables are complete, with one line per row. No line ends in blanks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from tracemap.core.diagnostics import LOAD_TIME, NOISY, PAUSED, Diagnostic
from tracemap.core.sanitize import for_terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_GAP = 2
_READABLE_WIDTH = 24
"""Narrowest texts while columns of `EXTRA` are still shown."""
EXTRA = 60
"""Columns with at least this `leave` are dropped before names become unreadable."""
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
"""Terminal colours by kind of token; only those that are readable on light and dark backgrounds."""
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Heading:
    """Heading of a column, and how its cells may shrink.

    Attributes:
        text: the heading.
        right: align the cells at the right.
        leave: the column with the largest value is dropped first; 0: never dropped.
        least: narrowest width in terminal columns; 0: shorten only as a last resort.
        words: cells are sentences, which wrap.
        at_end: cells are code, which is cut at its end.
        mlir: cells are MLIR, which colour terminals highlight.
        begins_pair: dropped together with the next column, as the low end of an interval.
    """

    text: str
    right: bool = False
    leave: int = 0
    least: int = 0
    words: bool = False
    at_end: bool = False
    mlir: bool = False
    begins_pair: bool = False


def number(text: str, leave: int = 0) -> Heading:
    """A right-aligned column of numbers."""
    return Heading(text, right=True, leave=leave)


def console(out: TextIO) -> Console:
    """A rich console on `out`: as wide as its terminal, with styles unless `out` is no terminal or NO_COLOR is set."""
    from rich.console import Console

    styled = out.isatty() and not os.environ.get("NO_COLOR")
    environment = dict(os.environ)
    if not environment.get("COLUMNS", "").strip("0"):  # some shells set 0 for an unknown width; lines would be empty
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


def say(terminal: Console, text: str, style: str = "") -> None:
    """Print a line of text; on a terminal it wraps between words. No line ends in blanks."""
    from rich.text import Text

    safe = Text(for_terminal(text), style=style)
    for part in [safe] if terminal.soft_wrap or not text else safe.wrap(terminal, terminal.width):
        part.rstrip()
        terminal.print(part, soft_wrap=True)


def print_table(
    terminal: Console,
    title: str,
    headings: Sequence[Heading],
    rows: Iterable[Sequence[object]],
    *,
    gap: bool = True,
    advice: str | None = "",
    extra: int = EXTRA,
) -> None:
    """Print a table.

    Args:
        terminal: the output.
        title: line above the table; none if empty.
        headings: one per column.
        rows: the cells of each row; a tuple is a cell of several lines.
        gap: print an empty line above the title.
        advice: text after the names of dropped columns; None: do not name them.
        extra: columns with at least this `leave` are dropped before names become unreadable.
    """
    cells = [[_lines(cell) for cell in row] for row in rows]
    natural, width = _natural(headings, cells), _width(terminal)
    if width is not None:  # programs that read a pipe get the same columns, also empty ones
        natural = {index: cols for index, cols in natural.items() if any(any(row[index]) for row in cells)} or natural
    widths = _fitted(headings, natural, width, extra)
    if title:
        if gap:
            say(terminal, "")
        say(terminal, title, "bold")
    _print_row(
        terminal,
        [[_short(for_terminal(headings[index].text), cols)] for index, cols in widths.items()],
        headings,
        widths,
        "dim",
    )
    for row in cells:
        shown = (
            [row[index] for index in widths]
            if width is None  # no cell is longer than its column
            else [_folded(terminal, row[index], cols, headings[index]) for index, cols in widths.items()]
        )
        _print_row(terminal, shown, headings, widths, "")
    dropped = [headings[index].text for index in natural if index not in widths]
    if dropped and advice is not None:
        say(terminal, f"(no room for: {', '.join(dropped)}{advice})", "dim")


def _lines(cell: object) -> list[str]:
    """Lines of a cell without control characters."""
    return [for_terminal(str(line)) for line in (cell if isinstance(cell, tuple) else (cell,))]


def _width(terminal: Console) -> int | None:
    """The width of the terminal; None for a pipe, whose lines may have any length."""
    return None if terminal.soft_wrap else terminal.width


# ---- column widths


def _text_width(text: str) -> int:
    """Terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _natural(headings: Sequence[Heading], cells: Sequence[Sequence[Sequence[str]]]) -> dict[int, int]:
    """The width of each column, by index, that shows every cell in full."""
    widths = {index: _text_width(for_terminal(heading.text)) for index, heading in enumerate(headings)}
    for row in cells:
        for index, lines in enumerate(row):
            for line in lines:
                if (cols := _text_width(line)) > widths[index]:
                    widths[index] = cols
    return widths


def _fitted(headings: Sequence[Heading], natural: dict[int, int], width: int | None, extra: int) -> dict[int, int]:
    """The widths of the shown columns by index, so that a row fits the width of the terminal."""
    from rich.cells import cell_len

    widths = dict(natural)
    while width is not None and _excess(widths, width) > 0:
        first_to_drop = max(widths, key=lambda index: (headings[index].leave, index))
        least_of_names = _READABLE_WIDTH if headings[first_to_drop].leave >= extra else 0
        floors = {
            index: max(cell_len(headings[index].text), headings[index].least, least_of_names)
            for index in widths
            if headings[index].least
        }
        shrunk = _shrunk(widths, floors, width)
        if _excess(shrunk, width) > 0 and headings[first_to_drop].leave:
            del widths[first_to_drop]
            if first_to_drop and headings[first_to_drop - 1].begins_pair:
                widths.pop(first_to_drop - 1, None)
        elif _excess(shrunk, width) > 0:
            # Never cut numbers, as a part would read as another number. The line is too long instead.
            return _shrunk(widths, {index: _NARROWEST for index in widths if not headings[index].right}, width)
        else:
            return shrunk
    return widths


def _excess(widths: dict[int, int], width: int) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1) - width


def _shrunk(widths: dict[int, int], floors: dict[int, int], width: int) -> dict[int, int]:
    """Narrow the widest columns that have a floor, until all columns fit or those are at their floor."""
    shrunk = dict(widths)
    for _ in range(_excess(widths, width)):
        above_floor = [index for index, floor in floors.items() if shrunk[index] > floor]
        if not above_floor:
            break
        shrunk[max(above_floor, key=lambda index: shrunk[index])] -= 1
    return shrunk


# ---- drawing


def _folded(terminal: Console, lines: Sequence[str], width: int, heading: Heading) -> list[str]:
    """The lines of a cell, shortened or wrapped to the width of its column."""
    if all(_text_width(line) <= width for line in lines):
        return [line.rstrip() for line in lines] if heading.words else list(lines)
    if not heading.words:
        return [_short(line, width, at_end=heading.at_end) for line in lines]
    from rich.text import Text

    return [part.plain.rstrip() for line in lines for part in Text(line).wrap(terminal, width)] or [""]


def _short(text: str, width: int, *, at_end: bool = False) -> str:
    """Shorten a text in its middle, or `at_end`; paths and names differ most at their ends, so more of it stays."""
    if _text_width(text) <= width:
        return text
    from rich.cells import set_cell_size

    head_width = width - 1 if at_end else (width - 1) // 3
    head = set_cell_size(text[:width], head_width)
    return (head if at_end else head.rstrip()) + _ELLIPSIS + _end(text, width - 1 - head_width)


def _end(text: str, width: int) -> str:
    """The longest end of a text that fits; reads only that part, as texts may be long."""
    from rich.cells import cell_len

    begin = len(text)
    while begin and (width := width - cell_len(text[begin - 1])) >= 0:
        begin -= 1
    return text[begin:]


def _print_row(
    terminal: Console, cells: Sequence[Sequence[str]], headings: Sequence[Heading], widths: dict[int, int], style: str
) -> None:
    """Print the cells of a row next to each other, with as many lines as the tallest cell."""
    for line in range(max(map(len, cells), default=0)):
        parts = []
        for lines, (index, width) in zip(cells, widths.items(), strict=True):
            text = lines[line] if line < len(lines) else ""
            letters = width if text.isascii() else width + len(text) - _text_width(text)
            parts.append(text.rjust(letters) if headings[index].right else text.ljust(letters))
        _print_line(terminal, parts, [headings[index].mlir for index in widths], style)


def _print_line(terminal: Console, parts: Sequence[str], mlir: Sequence[bool], style: str) -> None:
    """Print a line of a row; without styles, write it directly, which is 100 times as fast as rich."""
    line = (" " * _GAP).join(parts).rstrip()
    if not (terminal.color_system and (style or any(mlir))):
        terminal.file.write(line + "\n")
        return
    from rich.text import Text

    row = Text(line, style=style)
    if not style:  # headings have a style, and no MLIR
        _colour(row, parts, mlir)
    terminal.print(row, soft_wrap=True)


def _colour(row: Text, parts: Sequence[str], mlir: Sequence[bool]) -> None:
    """Colour the MLIR cells of a row."""
    from tracemap.reports.highlight import colours_of_mlir

    offset = 0
    for part, is_mlir in zip(parts, mlir, strict=True):
        for colour, begin, end in colours_of_mlir(part) if is_mlir else ():
            row.stylize(_STYLES.get(colour, ""), offset + begin, offset + end)
        offset += len(part) + _GAP


def say_line(terminal: Console, text: str) -> None:
    """Print a text in one line, which a terminal cuts at its width."""
    width = _width(terminal)
    say(terminal, text if width is None else _short(for_terminal(text), width, at_end=True))


_MOST_NOTES = 3


def print_notes(terminal: Console, notes: Iterable[str], *, every: bool) -> None:
    """Print notes, the most important first: each text once, and by default only the first three."""
    texts = list(dict.fromkeys(notes))
    shown = texts if every else texts[:_MOST_NOTES]
    for text in shown:
        say(terminal, text)
    if len(texts) > len(shown):
        say(terminal, f"{len(texts) - len(shown)} more: --notes", "dim")


_REMEDIES: Final = {
    NOISY: "Stop other programs, and record again",
    PAUSED: "Record again without a pause",
    LOAD_TIME: "tracemap.recording in Python measures loading, too",
    "budget-spent": "Record longer with --seconds",
    "noise-unknown": "Record longer with --seconds",
}
"""Remedies of notes whose text has none, by slug."""


def note_text(diagnostic: Diagnostic) -> str:
    """A diagnostic as a note, with a remedy."""
    remedy = _REMEDIES.get(diagnostic.slug, "")
    if diagnostic.slug == NOISY and not diagnostic.message.endswith(")"):  # the text has one after its figures
        remedy = ""
    return f"note [{diagnostic.slug}]: {diagnostic.message}" + (f". {remedy}" if remedy else "")


def print_diagnostics(terminal: Console, diagnostics: Iterable[Diagnostic]) -> None:
    """Print the notes on how far to trust the result, one per line."""
    for diagnostic in diagnostics:
        say(terminal, note_text(diagnostic))
