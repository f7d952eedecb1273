"""What `ncu --csv` prints: the metrics of each kernel that Nsight Compute measured, by itself, as often as it took.

Of the metrics only sums (`….sum`) add up over kernels, as those of a run must; what a share, a maximum or a mean of
two ops together is, nothing tells. The time of a kernel is `gpu__time_duration`, on the page of details also
`Duration`.
Source: the sections «Metrics Structure» and «Metrics Decoder» of Nsight Compute's Profiling Guide.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunEmpty, RunInvalid, start_of
from tracemap.inert import for_terminal
from tracemap.measurements.columns import MOST_COLUMNS, check_width
from tracemap.measurements.foreign.launches import EVENT_COLUMNS, fill_launches, select_launches
from tracemap.measurements.foreign.nsight import NANOSECONDS, NsightTable, Table, number_of, table_of, whole_of
from tracemap.measurements.foreign.run import ForeignRun
from tracemap.measurements.model import UNTOLD_HEADER, Clock
from tracemap.units import plural

if TYPE_CHECKING:
    import duckdb

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
