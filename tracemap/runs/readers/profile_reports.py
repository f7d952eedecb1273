"""Reader of iree-profile's reports (`--format=jsonl`) with times of kernels.

`dispatch`, `executable` and `statistics` print sums per kernel; with `--dispatch_events`, a row per dispatch. These
rows lack the contents of command buffers, so the sites of a shared kernel are not distinguishable. The export
(`iree-profile export --format=ireeperf-jsonl`) has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunEmpty, RunInvalid
from tracemap.core.units import plural
from tracemap.runs.model import UNKNOWN_HEADER, Clock
from tracemap.runs.readers.rows import ForeignRun, run_of_totals
from tracemap.runs.sql import damage_of, first_integer, literal, reader_call, reading_errors

if TYPE_CHECKING:
    import duckdb


_FIELDS: Final = {
    "type": "VARCHAR",
    "row_type": "VARCHAR",
    "filter": "VARCHAR",
    "key": "VARCHAR",
    "function_name": "VARCHAR",
    "valid": "JSON",
    "sample_count": "BIGINT",
    "invalid_sample_count": "BIGINT",
    "total_ns": "BIGINT",
    "total_duration_ns": "BIGINT",
    "total_tile_duration_sum_ns": "BIGINT",
    "tile_duration_sum_ns": "BIGINT",
    "submission_id": "BIGINT",
    "start_host_time_ns": "BIGINT",
    "duration_ns": "BIGINT",
    "workgroup_count": "BIGINT[]",
}
"""The fields that are read, over all types of rows."""

# The families of rows with times of kernels: of devices, and of workers on the host.
_EVENTS: Final = ("dispatch_event", "host_dispatch_event")
_SUMS: Final = (
    ("dispatch_group", "host_dispatch_group"),
    ("executable_function_dispatch_group", "executable_function_host_dispatch_group"),
    ("dispatch_function", "host_execution_function"),
)

_LOADED = """
CREATE OR REPLACE TEMP TABLE report_rows AS
SELECT CASE type WHEN 'statistics_row' THEN row_type ELSE type END AS family, * EXCLUDE (type, row_type)
FROM {rows}
"""
_OF_KERNELS = """
SELECT coalesce(key, function_name), coalesce(TRY_CAST(CAST(valid AS VARCHAR) AS BIGINT),
       sample_count - coalesce(invalid_sample_count, 0)) AS calls, coalesce(total_ns, total_duration_ns) AS duration_ns,
       {cpu_ns} FROM report_rows WHERE family = {family}
"""
_DISPATCHES = """
SELECT 'dispatch' AS kind, key AS kernel, submission_id, start_host_time_ns AS start_ns,
       CASE WHEN CAST(valid AS VARCHAR) = 'true' THEN duration_ns END AS duration_ns{cpu_ns},
       workgroup_count[1] AS workgroups_x, workgroup_count[2] AS workgroups_y, workgroup_count[3] AS workgroups_z
FROM report_rows WHERE family = {family} ORDER BY start_ns, submission_id
"""


def read_report(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    """Read a report; overwrites the tables `report_rows` and `kernel_totals` of the connection.

    Raises:
        RunEmpty: no dispatch was recorded.
        RunInvalid: the file is not such a report, is damaged, or has no times of kernels.
    """
    fields = ", ".join(f"{name}: '{kind}'" for name, kind in _FIELDS.items())
    try:
        rows = reader_call("read_json", path, f"format='newline_delimited', columns={{{fields}}}")
        connection.execute(_LOADED.format(rows=rows))
        return _read(path, connection)
    except reading_errors() as error:
        raise RunInvalid(f"{path}: not what iree-profile prints, or damaged: {damage_of(error)}") from error


def _read(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    families = {family for (family,) in connection.execute("SELECT DISTINCT family FROM report_rows").fetchall()}
    known = [family for pair in (_EVENTS, *_SUMS) for family in pair if family in families]
    if len(known) > 1:
        raise RunInvalid(
            f"{path}: has the output of several commands of iree-profile ({', '.join(known)}), which repeat the same "
            "times; keep the output of one command"
        )
    if not known:
        if families & {"dispatch_summary", "executable_summary", "statistics_summary"}:
            raise RunEmpty(f"{path}: the profile has no dispatch: nothing ran, or host execution was not profiled")
        raise RunInvalid(
            f"{path}: this output of iree-profile does not have the times of all kernels; use "
            "`iree-profile export --format=ireeperf-jsonl`"
        )
    (family,) = known
    unnamed = f"SELECT count(*) FROM report_rows WHERE family = '{family}' AND coalesce(key, function_name) IS NULL"
    if absent := first_integer(connection, unnamed):
        raise RunInvalid(f"{path}: {plural(absent, 'row')} of type {family} without a kernel's name")
    return _events(connection, family) if family in _EVENTS else _sums(path, connection, family)


def _events(connection: duckdb.DuckDBPyConnection, family: str) -> ForeignRun:
    on_host = family == "host_dispatch_event"
    cpu_ns = ", tile_duration_sum_ns AS cpu_ns" if on_host else ""
    header = structs.replace(
        UNKNOWN_HEADER, clock=Clock.HOST if on_host else Clock.DEVICE, diagnostics=_filtered(connection)
    )
    return ForeignRun(header, connection.sql(_DISPATCHES.format(cpu_ns=cpu_ns, family=literal(family))))


def _sums(path: Path, connection: duckdb.DuckDBPyConnection, family: str) -> ForeignRun:
    on_host = "host" in family
    cpu_ns = "coalesce(total_tile_duration_sum_ns, tile_duration_sum_ns)" if on_host else "CAST(NULL AS BIGINT)"
    totals = _OF_KERNELS.format(cpu_ns=cpu_ns, family=literal(family))
    untimed = f"SELECT count(*) FROM ({totals}) WHERE calls IS NULL OR (calls > 0 AND duration_ns IS NULL)"
    if incomplete := first_integer(connection, untimed):
        raise RunInvalid(
            f"{path}: {plural(incomplete, 'kernel')} without a time or a number of calls (device ticks that "
            "cannot be converted to nanoseconds); profile the program again"
        )
    header = structs.replace(UNKNOWN_HEADER, diagnostics=_filtered(connection))
    return run_of_totals(path, connection, "iree-profile", totals, header)


def _filtered(connection: duckdb.DuckDBPyConnection) -> tuple[Diagnostic, ...]:
    """A note if the report has only some of the dispatches."""
    filters = connection.execute("SELECT DISTINCT filter FROM report_rows WHERE filter <> '*' ORDER BY 1").fetchall()
    texts = [f"iree-profile printed only the dispatches that match --filter={text[:80]!r}" for (text,) in filters[:1]]
    return tuple(Diagnostic("filtered", text) for text in texts)
