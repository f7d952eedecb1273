"""Reader of `tracy-csvexport` output: zones of kernels among zones of the runtime's own functions.

Columns are joined without quotes (csvexport/src/csvexport.cpp of Tracy, the same from 0.9 to 0.14). By default the
table has sums per zone; with `-u` every entry of a zone; with `-g` the zones of GPUs. Zones of runtime functions
contain those of kernels and are left out; their source file is C or C++. A kernel's zone on the CPU is the call of one
workgroup. Kernel names of IREE's embedded programs contain no commas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunInvalid
from tracemap.core.units import format_count, plural
from tracemap.runs.columns import workgroup_calls_note
from tracemap.runs.model import UNKNOWN_HEADER, Clock
from tracemap.runs.readers.rows import ForeignRun, check_lines, load_lines, run_of_totals
from tracemap.runs.sql import literal

if TYPE_CHECKING:
    import duckdb


_SEPARATOR: Final = "[,;\\t]"
_TEXT: Final = "([^,;\\t]*)"
_NUMBER: Final = "(-?[0-9]{1,18})"
_REAL: Final = "(-?[0-9.]+(?:e[+-]?[0-9]+)?|-?nan|-?inf)"


@dataclass(frozen=True, slots=True)
class ZoneTable:
    """A table of zones: its first columns, and the fields of a row with the patterns of the columns."""

    columns: tuple[str, ...]
    fields: tuple[str, ...]
    patterns: tuple[str, ...]


SUMS: Final = ZoneTable(
    ("name", "src_file", "src_line", "total_ns", "total_perc", "counts", "mean_ns", "min_ns", "max_ns", "std_ns"),
    ("name", "file", "src_line", "total_ns", "share", "counts", "mean", "least", "most", "deviation"),
    (_TEXT, "(.*)", _NUMBER, _NUMBER, _REAL, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _REAL + "$"),
)
EACH: Final = ZoneTable(
    ("name", "src_file", "src_line", "ns_since_start", "exec_time_ns"),  # later versions: also `thread`, `value`
    ("name", "file", "src_line", "start_ns", "cpu_ns", "thread"),
    # The last columns may be missing, or hold any text.
    (_TEXT, "(.*?)", _NUMBER, _NUMBER, _NUMBER + f"(?:{_SEPARATOR}([0-9]*).*)?$"),
)
OF_GPU: Final = ZoneTable(
    ("name", "src_file", "time from start of program", "gpu execution time"),
    ("name", "file", "start_ns", "duration_ns"),
    (_TEXT, "(.*)", _NUMBER, _NUMBER + "$"),
)
_OWN: Final = "regexp_matches(zone.file, '[.](c|cc|cpp|cxx|h|hh|hpp|inl|cu|hip|m|mm)$')"
"""SQL condition: a zone belongs to the runtime's own code."""

_LIKE_ROW: Final = f"regexp_matches(line, '^{_TEXT}{_SEPARATOR}[^,;\\t]*{_SEPARATOR}[0-9]+{_SEPARATOR}')"
"""SQL condition: a line begins like a row. Other lines continue a zone's text, or belong to plots (-p)."""

_TABLE: Final = "tracy_zones"


def zones_of(names: Sequence[str]) -> ZoneTable | None:
    """The table with these lower-case columns; None if it is not Tracy's."""
    return next((zones for zones in (SUMS, EACH, OF_GPU) if tuple(names[: len(zones.columns)]) == zones.columns), None)


def read_tracy(path: Path, connection: duckdb.DuckDBPyConnection, zones: ZoneTable) -> ForeignRun:
    """Read a table of zones; overwrites the tables `tracy_zones` and `kernel_totals` of the connection.

    Raises:
        RunEmpty: no kernel was called.
        RunInvalid: a line does not match its columns, or no zone belongs to a kernel.
    """
    pattern = "^" + _SEPARATOR.join(zones.patterns)
    fields = ", ".join(map(literal, zones.fields))
    load_lines(path, connection, _TABLE, f"line, regexp_extract(line, {literal(pattern)}, [{fields}]) AS zone")
    last = f"zone.{zones.fields[3]}"
    # Only sums have no texts of zones, which may span several lines.
    like_row = "true" if zones is SUMS else _LIKE_ROW
    check_lines(path, connection, _TABLE, f"{last} = '' AND number > 1 AND {like_row}", "row of tracy-csvexport")
    ((count, own),) = connection.execute(
        f"SELECT count(*), count(*) FILTER ({_OWN}) FROM {_TABLE} WHERE {last} <> ''"
    ).fetchall()
    if count == own:
        raise RunInvalid(
            f"{path}: none of its {plural(int(count), 'row')} is the zone of a kernel: IREE's instrumented runtime "
            "has such zones with --device=local-sync, not with local-task"
        )
    connection.execute(f"DELETE FROM {_TABLE} WHERE {last} = '' OR {_OWN}")
    notes = () if zones is OF_GPU else (workgroup_calls_note("Tracy"),)
    if zones is SUMS:
        totals = f"SELECT zone.name, {_number('counts')}, CAST(NULL AS BIGINT), {_number('total_ns')} FROM {_TABLE}"
        header = structs.replace(UNKNOWN_HEADER, diagnostics=notes)
        return run_of_totals(path, connection, "Tracy's table of zones", totals, header)
    if own:
        text = f"{format_count(own)} zones of the runtime's own functions are left out; they contain those of kernels"
        notes = (*notes, Diagnostic("zones-left-out", text))
    clock = Clock.DEVICE if zones is OF_GPU else Clock.HOST
    thread = ", nullif(zone.thread, '') AS thread" if "thread" in zones.fields else ""
    cells = ", ".join(f"{_number(name)} AS {name}" for name in zones.fields if name.endswith("_ns"))
    return ForeignRun(
        structs.replace(UNKNOWN_HEADER, clock=clock, diagnostics=notes),
        connection.sql(
            f"SELECT 'dispatch' AS kind, zone.name AS kernel, {cells}{thread} FROM {_TABLE} ORDER BY start_ns, number"
        ),
    )


def _number(field: str) -> str:
    # The pattern guarantees a number that fits, but SQL may evaluate rows before it filters them out.
    return f"TRY_CAST(zone.{field} AS BIGINT)"
