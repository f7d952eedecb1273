"""Significant changes, by confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from tracemap.attribution.model import OpCost
from tracemap.comparison.model import Drift, Finding, Kind, OpRatio
from tracemap.measurements.medians import slower_by, weighted_quantile
from tracemap.units import UNKNOWN, Integer, Text, Unknown

# ---- intervals
#
# Intervals of 95 % for how many times as much something costs as before: within a run, and from run to run.
#
# Costs are compared as logarithms, so that a ratio is a difference. Of one run on a side, the bounds are those of the
# median over its invocations (order statistics; David and Nagaraja, Order Statistics, 2003, section 7.1). Of several,
# they are those of a mean over runs in which each counts by how surely it is known: runs differ in truth by a variance
# of their own (DerSimonian and Laird, Controlled Clinical Trials 7, 1986, p. 177), and the mean has the bounds of
# Hartung and Knapp (Statistics in Medicine 20, 2001, p. 3875), by Student's t. A run that was disturbed, whose
# invocations lie far apart, counts little. The difference of two values that have bounds has those of Zou and Donner
# (Statistics in Medicine 27, 2008, p. 1693): distances of bounds are added as squares. As many runs on both sides are
# laid against one another pair by pair: what changes on the machine from recording to recording changes both of a
# pair.


_CONFIDENCE: Final = 0.95
_NORMAL: Final = 1.96
"""Standard errors that bounds lie away from what they are of."""
_SUREST: Final = 1e-8
"""The least variance of a logarithm: nothing is known better than to a hundredth of a percent."""
_STEPS: Final = 60
"""Halvings of an interval, which leave nothing of it."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with its interval, over the invocations of a run."""

    median: float
    low: float
    high: float

    def times(self, factor: float) -> Spread:
        """The same, so many times as large."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)


def ratio_between(before: Sequence[Spread], after: Sequence[Spread]) -> Spread:
    """How many times as much something costs after; a `Spread` for each run, all above 0."""
    ones, twos = ([_log(run) for run in runs] for runs in (before, after))
    if len(ones) == len(twos):
        found = _together([_difference(one, two) for one, two in zip(ones, twos, strict=True)])
    else:
        found = _difference(_together(ones), _together(twos))
    return Spread(*map(math.exp, (found.median, found.low, found.high)))


def _log(run: Spread) -> Spread:
    return Spread(*map(math.log, (run.median, run.low, run.high)))


def _difference(one: Spread, two: Spread) -> Spread:
    middle = two.median - one.median
    down = math.hypot(two.median - two.low, one.high - one.median)
    up = math.hypot(two.high - two.median, one.median - one.low)
    return Spread(middle, middle - down, middle + up)


def _together(runs: Sequence[Spread]) -> Spread:
    """The mean over runs, each counted by how surely it is known, with its bounds; of one run, itself."""
    if len(runs) == 1:
        return runs[0]
    freedom, values = len(runs) - 1, [run.median for run in runs]
    within = [max(((run.high - run.low) / (2 * _NORMAL)) ** 2, _SUREST) for run in runs]
    weights = [1 / each for each in within]
    apart = _squares(values, weights, _mean(values, weights))
    scale = sum(weights) - sum(weight * weight for weight in weights) / sum(weights)
    between = max(0.0, (apart - freedom) / scale)
    weights = [1 / (each + between) for each in within]
    mean = _mean(values, weights)
    off = student(freedom) * math.sqrt(_squares(values, weights, mean) / freedom / sum(weights))
    return Spread(mean, mean - off, mean + off)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(weight * value for value, weight in zip(values, weights, strict=True)) / sum(weights)


def _squares(values: Sequence[float], weights: Sequence[float], mean: float) -> float:
    return sum(weight * (value - mean) ** 2 for value, weight in zip(values, weights, strict=True))


@cache
def student(freedom: int) -> float:
    """The value that Student's t with so many degrees of freedom lies within, up or down, with 95 %."""
    low, high = 0.0, math.pi / 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < _CONFIDENCE else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """That t lies within `tan(angle) * sqrt(freedom)`, up or down (Abramowitz and Stegun, 1964, 26.7.3 and 26.7.4)."""
    cosine, sine = math.cos(angle), math.sin(angle)
    if freedom % 2 == 0:
        return sine * sum(_terms(1.0, 1, cosine, freedom // 2))
    return 2 / math.pi * (angle + sine * sum(_terms(cosine, 2, cosine, freedom // 2)))


def _terms(first: float, odd: int, cosine: float, count: int) -> Iterator[float]:
    """So many terms: each is the one before, times cosine squared, times `odd` over `odd + 1`, then up by two."""
    term = first
    for number in range(count):
        yield term
        term *= cosine * cosine * (odd + 2 * number) / (odd + 2 * number + 1)


# ---- findings
#
# Which changes are more than chance: by intervals over invocations, and over runs (see "intervals" above).
#
# Where the interval of the ratio lies beyond the threshold, the change is named. Runs also differ as wholes: the
# machine is faster or slower from one to the next. Ops whose machine code is the same tell by how much, and all are
# corrected by that; they tell, too, by how much ops differ that nothing was done to, and what differs by less is not
# named. Such ops themselves are never named: what they cost more or less is of the machine, or of what ran before
# them.


LEAST_SHARE: Final = 0.005
"""Of an invocation: what changes it by less is not named."""
NO_DRIFT: Final = Drift(1.0, 1.0, 0)
_MOST_OF_COST: Final = 0.9


@dataclass(frozen=True, slots=True)
class Measured:
    """An op with what it costs in an invocation before and after; `same_code`: see `Drift`.

    `one`, `two`: for each run of the side; none where the op is not there, or not all runs tell. `steady`: the same
    without what the machine was slower in single invocations (`drift_correction`), where both sides tell that.
    """

    before: Text
    after: Text
    name: str
    line: Integer
    one: tuple[Spread, ...]
    two: tuple[Spread, ...]
    same_code: bool
    steady: tuple[tuple[Spread, ...], tuple[Spread, ...]] | None = None

    @property
    def has_ratio(self) -> bool:
        """Whether it surely costs something in all runs of both sides."""
        return bool(self.one and self.two) and min(run.low for run in (*self.one, *self.two)) > 0


@dataclass(frozen=True, slots=True)
class Machine:
    """How many times as slow the machine was for each run as for the first one before, and what that rests on."""

    one: tuple[float, ...]
    two: tuple[float, ...]
    drift: Drift

    def ratio_of(self, op: Measured) -> Spread | None:
        """How many times as much an op costs after, with the machine's part taken away: by invocation, or by run.

        None where it has no ratio.
        """
        if not op.has_ratio:
            return None
        if op.steady is not None and all(run.low > 0 for runs in op.steady for run in runs):
            return ratio_between(*op.steady)
        return ratio_between(_corrected(op.one, self.one), _corrected(op.two, self.two))


STEADY: Final = Machine((), (), NO_DRIFT)
"""Nothing tells that the machine was slower for one run than for another."""


def _corrected(runs: Sequence[Spread], factors: Sequence[float]) -> Sequence[Spread]:
    if not factors:
        return runs
    return [run.times(1 / factor) for run, factor in zip(runs, factors, strict=True)]


def spread_of(cost: OpCost | None) -> Spread | None:
    """The interval of an op's median; None where the run does not tell."""
    if cost is None:
        return None
    each = cost.per_invocation
    median, low, high = each.median, each.median_low, each.median_high
    if isinstance(median, Unknown) or isinstance(low, Unknown) or isinstance(high, Unknown):
        return None
    return Spread(median, low, high)


def machine_of(ops: Sequence[Measured]) -> Machine:
    """What ops with unchanged code tell of the machine, and how far they lie from that."""
    unchanged = [op for op in ops if op.same_code and op.has_ratio]
    if not unchanged:
        return STEADY
    ones = _factors([op.one for op in unchanged], [op.one for op in ops if op.one], unchanged)
    twos = _factors([op.two for op in unchanged], [op.two for op in ops if op.two], unchanged)
    if not ones or not twos:
        return STEADY
    machine = Machine(ones, twos, NO_DRIFT)
    apart = [
        (math.exp(abs(math.log(each.median))), op.one[0].median)
        for op in unchanged
        if (each := machine.ratio_of(op)) is not None
    ]
    ratio = math.exp(_mean_log(twos) - _mean_log(ones))
    return Machine(
        ones, twos, Drift(round(ratio, 4), round(weighted_quantile(apart, _MOST_OF_COST), 4), len(unchanged))
    )


def _factors(
    unchanged: Sequence[tuple[Spread, ...]], everything: Sequence[tuple[Spread, ...]], ops: Sequence[Measured]
) -> tuple[float, ...]:
    """How many times as slow the machine was for each run of a side as for the first one before; none where untold."""
    found = []
    for number in range(len(unchanged[0])):
        pairs = [(op.one[0].median, runs[number].median) for op, runs in zip(ops, unchanged, strict=True)]
        whole = sum(runs[number].median for runs in everything)
        factor = slower_by(pairs, (0.0, whole))
        if isinstance(factor, Unknown):
            return ()
        found.append(factor)
    return tuple(found)


def _mean_log(factors: Sequence[float]) -> float:
    return statistics.fmean(map(math.log, factors))


def findings(ops: Sequence[Measured], metric: str, threshold: float, machine: Machine = STEADY) -> tuple[Finding, ...]:
    """The changes beyond the threshold, in percent; the largest first."""
    least = LEAST_SHARE * sum(_median(op.one) for op in ops)
    found = [made for op in ops if not op.same_code for made in _finding(op, metric, threshold, machine, least)]
    found.sort(key=lambda each: -abs(_known(each.median_after) - _known(each.median_before)))
    return tuple(found)


def _median(runs: Sequence[Spread]) -> float:
    return statistics.median([run.median for run in runs]) if runs else 0.0


def _known(value: Integer) -> int:
    return 0 if isinstance(value, Unknown) else value


def _finding(op: Measured, metric: str, threshold: float, machine: Machine, least: float) -> Iterator[Finding]:
    if _costs_nothing(op.one) != _costs_nothing(op.two):
        # What costs something on one side only is named where that alone is beyond the threshold of an invocation.
        yield from _alone(op, metric, least / LEAST_SHARE * threshold / 100)
        return
    ratio, limit = machine.ratio_of(op), 1 + threshold / 100
    if ratio is None or abs(ratio.median - 1) * _median(op.one) < least:
        return
    if max(ratio.median, 1 / ratio.median) > machine.drift.spread and (ratio.low > limit or ratio.high < 1 / limit):
        yield _made("slower" if ratio.low > limit else "faster", op, metric, told(ratio))


def told(ratio: Spread) -> OpRatio:
    """A ratio in the digits in which it is told."""
    return OpRatio(*(round(each, 4) for each in (ratio.median, ratio.low, ratio.high)))


def _costs_nothing(runs: Sequence[Spread]) -> bool:
    """Whether an op is not there, or does nothing in any invocation, as on the way that a branch does not go."""
    return all(run.high <= 0 for run in runs)


def _alone(op: Measured, metric: str, enough: float) -> Iterator[Finding]:
    gone = _costs_nothing(op.two)
    here, there, other = (op.one, op.two, op.after) if gone else (op.two, op.one, op.before)
    # What not all runs of a side tell of has no spreads, though it is there.
    if min(run.low for run in here) > enough and (there or other is UNKNOWN):
        yield _made("gone" if gone else "new", op, metric, _NO_RATIO)


_NO_RATIO: Final = OpRatio(0.0, 0.0, 0.0)


def _made(kind: Kind, op: Measured, metric: str, ratio: OpRatio) -> Finding:
    return Finding(
        kind=kind,
        before=op.before,
        after=op.after,
        name=op.name,
        line=op.line,
        metric=metric,
        median_before=round(_median(op.one)) if op.one else UNKNOWN,
        median_after=round(_median(op.two)) if op.two else UNKNOWN,
        ratio=ratio.ratio,
        ratio_low=ratio.ratio_low,
        ratio_high=ratio.ratio_high,
    )


def beyond(found: Sequence[Finding], percent: float) -> list[Finding]:
    """Those that cost more than before by more than so much, at the near end of their interval, and new ones."""
    return [
        each for each in found if each.kind == "new" or (each.kind == "slower" and each.ratio_low > 1 + percent / 100)
    ]
