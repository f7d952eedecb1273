"""Read the hook's samples of the program counter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunInvalid
from tracemap.core.units import plural
from tracemap.runs.elapsed import ClockStops
from tracemap.runs.hook.process import (
    FileHead,
    FileKind,
    HookExecutable,
    HookKernel,
    count,
    known_executables,
    known_kernels,
    nothing_recorded,
    read_head,
    read_processes,
    read_records,
    read_threads,
    refused_as_damaged,
    what_is_lost,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# ---- stops
#
# Times at which the program stopped its clock, as logged by the hook.
#
# iree-benchmark-module stops its clock after each invocation, writes the profile, and starts the clock again. It runs
# an asynchronous function in batches. It also stops the clock before a batch, to create HAL fences, so the clock runs
# for one more moment between two batches. At each stop and start the program reads the CPU time of its process, which
# the hook logs. The file has the moments in order, beginning with a start, and ends in zeros.


def read_stops(path: Path, begins_ns: npt.NDArray[Any], calls: int, pieces: int = 1) -> ClockStops | None:
    """The stops of a program; None if there are none, or they do not match its calls.

    Args:
        path: the hook's file; it may be missing.
        begins_ns: begin of each call or batch; each must lie in its own interval of a running clock. Empty if nothing
            runs on a device.
        calls: number of calls. If `begins_ns` is empty, it must match the intervals, except for the last, empty one.
        pieces: intervals per call: 2 for an asynchronous function, which is called in the second.
    """
    import numpy as np

    if not path.is_file():
        return None
    with path.open("rb") as file:
        moments = np.fromfile(file, dtype=np.int64)
    moments = moments[: np.count_nonzero(moments)]
    places = np.searchsorted(moments, begins_ns, side="right")
    stride = 2 * pieces
    is_in_order = bool(np.all(np.diff(moments) >= 0) and np.all(places % 2 == 1) and np.all(np.diff(places) == stride))
    if not is_in_order or (not len(begins_ns) and len(moments) != stride * calls + 2):
        return None
    first = int(places[0]) - 1 if len(places) else stride - 2  # earlier moments belong to no recorded call
    going, stopped = moments[first::stride], moments[first + 1 :: stride]
    return ClockStops(going[: len(stopped)], stopped)


# ---- samples
#
# Samples of the program counter, and the executables that they lie in.
#
# Each sampled thread writes `hook-STAMP-N.samples` next to its process's file. The file has all samples, also those
# outside of executables. A sample belongs to the executable that was loaded at its address at its time.


OUTSIDE: Final = -1
"""Executable index of a sample outside of all executables."""

SAMPLERS: Final = ("cycles", "cpu-clock", "timer")
"""Sources of samples: the CPU's cycle counter, the kernel's CPU-time clock, or a timer signal."""

SAMPLES_FILE: Final = FileKind(
    b"TMAPSAMP",
    header_names=(
        *("count", "lost", "outside", "throttled", "period", "cost_ns", "first_ns", "last_ns", "cpu_ns"),
        *("record_bytes", "closed"),
    ),
    record_names=("ip", "time_ns", "cpu", "flags"),
)


@dataclass(frozen=True)
class SampledThread:
    """One thread's samples by time, and how they were taken.

    `samples`: structured array of `ip` (address in memory), `time_ns` (CLOCK_MONOTONIC), `cpu`, `flags`. `sampler`:
    `cycles`, `cpu-clock` or `timer`. `header`: numbers of the thread's file, see `tracemap/hook/layout.h`. A sample is
    taken every `period` cycles, nanoseconds of CPU time, or nanoseconds inside calls; a sample costs `cost_ns` of the
    thread's time (0: unknown); `cpu_ns` is the thread's CPU time.
    """

    tid: int
    sampler: str
    hz: int
    perf_error: str
    """Why perf_event_open was not used; empty if it was."""
    header: Mapping[str, int]
    lost: int
    samples: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SampledExecutable:
    """A loaded executable; `kernels`: names and offsets from the executable's base, by offset."""

    elf: str
    kernels: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class HookSamples:
    """The samples of all processes in a folder, by time.

    `located`: structured array of `process` (index into `processes`), `thread` (into `threads`), `tid`, `cpu`,
    `time_ns`, `executable` (index into `executables`, OUTSIDE for none), `address` (offset from the executable's base;
    0 for none).
    """

    processes: tuple[str, ...]
    """Their stamps."""
    threads: tuple[SampledThread, ...]
    executables: tuple[SampledExecutable, ...]
    located: npt.NDArray[Any]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def sampler(self) -> str:
        """The source of the samples; comma-separated if threads differ."""
        return ", ".join(sorted({thread.sampler for thread in self.threads}))

    @property
    def overhead(self) -> float:
        """Part of the threads' CPU time that sampling took."""
        cpu_ns = sum(thread.header["cpu_ns"] for thread in self.threads)
        return sum(len(t.samples) * t.header["cost_ns"] for t in self.threads) / cpu_ns if cpu_ns else 0.0


def read_samples(folder: Path) -> HookSamples:
    """Read the hook's samples from a folder.

    Raises:
        RunEmpty: no file of the hook, or no thread was sampled.
        RunInvalid: a file is damaged; the message names it.
        RunVersion: another format version.
    """
    import numpy as np

    files, sampled, reread = read_threads(folder, "samples", _read_thread)
    threads: list[SampledThread] = []
    executables: list[SampledExecutable] = []
    parts: list[npt.NDArray[Any]] = []
    for process, stamp in enumerate(files):
        known = list(known_executables(reread[stamp], reread).values())
        kernels: dict[int, list[HookKernel]] = {}
        for kernel in known_kernels(reread[stamp], reread).values():
            kernels.setdefault(kernel.executable.number, []).append(kernel)
        for thread in sampled[stamp]:
            parts.append(_located_samples(process, len(threads), thread, known, len(executables)))
            threads.append(thread)
        for executable in known:
            own = [(kernel.name, kernel.address - executable.base) for kernel in kernels.get(executable.number, ())]
            executables.append(SampledExecutable(executable.elf, tuple(sorted(own, key=itemgetter(1, 0)))))
    if not threads:
        text = f"{folder}: has no samples of the hook: no thread called a workgroup, or sampling was off"
        raise nothing_recorded(text, files.values(), "samples")
    diagnostics = (*_diagnostics(threads), *what_is_lost(files.values(), "samples"))
    located = np.concatenate(parts)
    located = located[np.lexsort((located["thread"], located["time_ns"]))]
    return HookSamples(tuple(files), tuple(threads), tuple(executables), located, diagnostics)


def resolve(
    ip: npt.NDArray[np.uint64], time_ns: npt.NDArray[np.uint64], executables: Sequence[HookExecutable]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find the executable at each address and time, and the offset from its base.

    Args:
        ip: addresses in memory.
        time_ns: times on CLOCK_MONOTONIC, of the same shape.
        executables: executables of one process. If two overlap in address and time, the one loaded last wins: an
            executable disappears a moment before the hook logs it.

    Returns:
        Indices into `executables` (OUTSIDE: none) and offsets (0: none).
    """
    import numpy as np

    executable_of = np.full(len(ip), OUTSIDE, dtype=np.int64)
    offset = np.zeros(len(ip), dtype=np.int64)
    by_address = np.argsort(ip, kind="stable")
    addresses = ip[by_address]
    for index in sorted(range(len(executables)), key=lambda index: executables[index].loaded_ns):
        executable = executables[index]
        ends = np.array([executable.base, executable.base + executable.size], dtype=np.uint64)
        low, high = np.searchsorted(addresses, ends)
        candidates = by_address[low:high]
        candidates = candidates[
            (time_ns[candidates] >= executable.loaded_ns) & (time_ns[candidates] <= executable.unloaded_ns)
        ]
        executable_of[candidates] = index
        offset[candidates] = (ip[candidates] - ends[0]).astype(np.int64)
    return executable_of, offset


def _located_samples(
    process: int, number: int, thread: SampledThread, known: Sequence[HookExecutable], first: int
) -> npt.NDArray[Any]:
    import numpy as np

    samples = thread.samples
    executable, address = resolve(samples["ip"], samples["time_ns"], known)
    names = ("process", "thread", "tid", "cpu", "executable", "time_ns", "address")
    located = np.zeros(len(samples), dtype=[(name, "<i8") for name in names])
    located["process"], located["thread"], located["tid"] = process, number, thread.tid
    located["cpu"], located["time_ns"] = samples["cpu"], samples["time_ns"]
    located["executable"] = np.where(executable == OUTSIDE, OUTSIDE, executable + first)
    located["address"] = address
    return located


# ---- a thread's file


def _read_thread(path: Path) -> SampledThread | None:
    """Read all complete samples, the last one may be cut off; None as for `read_head`."""
    import numpy as np

    head = read_head(path, SAMPLES_FILE)
    if head is None:
        return None
    header, about, samples = head.header, head.about, read_records(path, head)
    whole = (samples["time_ns"] != 0) & (samples["time_ns"] < 1 << 63)
    if not whole.all():
        raise RunInvalid(f"{path}: sample {int(np.argmin(whole))} of {len(samples)} is damaged: it has no time")
    with refused_as_damaged(path):
        if about["sampler"] not in SAMPLERS:
            raise ValueError(f"{about['sampler']!r} is no sampler")
        return SampledThread(
            tid=count(about["tid"]),
            sampler=about["sampler"],
            hz=count(about["hz"]),
            perf_error=str(about["perf_error"]),
            header=header,
            lost=header["lost"] + max(0, header["count"] - len(samples)),
            samples=samples,
        )


def _diagnostics(threads: Sequence[SampledThread]) -> Iterator[Diagnostic]:
    lost = sum(thread.lost for thread in threads)
    if lost:
        text = f"{plural(lost, 'sample')} were lost: no call for seconds, or a file or the disk was full"
        yield Diagnostic("samples-lost", text)
    throttled = sum(thread.header["throttled"] for thread in threads)
    if throttled:
        text = f"the system throttled sampling {plural(throttled, 'time')}: the rate is too high. Use a lower rate"
        yield Diagnostic("samples-throttled", text)


# ---- growing
#
# Count samples of a running program while the hook writes them; each sample is read once.


class GrowingSamples:
    """Counts the samples in executables that the hook has written so far."""

    def __init__(self, folder: Path) -> None:
        """The folder may still be empty."""
        self.read = 0
        """Number of samples read so far, in executables and outside."""
        self._folder = folder
        self._heads: dict[Path, FileHead] = {}
        self._read_of: dict[Path, int] = {}
        self._times_ns: list[npt.NDArray[Any]] = []
        self._since_ns = self._count = 0

    def inside_since(self, begin_ns: int) -> int:
        """Number of samples in executables since a time. Repeated calls with the same time read only new samples.

        Raises:
            RunEmpty: the hook has written nothing yet.
            RunInvalid: its files are just being written, or damaged.
        """
        files, new = read_processes(self._folder), []
        for process in files.values():
            known = list(known_executables(process, files).values())
            new += [self._new_times(path, known) for path in process.thread_files("samples")]
        self._times_ns += new
        if begin_ns != self._since_ns:
            self._since_ns, self._count, new = begin_ns, 0, self._times_ns
        self._count += sum(int((times >= begin_ns).sum()) for times in new)
        return self._count

    def _new_times(self, path: Path, known: Sequence[HookExecutable]) -> npt.NDArray[Any]:
        """Times of the samples in executables that were not read before."""
        import numpy as np

        head = self._heads.get(path) or read_head(path, SAMPLES_FILE)
        if head is None:
            return np.zeros(0, dtype=np.uint64)
        self._heads[path] = head
        done = self._read_of.get(path, 0)
        records = read_records(path, head, skip=done)
        whole = records["time_ns"] != 0
        samples = records if whole.all() else records[: int(np.argmin(whole))]
        self._read_of[path] = done + len(samples)
        self.read += len(samples)
        executable, _ = resolve(samples["ip"], samples["time_ns"], known)
        times: npt.NDArray[Any] = samples["time_ns"][executable != OUTSIDE]
        return times
