"""Costs and latency percentiles of ops over many runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tracemap.core.errors import StoreInvalid, UsageInvalid
from tracemap.core.units import UNKNOWN, Integer, Text, sum_of
from tracemap.runs.model import invocations_counted
from tracemap.runs.sql import quoted
from tracemap.store.layout import ASIDE, CALLS, COSTS, NO_METRICS, TARGETS, unknown_if_null
from tracemap.store.lineage import Names
from tracemap.store.model import (
    GroupCalls,
    SiteCalls,
    StoreCalls,
    StoreCosts,
    StoreGroup,
    StoreMetric,
    StoreOp,
    StoreUnattributed,
)
from tracemap.store.query_engines import Engine, text_literal
from tracemap.store.run_headers import INPUTS, Header, Headers, check_spelling
from tracemap.store.series import group_of, grouped, query_scope, register

# ---- percentiles
#
# Durations of single calls of a dispatch site over many runs: exact percentiles, or those of a histogram.
#
# Exact percentiles need all values at once. Above `MOST_EXACT` calls, values are counted in buckets whose bounds are
# 1 % apart. A percentile is then known to half of that, for any number of calls, and buckets of many files add up (the
# idea of DDSketch: Masson, Rim and Lee, Proceedings of the VLDB 12, 2019).


MOST_EXACT: Final = 20_000_000
FRACTIONS: Final = (0.1, 0.5, 0.9, 0.99)
GAMMA: Final = 1.01
"""Ratio of a bucket's upper bound to its lower bound."""

_PLACED: Final = """
FROM calls JOIN chosen ON chosen.number = calls.run
JOIN targets ON targets.run = calls.run AND targets.target = calls.target AND targets.position = 0
WHERE calls.target >= 0 AND calls.{metric} IS NOT NULL
"""
# Events that may belong to several places are listed under their kernel.
_SITE: Final = "CASE WHEN targets.places = 1 THEN targets.place END"
_PLACE: Final = f"chosen.grouping, chosen.map, targets.kernel, {_SITE} AS place"
_BY_PLACE: Final = f"GROUP BY chosen.grouping, chosen.map, targets.kernel, {_SITE}"
EXACT: Final = f"""
SELECT {_PLACE}, count(*) AS calls, max(calls.{{metric}}) AS most, {{percentiles}} {_PLACED} {_BY_PLACE}
"""
_PERCENTILE: Final = "percentile_cont({fraction}) WITHIN GROUP (ORDER BY calls.{metric})"
_SIZE: Final = f"floor(ln(abs(CAST(calls.{{metric}} AS DOUBLE)) + 1) / {math.log(GAMMA)!r})"
_BUCKET: Final = f"CAST(sign(calls.{{metric}}) * {_SIZE} AS INTEGER)"
"""Buckets with negative indexes hold negative values, which a metric may have."""
BUCKETS: Final = f"""
SELECT {_PLACE}, {_BUCKET} AS bucket, count(*) AS calls, max(calls.{{metric}}) AS most {_PLACED} {_BY_PLACE}, {_BUCKET}
"""

_Place = tuple[int, int, str | None, str | None]
"""Group, map, kernel and place."""


def query_calls(
    engine: Engine, headers: Headers, names: Names, metric: str, group_by: Sequence[str], most_exact: int = MOST_EXACT
) -> StoreCalls:
    """Percentiles of the calls of each dispatch site, by group of runs and map.

    Raises:
        UsageInvalid: no calls have the metric, or some calls spell it in other letter case.
        StoreInvalid: a file cannot be read.
    """
    groups = grouped(headers.rows, group_by)
    register(engine, headers, names, groups)
    for table in (CALLS, TARGETS):
        engine.view(table, headers.files(table))
    if metric.lower() not in NO_METRICS:
        check_spelling(headers, [metric])
    if metric.lower() in NO_METRICS or metric not in engine.columns(CALLS):
        raise UsageInvalid(f"--metric {metric}: no calls have it; run tracemap store query --metric to list metrics")
    exact = sum(row["calls"] or 0 for row in headers.rows) <= most_exact
    sites_by_place = _exact(engine, metric) if exact else _sketched(engine, metric)
    # The sites of each group, by the index of their map, the most expensive first.
    by_group: dict[int, dict[int, list[SiteCalls]]] = defaultdict(lambda: defaultdict(list))
    for (group, of_map, _, _), site in sorted(sites_by_place.items(), key=lambda item: _by_cost(item[1])):
        by_group[group][of_map].append(site)
    maps = [sha for _, sha in headers.maps_of_models]
    return StoreCalls(
        metric=metric,
        group_by=tuple(group_by),
        error_percent=0.0 if exact else round(50 * (GAMMA - 1), 3),
        groups=tuple(
            GroupCalls(
                model=runs[0]["model"],
                group=group_of(runs, group_by),
                map=maps[map_index],
                runs=sum(run["map"] == maps[map_index] for run in runs),
                sites=tuple(sites),
            )
            for index, runs in enumerate(groups)
            for map_index, sites in sorted(by_group[index].items())
        ),
        looked=query_scope(headers),
    )


def _exact(engine: Engine, metric: str) -> Mapping[_Place, SiteCalls]:
    name = quoted(metric)
    percentiles = ", ".join(_PERCENTILE.format(fraction=fraction, metric=name) for fraction in FRACTIONS)
    rows = engine.rows(EXACT.format(metric=name, percentiles=percentiles))
    return {
        (group, of_map, kernel, place): _site(place, kernel, calls, [*map(_whole, values)], most)
        for group, of_map, kernel, place, calls, most, *values in rows
    }


def _whole(value: float) -> int:
    """Round half up. First round to 3 digits, since engines interpolate with different last digits.

    Raises:
        StoreInvalid: the value is not a finite number, so the file is damaged.
    """
    if not math.isfinite(value):
        raise StoreInvalid(f"the store cannot be read: a call's value is {value}")
    return math.floor(round(value, 3) + 0.5)


def _sketched(engine: Engine, metric: str) -> Mapping[_Place, SiteCalls]:
    buckets: dict[_Place, list[tuple[int, int, int]]] = defaultdict(list)
    for group, of_map, kernel, place, bucket, calls, most in engine.rows(BUCKETS.format(metric=quoted(metric))):
        buckets[group, of_map, kernel, place].append((bucket, calls, most))
    sites = {}
    for key, counts in buckets.items():
        counts.sort()
        calls, most = sum(count for _, count, _ in counts), max(largest for *_, largest in counts)
        values = [min(most, _at(counts, fraction * (calls - 1))) for fraction in FRACTIONS]
        sites[key] = _site(key[3], key[2], calls, values, most)
    return sites


def _at(counts: Sequence[tuple[int, int, int]], rank: float) -> int:
    """The geometric middle of the bucket that contains a rank."""
    below = 0
    for bucket, count, _ in counts:
        below += count
        if below > rank:
            return round(math.copysign(math.pow(GAMMA, abs(bucket) + 0.5) - 1, bucket))
    return counts[-1][2]


def _site(place: str | None, kernel: str | None, calls: int, values: Sequence[int], most: int) -> SiteCalls:
    p10, median, p90, p99 = values
    return SiteCalls(
        unknown_if_null(place), unknown_if_null(kernel), calls, p10=p10, median=median, p90=p90, p99=p99, most=int(most)
    )


def _by_cost(site: SiteCalls) -> tuple[int, str, str]:
    return -site.calls * site.median, str(site.site), str(site.kernel)


# ---- costs
#
# Costs of ops over many runs: sums of the totals stored with each run, or of all single calls (--calls).
#
# The engine first reduces calls to one row per target, which takes nearly all the time; a few rows per run remain.
# These are split over places and ops as for a single run, in integers by largest remainder, so both ways give the same
# numbers. The queries use the common subset of DuckDB's and Spark's SQL.


REDUCE: Final = """
SELECT run, target{sums} FROM calls GROUP BY run, target
"""
_SUM: Final = ", CAST(sum({column}) AS DECIMAL(38,0)) AS total_{number}"

# For one metric. A target's total is divided evenly over its places; the first places get the remainder, one unit each.
# A place's total is split by weights: each op's cost at the place when the run was added. If all weights are 0, ops get
# equal parts; if their sum is negative, the signs are flipped. The only op of a place gets everything. If the sum of
# calls equals the stored total, each op gets its stored cost.
SPLIT: Final = """
WITH worked AS (
    SELECT reduced.run AS run, reduced.target AS target,
           coalesce(reduced.total_{number}, CAST(0 AS DECIMAL(38,0))) - coalesce(idle.amount, CAST(0 AS DECIMAL(38,0)))
               AS total
    FROM reduced LEFT JOIN (
        SELECT run, target, CAST(sum(amount) AS DECIMAL(38,0)) AS amount FROM kept_aside WHERE metric = {metric}
        GROUP BY run, target) AS idle ON idle.run = reduced.run AND idle.target = reduced.target
), placed AS (
    SELECT run, place, CAST(sum(part) AS DECIMAL(38,0)) AS total FROM (
        SELECT worked.run AS run, targets.place AS place,
               quotient(worked.total, targets.places)
                   + CASE WHEN targets.position < worked.total - quotient(worked.total, targets.places) * targets.places
                          THEN 1 ELSE 0 END AS part
        FROM worked JOIN targets ON targets.run = worked.run AND targets.target = worked.target) AS parts
    GROUP BY run, place
), known AS (
    SELECT run, place, CAST(sum(amount) AS DECIMAL(38,0)) AS whole, count(*) AS members
    FROM kept_costs WHERE metric = {metric} GROUP BY run, place
), weighed AS (
    SELECT placed.run AS run, placed.place AS place, placed.total AS total, coalesce(costs.position, 0) AS position,
           costs.op AS op, CASE WHEN costs.run IS NULL THEN placed.place ELSE costs.reason END AS reason,
           costs.amount AS weight, known.whole AS whole, coalesce(known.members, 1) AS members
    FROM placed LEFT JOIN known ON known.run = placed.run AND known.place = placed.place
    LEFT JOIN kept_costs AS costs
        ON costs.run = placed.run AND costs.place = placed.place AND costs.metric = {metric}
), even AS (
    SELECT run, place, total, position, op, reason,
           CASE WHEN whole = 0 THEN CAST(1 AS DECIMAL(38,0)) WHEN whole < 0 THEN -weight ELSE weight END AS weight,
           CASE WHEN whole = 0 THEN CAST(members AS DECIMAL(38,0)) ELSE abs(whole) END AS whole
    FROM weighed WHERE members > 1 AND total <> whole
), shared AS (
    SELECT run, place, total, position, op, reason, quotient(total * weight, whole) AS share,
           total * weight - quotient(total * weight, whole) * whole AS rest
    FROM even
), ranked AS (
    SELECT run, place, position, op, reason, share,
           row_number() OVER (PARTITION BY run, place ORDER BY rest DESC, position) AS place_of_rest,
           total - CAST(sum(share) OVER (PARTITION BY run, place) AS DECIMAL(38,0)) AS left_over
    FROM shared
)
SELECT run, {metric} AS metric, place, position, op, reason,
       CAST(share + CASE WHEN place_of_rest <= left_over THEN 1 ELSE 0 END AS DECIMAL(38,0)) AS amount
FROM ranked
UNION ALL
SELECT run, {metric}, place, position, op, reason, CASE WHEN members = 1 THEN total ELSE weight END
FROM weighed WHERE members = 1 OR total = whole
UNION ALL
SELECT aside.run, {metric}, aside.reason, 0, CAST(NULL AS STRING), aside.reason, aside.amount
FROM kept_aside AS aside JOIN reduced ON reduced.run = aside.run AND reduced.target = aside.target
WHERE aside.metric = {metric} AND aside.reason = 'outliers'
"""

KEPT_COSTS: Final = "kept_costs"
_KEPT_ASIDE: Final = """
SELECT aside.run, aside.target, aside.metric, aside.reason, aside.amount FROM aside
"""
_KEPT: Final = """
SELECT costs.run, costs.metric, costs.place, costs.position, costs.op, costs.reason, costs.amount FROM costs
"""
_LOST: Final = "SELECT count(*) FROM {table} WHERE {table}.amount IS NULL"
_GROUPED: Final = """
SELECT chosen.grouping, {table}.metric, keyed.op_key, {table}.reason,
       CAST(sum({table}.amount) AS DECIMAL(38,0)) AS amount, count(DISTINCT {table}.run) AS runs
FROM {table} JOIN chosen ON chosen.number = {table}.run
LEFT JOIN keyed ON keyed.map = chosen.map AND keyed.op = {table}.op
WHERE {table}.metric IN ({metrics})
GROUP BY chosen.grouping, {table}.metric, keyed.op_key, {table}.reason
"""
_METRICS: Final = """
SELECT kept_costs.metric, max(abs(kept_costs.amount)) AS most FROM kept_costs
GROUP BY kept_costs.metric ORDER BY kept_costs.metric
"""
_OF_RUNS: Final = """
SELECT DISTINCT chosen.grouping, chosen.number, costs.metric FROM kept_costs AS costs
JOIN chosen ON chosen.number = costs.run WHERE costs.metric IN ({metrics})
"""
_PREFERRED: Final = ("cpu_ns", "duration_ns")


@dataclass(frozen=True, slots=True)
class Question:
    """A query for costs of ops.

    `group_by`: the columns that form groups. `metrics`: empty for the default, a time. `from_calls`: sum single calls
    instead of stored totals.
    """

    group_by: Sequence[str] = ()
    metrics: Sequence[str] = ()
    from_calls: bool = False


def query_costs(engine: Engine, headers: Headers, names: Names, question: Question) -> StoreCosts:
    """Costs of ops over many runs.

    Raises:
        UsageInvalid: no run has one of the metrics.
        StoreInvalid: a file cannot be read.
    """
    groups = grouped(headers.rows, question.group_by)
    register(engine, headers, names, groups)
    engine.view(COSTS, headers.files(COSTS))
    # Costs lie in one file per run and are queried several times.
    _keep(engine, KEPT_COSTS, _KEPT)
    metrics = _metrics_of(engine, question)
    table = KEPT_COSTS
    if question.from_calls:
        engine.keep("resummed", _from_calls(engine, headers, metrics))
        table = "resummed"
    metric_list = ", ".join(map(text_literal, metrics))
    rows = engine.rows(_GROUPED.format(table=table, metrics=metric_list))
    invocations = _invocations(engine.rows(_OF_RUNS.format(metrics=metric_list)), headers.rows)
    summed: dict[int, dict[_Cell, tuple[int, int]]] = defaultdict(dict)
    for group, metric, key, reason, amount, runs in rows:
        summed[group][metric, key, reason] = int(amount), runs
    return StoreCosts(
        group_by=tuple(question.group_by),
        added_up="calls" if question.from_calls else "summaries",
        groups=tuple(
            _group_costs(
                group_of(runs, question.group_by),
                runs,
                summed[index],
                {metric: invocations.get((index, metric), UNKNOWN) for metric in metrics},
                names,
            )
            for index, runs in enumerate(groups)
        ),
        looked=query_scope(headers),
    )


def _keep(engine: Engine, name: str, query: str) -> None:
    """Compute a table of amounts; refuse NULL, which sums would skip silently."""
    engine.keep(name, query)
    ((lost,),) = engine.rows(_LOST.format(table=name))
    if lost:
        raise StoreInvalid("the store cannot be read: a cost is missing")


def _metrics_of(engine: Engine, question: Question) -> list[str]:
    """The metrics of the query; by default the first time metric that is not 0."""
    most = {str(metric): int(value) for metric, value in engine.rows(_METRICS)}
    for metric in question.metrics:
        if metric not in most:
            raise UsageInvalid(f"--metric {metric}: no run has it; choose from {', '.join(most)}")
    if question.metrics:
        return list(dict.fromkeys(question.metrics))
    times: list[str] = [metric for metric in _PREFERRED if most.get(metric)]
    return times[:1] or list(most)[:1]


def _from_calls(engine: Engine, headers: Headers, metrics: Sequence[str]) -> str:
    """Reduce calls to targets. The returned query splits these over places and ops."""
    check_spelling(headers, metrics)
    for table in (CALLS, TARGETS, ASIDE):
        engine.view(table, headers.files(table))
    columns = set(engine.columns(CALLS))
    for metric in metrics:
        if metric not in columns:
            raise UsageInvalid(
                f"--metric {metric}: was sampled or simulated inside calls, so calls do not have it; omit --calls"
            )
    sums = (_SUM.format(column=quoted(metric), number=number) for number, metric in enumerate(metrics))
    engine.keep("reduced", REDUCE.format(sums="".join(sums)))
    _keep(engine, "kept_aside", _KEPT_ASIDE)
    parts = (SPLIT.format(number=number, metric=text_literal(metric)) for number, metric in enumerate(metrics))
    return " UNION ALL ".join(f"SELECT * FROM ({part}) AS of_{number}" for number, part in enumerate(parts))


def _invocations(rows: Sequence[tuple[int, int, str]], headers: Sequence[Header]) -> Mapping[tuple[int, str], Integer]:
    """Invocations by group and metric: unknown if the runs of a group called different functions or input sizes."""
    headers_by_run = {row["number"]: row for row in headers}
    counts: dict[tuple[int, str], list[Integer]] = defaultdict(list)
    functions: dict[tuple[int, str], set[str | None]] = defaultdict(set)
    inputs: dict[tuple[int, str], set[str | None]] = defaultdict(set)
    for group, run, metric in rows:
        counts[group, metric].append(invocations_counted(metric, unknown_if_null(headers_by_run[run]["iterations"])))
        functions[group, metric].add(headers_by_run[run]["function"])
        inputs[group, metric].add(headers_by_run[run][INPUTS])
    alike = {key for key in counts if len(functions[key]) == 1 and len(inputs[key] - {None}) <= 1}
    return {key: sum_of(values) if key in alike else UNKNOWN for key, values in counts.items()}


_Cell = tuple[str, int | None, str | None]
"""A metric with the key of an op, or with the reason of unattributed cost."""


def _group_costs(
    shared: Mapping[str, Text],
    runs: Sequence[Header],
    summed: Mapping[_Cell, tuple[int, int]],
    invocations: Mapping[str, Integer],
    names: Names,
) -> StoreGroup:
    """Costs of a group of runs. Ops are in order of cost in the first metric, the most expensive first.

    `shared`: the values of the columns; `summed`: amount and number of runs, by cell; `invocations`: by metric.
    """

    def amounts(key: int | None, reason: str | None) -> dict[str, int]:
        return {metric: summed.get((metric, key, reason), (0, 0))[0] for metric in invocations}

    def runs_with(key: int) -> int:
        return max(summed.get((metric, key, None), (0, 0))[1] for metric in invocations)

    keys = sorted({key for _, key, _ in summed if key is not None})
    reasons = sorted({str(reason) for (_, key, reason), (cost, _) in summed.items() if key is None and cost})
    ops = [StoreOp(**names.describe(key), runs=runs_with(key), amounts=amounts(key, None)) for key in keys]
    ops.sort(key=lambda op: -next(iter(op.amounts.values()), 0))
    rest = [StoreUnattributed(reason, amounts(None, reason)) for reason in reasons]
    metrics = []
    for metric, count in invocations.items():
        attributed, unattributed = (sum(row.amounts[metric] for row in rows) for rows in (ops, rest))
        metrics.append(StoreMetric(metric, attributed + unattributed, attributed, unattributed, count))
    return StoreGroup(runs[0]["model"], shared, len(runs), tuple(metrics), tuple(ops), tuple(rest))
