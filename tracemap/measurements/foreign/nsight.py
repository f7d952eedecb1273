"""Readers of NVIDIA Nsight Compute and Nsight Systems tables."""

from __future__ import annotations

import csv
import enum
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunEmpty, RunInvalid, start_of
from tracemap.inputs import opened
from tracemap.measurements.columns import MOST_COLUMNS, check_width
from tracemap.measurements.foreign.rows import (
    EVENT_COLUMNS,
    ForeignRun,
    Total,
    fill_launches,
    fill_totals,
    means_only,
    rows_of_totals,
    select_launches,
)
from tracemap.measurements.model import UNTOLD_HEADER, Clock
from tracemap.sanitize import for_terminal
from tracemap.units import INTEGER_LIMIT, NS_OF_UNIT, plural

if TYPE_CHECKING:
    import _csv

    import duckdb


# ---- nsight
#
# Tables of NVIDIA's Nsight tools, as CSV among other lines: what each is, told by its columns, and its rows.
#
# Nsight Systems (`nsys stats --format csv`): `cuda_gpu_trace` has each kernel and copy, `cuda_gpu_kern_sum` the sums
# of kernels. Nsight Compute (`ncu --csv`): the page of details has a row for each metric of each kernel, that of raw
# values (`--page raw`) a row for each kernel, below a row of units. Both print what they are doing above the table,
# and Nsight Systems further tables below it, behind an empty line.


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


# ---- nsight compute
#
# What `ncu --csv` prints: the metrics of each kernel that Nsight Compute measured, by itself, as often as it took.
#
# Of the metrics only sums (`….sum`) add up over kernels, as those of a run must; what a share, a maximum or a mean of
# two ops together is, nothing tells. The time of a kernel is `gpu__time_duration`, on the page of details also
# `Duration`. Source: the sections «Metrics Structure» and «Metrics Decoder» of Nsight Compute's Profiling Guide.


_WHOSE: Final = "Nsight Compute"
_DURATIONS: Final = (
    "gpu__time_duration.sum",
    "gpu__time_duration.avg",
    "gpu__time_duration.max",
    "gpu__time_duration.min",
    "Duration",
)
"""The time of a kernel, by all names under which it may stand: of one kernel they are the same."""
_SUM: Final = ".sum"
_ROLLED_UP: Final = re.compile(r"\w+__\w+\.\w[\w.]*")
"""A metric of the hardware, as against what is told of the kernel, the launch and the device."""
_MULTIPLES: Final = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_GRID: Final = re.compile(r"\(([0-9]{1,18}), *([0-9]{1,18}), *([0-9]{1,18})\)")
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class _Launch:
    """A kernel that was measured: what every page says of it, and the cells of its metrics with their units."""

    kernel: str
    queue: str
    grid: tuple[int | None, ...]
    cells: Mapping[str, tuple[str, str]]

    @property
    def duration_ns(self) -> int | None:
        """How long it ran; None: it was not measured."""
        told = (self.cells[name] for name in _DURATIONS if name in self.cells)
        return next((value for cell, unit in told if (value := whole_of(cell, _factor(unit))) is not None), None)

    def value(self, name: str) -> int | float | None:
        """A metric in its plain unit, of times nanoseconds; None: it could not be measured."""
        cell, unit = self.cells.get(name, ("", ""))
        return number_of(cell, _factor(unit))


def read_nsight_compute(path: Path, connection: duckdb.DuckDBPyConnection, page: NsightTable) -> ForeignRun:
    """Read such a page; the table of launches in the connection is overwritten.

    Raises:
        RunEmpty: no kernel was measured.
        RunInvalid: a row is not what its columns say.
    """
    types: dict[str, str] = {}
    with table_of(path, page) as table:
        for launch in _launches(table, page):
            for name in launch.cells:
                types[name] = _wider(types.get(name, ""), launch.value(name)) if name.endswith(_SUM) else ""
    metrics = {name: kind for name, kind in types.items() if kind and name not in _DURATIONS}
    check_width(path, len(EVENT_COLUMNS) + len(metrics), MOST_COLUMNS - _ADDED)
    _check_names(path, metrics)
    with table_of(path, page) as table:
        count = fill_launches(connection, metrics, (_row(launch, metrics) for launch in _launches(table, page)))
    if not count:
        raise RunEmpty(f"{path}: no kernel was measured")
    events, told = select_launches(connection)
    header = structs.replace(
        UNTOLD_HEADER,
        clock=Clock.DEVICE,
        tools=(_WHOSE,),
        diagnostics=(*told, Diagnostic("kernels-alone", _ALONE), *_left_out(types, metrics)),
    )
    return ForeignRun(header, events)


_ALONE: Final = (
    "Nsight Compute runs each kernel by itself, again for each group of metrics, with emptied caches and a fixed clock "
    "unless it is told otherwise (--cache-control none --clock-control none)"
)


_ADDED: Final = 4
"""Columns that a run gets once its sites are found."""


def _check_names(path: Path, metrics: Iterable[str]) -> None:
    """Refuse metrics whose names differ in nothing but case, which are one column to the database."""
    seen: dict[str, str] = {}
    for name in metrics:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            shown = " and ".join(repr(for_terminal(start_of(each, 80))) for each in (other, name))
            raise RunInvalid(f"{path}: the metrics {shown} are one but for their case; keep one of them")


def _wider(kind: str, value: float | None) -> str:
    """The SQL type of values of a type and one more; none where none could be measured."""
    if value is None:
        return kind
    return "DOUBLE" if isinstance(value, float) or kind == "DOUBLE" else "BIGINT"


def _left_out(types: Mapping[str, str], metrics: Iterable[str]) -> Iterator[Diagnostic]:
    """What is to be known of metrics that could not be measured, or that are no sums and have none beside them."""
    never = [name for name, kind in types.items() if not kind and name.endswith(_SUM)]
    if never:
        yield Diagnostic("metrics-not-measured", f"Nsight Compute could not measure {_first(never)} of any kernel")
    told = {name.removesuffix(_SUM) for name in (*metrics, *never, *_DURATIONS)}
    left = [name for name in types if _ROLLED_UP.fullmatch(name) and name.partition(".")[0] not in told]
    if left:
        text = (
            f"{plural(len(left), 'metric')} of Nsight Compute's {'is' if len(left) == 1 else 'are'} left out "
            f"({_first(left)}): only sums ({_SUM}) add up over kernels"
        )
        yield Diagnostic("metrics-left-out", text)


def _first(names: Sequence[str]) -> str:
    shown = ", ".join(for_terminal(start_of(name, 80)) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} …"


def _row(launch: _Launch, metrics: Iterable[str]) -> tuple[Any, ...]:
    return (
        "dispatch",
        launch.kernel,
        launch.queue,
        None,
        launch.duration_ns,
        *launch.grid,
        *(launch.value(name) for name in metrics),
    )


def _factor(unit: str) -> int:
    """To the plain unit, of times to nanoseconds."""
    if unit in NANOSECONDS:
        return NANOSECONDS[unit]
    return _MULTIPLES.get(unit[:1], 1) if unit[1:].isalpha() and unit[1:].islower() else 1


def _launches(table: Table, page: NsightTable) -> Iterator[_Launch]:
    return _of_details(table) if page is NsightTable.DETAILS else _of_raw(table)


def _of_details(table: Table) -> Iterator[_Launch]:
    """A row for each metric: those of one kernel stand together."""
    places = [table.place(name) for name in ("metric name", "metric unit", "metric value")]
    keys = table.places("id", "process id", "kernel name")
    for _, group in itertools.groupby(table.rows, lambda row: [row[1][index] for index in keys]):
        rows = list(group)
        metrics: dict[str, tuple[str, str]] = {}
        for number, cells in rows:
            name, unit, value = (cells[index] for index in places)
            if name and metrics.setdefault(name, (value, unit)) != (value, unit):
                shown = for_terminal(start_of(name, 80))
                raise RunInvalid(f"{table.path}, line {number}: has another {shown} of the same kernel than above")
        yield _launch(table, *rows[0], metrics)


def _of_raw(table: Table) -> Iterator[_Launch]:
    """A row for each kernel, below one of units."""
    first = next(table.rows, None)
    if first is None:
        return
    units = first[1]
    fixed = set(table.places(*_FIXED))
    if any(units[index] for index in fixed):
        raise RunInvalid(f"{table.path}, line {first[0]}: has no units, which Nsight Compute writes below the head")
    for number, cells in table.rows:
        metrics = {
            table.names[index]: (cell, units[index]) for index, cell in enumerate(cells) if index not in fixed and cell
        }
        yield _launch(table, number, cells, metrics)


_FIXED: Final = ("id", "process id", "process name", "host name", "kernel name", "context", "stream", "device", "cc")


def _launch(table: Table, number: int, cells: Sequence[str], metrics: Mapping[str, tuple[str, str]]) -> _Launch:
    kernel = cells[table.place("kernel name")]
    if not kernel:
        raise RunInvalid(f"{table.path}, line {number}: names no kernel")
    grid = next((_GRID.fullmatch(cells[index].strip()) for index in table.places("grid size")), None)
    return _Launch(
        kernel, table.queue(list(cells)), tuple(map(int, grid.groups())) if grid else (None, None, None), metrics
    )


# ---- nsight systems
#
# What `nsys stats` prints of a recording of Nsight Systems: each kernel and copy of a GPU, or sums of kernels.


_OF_SYSTEMS: Final = "Nsight Systems"
_TRANSFERS: Final = {"[CUDA memcpy": "copy", "[CUDA memset": "fill"}
"""What the names of copies and fills begin with; other names in brackets are of no work of the program's."""


def read_nsight_sums(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    """Read the sums of kernels (`--report cuda_gpu_kern_sum`); the table of totals in the connection is overwritten.

    Raises:
        RunEmpty: no kernel was launched.
        RunInvalid: a row is not what its columns say.
    """
    with table_of(path, NsightTable.SUMS) as table:
        fill_totals(connection, _totals(table))
    header = structs.replace(
        UNTOLD_HEADER, clock=Clock.DEVICE, diagnostics=(means_only(_OF_SYSTEMS),), tools=(_OF_SYSTEMS,)
    )
    return ForeignRun(header, rows_of_totals(connection, path))


def _totals(table: Table) -> Iterator[Total]:
    name, calls, (total, factor) = table.place("name"), table.place("instances"), table.time("total time")
    for number, cells in table.rows:
        yield cells[name], _whole(table, number, cells[calls]), _whole(table, number, cells[total], factor), None


def read_nsight_trace(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    """Read each kernel and copy (`--report cuda_gpu_trace`); the table of launches in the connection is overwritten.

    Raises:
        RunEmpty: nothing ran.
        RunInvalid: a row is not what its columns say.
    """
    with table_of(path, NsightTable.TRACE) as table:
        count = fill_launches(connection, {}, _events(table))
    if not count:
        raise RunEmpty(f"{path}: nothing ran on the GPU")
    events, told = select_launches(connection)
    return ForeignRun(
        structs.replace(UNTOLD_HEADER, clock=Clock.DEVICE, diagnostics=told, tools=(_OF_SYSTEMS,)), events
    )


def _events(table: Table) -> Iterator[tuple[Any, ...]]:
    name, (start, unit), (duration, factor) = table.place("name"), table.time("start"), table.time("duration")
    grid = [table.place(f"grd{axis}") for axis in "xyz"]
    for number, cells in table.rows:
        kind = _kind(cells[name])
        if not kind:
            continue
        if not cells[name]:
            raise RunInvalid(f"{table.path}, line {number}: names no kernel")
        yield (
            kind,
            cells[name] if kind == "dispatch" else None,
            table.queue(cells),
            _whole(table, number, cells[start], unit),
            _whole(table, number, cells[duration], factor),
            *(_whole(table, number, cells[index]) if kind == "dispatch" else None for index in grid),
        )


def _kind(name: str) -> str:
    if not name.startswith("["):
        return "dispatch"
    return next((kind for start, kind in _TRANSFERS.items() if name.startswith(start)), "")


def _whole(table: Table, number: int, cell: str, factor: int = 1) -> int:
    value = number_of(cell) if factor == 1 else whole_of(cell, factor)
    if not isinstance(value, int) or value < 0:
        shown = for_terminal(start_of(cell, 40))
        raise RunInvalid(f"{table.path}, line {number}: {shown!r} is no number of kernels or time that there can be")
    return value
