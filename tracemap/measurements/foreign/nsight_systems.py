"""What `nsys stats` prints of a recording of Nsight Systems: each kernel and copy of a GPU, or sums of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from tracemap.errors import RunEmpty, RunInvalid, start_of
from tracemap.inert import for_terminal
from tracemap.measurements.foreign.launches import fill_launches, select_launches
from tracemap.measurements.foreign.nsight import NsightTable, Table, number_of, table_of, whole_of
from tracemap.measurements.foreign.run import ForeignRun
from tracemap.measurements.foreign.totals import Total, fill_totals, means_only, rows_of_totals
from tracemap.measurements.model import UNTOLD_HEADER, Clock

if TYPE_CHECKING:
    import duckdb

_WHOSE: Final = "Nsight Systems"
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
    header = structs.replace(UNTOLD_HEADER, clock=Clock.DEVICE, diagnostics=(means_only(_WHOSE),), tools=(_WHOSE,))
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
    return ForeignRun(structs.replace(UNTOLD_HEADER, clock=Clock.DEVICE, diagnostics=told, tools=(_WHOSE,)), events)


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
