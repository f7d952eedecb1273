"""How a site's cost is split over its members: weights in whole numbers, and how sure they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracemap.units import split_by_largest_remainder

_Z = 1.959963984540054
"""Of the normal distribution, for 95 %."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a site's members, in member order, and of nobody after them.

    `seen`: how much was measured that they rest on; `sampled`: that is subject to chance; `equal`: there was nothing to
    go by, so those of all members are the same.
    """

    values: tuple[int, ...]
    seen: int = 0
    sampled: bool = False
    equal: bool = False

    def split(self, total: int) -> list[int]:
        """A total split over members and nobody, exactly; without any weight evenly over members."""
        if not any(self.values):
            return [*split_by_largest_remainder(total, self.values[:-1]), 0]
        return split_by_largest_remainder(total, self.values)

    def intervals(self, total: int) -> list[tuple[int, int]]:
        """The 95 % intervals of the parts of a total, if these rest on samples."""
        bounds = [wilson(value, self.seen) for value in self.values]
        return [
            (min(part, math.floor(total * low)), max(part, math.ceil(total * high)))
            for part, (low, high) in zip(self.split(total), bounds, strict=True)
        ]


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson, JASA 22, 1927); within 0 and 1."""
    share, square = successes / trials, _Z * _Z / trials
    middle = share + square / 2
    half = _Z * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    low = (middle - half) / (1 + square) if successes else 0.0
    return low, (middle + half) / (1 + square) if successes < trials else 1.0
