"""Samples of the program counter, as the hook writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunInvalid
from tracemap.measurements.elapsed import Stops
from tracemap.measurements.hook.process import (
    FileHead,
    FileKind,
    HookExecutable,
    HookKernel,
    ProcessFile,
    count,
    known_executables,
    known_kernels,
    nothing_recorded,
    read_again,
    read_head,
    read_processes,
    read_records,
    what_is_lost,
)
from tracemap.units import plural

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# ---- stops
#
# When the program stopped its clock, as the hook saw it.
#
# iree-benchmark-module stops its clock after each call of the function, writes the profile, and lets the clock go on.
# Of an asynchronous function it calls a batch, and stops the clock before that too, while it makes the fences: its
# clock goes for a moment more between two batches. Each time it reads the CPU time of its process, which the hook
# notes. The file has the moments in order, the first of them when the clock began to go, and ends in zeros.


def read_stops(path: Path, begins_ns: npt.NDArray[Any], calls: int, pieces: int = 1) -> Stops | None:
    """The stops of a program; None where there are none, or they are not what they should be.

    Args:
        path: the hook's file; it need not be there.
        begins_ns: when each call, or batch of calls, began: each must lie in a piece of its own in which the clock
            went. None begins where nothing is done on a device.
        calls: how many there were, which must then be the pieces, but for the last, in which nothing is called.
        pieces: for each of them, in which the clock goes: 2 for an asynchronous function, which is called in the last.
    """
    import numpy as np

    if not path.is_file():
        return None
    with path.open("rb") as file:
        moments = np.fromfile(file, dtype=np.int64)
    moments = moments[: np.count_nonzero(moments)]
    places = np.searchsorted(moments, begins_ns, side="right")
    apart = 2 * pieces
    in_turn = bool(np.all(np.diff(moments) >= 0) and np.all(places % 2 == 1) and np.all(np.diff(places) == apart))
    if not in_turn or (not len(begins_ns) and len(moments) != apart * calls + 2):
        return None
    first = int(places[0]) - 1 if len(places) else apart - 2  # what is before it was not recorded
    going, stopped = moments[first::apart], moments[first + 1 :: apart]
    return Stops(going[: len(stopped)], stopped)


# ---- samples
#
# Samples of the program counter, as the hook wrote them, and where in which executable they lie.
#
# Each sampled thread leaves `hook-STAMP-N.samples` beside its process's file. All samples of a thread are there, also
# those outside of executables; a sample belongs to the executable that lay at its address at its time.


OUTSIDE: Final = -1
"""The executable of a sample that lies in none."""

SAMPLERS: Final = ("cycles", "cpu-clock", "timer")
"""What takes samples: the processor's counter of cycles, the kernel's clock of CPU time, or a timer's signal."""

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

    `samples` is a structured array: `ip` (address in memory), `time_ns` (CLOCK_MONOTONIC), `cpu`, `flags`. `sampler`
    is `cycles`, `cpu-clock` or `timer`. `header` has the numbers of the thread's file, as `tracemap/hook/layout.h`
    describes them: a sample is taken every `period` cycles, nanoseconds of CPU time, or nanoseconds inside calls;
    `cost_ns` is what one took of the thread's time (0: not known), `cpu_ns` the thread's CPU time.
    """

    tid: int
    sampler: str
    hz: int
    perf_error: str
    """Why the kernel's perf interface was not used; empty where it was."""
    header: Mapping[str, int]
    lost: int
    samples: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SampledExecutable:
    """An executable that a process loaded; `kernels` are names and offsets from the executable's base, by offset."""

    elf: str
    kernels: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class HookSamples:
    """The samples of all processes of a folder, by time.

    `taken` is a structured array: `process` (index into `processes`), `thread` (into `threads`), `tid`, `cpu`,
    `time_ns`, `executable` (index into `executables`, OUTSIDE for none), `address` (as an offset from the executable's
    base; 0 for none).
    """

    processes: tuple[str, ...]
    """Their stamps."""
    threads: tuple[SampledThread, ...]
    executables: tuple[SampledExecutable, ...]
    taken: npt.NDArray[Any]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def sampler(self) -> str:
        """What took the samples; several, where threads differ, with commas between."""
        return ", ".join(sorted({thread.sampler for thread in self.threads}))

    @property
    def overhead(self) -> float:
        """What part of the threads' CPU time the samples took."""
        cpu_ns = sum(thread.header["cpu_ns"] for thread in self.threads)
        return sum(len(t.samples) * t.header["cost_ns"] for t in self.threads) / cpu_ns if cpu_ns else 0.0


def read_samples(folder: Path) -> HookSamples:
    """Read the samples that the hook left in a folder.

    Raises:
        RunEmpty: there is no file of the hook, or no thread was sampled.
        RunInvalid: a file is damaged; the message names it.
        RunVersion: a file is of another format version.
    """
    import numpy as np

    files = read_processes(folder)
    sampled = {stamp: list(_threads(file)) for stamp, file in files.items()}
    told = read_again(folder, files)
    threads: list[SampledThread] = []
    executables: list[SampledExecutable] = []
    parts: list[npt.NDArray[Any]] = []
    for process, stamp in enumerate(files):
        known = list(known_executables(told[stamp], told).values())
        kernels: dict[int, list[HookKernel]] = {}
        for kernel in known_kernels(told[stamp], told).values():
            kernels.setdefault(kernel.executable.number, []).append(kernel)
        for thread in sampled[stamp]:
            parts.append(_taken(process, len(threads), thread, known, len(executables)))
            threads.append(thread)
        executables += [_sampled(executable, kernels.get(executable.number, [])) for executable in known]
    if not threads:
        text = f"{folder}: holds no samples of the hook: no thread called a workgroup, or none was asked for"
        raise nothing_recorded(text, files.values(), "samples")
    diagnostics = (*_diagnostics(threads), *what_is_lost(files.values(), "samples"))
    taken = np.concatenate(parts)
    taken = taken[np.lexsort((taken["thread"], taken["time_ns"]))]
    return HookSamples(tuple(files), tuple(threads), tuple(executables), taken, diagnostics)


def resolve(
    ip: npt.NDArray[np.uint64], time_ns: npt.NDArray[np.uint64], executables: Sequence[HookExecutable]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which executable was at an address at a time, and how far from its base the address lies.

    Args:
        ip: addresses in memory.
        time_ns: when, on CLOCK_MONOTONIC; of the same shape.
        executables: of one process. Where two claim an address at one time, the one that was loaded last has it: an
            executable is gone a moment before the hook can tell.

    Returns:
        Indices into `executables` (OUTSIDE: none) and offsets (0: none).
    """
    import numpy as np

    found = np.full(len(ip), OUTSIDE, dtype=np.int64)
    offset = np.zeros(len(ip), dtype=np.int64)
    by_address = np.argsort(ip, kind="stable")
    addresses = ip[by_address]
    for index in sorted(range(len(executables)), key=lambda index: executables[index].loaded_ns):
        executable = executables[index]
        ends = np.array([executable.base, executable.base + executable.size], dtype=np.uint64)
        low, high = np.searchsorted(addresses, ends)
        near = by_address[low:high]
        near = near[(time_ns[near] >= executable.loaded_ns) & (time_ns[near] <= executable.unloaded_ns)]
        found[near] = index
        offset[near] = (ip[near] - ends[0]).astype(np.int64)
    return found, offset


def _taken(
    process: int, number: int, thread: SampledThread, known: Sequence[HookExecutable], first: int
) -> npt.NDArray[Any]:
    import numpy as np

    samples = thread.samples
    executable, address = resolve(samples["ip"], samples["time_ns"], known)
    names = ("process", "thread", "tid", "cpu", "executable", "time_ns", "address")
    taken = np.zeros(len(samples), dtype=[(name, "<i8") for name in names])
    taken["process"], taken["thread"], taken["tid"] = process, number, thread.tid
    taken["cpu"], taken["time_ns"] = samples["cpu"], samples["time_ns"]
    taken["executable"] = np.where(executable == OUTSIDE, OUTSIDE, executable + first)
    taken["address"] = address
    return taken


def _sampled(executable: HookExecutable, kernels: Iterable[HookKernel]) -> SampledExecutable:
    own = [(kernel.name, kernel.address - executable.base) for kernel in kernels]
    return SampledExecutable(executable.elf, tuple(sorted(own, key=lambda kernel: (kernel[1], kernel[0]))))


# ---- a thread's file


def _threads(file: ProcessFile) -> Iterator[SampledThread]:
    for path in file.thread_files("samples"):
        head = read_head(path, SAMPLES_FILE)
        if head is not None:
            yield _thread(path, head)


def _thread(path: Path, head: FileHead) -> SampledThread:
    header, about = head.header, head.about
    samples = _samples(path, head)
    try:
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
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunInvalid(f"{path}: what it says of its thread is damaged: {error!r}") from error


def _samples(path: Path, head: FileHead) -> npt.NDArray[Any]:
    """All samples are whole but the last, whose end may be missing."""
    import numpy as np

    written = read_records(path, head)
    whole = (written["time_ns"] != 0) & (written["time_ns"] < 1 << 63)
    if not whole.all():
        raise RunInvalid(f"{path}: sample {int(np.argmin(whole))} of {len(written)} is damaged: it has no time")
    return written


def _diagnostics(threads: Sequence[SampledThread]) -> Iterator[Diagnostic]:
    lost = sum(thread.lost for thread in threads)
    if lost:
        text = f"{plural(lost, 'sample')} were lost: seconds went by without a call, or a file or the disk was full"
        yield Diagnostic("samples-lost", text)
    throttled = sum(thread.header["throttled"] for thread in threads)
    if throttled:
        text = f"the system stopped sampling {plural(throttled, 'time')} for a while: it was asked for too many samples"
        yield Diagnostic("samples-throttled", text)


# ---- growing
#
# The samples of a program that still runs, counted while the hook writes them: each of them is read once.


class GrowingSamples:
    """Counts the samples in executables that the hook has written into a folder by now."""

    def __init__(self, folder: Path) -> None:
        """Nothing needs to be there yet."""
        self.read = 0
        """How many samples were read so far, in executables and outside."""
        self._folder = folder
        self._heads: dict[Path, FileHead] = {}
        self._read_of: dict[Path, int] = {}
        self._times_ns: list[npt.NDArray[Any]] = []
        self._since_ns = self._count = 0

    def inside_since(self, begin_ns: int) -> int:
        """How many samples were taken in executables since a time. One that is asked for again costs what is new.

        Raises:
            RunEmpty: the hook has written nothing yet.
            RunInvalid: its files are made at this moment, or damaged.
        """
        new = self._read_on()
        if begin_ns != self._since_ns:
            self._since_ns, self._count, new = begin_ns, 0, self._times_ns
        self._count += sum(int((times >= begin_ns).sum()) for times in new)
        return self._count

    def _read_on(self) -> list[npt.NDArray[Any]]:
        """When the samples were taken, in executables, that were not read before."""
        files = read_processes(self._folder)
        found = []
        for process in files.values():
            known = list(known_executables(process, files).values())
            for path in process.thread_files("samples"):
                times = self._new_of(path, known)
                found.append(times)
        self._times_ns += found
        return found

    def _new_of(self, path: Path, known: Sequence[HookExecutable]) -> npt.NDArray[Any]:
        import numpy as np

        head = self._heads.get(path) or read_head(path, SAMPLES_FILE)
        if head is None:
            return np.zeros(0, dtype=np.uint64)
        self._heads[path] = head
        done = self._read_of.get(path, 0)
        records = read_records(path, head, skip=done)
        written = int(np.argmin(whole)) if not (whole := records["time_ns"] != 0).all() else len(records)
        self._read_of[path] = done + written
        self.read += written
        taken = records[:written]
        executable, _ = resolve(taken["ip"], taken["time_ns"], known)
        times: npt.NDArray[Any] = taken["time_ns"][executable != OUTSIDE]
        return times
