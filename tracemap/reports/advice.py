"""What `record --compare-devices` measured, and what to try where most of the elapsed time is spent around kernels.

What another device would take is never guessed: it was measured, or the advice is to do so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracemap.attribution.model import Attribution
from tracemap.diagnostics import DISTURBED
from tracemap.measurements.circumstances import DeviceTime
from tracemap.measurements.model import ElapsedParts
from tracemap.reports.basis import with_interval
from tracemap.units import Unknown, format_ns, format_share, sum_of

_MUCH: Final = 0.5
"""Advice is given from so much of the elapsed time on."""
_DEVICES: Final = ("local-task", "local-sync")


def devices_compared(devices: Sequence[DeviceTime]) -> str:
    """What a call took on each of the devices that were compared, and which one is faster; empty where none were."""
    if not devices:
        return ""
    times = (f"{each.device} {with_interval(each.median_ns, each.low_ns, each.high_ns)}" for each in devices)
    first = _first(devices)
    is_first = len(devices) > 1 and all(_is_faster(first, each) for each in devices if each is not first)
    outcome = f"{first.device} is faster" if is_first else "the intervals do not tell which is faster"
    # Earlier releases timed groups of calls: the median of their means is not that of calls.
    what = "median call" if all(each.calls == 1 for each in devices) else "median of means of several calls"
    return f"{what}: {', '.join(times)}; {outcome}"


def advice(attribution: Attribution) -> str:
    """A sentence; empty where the division does not call for one, or no other device is faster."""
    run = attribution.run
    around = _around(run.elapsed)
    if isinstance(run.elapsed_ns, Unknown) or run.device not in _DEVICES or around < _MUCH * run.elapsed_ns:
        return ""
    kernels, dispatches = run.elapsed.kernels_ns, sum_of([site.calls for site in attribution.sites])
    what = f"{format_share(around, run.elapsed_ns)} of the elapsed time is queue and host"
    if isinstance(kernels, int) and isinstance(dispatches, int) and dispatches:
        what += f", around kernels of {format_ns(round(kernels / dispatches))}"
    if any(each.slug == DISTURBED for each in attribution.diagnostics):
        what += ", of which waiting for processors may be a part, as the run was disturbed"
    if not run.devices:
        return f"{what}: record --compare-devices {','.join(sorted(_DEVICES))} tells whether another device waits less"
    own = next((each for each in run.devices if each.device == run.device), None)
    best = _first(run.devices)
    if own is None or not _is_faster(best, own):
        return ""
    return f"{what}: {best.device} took {format_ns(best.median_ns)} where {own.device} took {format_ns(own.median_ns)}"


def _first(devices: Sequence[DeviceTime]) -> DeviceTime:
    """The one with the smallest median."""
    return min(devices, key=lambda each: each.median_ns if isinstance(each.median_ns, int) else 1 << 62)


def _around(parts: ElapsedParts) -> int:
    """What queue and host take; nothing where nothing was done on a device, as no other would do better."""
    if not (parts.kernels_ns or parts.transfers_ns or parts.queue_ns):
        return 0
    return sum(part for part in (parts.queue_ns, parts.host_ns) if isinstance(part, int))


def _is_faster(one: DeviceTime, other: DeviceTime) -> bool:
    """Whether the intervals of two medians have nothing in common; where they are not known, nothing is faster."""
    return isinstance(one.high_ns, int) and isinstance(other.low_ns, int) and one.high_ns < other.low_ns
