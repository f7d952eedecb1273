"""Looks at a program while it runs: what disturbs it, and whether it was measured enough, when it is ended.

The profile shows each call as soon as it has returned; the program knows nothing of being watched, and what watches it
reads a file and some of /proc ten times a second. What is written of the call that was cut short is cut off.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracemap.capture.disturbance import Look, look
from tracemap.capture.enough import Goal, State, Why
from tracemap.errors import RunEmpty, RunInvalid
from tracemap.measurements.hook.growing import GrowingSamples
from tracemap.measurements.ireeprof.growing import GrowingProfile
from tracemap.measurements.ireeprof.records import cut_profile
from tracemap.owned.pausing import paused_ns
from tracemap.toolchain import Progress
from tracemap.units import UNKNOWN, Integer, Unknown, format_count

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
