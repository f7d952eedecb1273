"""The calls that take the longest of their kind: beyond the fence of their group, or among the slowest of their target.

These are few, so all events are looked at only once for both.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracemap.attribution.model import MOST_SLOWEST
from tracemap.attribution.scan.metrics import ranked_by, value_column
from tracemap.attribution.scan.rows import Resolved

# `least`: what the slowest calls of a target take at least, whatever their shapes. A `limit` is what a call must be
# beyond, for whatever reason: all events are compared with one for each metric.
_OUTLIERS = """
SELECT event.rowid AS row, event.*, groups.shape AS group_shape, {slow} AS slow
FROM resolved AS event JOIN (
    SELECT target, shape, {limits} FROM (SELECT *, {least} FROM groups WHERE target >= 0)) AS groups ON {same_group}
WHERE {conditions}
"""
_LEAST = "list_sort(flatten(list({largest}) OVER (PARTITION BY target)), 'DESC')[:{most}][-1] AS least"


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
    """Make the table `outliers`: events of `resolved` with their number as `row` and the shape of their group.

    `slow` are those that take as long as one of the slowest calls of their target.

    Args:
        resolved: all events; the table `groups` has been made of them.
        fenced: the numbers of the metrics that have fences.
    """
    ranked = ranked_by(resolved.metrics)
    limits = {number: fence_column(number) for number in fenced}
    least, slow = "0 AS least", "false"
    if ranked is not None:
        least = _LEAST.format(largest=largest_column(ranked), most=MOST_SLOWEST)
        slow = f"event.{value_column(ranked)} >= groups.least"
        limits[ranked] = f"least({limits.get(ranked, 'NULL')}, least - 1)"
    named = (f"{limit} AS limit_{number}" for number, limit in limits.items())
    query = _OUTLIERS.format(
        limits=", ".join(("least", *named)),
        least=least,
        slow=slow,
        same_group=resolved.same_group,
        conditions=" OR ".join(f"event.{value_column(number)} > groups.limit_{number}" for number in limits) or "false",
    )
    resolved.tables.make("outliers", query)
