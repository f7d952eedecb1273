"""Whose file a run is, told by its first bytes: names tell nothing, as files of others are renamed and piped."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Final

from tracemap.errors import RunInvalid
from tracemap.inputs import opened
from tracemap.measurements.columns import kernel_name
from tracemap.measurements.foreign.hook_csv import FIXED
from tracemap.measurements.foreign.perf_script import FRAME, FRAME_WITHOUT_FILE, HEAD
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


_MARKS: Final = {b"IRPF": Form.PROFILE}
_REFUSED: Final = {
    b"PERFILE2": "is a recording of perf: print it first, with `perf script`",
    b"tr\xfdP": "is a capture of Tracy: print it first, with `tracy-csvexport`",
}
"""What others begin with that is read only after a tool of theirs has printed it."""


def form_of(path: Path) -> Form:
    """What a file is.

    Raises:
        RunInvalid: it cannot be read, or is of a form that is known and not read; the message says what helps.
    """
    with opened(path, RunInvalid) as file:
        head = file.read(_HEAD_BYTES)
    for mark, form in _MARKS.items():
        if head.startswith(mark):
            return form
    for mark, what in _REFUSED.items():
        if head.startswith(mark):
            raise RunInvalid(f"{path}: {what}")
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    return _json_form(path, text) if text.startswith(("{", "[")) else _form_of_lines(path, text)


def _form_of_lines(path: Path, text: str) -> Form:
    first = text.partition("\n")[0].rstrip("\r").lower()
    names = [name.strip(' "') for name in re.split("[,;\t]", first)]
    if names[: len(FIXED)] == list(FIXED) and not kernel_name(names):
        return Form.HOOK_CSV
    if _has_samples(text, FRAME):
        return Form.PERF_SCRIPT
    if _has_samples(text, FRAME_WITHOUT_FILE):
        raise RunInvalid(
            f"{path}: has samples of perf that do not say which file's code they lie in; print them with "
            "`perf script -F +dso`"
        )
    zones = zones_of(names)
    return Form.TABLE if zones is None else _ZONES[zones]


_ZONES: Final = {
    Zones.SUMS: Form.TRACY_SUMS,
    Zones.EACH: Form.TRACY_EACH,
    Zones.OF_GPU: Form.TRACY_OF_GPU,
}


def _has_samples(text: str, frame: str) -> bool:
    """Whether the first line that says anything is a sample, or tells of one that is printed below it."""
    lines = [line for line in text.split("\n") if line.strip() and not re.match(r"\s*#", line)]
    if not lines:
        return False
    if re.search(r"\sPERF_RECORD_", lines[0]) or re.match(frame, lines[0]):
        return True
    return len(lines) > 1 and re.search(HEAD, lines[0]) is not None and re.match(frame, lines[1]) is not None


def _json_form(path: Path, text: str) -> Form:
    line = text.partition("\n")[0]
    if _OF_GOOGLE_BENCHMARK.match(text):
        return Form.GOOGLE_BENCHMARK
    if '"record_type"' in line and '"schema_version"' in line:
        return Form.EXPORT
    if _OF_REPORT.match(line):
        return Form.REPORT
    raise RunInvalid(
        f"{path}: is JSON, but none that is read as a run: that of iree-profile (a record in each line, "
        "--format=ireeperf-jsonl or jsonl) and of Google Benchmark is"
    )


_OF_GOOGLE_BENCHMARK: Final = re.compile(r'\{\s*"(context|benchmarks)"\s*:')
_OF_REPORT: Final = re.compile(r'\{\s*"type"\s*:\s*"')
