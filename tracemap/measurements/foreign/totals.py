"""Kernels of which others tell only how often they were called and how long that took in all, as rows of a run.

A run has a row for each event, so that sums and numbers of calls are exact. What each call took is not told: all get
the mean, in whole nanoseconds that add up to the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.diagnostics import MEANS_ONLY, Diagnostic
from tracemap.errors import RunEmpty, RunInvalid
from tracemap.units import plural

if TYPE_CHECKING:
    import duckdb

MOST_CALLS: Final = 20_000_000
"""Of a file. Rows of equal values take little room, but each is gone through."""

TABLE: Final = "kernel_totals"
_SCHEMA = "kernel VARCHAR, calls HUGEINT, duration_ns HUGEINT, cpu_ns HUGEINT"

_ROWS = f"""
SELECT 'dispatch' AS kind, kernel, {{columns}}
FROM (SELECT *, unnest(range(CAST(calls AS BIGINT))) AS number FROM {TABLE}) ORDER BY ALL
"""
_PART = "CAST({name} // calls + CAST(number < {name} % calls AS BIGINT) AS BIGINT) AS {name}"
_TIMES = ("duration_ns", "cpu_ns")

Total = tuple[str, int, int | None, int | None]
"""A kernel, how many calls it had, and its duration and CPU time over all of them, in ns (None: not told)."""


def fill_totals(connection: duckdb.DuckDBPyConnection, totals: Iterable[Total]) -> None:
    """Make the table of totals of those that were read."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {TABLE} ({_SCHEMA})")
    rows: Sequence[Total] = list(totals)
    if rows:
        connection.executemany(f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?)", rows)


def select_totals(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Make it of a SELECT of kernel, calls, duration_ns and cpu_ns."""
    fill_totals(connection, ())
    connection.execute(f"INSERT INTO {TABLE} {query}")


def rows_of_totals(connection: duckdb.DuckDBPyConnection, path: Path) -> duckdb.DuckDBPyRelation:
    """The table as the events of a run: a row for each call; a kernel that was not called has none.

    Raises:
        RunEmpty: nothing was called.
        RunInvalid: more was called than there can be rows, or a time is negative.
    """
    negative = " OR ".join(f"{name} < 0" for name in ("calls", *_TIMES))
    ((calls, wrong, *known),) = connection.execute(
        f"SELECT coalesce(sum(calls), 0), count(*) FILTER ({negative}), {', '.join(f'count({n})' for n in _TIMES)} "
        f"FROM {TABLE}"
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
    columns = [_PART.format(name=name) for name, count in zip(_TIMES, known, strict=True) if count]
    return connection.sql(_ROWS.format(columns=", ".join(columns)))


def means_only(whose: str) -> Diagnostic:
    """What a reader must know of such a run."""
    text = (
        f"{whose} tells of each kernel how often it was called and how long that took in all: sums are exact, each "
        "call is shown with the mean; what differs from call to call, or between the sites of a kernel, is not known"
    )
    return Diagnostic(MEANS_ONLY, text)
