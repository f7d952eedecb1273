"""The same program on other devices of the host, without the profiler: how long a call takes on each.

Kernels are the same machine code on all of them; what differs is who runs them, and who waits for whom. A device is
measured in groups of calls that follow each other, each of which the program times by its own clock; the median is that
of the groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from tracemap.capture.benchmark import HOST_DEVICES, run_benchmark
from tracemap.capture.plan import Plan
from tracemap.errors import ProgramFailed, UsageInvalid
from tracemap.measurements.circumstances import DeviceTime
from tracemap.measurements.medians import median_of
from tracemap.toolchain import Progress
from tracemap.units import Integer

_GROUP_NS: Final = 20_000_000
"""A group lasts about so long, so that neither the clock nor one call that is disturbed decides it."""
_FEWEST, _MOST = 3, 31


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

    about_ns = max(1, call_ns) if isinstance(call_ns, int) else _GROUP_NS
    calls = math.ceil(_GROUP_NS / about_ns)
    share_ns = plan.options.seconds * 1e9 / max(1, len(names))
    groups = max(_FEWEST, min(_MOST, int(share_ns / (calls * about_ns))))
    for device in names:
        progress(f"timing {plan.entry.name} on {device}, {groups} times {calls} calls")
        ending = run_benchmark(plan.unprofiled(device, calls, groups))
        ending.check(f"{plan.entry.name} on {device}")
        if not ending.means_ns:
            raise ProgramFailed(f"{plan.entry.name} on {device} did not say how long its calls took")
        median = median_of(np.array(ending.means_ns, dtype=np.int64))
        yield DeviceTime(device, median.value, median.low, median.high, len(ending.means_ns), calls)
