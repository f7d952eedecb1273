"""What the figures of a report refer to, and advice on what to try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracemap.attribution.model import Attribution, MetricTotal, ResidualReason
from tracemap.attribution.scan.connection import IN_MILLIONTHS, MILLIONTHS
from tracemap.diagnostics import DISTURBED, PAUSED, TRANSFERS_UNTIMED, WINDOW, tells
from tracemap.measurements.model import DeviceTime, ElapsedParts, RunHeader
from tracemap.units import UNKNOWN, Integer, Unknown, format_count, format_mean, format_ns, format_share, plural, sum_of

# ---- basis
#
# Of what the numbers are that people read: of one invocation, as a mean of those measured, or of the whole run.


def divisor(metric: MetricTotal, *, totals: bool) -> int:
    """What sums of a metric are divided by: their invocations, unless sums are shown or nothing tells them."""
    return 1 if totals else known_invocations(metric) or 1


def known_invocations(metric: MetricTotal) -> int:
    """The invocations that a metric was measured in; 0 where they are unknown."""
    return 0 if isinstance(metric.invocations, Unknown) else metric.invocations


def shown_unit(metric: MetricTotal) -> tuple[str, int]:
    """The unit that a metric is shown in, and how many of its own make one of it."""
    return scaled_unit(metric.unit)


def shown_amount(amount: int, metric: MetricTotal) -> str:
    """An amount of a metric, in its own unit, for people."""
    unit, scale = shown_unit(metric)
    return format_mean(amount, scale, unit)


def scaled_unit(unit: str) -> tuple[str, int]:
    """The unit in which amounts of a unit are shown, and how many make one of it."""
    return ("count", MILLIONTHS) if unit == IN_MILLIONTHS else (unit, 1)


def basis(metrics: Sequence[MetricTotal], *, totals: bool) -> str:
    """Of what the numbers of these metrics are, in words.

    Times, samples and simulated counts of one run are of different numbers of invocations: each is told then.
    """
    several = [*dict.fromkeys(map(known_invocations, metrics))]
    if several == [0]:
        return "sums of the whole run" + ("" if totals else ", not per invocation")
    if len(several) == 1:
        return f"sums of {plural(several[0], 'invocation')}" if totals else f"per invocation, mean of {several[0]:,}"
    of = {calls: [metric.name for metric in metrics if known_invocations(metric) == calls] for calls in several}
    first = next(calls for calls in several if calls)
    words = {calls: _of_sums(calls, calls == first) if totals else _of_means(calls) for calls in several}
    told = "; ".join(f"{', '.join(names)} {words[calls]}" for calls, names in of.items())
    return f"{'sums' if totals else 'per invocation'}: {told}"


def _of_sums(calls: int, is_first: bool) -> str:
    if not calls:
        return "in all"
    return f"of {plural(calls, 'invocation')}" if is_first else f"of {calls:,}"


def _of_means(calls: int) -> str:
    if not calls:
        return "in all"
    return f"mean of {calls:,}" if calls > 1 else "of 1"


def counted_in(metric: MetricTotal, metrics: Sequence[MetricTotal]) -> str:
    """How many invocations the sums of a metric are of, where those of other metrics are of others; else nothing."""
    if len({*map(known_invocations, metrics)}) < 2:
        return ""
    calls = known_invocations(metric)
    return f"of {plural(calls, 'invocation')}" if calls else "of an unknown number of invocations"


def elapsed_of_one(attribution: Attribution) -> Integer:
    """The elapsed time of one invocation, on average; unknown where its parts are, and of several functions."""
    run = attribution.run
    if isinstance(run.elapsed_ns, Unknown) or isinstance(run.iterations, Unknown) or not run.iterations:
        return UNKNOWN
    return run.elapsed_ns // run.iterations if len(attribution.functions) <= 1 else UNKNOWN


def invocations_said(run: RunHeader) -> str:
    """How many calls were measured, and in how many launches of the program, where there were several.

    Nothing tells how many those of a window were made in.
    """
    all_told = run.launches > 1 and not tells(run.diagnostics, WINDOW)
    launches = f" in {run.launches} launches" if all_told else ""
    return f"{format_count(run.iterations)}{launches}"


def elapsed_said(attribution: Attribution) -> str:
    """The elapsed time of one invocation, which is a mean, with the median beside it; the whole where that is unknown.

    The two differ where a few calls take far longer than the others.
    """
    of_one, timed = elapsed_of_one(attribution), attribution.run.invocation
    if isinstance(of_one, Unknown):
        whole = format_ns(attribution.run.elapsed_ns)
        return f"{whole} in all" if len(attribution.functions) > 1 else whole
    median = with_interval(timed.median_ns, timed.low_ns, timed.high_ns)
    beside = "" if isinstance(timed.median_ns, Unknown) else f", median {median}"
    return f"{format_ns(of_one)} per invocation (mean){beside}"


def with_interval(median_ns: Integer, low_ns: Integer, high_ns: Integer) -> str:
    """A median with the ends of its 95 % interval, which a few values do not have.

    >>> with_interval(311_000, 305_000, 320_000), with_interval(5, UNKNOWN, UNKNOWN)
    ('311 µs (95 %: 305 to 320 µs)', '5 ns (too few for an interval)')
    """
    if isinstance(low_ns, Unknown) or isinstance(high_ns, Unknown):
        return f"{format_ns(median_ns)} (too few for an interval)"
    low, high = format_ns(low_ns), format_ns(high_ns)
    unit = high.rpartition(" ")[2]
    return f"{format_ns(median_ns)} (95 %: {low.removesuffix(f' {unit}')} to {high})"


# ---- advice
#
# What `record --compare-devices` measured, and what to try where most of the elapsed time is spent around kernels.
#
# What another device would take is never guessed: it was measured, or the advice is to do so.


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
