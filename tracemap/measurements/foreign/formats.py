"""Formats of runs, recognized by their first bytes."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Final

from tracemap.errors import RunInvalid, start_of
from tracemap.inputs import opened
from tracemap.measurements.columns import kernel_name
from tracemap.measurements.foreign.hook_csv import FIXED
from tracemap.measurements.foreign.nsight import NsightTable, nsight_table_of
from tracemap.measurements.foreign.perf_script import HEAD
from tracemap.measurements.foreign.tracy import Zones, zones_of

_HEAD_BYTES: Final = 1 << 16


class Form(enum.Enum):
    """What a file is. `TABLE` is whatever has no mark of another: `runfile` then says whether it is a run."""

    TABLE = enum.auto()
    PROFILE = enum.auto()
    """An `.ireeprof`."""
    EXPORT = enum.auto()
    """What `iree-profile export --format=ireeperf-jsonl` writes."""
    REPORT = enum.auto()
    """What other commands of iree-profile print with `--format=jsonl`."""
    HOOK_CSV = enum.auto()
    """Calls of one kernel on one thread, by IREE's own hook."""
    TRACY_SUMS = enum.auto()
    """Zones of Tracy, added up."""
    TRACY_EACH = enum.auto()
    """Each zone of Tracy."""
    TRACY_OF_GPU = enum.auto()
    """Each zone of Tracy's of a GPU."""
    PERF_SCRIPT = enum.auto()
    """Samples, as perf prints them."""
    GOOGLE_BENCHMARK = enum.auto()
    """JSON of Google Benchmark."""
    NSIGHT_TRACE = enum.auto()
    """Kernels and copies, by Nsight Systems."""
    NSIGHT_SUMS = enum.auto()
    """Kernels, by Nsight Systems, added up."""
    NSIGHT_DETAILS = enum.auto()
    """Metrics of kernels by Nsight Compute, one in a row."""
    NSIGHT_RAW = enum.auto()
    """Metrics of kernels by Nsight Compute, those of a kernel in a row."""


_MARKS: Final = {b"IRPF": Form.PROFILE}
_REFUSED: Final = {
    b"PERFILE2": "is a recording of perf: print it first, with `perf script`",
    b"tr\xfdP": "is a capture of Tracy: print it first, with `tracy-csvexport`",
    b"NVR\0": "is a report of Nsight Compute: print it first, with `ncu --import FILE --csv --page raw`",
    b"SQLite format 3\0": (
        "is a database; if Nsight Systems wrote it, print it first, with `nsys stats --report cuda_gpu_trace "
        "--format csv FILE`"
    ),
}
"""What others begin with that is read only after a tool of theirs has printed it."""


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
"""What a text of MLIR begins with."""
_MODELS: Final = frozenset({".mlir", ".mlirbc", ".onnx"})
_NOT_OF_TEXTS: Final = re.compile("[\x01-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")
_STORED: Final = (b"PAR1", b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\xfd7zX")
"""Parquet, and what has been compressed, of which `runfile` says what to do."""


def _check_no_model(path: Path, *, is_model: bool) -> None:
    """Refuse a model.

    Raises:
        RunInvalid: it is one.
    """
    if is_model:
        raise RunInvalid(
            f"{path}: is a model, not a run; build it first (`tracemap build`), and name its bundle or a run of it"
        )


def _check_content(path: Path, head: bytes, text: str) -> None:
    """Refuse, of what has no mark and no column of kernels, models by their names, and bytes that are nobody's text.

    Texts of wider characters are told of where tables are read.

    Raises:
        RunInvalid: it is one of them.
    """
    if head.startswith((*_STORED, *_WIDE)) or kernel_name(_names(text)):
        return
    _check_no_model(path, is_model=path.suffix.lower() in _MODELS)
    is_damaged = text.count("\ufffd") > len(text) // 4  # a few may be letters of another encoding
    if is_damaged or _NOT_OF_TEXTS.search(text) or (b"\0" in head and b"\0" not in head[:4]):
        raise RunInvalid(
            f"{path}: is no table: its bytes are no text; name a run, be it CSV, Parquet or what another tool wrote"
        )


def form_of(path: Path) -> Form:
    """What a file is.

    Raises:
        RunInvalid: it cannot be read, or is of a form that is known and not read; the message says what helps.
    """
    with opened(path, RunInvalid) as file:
        head = file.read(_HEAD_BYTES)
    for mark, marked in _MARKS.items():
        if head.startswith(mark):
            return marked
    for mark, what in _REFUSED.items():
        if head.startswith(mark):
            raise RunInvalid(f"{path}: {what}")
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    _check_no_model(path, is_model=head.startswith(_BYTECODE) or _MLIR.match(text) is not None)
    is_json = text.startswith(("{", "["))
    form = _json_form(text) if is_json else _form_of_lines(path, text)
    if form in (None, Form.TABLE):
        _check_content(path, head, text)
    if form is None:
        raise RunInvalid(
            f"{path}: is JSON, but none that is read as a run: that of iree-profile (a record in each line, "
            "--format=ireeperf-jsonl or jsonl) and of Google Benchmark is"
        )
    return form


def _names(text: str) -> list[str]:
    """What the columns of a table are called, in small letters."""
    first = text.partition("\n")[0].rstrip("\r").lower()
    return [name.strip(' "') for name in re.split("[,;\t]", first)]


def _form_of_lines(path: Path, text: str) -> Form:
    names = _names(text)
    if names[: len(FIXED)] == list(FIXED) and not kernel_name(names):
        return Form.HOOK_CSV
    # The head of a table may read like a sample: `kernel,level 1 d misses (all)`.
    samples = _Sample.NONE if kernel_name(names) else _first_sample(text)
    if samples is _Sample.WHOLE:
        return Form.PERF_SCRIPT
    if samples is _Sample.WITHOUT_FILE:
        raise RunInvalid(
            f"{path}: has samples of perf that do not say which file's code they lie in; print them with "
            "`perf script -F +dso`"
        )
    zones = zones_of(names)
    if zones is not None:
        return _ZONES[zones]
    lines = text.split("\n")
    whole = lines[:-1] if len(text) >= _HEAD_BYTES // 4 else lines  # the last one may be cut
    table = next((table for table in map(nsight_table_of, whole) if table is not None), None)
    if table is None and (said := [line.strip() for line in lines if _SAID_BY_NSIGHT_COMPUTE.match(line)]):
        raise RunInvalid(
            f"{path}: has what Nsight Compute says and no table: it profiled no kernel; its last words are: "
            f"{start_of(said[-1], _MOST_SAID)}"
        )
    return Form.TABLE if table is None else _NSIGHT[table]


_SAID_BY_NSIGHT_COMPUTE: Final = re.compile("==(?:PROF|WARNING|ERROR)== ")
_MOST_SAID: Final = 200


_ZONES: Final = {
    Zones.SUMS: Form.TRACY_SUMS,
    Zones.EACH: Form.TRACY_EACH,
    Zones.OF_GPU: Form.TRACY_OF_GPU,
}

_NSIGHT: Final = {
    NsightTable.TRACE: Form.NSIGHT_TRACE,
    NsightTable.SUMS: Form.NSIGHT_SUMS,
    NsightTable.DETAILS: Form.NSIGHT_DETAILS,
    NsightTable.RAW: Form.NSIGHT_RAW,
}


class _Sample(enum.Enum):
    """What a line tells of a sample of perf's."""

    NONE = enum.auto()
    WITHOUT_FILE = enum.auto()
    WHOLE = enum.auto()


def _first_sample(text: str) -> _Sample:
    """What the first line that says anything tells of a sample, or the one below it, if it announces one."""
    lines = [line for line in text.split("\n") if line.strip() and not re.match(r"\s*#", line)]
    if not lines:
        return _Sample.NONE
    if re.search(r"\sPERF_RECORD_", lines[0]):
        return _Sample.WHOLE
    found = _told_by(lines[0])
    if found is _Sample.NONE and len(lines) > 1 and re.search(HEAD, lines[0]):
        return _told_by(lines[1])
    return found


_PLACE: Final = re.compile(r"(?:^|\s)[0-9a-f]{1,16} \S")
_BEHIND: Final = re.compile(r"\+0x[0-9a-f]{1,15}$")


def _told_by(line: str) -> _Sample:
    """Whether `perf_script.FRAME` matches a line, or would with a file; in a time that goes with the line's length."""
    line = line.rstrip()
    place = _PLACE.search(line)
    if place is None:
        return _Sample.NONE
    if line.endswith(")") and line.find(" (", place.end()) >= 0:
        return _Sample.WHOLE
    return _Sample.WITHOUT_FILE if _BEHIND.search(line, place.end()) else _Sample.NONE


def _json_form(text: str) -> Form | None:
    """Whose JSON it is; None: nobody's that is read."""
    line = text.partition("\n")[0]
    if _OF_GOOGLE_BENCHMARK.match(text):
        return Form.GOOGLE_BENCHMARK
    if '"record_type"' in line and '"schema_version"' in line:
        return Form.EXPORT
    if _OF_REPORT.match(line):
        return Form.REPORT
    return None


_OF_GOOGLE_BENCHMARK: Final = re.compile(r'\{\s*"(context|benchmarks)"\s*:')
_OF_REPORT: Final = re.compile(r'\{\s*"type"\s*:\s*"')
