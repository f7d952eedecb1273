"""Medians with confidence intervals, order statistics, and drift between recordings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from tracemap.units import UNKNOWN, Integer, Unknown

if TYPE_CHECKING:
    import numpy.typing as npt


# ---- order
#
# Order statistics: the values of a sample that bound its median, its quartiles, quantiles of weighted values.


_TAIL = 0.025
"""What a 95 % interval leaves out on either side."""

FEWEST = 6
"""Values from which the least and the largest hold the median with 95 %: 1 - 2 / 2**6."""


@lru_cache(maxsize=64)  # asked for each target
def median_ranks(count: int) -> tuple[int, int]:
    """The ranks (from 1) of the values that bound the median with at least 95 %, whatever the distribution.

    How many of the values lie below the median is binomial (David and Nagaraja, Order Statistics, 2003, section 7.1).

    Raises:
        ValueError: there are fewer than `FEWEST` values, of which no two are sure enough.
    """
    if count < FEWEST:
        raise ValueError(f"{count} values do not tell between what bounds their median lies")
    # Downwards from the middle, where half of the probability lies: the rank that has no more than a tail below it is
    # near, however many values there are. An even count has a rank in the very middle, of which half is on either side.
    low = count // 2
    upto = 0.5 if count % 2 else 0.5 + _probability(count, low) / 2
    while (below := upto - _probability(count, low)) > _TAIL:
        upto = below
        low -= 1
    return low, count + 1 - low


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The first quartile, the median and the third quartile of a sample, interpolated between its values; not empty."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return q1, median, q3


def weighted_quantile(weighted: Sequence[tuple[float, float]], part: float) -> float:
    """The least of values, each with its weight, that with all that are less has this part of the weight; not empty."""
    ordered = sorted(weighted)
    enough = part * sum(weight for _, weight in ordered)
    passed = accumulate(weight for _, weight in ordered)
    reached = (value for (value, _), weight in zip(ordered, passed, strict=True) if weight >= enough)
    return next(reached, ordered[-1][0])


def _probability(count: int, heads: int) -> float:
    """That so many of `count` coins show heads."""
    ways = math.lgamma(count + 1) - math.lgamma(heads + 1) - math.lgamma(count - heads + 1)
    return math.exp(ways - count * math.log(2))


# ---- drift
#
# By how much the machine was slower in one recording than in another, told by what should cost the same in both.


_LEAST_PARTS: Final = 3
"""Of fewer, no drift of the machine can be told."""
_ENOUGH: Final = 0.25
"""Of both recordings: beside what takes fifty times as long, others find their data gone from caches."""


def slower_by(unchanged: Sequence[tuple[float, float]], wholes: tuple[float, float]) -> float | Unknown:
    """How many times as much the same work cost in the second recording; unknown where too little of it is there.

    The median of the ratios, each counted by its cost: what one part does by itself does not move it.

    Args:
        unchanged: of each part to which nothing was done what it cost, in the first recording and in the second.
        wholes: what all parts cost, changed or not.
    """
    ratios = [(two / one, one) for one, two in unchanged if one > 0 and two > 0]
    parts = (sum(one for one, _ in unchanged), sum(two for _, two in unchanged))
    if len(ratios) < _LEAST_PARTS or any(part < _ENOUGH * whole for part, whole in zip(parts, wholes, strict=True)):
        return UNKNOWN
    return weighted_quantile(ratios, 0.5)


# ---- medians
#
# The median of what was measured, and the interval in which it lies.
#
# The ends of the interval are values of the sample (`order.median_ranks`). Neither a mean nor a normal distribution is
# assumed: the times of programs have no symmetric distribution and no bounded spread (J.-Y. Le Boudec: Performance
# Evaluation of Computer and Communication Systems, 2010, section 2.2). What is assumed is that values do not depend on
# each other.


@dataclass(frozen=True, slots=True)
class Median:
    """The median of `count` values, and the ends of its 95 % interval, unknown where there are too few values."""

    count: int
    value: Integer
    low: Integer
    high: Integer

    @property
    def error(self) -> float:
        """How far the interval reaches from the median, to its farther end, as a share of it; infinite: not known."""
        if not (isinstance(self.value, int) and isinstance(self.low, int) and isinstance(self.high, int)):
            return math.inf
        reach = max(self.high - self.value, self.value - self.low)
        return reach / self.value if self.value else (math.inf if reach else 0.0)

    def is_near(self, other: Median, share: float) -> bool:
        """Whether another median differs by no more than a share of this one; one that is unknown is near to none."""
        if not (isinstance(self.value, int) and isinstance(other.value, int)):
            return False
        return abs(other.value - self.value) <= share * self.value

    def overlaps(self, other: Median) -> bool:
        """Whether two intervals have something in common; one that is unknown has nothing."""
        low, high = self.low, self.high
        if not (isinstance(low, int) and isinstance(high, int)):
            return False
        return isinstance(other.low, int) and isinstance(other.high, int) and low <= other.high and other.low <= high

    def holds(self, value: Integer) -> bool:
        """Whether a value lies in the interval; nothing lies in one that is unknown."""
        return self.overlaps(Median(1, value, value, value))


def median_of(values: npt.NDArray[Any]) -> Median:
    """The median of integers, rounded down where two lie in the middle, and its interval."""
    import numpy as np

    count = len(values)
    if not count:
        return Median(0, UNKNOWN, UNKNOWN, UNKNOWN)
    ordered = np.sort(values)
    middle = (int(ordered[(count - 1) // 2]) + int(ordered[count // 2])) // 2
    if count < FEWEST:
        return Median(count, middle, UNKNOWN, UNKNOWN)
    low, high = median_ranks(count)
    return Median(count, middle, int(ordered[low - 1]), int(ordered[high - 1]))
