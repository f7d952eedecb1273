"""Noise while a program is measured: waits for a processor, other programs, clock changes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from msgspec import structs

from tracemap.capture.niceness import AHEAD, own_niceness
from tracemap.capture.stopping_rule import Goal, State, Why
from tracemap.diagnostics import DISTURBED, Diagnostic
from tracemap.errors import RunEmpty, RunInvalid
from tracemap.measurements.hook.samples import GrowingSamples
from tracemap.measurements.ireeprof.growing import GrowingProfile
from tracemap.measurements.ireeprof.records import cut_profile
from tracemap.measurements.model import UNOBSERVED, Disturbance
from tracemap.owned.children import paused_ns
from tracemap.toolchain import Progress
from tracemap.units import UNKNOWN, Integer, Unknown, format_count, format_ns, format_share, sum_of

# ---- disturbance
#
# What disturbed a program while it was measured, as Linux counts it: from looks at it while it runs.
#
# A look reads a few files of /proc for each thread. What the system does not tell is unknown.


_PROC = Path("/proc")
_CPUS = Path("/sys/devices/system/cpu")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MUCH: Final = 0.1
"""From which share on a run is called disturbed. The time of a dispatch is that of its last worker: where workers wait
for a tenth of the time that they want to run, what ops differ by in less than that may be the waiting alone."""
_LONG_NS: Final = 1_000_000_000
"""What lasts for so long is looked at often enough, unless nothing tells when the calls were."""

Counts = Mapping[str, int]
"""Numbers by the names that they have in `Disturbance`."""


@dataclass(frozen=True, slots=True)
class Look:
    """What had happened until a moment: to the program and its machine, to each thread, and how things stood then."""

    time_ns: int
    counts: Counts
    threads: Mapping[str, Counts]
    frequency_hz: Integer
    load_percent: Integer


def look(pid: int) -> Look:
    """Look at a program that runs."""
    return Look(
        time_ns=time.monotonic_ns(),
        counts=_counts(_of_program(pid), _of_machine),
        threads=_living(pid),
        frequency_hz=_known(_frequency_hz),
        load_percent=_known(lambda: round(100 * float((_PROC / "loadavg").read_text().split()[0]))),
    )


def observed(looks: Sequence[Look], begin_ns: Integer, end_ns: Integer) -> Disturbance:
    """What disturbed a program between two moments: between the first and the last look in that time.

    Nothing is known where there were not two, as of what lasts for less than they are apart.
    """
    if not (isinstance(begin_ns, int) and isinstance(end_ns, int)):
        return UNOBSERVED
    inside = [each for each in looks if begin_ns <= each.time_ns <= end_ns]
    if len(inside) < 2:
        return UNOBSERVED
    first, last = inside[0], inside[-1]
    found = {name: last.counts[name] - first.counts[name] for name in last.counts if name in first.counts}
    found |= _of_all_threads(first, last)
    return structs.replace(
        UNOBSERVED,
        observed_ns=last.time_ns - first.time_ns,
        frequency_before_hz=first.frequency_hz,
        frequency_after_hz=last.frequency_hz,
        load_percent=first.load_percent,
        **found,
    )


def _of_all_threads(first: Look, last: Look) -> dict[str, int]:
    """Sums over the threads that live at the end; of those that are new, all that happened to them."""
    names = set.intersection(*(set(counts) for counts in last.threads.values())) if last.threads else set()
    return {
        name: sum(counts[name] - first.threads.get(thread, {}).get(name, 0) for thread, counts in last.threads.items())
        for name in sorted(names)
    }


def together(found: Sequence[Disturbance]) -> Disturbance:
    """What disturbed several executions, one after another, as one: those of them that anybody looked at."""
    seen = [each for each in found if each.observed_ns is not UNKNOWN]
    if len(seen) < 2:
        return (*seen, *found)[0]
    sums = {name: sum_of(getattr(each, name) for each in seen) for name in Disturbance.__struct_fields__}
    return structs.replace(
        Disturbance(**sums),
        frequency_before_hz=seen[0].frequency_before_hz,
        frequency_after_hz=seen[-1].frequency_after_hz,
        load_percent=seen[0].load_percent,
    )


def disturbed(found: Disturbance, niceness: Integer = UNKNOWN, elapsed_ns: Integer = UNKNOWN) -> Diagnostic | None:
    """A sentence where a run was much disturbed: its threads waited for a processor, or the machine did.

    Where it waited for others, it says what would help, unless it ran ahead of them. Its niceness is unknown where it
    was ours. It says how much of the elapsed time it rests on, where that is less than half.
    """
    waiting = _waiting(found)
    remedy = _ahead(niceness) if waiting else ""
    causes = [*waiting, *_stolen(found)]
    if not causes:
        return None
    switches = f"{format_count(found.involuntary_switches)} involuntary switches"
    load = found.load_percent
    loaded = f", load {load / 100:.1f}" if isinstance(load, int) else ""
    return Diagnostic(
        DISTURBED, f"the run was disturbed: {'; '.join(causes)} ({switches}{loaded}{_seen(found, elapsed_ns)}){remedy}"
    )


def _seen(found: Disturbance, elapsed_ns: Integer) -> str:
    """How much of the time was looked at, which of short launches is little; empty: most of it."""
    observed_ns = found.observed_ns
    if not (isinstance(observed_ns, int) and isinstance(elapsed_ns, int)) or 2 * observed_ns >= elapsed_ns:
        return ""
    return f"; seen in {format_ns(observed_ns)} of {format_ns(elapsed_ns)}"


def _ahead(niceness: Integer) -> str:
    """What runs the program ahead of others, where it was not."""
    if niceness is not UNKNOWN and niceness < 0:
        return ""
    if own_niceness() == 0:
        allowed = "without --nice" if niceness is not UNKNOWN else "as root, or with the capability CAP_SYS_NICE,"
        return f"; {allowed} it runs ahead of others"
    return f"; record --nice {AHEAD} runs it ahead of others"


def unseen(found: Disturbance, elapsed_ns: Integer, launches: int = 1) -> Diagnostic | None:
    """A sentence where calls were measured for too short a time to tell whether they were disturbed."""
    if found.observed_ns is not UNKNOWN or not isinstance(elapsed_ns, int) or elapsed_ns >= _LONG_NS:
        return None
    each = "" if launches == 1 else f" in {launches} launches, none of them for long enough"
    text = f"whether the run was disturbed is unknown: only {format_ns(elapsed_ns)} were measured{each}"
    return Diagnostic("disturbance-unknown", text)


def _waiting(found: Disturbance) -> list[str]:
    running, waiting, busy = found.running_ns, found.waiting_ns, found.busy_ns
    if not (isinstance(running, int) and isinstance(waiting, int)) or waiting < _MUCH * max(1, running + waiting):
        return []
    text = (
        f"its threads waited for a processor in {format_share(waiting, running + waiting)} of the time they wanted one"
    )
    if not isinstance(busy, int):
        return [text]
    # Where a program has more threads than there are processors, they wait for each other: that is how it runs.
    others = max(0, busy - running)
    of_others = f"other programs took {format_share(others, busy)} of the processor time that was used"
    return [f"{text}, and {of_others}"] if others >= _MUCH * busy else []


def _stolen(found: Disturbance) -> list[str]:
    stolen, observed_ns = found.stolen_ns, found.observed_ns
    if not (isinstance(stolen, int) and isinstance(observed_ns, int)):
        return []
    whole = observed_ns * (os.cpu_count() or 1)
    return [f"the host took {format_ns(stolen)} from the machine"] if stolen >= _MUCH * max(1, whole) else []


# ---- what Linux tells


def _counts(*sources: Callable[[], Counts]) -> Counts:
    """All that several sources tell; one that cannot be read, or reads otherwise, tells nothing."""
    found: dict[str, int] = {}
    for source in sources:
        try:
            found |= source()
        except (OSError, ValueError, IndexError, KeyError):
            continue
    return found


def _known(source: Callable[[], int]) -> Integer:
    try:
        return source()
    except (OSError, ValueError, IndexError, ZeroDivisionError):
        return UNKNOWN


def _living(pid: int) -> dict[str, Counts]:
    """What has happened to each thread that is still there when it was looked at: others tell less, or nothing."""
    try:
        folders = list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return {}
    looked_at = [(folder, _counts(*_of_thread(folder))) for folder in folders]
    return {folder.name: counts for folder, counts in looked_at if folder.exists()}


def _of_program(pid: int) -> Callable[[], Counts]:
    def read() -> Counts:
        # Behind the program's name, which stands in parentheses and may hold any letter (man 5 proc_pid_stat).
        fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return {"minor_faults": int(fields[7]), "major_faults": int(fields[9])}

    return read


def _of_machine() -> Counts:
    """The line of all processors (man 5 proc_stat): user, nice, system, idle, iowait, irq, softirq, steal."""
    fields = (_PROC / "stat").read_text().partition("\n")[0].split()
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[1:9])
    return {"busy_ns": (user + nice + system + irq + softirq) * _TICK_NS, "stolen_ns": steal * _TICK_NS}


def _of_thread(folder: Path) -> list[Callable[[], Counts]]:
    def schedstat() -> Counts:
        running, waiting, _ = (folder / "schedstat").read_text().split()
        return {"running_ns": int(running), "waiting_ns": int(waiting)}

    def status() -> Counts:
        found = _pairs(folder / "status")
        return {
            "voluntary_switches": int(found["voluntary_ctxt_switches"]),
            "involuntary_switches": int(found["nonvoluntary_ctxt_switches"]),
        }

    def sched() -> Counts:
        return {"migrations": int(_pairs(folder / "sched")["se.nr_migrations"])}

    return [schedstat, status, sched]


def _pairs(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return {name.strip(): value for name, _, value in (line.partition(":") for line in lines)}


def _frequency_hz() -> int:
    """The mean of all processors."""
    found = [int(path.read_text()) for path in _CPUS.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")]
    return 1000 * sum(found) // len(found)


# ---- watching
#
# Looks at a program while it runs: what disturbs it, and whether it was measured enough, when it is ended.
#
# The profile shows each call as soon as it has returned; the program knows nothing of being watched, and what watches
# it reads a file and some of /proc ten times a second. What is written of the call that was cut short is cut off.


WATCH_S: Final = 0.1
_MOST_LOOKS = 600
_LOOKS_PER_COUNT = 5
_SAMPLES_MORE = 1.1
"""Samples are counted by executables here and by kernels in the end, of which executables have a little more."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What is left of a program that was ended: whole calls, or batches of them, of which the first are warm-up.

    `why`: None where no call had returned when the time was spent. `until_ns`: when the first call began that is left
    out; unknown where none had, so that the last one's time is not known either. `spent_ns`, `bytes`: of what may be
    spent; `sharing`: how many launches share that, this one among them.
    """

    why: Why | None
    calls: int
    warmup: int
    until_ns: Integer
    spent_ns: int
    bytes: int
    sharing: int


class Watcher:
    """Watches one execution.

    Attributes:
        looks: what was seen of the program, by time.
        cut: what is left of it, where it was ended because it was measured enough; None: it was not.
    """

    def __init__(self, goal: Goal | None, profile: Path, samples: Path, progress: Progress) -> None:
        """Nothing runs yet. Without a goal the program is only looked at, and comes to its own end."""
        import numpy as np  # noqa: F401 - it takes time that is not to be taken while the program runs

        self.looks: list[Look] = []
        self.cut: Cut | None = None
        self._goal, self._progress, self._samples = goal, progress, GrowingSamples(samples)
        self._path, self._profile = profile, GrowingProfile(profile)
        self._paused_before_ns = paused_ns()
        self._paused_ns = self._paused_before_ns
        self._launched_ns = time.monotonic_ns() - self._paused_before_ns
        self._calling_ns: Integer = UNKNOWN
        self._sampled = 0

    def watch(self, pid: int) -> bool:
        """Look at the program; False: end it."""
        if paused_ns() != self._paused_ns:
            # What others had of the processors meanwhile disturbed nobody.
            self._paused_ns = paused_ns()
            self.looks.clear()
        if len(self.looks) >= _MOST_LOOKS:
            del self.looks[1:-1:2]
        self.looks.append(look(pid))
        if self._calling_ns is UNKNOWN and _has_spoken(pid):
            self._calling_ns = self.looks[-1].time_ns
        return self._goal is None or self._goes_on(self._goal)

    def _goes_on(self, goal: Goal) -> bool:
        known = self._profile
        before = len(known.begins_ns)
        known.read_on()
        # Of a call that came since the last look more records may come than of the one before.
        old = len(known.begins_ns) if len(known.begins_ns) == before else len(known.begins_ns) - 1
        state = self._state(calls=min(old, known.whole_calls))
        if goal.sample_hz and len(self.looks) % _LOOKS_PER_COUNT == 0:
            self._count_samples(goal, state)
        why = goal.reached(state)
        if why is None and (known.begins_ns or state.spent_ns < goal.seconds * 1e9):
            return True
        warmup, sharing = state.warmup_at_end(goal), goal.sharing(state)
        self.cut = Cut(why, state.calls, warmup, UNKNOWN, state.spent_ns, state.bytes, sharing)
        return False

    def _state(self, calls: int) -> State:
        import numpy as np

        begins, now, paused = self._profile.begins_ns, time.monotonic_ns(), paused_ns()
        begun_ns = begins[0] if begins else now if isinstance(self._calling_ns, Unknown) else self._calling_ns
        if not begins:
            self._paused_before_ns = paused
        return State(
            calls=calls,
            times_ns=np.diff(np.array(begins[: calls + 1], dtype=np.int64)),
            samples=self._sampled,
            bytes=self._profile.bytes,
            spent_ns=now - begun_ns - (paused - self._paused_before_ns),
            loading_ns=max(0, begun_ns - self._paused_before_ns - self._launched_ns),
        )

    def _count_samples(self, goal: Goal, state: State) -> None:
        """See how many samples lie in executables since the warm-up, and say how many there will be."""
        warmup = state.warmup(goal)
        if warmup is UNKNOWN or warmup >= len(self._profile.begins_ns):
            return
        try:
            count = self._samples.inside_since(self._profile.begins_ns[warmup])
        except (RunEmpty, RunInvalid):  # the files are made at this moment
            return
        self._sampled = round(count / _SAMPLES_MORE)
        expected = format_count(round(count * goal.seconds * 1e9 / max(1, state.spent_ns)))
        self._progress(f"sampling: about {expected} samples in kernels are to be expected in {goal.seconds:g} s")

    def end(self) -> None:
        """The program has ended: cut off what is of calls that are left out."""
        if self.cut is None:
            return
        self._profile.read_on()
        begins, calls = self._profile.begins_ns, self.cut.calls
        if calls:
            more = len(begins) > calls
            self.cut = replace(self.cut, until_ns=begins[calls] if more else UNKNOWN)
            cut_profile(self._path, self._profile.places[calls] if more else self._profile.end_of_calls)


def _has_spoken(pid: int) -> bool:
    """Whether the benchmark has said what machine it runs on: everything is loaded then, and it begins to call."""
    try:
        return os.stat(f"/proc/{pid}/fd/1").st_size > 0  # noqa: PTH116 - a link to a file that has no name any more
    except OSError:
        return False
