"""Reader of `perf script` output: samples in kernels, with their offsets from the start of the kernel.

A sample is a line, `comm 10044 4421.02: 1001001 cpu-clock: 7f42 main_dispatch_0+0x154 (/tmp/iree_dylib_x_mem_.so)`.
Any fields before the address may be left out. With call chains it is a line that ends with the event, followed by a
line per frame, the sample's own first (perf-script(1), `-F`). Kernels are in the shared libraries that IREE's loader
writes for the dynamic linker, `iree_dylib_…`, or in code that a `perf-PID.map` names. Only the bundle has their
addresses, so rows have offsets.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunEmpty, RunInvalid
from tracemap.core.units import format_count, format_share, plural
from tracemap.runs.columns import CODE_OFFSET
from tracemap.runs.model import SAMPLES, UNKNOWN_HEADER
from tracemap.runs.readers.rows import ForeignRun, load_lines, unknown_line_error
from tracemap.runs.sql import literal

if TYPE_CHECKING:
    import duckdb


FRAME: Final = r"^(.*\s)?([0-9a-f]{1,16}) (\S.*?)(?:\+0x([0-9a-f]{1,15}))? \((.*)\)\s*$"
"""A frame: the text before the address, the address, its symbol, the offset from the symbol, and the file."""
HEAD: Final = r"\S:\s*$"
"""The head line of a sample with a call chain: it ends with the event."""
ASIDE: Final = r"^\s*#|\sPERF_RECORD_"
"""Lines of `--header` and `--show-…-events`."""
_FIELDS: Final = ("before", "ip", "symbol", "symoff", "file")
_KERNELS: Final = r"(^|/)iree_dylib_[^/]*$|(^|/)perf-[0-9]+[.]map$"
_NAMELESS: Final = "[unknown]"

_LINES: Final = "perf_lines"
_COLUMNS: Final = f"""
line, regexp_extract(line, {literal(FRAME)}, {list(_FIELDS)}) AS frame,
CASE WHEN line IS NULL OR regexp_matches(line, {literal(ASIDE)}) THEN 'none'
     WHEN struct_extract(frame, 'ip') <> '' THEN 'frame'
     WHEN regexp_matches(line, {literal(HEAD)}) THEN 'head' ELSE 'other' END AS form
"""
# A frame alone on its line belongs to a caller, unless it follows a head line or, without head lines, an empty line.
_SAMPLES: Final = f"""
CREATE OR REPLACE TEMP TABLE perf_samples AS
WITH seen AS (
    SELECT *, regexp_replace(frame.before, '^\\s+|\\s+$', '', 'g') AS prefix, lag(form) OVER (ORDER BY number) AS above,
        coalesce(lag(line) OVER (ORDER BY number), '') = '' AS begins,
        bool_or(form = 'head') OVER () AS has_heads, bool_or(line IS NULL) OVER () AS has_gaps,
        lag(line) OVER (ORDER BY number) AS line_above
    FROM {_LINES} WHERE NOT (form = 'none' AND line IS NOT NULL)
)
SELECT frame.symbol AS symbol, frame.file AS file, frame.symoff AS symoff,
    regexp_extract(CASE WHEN prefix = '' AND above = 'head' THEN line_above ELSE prefix END, '(\\S+):\\s*$', 1)
    AS event, number
FROM seen WHERE form = 'frame' AND
    CASE WHEN prefix <> '' THEN true WHEN has_heads THEN above = 'head' WHEN has_gaps THEN begins ELSE true END
"""
# Most files have one line per sample, so that the order of lines does not matter.
_SINGLE_LINE: Final = f"""
CREATE OR REPLACE TEMP TABLE perf_samples AS
SELECT frame.symbol AS symbol, frame.file AS file, frame.symoff AS symoff,
    regexp_extract(frame.before, '(\\S+):\\s*$', 1) AS event, number
FROM {_LINES} WHERE form = 'frame'
"""
_MULTI_LINE: Final = f"SELECT count(*) FROM {_LINES} WHERE form = 'head' OR line IS NULL"
_IN_KERNEL: Final = f"regexp_matches(regexp_replace(file, ' \\(deleted\\)$', ''), {literal(_KERNELS)})"
_IS_NAMED: Final = f"symbol <> '{_NAMELESS}'"
_ROWS: Final = f"""
SELECT 'step' AS kind, kernel, count(*) AS {SAMPLES}, {CODE_OFFSET},
    CAST(NULL AS BIGINT) AS step, CAST(NULL AS BIGINT) AS address FROM (
    SELECT CASE WHEN {_IN_KERNEL} AND {_IS_NAMED} THEN symbol END AS kernel,
        CASE WHEN {_IN_KERNEL} AND {_IS_NAMED} THEN CAST('0x' || symoff AS BIGINT) END AS {CODE_OFFSET}
    FROM perf_samples)
GROUP BY ALL ORDER BY ALL
"""


def read_perf_script(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    """Read samples; overwrites the tables `perf_lines` and `perf_samples` of the connection.

    Raises:
        RunEmpty: there is no sample.
        RunInvalid: a line is not from perf script, samples count several events, or have no offset.
    """
    load_lines(path, connection, _LINES, _COLUMNS)
    for number, line in connection.execute(
        f"SELECT number, line FROM {_LINES} WHERE form = 'other' ORDER BY number LIMIT 1"
    ).fetchall():
        raise unknown_line_error(path, number, line, "known line of perf script")
    ((multi_line,),) = connection.execute(_MULTI_LINE).fetchall()
    connection.execute(_SAMPLES if multi_line else _SINGLE_LINE)
    events = connection.execute("SELECT DISTINCT event FROM perf_samples ORDER BY ALL LIMIT 9").fetchall()
    if not events:
        raise RunEmpty(f"{path}: holds no sample")
    if len(events) > 1:
        listed = ", ".join(repr(event[:40]) for (event,) in events)
        raise RunInvalid(
            f"{path}: has samples of several events ({listed}), which do not add up; keep the samples of one event"
        )
    for number, symbol in connection.execute(
        f"SELECT number, symbol FROM perf_samples WHERE {_IN_KERNEL} AND {_IS_NAMED} AND symoff = '' "
        "ORDER BY number LIMIT 1"
    ).fetchall():
        raise RunInvalid(
            f"{path}, line {number}: the sample in {symbol[:80]!r} has no offset from the symbol; print samples with "
            "`perf script -F +symoff`"
        )
    header = structs.replace(UNKNOWN_HEADER, diagnostics=(_sample_note(connection, events[0][0]),))
    return ForeignRun(header, connection.sql(_ROWS))


def _sample_note(connection: duckdb.DuckDBPyConnection, event: str) -> Diagnostic:
    """A note with the number of samples, and the location of those outside kernels."""
    ((count, inside, nameless, system),) = connection.execute(
        f"SELECT count(*), count(*) FILTER ({_IN_KERNEL} AND {_IS_NAMED}), count(*) FILTER (NOT {_IS_NAMED}), "
        f"count(*) FILTER ({_IS_NAMED} AND file ^@ '[') FROM perf_samples"
    ).fetchall()
    of = f" of {event}" if event else ""
    text = (
        f"{plural(count, 'sample')}{of} by perf: {format_share(inside, count)} in kernels, "
        f"{format_count(system)} in the operating system, {format_count(count - inside - nameless - system)} in other "
        f"programs' code, {format_count(nameless)} in code without a name"
    )
    if nameless > inside:
        text += ". perf knows kernels by name only if they are compiled with --iree-llvmcpu-link-embedded=false"
    return Diagnostic("sampled", text)
