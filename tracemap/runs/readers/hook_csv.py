"""Reader of CSV files of IREE's own hook: workgroup calls of one kernel on one thread, with event counts.

The columns are `thread`, `cpu`, `node`, `duration_us` and one per event. The file does not name the kernel: IREE's
hook records one kernel at a time (`IREE_HOOK_FILTER_NAME`), and the user passes its name again.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from tracemap.core.errors import RunEmpty, RunInvalid, UsageInvalid, check_limits
from tracemap.core.sanitize import unescape_formula
from tracemap.runs.bad_cells import explain_bad_cell
from tracemap.runs.columns import (
    check_width,
    csv_rows,
    csv_sql,
    events_sql,
    file_columns,
    metrics_of,
    workgroup_calls_note,
)
from tracemap.runs.model import COLUMNS, STEP_METRICS, UNKNOWN_HEADER, Clock, Run
from tracemap.runs.readers.rows import ForeignRun
from tracemap.runs.sql import literal, quoted, reading_errors

if TYPE_CHECKING:
    import duckdb


FIXED = ("thread", "cpu", "node", "duration_us")
"""The first columns."""

_TABLE = "hook_rows"
# The time of a workgroup on its worker is part of the CPU time; the wall time of the dispatch is unknown.
_ROWS = "SELECT * EXCLUDE duration_ns REPLACE ({kernel} AS kernel, duration_ns AS cpu_ns) FROM ({events})"


def read_hook_csv(path: Path, connection: duckdb.DuckDBPyConnection, kernel: str = "") -> ForeignRun:
    """Read the calls of a kernel; overwrites the table `hook_rows` of the connection.

    Raises:
        RunEmpty: there are no calls.
        RunInvalid: the columns have several separators, or a cell does not have its column's type.
        UsageInvalid: no kernel is named.
    """
    with csv_rows(path) as rows:
        names = tuple(map(unescape_formula, next(rows, ())))
        check_width(path, len(names))
        if len(names) < len(FIXED):  # the file was recognized with any mix of separators
            raise RunInvalid(f"{path}: its columns are separated by commas, semicolons and tabs; use only commas")
        if not any(itertools.islice(rows, 1)):
            raise RunEmpty(f"{path}: holds no call")
    if not kernel:
        raise UsageInvalid(
            f"{path}: comes from IREE's hook, which does not record the kernel's name; pass it with --dispatch"
        )
    for name in names[len(FIXED) :]:
        if name.strip().lower() in COLUMNS or name in STEP_METRICS:
            raise RunInvalid(f"{path}: the event {name!r} has the name of a column of runs; rename it")
    columns = _typed(path, connection, names)
    metrics = metrics_of(file_columns(path, columns), Clock.UNKNOWN)
    table = Run(UNKNOWN_HEADER, path, "csv", names, metrics, has_header=False)
    query = _ROWS.format(kernel=literal(kernel), events=events_sql(table))
    try:
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {_TABLE} AS {query}")
    except reading_errors() as error:
        raise explain_bad_cell(table, error) from error
    header = structs.replace(UNKNOWN_HEADER, diagnostics=(workgroup_calls_note("IREE's hook"),))
    return ForeignRun(header, connection.sql(f"SELECT * FROM {_TABLE}"))


def _typed(path: Path, connection: duckdb.DuckDBPyConnection, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Name and SQL type of each column; events are integers unless the tool scaled them."""
    texts = csv_sql(path, ["VARCHAR"] * len(names))
    values = (f"TRY_CAST({quoted(f'c{index}')} AS DOUBLE)" for index in range(len(FIXED), len(names)))
    fractions = ", ".join(["0", *(f"count(*) FILTER (isfinite({v}) AND {v} <> trunc({v}))" for v in values)])
    try:
        ((_, *counts),) = connection.execute(f"SELECT {fractions} FROM {texts}").fetchall()
    except reading_errors() as error:
        check_limits(error)  # for all other errors, the later scan of all cells names the place
        counts = [0] * (len(names) - len(FIXED))
    types = ["VARCHAR", "BIGINT", "BIGINT", "DOUBLE", *("DOUBLE" if count else "BIGINT" for count in counts)]
    return list(zip(names, types, strict=True))
