"""The calls of a hook's recording as a table file, Parquet or CSV: one row per call of a workgroup.

`CALL_COLUMNS` is the one description of its columns; docs/hook.md shows it, and tests hold tables against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.errors import QueryInvalid, TargetUnwritable
from tracemap.measurements.hook.calls import load_calls
from tracemap.measurements.hook.recording import HookRecording
from tracemap.measurements.sql import literal, open_database, quoted
from tracemap.outputs import check_file, replaced

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class CallColumn:
    """A column: its SQL type, the unit of its values ("": they have none), what they mean."""

    name: str
    type: str
    unit: str
    meaning: str


CALL_COLUMNS: Final = (
    CallColumn("process", "VARCHAR", "", "the stamp in the names of the process's record files; tells processes apart"),
    CallColumn("thread", "VARCHAR", "", "the thread's name; several threads may have the same"),
    CallColumn("tid", "BIGINT", "", "the thread's number, as Linux counts them"),
    CallColumn("kernel", "VARCHAR", "", "the kernel: the executable's export that was called"),
    CallColumn("executable", "VARCHAR", "", "the executable that holds the kernel"),
    CallColumn("cpu", "BIGINT", "", "the processor on which the call ended"),
    CallColumn("node", "BIGINT", "", "the NUMA node of that processor"),
    CallColumn(
        "workgroup_x", "BIGINT", "", "the workgroup's number along x, from 0; NULL where the runtime does not tell"
    ),
    CallColumn("workgroup_y", "BIGINT", "", "the same along y"),
    CallColumn("workgroup_z", "BIGINT", "", "the same along z"),
    CallColumn("workgroups_x", "BIGINT", "workgroups", "how many workgroups the dispatch has along x; NULL as above"),
    CallColumn("workgroups_y", "BIGINT", "workgroups", "the same along y"),
    CallColumn("workgroups_z", "BIGINT", "workgroups", "the same along z"),
    CallColumn(
        "call",
        "BIGINT",
        "",
        "which recorded execution of this kernel over that many workgroups it belongs to, counted from 0 in a process",
    ),
    CallColumn("start_ns", "BIGINT", "ns", "when the call began, on `CLOCK_MONOTONIC`"),
    CallColumn("duration_ns", "BIGINT", "ns", "how long it took"),
)
"""All columns but those of events."""

EVENT_COLUMN: Final = CallColumn(
    "each event's name", "BIGINT", "events", "how many were counted in the call; of `cpu-clock` and `task-clock` ns"
)
"""Every further column."""


def write_calls(
    recording: HookRecording,
    target: Path,
    *,
    kernel: str = "",
    skip_ms: int = 0,
    events: Sequence[str] = (),
    force: bool,
) -> int:
    """Write the calls by their start: CSV where the name ends in `.csv`, else Parquet. Returns how many there are.

    Args:
        recording: what the hook left.
        target: the file to make; whole or not at all.
        kernel: only calls of the kernel of exactly this name; all if it is empty.
        skip_ms: leave out what each thread called in its first milliseconds, counted from its first call.
        events: only the columns of these events, in this order; all if there are none.
        force: replace what is there.

    Raises:
        QueryInvalid: no call is left, or there is no such event.
        RunInvalid: the recording's names of events are no names of columns.
        TargetExists: there is a file and `force` is not set.
        TargetUnwritable: it cannot be written.
    """
    import duckdb

    check_file(target, force=force)
    for name in events:
        if name not in recording.event_names:
            there = ", ".join(recording.event_names) or "none"
            raise QueryInvalid(f"{recording.folder}: has no event {name!r}; it has: {there}")
    names = [column.name for column in CALL_COLUMNS] + list(events or recording.event_names)
    with open_database() as connection:
        calls = load_calls(recording, connection, kernel=kernel, skip_ms=skip_ms)
        ((count,),) = calls.aggregate("count(*)").fetchall()
        if not count:
            raise QueryInvalid(
                f"{recording.folder}: no call is left" + (f" of a kernel named {kernel!r}" * bool(kernel))
            )
        try:
            with replaced(target) as table:
                _copy(connection, names, table, "csv, HEADER true" if target.suffix == ".csv" else "parquet")
        except (OSError, duckdb.IOException) as error:
            raise TargetUnwritable(f"{target}: cannot be written: {error}") from error
    return int(count)


def _copy(connection: duckdb.DuckDBPyConnection, names: Sequence[str], path: Path, form: str) -> None:
    columns = ", ".join(map(quoted, names))
    connection.execute(f"COPY (SELECT {columns} FROM hook_calls) TO {literal(str(path))} (FORMAT {form})")
