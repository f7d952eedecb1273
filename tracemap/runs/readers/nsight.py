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

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunEmpty, RunInvalid, start_of
from tracemap.core.files import open_stored_file
from tracemap.core.sanitize import for_terminal
from tracemap.core.units import MAX_INTEGER, NS_OF_UNIT, plural
from tracemap.runs.columns import LAUNCH, MOST_COLUMNS, check_width
from tracemap.runs.model import UNKNOWN_HEADER, Clock
from tracemap.runs.readers.rows import ForeignRun, Total, run_of_totals
from tracemap.runs.sql import fill_table, first_integer, quoted

if TYPE_CHECKING:
    import _csv

    import duckdb


# ---- nsight
#
# CSV tables of NVIDIA's Nsight tools, among other lines: recognition by columns, and rows.
#
# Nsight Systems (`nsys stats --format csv`): `cuda_gpu_trace` has a row per kernel and copy, `cuda_gpu_kern_sum` sums
# per kernel. Nsight Compute (`ncu --csv`): the details page has a row per kernel and metric; the raw page, with
# `--page raw`, has a row per kernel, after a row of units. Both tools print progress above the table. Nsight Systems
# prints further tables below it, after an empty line.


class NsightTable(enum.Enum):
    """The tables: columns that identify each, and its columns with a unit of time after their name: `Start (ns)`."""

    TRACE = (("corrid", "grdx", "grdy", "grdz", "strm", "name"), ("start", "duration"))
    SUMS = (("instances", "name"), ("total time",))
    DETAILS = (("id", "kernel name", "metric name", "metric unit", "metric value"), ())
    RAW = (("id", "kernel name", "block size", "grid size"), ())


NANOSECONDS: Final = {f"{unit}{rest}": factor for unit, factor in NS_OF_UNIT.items() for rest in ("", "ec", "econd")}
"""Nanoseconds per unit of time, under the names in all versions of both tools: `ns`, `nsec`, `nsecond`."""


def nsight_table_of(line: str) -> NsightTable | None:
    """The table whose head is this line; None if it is no head."""
    if "name" not in line.lower():  # fast path: all heads contain it
        return None
    names = [name.lower() for name in _names(line)]
    for table in NsightTable:  # in this order, because the details page has the columns of the raw page, too
        columns, times = table.value
        if {*columns} <= {*names} and all(any(name.startswith(f"{time} (") for name in names) for time in times):
            return table
    return None


def _separator(line: str) -> str:
    """The separator of cells: a comma, or a tab from `nsys stats --format tsv`."""
    return "\t" if "\t" in line and "," not in line else ","


def _names(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=_separator(line)), ())]
    except csv.Error:
        return []


_MESSAGE_PREFIX: Final = "=="
"""The start of lines with messages of Nsight Compute."""


@dataclass(frozen=True)
class Table:
    """A table of a file: `names` of its columns, and `rows` of line number and cells."""

    path: Path
    names: list[str]
    rows: Iterator[tuple[int, list[str]]]

    def place(self, name: str) -> int:
        """The index of a required column, by its lower-case name."""
        return self._places[name]

    def places(self, *names: str) -> list[int]:
        """The indices of those of these columns (lower-case names) that the table has."""
        return sorted(self._places[name] for name in names if name in self._places)

    @cached_property  # like the next one, because every row needs them
    def _places(self) -> dict[str, int]:
        return {name.lower(): index for index, name in enumerate(self.names)}

    @cached_property
    def _queue_places(self) -> list[int]:
        return self.places("process id", "device", "context", "ctx", "stream", "strm")

    def queue(self, cells: Sequence[str]) -> str:
        """The queue of a row: process, device, context and stream."""
        return "/".join(cells[index] for index in self._queue_places)

    def time(self, name: str) -> tuple[int, int]:
        """The index of a column of times, and its unit in nanoseconds.

        Raises:
            RunInvalid: the unit is unknown.
        """
        place = next(index for index, column in enumerate(self.names) if column.lower().startswith(f"{name} ("))
        unit = self.names[place].lower().removeprefix(f"{name} (").rstrip(")")
        if unit not in NANOSECONDS:
            raise RunInvalid(f"{self.path}: has times in the unknown unit {_shown(unit, 20)!r}")
        return place, NANOSECONDS[unit]


@contextmanager
def table_of(path: Path, kind: NsightTable) -> Iterator[Table]:
    """The first table of this kind in a file, with lazy rows.

    Raises:
        RunInvalid: the file cannot be read, has no such table, or a row's number of cells differs from the head's.
    """
    with open_stored_file(path, RunInvalid) as file:
        lines = (line.decode("utf-8-sig", errors="replace") for line in file)
        heads = ((number, line) for number, line in enumerate(lines, 1) if nsight_table_of(line) is kind)
        number, line = next(heads, (0, ""))
        if not number:
            raise RunInvalid(f"{path}: has no table of an Nsight tool")
        names = _names(line)
        lowered = [name.lower() for name in names]
        if len({*lowered}) < len(names):
            raise RunInvalid(f"{path}, line {number}: has several columns with the same name; keep one of each")
        least = 1 + max(map(lowered.index, kind.value[0])) if kind is NsightTable.DETAILS else len(names)
        reader = csv.reader(lines, strict=True, delimiter=_separator(line))
        yield Table(path, names, _rows(path, reader, number, range(least, len(names) + 1)))


def _rows(path: Path, reader: _csv.Reader, above: int, widths: range) -> Iterator[tuple[int, list[str]]]:
    """The rows, padded to the width of the head: Nsight Compute's details page omits empty cells at the end."""
    try:
        for cells in reader:
            if not cells:
                return
            if cells[0].startswith(_MESSAGE_PREFIX):
                continue
            if len(cells) not in widths:
                raise RunInvalid(
                    f"{path}, line {above + reader.line_num}: has {plural(len(cells), 'cell')}, but the table has "
                    f"{plural(widths[-1], 'column')}: it is truncated or damaged"
                )
            yield above + reader.line_num, cells + [""] * (widths[-1] - len(cells))
    except csv.Error as error:
        raise RunInvalid(f"{path}, line {above + reader.line_num}: cannot be read as a table: {error}") from error


_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,30})(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,2})?")
"""A number with commas between thousands, as Nsight Compute writes it."""


def _number_of(text: str, factor: int = 1) -> int | float | None:
    """A cell's value times a factor; None if it is no number (not measured) or does not fit 64 bits."""
    exact: int | Fraction
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:  # fast path for most cells
        exact = int(text) * factor
    elif _NUMBER.fullmatch(text):
        exact = Fraction(text.replace(",", "")) * factor
    else:
        return None
    if not -MAX_INTEGER <= exact <= MAX_INTEGER:
        return None
    return int(exact) if exact.denominator == 1 else float(exact)


_MOST_DIGITS: Final = 30


def _rounded_number_of(text: str, factor: int) -> int | None:
    """A cell's value times a factor, rounded; None if there is none, or it is negative."""
    value = _number_of(text, factor)
    return None if value is None or not 0 <= (rounded := round(value)) <= MAX_INTEGER else rounded


def _shown(text: str, most: int = 80) -> str:
    return for_terminal(start_of(text, most))


# ---- launches
#
# Launches of kernels on a GPU: a table of events, with the order of launches if known.
#
# On one queue (a CUDA stream), kernels run in the order of their launches, which is an order of the program. Each row
# then has its position in that order, and attribution infers the site (`attribution.join.schedule_nfa`). Across several
# queues the order is unknown.


_LAUNCHES: Final = "gpu_launches"
_QUEUE: Final = "thread"
"""The column with the queue of a row: one process, device and stream is one queue."""
_EVENT_COLUMNS: Final = {
    **dict.fromkeys(("kind", "kernel", _QUEUE), "VARCHAR"),
    **dict.fromkeys(("start_ns", "duration_ns", "workgroups_x", "workgroups_y", "workgroups_z"), "BIGINT"),
}
_PART: Final = 1_000_000
"""Cells per batch."""
_EVENTS: Final = f"SELECT * EXCLUDE number{{launch}} FROM {_LAUNCHES} ORDER BY start_ns, number"
_LAUNCH_NUMBER: Final = f""", CASE WHEN kind = 'dispatch' THEN
    row_number() OVER (PARTITION BY kind = 'dispatch' ORDER BY start_ns, number) - 1 END AS {LAUNCH}"""


def _fill_launches(
    connection: duckdb.DuckDBPyConnection, rows: Iterable[tuple[Any, ...]], metrics: Mapping[str, str]
) -> int:
    """Create the table from rows with `_EVENT_COLUMNS` and metrics (names and SQL types); return the number of rows."""
    columns = {"number": "BIGINT", **_EVENT_COLUMNS, **{quoted(name): kind for name, kind in metrics.items()}}
    fill_table(connection, _LAUNCHES, columns, ())
    numbered = ((number, *row) for number, row in enumerate(rows))
    count = 0
    while part := list(itertools.islice(numbered, 1 + _PART // len(columns))):
        fill_table(connection, f"{_LAUNCHES}_part", columns, part)
        connection.execute(f"INSERT INTO {_LAUNCHES} SELECT * FROM {_LAUNCHES}_part")
        count += len(part)
    return count


def _run_of_launches(connection: duckdb.DuckDBPyConnection, tool: str, notes: Iterable[Diagnostic] = ()) -> ForeignRun:
    """The run of the table: its events in order; notes on the order come before `notes`."""
    query = f"SELECT count(DISTINCT {_QUEUE}) FROM {_LAUNCHES} WHERE kind = 'dispatch'"
    queues = first_integer(connection, query)
    text = (
        f"kernels ran on {queues} queues (processes, devices or streams), so the order of launches is unknown: "
        "launches of a shared kernel cannot be assigned to one of its dispatch sites"
    )
    order = (Diagnostic("several-queues", text),) if queues > 1 else ()
    header = structs.replace(UNKNOWN_HEADER, clock=Clock.DEVICE, tools=(tool,), diagnostics=(*order, *notes))
    return ForeignRun(header, connection.sql(_EVENTS.format(launch="" if order else _LAUNCH_NUMBER)))


# ---- nsight compute
#
# Output of `ncu --csv`: the metrics of each kernel, which Nsight Compute measures in isolation and in several passes.
#
# Only sums (`….sum`) add up over kernels, as metrics of a run must; percentages, maxima and means do not. The time of a
# kernel is `gpu__time_duration`, on the details page also `Duration`. Source: the sections «Metrics Structure» and
# «Metrics Decoder» of Nsight Compute's Profiling Guide.


_COMPUTE: Final = "Nsight Compute"
_DURATIONS: Final = (
    "gpu__time_duration.sum",
    "gpu__time_duration.avg",
    "gpu__time_duration.max",
    "gpu__time_duration.min",
    "Duration",
)
"""All names of the time of a kernel; for a single kernel they have the same value."""
_SUM: Final = ".sum"
_ROLLED_UP: Final = re.compile(r"\w+__\w+\.\w[\w.]*")
"""The name of a hardware metric, in contrast to properties of the kernel, the launch and the device."""
_MULTIPLES: Final = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_GRID: Final = re.compile(r"\(([0-9]{1,18}), *([0-9]{1,18}), *([0-9]{1,18})\)")
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class _Launch:
    """A measured launch of a kernel: the fields of both pages, and the cells of its metrics with their units."""

    kernel: str
    queue: str
    grid: tuple[int | None, ...]
    cells: Mapping[str, tuple[str, str]]

    @property
    def duration_ns(self) -> int | None:
        """Its time; None if it was not measured."""
        cells = (self.cells[name] for name in _DURATIONS if name in self.cells)
        values = (_rounded_number_of(cell, _factor(unit)) for cell, unit in cells)
        return next((value for value in values if value is not None), None)

    def value(self, name: str) -> int | float | None:
        """A metric in its base unit (nanoseconds for times); None if it could not be measured."""
        cell, unit = self.cells.get(name, ("", ""))
        return _number_of(cell, _factor(unit))


def read_nsight_compute(path: Path, connection: duckdb.DuckDBPyConnection, page: NsightTable) -> ForeignRun:
    """Read a page of Nsight Compute; overwrites the table of launches of the connection.

    Raises:
        RunEmpty: no kernel was measured.
        RunInvalid: a row does not match its columns.
    """
    launches = _launches_of_details if page is NsightTable.DETAILS else _launches_of_raw
    types: dict[str, str] = {}  # SQL types of sums; empty for other metrics, and if no value could be measured
    with table_of(path, page) as table:
        for launch in launches(table):
            for name in launch.cells:
                kind = types.setdefault(name, "")
                value = launch.value(name) if name.endswith(_SUM) else None
                if value is not None:
                    types[name] = "DOUBLE" if isinstance(value, float) or kind == "DOUBLE" else "BIGINT"
    metrics = {name: kind for name, kind in types.items() if kind and name not in _DURATIONS}
    check_width(path, len(_EVENT_COLUMNS) + len(metrics), MOST_COLUMNS - _ADDED)
    by_lower_case: dict[str, str] = {}
    for name in metrics:  # names that differ only in case are one column to the database
        other = by_lower_case.setdefault(name.lower(), name)
        if other != name:
            names = f"{_shown(other)!r} and {_shown(name)!r}"
            raise RunInvalid(f"{path}: the names of the metrics {names} differ only in case; keep one of them")
    with table_of(path, page) as table:
        rows = (
            (
                *("dispatch", launch.kernel, launch.queue, None, launch.duration_ns, *launch.grid),
                *map(launch.value, metrics),
            )
            for launch in launches(table)
        )
        count = _fill_launches(connection, rows, metrics)
    if not count:
        raise RunEmpty(f"{path}: no kernel was measured")
    return _run_of_launches(connection, _COMPUTE, (_ALONE, *_left_out(types, metrics)))


_ALONE: Final = Diagnostic(
    "kernels-alone",
    "Nsight Compute runs every kernel in isolation, once per group of metrics, with flushed caches and a fixed clock. "
    "Disable this with --cache-control none --clock-control none",
)
_ADDED: Final = 4
"""Columns that are added to a run once its sites are inferred."""


def _left_out(types: Mapping[str, str], metrics: Iterable[str]) -> Iterator[Diagnostic]:
    """Notes on metrics that could not be measured, and on metrics without a sum."""
    unmeasured = [name for name, kind in types.items() if not kind and name.endswith(_SUM)]
    if unmeasured:
        text = f"Nsight Compute could not measure {_first(unmeasured)} for any kernel"
        yield Diagnostic("metrics-not-measured", text)
    with_sum = {name.removesuffix(_SUM) for name in (*metrics, *unmeasured, *_DURATIONS)}
    left_out = [name for name in types if _ROLLED_UP.fullmatch(name) and name.partition(".")[0] not in with_sum]
    if left_out:
        text = (
            f"{plural(len(left_out), 'metric')} of Nsight Compute left out ({_first(left_out)}): only sums ({_SUM}) "
            "add up over kernels"
        )
        yield Diagnostic("metrics-left-out", text)


def _first(names: Sequence[str]) -> str:
    return ", ".join(map(_shown, names[:_SHOWN])) + (" …" if len(names) > _SHOWN else "")


def _factor(unit: str) -> int:
    """Factor from a unit to its base unit (nanoseconds for times)."""
    if unit in NANOSECONDS:
        return NANOSECONDS[unit]
    return _MULTIPLES.get(unit[:1], 1) if unit[1:].isalpha() and unit[1:].islower() else 1


def _launches_of_details(table: Table) -> Iterator[_Launch]:
    """Launches of the details page, which has consecutive rows for the metrics of a launch."""
    places = [table.place(name) for name in ("metric name", "metric unit", "metric value")]
    keys = table.places("id", "process id", "kernel name")
    for _, group in itertools.groupby(table.rows, lambda row: [row[1][index] for index in keys]):
        rows = list(group)
        metrics: dict[str, tuple[str, str]] = {}
        for number, cells in rows:
            name, unit, value = (cells[index] for index in places)
            if name and metrics.setdefault(name, (value, unit)) != (value, unit):
                raise RunInvalid(
                    f"{table.path}, line {number}: has another value of {_shown(name)} for the same kernel"
                )
        yield _launch(table, *rows[0], metrics)


def _launches_of_raw(table: Table) -> Iterator[_Launch]:
    """Launches of the raw page, which has a row per launch after a row of units."""
    first = next(table.rows, None)
    if first is None:
        return
    units = first[1]
    fixed = set(table.places(*_FIXED))
    if any(units[index] for index in fixed):
        raise RunInvalid(f"{table.path}, line {first[0]}: the row of units below the head is missing")
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
    workgroups = tuple(map(int, grid.groups())) if grid else (None, None, None)
    return _Launch(kernel, table.queue(cells), workgroups, metrics)


# ---- nsight systems
#
# Output of `nsys stats` for a recording of Nsight Systems: kernels and copies of a GPU, or sums of kernels.


_SYSTEMS: Final = "Nsight Systems"
_TRANSFERS: Final = {"[CUDA memcpy": "copy", "[CUDA memset": "fill"}
"""Prefixes of the names of copies and fills; other names in brackets are not work of the program."""


def read_nsight_sums(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    """Read the sums of kernels (`--report cuda_gpu_kern_sum`); overwrites the table `kernel_totals` of the connection.

    Raises:
        RunEmpty: no kernel was launched.
        RunInvalid: a row does not match its columns.
    """
    with table_of(path, NsightTable.SUMS) as table:
        name, calls, (total, factor) = table.place("name"), table.place("instances"), table.time("total time")
        totals: list[Total] = [
            (cells[name], _whole(table, number, cells[calls]), _whole(table, number, cells[total], factor), None)
            for number, cells in table.rows
        ]
    header = structs.replace(UNKNOWN_HEADER, clock=Clock.DEVICE, tools=(_SYSTEMS,))
    return run_of_totals(path, connection, _SYSTEMS, totals, header)


def read_nsight_trace(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    """Read kernels and copies (`--report cuda_gpu_trace`); overwrites the table of launches of the connection.

    Raises:
        RunEmpty: nothing ran.
        RunInvalid: a row does not match its columns.
    """
    with table_of(path, NsightTable.TRACE) as table:
        count = _fill_launches(connection, _events(table), {})
    if not count:
        raise RunEmpty(f"{path}: nothing ran on the GPU")
    return _run_of_launches(connection, _SYSTEMS)


def _events(table: Table) -> Iterator[tuple[Any, ...]]:
    name, (start, unit), (duration, factor) = table.place("name"), table.time("start"), table.time("duration")
    grid = [table.place(f"grd{axis}") for axis in "xyz"]
    for number, cells in table.rows:
        is_kernel = not cells[name].startswith("[")
        transfer = next((kind for start, kind in _TRANSFERS.items() if cells[name].startswith(start)), "")
        if not (is_kernel or transfer):
            continue
        if not cells[name]:
            raise RunInvalid(f"{table.path}, line {number}: names no kernel")
        yield (
            transfer or "dispatch",
            cells[name] if is_kernel else None,
            table.queue(cells),
            _whole(table, number, cells[start], unit),
            _whole(table, number, cells[duration], factor),
            *(_whole(table, number, cells[index]) if is_kernel else None for index in grid),
        )


def _whole(table: Table, number: int, cell: str, factor: int = 1) -> int:
    value = _number_of(cell) if factor == 1 else _rounded_number_of(cell, factor)
    if not isinstance(value, int) or value < 0:
        raise RunInvalid(f"{table.path}, line {number}: {_shown(cell, 40)!r} is not a possible number or time")
    return value
