"""Tables of costs: columns, and rows of texts and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tracemap.units import Integer, Unknown

Cell = str | int | Fraction | None
"""A text; a number in the unit of its column, not yet divided; or None for an empty cell."""
Row = Mapping[str, Cell]
"""Cells by column key; missing keys are empty cells."""


def known_cell(value: Integer) -> Cell:
    """A number as a cell; unknown numbers are empty."""
    return None if isinstance(value, Unknown) else value


class LaterRow(Mapping[str, Cell]):
    """A row with lazy cells: some are known, the others are made at the first access.

    Large models have many rows and show few. Sorting needs the known cells of all, the rest only for shown rows.
    """

    __slots__ = ("_cells", "_make")

    def __init__(self, cells: Mapping[str, Cell], make: Callable[[], Mapping[str, Cell]]) -> None:
        self._cells = cells
        self._make: Callable[[], Mapping[str, Cell]] | None = make

    def __getitem__(self, key: str) -> Cell:
        return self._cells[key] if key in self._cells else self._whole()[key]

    def get(self, key: str, default: Cell = None) -> Cell:  # type: ignore[override] # Mapping's own raises and catches
        """A cell, or the default."""
        return self._cells[key] if key in self._cells else self._whole().get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())

    def _whole(self) -> Mapping[str, Cell]:
        if self._make is not None:
            self._cells, self._make = {**self._make(), **self._cells}, None
        return self._cells


TEXT = ""
"""Unit of text columns."""
PERCENT = "%"

NEVER = 0
"""Value of `Column.leave`: never drop the column."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        key: its name in options.
        heading: the heading, followed by the unit and `per`.
        unit: unit of the numbers; empty for texts.
        per: suffix of the unit, such as `/call`.
        divisor: divides the numbers when they are shown, such as the invocations of a mean.
        leave: on narrow terminals, the column with the largest value is dropped first; 0: never.
        least: narrowest width of texts; they shrink before columns are dropped.
        usual: shown by default; else only if selected.
        words: the texts are sentences, which wrap.
    """

    key: str
    heading: str
    unit: str = TEXT
    per: str = ""
    divisor: int = 1
    leave: int = NEVER
    least: int = 0
    usual: bool = True
    words: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """A table.

    Attributes:
        noun: name of a row, in the singular.
        columns: all columns.
        rows: in the order of the map.
        rank: key of the column to sort by unless the user selects another.
        share: the shares of rows add up, so the text can give the share of hidden rows.
    """

    noun: str
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    rank: str
    share: bool = True
