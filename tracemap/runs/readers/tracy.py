"""Reader of `tracy-csvexport` output: zones of kernels among zones of the runtime's own functions.

Columns are joined without quotes (csvexport/src/csvexport.cpp of Tracy, the same from 0.9 to 0.14). By default the
table has sums per zone; with `-u` every entry of a zone; with `-g` the zones of GPUs. Zones of runtime functions
contain those of kernels and are left out; their source file is C or C++. A kernel's zone on the CPU is the call of one
workgroup. Kernel names of IREE's embedded programs contain no commas.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunInvalid
from tracemap.core.units import format_count, plural
from tracemap.runs.columns import workgroup_calls_note
from tracemap.runs.model import UNKNOWN_HEADER, Clock
from tracemap.runs.readers.rows import (
    ForeignRun,
    load_lines,
    means_only_note,
    rows_of_totals,
    select_totals,
    unknown_line_error,
)
from tracemap.runs.sql import literal

if TYPE_CHECKING:
    import duckdb


class ZoneTable(enum.Enum):
    """The three tables, with their columns."""

    SUMS = ("name", "src_file", "src_line", "total_ns", "total_perc", "counts", "mean_ns", "min_ns", "max_ns", "std_ns")
    EACH = ("name", "src_file", "src_line", "ns_since_start", "exec_time_ns")
    """Later versions have more columns: `thread`, `value`."""
    OF_GPU = ("name", "src_file", "time from start of program", "gpu execution time")


_SEPARATOR: Final = "[,;\\t]"
_TEXT: Final = "([^,;\\t]*)"
_NUMBER: Final = "(-?[0-9]{1,18})"
_REAL: Final = "(-?[0-9.]+(?:e[+-]?[0-9]+)?|-?nan|-?inf)"
# The last columns of zones may be missing, or hold any text.
_PATTERNS: Final = {
    ZoneTable.SUMS: (_TEXT, "(.*)", _NUMBER, _NUMBER, _REAL, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _REAL + "$"),
    ZoneTable.EACH: (_TEXT, "(.*?)", _NUMBER, _NUMBER, _NUMBER + f"(?:{_SEPARATOR}([0-9]*).*)?$"),
    ZoneTable.OF_GPU: (_TEXT, "(.*)", _NUMBER, _NUMBER + "$"),
}
_FIELDS: Final = {
    ZoneTable.SUMS: ("name", "file", "src_line", "total_ns", "share", "counts", "mean", "least", "most", "deviation"),
    ZoneTable.EACH: ("name", "file", "src_line", "start_ns", "cpu_ns", "thread"),
    ZoneTable.OF_GPU: ("name", "file", "start_ns", "duration_ns"),
}
_OWN: Final = "regexp_matches(zone.file, '[.](c|cc|cpp|cxx|h|hh|hpp|inl|cu|hip|m|mm)$')"
"""SQL condition: a zone belongs to the runtime's own code."""

_LIKE_ROW: Final = f"regexp_matches(line, '^{_TEXT}{_SEPARATOR}[^,;\\t]*{_SEPARATOR}[0-9]+{_SEPARATOR}')"
"""SQL condition: a line begins like a row. Other lines continue a zone's text, or belong to plots (-p)."""

_TABLE: Final = "tracy_zones"


def zones_of(names: list[str]) -> ZoneTable | None:
    """The table with these lower-case columns; None if it is not Tracy's."""
    return next((zones for zones in ZoneTable if tuple(names[: len(zones.value)]) == zones.value), None)


def read_tracy(path: Path, connection: duckdb.DuckDBPyConnection, zones: ZoneTable) -> ForeignRun:
    """Read a table of zones; overwrites the tables `tracy_zones` and `kernel_totals` of the connection.

    Raises:
        RunEmpty: no kernel was called.
        RunInvalid: a line does not match its columns, or no zone belongs to a kernel.
    """
    pattern = "^" + _SEPARATOR.join(_PATTERNS[zones])
    fields = ", ".join(literal(name) for name in _FIELDS[zones])
    load_lines(path, connection, _TABLE, f"line, regexp_extract(line, {literal(pattern)}, [{fields}]) AS zone")
    last = f"zone.{_FIELDS[zones][3]}"
    for number, line in connection.execute(
        f"SELECT number, line FROM {_TABLE} WHERE {last} = '' AND number > 1 AND ({_LIKE_ROW} OR {_is_sum(zones)}) "
        "ORDER BY number LIMIT 1"
    ).fetchall():
        raise unknown_line_error(path, number, line, "row of tracy-csvexport")
    ((count, own),) = connection.execute(
        f"SELECT count(*), count(*) FILTER ({_OWN}) FROM {_TABLE} WHERE {last} <> ''"
    ).fetchall()
    if count == own:
        raise RunInvalid(
            f"{path}: none of its {plural(int(count), 'row')} is the zone of a kernel: IREE's instrumented runtime "
            "has such zones with --device=local-sync, not with local-task"
        )
    connection.execute(f"DELETE FROM {_TABLE} WHERE {last} = '' OR {_OWN}")
    return _sums(path, connection) if zones is ZoneTable.SUMS else _single_zones(connection, zones, own)


def _is_sum(zones: ZoneTable) -> str:
    """SQL condition: every line is a row. Only sums have no texts of zones, which may span several lines."""
    return "true" if zones is ZoneTable.SUMS else "false"


def _sums(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    cells = f"zone.name, {_number('counts')}, CAST(NULL AS BIGINT), {_number('total_ns')}"
    select_totals(connection, f"SELECT {cells} FROM {_TABLE}")
    notes = (means_only_note("Tracy's table of zones"), workgroup_calls_note("Tracy"))
    return ForeignRun(structs.replace(UNKNOWN_HEADER, diagnostics=notes), rows_of_totals(connection, path))


def _single_zones(connection: duckdb.DuckDBPyConnection, zones: ZoneTable, own: int) -> ForeignRun:
    on_gpu = zones is ZoneTable.OF_GPU
    notes = () if on_gpu else (workgroup_calls_note("Tracy"),)
    if own:
        text = f"{format_count(own)} zones of the runtime's own functions are left out; they contain those of kernels"
        notes = (*notes, Diagnostic("zones-left-out", text))
    header = structs.replace(UNKNOWN_HEADER, clock=Clock.DEVICE if on_gpu else Clock.HOST, diagnostics=notes)
    times = ("start_ns", "duration_ns") if on_gpu else ("start_ns", "cpu_ns")
    cells = ", ".join(f"{_number(name)} AS {name}" for name in times)
    thread = "" if on_gpu else ", nullif(zone.thread, '') AS thread"
    return ForeignRun(
        header,
        connection.sql(
            f"SELECT 'dispatch' AS kind, zone.name AS kernel, {cells}{thread} FROM {_TABLE} ORDER BY {times[0]}, number"
        ),
    )


def _number(field: str) -> str:
    # The pattern guarantees a number that fits, but SQL may evaluate rows before it filters them out.
    return f"TRY_CAST(zone.{field} AS BIGINT)"
