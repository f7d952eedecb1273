"""A part of a run: the calls that began in a window of its time, whole, as a run of its own.

A server records for hours; what is asked about is the minute in which it was slow. Calls are taken whole: the order of
what a call submits tells which site is which, and costs per call are of whole ones.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.diagnostics import WINDOW, Diagnostic
from tracemap.errors import UsageInvalid
from tracemap.measurements.badcells import explain_bad_cell
from tracemap.measurements.columns import columns_of, events_sql
from tracemap.measurements.model import SAMPLES, UNKNOWN_PARTS, UNTIMED, Run
from tracemap.measurements.runfile import read_run, write_run
from tracemap.measurements.sql import open_database, quoted, reading_errors
from tracemap.options.results import ALL, Window
from tracemap.units import INTEGER_LIMIT, UNKNOWN, format_ns, plural

if TYPE_CHECKING:
    import duckdb

_NS = 1_000_000_000


# A call begins with what it submits first. Rows of no call begin by themselves, but samples begin nothing: they are
# taken of what runs.
_CALLS: Final = """
CREATE TEMP TABLE calls AS
SELECT invocation, min(CASE WHEN invocation IS NULL THEN start_ns ELSE
                       coalesce(least(submitted_ns, start_ns), start_ns) END) AS began_ns, count(*) AS events
FROM ({events})
WHERE NOT warmup AND start_ns IS NOT NULL AND {begins}
GROUP BY invocation, CASE WHEN invocation IS NULL THEN start_ns END
"""
_EXTENT: Final = "SELECT min(began_ns), max(began_ns), count(invocation), sum(events) FROM calls"
_FOUND: Final = "SELECT count(*), count(invocation), sum(events) FROM calls WHERE {began}"
_CHOSEN: Final = """
SELECT {columns} FROM ({events}) AS event WHERE NOT warmup AND CASE WHEN {simulated} THEN true
WHEN invocation IS NULL THEN {began} ELSE invocation IN (SELECT invocation FROM calls WHERE {call_began}) END
"""


def cut(run: Run, window: Window, folder: Path) -> Run:
    """The calls of a run that began in a window, in a file in `folder`; the run itself, where that is all of them.

    What the header says of all calls together (how long they took, and what for) is unknown of some of them. What was
    simulated is of one call that is none of these, and stays; other rows that tell neither a call nor a time are left
    out.

    Raises:
        UsageInvalid: the rows do not say when they began, or none began in the window.
        RunInvalid: a cell is not what its column says, or the file is damaged.
    """
    if window == ALL:
        return run
    if run.tells_order:
        raise UsageInvalid(
            f"{run.file}: says of no launch which call it is of before all of them are joined, so no window of it can "
            "be cut; let the tool record a part (nsys --delay and --duration, ncu --launch-skip)"
        )
    if "start_ns" not in {column.means for column in columns_of(run)}:
        raise UsageInvalid(
            f"{run.file}: has no start_ns, so nothing tells when its calls began; no window of it can be cut"
        )
    table = folder / f"{run.table.stem}-window.parquet"
    with open_database() as connection:
        try:
            _write(run, window, connection, table)
        except reading_errors() as error:
            raise explain_bad_cell(run, error) from error
    return replace(read_run(table), has_header=run.has_header, given=run.file)


def _write(run: Run, window: Window, connection: duckdb.DuckDBPyConnection, table: Path) -> None:
    """Write the calls of a window, with the header that is theirs."""
    events = events_sql(run)
    connection.execute(_CALLS.format(events=events, begins=_begins(run)))
    ((first, last, calls, events_told),) = connection.execute(_EXTENT).fetchall()
    call_began = "false" if first is None else _within("began_ns", first, window)
    ((found, chosen, events_chosen),) = connection.execute(_FOUND.format(began=call_began)).fetchall()
    if not found:
        ends = "nothing in it tells when it began" if first is None else f"the last one at {format_ns(last - first)}"
        raise UsageInvalid(f"{run.file}: no call began {window}; {ends}")
    part, whole = (chosen, plural(calls, "call")) if calls else (events_chosen, plural(events_told, "event"))
    text = f"these are the {part:,} of {whole} that began {window}"
    header = structs.replace(
        run.header,
        iterations=chosen or UNKNOWN,
        elapsed_ns=UNKNOWN,
        elapsed=UNKNOWN_PARTS,
        invocation=UNTIMED,
        events=UNKNOWN,
        diagnostics=(*run.header.diagnostics, Diagnostic(WINDOW, text)),
    )
    began = _within("start_ns", first, window)
    simulated = _simulated(run)
    # A column that the run lacks would be one that was measured, of nothing.
    columns = ", ".join(quoted(column.means) for column in columns_of(run))
    chosen_rows = _CHOSEN.format(
        columns=columns, events=events, simulated=simulated, began=began, call_began=call_began
    )
    write_run(header, connection.sql(chosen_rows), table, force=True)


def _begins(run: Run) -> str:
    """Whether something begins with a row, in SQL: samples stand for themselves only where there is nothing else."""
    return "true" if run.metrics == run.step_metrics else "kind <> 'step'"


def _simulated(run: Run) -> str:
    """Whether a row tells of the one call that was simulated, in SQL."""
    counts = [quoted(each.name) for each in run.step_metrics if each.name != SAMPLES and run.invocations_of(each) == 1]
    if not counts:
        return "false"
    return f"invocation IS NULL AND start_ns IS NULL AND coalesce({', '.join(counts)}) IS NOT NULL"


def _within(column: str, first_ns: int, window: Window) -> str:
    """Whether a time lies in a window, in SQL."""
    after = f"{column} >= {_at(first_ns, window.begin_s)}"
    if not math.isfinite(window.end_s):
        return after
    return f"{after} AND {column} < {_at(first_ns, window.end_s)}"


def _at(first_ns: int, seconds: float) -> int:
    """So long after the first call, or the end of all times: farther off is what no nanoseconds count."""
    return min(first_ns + round(min(seconds, INTEGER_LIMIT / _NS) * _NS), INTEGER_LIMIT)
