"""The calls that take longer than the fence of their group.

These are few, so all events are looked at only once for all metrics.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracemap.attribution.scan.metrics import value_column
from tracemap.attribution.scan.rows import Resolved

# All events are compared with a fence for each metric.
_OUTLIERS = """
SELECT event.*, groups.shape AS group_shape FROM resolved AS event JOIN groups ON {same_group}
WHERE groups.target >= 0 AND ({conditions})
"""


def fence_column(number: int) -> str:
    """The column of the table `groups` that has the fence of the n-th metric; NULL: there is none."""
    return f"fence_{number}"


def largest_column(number: int) -> str:
    """The column of the table `groups` that has the largest value of the n-th metric, or the few largest in order."""
    return f"largest_{number}"


def words_of(resolved: Resolved, number: int) -> dict[str, object]:
    """What stands for the n-th metric in queries of events and the fences of their groups."""
    return {
        "number": number,
        "value": value_column(number),
        "fence": fence_column(number),
        "same_group": resolved.same_group,
    }


def worked(number: int) -> str:
    """What an `event` has of the n-th metric without what lies beyond the fence of its row of `groups`, in SQL."""
    value, fence = f"event.{value_column(number)}", f"groups.{fence_column(number)}"
    return f"CASE WHEN {value} > {fence} THEN {fence} ELSE coalesce({value}, 0) END"


def find_outliers(resolved: Resolved, fenced: Sequence[int]) -> None:
    """Make the table `outliers`: events of `resolved` beyond a fence, with the shape of their group.

    Args:
        resolved: all events; the table `groups` has been made of them.
        fenced: the numbers of the metrics that have fences.
    """
    beyond = (f"event.{value_column(number)} > groups.{fence_column(number)}" for number in fenced)
    query = _OUTLIERS.format(same_group=resolved.same_group, conditions=" OR ".join(beyond) or "false")
    resolved.tables.make("outliers", query)
