"""Helpers of foreign readers: lines of text and totals as DuckDB tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import structs

from tracemap.core.diagnostics import MEANS_ONLY, Diagnostic
from tracemap.core.errors import RunEmpty, RunInvalid, start_of
from tracemap.core.sanitize import for_terminal
from tracemap.core.units import plural
from tracemap.runs.sql import damage_of, fill_table, reader_call, reading_errors

if TYPE_CHECKING:
    import duckdb

    from tracemap.runs.model import RunHeader


# ---- run
#
# The header and the events of a run, read from another tool's file.


class ForeignRun(msgspec.Struct, frozen=True):
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


def check_lines(path: Path, connection: duckdb.DuckDBPyConnection, table: str, wrong: str, expected: str) -> None:
    """Reject the first line of a table of `load_lines` for which the SQL condition `wrong` holds.

    Raises:
        RunInvalid: there is one; the message quotes it, and says that it is no `expected` one.
    """
    query = f"SELECT number, line FROM {table} WHERE {wrong} ORDER BY number LIMIT 1"
    for number, line in connection.execute(query).fetchall():
        raise RunInvalid(f"{path}, line {number}: {for_terminal(start_of(line, 80))!r} is no {expected}")


# ---- totals
#
# Rows of a run, from totals per kernel: number of calls and total time.
#
# The run gets one row per call, so that sums and numbers of calls are exact. The times of single calls are unknown: all
# get the mean, in whole nanoseconds that add up to the total.


MOST_CALLS: Final = 20_000_000
"""Most calls of a file. Rows of equal values take little space, but each one takes time."""

_TABLE: Final = "kernel_totals"
_COLUMNS: Final = {"kernel": "VARCHAR", "calls": "HUGEINT", "duration_ns": "HUGEINT", "cpu_ns": "HUGEINT"}

_ROWS = f"""
SELECT 'dispatch' AS kind, kernel, {{columns}}
FROM (SELECT *, unnest(range(CAST(calls AS BIGINT))) AS number FROM {_TABLE}) ORDER BY ALL
"""
_PART_OF_TOTAL = "CAST({name} // calls + CAST(number < {name} % calls AS BIGINT) AS BIGINT) AS {name}"
_TIMES = ("duration_ns", "cpu_ns")

Total = tuple[str, int, int | None, int | None]
"""A kernel, its number of calls, and the wall and CPU time of all calls, in ns (None: unknown)."""


def run_of_totals(
    path: Path,
    connection: duckdb.DuckDBPyConnection,
    source: str,
    totals: Iterable[Total] | str,
    header: RunHeader,
) -> ForeignRun:
    """A run with a row per call; overwrites the table `kernel_totals` of the connection.

    Args:
        path: the file, for messages.
        connection: the database.
        source: the tool, for the note on the run, which comes before those of `header`.
        totals: rows, or a SELECT of them.
        header: the header without that note.

    Raises:
        RunEmpty: no kernel was called.
        RunInvalid: there are more than `MOST_CALLS` calls, or a time is negative.
    """
    fill_table(connection, _TABLE, _COLUMNS, () if isinstance(totals, str) else list(totals))
    if isinstance(totals, str):
        connection.execute(f"INSERT INTO {_TABLE} {totals}")
    negative = " OR ".join(f"{name} < 0" for name in ("calls", *_TIMES))
    ((calls, wrong, *known),) = connection.execute(
        f"SELECT coalesce(sum(calls), 0), count(*) FILTER ({negative}), {', '.join(f'count({n})' for n in _TIMES)} "
        f"FROM {_TABLE}"
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
    text = (
        f"{source} has only the number of calls and the total time of each kernel: sums are exact, but every call "
        "shows the mean; differences between calls, or between the dispatch sites of a kernel, are unknown"
    )
    header = structs.replace(header, diagnostics=(Diagnostic(MEANS_ONLY, text), *header.diagnostics))
    columns = [_PART_OF_TOTAL.format(name=name) for name, count in zip(_TIMES, known, strict=True) if count]
    return ForeignRun(header, connection.sql(_ROWS.format(columns=", ".join(columns))))
