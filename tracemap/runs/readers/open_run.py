"""Open runs of any known format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunEmpty, RunInvalid, ToolFailed, TracemapError, UsageInvalid
from tracemap.core.files import copy_user_input, display_name, is_file
from tracemap.core.process.temporary_files import name_prefix, temporary_folder
from tracemap.core.toolchain import check_tool, find_tool
from tracemap.core.units import plural
from tracemap.machine.code_figures import code_locations
from tracemap.machine.images import NOWHERE, Image, addresses_at, symbol_offsets
from tracemap.runs.columns import CODE_OFFSET, LAUNCH
from tracemap.runs.ireeprof.calls import NOTHING_KNOWN, KnownCalls
from tracemap.runs.ireeprof.profile import Profile, read_export
from tracemap.runs.ireeprof.records import EXPORT_MEMORY, copy_whole_records
from tracemap.runs.model import SAMPLES, UNKNOWN_HEADER, Run
from tracemap.runs.readers.formats import Format, format_of, read_hook_csv
from tracemap.runs.readers.google_benchmark import read_google_benchmark
from tracemap.runs.readers.nsight import NsightTable, read_nsight_compute, read_nsight_sums, read_nsight_trace
from tracemap.runs.readers.perf_script import read_perf_script
from tracemap.runs.readers.profile_reports import read_report
from tracemap.runs.readers.rows import ForeignRun
from tracemap.runs.readers.tracy import ZoneTable, read_tracy
from tracemap.runs.runfile import read_run, with_events, write_run
from tracemap.runs.sql import available_memory, explained_out_of_memory, open_database, reader_call

if TYPE_CHECKING:
    import duckdb


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
        ((unresolved,),) = connection.execute(_UNRESOLVED_SAMPLES.format(rows=rows)).fetchall()
        header = run.header
        if unresolved:
            text = (
                f"{plural(int(unresolved), 'sample')} are of machine code that the bundle does not have: the program "
                "was built differently"
            )
            header = structs.replace(header, diagnostics=(*header.diagnostics, Diagnostic("samples-astray", text)))
        return with_events(run, header, connection.sql(_RESOLVED_ROWS.format(rows=rows)), folder)


def _find_spots(connection: duckdb.DuckDBPyConnection, rows: str, images: Sequence[Image]) -> None:
    """Make `code_spots`, the code at each sampled place, and `code_functions`, the names of functions."""
    symbols = [(name, number, at) for number, image in enumerate(images) for name, at in symbol_offsets(image).items()]
    functions = [(function.name,) for image in images for function in image.functions]
    connection.execute("CREATE TEMP TABLE code_symbols (kernel VARCHAR, image BIGINT, place BIGINT)")
    connection.execute("CREATE TEMP TABLE code_functions (function VARCHAR)")
    for table, values in (("code_symbols", symbols), ("code_functions", functions)):
        if values:
            marks = ", ".join("?" for _ in values[0])
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    connection.execute(_FOUND_PLACES.format(rows=rows))
    columns = "image BIGINT, place BIGINT, address BIGINT, step BIGINT, function VARCHAR"
    connection.execute(f"CREATE TEMP TABLE code_lines ({columns})")
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
    connection.execute("CREATE OR REPLACE TEMP TABLE names_of_image (number BIGINT, function VARCHAR)")
    if spots.functions:
        names = [(place, function.name) for place, function in enumerate(spots.functions)]
        connection.executemany("INSERT INTO names_of_image VALUES (?, ?)", names)
    conditions = {"address": f"address <> {NOWHERE}", "step": "function IS NOT NULL"}
    inside = ", ".join(f"CASE WHEN {where} THEN {name} END" for name, where in conditions.items())
    known = "code_of_image LEFT JOIN names_of_image USING (number)"
    connection.execute(f"INSERT INTO code_lines SELECT {number}, place, {inside}, function FROM {known}")
    connection.unregister("code_of_image")


# ---- opening
#
# Open a run from a table of ours or of other tools, an `.ireeprof`, the output of other tools, or standard input.


def open_run(path: Path, folder: Path, dispatch: str = "") -> Run:
    """Open a run: a table (see `runs.runfile.read_run`) or the output of another tool, detected by content.

    Args:
        path: the file; `-` is standard input.
        folder: folder for converted events, or for a copy of a pipe; it must exist as long as the run is used.
        dispatch: the kernel, for a file that does not name it.

    Raises:
        RunEmpty: nothing was recorded.
        RunInvalid: no run, or a damaged one.
        RunVersion: another format version.
        UsageInvalid: `dispatch` is given for a file that names its kernels, or is missing for one that does not.
    """
    if is_file(str(path)):
        return _open_file(path, folder, dispatch)
    _refuse_folder(path)
    copy, name = _copy_of_pipe(path, folder), display_name(str(path))
    with _renamed_errors(name, copy):
        return replace(_open_file(copy, folder, dispatch), given=name, copy=copy)


@contextmanager
def _renamed_errors(name: str, copy: Path) -> Iterator[None]:
    """Replace the name of a temporary copy in error messages by the name of the original."""
    try:
        yield
    except TracemapError as error:
        raise type(error)(str(error).replace(str(copy), name)) from error


def _open_file(path: Path, folder: Path, dispatch: str) -> Run:
    """Open a run from a regular file; see `open_run`."""
    name = str(path)
    form = Format.PROFILE if path.suffix == ".ireeprof" else format_of(path)
    if dispatch and form is not Format.HOOK_CSV:
        raise UsageInvalid(f"{path}: names its kernels itself; --dispatch is only for CSV files of IREE's hook")
    if form is Format.TABLE:
        return replace(read_run(path), given=name)
    table = folder / f"{name_prefix(path.name)}.parquet"
    with _fitting(path), open_database(available_memory(EXPORT_MEMORY)) as connection:
        read = _reader_of(form, dispatch)(path, connection)
        write_run(read.header, read.events, table, force=True)
    run = read_run(table)
    return replace(run, has_header=False, given=name, tells_order=LAUNCH in run.columns)


def _refuse_folder(path: Path) -> None:
    """Reject a folder; the message says where the runs of a bundle are, or how to convert a recording of the hook."""
    if str(path) == "-" or not path.is_dir():
        return
    runs = path / "runs"
    if runs.is_dir():
        raise RunInvalid(f"{path}: is a bundle; name one of its runs, which lie in {runs}")
    raise RunInvalid(
        f"{path}: is a folder. If the hook recorded into it, tracemap stats {path} --calls calls.parquet makes "
        "a table of its calls, which is read as a run"
    )


def _copy_of_pipe(path: Path, folder: Path) -> Path:
    """Copy a pipe into a file, since a table is read more than once."""
    copy = folder / "stdin.csv"
    copy_user_input(str(path), copy, RunInvalid)
    return copy


def _fitting(path: Path) -> AbstractContextManager[None]:
    return explained_out_of_memory(f"the events of {path}", "free some, or record fewer calls")


def _read_profile(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    """The run of an `.ireeprof`, with its diagnostics."""
    return _profile_run(path, load_profile(path, connection))


def _read_export(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    return _profile_run(path, read_export(path, connection))


def _profile_run(path: Path, read: Profile) -> ForeignRun:
    if read.event_count == 0 and not read.lost_records:
        raise RunEmpty(f"{path}: the profile holds no event: nothing ran, or host execution was not profiled")
    header = structs.replace(
        UNKNOWN_HEADER,
        clock=read.clock,
        iterations=read.invocations,
        programs=read.programs,
        buffers=read.buffers,
        diagnostics=read.diagnostics,
    )
    return ForeignRun(header, read.events.in_order())


_Reader = Callable[[Path, "duckdb.DuckDBPyConnection"], ForeignRun]


def _reader_of(form: Format, dispatch: str) -> _Reader:
    readers: Mapping[Format, _Reader] = {
        Format.PROFILE: _read_profile,
        Format.EXPORT: _read_export,
        Format.REPORT: read_report,
        Format.HOOK_CSV: partial(read_hook_csv, kernel=dispatch),
        Format.TRACY_SUMS: partial(read_tracy, zones=ZoneTable.SUMS),
        Format.TRACY_EACH: partial(read_tracy, zones=ZoneTable.EACH),
        Format.TRACY_OF_GPU: partial(read_tracy, zones=ZoneTable.OF_GPU),
        Format.PERF_SCRIPT: read_perf_script,
        Format.GOOGLE_BENCHMARK: read_google_benchmark,
        Format.NSIGHT_TRACE: read_nsight_trace,
        Format.NSIGHT_SUMS: read_nsight_sums,
        Format.NSIGHT_DETAILS: partial(read_nsight_compute, page=NsightTable.DETAILS),
        Format.NSIGHT_RAW: partial(read_nsight_compute, page=NsightTable.RAW),
    }
    return readers[form]


# ---- an `.ireeprof`


def load_profile(
    profile: Path,
    connection: duckdb.DuckDBPyConnection,
    table: str = "events",
    known: KnownCalls = NOTHING_KNOWN,
    *,
    must_be_whole: bool = False,
) -> Profile:
    """Read an `.ireeprof`, even if its writer was killed.

    Args:
        profile: the file.
        connection: the database for the events; tables `profile_*` in it are overwritten.
        table: the name of the table of events in it.
        known: known facts about the calls.
        must_be_whole: the writer ended well, so a file without an end is damaged.

    Raises:
        RunEmpty: it holds no record.
        RunInvalid: it is no `.ireeprof`, it is damaged, or iree-profile cannot read it.
        RunVersion: the installed iree-profile exports another schema version.
    """
    with temporary_folder() as folder:
        whole = folder / "whole.ireeprof"
        truncated = copy_whole_records(profile, whole)
        if truncated is not None and must_be_whole:
            raise RunInvalid(f"{profile}: {truncated.message}")
        exported = _export_profile(whole if truncated else profile, profile, folder / "events.jsonl")
        read = read_export(exported, connection, table, known, exported_from=profile)
    return read if truncated is None else replace(read, diagnostics=(truncated, *read.diagnostics))


def _export_profile(profile: Path, name: Path, target: Path) -> Path:
    try:
        check_tool([find_tool("iree-profile"), "export", "--format=ireeperf-jsonl", f"--output={target}", profile])
    except ToolFailed as error:
        raise RunInvalid(f"{name}: {error}") from error
    return target
