"""Recognition of a run's format, and its reader, from the file's first bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.core.errors import RunInvalid, start_of
from tracemap.core.files import FileFormat, format_of_data, open_stored_file
from tracemap.runs.columns import kernel_name
from tracemap.runs.cuda.recording import is_process_file
from tracemap.runs.readers.cuda_recording import read_cuda_recording
from tracemap.runs.readers.google_benchmark import read_google_benchmark
from tracemap.runs.readers.hook_csv import FIXED, read_hook_csv
from tracemap.runs.readers.iree_profile import read_iree_export, read_iree_profile
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

if TYPE_CHECKING:
    import duckdb

Reader = Callable[[Path, "duckdb.DuckDBPyConnection"], ForeignRun]
"""Reads a file into the events and the header of a run; overwrites tables of the connection."""

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
        return read_iree_profile
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
        return read_iree_export
    return read_report if re.match(r'\{\s*"type"\s*:\s*"', line) else None
