"""The median of what was measured, and the interval in which it lies.

The ends of the interval are values of the sample (`order.median_ranks`). Neither a mean nor a normal distribution is
assumed: the times of programs have no symmetric distribution and no bounded spread (J.-Y. Le Boudec: Performance
Evaluation of Computer and Communication Systems, 2010, section 2.2). What is assumed is that values do not depend on
each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracemap.measurements.order import FEWEST, median_ranks
from tracemap.units import UNKNOWN, Integer

if TYPE_CHECKING:
    import numpy.typing as npt


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
