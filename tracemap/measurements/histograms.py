"""Histograms of measured values: bins that suit them, and how many values lie in each; every value is in one.

Times and counts often span decades: then bins are equal in the logarithm, and zeros, which have none, are counted
apart. Bins of whole numbers hold whole numbers: one of a few each, or equally many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_BINS: Final = 40
_SPANS_DECADES = 20
"""From this ratio of the largest to the smallest value on, bins are equal in the logarithm."""
_EXACT_BELOW = 2**53
"""Whole numbers in double precision are exact below this."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values lie in each bin, from `edges[i]` up to but not at `edges[i + 1]`; the last has its end too.

    `whole`: all values are whole numbers, and so are the edges. `logarithmic`: bins are equal in the logarithm (about,
    where they are whole), and `zeros` values are in no bin, being 0.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    zeros: int
    whole: bool
    logarithmic: bool

    @property
    def total(self) -> int:
        """How many values there are."""
        return self.zeros + sum(self.counts)


def histogram(values: npt.NDArray[np.floating]) -> Histogram:
    """The histogram of finite values, of which there is at least one."""
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
    """Rising, the first at `low`, the last at `high` or, of whole numbers, above it."""
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
