"""Calls that the hook recorded as a table, of DuckDB or in a file (Parquet or CSV): one row per call of a workgroup.

`CALL_COLUMNS` is the one description of its columns; docs/hook.md shows it, and tests hold tables against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import QueryInvalid, RunInvalid
from tracemap.measurements.hook.recording import (
    NO_WORKGROUP,
    HookProcess,
    HookRecording,
    HookThread,
    duration_ns,
    no_call_is_left,
    start_ns,
)
from tracemap.measurements.sql import CSV, copy_to, literal, open_database, quoted
from tracemap.options.measure import StatsOptions
from tracemap.outputs import check_file, check_table_name, is_csv

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class CallColumn:
    """A column: what its values mean, its SQL type, and their unit ("": they have none)."""

    name: str
    meaning: str
    type: str = "BIGINT"
    unit: str = ""


CALL_COLUMNS: Final = (
    CallColumn("process", "the stamp in the names of the process's record files; tells processes apart", "VARCHAR"),
    CallColumn("thread", "the thread's name; several threads may have the same", "VARCHAR"),
    CallColumn("tid", "the thread's number, as Linux counts them"),
    CallColumn("kernel", "the kernel: the executable's export that was called", "VARCHAR"),
    CallColumn("executable", "the executable that holds the kernel", "VARCHAR"),
    CallColumn("cpu", "the processor on which the call ended"),
    CallColumn("node", "the NUMA node of that processor"),
    CallColumn("workgroup_x", "the workgroup's number along x, from 0; NULL where the runtime does not tell"),
    CallColumn("workgroup_y", "the same along y"),
    CallColumn("workgroup_z", "the same along z"),
    CallColumn("workgroups_x", "how many workgroups the dispatch has along x; NULL as above", unit="workgroups"),
    CallColumn("workgroups_y", "the same along y", unit="workgroups"),
    CallColumn("workgroups_z", "the same along z", unit="workgroups"),
    CallColumn(
        "call",
        "which recorded execution of this kernel over that many workgroups it belongs to, counted from 0 in a process; "
        "NULL where the newest calls alone are kept of a killed process, of the kernel that it ran last",
    ),
    CallColumn("start_ns", "when the call began, on `CLOCK_MONOTONIC`", unit="ns"),
    CallColumn("duration_ns", "how long it took", unit="ns"),
)
"""All columns but those of events."""

EVENT_COLUMN: Final = CallColumn(
    "each event's name", "how many were counted in the call; of `cpu-clock` and `task-clock` ns", unit="events"
)
"""Every further column."""


def write_calls(recording: HookRecording, target: Path, options: StatsOptions) -> int:
    """Write the calls by their start, as CSV or Parquet by the target's name. Returns how many there are.

    The options say which calls and which columns of events; the file is there whole or not at all.

    Raises:
        QueryInvalid: no call is left, or there is no such event.
        RunInvalid: the recording's names of events are no names of columns.
        TargetExists: there is a file and `force` is not set.
        TargetUnwritable: it cannot be written.
        UsageInvalid: its name ends as files of another kind do.
    """
    check_table_name(target)
    check_file(target, force=options.force)
    for name in options.counters:
        if name not in recording.event_names:
            there = ", ".join(recording.event_names) or "none"
            raise QueryInvalid(f"{recording.folder}: has no event {name!r}; it has: {there}")
    names = [column.name for column in CALL_COLUMNS] + list(options.counters or recording.event_names)
    with open_database() as connection:
        calls = load_calls(recording, connection, kernel=options.kernel, skip_ms=options.skip_ms)
        ((count,),) = calls.aggregate("count(*)").fetchall()
        if not count:
            raise no_call_is_left(recording.folder, options)
        chosen = calls.project(", ".join(map(quoted, names)))
        copy_to(chosen, target, CSV if is_csv(target) else "FORMAT parquet")
    return int(count)


# ---- in the database


_WORKGROUP_COLUMNS: Final = tuple(f"{word}_{axis}" for word in ("workgroup", "workgroups") for axis in "xyz")
"""What the runtime may not tell."""

_NAMES = """
CREATE OR REPLACE TEMP TABLE hook_kernels (kernel_id BIGINT, kernel VARCHAR, executable VARCHAR, is_partial BOOLEAN);
CREATE OR REPLACE TEMP TABLE hook_threads (
    thread_id BIGINT, process VARCHAR, thread VARCHAR, tid BIGINT, kept_ns BIGINT)
"""
# Each workgroup of a grid is called once in an execution of its kernel: the k-th call of it is of the k-th execution.
_CALLS = """
CREATE OR REPLACE TEMP TABLE hook_calls AS
SELECT process, thread, tid, kernel, executable, cpu, node,
    workgroup_x, workgroup_y, workgroup_z, workgroups_x, workgroups_y, workgroups_z, {call} AS call,
    start_ns, duration_ns{events}
FROM {rows}
{qualification}
ORDER BY start_ns, thread_id, ended
"""
_GRID = "process, kernel, workgroups_x, workgroups_y, workgroups_z"
_WORKGROUP = f"{_GRID}, workgroup_x, workgroup_y, workgroup_z"
_ALL = "hook_columns JOIN hook_threads USING (thread_id) JOIN hook_kernels USING (kernel_id)"
_FROM_THE_FIRST = f"row_number() OVER (PARTITION BY {_WORKGROUP} ORDER BY start_ns, thread_id, ended) - 1"

# Where the newest calls alone are kept, they begin at another time in each thread. From the latest of these on all are
# there, and the last call of each workgroup is of the last execution; the first one may lack some.
_KEPT = f"""
(SELECT *, count(*) OVER (PARTITION BY {_WORKGROUP}) AS calls
 FROM {_ALL} WHERE start_ns >= kept_ns)
"""
_FROM_THE_LAST = f"""
CASE WHEN kept_ns = 0 THEN {_FROM_THE_FIRST}
     WHEN NOT is_partial THEN {_FROM_THE_FIRST} + max(calls) OVER (PARTITION BY {_GRID}) - calls END
"""


def load_calls(
    recording: HookRecording, connection: duckdb.DuckDBPyConnection, *, kernel: str = "", skip_ms: int = 0
) -> duckdb.DuckDBPyRelation:
    """One row per call of a workgroup, by start.

    Columns are those of `CALL_COLUMNS`, then one per event. The table `hook_calls` of the connection is
    overwritten.

    Args:
        recording: what the hook left.
        connection: where the table goes.
        kernel: only calls of the kernel of exactly this name; all if it is empty.
        skip_ms: leave out what each thread called in its first milliseconds, counted from its first call. What is
            left keeps its number `call`.

    Raises:
        RunInvalid: an event has the name of another column.
    """
    _check_events(recording)
    connection.execute(_NAMES)
    connection.register("hook_columns", _columns(recording, connection))
    events = "".join(f", e{index} AS {quoted(name)}" for index, name in enumerate(recording.event_names))
    is_whole = not any(thread.dropped for process in recording.processes for thread in process.threads)
    rows, call = (_ALL, _FROM_THE_FIRST) if is_whole else (_KEPT, _FROM_THE_LAST)
    qualification = _qualification(kernel, skip_ms)
    connection.execute(_CALLS.format(rows=rows, call=call, events=events, qualification=qualification))
    connection.unregister("hook_columns")
    return connection.table("hook_calls")


def _qualification(kernel: str, skip_ms: int) -> str:
    """Chooses calls after they have their numbers; sorting by thread is done only where it is needed."""
    chosen = [f"kernel = {literal(kernel)}"] if kernel else []
    if skip_ms:
        chosen.append(f"start_ns >= min(start_ns) OVER (PARTITION BY thread_id) + {skip_ms * 1_000_000}")
    return "QUALIFY " + " AND ".join(chosen) if chosen else ""


def _check_events(recording: HookRecording) -> None:
    """Names of columns differ by more than their case."""
    fixed = {column.name for column in CALL_COLUMNS}
    plain = [name.lower() for name in recording.event_names]
    wrong = [name for name in plain if name in fixed or plain.count(name) > 1]
    if wrong:
        raise RunInvalid(f"{recording.folder}: names an event {wrong[0]!r}, as another column is named")


def _columns(recording: HookRecording, connection: duckdb.DuckDBPyConnection) -> dict[str, npt.NDArray[Any]]:
    """The numeric columns of all threads; names of kernels and threads go into tables of their own."""
    import numpy as np

    parts: dict[str, list[npt.NDArray[Any]]] = {}
    first_kernel = number = 0
    for process in recording.processes:
        if rows := _kernel_rows(process, first_kernel):
            connection.executemany("INSERT INTO hook_kernels VALUES (?, ?, ?, ?)", rows)
        kept_ns = _kept_ns(process)
        for thread in process.threads:
            row = (number, process.stamp, thread.name, thread.tid, kept_ns)
            connection.execute("INSERT INTO hook_threads VALUES (?, ?, ?, ?, ?)", row)
            for name, values in _thread_columns(process, thread, first_kernel, number).items():
                parts.setdefault(name, []).append(values)
            number += 1
        first_kernel += len(process.kernels)
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    untold = columns.pop("untold")
    return columns | {name: np.ma.masked_array(columns[name], mask=untold) for name in _WORKGROUP_COLUMNS}


def _kernel_rows(process: HookProcess, first: int) -> list[tuple[int, str, str, bool]]:
    """The rows of a process's kernels in `hook_kernels`, numbered from `first`."""
    partial = set() if process.ended else _called_last(process)
    kernels = [(number, process.kernels[number]) for number in sorted(process.kernels)]
    return [
        (first + place, kernel.name, kernel.executable.name, number in partial)
        for place, (number, kernel) in enumerate(kernels)
    ]


def _kept_ns(process: HookProcess) -> int:
    """When the calls of all threads are kept, in ns on CLOCK_MONOTONIC; 0: from the first one on."""
    first = (each.calls[:1] for each in process.threads if each.dropped and len(each.calls))
    return max((int(start_ns(process, calls)[0]) for calls in first), default=0)


def _called_last(process: HookProcess) -> set[int]:
    """The kernels of which a killed process may lack calls of the last execution: that ran, or were called last."""
    threads = [each for each in process.threads if len(each.calls)]
    last = max(threads, key=lambda each: int(each.calls["start_ticks"][-1]), default=None)
    return {each.running for each in process.threads} | (set() if last is None else {int(last.calls["kernel"][-1])})


def _thread_columns(
    process: HookProcess, thread: HookThread, first_kernel: int, number: int
) -> dict[str, npt.NDArray[Any]]:
    import numpy as np

    calls = thread.calls
    kernels = np.array(sorted(process.kernels), dtype=np.int64)
    columns: dict[str, npt.NDArray[Any]] = {
        "thread_id": np.full(len(calls), number, dtype=np.int64),
        "untold": calls["flags"] & NO_WORKGROUP != 0,
        "ended": np.arange(len(calls), dtype=np.int64),
        "kernel_id": first_kernel + np.searchsorted(kernels, calls["kernel"].astype(np.int64)),
        "start_ns": start_ns(process, calls),
        "duration_ns": duration_ns(process, calls),
    }
    for name in ("cpu", "node", *_WORKGROUP_COLUMNS):
        columns[name] = calls[name].astype(np.int64)
    for index in range(len(thread.event_names)):
        columns[f"e{index}"] = thread.events[:, index].astype(np.int64)
    return columns
