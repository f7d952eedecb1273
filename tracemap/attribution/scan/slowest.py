"""The slowest single calls of each target, as they were measured: what disturbed one is looked for here.

They are among the outliers, with others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tracemap.attribution.model import MOST_SLOWEST, SlowCall
from tracemap.attribution.scan.metrics import RANKED_BY, ranked_by, value_column
from tracemap.attribution.scan.rows import START, Resolved
from tracemap.units import UNKNOWN, Integer

# Calls that are as slow stand in the order of runs and invocations; which of those that are alike in all is no matter.
_SLOWEST = """
SELECT event.target, {run} AS run, event.invocation, {columns} FROM outliers AS event WHERE event.slow
QUALIFY row_number() OVER (PARTITION BY event.target ORDER BY {order}) <= {most}
ORDER BY event.target, {order}
"""


def slowest_calls(resolved: Resolved) -> Mapping[int, tuple[SlowCall, ...]]:
    """By target its slowest calls, the slowest first; nothing where no run has times."""
    metrics = resolved.metrics
    ranked = ranked_by(metrics)
    if ranked is None:
        return {}
    numbers = {metric.name: number for number, metric in enumerate(metrics)}
    start = f"event.{START}" if resolved.has_starts else "NULL"
    values = [f"event.{value_column(numbers[name])}" if name in numbers else "NULL" for name in RANKED_BY]
    keys = (f"event.{value_column(ranked)} DESC", "run", "event.invocation", start, *values[1:])
    query = _SLOWEST.format(
        most=MOST_SLOWEST,
        run=_run_of(resolved),
        columns=", ".join((start, *values)),
        order=", ".join(f"{key} NULLS FIRST" for key in keys if key != "NULL"),
    )
    found = defaultdict(list)
    wall, cpu = RANKED_BY.index("duration_ns"), RANKED_BY.index("cpu_ns")
    for target, run, invocation, start_ns, *times in resolved.tables.query(query):
        which = _known(invocation, resolved.first_invocations[run])
        call = SlowCall(run + 1, which, _known(start_ns), _known(times[wall]), _known(times[cpu]))
        found[target].append(call)
    return {target: tuple(calls) for target, calls in found.items()}


def _run_of(resolved: Resolved) -> str:
    """The number of a row's run, from 0, in SQL: the rows of a run follow those of the runs before it."""
    return " + ".join(f"CAST(event.row >= {first} AS INTEGER)" for first in resolved.first_rows[1:]) or "0"


def _known(value: int | None, before: int = 0) -> Integer:
    """A number that is not less than nothing, as no clock and no counter gives such."""
    return UNKNOWN if value is None or value < before else int(value) - before
