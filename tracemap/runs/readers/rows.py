"""Helpers of foreign readers: lines of text, launches and totals as DuckDB tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.diagnostics import MEANS_ONLY, Diagnostic
from tracemap.core.errors import RunEmpty, RunInvalid, start_of
from tracemap.core.sanitize import for_terminal
from tracemap.core.units import plural
from tracemap.runs.columns import LAUNCH
from tracemap.runs.sql import damage_of, fill_table, quoted, reader_call, reading_errors

if TYPE_CHECKING:
    import duckdb

    from tracemap.runs.model import RunHeader


# ---- run
#
# The header and the events of a run, read from another tool's file.


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """A run before it is written. `events` is lazy: writing evaluates it on its connection."""

    header: RunHeader
    events: duckdb.DuckDBPyRelation


# ---- lines
#
# Text of other tools, line by line, as a DuckDB table; regular expressions in SQL parse the lines.


_LOADED = """
CREATE OR REPLACE TEMP TABLE {table} AS
SELECT row_number() OVER () AS number, {columns}
FROM {rows}
"""
_LINES = "auto_detect=false, header=false, delim='\x01', quote='', escape='', columns={line: 'VARCHAR'}"


def load_lines(path: Path, connection: duckdb.DuckDBPyConnection, table: str, columns: str) -> None:
    """Create a table of a text's lines: their `number`, from 1, and SQL columns computed from `line`.

    Raises:
        RunInvalid: the file is not text, or a line has no end.
    """
    try:
        connection.execute(_LOADED.format(table=table, columns=columns, rows=reader_call("read_csv", path, _LINES)))
    except reading_errors() as error:
        raise RunInvalid(f"{path}: cannot be read as lines of text: {damage_of(error)}") from error


def unknown_line_error(path: Path, number: int, line: str, expected: str) -> RunInvalid:
    """The error for a line that is not an `expected` one."""
    return RunInvalid(f"{path}, line {number}: {for_terminal(start_of(line, 80))!r} is no {expected}")


# ---- launches
#
# Launches of kernels on a GPU, from the vendor's tools: a table of events, with the order of launches if known.
#
# On one queue (a CUDA stream), kernels run in the order of their launches, which is an order of the program. Each row
# then has its position in that order, and attribution infers the site (`attribution.join.schedule_nfa`). Across several
# queues the order is unknown.


LAUNCHES_TABLE: Final = "gpu_launches"
QUEUE: Final = "thread"
"""The column with the queue of a row: one process, device and stream is one queue."""
EVENT_COLUMNS: Final = {
    "kind": "VARCHAR",
    "kernel": "VARCHAR",
    QUEUE: "VARCHAR",
    "start_ns": "BIGINT",
    "duration_ns": "BIGINT",
    "workgroups_x": "BIGINT",
    "workgroups_y": "BIGINT",
    "workgroups_z": "BIGINT",
}
_PART: Final = 1_000_000
"""Cells per batch."""
_QUEUES: Final = f"SELECT count(DISTINCT {QUEUE}) FROM {LAUNCHES_TABLE} WHERE kind = 'dispatch'"
_NUMBERED: Final = f"""
SELECT * EXCLUDE number, CASE WHEN kind = 'dispatch' THEN
    row_number() OVER (PARTITION BY kind = 'dispatch' ORDER BY start_ns, number) - 1 END AS {LAUNCH}
FROM {LAUNCHES_TABLE} ORDER BY start_ns, number
"""
_PLAIN: Final = f"SELECT * EXCLUDE number FROM {LAUNCHES_TABLE} ORDER BY start_ns, number"


def fill_launches(
    connection: duckdb.DuckDBPyConnection, metrics: Mapping[str, str], rows: Iterable[tuple[Any, ...]]
) -> int:
    """Create the table from rows with `EVENT_COLUMNS` and metrics (names and SQL types); return the number of rows."""
    columns = {"number": "BIGINT", **EVENT_COLUMNS, **{quoted(name): kind for name, kind in metrics.items()}}
    fill_table(connection, LAUNCHES_TABLE, columns, ())
    count = 0
    iterator = iter(rows)
    while part := [
        (number, *row) for number, row in enumerate(itertools.islice(iterator, 1 + _PART // len(columns)), count)
    ]:
        fill_table(connection, f"{LAUNCHES_TABLE}_part", columns, part)
        connection.execute(f"INSERT INTO {LAUNCHES_TABLE} SELECT * FROM {LAUNCHES_TABLE}_part")
        count += len(part)
    return count


def select_launches(
    connection: duckdb.DuckDBPyConnection,
) -> tuple[duckdb.DuckDBPyRelation, tuple[Diagnostic, ...]]:
    """The events of the table, in order, and notes about them."""
    ((queues,),) = connection.execute(_QUEUES).fetchall()
    if queues <= 1:
        return connection.sql(_NUMBERED), ()
    text = (
        f"kernels ran on {queues} queues (processes, devices or streams), so the order of launches is unknown: "
        "launches of a shared kernel cannot be assigned to one of its dispatch sites"
    )
    return connection.sql(_PLAIN), (Diagnostic("several-queues", text),)


# ---- totals
#
# Rows of a run, from totals per kernel: number of calls and total time.
#
# The run gets one row per call, so that sums and numbers of calls are exact. The times of single calls are unknown: all
# get the mean, in whole nanoseconds that add up to the total.


MOST_CALLS: Final = 20_000_000
"""Most calls of a file. Rows of equal values take little space, but each one takes time."""

TOTALS_TABLE: Final = "kernel_totals"
_SCHEMA = "kernel VARCHAR, calls HUGEINT, duration_ns HUGEINT, cpu_ns HUGEINT"

_ROWS = f"""
SELECT 'dispatch' AS kind, kernel, {{columns}}
FROM (SELECT *, unnest(range(CAST(calls AS BIGINT))) AS number FROM {TOTALS_TABLE}) ORDER BY ALL
"""
_PART_OF_TOTAL = "CAST({name} // calls + CAST(number < {name} % calls AS BIGINT) AS BIGINT) AS {name}"
_TIMES = ("duration_ns", "cpu_ns")

Total = tuple[str, int, int | None, int | None]
"""A kernel, its number of calls, and the wall and CPU time of all calls, in ns (None: unknown)."""


def fill_totals(connection: duckdb.DuckDBPyConnection, totals: Iterable[Total]) -> None:
    """Create the table of totals from rows."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {TOTALS_TABLE} ({_SCHEMA})")
    rows: Sequence[Total] = list(totals)
    if rows:
        connection.executemany(f"INSERT INTO {TOTALS_TABLE} VALUES (?, ?, ?, ?)", rows)


def select_totals(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Create the table of totals from a SELECT of kernel, calls, duration_ns and cpu_ns."""
    fill_totals(connection, ())
    connection.execute(f"INSERT INTO {TOTALS_TABLE} {query}")


def rows_of_totals(connection: duckdb.DuckDBPyConnection, path: Path) -> duckdb.DuckDBPyRelation:
    """The table of totals as the events of a run: a row per call.

    Raises:
        RunEmpty: no kernel was called.
        RunInvalid: there are more than `MOST_CALLS` calls, or a time is negative.
    """
    negative = " OR ".join(f"{name} < 0" for name in ("calls", *_TIMES))
    ((calls, wrong, *known),) = connection.execute(
        f"SELECT coalesce(sum(calls), 0), count(*) FILTER ({negative}), {', '.join(f'count({n})' for n in _TIMES)} "
        f"FROM {TOTALS_TABLE}"
    ).fetchall()
    if wrong:
        raise RunInvalid(f"{path}: {plural(int(wrong), 'kernel')} with a negative time or number of calls")
    if not calls:
        raise RunEmpty(f"{path}: no kernel was called")
    if calls > MOST_CALLS:
        raise RunInvalid(
            f"{path}: has {int(calls):,} calls of kernels, more than the limit of {MOST_CALLS:,}; measure "
            "fewer iterations"
        )
    columns = [_PART_OF_TOTAL.format(name=name) for name, count in zip(_TIMES, known, strict=True) if count]
    return connection.sql(_ROWS.format(columns=", ".join(columns)))


def means_only_note(source: str) -> Diagnostic:
    """The note on a run that was made from totals."""
    text = (
        f"{source} has only the number of calls and the total time of each kernel: sums are exact, but every call "
        "shows the mean; differences between calls, or between the dispatch sites of a kernel, are unknown"
    )
    return Diagnostic(MEANS_ONLY, text)
