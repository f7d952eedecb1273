"""Read the files of the CUDA library: a process's facts and its records of activity, with times of the host's clock.

The process's file `cuda-STAMP.jsonl` has a fact per line. The files `cuda-STAMP-N.activity` have the records, in the
format of `tracemap/hook/cuda/layout.h`. Times are converted from CUPTI's clock to CLOCK_MONOTONIC by the moments among
the records, which hold both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.errors import RunEmpty, RunInvalid
from tracemap.core.files import read_stored_file
from tracemap.core.units import UNKNOWN, Integer
from tracemap.runs.hook.process import FileKind, read_head, read_lines, read_records, refused_as_damaged
from tracemap.runs.model import Peaks, UnitPeak

if TYPE_CHECKING:
    import numpy.typing as npt

ACTIVITY_FILE: Final = FileKind(
    b"TMAPCUDA",
    header_names=("part", "record_bytes"),
    record_names=(
        *("start_ns", "end_ns", "bytes", "graph_node", "kind", "detail", "name", "correlation", "device", "context"),
        *("stream", "thread", "graph", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers"),
        *("static_shared", "dynamic_shared"),
    ),
)
KERNEL, COPY, FILL, MIGRATION, CALL, OVERHEAD, MOMENT, DROPPED, COUNT = KINDS = range(1, 10)
"""Kinds of records, as in `enum recorded` of the library."""
_PROCESS_NAME: Final = re.compile(r"cuda-([0-9]+-[0-9a-f]+)\.jsonl")
_MOST_NS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A device as CUPTI describes it. `bandwidth` is the memory's, in bytes per second; `is_part`: a part by MIG."""

    id: int
    name: str
    bytes_per_second: int
    memory_bytes: int
    l2_bytes: int
    clock_hz: int
    multiprocessors: int
    capability: tuple[int, int]
    is_part: bool

    @property
    def peaks(self) -> Peaks | None:
        """Peak speeds in single precision without tensor cores, then in other types; None: unknown architecture.

        >>> peaks = CudaDevice(0, "H100", 3_352_320_000_000, 0, 0, 1_980_000_000, 132, (9, 0), False).peaks
        >>> peaks.operations_per_second, peaks.bytes_per_second, peaks.source
        (66908160000000, 3352320000000, 'specified')
        >>> [(unit.name, unit.operations_per_second // 10**12) for unit in peaks.units]
        [('f16', 133), ('tensor tf32', 535), ('tensor f16', 1070)]
        """
        clocks = self.multiprocessors * self.clock_hz
        lanes = _SINGLE_LANES.get(self.capability, _SINGLE_LANES.get((self.capability[0], -1), 0))
        operations = 2 * lanes * clocks
        if not operations or not self.bytes_per_second:
            return None
        others = ((name, own) for name, own in zip(_UNITS, _OTHER_LANES.get(self.capability, ()), strict=False) if own)
        units = tuple(UnitPeak(name, 2 * own * clocks) for name, own in others)
        return Peaks(operations, self.bytes_per_second, "specified", units=units)


_SINGLE_LANES: Final = {
    **{(6, 0): 64, (7, -1): 64, (8, 0): 64},
    **dict.fromkeys([(6, -1), (8, -1), (9, -1), (10, -1), (11, -1), (12, -1)], 128),
}
"""Multiply-adds in single precision per clock and multiprocessor, by compute capability (-1: any other minor number).

Source: the table "Throughput of Native Arithmetic Instructions" in NVIDIA's CUDA C++ Programming Guide.
"""


_UNITS: Final = ("f16", "tensor tf32", "tensor f16")
_OTHER_LANES: Final = {
    (7, 0): (128, 0, 512),
    (7, 5): (128, 0, 512),
    (8, 0): (256, 512, 1024),
    (8, 6): (128, 256, 512),
    (8, 9): (128, 256, 512),
    (9, 0): (256, 1024, 2048),
}
"""Multiply-adds per clock and multiprocessor by `_UNITS`, by compute capability; dense, 0: not there.

Source: NVIDIA's architecture whitepapers of V100, Turing, A100, GA102, Ada and H100. GeForce cards of 7.5, 8.6 and 8.9
reach half of it on tensor cores if they add in single precision. Newer architectures are left out until tried.
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the library recorded nothing: a slug and a sentence."""

    slug: str
    text: str


@dataclass
class CudaProcess:
    """A recorded process: its facts, and its records in the order in which they were written.

    `cupti`: the version that `cuptiGetVersion` tells. `driver`: the driver's CUDA version, such as 13000. `ended`: it
    wrote its last records. `skipped_ns`: time at the beginning whose work was left out. `left_out`: records beyond the
    size limit. `losses`: what was not recorded, and why. `written`: records in all its files, also removed ones.
    """

    path: Path
    stamp: str
    pid: int
    skipped_ns: int = 0
    cupti: Integer = UNKNOWN
    driver: Integer = UNKNOWN
    refusal: Refusal | None = None
    ended: bool = False
    left_out: int = 0
    written: Integer = UNKNOWN
    names: dict[int, str] = field(default_factory=dict)
    devices: dict[int, CudaDevice] = field(default_factory=dict)
    losses: list[tuple[str, str]] = field(default_factory=list)

    def activity_files(self) -> list[Path]:
        """The files with its records, in the order in which they were written."""
        paths = self.path.parent.glob(f"cuda-{self.stamp}-*.activity")
        numbered = [(path.stem.rpartition("-")[2], path) for path in paths]
        return [path for _, path in sorted((int(text), path) for text, path in numbered if text.isdecimal())]

    @property
    def begins_late(self) -> bool:
        """Whether the work at the beginning is missing: it was skipped, or its file gave way to newer ones."""
        first = next((path.stem.rpartition("-")[2] for path in self.activity_files()), "0")
        return self.skipped_ns > 0 or int(first) > 0


def is_process_file(path: Path) -> bool:
    """Whether the name is that of a process's file."""
    return _PROCESS_NAME.fullmatch(path.name) is not None


def process_files(folder: Path) -> list[Path]:
    """The processes' files of a folder, sorted by name."""
    return sorted(path for path in folder.glob("cuda-*.jsonl") if is_process_file(path))


def read_process(path: Path) -> CudaProcess:
    """Read the facts of a process; an incomplete last line is ignored.

    Raises:
        RunEmpty: the program was killed before it wrote anything.
        RunInvalid: the file is damaged or was renamed.
        RunVersion: another format version.
    """
    match = _PROCESS_NAME.fullmatch(path.name)
    if match is None:
        raise RunInvalid(f"{path}: is no recording of the CUDA library, whose names are cuda-PID-STAMP.jsonl")
    process = CudaProcess(path, match[1], 0)
    lines = read_stored_file(path, RunInvalid).split(b"\n")[:-1]
    if not lines:
        raise RunEmpty(f"{path}: the program was killed before anything was recorded")
    read_lines(path, lines, partial(_add_fact, process))
    return process


def _add_fact(process: CudaProcess, line: dict[str, Any]) -> None:
    """Add the fact of a line; lines of unknown kinds are ignored."""
    match line["kind"]:
        case "process":
            process.pid = _whole(line["pid"])
            if line["stamp"] != process.stamp:
                raise ValueError("it was renamed")
        case "cupti":
            process.cupti, process.driver = _whole(line["version"]), _whole(line["driver"])
            process.skipped_ns = _whole(line["skipped_ns"])
        case "kernel":
            process.names[_whole(line["id"])] = str(line["name"])
        case "refused":
            process.refusal = Refusal(str(line["slug"]), str(line["text"]))
        case "lost":
            process.losses.append((str(line["what"]), str(line["why"])))
        case "end":
            process.ended, process.left_out = True, _whole(line["left_out"])
            process.written = _whole(line["records"]) if "records" in line else UNKNOWN
        case "device":
            process.devices[_whole(line["id"])] = CudaDevice(
                id=_whole(line["id"]),
                name=str(line["name"]),
                bytes_per_second=1000 * _whole(line["bandwidth_kb_s"]),
                memory_bytes=_whole(line["memory_bytes"]),
                l2_bytes=_whole(line["l2_bytes"]),
                clock_hz=1000 * _whole(line["clock_khz"]),
                multiprocessors=_whole(line["multiprocessors"]),
                capability=(_whole(line["major"]), _whole(line["minor"])),
                is_part=bool(line["mig"]),
            )


def _whole(value: object) -> int:
    """A number of a line.

    Raises:
        ValueError: it is no integer, negative, or too large for a run.
    """
    if type(value) is not int or not 0 <= value <= _MOST_NS:
        raise ValueError(f"{value!r} is no possible number")
    return value


@dataclass(frozen=True)
class Activity:
    """The records of a process by kind, with times in ns of CLOCK_MONOTONIC.

    `calls`: the driver's calls. `work`: kernels, copies, fills and migrations. `dropped`: records that CUPTI lost.
    `unfinished`: work without times, since it had not ended when the program did; it is not in `work`. `width_ns`:
    uncertainty of the conversion between the clocks; UNKNOWN without a moment, so that times are CUPTI's.
    """

    work: npt.NDArray[Any]
    calls: npt.NDArray[Any]
    dropped: int
    unfinished: int
    width_ns: Integer


def read_activity(process: CudaProcess) -> Activity:
    """Read the records of a process, as far as they were written.

    Raises:
        RunInvalid: a file is damaged.
        RunVersion: another format version.
    """
    import numpy as np

    records = _records(process)
    if not len(records):
        return Activity(records, records, 0, 0, UNKNOWN)
    for name in ("start_ns", "end_ns", "bytes"):
        if len(records) and int(records[name].max()) > _MOST_NS and not _only_moments(records, name):
            raise RunInvalid(f"{process.path}: a record's {name} is out of range")
    moments = records[records["kind"] == MOMENT]
    is_work = np.isin(records["kind"], (KERNEL, COPY, FILL, MIGRATION))
    has_times = (records["start_ns"] > 0) & (records["end_ns"] >= records["start_ns"])
    work, calls = records[is_work & has_times], records[(records["kind"] == CALL) & has_times]
    unknown = set(np.unique(work["name"][work["kind"] == KERNEL]).tolist()) - process.names.keys()
    if unknown:
        raise RunInvalid(f"{process.path}: does not name kernel {min(unknown)}, which its records have")
    return Activity(
        work=_on_host_clock(work, moments),
        calls=_on_host_clock(calls, moments),
        dropped=sum(records["bytes"][records["kind"] == DROPPED].tolist()),
        unfinished=int(np.count_nonzero(is_work & ~has_times)),
        width_ns=int(moments["bytes"].max()) if len(moments) else UNKNOWN,
    )


def _records(process: CudaProcess) -> npt.NDArray[Any]:
    """All records of a process, as far as they were written.

    Raises:
        RunInvalid: records are missing, or a record has an unknown kind: a file is damaged.
    """
    import numpy as np

    parts: list[npt.NDArray[Any]] = []
    before: Integer = UNKNOWN
    for path in process.activity_files():
        if (head := read_head(path, ACTIVITY_FILE)) is None:
            continue
        with refused_as_damaged(path, "its number of earlier records"):
            earlier = _whole(head.about["earlier"]) if "earlier" in head.about else UNKNOWN
        if parts:
            _check_number(process, before, earlier)
        parts.append(read_records(path, head))
        before = UNKNOWN if earlier is UNKNOWN else earlier + len(parts[-1])
    _check_number(process, before if parts else 0, process.written)
    if not parts:
        return np.zeros(0, [(name, "<u8") for name in ACTIVITY_FILE.record_names])
    records = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if unknown := sorted(set(np.unique(records["kind"]).tolist()) - set(KINDS)):
        raise RunInvalid(f"{process.path}: a record has kind {unknown[0]}, which is unknown: a file is damaged")
    return records


def _check_number(process: CudaProcess, found: Integer, expected: Integer) -> None:
    """Raise RunInvalid if records are missing, or there are too many."""
    if found is UNKNOWN or expected is UNKNOWN or found == expected:
        return
    raise RunInvalid(
        f"{process.path}: its files have {found:,} records of {expected:,}: one was cut off, damaged or not copied; "
        "copy the whole folder again"
    )


@dataclass(frozen=True, slots=True)
class LaunchCount:
    """A count of a launch: the launch's number in the process, its kernel, and the metric's number."""

    launch: int
    kernel: str
    metric: int
    count: int


def read_counts(process: CudaProcess) -> list[LaunchCount]:
    """The counts of a process that counted its launches, in their order.

    Raises:
        RunInvalid: a file is damaged.
        RunVersion: another format version.
    """
    import numpy as np

    records = _records(process)
    counts = records[records["kind"] == COUNT]
    counts = counts[np.lexsort((counts["detail"], counts["correlation"]))]
    columns = (counts[name].tolist() for name in ("correlation", "name", "detail", "bytes"))
    rows = list(zip(*columns, strict=True))
    if unknown := {name for _, name, _, _ in rows} - process.names.keys():
        raise RunInvalid(f"{process.path}: does not name kernel {min(unknown)}, which its records have")
    return [LaunchCount(launch, process.names[name], metric, count) for launch, name, metric, count in rows]


def _only_moments(records: npt.NDArray[Any], name: str) -> bool:
    """Whether values that are too large belong to moments only, of which a width may be unknown."""
    import numpy as np

    return name == "bytes" and bool(np.all(records["kind"][records[name] > _MOST_NS] == MOMENT))


def _on_host_clock(records: npt.NDArray[Any], moments: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The records with times of CLOCK_MONOTONIC: the offset is interpolated between the moments."""
    import numpy as np

    if not len(moments) or not len(records):
        return records
    moments = moments[np.argsort(moments["start_ns"], kind="stable")]
    at = moments["start_ns"].astype(np.int64)
    offsets = moments["end_ns"].astype(np.int64) - at
    times = records["start_ns"].astype(np.int64)
    # Relative to the first moment, since such large integers are not exact as floating-point numbers.
    since, change = (times - at[0]).astype(float), (offsets - offsets[0]).astype(float)
    change = np.interp(since, (at - at[0]).astype(float), change)
    converted = records.copy()
    converted["start_ns"] = np.maximum(0, times + offsets[0] + np.rint(change).astype(np.int64))
    converted["end_ns"] = converted["start_ns"] + (records["end_ns"] - records["start_ns"])  # as the device measured it
    return converted


def only_process(folder: Path, paths: Sequence[Path]) -> Path:
    """The only process's file of a folder.

    Raises:
        RunInvalid: there are several; the message names some.
    """
    if len(paths) == 1:
        return paths[0]
    names = ", ".join(path.name for path in paths[:3]) + (" …" if len(paths) > 3 else "")
    raise RunInvalid(f"{folder}: has recordings of {len(paths)} processes ({names}); name one of these files")
