"""Optional measurements after timing: other devices, caches, counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from tracemap.capture.benchmark import HOST_DEVICES, run_benchmark
from tracemap.capture.plan import Plan
from tracemap.capture.stopping_rule import LEAST_WARMUP
from tracemap.diagnostics import INTERRUPTED, Diagnostic, tells
from tracemap.errors import ProgramFailed, UsageInvalid
from tracemap.measurements.medians import median_of
from tracemap.measurements.model import DeviceTime
from tracemap.owned.ending import answer, asked_by
from tracemap.toolchain import Progress
from tracemap.units import Integer

# ---- comparing
#
# The same program on other devices of the host, without the profiler: how long a call takes on each.
#
# Kernels are the same machine code on all of them; what differs is who runs them, and who waits for whom. The program
# times each call by its own clock, and the median is that of these calls, as it is of those that are recorded: where a
# few calls wait much longer than the others, a mean of several is far from what a call takes.


_LONGEST_NS: Final = 600_000_000
"""Calls of a device last about so long together at most: the median of as many is known well enough."""
_FEWEST, _MOST = 5, 10_000
"""Calls of a device, warm-up included: half a kilobyte of the program's report each."""


def devices_to_time(asked: Sequence[str], own: str) -> tuple[str, ...]:
    """The devices to compare, each once: those that were asked for, and the program's own; none where none was.

    Raises:
        UsageInvalid: one does not run the same kernels, or there is nothing to compare the program's own with.
    """
    devices = tuple(dict.fromkeys((*asked, own))) if asked else ()
    for device in devices:
        if device not in HOST_DEVICES:
            raise UsageInvalid(
                f"--compare-devices compares {' and '.join(sorted(HOST_DEVICES))}, which run the same kernels: "
                f"{device!r} is none of them"
            )
    if devices == (own,):
        others = " or ".join(sorted({*HOST_DEVICES} - {own}))
        raise UsageInvalid(f"--compare-devices {own}: the run is on {own} itself, name another device: {others}")
    return devices


def compared(plan: Plan, call_ns: Integer, progress: Progress) -> tuple[DeviceTime, ...]:
    """Measure a call on each of the devices that are compared, in the order in which they were asked for.

    Args:
        plan: the program, with its inputs and flags.
        call_ns: how long a call takes, about; it decides how many there are.
        progress: told what is done.

    Raises:
        ProgramFailed: it does not run on one of them.
    """
    names = devices_to_time(plan.options.compare_devices, plan.device)
    return tuple(_measured(plan, names, call_ns, progress))


def _measured(plan: Plan, names: Sequence[str], call_ns: Integer, progress: Progress) -> Iterator[DeviceTime]:
    import numpy as np

    about_ns = max(1, call_ns) if isinstance(call_ns, int) else _LONGEST_NS
    share_ns = min(_LONGEST_NS, plan.options.seconds * 1e9 / max(1, len(names)))
    calls = max(_FEWEST, min(_MOST, int(share_ns / about_ns)))
    for device in names:
        progress(f"timing {plan.entry.name} on {device}, {calls} calls")
        ending = run_benchmark(plan.unprofiled(device, calls), niceness=plan.niceness)
        ending.check(f"{plan.entry.name} on {device}")
        if not ending.means_ns:
            raise ProgramFailed(f"{plan.entry.name} on {device} did not say how long its calls took")
        times_ns = np.array(ending.means_ns, dtype=np.int64)
        measured = times_ns[min(LEAST_WARMUP, len(times_ns) // 2) :]
        median = median_of(measured)
        yield DeviceTime(device, median.value, median.low, median.high, len(measured), 1)


# ---- besides
#
# What is measured besides times, in further executions, until Ctrl-C: what was timed is kept without the rest.


_Measured = TypeVar("_Measured")


class Besides:
    """Measures one thing after another until the user presses Ctrl-C, and says what the run is without."""

    def __init__(self, *, interrupted: bool) -> None:
        """`interrupted`: the user has done so already."""
        self._interrupted = interrupted
        self._left_out: list[str] = []

    def measure(self, what: str, measured: Callable[[], tuple[_Measured, ...]]) -> tuple[_Measured, ...]:
        """Measure something; nothing where Ctrl-C ended it, or something before it.

        Raises:
            ProgramFailed: the program failed by itself.
        """
        if not (self._interrupted or asked_by()):
            try:
                return measured()
            except ProgramFailed as error:
                if not error.interrupted:
                    raise
        self._interrupted = True
        self._left_out.append(what)
        return ()

    def add(self, what: str, added: Callable[[], tuple[Diagnostic, ...]]) -> tuple[Diagnostic, ...]:
        """As `measure`, of what is added to the events; it may say itself that only a part of it was."""
        found = self.measure(what, added)
        if tells(found, INTERRUPTED):
            self._interrupted = True
            self._left_out.append(f"some of the {what}")
        return tuple(each for each in found if each.slug != INTERRUPTED)

    @property
    def diagnostics(self) -> Iterator[Diagnostic]:
        """What the run says of it."""
        if self._left_out:
            text = f"the recording was interrupted when calls had been timed: the run lacks {self._lacking}"
            yield Diagnostic(INTERRUPTED, text)

    @property
    def _lacking(self) -> str:
        return " and ".join(self._left_out)

    def check(self, name: str, where: object) -> None:
        """Raise ProgramFailed, with where the run of a function is, if Ctrl-C has ended the recording."""
        if not (self._interrupted or asked_by()):
            return
        answer()
        how = f", which lacks {self._lacking}" if self._left_out else ""
        error = ProgramFailed(f"the recording of {name} was interrupted; what was timed is in {where}{how}")
        error.interrupted = True
        raise error
