"""Costs and latency percentiles of ops over many runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tracemap.errors import StoreInvalid, UsageInvalid
from tracemap.measurements.model import calls_counted
from tracemap.measurements.sql import quoted
from tracemap.store.engine import Engine, text_literal
from tracemap.store.grouping import group_of, grouped, looked, register
from tracemap.store.headers import INPUTS, Header, Headers, check_spelling
from tracemap.store.layout import ASIDE, CALLS, COSTS, NO_METRICS, TARGETS, told
from tracemap.store.lineage import Names
from tracemap.store.model import (
    FleetCalls,
    FleetCosts,
    FleetGroup,
    FleetMetric,
    FleetOp,
    FleetResidual,
    GroupCalls,
    SiteCalls,
)
from tracemap.units import UNKNOWN, Integer, sum_of

# ---- percentiles
#
# How long the single calls of a site take over many runs: exact percentiles, or those of a histogram that says so.
#
# Exact percentiles need all values at once. Beyond `MOST_EXACT` calls these are counted in buckets whose bounds lie 1
# % apart: a percentile is then known to within half of that, however many calls there are, and buckets of any number
# of files add up (the idea of DDSketch: Masson, Rim and Lee, Proceedings of the VLDB 12, 2019).


MOST_EXACT: Final = 20_000_000
FRACTIONS: Final = (0.1, 0.5, 0.9, 0.99)
GAMMA: Final = 1.01
"""The ratio of the bounds of a bucket."""

_PLACED: Final = """
FROM calls JOIN chosen ON chosen.number = calls.run
JOIN targets ON targets.run = calls.run AND targets.target = calls.target AND targets.position = 0
WHERE calls.target >= 0 AND calls.{metric} IS NOT NULL
"""
# Events that may be of several places are those of their kernel.
_SITE: Final = "CASE WHEN targets.places = 1 THEN targets.place END"
_PLACE: Final = f"chosen.grouping, chosen.map, targets.kernel, {_SITE} AS place"
_BY_PLACE: Final = f"GROUP BY chosen.grouping, chosen.map, targets.kernel, {_SITE}"
EXACT: Final = f"""
SELECT {_PLACE}, count(*) AS calls, max(calls.{{metric}}) AS most, {{percentiles}} {_PLACED} {_BY_PLACE}
"""
_PERCENTILE: Final = "percentile_cont({fraction}) WITHIN GROUP (ORDER BY calls.{metric})"
_SIZE: Final = f"floor(ln(abs(CAST(calls.{{metric}} AS DOUBLE)) + 1) / {math.log(GAMMA)!r})"
_BUCKET: Final = f"CAST(sign(calls.{{metric}}) * {_SIZE} AS INTEGER)"
"""Buckets below 0 are of values below 0, which a metric may have."""
BUCKETS: Final = f"""
SELECT {_PLACE}, {_BUCKET} AS bucket, count(*) AS calls, max(calls.{{metric}}) AS most {_PLACED} {_BY_PLACE}, {_BUCKET}
"""

_Place = tuple[int, int, str | None, str | None]
"""A group, a map, a kernel and a place."""


def fleet_calls(
    engine: Engine, headers: Headers, names: Names, metric: str, group_by: Sequence[str], most_exact: int = MOST_EXACT
) -> FleetCalls:
    """Percentiles of the calls of each site, of each group of runs and each map.

    Raises:
        UsageInvalid: no calls have the metric, or some under a name in other letters.
        StoreInvalid: a file cannot be read.
    """
    groups = grouped(headers.rows, group_by)
    register(engine, headers, names, groups)
    for table in (CALLS, TARGETS):
        engine.view(table, headers.files(table))
    if metric.lower() not in NO_METRICS:
        check_spelling(headers, [metric])
    if metric.lower() in NO_METRICS or metric not in engine.columns(CALLS):
        raise UsageInvalid(f"--metric {metric}: no calls have it; tracemap store query --metric says what runs have")
    exact = sum(row["calls"] or 0 for row in headers.rows) <= most_exact
    found = _exact(engine, metric) if exact else _sketched(engine, metric)
    by_group = _by_group(found)
    maps = [sha for _, sha in headers.maps_of_models]
    return FleetCalls(
        metric=metric,
        group_by=tuple(group_by),
        error_percent=0.0 if exact else round(50 * (GAMMA - 1), 3),
        groups=tuple(
            _group(runs, group_by, maps[number], sites)
            for place, runs in enumerate(groups)
            for number, sites in sorted(by_group[place].items())
        ),
        looked=looked(headers),
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
    """Rounded, halves up; engines that interpolate differ in the last digit, which is not to decide.

    Raises:
        StoreInvalid: it is no number, as no call of a file that is whole has it.
    """
    if not math.isfinite(value):
        raise StoreInvalid(f"the store cannot be read: what a call took is {value}")
    return math.floor(round(value, 3) + 0.5)


def _sketched(engine: Engine, metric: str) -> Mapping[_Place, SiteCalls]:
    buckets: dict[_Place, list[tuple[int, int, int]]] = defaultdict(list)
    for group, of_map, kernel, place, bucket, calls, most in engine.rows(BUCKETS.format(metric=quoted(metric))):
        buckets[group, of_map, kernel, place].append((bucket, calls, most))
    found = {}
    for key, counts in buckets.items():
        counts.sort()
        calls, most = sum(count for _, count, _ in counts), max(largest for *_, largest in counts)
        values = [min(most, _at(counts, fraction * (calls - 1))) for fraction in FRACTIONS]
        found[key] = _site(key[3], key[2], calls, values, most)
    return found


def _at(counts: Sequence[tuple[int, int, int]], rank: float) -> int:
    """The middle of the bucket that holds a rank, by ratio."""
    seen = 0
    for bucket, count, _ in counts:
        seen += count
        if seen > rank:
            return round(math.copysign(math.pow(GAMMA, abs(bucket) + 0.5) - 1, bucket))
    return counts[-1][2]


def _site(place: str | None, kernel: str | None, calls: int, values: Sequence[int], most: int) -> SiteCalls:
    p10, median, p90, p99 = values
    return SiteCalls(told(place), told(kernel), calls, p10=p10, median=median, p90=p90, p99=p99, most=int(most))


def _by_group(found: Mapping[_Place, SiteCalls]) -> Mapping[int, Mapping[int, list[SiteCalls]]]:
    """The sites of each group by the number of their map, those that take most time first."""
    sites: dict[int, dict[int, list[SiteCalls]]] = defaultdict(lambda: defaultdict(list))
    in_order = sorted(found.items(), key=lambda each: _dearness(each[1]))
    for (group, of_map, _, _), site in in_order:
        sites[group][of_map].append(site)
    return sites


def _dearness(site: SiteCalls) -> tuple[int, str, str]:
    return -site.calls * site.median, str(site.site), str(site.kernel)


def _group(runs: Sequence[Header], columns: Sequence[str], of_map: str, sites: Sequence[SiteCalls]) -> GroupCalls:
    own = [run for run in runs if run["map"] == of_map]
    return GroupCalls(runs[0]["model"], group_of(runs, columns), of_map, len(own), tuple(sites))


# ---- costs
#
# What ops cost over many runs: sums of what each run came to when it was added, or of all their calls anew.
#
# Calls are reduced to targets where they lie, which is all that takes time; what follows is a few rows for each run.
# They are split over places and ops as a single run's are, in whole numbers by largest remainder, so that both ways
# end in the same numbers. All texts are the common part of DuckDB's and Spark's SQL.


REDUCE: Final = """
SELECT run, target{sums} FROM calls GROUP BY run, target
"""
_SUM: Final = ", CAST(sum({column}) AS DECIMAL(38,0)) AS total_{number}"

# Of one metric. The n-th of the places of a target gets one more where n is less than what cannot be divided; weights
# are what ops got of the place when the run was added, and where all of them are nothing, all are alike; of negative
# ones the signs are taken away. What is alone in its place gets all of it; where the sum of calls is what it was when
# the run was added, so is what each op gets.
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
WHERE aside.metric = {metric} AND aside.reason = 'disturbance'
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
    """What is asked of runs: the columns that tell groups apart, the metrics (none: what all have of time), and whether
    single calls are added up anew.
    """

    group_by: Sequence[str] = ()
    metrics: Sequence[str] = ()
    from_calls: bool = False


def fleet_costs(engine: Engine, headers: Headers, names: Names, question: Question) -> FleetCosts:
    """What ops cost over runs.

    Raises:
        UsageInvalid: no run has one of the metrics.
        StoreInvalid: a file cannot be read.
    """
    groups = grouped(headers.rows, question.group_by)
    register(engine, headers, names, groups)
    engine.view(COSTS, headers.files(COSTS))
    # They lie in as many files as there are runs, and are asked for several times.
    _keep(engine, KEPT_COSTS, _KEPT)
    metrics = _wanted(engine, question)
    table = KEPT_COSTS
    if question.from_calls:
        engine.keep("anew", _from_calls(engine, headers, metrics))
        table = "anew"
    wanted = ", ".join(map(text_literal, metrics))
    rows = engine.rows(_GROUPED.format(table=table, metrics=wanted))
    have = _invocations(engine.rows(_OF_RUNS.format(metrics=wanted)), headers.rows)
    summed: dict[int, dict[_Cell, tuple[int, int]]] = defaultdict(dict)
    for group, metric, key, reason, amount, seen in rows:
        summed[group][metric, key, reason] = int(amount), seen
    answers = (
        _Group(runs, question.group_by, summed[number], {each: have.get((number, each), UNKNOWN) for each in metrics})
        for number, runs in enumerate(groups)
    )
    return FleetCosts(
        group_by=tuple(question.group_by),
        added_up="calls" if question.from_calls else "summaries",
        groups=tuple(each.answered(names) for each in answers),
        looked=looked(headers),
    )


def _keep(engine: Engine, name: str, query: str) -> None:
    """Keep a table of amounts.

    Raises:
        StoreInvalid: one is lost, which sums would leave out without a word.
    """
    engine.keep(name, query)
    ((lost,),) = engine.rows(_LOST.format(table=name))
    if lost:
        raise StoreInvalid("the store cannot be read: a cost is lost")


def _wanted(engine: Engine, question: Question) -> list[str]:
    """The metrics that are asked for; without a word the first of the times that took any."""
    there = {str(metric): int(most) for metric, most in engine.rows(_METRICS)}
    for metric in question.metrics:
        if metric not in there:
            raise UsageInvalid(f"--metric {metric}: no run has it; the metrics of these runs are: {', '.join(there)}")
    if question.metrics:
        return list(dict.fromkeys(question.metrics))
    times: list[str] = [metric for metric in _PREFERRED if there.get(metric)]
    return times[:1] or list(there)[:1]


def _from_calls(engine: Engine, headers: Headers, metrics: Sequence[str]) -> str:
    """Reduce calls to targets, and split these over places and ops as the query that is returned does."""
    check_spelling(headers, metrics)
    for table in (CALLS, TARGETS, ASIDE):
        engine.view(table, headers.files(table))
    there = set(engine.columns(CALLS))
    for metric in metrics:
        if metric not in there:
            raise UsageInvalid(
                f"--metric {metric}: is not of calls, but of what was seen inside of them; leave out --calls"
            )
    sums = (_SUM.format(column=quoted(metric), number=number) for number, metric in enumerate(metrics))
    engine.keep("reduced", REDUCE.format(sums="".join(sums)))
    _keep(engine, "kept_aside", _KEPT_ASIDE)
    parts = (SPLIT.format(number=number, metric=text_literal(metric)) for number, metric in enumerate(metrics))
    return " UNION ALL ".join(f"SELECT * FROM ({part}) AS of_{number}" for number, part in enumerate(parts))


def _invocations(rows: Sequence[tuple[int, int, str]], headers: Sequence[Header]) -> Mapping[tuple[int, str], Integer]:
    """By group and metric in how many invocations it was measured: one that unlike calls have in common is unknown."""
    of_run = {row["number"]: row for row in headers}
    found: dict[tuple[int, str], list[Integer]] = defaultdict(list)
    functions: dict[tuple[int, str], set[str | None]] = defaultdict(set)
    inputs: dict[tuple[int, str], set[str | None]] = defaultdict(set)
    for group, run, metric in rows:
        found[group, metric].append(calls_counted(metric, told(of_run[run]["iterations"])))
        functions[group, metric].add(of_run[run]["function"])
        inputs[group, metric].add(of_run[run][INPUTS])
    alike = {key for key in found if len(functions[key]) == 1 and len(inputs[key] - {None}) <= 1}
    return {key: sum_of(values) if key in alike else UNKNOWN for key, values in found.items()}


_Cell = tuple[str, int | None, str | None]
"""A metric, and the key of an op, or the reason why there is none."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Runs of a group: the columns in which they are alike, sums, each with the number of runs that have it, and in how
    many invocations each metric was measured.
    """

    runs: Sequence[Header]
    columns: Sequence[str]
    summed: Mapping[_Cell, tuple[int, int]]
    invocations: Mapping[str, Integer]

    def answered(self, names: Names) -> FleetGroup:
        """Ops by what they cost of the first metric, the dearest first."""
        keys = sorted({key for _, key, _ in self.summed if key is not None})
        reasons = sorted({str(reason) for (_, key, reason), (cost, _) in self.summed.items() if key is None and cost})
        ops = [self._op(key, names) for key in keys]
        ops.sort(key=lambda op: -next(iter(op.amounts.values()), 0))
        residual = [FleetResidual(reason, self._amounts(None, reason)) for reason in reasons]
        return FleetGroup(
            self.runs[0]["model"],
            group_of(self.runs, self.columns),
            len(self.runs),
            tuple(self._total(metric, ops, residual) for metric in self.invocations),
            tuple(ops),
            tuple(residual),
        )

    def _op(self, key: int, names: Names) -> FleetOp:
        seen = max(self.summed.get((metric, key, None), (0, 0))[1] for metric in self.invocations)
        return FleetOp(**names.said(key), runs=seen, amounts=self._amounts(key, None))

    def _amounts(self, key: int | None, reason: str | None) -> dict[str, int]:
        return {metric: self.summed.get((metric, key, reason), (0, 0))[0] for metric in self.invocations}

    def _total(self, metric: str, ops: Sequence[FleetOp], residual: Sequence[FleetResidual]) -> FleetMetric:
        attributed = sum(op.amounts[metric] for op in ops)
        rest = sum(row.amounts[metric] for row in residual)
        return FleetMetric(metric, attributed + rest, attributed, rest, self.invocations[metric])
