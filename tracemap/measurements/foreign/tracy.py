"""What `tracy-csvexport` prints of a capture: zones of kernels among those of the runtime's own functions.

Its columns are joined without quotes (csvexport/src/csvexport.cpp of Tracy, the same from 0.9 to 0.14): the sums of
each zone; with `-u` each zone that was entered; with `-g` those of GPUs. The runtime has zones of its functions, which
contain those of kernels and are left out: their source is a file of C or C++. A kernel's zone on the CPU is the call of
one workgroup. The embedded programs of IREE have no commas in the names of kernels.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunInvalid
from tracemap.measurements.columns import calls_of_workgroups
from tracemap.measurements.foreign.rows import (
    ForeignRun,
    load_lines,
    means_only,
    not_understood,
    rows_of_totals,
    select_totals,
)
from tracemap.measurements.model import UNTOLD_HEADER, Clock
from tracemap.measurements.sql import literal
from tracemap.units import format_count, plural

if TYPE_CHECKING:
    import duckdb


class Zones(enum.Enum):
    """Which of the three tables it is: by the columns that it has."""

    SUMS = ("name", "src_file", "src_line", "total_ns", "total_perc", "counts", "mean_ns", "min_ns", "max_ns", "std_ns")
    EACH = ("name", "src_file", "src_line", "ns_since_start", "exec_time_ns")
    """Later versions have further ones: `thread`, `value`."""
    OF_GPU = ("name", "src_file", "time from start of program", "gpu execution time")


_SEPARATOR: Final = "[,;\\t]"
_TEXT: Final = "([^,;\\t]*)"
_NUMBER: Final = "(-?[0-9]{1,18})"
_REAL: Final = "(-?[0-9.]+(?:e[+-]?[0-9]+)?|-?nan|-?inf)"
# The last columns of zones may be missing, or hold any text.
_PATTERNS: Final = {
    Zones.SUMS: (_TEXT, "(.*)", _NUMBER, _NUMBER, _REAL, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _REAL + "$"),
    Zones.EACH: (_TEXT, "(.*?)", _NUMBER, _NUMBER, _NUMBER + f"(?:{_SEPARATOR}([0-9]*).*)?$"),
    Zones.OF_GPU: (_TEXT, "(.*)", _NUMBER, _NUMBER + "$"),
}
_FIELDS: Final = {
    Zones.SUMS: ("name", "file", "src_line", "total_ns", "share", "counts", "mean", "least", "most", "deviation"),
    Zones.EACH: ("name", "file", "src_line", "start_ns", "cpu_ns", "thread"),
    Zones.OF_GPU: ("name", "file", "start_ns", "duration_ns"),
}
_OWN: Final = "regexp_matches(zone.file, '[.](c|cc|cpp|cxx|h|hh|hpp|inl|cu|hip|m|mm)$')"
"""Whether a zone is of the runtime's own code."""

_LIKE_ROW: Final = f"regexp_matches(line, '^{_TEXT}{_SEPARATOR}[^,;\\t]*{_SEPARATOR}[0-9]+{_SEPARATOR}')"
"""Whether a line begins as a row does. Others are further lines of a zone's text, or of plots (-p)."""

_TABLE: Final = "tracy_zones"


def zones_of(names: list[str]) -> Zones | None:
    """The table that has these columns, in small letters; None: it is none of Tracy's."""
    return next((zones for zones in Zones if tuple(names[: len(zones.value)]) == zones.value), None)


def read_tracy(path: Path, connection: duckdb.DuckDBPyConnection, zones: Zones) -> ForeignRun:
    """Read such a file; the tables `tracy_zones` and of totals in the connection are overwritten.

    Raises:
        RunEmpty: no kernel was called.
        RunInvalid: a line is not what its columns say, or no zone is a kernel's.
    """
    pattern = "^" + _SEPARATOR.join(_PATTERNS[zones])
    fields = ", ".join(literal(name) for name in _FIELDS[zones])
    load_lines(path, connection, _TABLE, f"line, regexp_extract(line, {literal(pattern)}, [{fields}]) AS zone")
    last = f"zone.{_FIELDS[zones][3]}"
    for number, line in connection.execute(
        f"SELECT number, line FROM {_TABLE} WHERE {last} = '' AND number > 1 AND ({_LIKE_ROW} OR {_is_sum(zones)}) "
        "ORDER BY number LIMIT 1"
    ).fetchall():
        raise not_understood(path, number, line, "row of tracy-csvexport")
    ((count, own),) = connection.execute(
        f"SELECT count(*), count(*) FILTER ({_OWN}) FROM {_TABLE} WHERE {last} <> ''"
    ).fetchall()
    if count == own:
        raise RunInvalid(
            f"{path}: of its {plural(int(count), 'row')} none is a kernel's: IREE's instrumented runtime tells kernels "
            "apart with --device=local-sync, not with local-task"
        )
    connection.execute(f"DELETE FROM {_TABLE} WHERE {last} = '' OR {_OWN}")
    return _sums(path, connection) if zones is Zones.SUMS else _each(connection, zones, own)


def _is_sum(zones: Zones) -> str:
    """Texts of zones may have several lines; sums have none of these, so that every line is a row."""
    return "true" if zones is Zones.SUMS else "false"


def _sums(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    cells = f"zone.name, {_number('counts')}, CAST(NULL AS BIGINT), {_number('total_ns')}"
    select_totals(connection, f"SELECT {cells} FROM {_TABLE}")
    told = (means_only("Tracy's table of zones"), calls_of_workgroups("Tracy"))
    return ForeignRun(structs.replace(UNTOLD_HEADER, diagnostics=told), rows_of_totals(connection, path))


def _each(connection: duckdb.DuckDBPyConnection, zones: Zones, own: int) -> ForeignRun:
    on_gpu = zones is Zones.OF_GPU
    told = () if on_gpu else (calls_of_workgroups("Tracy"),)
    if own:
        text = f"{format_count(own)} zones of the runtime's own functions are left out; they contain those of kernels"
        told = (*told, Diagnostic("zones-left-out", text))
    header = structs.replace(UNTOLD_HEADER, clock=Clock.DEVICE if on_gpu else Clock.HOST, diagnostics=told)
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
    # Digits, and no more than fit: the pattern says so, but SQL may look at rows before it leaves them out.
    return f"TRY_CAST(zone.{field} AS BIGINT)"
