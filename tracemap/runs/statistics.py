"""Medians with their confidence intervals, and histograms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracemap.core.units import UNKNOWN, Integer, Unknown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# ---- histograms
#
# Histograms of measured values; every value is in exactly one bin, or counted as a zero.
#
# Times and counts often span decades. Bins then have equal logarithmic width, and zeros are counted separately. Edges
# of bins for integers are integers, so that every bin covers the same number of integers.


MOST_BINS: Final = 40
_SPANS_DECADES = 20
"""Ratio of the largest to the smallest value from which bins are logarithmic."""
_EXACT_BELOW = 2**53
"""Limit below which integers are exact in double precision."""


class Histogram(msgspec.Struct, frozen=True):
    """Number of values per bin, from `edges[i]` up to but excluding `edges[i + 1]`; the last bin includes its end.

    `whole`: all values and edges are integers. `logarithmic`: bins have equal logarithmic width (approximately, for
    integers), and `zeros` values are 0 and in no bin.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    zeros: int
    whole: bool
    logarithmic: bool

    @property
    def total(self) -> int:
        """Number of values."""
        return self.zeros + sum(self.counts)


def histogram(values: npt.NDArray[np.floating]) -> Histogram:
    """The histogram of finite values; there must be at least one."""
    import numpy as np

    numbers = values.astype(np.float64)
    whole = bool((numbers == np.rint(numbers)).all() and np.abs(numbers).max() < _EXACT_BELOW)
    few = whole and numbers.max() - numbers.min() < MOST_BINS
    positive = numbers[numbers > 0]
    logarithmic = bool(
        not few and numbers.min() >= 0 and len(positive) and positive.max() >= _SPANS_DECADES * positive.min()
    )
    binned = positive if logarithmic else numbers
    edges = _edges(float(binned.min()), float(binned.max()), whole=whole, logarithmic=logarithmic)
    counts, _ = np.histogram(binned, bins=np.array(edges))
    zeros = len(numbers) - len(binned)
    return Histogram(edges, tuple(map(int, counts)), zeros, whole, logarithmic)


def _edges(low: float, high: float, *, whole: bool, logarithmic: bool) -> tuple[float, ...]:
    """Ascending edges, from `low` to `high`, or to above it for integers."""
    import numpy as np

    if logarithmic:
        edges = np.geomspace(low, high + 1 if whole else high, MOST_BINS + 1)
        edges = np.unique(np.rint(edges)) if whole else edges
        edges[0], edges[-1] = low, high + 1 if whole else high
    elif whole:
        width = -(-(high + 1 - low) // MOST_BINS)
        edges = low + width * np.arange((high - low) // width + 2)
    elif low == high:
        edges = np.array([low, high])
    else:
        edges = np.linspace(low, high, MOST_BINS + 1)
        edges[-1] = high
    return tuple(map(float, edges))


# ---- order
#
# Order statistics: bounds of the median, quartiles, and quantiles of weighted values.


_TAIL = 0.025
"""The probability outside a 95 % interval on either side."""

FEWEST_VALUES = 6
"""Fewest values whose smallest and largest bound the median with 95 %: 1 - 2 / 2**6."""


@lru_cache(maxsize=64)  # called for every target
def median_ranks(count: int) -> tuple[int, int]:
    """The ranks (from 1) of the values that bound the median with at least 95 %, for any distribution.

    The number of values below the median is binomial (David and Nagaraja, Order Statistics, 2003, section 7.1).

    Raises:
        ValueError: there are fewer than `FEWEST` values, too few for 95 %.
    """
    if count < FEWEST_VALUES:
        raise ValueError(f"{count} values are too few for a 95 % interval of the median")
    # Search downwards from the middle, which has half of the probability on either side: the rank with at most a tail
    # below it is near the middle for any count. Half of the middle rank's probability is on each side if count is even.
    low = count // 2
    upto = 0.5 if count % 2 else 0.5 + _probability(count, low) / 2
    while (below := upto - _probability(count, low)) > _TAIL:
        upto = below
        low -= 1
    return low, count + 1 - low


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The first quartile, the median and the third quartile of a nonempty sample, interpolated between its values."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return q1, median, q3


def weighted_quantile(weighted: Sequence[tuple[float, float]], part: float) -> float:
    """The smallest value at which the cumulative weight reaches a fraction; `weighted` has (value, weight) pairs."""
    ordered = sorted(weighted)
    target = part * sum(weight for _, weight in ordered)
    cumulative = accumulate(weight for _, weight in ordered)
    reached = (value for (value, _), weight in zip(ordered, cumulative, strict=True) if weight >= target)
    return next(reached, ordered[-1][0])


def _probability(count: int, heads: int) -> float:
    """The probability of `heads` heads among `count` fair coins."""
    ways = math.lgamma(count + 1) - math.lgamma(heads + 1) - math.lgamma(count - heads + 1)
    return math.exp(ways - count * math.log(2))


# ---- drift
#
# Drift of the machine between two recordings, from work that should cost the same in both.


_LEAST_PARTS: Final = 3
"""Fewest unchanged parts from which drift can be estimated."""
_LEAST_SHARE: Final = 0.25
"""Least fraction of both recordings that must be unchanged: a kernel fifty times as long evicts the data of others."""


def drift_ratio(unchanged: Sequence[tuple[float, float]], wholes: tuple[float, float]) -> float | Unknown:
    """The factor by which the same work cost more in the second recording; unknown if too little work is unchanged.

    It is the median of the ratios weighted by cost, so that a change of a single part does not move it.

    Args:
        unchanged: the costs of each unchanged part in the first and the second recording.
        wholes: the total costs of all parts, changed or not.
    """
    ratios = [(second / first, first) for first, second in unchanged if first > 0 and second > 0]
    sums = (sum(first for first, _ in unchanged), sum(second for _, second in unchanged))
    has_enough = all(part >= _LEAST_SHARE * whole for part, whole in zip(sums, wholes, strict=True))
    if len(ratios) < _LEAST_PARTS or not has_enough:
        return UNKNOWN
    return weighted_quantile(ratios, 0.5)


# ---- medians
#
# The median of measurements, with its 95 % interval.
#
# The ends of the interval are values of the sample (`median_ranks`). Neither a mean nor a normal distribution is
# assumed, because times of programs have no symmetric distribution and no bounded spread (J.-Y. Le Boudec: Performance
# Evaluation of Computer and Communication Systems, 2010, section 2.2). Values are assumed to be independent.


class Median(msgspec.Struct, frozen=True):
    """The median of `count` values, and the ends of its 95 % interval, which are unknown for too few values."""

    count: int
    value: Integer
    low: Integer
    high: Integer

    @property
    def error(self) -> float:
        """Distance from the median to the farther end of the interval, relative to the median; infinite if unknown."""
        if not (isinstance(self.value, int) and isinstance(self.low, int) and isinstance(self.high, int)):
            return math.inf
        reach = max(self.high - self.value, self.value - self.low)
        return reach / self.value if self.value else (math.inf if reach else 0.0)

    def is_near(self, other: Median, share: float) -> bool:
        """Whether another median differs by at most `share` of this one; false if either is unknown."""
        if not (isinstance(self.value, int) and isinstance(other.value, int)):
            return False
        return abs(other.value - self.value) <= share * self.value

    def overlaps(self, other: Median) -> bool:
        """Whether the two intervals overlap; false if either is unknown."""
        low, high = self.low, self.high
        if not (isinstance(low, int) and isinstance(high, int)):
            return False
        return isinstance(other.low, int) and isinstance(other.high, int) and low <= other.high and other.low <= high

    def holds(self, value: Integer) -> bool:
        """Whether a value is in the interval; false if the interval is unknown."""
        return self.overlaps(Median(1, value, value, value))


def median_of(values: npt.NDArray[Any]) -> Median:
    """The median of integers, rounded down between two middle values, with its interval."""
    import numpy as np

    count = len(values)
    if not count:
        return Median(0, UNKNOWN, UNKNOWN, UNKNOWN)
    ordered = np.sort(values)
    middle = (int(ordered[(count - 1) // 2]) + int(ordered[count // 2])) // 2
    if count < FEWEST_VALUES:
        return Median(count, middle, UNKNOWN, UNKNOWN)
    low, high = median_ranks(count)
    return Median(count, middle, int(ordered[low - 1]), int(ordered[high - 1]))
