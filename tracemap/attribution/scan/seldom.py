"""What targets are like over all invocations that have at most one event in each, and none in some.

So it is with a branch, or with one entry point of several. A sum is then an event's value without what disturbed it, or
nothing: values are counted, and nothing as often as an invocation has no event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tracemap.attribution.model import PerInvocation
from tracemap.attribution.scan.invocations import Invocations, spread
from tracemap.attribution.scan.metrics import value_column
from tracemap.attribution.scan.outliers import fence_column
from tracemap.attribution.scan.rows import Resolved

# What is cut off beyond a fence keeps the order of values, and is cut off at the end.
_IN_ORDER = """
WITH counted AS (SELECT target, coalesce({value}, 0) AS value, count(*) AS n
                 FROM resolved SEMI JOIN seldom USING (target) GROUP BY ALL
                 UNION ALL SELECT target, 0, {count} - events FROM groups SEMI JOIN seldom USING (target)
                 WHERE events < {count}),
     ranked AS (SELECT target, value, sum(sum(n)) OVER (PARTITION BY target ORDER BY value) AS upto
                FROM counted GROUP BY target, value)
SELECT target, any_value({fence}), {values} FROM ranked JOIN groups USING (target) GROUP BY target ORDER BY target
"""
_RANKED = "min(value) FILTER (upto >= {rank})"


def seldom_called(
    resolved: Resolved, targets: Sequence[int], of_all: Invocations
) -> Mapping[int, Mapping[str, PerInvocation]]:
    """By target and metric name, what it has in an invocation.

    Args:
        resolved: all events; the table `groups` has been made of them, with fences.
        targets: those whose events are of one shape, and all of different invocations.
        of_all: the invocations, whose number is known.
    """
    if not targets:
        return {}
    found: dict[int, dict[str, PerInvocation]] = defaultdict(dict)
    resolved.tables.fill("seldom", "target INTEGER", [(target,) for target in targets])
    for number, metric in enumerate(resolved.metrics):
        query = _IN_ORDER.format(
            value=value_column(number),
            fence=fence_column(number),
            count=of_all.count,
            values=", ".join(_RANKED.format(rank=rank) for rank in of_all.ranks),
        )
        for target, fence, *values in resolved.tables.query(query):
            found[target][metric.name] = spread(value if fence is None else min(value, fence) for value in values)
    return found
