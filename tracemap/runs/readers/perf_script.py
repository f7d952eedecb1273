"""Reader of `perf script` output: samples in kernels, with their offsets from the start of the kernel.

A sample is a line, `comm 10044 4421.02: 1001001 cpu-clock: 7f42 main_dispatch_0+0x154 (/tmp/iree_dylib_x_mem_.so)`.
Any fields before the address may be left out. With call chains it is a line that ends with the event, followed by a
line per frame, the sample's own first (perf-script(1), `-F`). Kernels are in the shared libraries that IREE's loader
writes for the dynamic linker, `iree_dylib_…`, or in code that a `perf-PID.map` names. Only the bundle has their
addresses, so rows have offsets. With `tracemap debug-info`, kernels are in its code files, or in libraries that `perf
inject` made of a jitdump.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunEmpty, RunInvalid
from tracemap.core.units import format_count, format_share, plural
from tracemap.machine.code_figures import code_locations
from tracemap.machine.images import NOWHERE, Image, addresses_at, symbol_offsets
from tracemap.runs.columns import CODE_OFFSET
from tracemap.runs.model import SAMPLES, UNKNOWN_HEADER, Run
from tracemap.runs.readers.rows import ForeignRun, check_lines, load_lines
from tracemap.runs.runfile import with_events
from tracemap.runs.sql import fill_table, first_integer, literal, open_database, reader_call

if TYPE_CHECKING:
    import duckdb


FRAME: Final = r"^(.*\s)?([0-9a-f]{1,16}) (\S.*?)(?:\+0x([0-9a-f]{1,15}))? \((.*)\)\s*$"
"""A frame: the text before the address, the address, its symbol, the offset from the symbol, and the file."""
HEAD: Final = r"\S:\s*$"
"""The head line of a sample with a call chain: it ends with the event."""
ASIDE: Final = r"^\s*#|\sPERF_RECORD_"
"""Lines of `--header` and `--show-…-events`."""
_FIELDS: Final = ("before", "ip", "symbol", "symoff", "file")
_KERNELS: Final = (
    r"(^|/)iree_dylib_[^/]*$|(^|/)perf-[0-9]+[.]map$|(^|/)code/[^/]*-[0-9a-f]{16}[.]so$|(^|/)jitted-[0-9]+-[0-9]+[.]so$"
)
_NAMED_BY_OP: Final = r"^op[0-9]+ \S+ \[.*\] (\S+(?: \(\d+\))?)$"
"""A kernel's name with that of its root op before it, as `tracemap debug-info` writes it."""
_NAMELESS: Final = "[unknown]"

_PLACE: Final = re.compile(r"(?:^|\s)[0-9a-f]{1,16} \S")
_OFFSET: Final = re.compile(r"\+0x[0-9a-f]{1,15}$")


def is_perf_script(path: Path, text: str) -> bool:
    """Whether the first relevant line, or the line after it if that is a head line, is a sample.

    It is if `FRAME` matches it; this takes time linear in the line's length.

    Raises:
        RunInvalid: it is a sample without the file of its code.
    """
    lines = [line for line in text.split("\n") if line.strip() and not re.match(r"\s*#", line)]
    if lines and re.search(r"\sPERF_RECORD_", lines[0]):
        return True
    for line in map(str.rstrip, lines[: 2 if lines and re.search(HEAD, lines[0]) else 1]):
        if place := _PLACE.search(line):
            if line.endswith(")") and line.find(" (", place.end()) >= 0:
                return True
            if _OFFSET.search(line, place.end()):
                raise RunInvalid(
                    f"{path}: its perf samples do not name the file of their code; print them with "
                    "`perf script -F +dso`"
                )
    return False


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
    SELECT CASE WHEN {_IN_KERNEL} AND {_IS_NAMED}
                THEN coalesce(nullif(regexp_extract(symbol, {literal(_NAMED_BY_OP)}, 1), ''), symbol) END AS kernel,
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
    check_lines(path, connection, _LINES, "form = 'other'", "known line of perf script")
    connection.execute(_SAMPLES if first_integer(connection, _MULTI_LINE) else _SINGLE_LINE)
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
        text += ". perf knows kernels by name only with `tracemap debug-info`, or --iree-llvmcpu-link-embedded=false"
    return Diagnostic("sampled", text)


# ---- symbol resolution
#
# Resolve samples given as symbol plus offset to addresses and lines in the bundle's machine code.


# A symbol that several executables have is ambiguous, so it is left out.
_FOUND_PLACES: Final = f"""
CREATE TEMP TABLE code_found AS
SELECT DISTINCT kernel, {CODE_OFFSET}, image, place + {CODE_OFFSET} AS place
FROM {{rows}} JOIN (SELECT kernel, any_value(image) AS image, any_value(place) AS place
                    FROM code_symbols GROUP BY kernel HAVING count(*) = 1) USING (kernel)
WHERE {CODE_OFFSET} BETWEEN 0 AND {1 << 40}
"""
_RESOLVED_ROWS: Final = f"""
SELECT event.* EXCLUDE ({CODE_OFFSET}, step, address)
    REPLACE (CASE WHEN spot.place IS NULL THEN event.kernel ELSE spot.function END AS kernel), spot.step, spot.address
FROM {{rows}} AS event LEFT JOIN code_spots AS spot
    ON spot.kernel = event.kernel AND spot.{CODE_OFFSET} = event.{CODE_OFFSET} ORDER BY ALL
"""
# Samples named after a kernel that lies elsewhere in the bundle, or after a symbol that the bundle does not have.
_UNRESOLVED_SAMPLES: Final = f"""
SELECT coalesce(sum({SAMPLES}), 0) FROM {{rows}} AS event LEFT JOIN code_spots AS spot
    ON spot.kernel = event.kernel AND spot.{CODE_OFFSET} = event.{CODE_OFFSET}
WHERE event.kernel IS NOT NULL AND (spot.place IS NULL OR (
    event.kernel IN (SELECT function FROM code_functions) AND spot.function IS DISTINCT FROM event.kernel))
"""


def resolve_symbols(run: Run, images: Callable[[], Sequence[Image]], folder: Path) -> Run:
    """Resolve kernels, addresses and lines of a run's samples; the run itself if nothing is to be resolved.

    Args:
        run: the run.
        images: reads the machine code of the bundle's module.
        folder: folder for the new table; it must exist as long as the run is used.

    Raises:
        ModuleInvalid: the machine code cannot be read.
    """
    if CODE_OFFSET not in run.columns or run.format != "parquet":
        return run
    rows = reader_call("read_parquet", run.table)
    with open_database() as connection:
        _find_spots(connection, rows, images())
        header = run.header
        if unresolved := first_integer(connection, _UNRESOLVED_SAMPLES.format(rows=rows)):
            text = (
                f"{plural(unresolved, 'sample')} are of machine code that the bundle does not have: the program "
                "was built differently"
            )
            header = structs.replace(header, diagnostics=(*header.diagnostics, Diagnostic("samples-astray", text)))
        return with_events(run, header, connection.sql(_RESOLVED_ROWS.format(rows=rows)), folder)


def _find_spots(connection: duckdb.DuckDBPyConnection, rows: str, images: Sequence[Image]) -> None:
    """Make `code_spots`, the code at each sampled place, and `code_functions`, the names of functions."""
    symbols = [(name, number, at) for number, image in enumerate(images) for name, at in symbol_offsets(image).items()]
    functions = [(function.name,) for image in images for function in image.functions]
    fill_table(connection, "code_symbols", {"kernel": "VARCHAR", "image": "BIGINT", "place": "BIGINT"}, symbols)
    fill_table(connection, "code_functions", {"function": "VARCHAR"}, functions)
    connection.execute(_FOUND_PLACES.format(rows=rows))
    integers = dict.fromkeys(("image", "place", "address", "step"), "BIGINT")
    fill_table(connection, "code_lines", {**integers, "function": "VARCHAR"}, ())
    for number, image in enumerate(images):
        _add_lines(connection, number, image)
    spots = "SELECT * FROM code_found JOIN code_lines USING (image, place)"
    connection.execute(f"CREATE TEMP TABLE code_spots AS {spots}")


def _add_lines(connection: duckdb.DuckDBPyConnection, number: int, image: Image) -> None:
    """Add the code at the sampled places of one image."""
    import numpy as np

    query = f"SELECT DISTINCT place FROM code_found WHERE image = {number} ORDER BY place"
    places = connection.execute(query).fetchnumpy()["place"].astype(np.int64)
    spots = code_locations(image, addresses_at(image, places))
    columns = {"place": places, "address": spots.addresses, "step": spots.lines, "number": spots.numbers}
    connection.register("code_of_image", columns)
    names = [(place, function.name) for place, function in enumerate(spots.functions)]
    fill_table(connection, "names_of_image", {"number": "BIGINT", "function": "VARCHAR"}, names)
    conditions = {"address": f"address <> {NOWHERE}", "step": "function IS NOT NULL"}
    inside = ", ".join(f"CASE WHEN {where} THEN {name} END" for name, where in conditions.items())
    known = "code_of_image LEFT JOIN names_of_image USING (number)"
    connection.execute(f"INSERT INTO code_lines SELECT {number}, place, {inside}, function FROM {known}")
    connection.unregister("code_of_image")
