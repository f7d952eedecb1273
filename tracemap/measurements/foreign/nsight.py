"""Tables of NVIDIA's Nsight tools, as CSV among other lines: what each is, told by its columns, and its rows.

Nsight Systems (`nsys stats --format csv`): `cuda_gpu_trace` has each kernel and copy, `cuda_gpu_kern_sum` the sums of
kernels. Nsight Compute (`ncu --csv`): the page of details has a row for each metric of each kernel, that of raw values
(`--page raw`) a row for each kernel, below a row of units. Both print what they are doing above the table, and Nsight
Systems further tables below it, behind an empty line.
"""

from __future__ import annotations

import csv
import enum
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.errors import RunInvalid, start_of
from tracemap.inert import for_terminal
from tracemap.inputs import opened
from tracemap.units import INTEGER_LIMIT, NS_OF_UNIT, plural

if TYPE_CHECKING:
    import _csv


class NsightTable(enum.Enum):
    """Which table it is: by columns that no other of theirs has together."""

    TRACE = ("corrid", "grdx", "grdy", "grdz", "strm", "name")
    SUMS = ("instances", "name")
    DETAILS = ("id", "kernel name", "metric name", "metric unit", "metric value")
    RAW = ("id", "kernel name", "block size", "grid size")


_TIMES: Final = {NsightTable.TRACE: ("start", "duration"), NsightTable.SUMS: ("total time",)}
"""Columns that have a unit of time behind their name: `Start (ns)`."""

NANOSECONDS: Final = {f"{unit}{rest}": factor for unit, factor in NS_OF_UNIT.items() for rest in ("", "ec", "econd")}
"""Units of time, as versions of both tools have called them: `ns`, `nsec`, `nsecond`."""


def nsight_table_of(line: str) -> NsightTable | None:
    """The table that a line is the head of; None: of none."""
    if "name" not in line.lower():  # as all of their heads have: lines of other tables are looked at no closer
        return None
    names = [name.lower() for name in _names(line)]
    for table in NsightTable:
        times = all(any(name.startswith(f"{time} (") for name in names) for time in _TIMES.get(table, ()))
        if times and set(table.value).issubset(names):
            return table  # in this order: what has details has the columns of raw values, too
    return None


def _mark(line: str) -> str:
    """What parts cells: `nsys stats --format tsv` has tabs."""
    return "\t" if "\t" in line and "," not in line else ","


def _names(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=_mark(line)), ())]
    except csv.Error:
        return []


_QUEUE: Final = ("process id", "device", "context", "ctx", "stream", "strm")
_SAID: Final = "=="
"""What lines begin with that Nsight Compute says besides."""


@dataclass(frozen=True)
class Table:
    """A table of a file: `names` are its columns; `rows` have their line's number and the cells."""

    path: Path
    names: list[str]
    rows: Iterator[tuple[int, list[str]]]

    def place(self, name: str) -> int:
        """The place of a column that the table is known by, in small letters."""
        return self._places[name]

    def places(self, *names: str) -> list[int]:
        """The places of those of these columns that it has, in small letters."""
        return sorted(self._places[name] for name in names if name in self._places)

    # Rows ask for these: what holds for all of them is found once.

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name.lower(): index for index, name in enumerate(self.names)}

    @cached_property
    def _queue_places(self) -> list[int]:
        return self.places(*_QUEUE)

    def queue(self, cells: list[str]) -> str:
        """What a row ran on: the process, the device, its context and the stream."""
        return "/".join(cells[index] for index in self._queue_places)

    def time(self, name: str) -> tuple[int, int]:
        """The place of a column of times, and its unit in nanoseconds.

        Raises:
            RunInvalid: the unit is unknown.
        """
        place = next(index for index, found in enumerate(self.names) if found.lower().startswith(f"{name} ("))
        unit = self.names[place].lower().removeprefix(f"{name} (").rstrip(")")
        if unit not in NANOSECONDS:
            raise RunInvalid(f"{self.path}: has times in {for_terminal(start_of(unit, 20))!r}, which is unknown")
        return place, NANOSECONDS[unit]


@contextmanager
def table_of(path: Path, kind: NsightTable) -> Iterator[Table]:
    """The first such table of a file; its rows are read as they are asked for.

    Raises:
        RunInvalid: it cannot be read, has no such table, or a row has other cells than the head has names.
    """
    with opened(path, RunInvalid) as file:
        lines = (line.decode("utf-8-sig", errors="replace") for line in file)
        head = next(((number, line) for number, line in enumerate(lines, 1) if nsight_table_of(line) is kind), None)
        if head is None:
            raise RunInvalid(f"{path}: has no table of Nsight's")
        number, line = head
        names = _names(line)
        if len({name.lower() for name in names}) < len(names):
            raise RunInvalid(f"{path}, line {number}: has several columns of one name; keep one of each")
        lowered = [name.lower() for name in names]
        least = 1 + max(map(lowered.index, kind.value)) if kind is NsightTable.DETAILS else len(names)
        reader = csv.reader(lines, strict=True, delimiter=_mark(line))
        yield Table(path, names, _rows(path, reader, number, range(least, len(names) + 1)))


def _rows(path: Path, reader: _csv.Reader, above: int, widths: range) -> Iterator[tuple[int, list[str]]]:
    """The rows, all as wide as the head: on its page of details Nsight Compute leaves out last cells that are empty."""
    try:
        for cells in reader:
            if not cells:
                return
            if cells[0].startswith(_SAID):
                continue
            if len(cells) not in widths:
                raise RunInvalid(
                    f"{path}, line {above + reader.line_num}: has {plural(len(cells), 'cell')} where the table has "
                    f"{plural(widths[-1], 'column')}: it was cut, or is damaged"
                )
            yield above + reader.line_num, cells + [""] * (widths[-1] - len(cells))
    except csv.Error as error:
        raise RunInvalid(f"{path}, line {above + reader.line_num}: cannot be read as a table: {error}") from error


_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,30})(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,2})?")
"""With commas between thousands, as Nsight Compute writes them."""


def number_of(text: str, factor: int = 1) -> int | float | None:
    """What a cell says, times a factor; None: no number (what could not be measured), or none that fits a table."""
    exact: int | Fraction
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:  # as most are, in a tenth of the time
        exact = int(text) * factor
    elif _NUMBER.fullmatch(text):
        exact = Fraction(text.replace(",", "")) * factor
    else:
        return None
    if not -INTEGER_LIMIT <= exact <= INTEGER_LIMIT:
        return None
    return int(exact) if exact.denominator == 1 else float(exact)


_MOST_DIGITS: Final = 30


def whole_of(text: str, factor: int = 1) -> int | None:
    """The whole number next to what a cell says, times a factor; None: there is none, or it is below 0."""
    value = number_of(text, factor)
    return None if value is None or not 0 <= (rounded := round(value)) <= INTEGER_LIMIT else rounded
