"""Order statistics: which values of a sorted sample say between what bounds its median lies."""

from __future__ import annotations

import math

_TAIL = 0.025
"""What a 95 % interval leaves out on either side."""
_DEVIATIONS = 9
"""Standard deviations from the middle beyond which a binomial distribution has nothing that a float would tell."""

FEWEST = 6
"""Values from which the least and the largest hold the median with 95 %: 1 - 2 / 2**6."""


def median_ranks(count: int) -> tuple[int, int]:
    """The ranks (from 1) of the values that bound the median with at least 95 %, whatever the distribution.

    How many of the values lie below the median is binomial (David and Nagaraja, Order Statistics, 2003, section 7.1).

    Raises:
        ValueError: there are fewer than `FEWEST` values, of which no two are sure enough.
    """
    if count < FEWEST:
        raise ValueError(f"{count} values do not tell between what bounds their median lies")
    # The largest rank below which the median lies with no more than a tail's probability.
    low = max(0, math.floor(count / 2 - _DEVIATIONS * math.sqrt(count) / 2))
    below = _probability(count, low)
    while below <= _TAIL:
        low += 1
        below += _probability(count, low)
    return low, count + 1 - low


def _probability(count: int, heads: int) -> float:
    """That so many of `count` coins show heads."""
    ways = math.lgamma(count + 1) - math.lgamma(heads + 1) - math.lgamma(count - heads + 1)
    return math.exp(ways - count * math.log(2))
