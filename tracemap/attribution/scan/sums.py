"""The events of each target: how many, per metric their sum, the percentiles of the single values, and what disturbed.

They are first grouped by target and shape, in the table `groups`: fences are of groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tracemap.attribution.model import MOST_SLOWEST, PerCall, PerInvocation
from tracemap.attribution.scan.fences import FENCE_FRACTIONS, FEWEST, disturbed, fence_of, lower_fences
from tracemap.attribution.scan.invocations import Invocations
from tracemap.attribution.scan.metrics import ranked_by, value_column
from tracemap.attribution.scan.ordered import ordered_values
from tracemap.attribution.scan.outliers import fence_column, find_outliers, largest_column
from tracemap.attribution.scan.percentiles import Spread, pooled
from tracemap.attribution.scan.rows import Resolved
from tracemap.attribution.scan.seldom import seldom_called
from tracemap.attribution.scan.shapes import tiles_of
from tracemap.attribution.scan.waited import lower_to_fastest
from tracemap.measurements.model import TIME_METRICS, Metric
from tracemap.units import UNKNOWN, Integer

# By target and shape. What is of no target has no shape, and nobody asks for its percentiles.
_GROUPS = """
SELECT *, {tiles} AS tiles{fences} FROM (
    SELECT target{shape}, {counts}{ordered} FROM resolved WHERE target >= 0 GROUP BY ALL
    UNION ALL BY NAME SELECT target, {counts} FROM resolved WHERE target < 0 GROUP BY ALL){joins}
"""
_COUNTS = """
, sum({value}) AS total_{number}, count(*) - count({value}) AS absent_{number}, {most} AS {largest}
, {least} AS least_{number}
"""
_FENCE = ", CAST(CASE WHEN {judged} AND events - absent_{number} >= {fewest} THEN {fence} END AS BIGINT) AS {column}"

_BY_TARGET = """
SELECT target, CAST(sum(events) AS BIGINT), count(*), CAST(any_value(invocations) AS BIGINT),
       CAST(sum(events * tiles) AS HUGEINT), count(*) FILTER (tiles IS NULL){columns}
FROM groups GROUP BY target ORDER BY target
"""
_OF_TARGET = """
, [CAST(sum(total_{number}) AS HUGEINT), CAST(sum(absent_{number}) AS HUGEINT), CAST(any_value({fence}) AS HUGEINT)],
list_append(any_value(ordered_{number}), any_value({largest})[1])
"""

_FRACTIONS = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Those of percentiles and of quartiles; the bounds of the median follow them."""
_OF_FENCE = [_FRACTIONS.index(each) + 1 for each in FENCE_FRACTIONS]
"""The places of those that a fence is made of, as SQL counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSum:
    """The events of one target; most of it by metric name.

    `absent`: how many events have no value; `per_call`: percentiles of the values; `disturbed`: the part of `sums` that
    lies beyond fences, at `disturbed_calls` events. `per_invocation`: what the sums of the rest in each invocation are
    like, where that is known without adding up: of targets with at most one event in each, all of one shape.
    `tiles`: the workgroups of all events, unknown as soon as one's are.
    """

    events: int
    sums: Mapping[str, int]
    absent: Mapping[str, int]
    per_call: Spread
    disturbed: Mapping[str, int] = field(default_factory=dict)
    disturbed_calls: int = 0
    per_invocation: Mapping[str, PerInvocation] = field(default_factory=dict)
    tiles: Integer = UNKNOWN

    @property
    def worked(self) -> Mapping[str, int]:
        """What is left of the sums without what disturbed."""
        return {name: total - self.disturbed.get(name, 0) for name, total in self.sums.items()}


@dataclass(frozen=True, slots=True)
class Fenced:
    """Which events have fences: none of the targets `doubtful`, and no events at all where it is not `wanted`.

    `much`: more than a quarter of a target's calls may have been disturbed.
    """

    wanted: bool
    doubtful: Sequence[int]
    much: bool

    def metrics(self, metrics: Sequence[Metric]) -> list[int]:
        """The numbers of the metrics that have fences: what is counted is the same however long it takes."""
        return [number for number, each in enumerate(metrics) if each.name in TIME_METRICS and self.wanted]

    @property
    def judged(self) -> str:
        """Which groups, in SQL."""
        return " AND ".join(("target >= 0", *(f"target <> {target}" for target in self.doubtful)))


def sums_by_target(resolved: Resolved, of_all: Invocations, fenced: Fenced) -> dict[int, TargetSum]:
    """The events of the table by the number of their target, in its order."""
    tables, metrics = resolved.tables, resolved.metrics
    tables.make("groups", _groups(resolved, of_all, fenced))
    if fenced.much:
        lower_fences(resolved, fenced.metrics(metrics))
        lower_to_fastest(resolved, fenced.metrics(metrics))
    find_outliers(resolved, fenced.metrics(metrics))
    beyond = disturbed(tables, fenced.metrics(metrics), of_all, much=fenced.much)
    columns = (
        _OF_TARGET.format(number=number, fence=fence_column(number), largest=largest_column(number))
        for number in range(len(metrics))
    )
    rows = tables.query(_BY_TARGET.format(columns="".join(columns)))
    names = [metric.name for metric in metrics]
    several = [frozenset({target}) for target, _, groups, *_ in rows if target >= 0 and groups > 1]
    spreads = pooled(tables, names, several, {target: events for target, events, *_ in rows})
    # At most once in each invocation, with calls of one shape. Where invocations are unknown, none is seen.
    once = {target for target, events, groups, seen, *_ in rows if target >= 0 and groups == 1 and events == seen}
    found = {}
    for target, events, _, _, tiles, untold, *cells in rows:
        parts = {name: _Values(*pair) for name, *pair in zip(names, cells[::2], cells[1::2], strict=True)}
        calls, taken = beyond.get(target, (0, {}))
        found[target] = TargetSum(
            events=events,
            sums={name: each.total for name, each in parts.items()},
            absent={name: each.absent for name, each in parts.items()},
            per_call=spreads.get(frozenset({target})) or _per_call(parts),
            disturbed={names[number]: total for number, total in taken.items()},
            disturbed_calls=calls,
            per_invocation=_per_invocation(parts, of_all) if target in once and events == of_all.count else {},
            tiles=UNKNOWN if untold or target < 0 else int(tiles),
        )
    return _with_seldom(found, once, resolved, of_all)


def _with_seldom(
    found: Mapping[int, TargetSum], once: Collection[int], resolved: Resolved, of_all: Invocations
) -> dict[int, TargetSum]:
    """The same, with what those of them have in invocations that are called `once` at most and not in each."""
    metrics = len(resolved.metrics)
    seldom = [target for target, each in found.items() if target in once and len(each.per_invocation) < metrics]
    counted = seldom_called(resolved, seldom, of_all)
    return {
        target: replace(each, per_invocation=counted[target]) if target in counted else each
        for target, each in found.items()
    }


class _Values:
    """The values of one metric at a target, as SQL has them: sum, number of absent ones, fence; and some in order."""

    def __init__(self, numbers: Sequence[int | None], ordered: Sequence[int | None]) -> None:
        total, absent, fence = numbers
        self.total, self.absent, self.fence = int(total or 0), int(absent or 0), fence
        self.ordered = [int(value) for value in ordered if value is not None]

    def worked(self, place: int) -> int:
        """A value in order without what lies beyond the fence."""
        value = self.ordered[place]
        return value if self.fence is None else min(value, self.fence)


def _per_call(parts: Mapping[str, _Values]) -> Spread:
    return {
        name: PerCall(median=each.ordered[2], p10=each.ordered[0], p90=each.ordered[4])
        for name, each in parts.items()
        if len(each.ordered) >= len(_FRACTIONS)
    }


def _per_invocation(parts: Mapping[str, _Values], of_all: Invocations) -> dict[str, PerInvocation]:
    """Where each invocation has one event, its sum is that event's value: what is cut off keeps their order."""
    bounds = [len(_FRACTIONS) + number for number in range(len(of_all.interval))]
    return {
        name: PerInvocation(
            median=each.worked(2),
            median_low=each.worked(bounds[0]) if bounds else UNKNOWN,
            median_high=each.worked(bounds[1]) if bounds else UNKNOWN,
            p10=each.worked(0),
            p90=each.worked(4),
            max=each.worked(-1),
        )
        for name, each in parts.items()
        if not each.absent
    }


def _groups(resolved: Resolved, of_all: Invocations, fenced: Fenced) -> str:
    """The SQL of the table `groups`."""
    metrics = resolved.metrics
    columns = [(number, value_column(number)) for number in range(len(metrics))]
    # More than one is asked of the metric by which calls are slow, and takes longer.
    most = {number: f"[max({value})]" for number, value in columns}
    if (ranked := ranked_by(metrics)) is not None:
        most[ranked] = f"max({value_column(ranked)}, {MOST_SLOWEST})"
    # No time is negative: files in which one is are refused.
    least = {number: "0" if metrics[number].name in TIME_METRICS else f"min({value})" for number, value in columns}
    counts = (
        _COUNTS.format(
            number=number, value=value, most=most[number], largest=largest_column(number), least=least[number]
        )
        for number, value in columns
    )
    with_fence = fenced.metrics(metrics)
    ordered = ordered_values(resolved, (*_FRACTIONS, *of_all.interval))
    fences = (
        _FENCE.format(
            number=number,
            judged=fenced.judged if number in with_fence else "false",
            fewest=FEWEST,
            fence=fence_of([f"ordered_{number}[{place}]" for place in _OF_FENCE], much=fenced.much),
            column=fence_column(number),
        )
        for number, _ in columns
    )
    return _GROUPS.format(
        shape=", shape" if resolved.has_shapes else "",
        joins=ordered.joins + ("" if resolved.has_shapes else " LEFT JOIN shapes USING (target)"),
        counts=f"count(*) AS events, {of_all.distinct} AS invocations{''.join(counts)}",
        ordered=ordered.columns,
        tiles=tiles_of("shape"),
        fences="".join(fences),
    )
