"""A window of a run: the invocations that began in a span of time, as a run of its own.

A server records for hours, but the question is about the minute in which it was slow. Invocations are taken whole,
because the order of their submissions identifies dispatch sites, and costs per invocation need whole ones.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.diagnostics import WINDOW, Diagnostic
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import MAX_INTEGER, UNKNOWN, format_ns, plural
from tracemap.options.results import WHOLE_RUN, Window
from tracemap.runs.bad_cells import explain_bad_cell
from tracemap.runs.columns import columns_of, events_sql
from tracemap.runs.model import SAMPLES, UNKNOWN_INVOCATION, UNKNOWN_PARTS, Run
from tracemap.runs.runfile import read_run, write_run
from tracemap.runs.sql import open_database, quoted, reading_errors

if TYPE_CHECKING:
    import duckdb


_NS = 1_000_000_000

# An invocation begins with its first submission. Rows without an invocation begin at their own start; samples are no
# beginning, because they are taken of running code.
_CALLS: Final = """
CREATE TEMP TABLE calls AS
SELECT invocation, min(CASE WHEN invocation IS NULL THEN start_ns ELSE
                       coalesce(least(submitted_ns, start_ns), start_ns) END) AS began_ns, count(*) AS events
FROM ({events})
WHERE NOT warmup AND start_ns IS NOT NULL AND {begins}
GROUP BY invocation, CASE WHEN invocation IS NULL THEN start_ns END
"""
_EXTENT: Final = "SELECT min(began_ns), max(began_ns), count(invocation), sum(events) FROM calls"
_IN_WINDOW: Final = "SELECT count(*), count(invocation), sum(events) FROM calls WHERE {began}"
_CHOSEN: Final = """
SELECT {columns} FROM ({events}) AS event WHERE NOT warmup AND CASE WHEN {simulated} THEN true
WHEN invocation IS NULL THEN {began} ELSE invocation IN (SELECT invocation FROM calls WHERE {call_began}) END
"""


def limited_to_window(run: Run, window: Window, folder: Path) -> Run:
    """The invocations of a run that began in a window, in a file in `folder`; the run itself if the window has all.

    Header values for all invocations together, such as the elapsed time and its parts, are unknown for a window.
    Simulated counts belong to one invocation that is not timed, and stay. Other rows without an invocation and a time
    are left out.

    Raises:
        UsageInvalid: the rows have no start times, or no invocation began in the window.
        RunInvalid: a cell does not have its column's type, or the file is damaged.
    """
    if window == WHOLE_RUN:
        return run
    if run.tells_order:
        raise UsageInvalid(
            f"{run.file}: cannot be limited to a window, because its launches are assigned to calls only as a whole; "
            "record only a part instead (nsys --delay and --duration, ncu --launch-skip)"
        )
    if "start_ns" not in {column.means for column in columns_of(run)}:
        raise UsageInvalid(
            f"{run.file}: cannot be limited to a window, because it has no start times (column start_ns)"
        )
    table = folder / f"{run.table.stem}-window.parquet"
    with open_database() as connection:
        try:
            _write(run, window, connection, table)
        except reading_errors() as error:
            raise explain_bad_cell(run, error) from error
    return replace(read_run(table), has_header=run.has_header, given=run.file)


def _write(run: Run, window: Window, connection: duckdb.DuckDBPyConnection, table: Path) -> None:
    """Write the invocations of a window, with their header."""
    events = events_sql(run)
    # Something begins with a row; steps count only in runs that have nothing else.
    begins = "true" if run.metrics == run.step_metrics else "kind <> 'step'"
    connection.execute(_CALLS.format(events=events, begins=begins))
    ((first, last, calls, events_with_start),) = connection.execute(_EXTENT).fetchall()
    call_began = "false" if first is None else _within("began_ns", first, window)
    ((rows, chosen, events_chosen),) = connection.execute(_IN_WINDOW.format(began=call_began)).fetchall()
    if not rows:
        last_start = "it has no start times" if first is None else f"the last one began at {format_ns(last - first)}"
        raise UsageInvalid(f"{run.file}: no invocation began {window}; {last_start}")
    part, whole = (
        (chosen, plural(calls, "invocation")) if calls else (events_chosen, plural(events_with_start, "event"))
    )
    text = f"only {part:,} of {whole}: those that began {window}"
    header = structs.replace(
        run.header,
        iterations=chosen or UNKNOWN,
        elapsed_ns=UNKNOWN,
        elapsed=UNKNOWN_PARTS,
        invocation=UNKNOWN_INVOCATION,
        events=UNKNOWN,
        diagnostics=(*run.header.diagnostics, Diagnostic(WINDOW, text)),
    )
    chosen_rows = _CHOSEN.format(
        # Only the run's own columns: an extra column would look like a metric that was measured.
        columns=", ".join(quoted(column.means) for column in columns_of(run)),
        events=events,
        simulated=_simulated(run),
        began=_within("start_ns", first, window),
        call_began=call_began,
    )
    write_run(header, connection.sql(chosen_rows), table, force=True)


def _simulated(run: Run) -> str:
    """SQL condition: a row belongs to the one invocation that was simulated."""
    counts = [
        quoted(metric.name) for metric in run.step_metrics if metric.name != SAMPLES and run.invocations_of(metric) == 1
    ]
    if not counts:
        return "false"
    return f"invocation IS NULL AND start_ns IS NULL AND coalesce({', '.join(counts)}) IS NOT NULL"


def _within(column: str, first_ns: int, window: Window) -> str:
    """SQL condition: a time is in the window; times are limited to the largest 64-bit one."""
    begin_ns, end_ns = (
        min(first_ns + round(min(seconds, MAX_INTEGER / _NS) * _NS), MAX_INTEGER)
        for seconds in (window.begin_s, window.end_s)
    )
    before_end = f" AND {column} < {end_ns}" if math.isfinite(window.end_s) else ""
    return f"{column} >= {begin_ns}{before_end}"
