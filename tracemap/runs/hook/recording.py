"""Read the calls that the hook recorded.

A recording is a folder. Each process writes `hook-STAMP.jsonl` (itself, its executables and kernels), and each of its
threads `hook-STAMP-N.calls`, which describes its own layout (see `tracemap/hook/layout.h`). Files of a killed program
are read like others. Files may come from anywhere: a damaged one raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import QueryInvalid, RunInvalid
from tracemap.core.units import join_names, matching_names, plural, suggest_names
from tracemap.options.measure import StatsOptions
from tracemap.runs.hook.process import (
    FileHead,
    FileKind,
    HookKernel,
    ProcessFile,
    count,
    known_kernels,
    nothing_recorded,
    read_head,
    read_records,
    read_threads,
    refused_as_damaged,
    what_is_lost,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


NO_WORKGROUP: Final = 1
"""Flag of a record: the runtime's own hook made the call, without the workgroup."""
NOT_RUNNING: Final = 2
"""Flag of a record: the event counters did not run all the time."""
BEGUN: Final = 4
"""Flag of a record: the call began. It is written first, `start_ticks` last."""

_NO_MOMENTS: Final[Mapping[int, tuple[int, int]]] = MappingProxyType({})
_MOST_EVENTS = 64
KIND_OF_CALLS: Final = FileKind(
    b"TMAPHOOK",
    header_names=(
        *("count", "passed_over", "lost", "first_ticks", "first_ns", "last_ticks", "last_ns"),
        *("overhead_ticks", "empty_ticks", "record_bytes", "closed"),
    ),
    record_names=(
        *("start_ticks", "duration_ticks", "kernel", "workgroup_x", "workgroup_y", "workgroup_z"),
        *("workgroups_x", "workgroups_y", "workgroups_z", "cpu", "node", "flags"),
    ),
    newer_names=("dropped",),
)


@dataclass(frozen=True)
class HookThread:
    """The calls of one thread, in the order of their ends.

    `calls`: structured array with the fields of a record. `events`: matrix of calls by event names. `header`: numbers
    of the thread's file, see `tracemap/hook/layout.h`: `passed_over` calls were excluded by settings; an empty call has
    a duration of `empty_ticks`; the first `dropped` calls were overwritten by newer ones. `lost`: calls without space.
    """

    name: str
    pid: int
    tid: int
    event_names: tuple[str, ...]
    calls: npt.NDArray[Any]
    events: npt.NDArray[np.uint64]
    header: Mapping[str, int]
    lost: int
    running: int
    """Index of the kernel that ran when the program was killed; -1: none."""

    @property
    def overhead_ticks(self) -> int:
        """Time that the hook adds to each call, measured in this thread before its first call."""
        return self.header["overhead_ticks"]

    @property
    def dropped(self) -> int:
        """Number of the oldest calls that newer ones have overwritten."""
        return self.header["dropped"]


@dataclass(frozen=True)
class HookProcess:
    """A process: its kernels by number, its threads, and its tick rate."""

    stamp: str
    pid: int
    kernels: dict[int, HookKernel]
    threads: tuple[HookThread, ...]
    start: tuple[int, int]
    """One moment, as ticks and as nanoseconds of CLOCK_MONOTONIC."""
    ns_per_tick: float
    ended: bool
    """The program ended by itself; otherwise it was killed."""


@dataclass(frozen=True)
class HookRecording:
    """All processes of a folder, with diagnostics."""

    folder: Path
    processes: tuple[HookProcess, ...]
    event_names: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def call_count(self) -> int:
        """Number of recorded calls of workgroups."""
        return sum(len(thread.calls) for process in self.processes for thread in process.threads)


def read_recording(folder: Path, moments: Mapping[int, tuple[int, int]] = _NO_MOMENTS) -> HookRecording:
    """Read the hook's recording from a folder.

    Args:
        folder: the folder.
        moments: present moment, as ticks and nanoseconds, of each running process, by process id.

    Raises:
        RunEmpty: no file of the hook, or no call.
        RunInvalid: a file is damaged; the message names it.
        RunVersion: another format version.
    """
    files, threads, reread = read_threads(folder, "calls", _read_thread)
    processes = tuple(
        _process(folder, file, threads[stamp], known_kernels(reread[stamp], reread), moments)
        for stamp, file in files.items()
        if threads[stamp]
    )
    names = {thread.event_names for process in processes for thread in process.threads}
    if len(names) > 1:
        raise RunInvalid(f"{folder}: its files count different events; record each set into its own folder")
    if not any(len(thread.calls) for process in processes for thread in process.threads):
        raise nothing_recorded(f"{folder}: the hook recorded no call", files.values(), "calls")
    diagnostics = (*_diagnostics(processes), *what_is_lost(files.values(), "calls"))
    return HookRecording(folder, processes, names.pop(), diagnostics)


def kernels_named(recording: HookRecording, what: str) -> tuple[str, ...]:
    """The recorded kernels with this name, its beginning, or a glob that matches; all if the name is empty.

    Raises:
        QueryInvalid: no recorded kernel has this name; the message suggests others.
    """
    known = dict.fromkeys(kernel.name for process in recording.processes for kernel in process.kernels.values())
    kernels = tuple(matching_names(what, known)) if what else tuple(known)
    if what and not kernels:
        suggestion = suggest_names(what, known) or f"; the recording has {join_names(list(known)) or 'none'}"
        raise QueryInvalid(f"{recording.folder}: no call of a kernel named {what!r}{suggestion}")
    return kernels


def no_calls_error(path: Path, options: StatsOptions) -> QueryInvalid:
    """The error if the options leave no calls."""
    return QueryInvalid(f"{path}: no call is left" + (f" of a kernel named {options.kernel!r}" * bool(options.kernel)))


# ---- a process


def _process(
    folder: Path,
    file: ProcessFile,
    threads: Sequence[HookThread],
    kernels: dict[int, HookKernel],
    present: Mapping[int, tuple[int, int]],
) -> HookProcess:
    import numpy as np

    for thread in threads:
        unknown = [int(number) for number in np.unique(thread.calls["kernel"]) if int(number) not in kernels]
        if unknown:
            raise RunInvalid(
                f"{folder}: thread {thread.name!r} of process {thread.pid} called kernel {unknown[0]}, which the "
                "process's file does not name; a file is damaged, or the file of a parent process is missing"
            )
    headers = [thread.header for thread in threads]
    moments = [(header[f"{at}_ticks"], header[f"{at}_ns"]) for header in headers for at in ("first", "last")]
    # A running process has no end yet. Its own moments may be too close together for a precise rate.
    end = file.end or present.get(file.pid, ())
    moments += [file.start, *([end] if end else [])]
    (first_ticks, first_ns), (last_ticks, last_ns) = min(moments), max(moments)  # those that are farthest apart
    rate = 1.0 if last_ticks == first_ticks else (last_ns - first_ns) / (last_ticks - first_ticks)
    if not 1e-3 < rate < 1e3:
        raise RunInvalid(f"{file.path}: its clocks do not fit together: {rate:g} ns per tick")
    return HookProcess(file.stamp, file.pid, kernels, tuple(threads), file.start, rate, bool(file.end))


# ---- a thread's file


def _read_thread(path: Path) -> HookThread | None:
    """Read a thread's calls; None if the program was killed while it set up the file."""
    import numpy as np

    head = read_head(path, KIND_OF_CALLS)
    if head is None:
        return None
    about, header = _about(path, head), head.header
    events = about["event_names"]
    if header["dropped"] > header["count"]:
        raise RunInvalid(
            f"{path}: {header['dropped']} of its {header['count']} records are dropped, which is impossible"
        )
    written = read_records(path, head, [("events", "<u8", (len(events),))] if events else [], skip=header["dropped"])
    if not header["closed"] and (now := read_head(path, KIND_OF_CALLS)) is not None:
        # A running program may have dropped more records meanwhile.
        newly_dropped = max(0, now.header["dropped"] - header["dropped"])
        written, header = written[newly_dropped:], header | {"dropped": header["dropped"] + newly_dropped}
    known = max(0, header["count"] - header["dropped"])
    whole = written["start_ticks"] != 0
    complete = len(written) if whole.all() else int(np.argmin(whole))
    if complete < min(known, len(written)):
        raise RunInvalid(f"{path}: record {complete} of {known} is damaged: it has no start")
    in_flight = complete < len(written) and not header["closed"] and int(written["flags"][complete]) & BEGUN
    running = int(written["kernel"][complete]) if in_flight else -1
    calls = written[:complete]
    counted = calls["events"] if events else np.zeros((len(calls), 0), dtype=np.uint64)
    lost = header["lost"] + max(0, known - len(calls))
    return HookThread(**about, calls=calls, events=counted, header=header, lost=lost, running=running)


def _about(path: Path, head: FileHead) -> dict[str, Any]:
    about = head.about
    with refused_as_damaged(path):
        events = tuple(str(event["name"]) for event in about["events"])
        parsed = {"pid": count(about["pid"]), "tid": count(about["tid"]), "name": str(about["name"])}
    if len(events) > _MOST_EVENTS or len(set(events)) != len(events):
        raise RunInvalid(f"{path}: names {len(events)} events: too many, or duplicates")
    return {**parsed, "event_names": events}


def _diagnostics(processes: tuple[HookProcess, ...]) -> Iterator[Diagnostic]:
    # Processes that did not end by themselves: possibly intended, unless they were running a kernel.
    quiet = []
    for process in processes:
        running = sorted({process.kernels[t.running].name for t in process.threads if t.running in process.kernels})
        if running and not process.ended:
            text = f"process {process.pid} was killed while it ran {join_names(running)}"
            yield Diagnostic("program-killed", text)
        elif not process.ended:
            quiet.append(process.pid)
    if quiet:
        several = f"{plural(len(quiet), 'process', 'processes')} (the first is {quiet[0]})"
        first = f"process {quiet[0]}" if len(quiet) == 1 else several
        why = "killed, ended by _exit or exec as workers of multiprocessing are, or still running"
        yield Diagnostic("program-killed", f"{first} did not end normally: {why}")
    for process in processes:
        lost = sum(thread.lost for thread in process.threads)
        if lost:
            text = f"process {process.pid}: {plural(lost, 'call')} were not recorded: a file or the disk was full"
            yield Diagnostic("calls-lost", text)
        dropped = sum(thread.dropped for thread in process.threads)
        if dropped:
            text = f"process {process.pid}: only the newest calls are kept; {plural(dropped, 'older one')} were dropped"
            yield Diagnostic("calls-dropped", text)
        stopped = sum(int((thread.calls["flags"] & NOT_RUNNING != 0).sum()) for thread in process.threads)
        if stopped:
            text = (
                f"process {process.pid}: in {plural(stopped, 'call')} the counters did not run all the time: more "
                "events than hardware counters; counts are too small. Record fewer events at a time"
            )
            yield Diagnostic("events-multiplexed", text)


# ---- times


def start_ns(process: HookProcess, calls: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Start times of calls, on CLOCK_MONOTONIC."""
    return process.start[1] + _ns(calls["start_ticks"].astype("<i8") - process.start[0], process)


def duration_ns(process: HookProcess, calls: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Durations of calls."""
    return _ns(calls["duration_ticks"].astype("<i8"), process)


def _ns(ticks: npt.NDArray[np.int64], process: HookProcess) -> npt.NDArray[np.int64]:
    import numpy as np

    rounded: npt.NDArray[np.int64] = np.rint(ticks * process.ns_per_tick).astype(np.int64)
    return rounded
