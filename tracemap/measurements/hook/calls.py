"""Calls that the hook recorded as a table of DuckDB: one row per call of a workgroup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracemap.errors import RunInvalid
from tracemap.measurements.hook.recording import (
    NO_WORKGROUP,
    HookProcess,
    HookRecording,
    HookThread,
    duration_ns,
    start_ns,
)
from tracemap.measurements.sql import literal, quoted

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


def load_calls(
    recording: HookRecording, connection: duckdb.DuckDBPyConnection, *, kernel: str = "", skip_ms: int = 0
) -> duckdb.DuckDBPyRelation:
    """One row per call of a workgroup, by start.

    Columns are those of `calltable.CALL_COLUMNS`, then one per event. The table `hook_calls` of the connection is
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
    connection.execute("CREATE OR REPLACE TEMP TABLE hook_kernels (id BIGINT, kernel VARCHAR, executable VARCHAR)")
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE hook_threads (id BIGINT, process VARCHAR, thread VARCHAR, tid BIGINT)"
    )
    columns = _columns(recording, connection)
    connection.register("hook_columns", columns)
    events = "".join(f", e{place} AS {quoted(name)}" for place, name in enumerate(recording.event_names))
    workgroup = ", ".join(f"workgroup_{axis}" for axis in "xyz")
    workgroups = ", ".join(f"workgroups_{axis}" for axis in "xyz")
    connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE hook_calls AS
        SELECT process, thread, tid, kernel, executable, cpu, node, {workgroup}, {workgroups},
            row_number() OVER (
                PARTITION BY process, kernel, {workgroups}, {workgroup}
                ORDER BY start_ns, thread_id, place) - 1 AS call,
            start_ns, duration_ns{events}
        FROM hook_columns AS c
        JOIN hook_threads AS t ON c.thread_id = t.id
        JOIN hook_kernels AS k ON c.kernel_id = k.id
        {_qualification(kernel, skip_ms)}
        ORDER BY start_ns, thread_id, place
    """)
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
    fixed = {"process", "thread", "tid", "kernel", "executable", "cpu", "node", "call", "start_ns", "duration_ns"}
    fixed |= {f"{word}_{axis}" for word in ("workgroup", "workgroups") for axis in "xyz"}
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
        ids = {kernel: first_kernel + place for place, kernel in enumerate(sorted(process.kernels))}
        rows = [(ids[kernel], about.name, about.executable) for kernel, about in sorted(process.kernels.items())]
        if rows:
            connection.executemany("INSERT INTO hook_kernels VALUES (?, ?, ?)", rows)
        for thread in process.threads:
            row = (number, process.stamp, thread.name, thread.tid)
            connection.execute("INSERT INTO hook_threads VALUES (?, ?, ?, ?)", row)
            for name, values in _thread_columns(process, thread, ids, number).items():
                parts.setdefault(name, []).append(values)
            number += 1
        first_kernel += len(ids)
    return {name: np.concatenate(values) for name, values in parts.items()}


def _thread_columns(
    process: HookProcess, thread: HookThread, ids: dict[int, int], number: int
) -> dict[str, npt.NDArray[Any]]:
    import numpy as np

    calls = thread.calls
    known = np.array(sorted(ids), dtype=np.int64)
    numbers = np.array([ids[kernel] for kernel in sorted(ids)], dtype=np.int64)
    columns: dict[str, npt.NDArray[Any]] = {
        "thread_id": np.full(len(calls), number, dtype=np.int64),
        "place": np.arange(len(calls), dtype=np.int64),
        "kernel_id": numbers[np.searchsorted(known, calls["kernel"].astype(np.int64))],
        "start_ns": start_ns(process, calls),
        "duration_ns": duration_ns(process, calls),
    }
    for name in ("cpu", "node"):
        columns[name] = calls[name].astype(np.int64)
    untold = calls["flags"] & NO_WORKGROUP != 0
    for name in (f"{word}_{axis}" for word in ("workgroup", "workgroups") for axis in "xyz"):
        columns[name] = np.ma.masked_array(calls[name].astype(np.int64), mask=untold)
    for place in range(len(thread.event_names)):
        columns[f"e{place}"] = thread.events[:, place].astype(np.int64)
    return columns
