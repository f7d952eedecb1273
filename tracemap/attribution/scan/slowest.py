"""The slowest single calls of each target, as they were measured: what disturbed one is looked for here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tracemap.attribution.model import MOST_SLOWEST, SlowCall
from tracemap.attribution.scan.metrics import RANKED_BY, ranked_by, value_column
from tracemap.attribution.scan.outliers import largest_column
from tracemap.attribution.scan.rows import START, Resolved
from tracemap.units import UNKNOWN, Integer

# `least`: what the slowest calls of a target take at least, whatever their shapes. Calls that are as slow stand in the
# order of runs and invocations; which of those that are alike in all is no matter. The aggregate keeps as many calls as
# are wanted: a run of equal calls has nothing but slow ones.
_SLOWEST = """
SELECT event.target, min([{keys}], {most}) FROM (
    SELECT event.*, {run} AS run FROM resolved AS event JOIN (
        SELECT target, shape, {least} FROM groups WHERE target >= 0) AS groups ON {same_group}
    WHERE event.{value} >= groups.least) AS event
GROUP BY event.target ORDER BY event.target
"""
_NOTHING = -1
"""Stands for what is unknown, and before all that is known."""
_LEAST = "list_sort(flatten(list({largest}) OVER (PARTITION BY target)), 'DESC')[:{most}][-1] AS least"


def slowest_calls(resolved: Resolved) -> Mapping[int, tuple[SlowCall, ...]]:
    """By target its slowest calls, the slowest first; nothing where no run has times."""
    metrics = resolved.metrics
    ranked = ranked_by(metrics)
    if ranked is None:
        return {}
    numbers = {metric.name: number for number, metric in enumerate(metrics)}
    start = f"event.{START}" if resolved.has_starts else "NULL"
    values = [f"event.{value_column(numbers[name])}" if name in numbers else "NULL" for name in RANKED_BY]
    keys = (f"-event.{value_column(ranked)}", "event.run", "event.invocation", start, *values)
    query = _SLOWEST.format(
        keys=", ".join(f"CAST(coalesce({key}, {_NOTHING}) AS BIGINT)" for key in keys),
        most=MOST_SLOWEST,
        run=_run_of(resolved),
        least=_LEAST.format(largest=largest_column(ranked), most=MOST_SLOWEST),
        same_group=resolved.same_group,
        value=value_column(ranked),
    )
    found = defaultdict(list)
    wall, cpu = RANKED_BY.index("duration_ns"), RANKED_BY.index("cpu_ns")
    for target, calls in resolved.tables.query(query):
        for _, run, invocation, start_ns, *times in calls:
            which = _known(invocation, resolved.first_invocations[run])
            found[target].append(SlowCall(run + 1, which, _known(start_ns), _known(times[wall]), _known(times[cpu])))
    return {target: tuple(calls) for target, calls in found.items()}


def _run_of(resolved: Resolved) -> str:
    """The number of a row's run, from 0, in SQL: the rows of a run follow those of the runs before it."""
    return " + ".join(f"CAST(event.rowid >= {first} AS INTEGER)" for first in resolved.first_rows[1:]) or "0"


def _known(value: int, before: int = 0) -> Integer:
    """A number that is not less than nothing, as no clock and no counter gives such."""
    return UNKNOWN if value < before else int(value) - before
