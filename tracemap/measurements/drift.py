"""By how much the machine was slower in one recording than in another, told by what should cost the same in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracemap.measurements.order import weighted_quantile
from tracemap.units import UNKNOWN, Unknown

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
