"""Sums and percentiles of the events of each target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tracemap.attribution.model import MOST_SLOWEST, PerCall, PerInvocation
from tracemap.attribution.scan.connection import Tables, ranked_by, value_column
from tracemap.attribution.scan.invocations import Invocations, spread
from tracemap.attribution.scan.lookups import tiles_of
from tracemap.attribution.scan.outliers import (
    FENCE_FRACTIONS,
    FEWEST,
    disturbed,
    fence_column,
    fence_of,
    find_outliers,
    largest_column,
    lower_fences,
    lower_to_fastest,
)
from tracemap.attribution.scan.rows import BYTES_OF_VALUE, Resolved
from tracemap.measurements.model import TIME_METRICS, Metric
from tracemap.units import UNKNOWN, Integer

# ---- ordered
#
# The values of each group in order, at given fractions of its calls: the aggregate for them, or tables to be joined.
#
# The aggregate keeps all values in memory. Of so many events that it could not, values are counted first: DuckDB
# spills groups to disk, but no lists.


_KEPT = 0.15
"""The part of the memory that values may take while they are kept to be put in order."""

_AT_ONCE = ", quantile_disc({value}, [{fractions}]) AS ordered_{number}"
# Rank k of n is the least k with k/n >= p, as the aggregate has it; products of decimals are exact.
_COUNTED = """
WITH counted AS (SELECT target{shape}, {value} AS value, count(*) AS n FROM resolved
                 WHERE target >= 0 AND {value} IS NOT NULL GROUP BY ALL),
     ranked AS (SELECT *, sum(n) OVER (PARTITION BY target{shape} ORDER BY value) AS upto,
                       CAST(sum(n) OVER (PARTITION BY target{shape}) AS DECIMAL(20, 0)) AS total FROM counted)
SELECT target{shape}, [{ordered}] AS ordered_{number} FROM ranked GROUP BY ALL
"""
_FIRST_FROM = "min(value) FILTER (upto >= greatest(ceil(total * {fraction}), 1))"


@dataclass(frozen=True, slots=True)
class Ordered:
    """What gives the columns `ordered_0`, `ordered_1` … of the metrics: `columns` of a group-by, or `joins` with it."""

    columns: str
    joins: str


def ordered_values(resolved: Resolved, fractions: Sequence[float]) -> Ordered:
    """The values of each target and shape at these fractions, which lie between 0 and 1."""
    numbers = range(len(resolved.metrics))
    listed = list(map(str, fractions))
    if resolved.rows * len(numbers) * BYTES_OF_VALUE <= _KEPT * resolved.tables.memory_bytes:
        column = (
            _AT_ONCE.format(value=value_column(number), fractions=", ".join(listed), number=number)
            for number in numbers
        )
        return Ordered("".join(column), "")
    shape = ", shape" if resolved.has_shapes else ""
    ordered = ", ".join(_FIRST_FROM.format(fraction=fraction) for fraction in listed)
    for number in numbers:
        query = _COUNTED.format(shape=shape, value=value_column(number), ordered=ordered, number=number)
        resolved.tables.make(f"ordered_{number}", query)
    return Ordered("", "".join(f" LEFT JOIN ordered_{number} USING (target{shape})" for number in numbers))


# ---- percentiles
#
# Percentiles of the single values of events.
#
# They are of one target or of several together (a *pool*). Those of a pool are found in two steps, so that only the
# values near a percentile are ever sorted.


# Roots are rounded correctly, so that larger values never have smaller buckets; one is about a hundredth wide.
_BUCKET = "CAST(sign({0}) * floor(sqrt(sqrt(abs(CAST({0} AS DOUBLE)))) * 16) AS BIGINT)"

# First counts by bucket, which tell the bucket of each percentile and its rank there; then only values of these buckets
# are looked at one by one. Rank k of n is the least k with k/n >= p.
_POOLED = """
WITH member AS (SELECT DISTINCT target FROM pools),
     counted AS MATERIALIZED (SELECT target, {bucket} AS bucket, count(*) AS n FROM resolved SEMI JOIN member
                              USING (target) WHERE {value} IS NOT NULL GROUP BY ALL),
     pooled AS (SELECT pool, bucket, sum(n) AS n FROM counted JOIN pools USING (target) GROUP BY ALL),
     ranked AS (SELECT pool, bucket, n, sum(n) OVER (PARTITION BY pool ORDER BY bucket) AS upto,
                       sum(n) OVER (PARTITION BY pool) AS total FROM pooled),
     wanted AS MATERIALIZED (
        SELECT pool, tenths, bucket, (total * tenths + 9) // 10 - (upto - n) AS place
        FROM ranked, (VALUES (1), (5), (9)) AS percentile(tenths)
        WHERE (total * tenths + 9) // 10 > upto - n AND (total * tenths + 9) // 10 <= upto),
     needed AS (SELECT DISTINCT target, bucket FROM wanted JOIN pools USING (pool)),
     value AS (SELECT target, {bucket} AS bucket, {value} AS value, count(*) AS n
               FROM resolved SEMI JOIN needed ON resolved.target = needed.target AND {bucket} = needed.bucket
               GROUP BY ALL),
     placed AS (SELECT pool, tenths, value, place, sum(sum(n)) OVER (PARTITION BY pool, tenths ORDER BY value) AS upto
                FROM value JOIN pools USING (target) JOIN wanted USING (pool, bucket)
                GROUP BY pool, tenths, value, place)
SELECT pool, [min(value) FILTER (tenths = 1), min(value) FILTER (tenths = 5), min(value) FILTER (tenths = 9)]
FROM placed WHERE upto >= place GROUP BY pool ORDER BY pool
"""

Spread = Mapping[str, PerCall]
"""Percentiles by metric name; no entry where no event has a value."""


def quantiles(value: str) -> str:
    """The aggregate of a column that `per_call` takes."""
    return f"quantile_disc({value}, [0.1, 0.5, 0.9])"


def per_call(names: Sequence[str], lists: Sequence[Sequence[int] | None]) -> Spread:
    """The percentiles of each metric from its list in SQL."""
    return {
        name: PerCall(median=values[1], p10=values[0], p90=values[2])
        for name, values in zip(names, lists, strict=True)
        if values is not None and values[0] is not None
    }


def pooled(
    tables: Tables, names: Sequence[str], pools: Sequence[frozenset[int]], events_of: Mapping[int, int]
) -> dict[frozenset[int], Spread]:
    """The percentiles of the events in `resolved` of several targets together.

    Args:
        tables: the connection.
        names: the metrics, in the order of their columns.
        pools: sets of numbers of targets.
        events_of: how many events each target has.
    """
    if not pools:
        return {}
    rows = [(pool, target) for pool, targets in enumerate(pools) for target in sorted(targets)]
    tables.fill("pools", "pool INTEGER, target INTEGER", rows)
    values = sum(events_of.get(target, 0) for _, target in rows)
    # All values of each pool at once are as good as long as that is not more than there are altogether.
    find = pooled_at_once if values <= sum(events_of.values()) else pooled_in_steps
    found = dict(find(tables, names))
    return {targets: found.get(pool, {}) for pool, targets in enumerate(pools)}


def pooled_at_once(tables: Tables, names: Sequence[str]) -> dict[int, Spread]:
    """For few pools: all values of each. By the number of the pool in the table `pools`."""
    columns = ", ".join(("pool", *(quantiles(value_column(number)) for number in range(len(names)))))
    rows = tables.query(f"SELECT {columns} FROM resolved JOIN pools USING (target) GROUP BY pool")
    return {pool: per_call(names, lists) for pool, *lists in rows}


def pooled_in_steps(tables: Tables, names: Sequence[str]) -> dict[int, Spread]:
    """For pools that share many targets: only the values that lie near a percentile."""
    found: dict[int, dict[str, PerCall]] = {}
    for number, name in enumerate(names):
        value = value_column(number)
        for pool, values in tables.query(_POOLED.format(value=value, bucket=_BUCKET.format(value))):
            found.setdefault(pool, {}).update(per_call([name], [values]))
    return dict(found)


# ---- seldom
#
# What targets are like over all invocations that have at most one event in each, and none in some.
#
# So it is with a branch, or with one entry point of several. A sum is then an event's value without what disturbed it,
# or nothing: values are counted, and nothing as often as an invocation has no event.


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


# ---- sums
#
# The events of each target: how many, per metric their sum, the percentiles of the single values, and what disturbed.
#
# They are first grouped by target and shape, in the table `groups`: fences are of groups.


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
