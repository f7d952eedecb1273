"""What a table of costs is: columns, some of them left out where there is no room, and rows of texts and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tracemap.units import Integer, Unknown

Cell = str | int | Fraction | None
"""A text; or a number, in the unit of its column and not yet divided; None where there is none."""
Row = Mapping[str, Cell]
"""Cells by the keys of columns; what has no entry is None."""


def known_cell(value: Integer) -> Cell:
    """The cell of a number that may be unknown."""
    return None if isinstance(value, Unknown) else value


class LaterRow(Mapping[str, Cell]):
    """A row of which some cells are there; the others are made when one of them is asked for.

    Of the rows of a large model few are shown: what all are sorted by is known of each, where it stands of those few.
    """

    __slots__ = ("_cells", "_make")

    def __init__(self, cells: Mapping[str, Cell], make: Callable[[], Mapping[str, Cell]]) -> None:
        self._cells = cells
        self._make: Callable[[], Mapping[str, Cell]] | None = make

    def __getitem__(self, key: str) -> Cell:
        return self._cells[key] if key in self._cells else self._whole()[key]

    def get(self, key: str, default: Cell = None) -> Cell:  # type: ignore[override] # Mapping's own raises and catches
        """A cell; the default where there is none."""
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
"""The unit of columns of texts."""
PERCENT = "%"

NEVER = 0
"""Of `Column.leave`: it stays where there is no room, whatever else goes."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: the name that options call it by, and what stands above it: heading, unit, and `per`, such as `/call`.

    Numbers are divided by `divisor` when they are shown: by the invocations that they were measured in, where costs of
    one are shown. Of several that have no room, the one with the largest `leave` goes first. Texts are shortened to
    `least` letters before anything goes; `words`: they are sentences. A column that is not `usual` is shown only where
    it is asked for.
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
    """A table: what a row is, in one word, its columns, and its rows in the order of the map.

    `rank` is the key of the column that rows are sorted by where nothing else is asked for; `share` whether the shares
    of rows add up, so that those of rows that are not shown can be told.
    """

    noun: str
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    rank: str
    share: bool = True
