"""The median of what was measured, and the interval in which it lies.

The interval comes from order statistics: of `n` values that are drawn independently from one distribution, whatever it
is, the k-th smallest and the k-th largest enclose its median unless fewer than k lie on one side, and how many lie
below is binomial with probability one half. So P(x_k <= median <= x_(n+1-k)) >= 1 - 2 P(B < k), B ~ Binomial(n, 1/2)
(H. A. David, H. N. Nagaraja: Order Statistics, 3rd edition, 2003, section 7.1; for measurements of programs: J.-Y. Le
Boudec: Performance Evaluation of Computer and Communication Systems, 2010, theorem 2.1). No mean and no normal
distribution is assumed; the times of programs have neither a symmetric distribution nor a bounded spread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tracemap.units import UNKNOWN, Integer

if TYPE_CHECKING:
    import numpy.typing as npt

CONFIDENCE: Final = 0.95
"""How often an interval is to hold the median."""


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
    rank = median_rank(count)
    if not rank:
        return Median(count, middle, UNKNOWN, UNKNOWN)
    return Median(count, middle, int(ordered[rank - 1]), int(ordered[count - rank]))


@cache
def median_rank(count: int) -> int:
    """The largest k for which the k-th smallest and the k-th largest of so many values are the interval's ends.

    0: there is none, as of fewer than six values even the least and the greatest enclose the median too seldom.

    >>> [median_rank(count) for count in (5, 6, 9, 100)]
    [0, 1, 2, 40]
    """
    # The normal distribution comes close from either side; the exact tail decides.
    rank = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)) + 2)
    while rank and 2 * _below(count, rank) > 1 - CONFIDENCE:
        rank -= 1
    return rank


def _below(count: int, rank: int) -> float:
    """P(B < rank) for B ~ Binomial(count, 1/2), added up from its largest term downwards."""
    if rank > count:
        return 1.0
    places = rank - 1
    log_ways = math.lgamma(count + 1) - math.lgamma(places + 1) - math.lgamma(count - places + 1)
    term = total = math.exp(log_ways - count * math.log(2))
    while places and term > total * 1e-16:
        term *= places / (count - places + 1)
        total += term
        places -= 1
    return total
