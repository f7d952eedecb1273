"""Foreign formats by their marks, and the CSV files of IREE's hook."""

from __future__ import annotations

import enum
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.errors import RunEmpty, RunInvalid, UsageInvalid, check_limits, start_of
from tracemap.core.files import open_stored_file
from tracemap.core.sanitize import unescape_formula
from tracemap.runs.bad_cells import explain_bad_cell
from tracemap.runs.columns import (
    check_width,
    csv_rows,
    csv_sql,
    events_sql,
    file_columns,
    kernel_name,
    metrics_of,
    workgroup_calls_note,
)
from tracemap.runs.model import COLUMNS, STEP_METRICS, UNKNOWN_HEADER, Clock, Run
from tracemap.runs.readers.nsight import NsightTable, nsight_table_of
from tracemap.runs.readers.perf_script import HEAD
from tracemap.runs.readers.rows import ForeignRun
from tracemap.runs.readers.tracy import ZoneTable, zones_of
from tracemap.runs.sql import literal, quoted, reading_errors

if TYPE_CHECKING:
    import duckdb


# ---- hook csv
#
# Reader of CSV files of IREE's own hook: workgroup calls of one kernel on one thread, with event counts.
#
# The columns are `thread`, `cpu`, `node`, `duration_us` and one per event. The file does not name the kernel: IREE's
# hook records one kernel at a time (`IREE_HOOK_FILTER_NAME`), and the user passes its name again.


FIXED = ("thread", "cpu", "node", "duration_us")
"""The first columns."""

_TABLE = "hook_rows"
# The time of a workgroup on its worker is part of the CPU time; the wall time of the dispatch is unknown.
_ROWS = "SELECT * EXCLUDE duration_ns REPLACE ({kernel} AS kernel, duration_ns AS cpu_ns) FROM ({events})"


def read_hook_csv(path: Path, connection: duckdb.DuckDBPyConnection, kernel: str) -> ForeignRun:
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
    _check_events(path, names[len(FIXED) :])
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


def _check_events(path: Path, events: tuple[str, ...]) -> None:
    """Reject names of events that have another meaning in a run."""
    for name in events:
        if name.strip().lower() in COLUMNS or name in STEP_METRICS:
            raise RunInvalid(f"{path}: the event {name!r} has the name of a column of runs; rename it")


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


# ---- formats
#
# Recognition of a run's format from the file's first bytes.


_HEAD_BYTES: Final = 1 << 16


class Format(enum.Enum):
    """The format of a file. `TABLE` is any file without the marks of another; `runfile` checks whether it is a run."""

    TABLE = enum.auto()
    PROFILE = enum.auto()
    """An `.ireeprof`."""
    EXPORT = enum.auto()
    """Output of `iree-profile export --format=ireeperf-jsonl`."""
    REPORT = enum.auto()
    """Output of other commands of iree-profile with `--format=jsonl`."""
    HOOK_CSV = enum.auto()
    """Calls of one kernel on one thread, by IREE's own hook."""
    TRACY_SUMS = enum.auto()
    """Sums of Tracy's zones."""
    TRACY_EACH = enum.auto()
    """Single zones of Tracy."""
    TRACY_OF_GPU = enum.auto()
    """Single GPU zones of Tracy."""
    PERF_SCRIPT = enum.auto()
    """Samples, printed by perf script."""
    GOOGLE_BENCHMARK = enum.auto()
    """JSON of Google Benchmark."""
    NSIGHT_TRACE = enum.auto()
    """Kernels and copies, by Nsight Systems."""
    NSIGHT_SUMS = enum.auto()
    """Sums of kernels, by Nsight Systems."""
    NSIGHT_DETAILS = enum.auto()
    """Metrics of kernels by Nsight Compute, one metric per row."""
    NSIGHT_RAW = enum.auto()
    """Metrics of kernels by Nsight Compute, one kernel per row."""


_MARKS: Final = {b"IRPF": Format.PROFILE}
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


_BYTECODE: Final = b"ML\xefR"
_MLIR: Final = re.compile(
    r"""
    (?://[^\n]*\n\s*)*                                      # comments, and then one of:
    (?: module(?:\s*\{|\s+@|\s+attributes\b)
      | \w+(?:\.\w+)+(?:\s+(?:private|public|nested|mutable))*\s+@   # func.func @main
      | "\w+(?:\.\w+)+"\s*(?:<\{[^\n]*)?\(                 # "builtin.module"()
      | [#!][\w.$-]+\s*=\s*[#!"a-z@<(\[{]                  # #loc = loc(unknown)
      | \{-\#
    )
    """,
    re.VERBOSE | re.ASCII,
)
"""The start of an MLIR text."""
_MODELS: Final = frozenset({".mlir", ".mlirbc", ".onnx"})
_NOT_OF_TEXTS: Final = re.compile("[\x01-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")
_STORED: Final = (b"PAR1", b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\xfd7zX")
"""First bytes of Parquet and of compressed files, which `runfile` handles."""


def _check_no_model(path: Path, *, is_model: bool) -> None:
    """Reject a model.

    Raises:
        RunInvalid: the file is a model.
    """
    if is_model:
        raise RunInvalid(
            f"{path}: is a model, not a run; build it first (`tracemap build`), then pass its bundle or a run of it"
        )


def _check_content(path: Path, head: bytes, text: str) -> None:
    """Reject models, by the file's suffix, and binary files; accept files with a column of kernel names.

    UTF-16 and UTF-32 are rejected later, by the reader of tables.

    Raises:
        RunInvalid: the file is a model or not text.
    """
    if head.startswith((*_STORED, *_WIDE)) or kernel_name(_names(text)):
        return
    _check_no_model(path, is_model=path.suffix.lower() in _MODELS)
    is_damaged = text.count("\ufffd") > len(text) // 4  # a few may be letters of another encoding
    if is_damaged or _NOT_OF_TEXTS.search(text) or (b"\0" in head and b"\0" not in head[:4]):
        raise RunInvalid(
            f"{path}: is not a table, because it is not text; pass a run: CSV, Parquet, or the output of another tool"
        )


def format_of(path: Path) -> Format:
    """The format of a file.

    Raises:
        RunInvalid: the file cannot be read, or needs conversion; the message says how.
    """
    with open_stored_file(path, RunInvalid) as file:
        head = file.read(_HEAD_BYTES)
    for mark, marked in _MARKS.items():
        if head.startswith(mark):
            return marked
    for mark, message in _REFUSED.items():
        if head.startswith(mark):
            raise RunInvalid(f"{path}: {message}")
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    _check_no_model(path, is_model=head.startswith(_BYTECODE) or _MLIR.match(text) is not None)
    is_json = text.startswith(("{", "["))
    form = _json_form(text) if is_json else _form_of_lines(path, text)
    if form in (None, Format.TABLE):
        _check_content(path, head, text)
    if form is None:
        raise RunInvalid(
            f"{path}: is JSON, but not a run; supported are iree-profile (--format=ireeperf-jsonl or jsonl, one record "
            "per line) and Google Benchmark"
        )
    return form


def _names(text: str) -> list[str]:
    """The names of a table's columns in lower case."""
    first = text.partition("\n")[0].rstrip("\r").lower()
    return [name.strip(' "') for name in re.split("[,;\t]", first)]


def _form_of_lines(path: Path, text: str) -> Format:
    names = _names(text)
    if names[: len(FIXED)] == list(FIXED) and not kernel_name(names):
        return Format.HOOK_CSV
    # The head of a table may read like a sample: `kernel,level 1 d misses (all)`.
    samples = _Sample.NONE if kernel_name(names) else _first_sample(text)
    if samples is _Sample.WHOLE:
        return Format.PERF_SCRIPT
    if samples is _Sample.WITHOUT_FILE:
        raise RunInvalid(
            f"{path}: its perf samples do not name the file of their code; print them with `perf script -F +dso`"
        )
    zones = zones_of(names)
    if zones is not None:
        return _ZONES[zones]
    lines = text.split("\n")
    complete = lines[:-1] if len(text) >= _HEAD_BYTES // 4 else lines  # the last line may be truncated
    table = next((table for table in map(nsight_table_of, complete) if table is not None), None)
    if table is None and (messages := [line.strip() for line in lines if _NSIGHT_COMPUTE_MESSAGE.match(line)]):
        raise RunInvalid(
            f"{path}: has messages of Nsight Compute but no table: it profiled no kernel; the last message is: "
            f"{start_of(messages[-1], _LONGEST_MESSAGE)}"
        )
    return Format.TABLE if table is None else _NSIGHT[table]


_NSIGHT_COMPUTE_MESSAGE: Final = re.compile("==(?:PROF|WARNING|ERROR)== ")
_LONGEST_MESSAGE: Final = 200


_ZONES: Final = {
    ZoneTable.SUMS: Format.TRACY_SUMS,
    ZoneTable.EACH: Format.TRACY_EACH,
    ZoneTable.OF_GPU: Format.TRACY_OF_GPU,
}

_NSIGHT: Final = {
    NsightTable.TRACE: Format.NSIGHT_TRACE,
    NsightTable.SUMS: Format.NSIGHT_SUMS,
    NsightTable.DETAILS: Format.NSIGHT_DETAILS,
    NsightTable.RAW: Format.NSIGHT_RAW,
}


class _Sample(enum.Enum):
    """The result of looking for a perf sample in a line."""

    NONE = enum.auto()
    WITHOUT_FILE = enum.auto()
    WHOLE = enum.auto()


def _first_sample(text: str) -> _Sample:
    """The sample in the first relevant line, or in the line after it if the first is a head line."""
    lines = [line for line in text.split("\n") if line.strip() and not re.match(r"\s*#", line)]
    if not lines:
        return _Sample.NONE
    if re.search(r"\sPERF_RECORD_", lines[0]):
        return _Sample.WHOLE
    sample = _sample_in(lines[0])
    if sample is _Sample.NONE and len(lines) > 1 and re.search(HEAD, lines[0]):
        return _sample_in(lines[1])
    return sample


_PLACE: Final = re.compile(r"(?:^|\s)[0-9a-f]{1,16} \S")
_OFFSET: Final = re.compile(r"\+0x[0-9a-f]{1,15}$")


def _sample_in(line: str) -> _Sample:
    """Whether `perf_script.FRAME` matches a line, or would with a file; in time linear in the line's length."""
    line = line.rstrip()
    place = _PLACE.search(line)
    if place is None:
        return _Sample.NONE
    if line.endswith(")") and line.find(" (", place.end()) >= 0:
        return _Sample.WHOLE
    return _Sample.WITHOUT_FILE if _OFFSET.search(line, place.end()) else _Sample.NONE


def _json_form(text: str) -> Format | None:
    """The format of a JSON file; None if it is not supported."""
    line = text.partition("\n")[0]
    if _OF_GOOGLE_BENCHMARK.match(text):
        return Format.GOOGLE_BENCHMARK
    if '"record_type"' in line and '"schema_version"' in line:
        return Format.EXPORT
    if _OF_REPORT.match(line):
        return Format.REPORT
    return None


_OF_GOOGLE_BENCHMARK: Final = re.compile(r'\{\s*"(context|benchmarks)"\s*:')
_OF_REPORT: Final = re.compile(r'\{\s*"type"\s*:\s*"')
