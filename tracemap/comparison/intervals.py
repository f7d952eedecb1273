"""Intervals of 95 % for how many times as much something costs as before: within a run, and from run to run.

Costs are compared as logarithms, so that a ratio is a difference. Of one run on a side, the bounds are those of the
median over its invocations (order statistics; David and Nagaraja, Order Statistics, 2003, section 7.1). Of several,
they are those of a mean over runs in which each counts by how surely it is known: runs differ in truth by a variance
of their own (DerSimonian and Laird, Controlled Clinical Trials 7, 1986, p. 177), and the mean has the bounds of
Hartung and Knapp (Statistics in Medicine 20, 2001, p. 3875), by Student's t. A run that was disturbed, whose
invocations lie far apart, counts little. The difference of two values that have bounds has those of Zou and Donner
(Statistics in Medicine 27, 2008, p. 1693): distances of bounds are added as squares. As many runs on both sides are
laid against one another pair by pair: what changes on the machine from recording to recording changes both of a pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

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
