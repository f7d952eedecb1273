"""Open runs of any known format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.errors import RunEmpty, RunInvalid, ToolFailed, TracemapError, UsageInvalid, start_of
from tracemap.core.files import (
    FileFormat,
    copy_user_input,
    display_name,
    format_of_data,
    format_of_file,
    is_file,
    open_stored_file,
)
from tracemap.core.process.temporary_files import name_prefix, temporary_folder
from tracemap.core.toolchain import check_tool, find_tool
from tracemap.runs.columns import LAUNCH, kernel_name
from tracemap.runs.cuda.recording import is_process_file, only_process, process_files
from tracemap.runs.ireeprof.calls import NOTHING_KNOWN, KnownCalls
from tracemap.runs.ireeprof.profile import Profile, read_export
from tracemap.runs.ireeprof.records import EXPORT_MEMORY, copy_whole_records
from tracemap.runs.model import UNKNOWN_HEADER, Run
from tracemap.runs.readers.cuda_recording import read_cuda_recording
from tracemap.runs.readers.extensions import run_of_extension
from tracemap.runs.readers.google_benchmark import read_google_benchmark
from tracemap.runs.readers.hook_csv import FIXED, read_hook_csv
from tracemap.runs.readers.nsight import (
    NsightTable,
    nsight_table_of,
    read_nsight_compute,
    read_nsight_sums,
    read_nsight_trace,
)
from tracemap.runs.readers.perf_script import is_perf_script, read_perf_script
from tracemap.runs.readers.profile_reports import read_report
from tracemap.runs.readers.rows import ForeignRun
from tracemap.runs.readers.tracy import read_tracy, zones_of
from tracemap.runs.runfile import read_run, write_run
from tracemap.runs.sql import available_memory, explained_out_of_memory, open_database

if TYPE_CHECKING:
    import duckdb

Reader = Callable[[Path, "duckdb.DuckDBPyConnection"], ForeignRun]
"""Reads a file into the events and the header of a run; overwrites tables of the connection."""


# ---- formats
#
# Recognition of a run's format from the file's first bytes.


_HEAD_BYTES: Final = 1 << 16
_PROFILE_MARK: Final = b"IRPF"
_REFUSED: Final = {
    b"PERFILE2": "is a recording of perf: convert it first with `perf script`",
    b"tr\xfdP": "is a capture of Tracy: convert it first with `tracy-csvexport`",
    b"NVR\0": "is a report of Nsight Compute: convert it first with `ncu --import FILE --csv --page raw`",
    b"SQLite format 3\0": (
        "is a database; if Nsight Systems wrote it, convert it first with `nsys stats --report cuda_gpu_trace "
        "--format csv FILE`"
    ),
}
"""First bytes of binary files that another tool must convert, with the message."""

_MODELS: Final = frozenset({".mlir", ".mlirbc", ".onnx"})
_NOT_OF_TEXTS: Final = re.compile("[\x01-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")
_STORED: Final = (b"PAR1", b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\xfd7zX")
"""First bytes of Parquet and of compressed files, which `runfile` handles, as it does UTF-16 and UTF-32."""


def reader_of(path: Path) -> Reader | None:
    """The reader of another tool's file; None for a table, which `runfile` reads or rejects.

    Raises:
        RunInvalid: the file cannot be read, or needs conversion; the message says how.
    """
    if is_process_file(path):
        return read_cuda_recording
    with open_stored_file(path, RunInvalid) as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_PROFILE_MARK):
        return _read_profile
    for mark, message in _REFUSED.items():
        if head.startswith(mark):
            raise RunInvalid(f"{path}: {message}")
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    kind = format_of_data(head, path.name)
    if kind in _NO_RUNS:
        raise _no_run(path, kind)
    is_json = text.startswith(("{", "["))
    reader = _json_reader(text) if is_json else _reader_of_lines(path, text)
    if reader is not None:
        return reader
    if not (head.startswith((*_STORED, *_WIDE)) or kernel_name(_names(text))):
        if path.suffix.lower() in _MODELS:
            raise _no_run(path, FileFormat.MODEL)
        is_damaged = text.count("\ufffd") > len(text) // 4  # a few may be letters of another encoding
        if is_damaged or _NOT_OF_TEXTS.search(text) or (b"\0" in head and b"\0" not in head[:4]):
            raise RunInvalid(
                f"{path}: is not a table, because it is not text; pass a run: CSV, Parquet, or the output of another "
                "tool"
            )
    if kind is FileFormat.SCRIPT or (kind is FileFormat.TEXT and reader is None and len(_names(text)) == 1):
        raise _no_run(path, kind)
    if is_json:
        raise RunInvalid(
            f"{path}: is JSON, but not a run; supported are iree-profile (--format=ireeperf-jsonl or jsonl, one record "
            "per line) and Google Benchmark"
        )
    return None


_RECORD: Final = "pass a run: `tracemap record BUNDLE` writes one"
_NO_RUNS: Final = {
    FileFormat.MODEL: "build it first: tracemap build {}, then record its bundle",
    FileFormat.MODULE: _RECORD,
    FileFormat.ARRAY: _RECORD,
    FileFormat.ARRAYS: _RECORD,
    FileFormat.HTML: _RECORD,
    FileFormat.PAGE: "pass the run whose costs it shows",
    FileFormat.DOCUMENT: "pass the run or the bundle that it was made from",
    FileFormat.POINTER: "fetch the file with `git lfs pull`",
}
"""Kinds of files that are no run, whatever their name is, with what to do."""


def _no_run(path: Path, kind: FileFormat) -> RunInvalid:
    return RunInvalid(f"{path}: is {kind}, not a run; {_NO_RUNS.get(kind, _RECORD).format(path)}")


def _names(text: str) -> list[str]:
    """The names of a table's columns in lower case."""
    first = text.partition("\n")[0].rstrip("\r").lower()
    return [name.strip(' "') for name in re.split("[,;\t]", first)]


def _reader_of_lines(path: Path, text: str) -> Reader | None:
    names = _names(text)
    if not kernel_name(names):  # the head of a table may read like a sample: `kernel,level 1 d misses (all)`
        if names[: len(FIXED)] == list(FIXED):
            return read_hook_csv
        if is_perf_script(path, text):
            return read_perf_script
    if (zones := zones_of(names)) is not None:
        return partial(read_tracy, zones=zones)
    lines = text.split("\n")
    complete = lines[:-1] if len(text) >= _HEAD_BYTES // 4 else lines  # the last line may be truncated
    table = next((table for table in map(nsight_table_of, complete) if table is not None), None)
    if table is None and (messages := [line.strip() for line in lines if _NSIGHT_COMPUTE_MESSAGE.match(line)]):
        raise RunInvalid(
            f"{path}: has messages of Nsight Compute but no table: it profiled no kernel; the last message is: "
            f"{start_of(messages[-1], _LONGEST_MESSAGE)}"
        )
    return None if table is None else _NSIGHT_READERS[table]


_NSIGHT_COMPUTE_MESSAGE: Final = re.compile("==(?:PROF|WARNING|ERROR)== ")
_LONGEST_MESSAGE: Final = 200
_NSIGHT_READERS: Final[Mapping[NsightTable, Reader]] = {
    NsightTable.TRACE: read_nsight_trace,
    NsightTable.SUMS: read_nsight_sums,
    **{page: partial(read_nsight_compute, page=page) for page in (NsightTable.DETAILS, NsightTable.RAW)},
}


def _json_reader(text: str) -> Reader | None:
    """The reader of a JSON file; None if it is not supported."""
    line = text.partition("\n")[0]
    if re.match(r'\{\s*"(context|benchmarks)"\s*:', text):
        return read_google_benchmark
    if '"record_type"' in line and '"schema_version"' in line:
        return _read_export
    return read_report if re.match(r'\{\s*"type"\s*:\s*"', line) else None


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
    if path.is_dir() and (processes := process_files(path)):
        return replace(_open_file(only_process(path, processes), folder, dispatch), given=str(path))
    _refuse_folder(path)
    copy, name = folder / "stdin.csv", display_name(str(path))
    copy_user_input(str(path), copy, RunInvalid)  # a table is read more than once
    try:
        return replace(_open_file(copy, folder, dispatch), given=name, copy=copy)
    except TracemapError as error:
        raise type(error)(str(error).replace(str(copy), name)) from error


def _open_file(path: Path, folder: Path, dispatch: str) -> Run:
    """Open a run from a regular file; see `open_run`. Readers of other packages get what tracemap does not read."""
    try:
        return _open_known(path, folder, dispatch)
    except RunInvalid as error:
        run = None if dispatch else run_of_extension(path, folder, error)
        if run is None:
            raise
        return run


def _open_known(path: Path, folder: Path, dispatch: str) -> Run:
    name = str(path)
    reader = _read_profile if path.suffix == ".ireeprof" else reader_of(path)
    if reader is read_hook_csv:
        reader = partial(read_hook_csv, kernel=dispatch)
    elif dispatch:
        raise UsageInvalid(f"{path}: names its kernels itself; --dispatch is only for CSV files of IREE's hook")
    if reader is None:
        return replace(read_run(path), given=name)
    table = folder / f"{name_prefix(path.name)}.parquet"
    fitting = explained_out_of_memory(f"the events of {path}", "free some, or record fewer calls")
    with fitting, open_database(available_memory(EXPORT_MEMORY)) as connection:
        read = reader(path, connection)
        write_run(read.header, read.events, table, force=True)
    run = read_run(table)
    return replace(run, has_header=False, given=name, tells_order=LAUNCH in run.columns)


def _refuse_folder(path: Path) -> None:
    """Reject a folder; the message says where the runs of a bundle are, or how to convert a recording of the hook."""
    if str(path) == "-" or not path.is_dir():
        return
    if format_of_file(path) is FileFormat.BUNDLE:
        runs = sorted(path.glob("runs/run-*.[pc]*"))
        advice = f"name one of its runs, such as {runs[-1]}" if runs else f"record one: tracemap record {path}"
        raise RunInvalid(f"{path}: is a bundle, not a run; {advice}")
    raise RunInvalid(
        f"{path}: is a folder. If the hook recorded into it, tracemap stats {path} --calls calls.parquet makes "
        "a table of its calls, which is read as a run"
    )


def _read_profile(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
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
        exported, readable = folder / "events.jsonl", whole if truncated else profile
        try:
            check_tool(
                [find_tool("iree-profile"), "export", "--format=ireeperf-jsonl", f"--output={exported}", readable]
            )
        except ToolFailed as error:
            raise RunInvalid(f"{profile}: {error}") from error
        read = read_export(exported, connection, table, known, exported_from=profile)
    return read if truncated is None else replace(read, diagnostics=(truncated, *read.diagnostics))
