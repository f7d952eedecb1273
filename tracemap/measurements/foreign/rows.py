"""Rows that readers of other formats make: launches, totals, lines."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.diagnostics import MEANS_ONLY, Diagnostic
from tracemap.errors import RunEmpty, RunInvalid, start_of
from tracemap.measurements.columns import LAUNCH
from tracemap.measurements.sql import damage_of, fill, quoted, reading_errors, table_of
from tracemap.sanitize import for_terminal
from tracemap.units import plural

if TYPE_CHECKING:
    import duckdb

    from tracemap.measurements.model import RunHeader


# ---- run
#
# What a file of another tool becomes: the header and the events of a run.


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """A run that is still to be written: `events` is read when it is, on the connection that it is of."""

    header: RunHeader
    events: duckdb.DuckDBPyRelation


# ---- lines
#
# Text of other tools, line by line, as a table of DuckDB: what a line says is told by regular expressions in SQL.


_LOADED = """
CREATE OR REPLACE TEMP TABLE {table} AS
SELECT row_number() OVER () AS number, {columns}
FROM {rows}
"""
_LINES = "auto_detect=false, header=false, delim='\x01', quote='', escape='', columns={line: 'VARCHAR'}"


def load_lines(path: Path, connection: duckdb.DuckDBPyConnection, table: str, columns: str) -> None:
    """Make a table of a text: `number` of each line that is not empty, from 1, and columns in SQL of its `line`.

    Raises:
        RunInvalid: it is no text, or a line has no end.
    """
    try:
        connection.execute(_LOADED.format(table=table, columns=columns, rows=table_of("read_csv", path, _LINES)))
    except reading_errors() as error:
        raise RunInvalid(f"{path}: cannot be read as lines of text: {damage_of(error)}") from error


def not_understood(path: Path, number: int, line: str, what: str) -> RunInvalid:
    """The error for a line that is not what the others are; `what` they are."""
    return RunInvalid(f"{path}, line {number}: {for_terminal(start_of(line, 80))!r} is no {what}")


# ---- launches
#
# Launches of kernels on a GPU, as tools of its maker list them: a table of events, and the order where it tells sites.
#
# On one queue (a stream of CUDA's) kernels run in the order in which they were launched, which the program has: then
# each row has its place in it, and attribution finds the site (`attribution.join.schedule_nfa`). Of several queues no
# order is known.


LAUNCHES_TABLE: Final = "gpu_launches"
QUEUE: Final = "thread"
"""The column of the queue that a row ran on, of which all of one process, device and stream have the same."""
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
"""Cells that are handed over at once."""
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
    """Make the table of rows with `EVENT_COLUMNS` and metrics (names and SQL types); how many there are."""
    columns = {"number": "BIGINT", **EVENT_COLUMNS, **{quoted(name): kind for name, kind in metrics.items()}}
    fill(connection, LAUNCHES_TABLE, columns, ())
    count = 0
    iterator = iter(rows)
    while part := [
        (number, *row) for number, row in enumerate(itertools.islice(iterator, 1 + _PART // len(columns)), count)
    ]:
        fill(connection, f"{LAUNCHES_TABLE}_part", columns, part)
        connection.execute(f"INSERT INTO {LAUNCHES_TABLE} SELECT * FROM {LAUNCHES_TABLE}_part")
        count += len(part)
    return count


def select_launches(
    connection: duckdb.DuckDBPyConnection,
) -> tuple[duckdb.DuckDBPyRelation, tuple[Diagnostic, ...]]:
    """The events of the table, in order, and what is to be said of them."""
    ((queues,),) = connection.execute(_QUEUES).fetchall()
    if queues <= 1:
        return connection.sql(_NUMBERED), ()
    text = (
        f"kernels ran on {queues} queues (processes, devices or streams), which tell no order: which site of a shared "
        "kernel a launch was of is not known"
    )
    return connection.sql(_PLAIN), (Diagnostic("several-queues", text),)


# ---- totals
#
# Kernels of which others tell only how often they were called and how long that took in all, as rows of a run.
#
# A run has a row for each event, so that sums and numbers of calls are exact. What each call took is not told: all get
# the mean, in whole nanoseconds that add up to the sum.


MOST_CALLS: Final = 20_000_000
"""Of a file. Rows of equal values take little room, but each is gone through."""

TOTALS_TABLE: Final = "kernel_totals"
_SCHEMA = "kernel VARCHAR, calls HUGEINT, duration_ns HUGEINT, cpu_ns HUGEINT"

_ROWS = f"""
SELECT 'dispatch' AS kind, kernel, {{columns}}
FROM (SELECT *, unnest(range(CAST(calls AS BIGINT))) AS number FROM {TOTALS_TABLE}) ORDER BY ALL
"""
_PART_OF_TOTAL = "CAST({name} // calls + CAST(number < {name} % calls AS BIGINT) AS BIGINT) AS {name}"
_TIMES = ("duration_ns", "cpu_ns")

Total = tuple[str, int, int | None, int | None]
"""A kernel, how many calls it had, and its duration and CPU time over all of them, in ns (None: not told)."""


def fill_totals(connection: duckdb.DuckDBPyConnection, totals: Iterable[Total]) -> None:
    """Make the table of totals of those that were read."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {TOTALS_TABLE} ({_SCHEMA})")
    rows: Sequence[Total] = list(totals)
    if rows:
        connection.executemany(f"INSERT INTO {TOTALS_TABLE} VALUES (?, ?, ?, ?)", rows)


def select_totals(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Make it of a SELECT of kernel, calls, duration_ns and cpu_ns."""
    fill_totals(connection, ())
    connection.execute(f"INSERT INTO {TOTALS_TABLE} {query}")


def rows_of_totals(connection: duckdb.DuckDBPyConnection, path: Path) -> duckdb.DuckDBPyRelation:
    """The table as the events of a run: a row for each call; a kernel that was not called has none.

    Raises:
        RunEmpty: nothing was called.
        RunInvalid: more was called than there can be rows, or a time is negative.
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
            f"{path}: has {int(calls):,} calls of kernels, and at most {MOST_CALLS:,} are read; measure "
            "fewer iterations"
        )
    columns = [_PART_OF_TOTAL.format(name=name) for name, count in zip(_TIMES, known, strict=True) if count]
    return connection.sql(_ROWS.format(columns=", ".join(columns)))


def means_only(whose: str) -> Diagnostic:
    """What a reader must know of such a run."""
    text = (
        f"{whose} tells of each kernel how often it was called and how long that took in all: sums are exact, each "
        "call is shown with the mean; what differs from call to call, or between the sites of a kernel, is not known"
    )
    return Diagnostic(MEANS_ONLY, text)
