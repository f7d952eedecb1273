"""Histograms of measured values; every value is in exactly one bin, or counted as a zero.

Times and counts often span decades. Bins then have equal logarithmic width, and zeros are counted separately. Edges of
bins for integers are integers, so that every bin covers the same number of integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_BINS: Final = 40
_SPANS_DECADES = 20
"""Ratio of the largest to the smallest value from which bins are logarithmic."""
_EXACT_BELOW = 2**53
"""Limit below which integers are exact in double precision."""


@dataclass(frozen=True, slots=True)
class Histogram:
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
