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
from tracemap.owned.ending import asked_by, confirm_signal
from tracemap.toolchain import Progress
from tracemap.units import Integer

# ---- comparing
#
# Times of the same program on other devices of the host, without the profiler.
#
# All devices run the same machine code; they differ in scheduling and synchronization. The program times each
# call by its own clock. The result is their median, as for recorded calls: a few delayed calls would distort a mean.


_TIME_LIMIT_NS: Final = 600_000_000
"""Time limit for the calls on one device; enough for the median."""
_FEWEST, _MOST = 5, 10_000
"""Limits of the number of calls per device, warm-up included. The program's report has half a kilobyte per call."""


def devices_to_time(asked: Sequence[str], own: str) -> tuple[str, ...]:
    """The devices to compare, without duplicates: the requested ones and the run's own. Empty if none is requested.

    Raises:
        UsageInvalid: a device does not run the same kernels, or there is no other device to compare.
    """
    devices = tuple(dict.fromkeys((*asked, own))) if asked else ()
    for device in devices:
        if device not in HOST_DEVICES:
            raise UsageInvalid(
                f"--compare-devices {device!r}: choose from {' and '.join(sorted(HOST_DEVICES))}, "
                "which run the same kernels"
            )
    if devices == (own,):
        others = " or ".join(sorted({*HOST_DEVICES} - {own}))
        raise UsageInvalid(f"--compare-devices {own}: the run already uses {own}; name another device: {others}")
    return devices


def device_times(plan: Plan, call_ns: Integer, progress: Progress) -> tuple[DeviceTime, ...]:
    """Time calls on diagnostic compared device, in the order of the option.

    Args:
        plan: the program, with its inputs and flags.
        call_ns: approximate time of a call; determines the number of calls.
        progress: receives a line of text per step.

    Raises:
        ProgramFailed: the program fails on a device.
    """
    names = devices_to_time(plan.options.compare_devices, plan.device)
    return tuple(_measured(plan, names, call_ns, progress))


def _measured(plan: Plan, names: Sequence[str], call_ns: Integer, progress: Progress) -> Iterator[DeviceTime]:
    import numpy as np

    about_ns = max(1, call_ns) if isinstance(call_ns, int) else _TIME_LIMIT_NS
    share_ns = min(_TIME_LIMIT_NS, plan.options.seconds * 1e9 / max(1, len(names)))
    calls = max(_FEWEST, min(_MOST, int(share_ns / about_ns)))
    for device in names:
        progress(f"timing {plan.entry.name} on {device}, {calls} calls")
        ending = run_benchmark(plan.unprofiled(device, calls), niceness=plan.niceness)
        ending.check(f"{plan.entry.name} on {device}")
        if not ending.means_ns:
            raise ProgramFailed(f"{plan.entry.name} on {device} did not report the times of its calls")
        times_ns = np.array(ending.means_ns, dtype=np.int64)
        measurement = times_ns[min(LEAST_WARMUP, len(times_ns) // 2) :]
        median = median_of(measurement)
        yield DeviceTime(device, median.value, median.low, median.high, len(measurement), 1)


# ---- optional measurements
#
# Measurements in additional executions after timing. Ctrl-C skips the rest and keeps the timings.


_Measured = TypeVar("_Measured")


class OptionalMeasurements:
    """Run measurements one by one until the user presses Ctrl-C, and report the skipped ones."""

    def __init__(self, *, interrupted: bool) -> None:
        """`interrupted`: the user has already pressed Ctrl-C."""
        self._interrupted = interrupted
        self._left_out: list[str] = []

    def measure(self, name: str, measurement: Callable[[], tuple[_Measured, ...]]) -> tuple[_Measured, ...]:
        """Run one measurement; empty if Ctrl-C ends it or has ended an earlier one.

        Raises:
            ProgramFailed: the program failed by itself.
        """
        if not (self._interrupted or asked_by()):
            try:
                return measurement()
            except ProgramFailed as error:
                if not error.interrupted:
                    raise
        self._interrupted = True
        self._left_out.append(name)
        return ()

    def add(self, name: str, addition: Callable[[], tuple[Diagnostic, ...]]) -> tuple[Diagnostic, ...]:
        """Add one measurement's rows to the events; it may report itself that Ctrl-C cut it short."""
        diagnostics = self.measure(name, addition)
        if tells(diagnostics, INTERRUPTED):
            self._interrupted = True
            self._left_out.append(f"some of the {name}")
        return tuple(diagnostic for diagnostic in diagnostics if diagnostic.slug != INTERRUPTED)

    @property
    def diagnostics(self) -> Iterator[Diagnostic]:
        """The diagnostic about skipped measurements, if any."""
        if self._left_out:
            text = f"Ctrl-C after the timing: the run has no {self._lacking}"
            yield Diagnostic(INTERRUPTED, text)

    @property
    def _lacking(self) -> str:
        return " and ".join(self._left_out)

    def check(self, name: str, path: object) -> None:
        """Raise ProgramFailed if Ctrl-C ended the recording; the message says where the run is."""
        if not (self._interrupted or asked_by()):
            return
        confirm_signal()
        missing = f", without {self._lacking}" if self._left_out else ""
        error = ProgramFailed(f"the recording of {name} was interrupted; the timings are in {path}{missing}")
        error.interrupted = True
        raise error
