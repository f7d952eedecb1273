"""The hook's calls as a table in DuckDB or in a file (Parquet or CSV): one row per call of a workgroup.

`CALL_COLUMNS` describes the columns; docs/hook.md shows them, and tests check tables against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.errors import QueryInvalid, RunInvalid
from tracemap.core.files import check_file, check_table_name, is_csv
from tracemap.options.measure import StatsOptions
from tracemap.runs.hook.recording import (
    NO_WORKGROUP,
    HookProcess,
    HookRecording,
    HookThread,
    duration_ns,
    kernels_named,
    no_calls_error,
    start_ns,
)
from tracemap.runs.sql import CSV, copy_to, fill_table, literal, open_database, quoted

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class CallColumn:
    """A column: name, meaning, SQL type, and unit ("": none)."""

    name: str
    meaning: str
    type: str = "BIGINT"
    unit: str = ""


CALL_COLUMNS: Final = (
    CallColumn("process", "the stamp in the names of the process's record files; distinguishes processes", "VARCHAR"),
    CallColumn("thread", "the thread's name; several threads may have the same", "VARCHAR"),
    CallColumn("tid", "the thread's id in Linux"),
    CallColumn("kernel", "the kernel: the executable's export that was called", "VARCHAR"),
    CallColumn("executable", "the executable that contains the kernel", "VARCHAR"),
    CallColumn("cpu", "the CPU on which the call ended"),
    CallColumn("node", "the NUMA node of that CPU"),
    CallColumn("workgroup_x", "the workgroup's index along x, from 0; NULL if the runtime does not report it"),
    CallColumn("workgroup_y", "the same along y"),
    CallColumn("workgroup_z", "the same along z"),
    CallColumn("workgroups_x", "number of workgroups of the dispatch along x; NULL as above", unit="workgroups"),
    CallColumn("workgroups_y", "the same along y", unit="workgroups"),
    CallColumn("workgroups_z", "the same along z", unit="workgroups"),
    CallColumn(
        "call",
        "index of the recorded execution of this kernel over that many workgroups, from 0 in each process; NULL for "
        "the last kernel of a killed process if only the newest calls are kept",
    ),
    CallColumn("start_ns", "start of the call, on `CLOCK_MONOTONIC`", unit="ns"),
    CallColumn("duration_ns", "duration of the call", unit="ns"),
)
"""All columns except those of events."""

EVENT_COLUMN: Final = CallColumn(
    "each event's name", "count during the call; ns for `cpu-clock` and `task-clock`", unit="events"
)
"""Description of every further column."""


def write_calls(recording: HookRecording, target: Path, options: StatsOptions) -> int:
    """Write the calls by start time, as CSV or Parquet by the target's suffix; returns their number.

    The options select calls and event columns. The file is written atomically.

    Raises:
        QueryInvalid: no call is left, or there is no such event.
        RunInvalid: names of the recording's events cannot be column names.
        TargetExists: the file exists and `force` is not set.
        TargetUnwritable: it cannot be written.
        UsageInvalid: the suffix belongs to another format.
    """
    check_table_name(target)
    check_file(target, force=options.force)
    for name in options.counters:
        if name not in recording.event_names:
            there = ", ".join(recording.event_names) or "none"
            raise QueryInvalid(f"{recording.folder}: has no event {name!r}; it has: {there}")
    names = [column.name for column in CALL_COLUMNS] + list(options.counters or recording.event_names)
    with open_database() as connection:
        kernels = kernels_named(recording, options.kernel) if options.kernel else ()
        calls = load_calls(recording, connection, kernels=kernels, skip_ms=options.skip_ms)
        ((count,),) = calls.aggregate("count(*)").fetchall()
        if not count:
            raise no_calls_error(recording.folder, options)
        selection = calls.project(", ".join(map(quoted, names)))
        copy_to(selection, target, CSV if is_csv(target) else "FORMAT parquet")
    return int(count)


# ---- in the database


_WORKGROUP_COLUMNS: Final = tuple(f"{word}_{axis}" for word in ("workgroup", "workgroups") for axis in "xyz")
"""Columns that the runtime may not report."""

_KERNELS: Final = {"kernel_id": "BIGINT", "kernel": "VARCHAR", "executable": "VARCHAR", "is_partial": "BOOLEAN"}
_THREADS: Final = {
    **{"thread_id": "BIGINT", "process": "VARCHAR", "thread": "VARCHAR"},
    **{"tid": "BIGINT", "kept_ns": "BIGINT"},
}
# An execution of a kernel calls each workgroup of its grid once: the k-th call of a workgroup is in the k-th execution.
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
_ALL_ROWS = "hook_columns JOIN hook_threads USING (thread_id) JOIN hook_kernels USING (kernel_id)"
_INDEX_FROM_FIRST = f"row_number() OVER (PARTITION BY {_WORKGROUP} ORDER BY start_ns, thread_id, ended) - 1"

# If only the newest calls are kept, each thread's calls begin at another time. From the latest of these times on, all
# calls are there. So count from the end: the last call of each workgroup is in the last execution.
_KEPT_ROWS = f"""
(SELECT *, count(*) OVER (PARTITION BY {_WORKGROUP}) AS calls
 FROM {_ALL_ROWS} WHERE start_ns >= kept_ns)
"""
_INDEX_FROM_LAST = f"""
CASE WHEN kept_ns = 0 THEN {_INDEX_FROM_FIRST}
     WHEN NOT is_partial THEN {_INDEX_FROM_FIRST} + max(calls) OVER (PARTITION BY {_GRID}) - calls END
"""


def load_calls(
    recording: HookRecording, connection: duckdb.DuckDBPyConnection, *, kernels: Sequence[str] = (), skip_ms: int = 0
) -> duckdb.DuckDBPyRelation:
    """One row per call of a workgroup, by start time.

    Columns are those of `CALL_COLUMNS`, then one per event. The connection's table `hook_calls` is overwritten.

    Args:
        recording: the hook's recording.
        connection: the database for the table.
        kernels: only calls of these kernels; empty: of all.
        skip_ms: drop the calls in the first milliseconds of each thread, from its first call. The others keep their
            index `call`.

    Raises:
        RunInvalid: an event has the name of another column.
    """
    fixed = {column.name for column in CALL_COLUMNS}
    plain = [name.lower() for name in recording.event_names]  # names of columns must differ by more than case
    wrong = [name for name in plain if name in fixed or plain.count(name) > 1]
    if wrong:
        raise RunInvalid(f"{recording.folder}: names an event {wrong[0]!r}, which is the name of another column")
    connection.register("hook_columns", _columns(recording, connection))
    events = "".join(f", e{index} AS {quoted(name)}" for index, name in enumerate(recording.event_names))
    is_whole = not any(thread.dropped for process in recording.processes for thread in process.threads)
    rows, call = (_ALL_ROWS, _INDEX_FROM_FIRST) if is_whole else (_KEPT_ROWS, _INDEX_FROM_LAST)
    conditions = (
        [f"kernel IN ({', '.join(map(literal, kernels))})"] if kernels else []
    )  # applied once calls have their indices
    if skip_ms:
        conditions.append(f"start_ns >= min(start_ns) OVER (PARTITION BY thread_id) + {skip_ms * 1_000_000}")
    qualification = "QUALIFY " + " AND ".join(conditions) if conditions else ""
    connection.execute(_CALLS.format(rows=rows, call=call, events=events, qualification=qualification))
    connection.unregister("hook_columns")
    return connection.table("hook_calls")


def _columns(recording: HookRecording, connection: duckdb.DuckDBPyConnection) -> dict[str, npt.NDArray[Any]]:
    """The numeric columns of all threads; names of kernels and threads go into their own tables."""
    import numpy as np

    parts: dict[str, list[npt.NDArray[Any]]] = {}
    kernels: list[tuple[int, str, str, bool]] = []
    threads: list[tuple[int, str, str, int, int]] = []
    for process in recording.processes:
        partial, first_kernel = set() if process.ended else _called_last(process), len(kernels)
        kernels += [
            (index, kernel.name, kernel.executable.name, number in partial)
            for index, (number, kernel) in enumerate(sorted(process.kernels.items(), key=itemgetter(0)), first_kernel)
        ]
        # Time from which on the calls of all threads are kept, on CLOCK_MONOTONIC; 0: all are kept.
        first = (thread.calls[:1] for thread in process.threads if thread.dropped and len(thread.calls))
        kept_ns = max((int(start_ns(process, calls)[0]) for calls in first), default=0)
        for thread in process.threads:
            for name, values in _thread_columns(process, thread, first_kernel, len(threads)).items():
                parts.setdefault(name, []).append(values)
            threads.append((len(threads), process.stamp, thread.name, thread.tid, kept_ns))
    fill_table(connection, "hook_kernels", _KERNELS, kernels)
    fill_table(connection, "hook_threads", _THREADS, threads)
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    is_unknown = columns.pop("runs_left_out")
    return columns | {name: np.ma.masked_array(columns[name], mask=is_unknown) for name in _WORKGROUP_COLUMNS}


def _called_last(process: HookProcess) -> set[int]:
    """Kernels of a killed process whose last execution may be incomplete: running ones, and the last called one."""
    threads = [thread for thread in process.threads if len(thread.calls)]
    last = max(threads, key=lambda thread: int(thread.calls["start_ticks"][-1]), default=None)
    return {thread.running for thread in process.threads} | (set() if last is None else {int(last.calls["kernel"][-1])})


def _thread_columns(
    process: HookProcess, thread: HookThread, first_kernel: int, number: int
) -> dict[str, npt.NDArray[Any]]:
    import numpy as np

    calls = thread.calls
    kernels = np.array(sorted(process.kernels), dtype=np.int64)
    columns: dict[str, npt.NDArray[Any]] = {
        "thread_id": np.full(len(calls), number, dtype=np.int64),
        "runs_left_out": calls["flags"] & NO_WORKGROUP != 0,
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
