"""The *shape* of a call as one number: calls of a target that have the same one do the same work.

The upper half of the number is how many workgroups the call has, 0 where that is unknown, as of what is no dispatch.
The lower half tells counts apart that come to the same product, and lengths of what moves bytes: unequal shapes with as
many workgroups share a number once in 4 * 10^9 pairs. It is 0 where all of a target's calls have the same counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

_MOST = (1 << 31) - 1
"""Workgroups from which on a count is out of all reason, and unknown."""

_COUNTS = ("event.workgroups_x", "event.workgroups_y", "event.workgroups_z")
_TILES = " * ".join(f"CAST({count} AS DOUBLE)" for count in _COUNTS)

TOLD_BY_TILES: Final = f"CASE WHEN {_TILES} BETWEEN 1 AND {_MOST} THEN CAST({_TILES} AS BIGINT) << 32 ELSE 0 END"
"""The shape of an `event`, in SQL, where all calls of its target have the same counts and lengths."""

SHAPE: Final = f"({TOLD_BY_TILES}) + CAST(hash({', '.join(_COUNTS)}, event.payload_bytes) >> 32 AS BIGINT)"
"""The shape of any `event`, in SQL."""


def recorded_shape(workgroups: Sequence[int]) -> int:
    """The number that `TOLD_BY_TILES` gives the calls of a command that was recorded with these counts."""
    tiles = math.prod(workgroups) if workgroups else 0
    return tiles << 32 if tiles <= _MOST else 0


def tiles_of(shape: str) -> str:
    """How many workgroups a dispatch of a shape has, in SQL; NULL where it is unknown, as of what is no dispatch."""
    return f"nullif({shape} >> 32, 0)"
