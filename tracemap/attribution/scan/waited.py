"""Kernels of which most calls waited: the fence of those that did not.

In a run whose threads share processors with other programs, most calls of a kernel may have been preempted for as long
as the others took turns with it; the middle of its calls is then one that waited, and so is all that a fence is made
of from there. What waited is longer than what did not. So the search goes from the fastest quarter of the calls
outwards: their fence, as that of all calls is made (the median and four times its distance from the lower quartile),
holds further calls, these have a fence of their own, and so on, until it holds no more (forward search: Atkinson and
Riani, Robust Diagnostic Regression Analysis, 2000). Where calls lie without a gap, it comes to the fence of all.

Where it stops short of that, there is a gap, which a kernel's own modes may have as well: a core that another thread
uses, data in another cache. A wait is known by its length. Linux gives who runs at least its base slice before another
one has its turn (`base_slice_ns`, kernel/sched/fair.c: 0.7 ms for one processor, more for several). So the fence of the
fastest is taken only where those beyond it take longer by a slice, and by half; what recurs in each invocation is work
all the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from tracemap.attribution.scan.fences import DISTANCES, FEWEST
from tracemap.attribution.scan.outliers import words_of
from tracemap.attribution.scan.rows import Resolved

_LEAST_WAIT_NS = 700_000
_FEWEST = 4 * FEWEST
"""Calls of which a quarter are as many as a fence takes."""
_PARTS = 128
"""Into how many parts the calls of a group are divided, in order of what they took."""

# Of groups in which calls within the fence lie a wait apart.
_ORDERED = """
SELECT groups.target, groups.shape, any_value(groups.{fence}), quantile_disc(event.{value}, {fractions})
FROM resolved AS event JOIN (
    SELECT * FROM groups WHERE {fence} - least_{number} >= {least_wait} AND events - absent_{number} >= {fewest}
) AS groups ON {same_group} GROUP BY ALL
"""
_UPDATE = """
UPDATE groups SET {fence} = waited.fence FROM waited
WHERE groups.target = waited.target AND groups.shape IS NOT DISTINCT FROM waited.shape
"""


def lower_to_fastest(resolved: Resolved, metrics: Sequence[int]) -> None:
    """Give groups of which most calls waited the fence of those that did not, in the table `groups`.

    Args:
        resolved: all events of runs of which more than a quarter of the calls may have been disturbed.
        metrics: the numbers of those that have fences.
    """
    for number in metrics:
        words = words_of(resolved, number) | {
            "fractions": [part / _PARTS for part in range(1, _PARTS + 1)],
            "least_wait": _LEAST_WAIT_NS,
            "fewest": _FEWEST,
        }
        rows = [
            (target, shape, lowered)
            for target, shape, fence, ordered in resolved.tables.query(_ORDERED.format(**words))
            if (lowered := fence_of_fastest(ordered, fence)) < fence
        ]
        if rows:
            resolved.tables.fill("waited", "target INTEGER, shape BIGINT, fence BIGINT", rows)
            resolved.tables.query(_UPDATE.format(**words))


def fence_of_fastest(ordered: Sequence[int], fence: int) -> int:
    """The fence of the fastest calls where the others within the fence of all waited, else that of all.

    Args:
        ordered: what calls took, in nanoseconds: the greatest of each of `_PARTS` parts of them, the fastest first.
        fence: that of all calls, in nanoseconds.
    """
    held = _PARTS // 4
    while True:
        median, quartile = ordered[held // 2 - 1], ordered[held // 4 - 1]
        lowered = max(ordered[held - 1], median + DISTANCES * (median - quartile))
        if (holds := bisect_right(ordered, lowered)) == held:
            break
        held = holds
    beyond = ordered[held : bisect_right(ordered, fence)]
    if not beyond:
        return fence
    longer = beyond[len(beyond) // 2] - median
    return lowered if longer >= max(_LEAST_WAIT_NS, median // 2) else fence
