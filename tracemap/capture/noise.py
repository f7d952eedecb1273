"""Noise of the machine while a run was recorded, and the niceness that keeps other programs away."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from msgspec import structs

from tracemap.capture.stopping_rule import Goal, StoppingState, StopReason
from tracemap.core.diagnostics import NOISY, Diagnostic
from tracemap.core.errors import RunEmpty, RunInvalid, UsageInvalid
from tracemap.core.process.children import end, paused_ns, start
from tracemap.core.toolchain import Progress
from tracemap.core.units import UNKNOWN, Integer, Unknown, format_count, format_ns, format_share, sum_of
from tracemap.options.measure import LEAST_NICENESS
from tracemap.runs.hook.samples import GrowingSamples
from tracemap.runs.model import UNKNOWN_NOISE, Noise

# ---- niceness
#
# Niceness of the measured program: ahead of other programs, if the system allows it.
#
# Next to other programs, waiting for a CPU is not the only cost. Kernels that depend on caches are slower in all of
# their calls, which no statistic over the calls reveals.


AHEAD: Final = LEAST_NICENESS
"""At -20 a program gets 87 times as much CPU time as one at niceness 0 (kernel/sched/core.c, sched_prio_to_weight). At
-10 it gets nine times as much; there, shares of ops changed by up to twice as much next to others."""
_LEASH: Final = Path(__file__).with_name("exec_with_parent.py")


def own_niceness() -> int:
    """Niceness of this process."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def niceness_to_run_at(requested: Integer) -> Integer:
    """The requested niceness, else ahead of others if the system allows it; UNKNOWN: our own.

    If we were started at a niceness other than 0, that choice is kept.

    Raises:
        UsageInvalid: the system does not let this user run programs at the requested niceness.
    """
    if requested is UNKNOWN:
        return AHEAD if own_niceness() == 0 and may_run_at(AHEAD) else UNKNOWN
    if not may_run_at(requested):
        raise UsageInvalid(
            f"--nice {requested}: this user may not run programs at that niceness. It takes root, the capability "
            "CAP_SYS_NICE, or the limits RLIMIT_NICE and RLIMIT_RTPRIO. Drop --nice, or use a higher number"
        )
    return requested


def may_run_at(niceness: int) -> bool:
    """Whether this user may run programs at a niceness and watch them; tested with an empty program."""
    if niceness < own_niceness():
        if not _enter_real_time():
            return False
        _leave_real_time()
    child = start(exec_with_parent([], niceness), apart=False)  # a process group leader cannot start a session
    try:
        child.wait()
    finally:
        end(child)
    return child.returncode == 0


def exec_with_parent(command: Sequence[str], niceness: Integer) -> list[str]:
    """Command line of a program that dies with this process and has a niceness; UNKNOWN: our own."""
    niceness_text = "" if niceness is UNKNOWN else str(niceness)
    return [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), niceness_text, *command]


@contextmanager
def real_time_priority(niceness: Integer) -> Iterator[None]:
    """Give this thread real-time priority over the program that it starts and watches.

    The watcher needs a few hundredths of a CPU to stop the program in time. A program with a low niceness that never
    waits would leave it almost nothing.
    """
    if niceness is UNKNOWN or niceness >= own_niceness() or not _enter_real_time():
        yield
        return
    try:
        yield
    finally:
        _leave_real_time()


def _enter_real_time() -> bool:
    """Give this thread, but not its children, real-time priority; False if the system refuses.

    A scheduling policy that someone else has set stays.
    """
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False
    return True


def _leave_real_time() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError:  # without the capability, a thread cannot drop its reset-on-fork flag (man 7 sched)
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))


# ---- noise of a run
#
# Noise as Linux counts it, from snapshots of /proc taken while the program runs.
#
# A snapshot reads a few files per thread. Values that the system does not report are UNKNOWN.


_PROC = Path("/proc")
_CPUS = Path("/sys/devices/system/cpu")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_NOISY_SHARE: Final = 0.1
"""Share from which a run is called noisy. A dispatch ends with its last worker: if workers wait for a tenth of their
time, smaller differences between ops may come from waiting alone."""
_LONG_RUN_NS: Final = 1_000_000_000
"""A run of this length is long enough for two snapshots, unless the times of its calls are unknown."""

Counts = Mapping[str, int]
"""Counts, by their field names in `Noise`."""


@dataclass(frozen=True, slots=True)
class Look:
    """Snapshot at one moment: counts of the program, its machine and its threads, and the machine's state."""

    time_ns: int
    counts: Counts
    threads: Mapping[str, Counts]
    frequency_hz: Integer
    load_percent: Integer


def take_snapshot(pid: int) -> Look:
    """Take a snapshot of a running program."""
    time_ns, process = time.monotonic_ns(), _PROC / str(pid)
    ticks = _counts(_PROC / "stat", _MACHINE_TICKS)
    counts = _counts(process / "stat", _PROGRAM_COUNTS)
    if "steal" in ticks:
        counts["stolen_ns"] = ticks.pop("steal") * _TICK_NS
        counts["busy_ns"] = sum(ticks.values()) * _TICK_NS
    threads: dict[str, Counts] = {}
    with suppress(OSError):
        for folder in list((process / "task").iterdir()):
            of_thread = [_counts(folder / file, patterns) for file, patterns in _THREAD_COUNTS.items()]
            if folder.exists():  # the counts of an exiting thread are incomplete
                threads[folder.name] = {name: count for part in of_thread for name, count in part.items()}
    return Look(
        time_ns=time_ns,
        counts=counts,
        threads=threads,
        frequency_hz=_value_or_unknown(_frequency_hz),
        load_percent=_value_or_unknown(lambda: round(100 * float((_PROC / "loadavg").read_text().split()[0]))),
    )


def observed_noise(snapshots: Sequence[Look], begin_ns: Integer, end_ns: Integer) -> Noise:
    """Noise between two moments, from the first and the last snapshot in that time.

    UNOBSERVED without two snapshots, such as in a very short run.
    """
    if not (isinstance(begin_ns, int) and isinstance(end_ns, int)):
        return UNKNOWN_NOISE
    inside = [snapshot for snapshot in snapshots if begin_ns <= snapshot.time_ns <= end_ns]
    if len(inside) < 2:
        return UNKNOWN_NOISE
    first, last = inside[0], inside[-1]
    counts = {name: last.counts[name] - first.counts[name] for name in last.counts if name in first.counts}
    # Sums over the threads alive at the end. Threads started meanwhile count in full.
    names = set.intersection(*(set(counts) for counts in last.threads.values())) if last.threads else set()
    for name in sorted(names):
        earlier = {thread: counts.get(name, 0) for thread, counts in first.threads.items()}
        counts[name] = sum(own[name] - earlier.get(thread, 0) for thread, own in last.threads.items())
    return structs.replace(
        UNKNOWN_NOISE,
        observed_ns=last.time_ns - first.time_ns,
        frequency_before_hz=first.frequency_hz,
        frequency_after_hz=last.frequency_hz,
        load_percent=first.load_percent,
        **counts,
    )


def combined_noise(noises: Sequence[Noise]) -> Noise:
    """Noise of several executions in a row, combined; those without snapshots are left out."""
    observed_noises = [noise for noise in noises if noise.observed_ns is not UNKNOWN]
    if len(observed_noises) < 2:
        return (*observed_noises, *noises)[0]
    sums = {name: sum_of(getattr(noise, name) for noise in observed_noises) for name in Noise.__struct_fields__}
    return structs.replace(
        Noise(**sums),
        frequency_before_hz=observed_noises[0].frequency_before_hz,
        frequency_after_hz=observed_noises[-1].frequency_after_hz,
        load_percent=observed_noises[0].load_percent,
    )


def noise_diagnostic(noise: Noise, niceness: Integer = UNKNOWN, elapsed_ns: Integer = UNKNOWN) -> Diagnostic | None:
    """The diagnostic for a noisy run: its threads, or the whole machine, waited for a CPU. None if it was quiet.

    It names a remedy, unless the program already ran ahead of others. UNKNOWN `niceness` means our own. It says how
    much of the elapsed time was observed, if that is less than half.
    """
    causes = _waiting_causes(noise)
    remedy = _remedy(niceness) if causes else ""
    stolen, observed_ns, load = noise.stolen_ns, noise.observed_ns, noise.load_percent
    if isinstance(stolen, int) and isinstance(observed_ns, int):
        whole_ns = observed_ns * (os.cpu_count() or 1)
        if stolen >= _NOISY_SHARE * max(1, whole_ns):
            causes.append(f"the hypervisor took {format_ns(stolen)} from this machine")
    if not causes:
        return None
    details = f"{format_count(noise.involuntary_switches)} involuntary switches"
    if isinstance(load, int):
        details += f", load {load / 100:.1f}"
    if isinstance(observed_ns, int) and isinstance(elapsed_ns, int) and 2 * observed_ns < elapsed_ns:
        details += f"; observed for {format_ns(observed_ns)} of {format_ns(elapsed_ns)}"
    return Diagnostic(NOISY, f"noisy machine: {'; '.join(causes)} ({details}){remedy}")


def _remedy(niceness: Integer) -> str:
    """The remedy against other programs; empty if the program already ran ahead of them."""
    if niceness is not UNKNOWN and niceness < 0:
        return ""
    if own_niceness() == 0:
        allowed = "drop --nice" if niceness is not UNKNOWN else "record as root or with the capability CAP_SYS_NICE"
        return f"; stop other jobs, or {allowed} to run ahead of others"
    return f"; stop other jobs, or record with --nice {AHEAD} to run ahead of others"


def unknown_noise_diagnostic(noise: Noise, elapsed_ns: Integer, launches: int = 1) -> Diagnostic | None:
    """The diagnostic for a run too short to tell whether it was noisy."""
    if noise.observed_ns is not UNKNOWN or not isinstance(elapsed_ns, int) or elapsed_ns >= _LONG_RUN_NS:
        return None
    launches_text = "" if launches == 1 else f" in {launches} launches, each too short"
    text = f"noise unknown: the measured calls took only {format_ns(elapsed_ns)}{launches_text}"
    return Diagnostic("noise-unknown", text)


def _waiting_causes(noise: Noise) -> list[str]:
    running, waiting, busy = noise.running_ns, noise.waiting_ns, noise.busy_ns
    if not (isinstance(running, int) and isinstance(waiting, int)):
        return []
    if waiting < _NOISY_SHARE * max(1, running + waiting):
        return []
    text = f"the program's threads waited for a CPU {format_share(waiting, running + waiting)} of the time"
    if not isinstance(busy, int):
        return [text]
    # A program with more threads than CPUs waits for itself; that is no noise.
    others = max(0, busy - running)
    other_programs = f"other programs used {format_share(others, busy)} of the CPU time"
    return [f"{text}, and {other_programs}"] if others >= _NOISY_SHARE * busy else []


# ---- counts of Linux


# After the program's name, which is in parentheses and may contain any character (man 5 proc_pid_stat).
_PROGRAM_COUNTS: Final = {
    "minor_faults": r"(?s).*\)(?: \S+){7} (\d+) ",
    "major_faults": r"(?s).*\)(?: \S+){9} (\d+) ",
}
# Over all CPUs (man 5 proc_stat): user, nice, system, idle, iowait, irq, softirq, steal.
_MACHINE_TICKS: Final = {
    name: rf"^cpu(?: +\d+){{{index}}} +(\d+)"
    for index, name in enumerate(("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"))
    if name not in ("idle", "iowait")
}
_THREAD_COUNTS: Final = {
    "schedstat": {"running_ns": r"^(\d+) \d+ \d+$", "waiting_ns": r"^\d+ (\d+) \d+$"},
    "status": {
        "voluntary_switches": r"^voluntary_ctxt_switches:\s*(\d+)$",
        "involuntary_switches": r"^nonvoluntary_ctxt_switches:\s*(\d+)$",
    },
    "sched": {"migrations": r"^se\.nr_migrations\s*:\s*(\d+)$"},
}
"""Files of a thread, with the patterns of their counts."""


def _counts(path: Path, patterns: Mapping[str, str]) -> dict[str, int]:
    """Counts in a file; those that it lacks are left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in patterns.items()}
    return {name: int(match[1]) for name, match in found.items() if match}


def _value_or_unknown(source: Callable[[], int]) -> Integer:
    try:
        return source()
    except (OSError, ValueError, IndexError, ZeroDivisionError):
        return UNKNOWN


def _frequency_hz() -> int:
    """Mean clock frequency of all CPUs."""
    frequencies_khz = [int(path.read_text()) for path in _CPUS.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")]
    return 1000 * sum(frequencies_khz) // len(frequencies_khz)


# ---- watching
#
# Snapshots while the program runs, and the stopping rule.
#
# The profile shows each call as soon as it has returned, so the program itself is not changed. The watcher reads the
# profile and some files of /proc ten times a second. Records of a call that was cut short are removed.


WATCH_S: Final = 0.1
_MAX_SNAPSHOTS = 600
_SNAPSHOTS_PER_COUNT = 5
_IDLE_CALLS: Final = 1_000
"""Submissions of fewer calls may still be in the buffer of the profile's writer, which holds 32 KiB."""
_EXECUTABLE_SURPLUS = 1.1
"""Samples are counted per executable here and per kernel at the end; executables have slightly more."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a program was stopped: it made `calls` whole calls (or batches), and the first `warmup` are warm-up.

    `reason`: None if no call had returned when the time was spent. `read_calls`: number of first calls whose events are
    read. `until_ns`: start of the first call after them; UNKNOWN if there is none, so that the time of the last call is
    unknown. `spent_ns`, `bytes`: spent budget. `launch_count`: number of launches that share the budget, including this
    one.
    """

    reason: StopReason | None
    calls: int
    read_calls: int
    warmup: int
    until_ns: Integer
    spent_ns: int
    bytes: int
    launch_count: int


class GrowingCalls(Protocol):
    """A recording that its program is still writing: the begin of each call, whole calls, and the size in bytes."""

    begins_ns: list[int]
    bytes: int

    @property
    def whole_calls(self) -> int:
        """Number of complete calls."""

    def read_on(self) -> None:
        """Read what was added."""

    def keep(self, calls: int) -> Integer:
        """Leave out what came after the first calls, once the program has ended; returns the begin of the next call."""


class Watcher:
    """Watcher of one execution.

    Attributes:
        snapshots: snapshots of the program, by time.
        cut: how the program was stopped; None: it ended by itself.
    """

    def __init__(
        self, goal: Goal | None, profile: GrowingCalls, samples: Path, progress: Progress, stops: Path
    ) -> None:
        """Prepare for a program that has not started. Without a goal it is observed, but never stopped.

        `stops`: the hook's file of the program's clock, which may not exist.
        """
        import numpy as np  # noqa: F401 - slow to import; must not happen while the program runs

        self.snapshots: list[Look] = []
        self.cut: Cut | None = None
        self._goal, self._progress, self._samples = goal, progress, GrowingSamples(samples)
        self._profile, self._stops = profile, stops
        self._paused_before_ns = paused_ns()
        self._paused_ns = self._paused_before_ns
        self._launched_ns = time.monotonic_ns() - self._paused_before_ns
        self._calling_ns: Integer = UNKNOWN
        self._sampled = 0

    @property
    def begins_ns(self) -> list[int]:
        """Begins of the whole calls (or batches) of a program that was stopped, on the host's monotonic clock.

        The last value is the begin of the next call, if there is one.
        """
        return self._profile.begins_ns[: 0 if self.cut is None else self.cut.calls + 1]

    def watch(self, pid: int) -> bool:
        """Take a snapshot of the program; False: stop it."""
        if paused_ns() != self._paused_ns:
            # While the program was paused, other programs were no noise.
            self._paused_ns = paused_ns()
            self.snapshots.clear()
        if len(self.snapshots) >= _MAX_SNAPSHOTS:
            del self.snapshots[1:-1:2]
        self.snapshots.append(take_snapshot(pid))
        if self._calling_ns is UNKNOWN and _has_printed_banner(pid):
            self._calling_ns = self.snapshots[-1].time_ns
        return self._goal is None or self._continues(self._goal)

    def _continues(self, goal: Goal) -> bool:
        profile = self._profile
        calls_before = len(profile.begins_ns)
        profile.read_on()
        # The newest call may still get records; calls before it are complete.
        old = len(profile.begins_ns) if len(profile.begins_ns) == calls_before else len(profile.begins_ns) - 1
        state = self._state(calls=min(old, profile.whole_calls))
        if goal.sample_hz and len(self.snapshots) % _SNAPSHOTS_PER_COUNT == 0:
            self._count_samples(goal, state)
        reason = goal.reached(state)
        if reason is None and (profile.begins_ns or (state.spent_ns < goal.seconds * 1e9 and not self.runs_idle)):
            return True
        self.cut = Cut(
            reason,
            calls=state.calls,
            read_calls=goal.calls_to_read(state),
            warmup=state.warmup_at_end(goal),
            until_ns=UNKNOWN,
            spent_ns=state.spent_ns,
            bytes=goal.bytes_to_read(state),
            launch_count=goal.affordable_launches(state),
        )
        return False

    @property
    def runs_idle(self) -> bool:
        """True after a thousand calls without a submission: the function runs nothing on a device."""
        if self._profile.begins_ns or not self._stops.is_file():
            return False
        import numpy as np

        return int(np.count_nonzero(np.fromfile(self._stops, dtype=np.int64))) >= 2 * _IDLE_CALLS

    def _state(self, calls: int) -> StoppingState:
        import numpy as np

        begins, now, paused = self._profile.begins_ns, time.monotonic_ns(), paused_ns()
        begun_ns = begins[0] if begins else now if isinstance(self._calling_ns, Unknown) else self._calling_ns
        if not begins:
            self._paused_before_ns = paused
        return StoppingState(
            calls=calls,
            times_ns=np.diff(np.array(begins[: calls + 1], dtype=np.int64)),
            samples=self._sampled,
            bytes=self._profile.bytes,
            spent_ns=now - begun_ns - (paused - self._paused_before_ns),
            loading_ns=max(0, begun_ns - self._paused_before_ns - self._launched_ns),
        )

    def _count_samples(self, goal: Goal, state: StoppingState) -> None:
        """Count the samples in executables since the warm-up, and report how many to expect."""
        warmup = state.warmup(goal)
        if warmup is UNKNOWN or warmup >= len(self._profile.begins_ns):
            return
        try:
            count = self._samples.inside_since(self._profile.begins_ns[warmup])
        except (RunEmpty, RunInvalid):  # the files are just being written
            return
        self._sampled = round(count / _EXECUTABLE_SURPLUS)
        expected = format_count(round(count * goal.seconds * 1e9 / max(1, state.spent_ns)))
        self._progress(f"sampling: expect about {expected} samples in kernels in {goal.seconds:g} s")

    def end(self) -> None:
        """Remove the records of calls that are not to be read, after the program has ended."""
        if self.cut is None:
            return
        self._profile.read_on()
        if self.cut.calls:
            self.cut = replace(self.cut, until_ns=self._profile.keep(self.cut.read_calls))


def _has_printed_banner(pid: int) -> bool:
    """Whether the benchmark has printed its banner: everything is loaded, and calls begin."""
    try:
        return os.stat(f"/proc/{pid}/fd/1").st_size > 0  # noqa: PTH116 - a link to a file without a name
    except OSError:
        return False
