"""Tables for terminals, with rich; plain text of the same layout where the output is piped.

Ids and names are never cut: a table wider than the terminal folds its long columns, a piped one is as wide as it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TextIO

from tracemap.diagnostics import Diagnostic
from tracemap.reports.escaping import for_terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PIPED_WIDTH = 10_000
"""Columns where the output is no terminal: enough for one line per row, which other programs can read."""


class Number(str):
    """The heading of a column of numbers, which are right-aligned and never folded."""

    __slots__ = ()


def console(out: TextIO) -> Console:
    """What prints to `out`; colours and the width of the terminal are used where it is one."""
    from rich.console import Console

    # Without a width rich takes 80 columns for what is no terminal, and folds rows that other programs are to read.
    width = None if out.isatty() else PIPED_WIDTH
    return Console(file=out, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def table(title: str, headings: Iterable[str], rows: Iterable[Sequence[object]], *, gap: bool = True) -> Table:
    """A table without box.

    Args:
        title: what stands above it; nothing where it is empty.
        headings: one per column.
        rows: the cells of each row.
        gap: an empty line above the title.
    """
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        title=Text("\n" * gap + for_terminal(title), style="bold") if title else None,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    for heading in headings:
        number = isinstance(heading, Number)
        justify: Literal["right", "left"] = "right" if number else "left"
        drawn.add_column(for_terminal(heading), justify=justify, no_wrap=number, overflow="fold")
    for row in rows:
        drawn.add_row(*map(_cell, row))
    return drawn


def _cell(content: object) -> Text:
    """Brackets in names of a model are no markup, control characters do not reach the terminal.

    A tuple is a cell of several lines.
    """
    from rich.text import Text

    lines = content if isinstance(content, tuple) else (content,)
    return Text("\n".join(for_terminal(str(line)) for line in lines))


def print_diagnostics(to: Console, diagnostics: Iterable[Diagnostic]) -> None:
    """What a reader must know before trusting the result, one line each."""
    for diagnostic in diagnostics:
        to.print(for_terminal(f"note [{diagnostic.slug}]: {diagnostic.message}"))
