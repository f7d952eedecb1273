"""Sums and percentiles of the events of each target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from tracemap.attribution.model import MOST_SLOWEST, PerCall, PerInvocation
from tracemap.attribution.scan.connection import Tables, ranked_by, value_column
from tracemap.attribution.scan.event_lookups import tiles_of
from tracemap.attribution.scan.invocations import Invocations, spread
from tracemap.attribution.scan.outliers import (
    FEWEST,
    THRESHOLD_FRACTIONS,
    find_outliers,
    lower_thresholds,
    lower_to_fastest,
    outlier_time,
    threshold_of,
)
from tracemap.attribution.scan.rows import BYTES_OF_VALUE, Resolved
from tracemap.core.units import UNKNOWN, Integer
from tracemap.runs.model import TIME_METRICS, Metric

# ---- ordered
#
# Order statistics per group: the values at given fractions of its calls, by an aggregate or by tables to join.
#
# The aggregate keeps all values in memory. If they do not fit, values are counted first: DuckDB spills groups to disk,
# but not lists.


_MEMORY_SHARE = 0.15
"""The fraction of the memory that values may take while they are sorted."""

_AT_ONCE = ", quantile_disc(value_{number}, [{fractions}]) AS ordered_{number}"
# Rank k of n is the least k with k/n >= p, the same as in the aggregate. Products of decimals are exact.
_COUNTED = """
WITH counted AS (SELECT target{shape}, value_{number} AS value, count(*) AS n FROM resolved
                 WHERE target >= 0 AND value_{number} IS NOT NULL GROUP BY ALL),
     ranked AS (SELECT *, sum(n) OVER (PARTITION BY target{shape} ORDER BY value) AS upto,
                       CAST(sum(n) OVER (PARTITION BY target{shape}) AS DECIMAL(20, 0)) AS total FROM counted)
SELECT target{shape}, [{ordered}] AS ordered_{number} FROM ranked GROUP BY ALL
"""
_FIRST_FROM = "min(value) FILTER (upto >= greatest(ceil(total * {fraction}), 1))"


def _ordered_values(resolved: Resolved, fractions: Sequence[float]) -> tuple[str, str]:
    """SQL for the values of each target and shape at fractions between 0 and 1, as `ordered_0`, `ordered_1` ….

    Either columns of a group-by, or joins with it.
    """
    numbers = range(len(resolved.metrics))
    listed = list(map(str, fractions))
    if resolved.rows * len(numbers) * BYTES_OF_VALUE <= _MEMORY_SHARE * resolved.tables.memory_bytes:
        columns = (_AT_ONCE.format(number=number, fractions=", ".join(listed)) for number in numbers)
        return "".join(columns), ""
    shape = ", shape" if resolved.has_shapes else ""
    ordered = ", ".join(_FIRST_FROM.format(fraction=fraction) for fraction in listed)
    for number in numbers:
        query = _COUNTED.format(shape=shape, ordered=ordered, number=number)
        resolved.tables.make(f"ordered_{number}", query)
    return "", "".join(f" LEFT JOIN ordered_{number} USING (target{shape})" for number in numbers)


# ---- percentiles
#
# Percentiles of the values of single events, of one target or of several together (a *pool*).
#
# Percentiles of pools are computed in two passes, so that only the values near a percentile are sorted.


# Square roots are correctly rounded, so that a larger value never gets a smaller bucket. A bucket is about 1 % wide.
_BUCKET = "CAST(sign({0}) * floor(sqrt(sqrt(abs(CAST({0} AS DOUBLE)))) * 16) AS BIGINT)"

# First pass: counts per bucket give the bucket of each percentile and its rank there. Second pass: only the values of
# these buckets are sorted. Rank k of n is the least k with k/n >= p.
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
"""Percentiles by metric name; no entry if no event has a value."""


def quantiles(value: str) -> str:
    """The SQL aggregate of a column that `per_call` reads."""
    return f"quantile_disc({value}, [0.1, 0.5, 0.9])"


def per_call(names: Sequence[str], lists: Sequence[Sequence[int] | None]) -> Spread:
    """The percentiles of each metric, from the lists that `quantiles` returns."""
    return {
        name: PerCall(median=values[1], p10=values[0], p90=values[2])
        for name, values in zip(names, lists, strict=True)
        if values is not None and values[0] is not None
    }


def pooled_percentiles(
    tables: Tables, names: Sequence[str], pools: Sequence[frozenset[int]], events_of: Mapping[int, int]
) -> dict[frozenset[int], Spread]:
    """The percentiles of the events in `resolved`, by pool of targets.

    Args:
        tables: the connection.
        names: the metrics, in the order of their columns.
        pools: sets of target numbers.
        events_of: number of events by target.
    """
    if not pools:
        return {}
    rows = [(pool, target) for pool, targets in enumerate(pools) for target in sorted(targets)]
    tables.fill("pools", "pool INTEGER, target INTEGER", rows)
    values = sum(events_of.get(target, 0) for _, target in rows)
    # Sorting all values of the pools is as fast as two passes while they do not exceed the total number of events.
    compute = pooled_at_once if values <= sum(events_of.values()) else pooled_in_steps
    percentiles = dict(compute(tables, names))
    return {targets: percentiles.get(pool, {}) for pool, targets in enumerate(pools)}


def pooled_at_once(tables: Tables, names: Sequence[str]) -> dict[int, Spread]:
    """Percentiles by pool number of the table `pools`, from all values at once: for few pools."""
    columns = ", ".join(("pool", *(quantiles(value_column(number)) for number in range(len(names)))))
    rows = tables.query(f"SELECT {columns} FROM resolved JOIN pools USING (target) GROUP BY pool")
    return {pool: per_call(names, lists) for pool, *lists in rows}


def pooled_in_steps(tables: Tables, names: Sequence[str]) -> dict[int, Spread]:
    """Percentiles by pool number, from the values near a percentile only: for pools that share many targets."""
    percentiles: dict[int, dict[str, PerCall]] = {}
    for number, name in enumerate(names):
        value = value_column(number)
        for pool, values in tables.query(_POOLED.format(value=value, bucket=_BUCKET.format(value))):
            percentiles.setdefault(pool, {}).update(per_call([name], [values]))
    return dict(percentiles)


# ---- sparse targets
#
# Distributions over invocations of targets with at most one event in each invocation, and none in some: a branch, or
# one of several entry points. An invocation's sum is the value of its event without outlier time, or 0.


# Cutting values off at a threshold keeps their order, so it is done at the end.
_IN_ORDER = """
WITH counted AS (SELECT target, coalesce(value_{number}, 0) AS value, count(*) AS n
                 FROM resolved SEMI JOIN sparse USING (target) GROUP BY ALL
                 UNION ALL SELECT target, 0, {count} - events FROM groups SEMI JOIN sparse USING (target)
                 WHERE events < {count}),
     ranked AS (SELECT target, value, sum(sum(n)) OVER (PARTITION BY target ORDER BY value) AS upto
                FROM counted GROUP BY target, value)
SELECT target, any_value(threshold_{number}), {values} FROM ranked JOIN groups USING (target)
GROUP BY target ORDER BY target
"""
_RANKED = "min(value) FILTER (upto >= {rank})"


def _sparse_invocations(
    resolved: Resolved, targets: Sequence[int], invocations: Invocations
) -> Mapping[int, Mapping[str, PerInvocation]]:
    """Distributions of sparse targets, by target and metric name, from the table `groups` with thresholds."""
    if not targets:
        return {}
    distributions: dict[int, dict[str, PerInvocation]] = defaultdict(dict)
    resolved.tables.fill("sparse", "target INTEGER", [(target,) for target in targets])
    for number, metric in enumerate(resolved.metrics):
        query = _IN_ORDER.format(
            number=number,
            count=invocations.count,
            values=", ".join(_RANKED.format(rank=rank) for rank in invocations.ranks),
        )
        for target, threshold, *values in resolved.tables.query(query):
            within = (value if threshold is None else min(value, threshold) for value in values)
            distributions[target][metric.name] = spread(within)
    return distributions


# ---- sums
#
# The events of each target: their number, and for each metric its sum, percentiles of values, and outlier time.
#
# Events are first grouped by target and shape, in the table `groups`: a group has one outlier threshold.


# By target and shape. Events without a target have no shape and need no percentiles.
_GROUPS = """
SELECT *, {tiles} AS tiles{thresholds} FROM (
    SELECT target{shape}, {counts}{ordered} FROM resolved WHERE target >= 0 GROUP BY ALL
    UNION ALL BY NAME SELECT target, {counts} FROM resolved WHERE target < 0 GROUP BY ALL){joins}
"""
_COUNTS = """
, sum(value_{number}) AS total_{number}, count(*) - count(value_{number}) AS absent_{number}, {most} AS largest_{number}
, {least} AS least_{number}
"""
_THRESHOLD = """
, CAST(CASE WHEN {judged} AND events - absent_{number} >= {fewest} THEN {threshold} END AS BIGINT) AS threshold_{number}
"""

_BY_TARGET = """
SELECT target, CAST(sum(events) AS BIGINT), count(*), CAST(any_value(invocations) AS BIGINT),
       CAST(sum(events * tiles) AS HUGEINT), count(*) FILTER (tiles IS NULL){columns}
FROM groups GROUP BY target ORDER BY target
"""
_OF_TARGET = """
, [CAST(sum(total_{number}) AS HUGEINT), CAST(sum(absent_{number}) AS HUGEINT),
   CAST(any_value(threshold_{number}) AS HUGEINT)],
list_append(any_value(ordered_{number}), any_value(largest_{number})[1])
"""

_FRACTIONS = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Fractions of percentiles and quartiles; the bounds of the median follow them."""
_THRESHOLD_PLACES = [_FRACTIONS.index(fraction) + 1 for fraction in THRESHOLD_FRACTIONS]
"""The SQL list positions, from 1, of the values that a threshold is computed from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSum:
    """The events of one target; mappings are by metric name.

    `absent`: number of events without a value; `per_call`: percentiles of the values; `outliers`: the part of `sums`
    above outlier thresholds, in `outlier_calls` events. `per_invocation`: the distribution over invocations of the
    rest. It is known here only for targets with at most one event per invocation, all of one shape. `tiles`: the
    workgroups of all events, unknown if any event's are.
    """

    events: int
    sums: Mapping[str, int]
    absent: Mapping[str, int]
    per_call: Spread
    outliers: Mapping[str, int] = field(default_factory=dict)
    outlier_calls: int = 0
    per_invocation: Mapping[str, PerInvocation] = field(default_factory=dict)
    tiles: Integer = UNKNOWN

    @property
    def worked(self) -> Mapping[str, int]:
        """The sums without outlier time."""
        return {name: total - self.outliers.get(name, 0) for name, total in self.sums.items()}


class OutlierScope(msgspec.Struct, frozen=True):
    """The events that get outlier thresholds: none if not `enabled`, and none of the targets in `excluded`.

    `noisy`: more than a quarter of a target's calls may be outliers.
    """

    enabled: bool
    excluded: Sequence[int]
    noisy: bool

    def metrics(self, metrics: Sequence[Metric]) -> list[int]:
        """The numbers of the metrics with thresholds: only times, because noise does not change counts."""
        return [number for number, metric in enumerate(metrics) if metric.name in TIME_METRICS and self.enabled]

    @property
    def condition(self) -> str:
        """The condition on groups, in SQL."""
        return " AND ".join(("target >= 0", *(f"target <> {target}" for target in self.excluded)))


def sums_by_target(resolved: Resolved, invocations: Invocations, scope: OutlierScope) -> dict[int, TargetSum]:
    """The events of the table `resolved` by target number, in ascending order."""
    tables, metrics = resolved.tables, resolved.metrics
    tables.make("groups", _groups(resolved, invocations, scope))
    if scope.noisy:
        lower_thresholds(resolved, scope.metrics(metrics))
        lower_to_fastest(resolved, scope.metrics(metrics))
    find_outliers(resolved, scope.metrics(metrics))
    outliers = outlier_time(tables, scope.metrics(metrics), invocations, noisy=scope.noisy)
    columns = "".join(_OF_TARGET.format(number=number) for number in range(len(metrics)))
    rows = tables.query(_BY_TARGET.format(columns=columns))
    names = [metric.name for metric in metrics]
    several = [frozenset({target}) for target, _, groups, *_ in rows if target >= 0 and groups > 1]
    spreads = pooled_percentiles(tables, names, several, {target: events for target, events, *_ in rows})
    # At most one event per invocation, all of one shape. Empty if invocations are unknown.
    once = {
        target for target, events, groups, distinct, *_ in rows if target >= 0 and groups == 1 and events == distinct
    }
    sums = {}
    for target, events, _, _, tiles, groups_without_tiles, *cells in rows:
        values = {name: _Values(*pair) for name, *pair in zip(names, cells[::2], cells[1::2], strict=True)}
        outlier_calls, outlier_sums = outliers.get(target, (0, {}))
        sums[target] = TargetSum(
            events=events,
            sums={name: of_metric.total for name, of_metric in values.items()},
            absent={name: of_metric.absent for name, of_metric in values.items()},
            per_call=spreads.get(frozenset({target})) or per_call(names, [own.tenths for own in values.values()]),
            outliers={names[number]: total for number, total in outlier_sums.items()},
            outlier_calls=outlier_calls,
            per_invocation=_per_invocation(values, invocations)
            if target in once and events == invocations.count
            else {},
            tiles=UNKNOWN if groups_without_tiles or target < 0 else int(tiles),
        )
    # The others of these targets are not called in some invocations.
    sparse = [target for target in sums if target in once and len(sums[target].per_invocation) < len(metrics)]
    for target, distributions in _sparse_invocations(resolved, sparse, invocations).items():
        sums[target] = replace(sums[target], per_invocation=distributions)
    return sums


class _Values:
    """The values of one metric at a target, from SQL: sum, number of absent values, threshold, and order statistics."""

    def __init__(self, numbers: Sequence[int | None], ordered: Sequence[int | None]) -> None:
        total, absent, threshold = numbers
        self.total, self.absent, self.threshold = int(total or 0), int(absent or 0), threshold
        self.ordered = [int(value) for value in ordered if value is not None]

    @property
    def tenths(self) -> list[int] | None:
        """The 10th, 50th and 90th percentile; None without values."""
        return self.ordered[: len(_FRACTIONS) : 2] if len(self.ordered) >= len(_FRACTIONS) else None

    def worked(self, place: int) -> int:
        """An order statistic, cut off at the threshold."""
        value = self.ordered[place]
        return value if self.threshold is None else min(value, self.threshold)


def _per_invocation(values: Mapping[str, _Values], invocations: Invocations) -> dict[str, PerInvocation]:
    """Distributions if every invocation has one event: sums are its values, and cutting them off keeps their order."""
    bounds = [len(_FRACTIONS) + number for number in range(len(invocations.interval))]
    places = (0, 2, 4, -1, *bounds)
    return {
        name: spread(of_metric.worked(place) for place in places)
        for name, of_metric in values.items()
        if not of_metric.absent
    }


def _groups(resolved: Resolved, invocations: Invocations, scope: OutlierScope) -> str:
    metrics = resolved.metrics
    numbers, ranked = range(len(metrics)), ranked_by(metrics)
    counts = (
        _COUNTS.format(
            number=number,
            # Only the metric that ranks calls needs more than one largest value, which takes longer.
            most=f"max(value_{number}, {MOST_SLOWEST})" if number == ranked else f"[max(value_{number})]",
            # No time is negative: files with a negative time are rejected.
            least="0" if metrics[number].name in TIME_METRICS else f"min(value_{number})",
        )
        for number in numbers
    )
    with_threshold = scope.metrics(metrics)
    ordered, joins = _ordered_values(resolved, (*_FRACTIONS, *invocations.interval))
    thresholds = (
        _THRESHOLD.format(
            number=number,
            judged=scope.condition if number in with_threshold else "false",
            fewest=FEWEST,
            threshold=threshold_of([f"ordered_{number}[{place}]" for place in _THRESHOLD_PLACES], noisy=scope.noisy),
        )
        for number in numbers
    )
    return _GROUPS.format(
        shape=", shape" if resolved.has_shapes else "",
        joins=joins + ("" if resolved.has_shapes else " LEFT JOIN shapes USING (target)"),
        counts=f"count(*) AS events, {invocations.distinct} AS invocations{''.join(counts)}",
        ordered=ordered,
        tiles=tiles_of("shape"),
        thresholds="".join(thresholds),
    )
