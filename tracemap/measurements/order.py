"""Order statistics: which values of a sorted sample say between what bounds its median lies."""

from __future__ import annotations

import math
from functools import lru_cache

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


def _probability(count: int, heads: int) -> float:
    """That so many of `count` coins show heads."""
    ways = math.lgamma(count + 1) - math.lgamma(heads + 1) - math.lgamma(count - heads + 1)
    return math.exp(ways - count * math.log(2))
