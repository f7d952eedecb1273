"""What `record --compare-devices` measured, and what to try where most of the elapsed time is spent around kernels.

What another device would take is never guessed: it was measured, or the advice is to do so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracemap.attribution.model import Attribution, ResidualReason
from tracemap.diagnostics import DISTURBED, PAUSED, TRANSFERS_UNTIMED, tells
from tracemap.measurements.circumstances import DeviceTime
from tracemap.measurements.model import ElapsedParts
from tracemap.reports.basis import with_interval
from tracemap.units import Unknown, format_ns, format_share, sum_of

_MUCH: Final = 0.5
"""Advice is given from so much of the elapsed time on."""
_DEVICES: Final = ("local-task", "local-sync")
_WORTH_NAMING: Final = 0.1
"""Of what queue and host take: what copies can have of it at most, to be named."""


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
    if tells(attribution.diagnostics, PAUSED):
        return ""  # the pause lies in what seems to be around kernels
    what = _what_is_around(attribution, around, format_share(around, run.elapsed_ns))
    if not run.devices:
        return f"{what}: record --compare-devices {','.join(sorted(_DEVICES))} tells whether another device waits less"
    own = next((each for each in run.devices if each.device == run.device), None)
    best = _first(run.devices)
    if own is None or not _is_faster(best, own):
        return ""
    return f"{what}: {best.device} took {format_ns(best.median_ns)} where {own.device} took {format_ns(own.median_ns)}"


def _what_is_around(attribution: Attribution, around: int, share: str) -> str:
    """Which share queue and host have, how long the kernels are between them, and what else may be in it."""
    run = attribution.run
    kernels, dispatches = run.elapsed.kernels_ns, sum_of([site.calls for site in attribution.sites])
    what = f"{share} of the elapsed time is queue and host"
    if isinstance(kernels, int) and isinstance(dispatches, int) and dispatches:
        what += f", around kernel calls of {format_ns(round(kernels / dispatches))} on average"
    is_disturbed = tells(attribution.diagnostics, DISTURBED)
    copies = ["copies and fills that are not timed"] if _may_be_copies(attribution, around) else []
    if parts := [*copies, *(["waiting for processors"] if is_disturbed else [])]:
        what += f", of which {' and '.join(parts)} may be a part"
    return f"{what}, as the run was disturbed" if is_disturbed else what


def _may_be_copies(attribution: Attribution, around: int) -> bool:
    """Whether what was submitted took a good part of it while no kernel ran, with copies in it that have no rows."""
    untimed = tells(attribution.diagnostics, TRANSFERS_UNTIMED)
    queue = (row.metrics.get("duration_ns", 0) for row in attribution.residual if row.reason is ResidualReason.QUEUE)
    return untimed and sum(queue) >= _WORTH_NAMING * around


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
