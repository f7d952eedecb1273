"""Order statistics: the values of a sample that bound its median, its quartiles, quantiles of weighted values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

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
