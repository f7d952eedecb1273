"""Of what the numbers are that people read: of one invocation, as a mean of those measured, or of the whole run."""

from __future__ import annotations

from collections.abc import Sequence

from tracemap.attribution.model import Attribution, MetricTotal
from tracemap.attribution.scan.metrics import IN_MILLIONTHS, MILLIONTHS
from tracemap.diagnostics import WINDOW, tells
from tracemap.measurements.model import RunHeader
from tracemap.units import UNKNOWN, Integer, Unknown, format_count, format_mean, format_ns, plural


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
