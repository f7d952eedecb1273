"""Queries to a store: tables of costs, sites, trends and comparisons."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from tracemap.core.codec import record_from
from tracemap.core.errors import StoreInvalid, UsageInvalid
from tracemap.core.units import UNKNOWN, Text, Unknown
from tracemap.runs.model import invocations_counted
from tracemap.store.changepoints import OpSeries, Step, Steps, find_steps, first_steps, fit
from tracemap.store.findings import Change, OutlierHost, SetDifference, Trends, compare_sets, merge_cpu_models, outliers
from tracemap.store.layout import COSTS, SPREADS, unknown_if_null
from tracemap.store.lineage import Names
from tracemap.store.model import (
    ModelDifferences,
    StoreChange,
    StoreComparison,
    StoreDifference,
    StoreHost,
    StoreOpName,
    StorePoint,
    StoreSeries,
    StoreTrend,
    StoreTrends,
)
from tracemap.store.p_values import holm
from tracemap.store.query_engines import Engine, text_literal
from tracemap.store.run_headers import INPUTS, Header, Headers
from tracemap.store.series import (
    EVERY,
    Floats,
    Integers,
    Observations,
    Table,
    cost_table,
    grouped_by_call,
    median_of,
    panels,
    query_scope,
    register,
)

# ---- trends
#
# Trends: level shifts in the costs of ops over nights, by CPU model.
#
# `Observations.of(op=…, host=…, cpu_model=…, night=…, run=…, cost_ns=…)` takes columns of equal length.
# `changes(observations)` finds ops that became slower or faster, with the night and the CPU model. Related:
# `outliers` finds hosts that differ from others of their CPU model; `compare_sets` compares two sets of runs.
# Keys are numbers; `EVERY` stands for all ops, all CPU models or all hosts.
#
# Method: remove from log costs the effect common to all ops of a run (`series`), and clip outliers (`clip_outliers`).
# Add level shifts one by one while the next one is significant (`changepoints`). Holm's correction covers all series,
# so at most one of a hundred unchanged stores has a finding. Unclipped costs locate the night. A shift that all CPU
# models share is reported once (`findings`). Equal inputs give equal findings; nothing is random.


LEAST_RATIO: Final = 1.02
"""Smaller changes are not reported."""
LEVEL: Final = 0.01
"""Significance level, corrected for the number of series."""

__all__ = ["EVERY", "Change", "Observations", "Trends", "changes"]


def changes(observations: Observations, least_ratio: float = LEAST_RATIO, level: float = LEVEL) -> Trends:
    """Ops that became slower or faster.

    Args:
        observations: costs of ops in runs.
        least_ratio: smaller changes, in either direction, are not reported.
        level: significance level: probability of any finding if nothing changed.
    """
    table = cost_table(observations)
    shifts, series = _find_shifts(table, least_ratio, level)
    # A changed op also moved the common effect a little, so compute that again without the changed ops.
    changed_ops = {change.op for change in shifts} - {EVERY}
    if changed_ops and 2 * len(changed_ops) < len(table.ops):
        shifts, series = _find_shifts(cost_table(observations, changed_ops), least_ratio, level)
    return Trends(
        changes=tuple(sorted(shifts, key=lambda shift: (shift.chance, shift.op, shift.cpu_model, shift.night))),
        series=series,
        ops=len(table.ops),
        cpu_models=len(np.unique(table.models)),
        hosts=len(table.hosts),
        nights=len(np.unique(table.night)),
    )


def _find_shifts(table: Table, least_ratio: float, level: float) -> tuple[list[Change], int]:
    """The level shifts, and the number of series searched."""
    firsts = [first for panel in panels(table) for first in first_steps(panel)]
    corrected = holm([first.chance for first in firsts])
    shifts = [
        shift
        for first, chance in zip(firsts, corrected, strict=True)
        if chance < level
        for shift in _reported(find_steps(first.series, first.index, chance, len(firsts), level), math.log(least_ratio))
    ]
    return merge_cpu_models(shifts, [first.series for first in firsts]), len(firsts)


def _reported(steps: Steps, least: float) -> Iterator[Change]:
    for number, step in enumerate(steps.fit.steps):
        if abs(step.size) >= least:
            yield _change(steps, number, step)


def _change(steps: Steps, number: int, step: Step) -> Change:
    series, location = steps.series, steps.locations[number]
    indexes = [step_location.index for step_location in steps.locations]
    present, agrees, own_sizes = series.agreeing(series.window(location.index, indexes, steps.fit.walk), step.size)
    host = EVERY
    if len(present) > 1 and 2 * int(np.sum(agrees)) <= len(present):
        # Most hosts do not show the shift: a single host with a large change has moved them all.
        row = int(present[int(np.argmax(own_sizes * np.sign(step.size)))])
        host, series = int(series.hosts[row]), series.of_host(row)
        step = fit(series.design, series.clipped, series.rarities, indexes).steps[number]
    low = max((index for index in indexes if index < location.index), default=0)
    high = min((index for index in indexes if index > location.index), default=len(series.nights))
    before = _level(series, low, location.index)
    return Change(
        kind="slower" if step.size > 0 else "faster",
        op=series.op,
        cpu_model=series.cpu_model,
        host=host,
        night=int(series.nights[location.index]),
        night_low=int(series.nights[location.first]),
        night_high=int(series.nights[location.last]),
        ratio=math.exp(step.size),
        ratio_low=math.exp(step.low),
        ratio_high=math.exp(step.high),
        before_ns=before,
        after_ns=UNKNOWN if isinstance(before, Unknown) else before * math.exp(step.size),
        hosts=len(present),
        hosts_agree=int(np.sum(agrees)),
        nights_before=location.index - low,
        nights_after=high - location.index,
        chance=steps.chances[number],
    )


def _level(series: OpSeries, low: int, high: int) -> float | Unknown:
    """Cost on an ordinary host in these nights; unknown for the effect common to all ops."""
    if series.op == EVERY:
        return UNKNOWN
    return math.exp(float(median_of(median_of(series.cells[:, low:high]))))


# ---- asking
#
# Trends and comparisons of sets of runs, with the names of ops, hosts and nights.
#
# An op's cost in a run is its median over the run's invocations. Where a run does not separate invocations, it is the
# op's total over their number. `changes`, `outliers` and `compare_sets` compute with numbers; here they get names.


Over = Literal["date", "compiler"]

OP_COSTS: Final = """
SELECT {table}.run, keyed.op_key,
       CASE WHEN count(*) = count({table}.{amount}) THEN CAST(sum({table}.{amount}) AS DECIMAL(38,0)) END AS cost
FROM {table} JOIN chosen ON chosen.number = {table}.run JOIN keyed ON keyed.map = chosen.map AND keyed.op = {table}.op
WHERE {table}.metric = {metric} GROUP BY {table}.run, keyed.op_key
"""

ALL_OPS: Final = StoreOpName(op="all ops", name=UNKNOWN, file=UNKNOWN, line=UNKNOWN, scope=UNKNOWN)


@dataclass(frozen=True, slots=True)
class ObservedCalls:
    """Costs of a model's ops in calls of a function: the observations, and the names of their numbers.

    `nights`: values of the time column, in order. `runs_left_out`: runs left out because their time, host or number of
    invocations is unknown.
    """

    model: str
    function: Text
    inputs: Text
    observations: Observations
    nights: Sequence[str]
    hosts: Sequence[str]
    cpu_models: Sequence[str]
    runs_left_out: int

    @property
    def call(self) -> tuple[str, Text, Text]:
        """The model, the function, and the sizes of inputs."""
        return self.model, self.function, self.inputs


def query_trends(engine: Engine, headers: Headers, names: Names, metric: str, over: Over, least: float) -> StoreTrends:
    """Ops that became slower or faster over time, and hosts that differ from others.

    Raises:
        UsageInvalid: no run has the metric, or the time and host of every run are unknown.
    """
    trends = []
    for seen in observed_calls(engine, headers, names, metric, over):
        result = changes(seen.observations, least_ratio=least)
        trends.append(
            StoreTrend(
                model=seen.model,
                function=seen.function,
                inputs=seen.inputs,
                nights=len(seen.nights),
                hosts=len(seen.hosts),
                cpu_models=len(seen.cpu_models),
                series=result.series,
                runs_left_out=seen.runs_left_out,
                changes=tuple(_trend_change(item, seen, names) for item in result.changes),
                outliers=tuple(_outlier(item, seen, names) for item in outliers(seen.observations)),
                most_expensive=tuple(_most_expensive(seen, names)),
                in_order=tuple(seen.nights),
                program=tuple(_series(seen, EVERY, ALL_OPS)),
            )
        )
    return StoreTrends(metric=metric, over=over, models=tuple(trends), looked=query_scope(headers))


def query_comparison(
    engine: Engine, sides: tuple[Headers, Headers], names: Names, metric: str, least: float
) -> StoreComparison:
    """Compare the costs of ops in two sets of runs, by CPU model.

    Raises:
        UsageInvalid: no run has the metric, a run is in both sets, or no model is in both.
    """
    before, after = sides
    if both := {row["run"] for row in before.rows} & {row["run"] for row in after.rows}:
        raise UsageInvalid(f"{len(both)} runs are in both sets, such as {min(both)}; select disjoint sets")
    old_calls, new_calls = (
        [*observed_calls(engine, side, names, metric, "date", keep_undated=True)] for side in (before, after)
    )
    pairs = [*_in_both(old_calls, new_calls)]
    if not pairs:
        raise UsageInvalid("nothing to compare: no model has runs of the same function and input sizes in both sets")
    models = []
    for old, new in pairs:
        result = compare_sets(old.observations, new.observations, least_ratio=least)
        differences = tuple(_difference(change, old, names) for change in result.changes)
        models.append(
            ModelDifferences(
                *old.call, result.compared, result.unpaired, old.runs_left_out + new.runs_left_out, differences
            )
        )
    return StoreComparison(metric=metric, models=tuple(models), before=query_scope(before), after=query_scope(after))


def _in_both(
    before: Sequence[ObservedCalls], after: Sequence[ObservedCalls]
) -> Iterator[tuple[ObservedCalls, ObservedCalls]]:
    """Calls in both sets. Unknown sizes of inputs match if there is only one candidate on either side."""
    for old in before:
        old_calls, new_calls = ([seen for seen in side if seen.call[:2] == old.call[:2]] for side in (before, after))
        for new in new_calls:
            unambiguous = UNKNOWN in {old.inputs, new.inputs} and len(old_calls) == len(new_calls) == 1
            if old.inputs == new.inputs or unambiguous:
                yield _with_common_numbers(old, new)


def _with_common_numbers(old: ObservedCalls, new: ObservedCalls) -> tuple[ObservedCalls, ObservedCalls]:
    """Renumber hosts and CPU models so that both sets use the same numbers."""
    hosts, models = ([*dict.fromkeys([*a, *b])] for a, b in ((old.hosts, new.hosts), (old.cpu_models, new.cpu_models)))

    def renumbered(seen: ObservedCalls) -> ObservedCalls:
        observations = seen.observations
        host = np.asarray([hosts.index(name) for name in seen.hosts], dtype=np.int64)[observations.host]
        model = np.asarray([models.index(name) for name in seen.cpu_models], dtype=np.int64)[observations.cpu_model]
        merged = replace(observations, host=host, cpu_model=model)
        return replace(seen, observations=merged, hosts=hosts, cpu_models=models)

    return renumbered(old), renumbered(new)


# ---- queries


def observed_calls(
    engine: Engine, headers: Headers, names: Names, metric: str, over: Over, *, keep_undated: bool = False
) -> Iterator[ObservedCalls]:
    """Costs of ops, by model, function and sizes of inputs, since only such calls have comparable costs.

    `keep_undated`: keep runs whose time is unknown.

    Raises:
        UsageInvalid: no run has the metric, or the time and host of every run are unknown.
    """
    groups = grouped_by_call(headers.rows)
    register(engine, headers, names, groups)
    engine.view(COSTS, headers.files(COSTS))
    engine.view(SPREADS, headers.files(SPREADS))
    costs = _costs_of_runs(engine, headers.rows, metric)
    if not costs:
        raise UsageInvalid(f"--metric {metric}: no run has it for an op, with a known number of invocations")
    calls = [_seen(group, costs, over, keep_undated=keep_undated) for group in groups]
    dated = [seen for seen in calls if len(seen.observations.op)]
    if not dated:
        raise UsageInvalid(
            "the recording time and host of all runs are unknown; add the runs with --recorded and --host"
        )
    yield from dated


def _costs_of_runs(engine: Engine, rows: Sequence[Header], metric: str) -> Mapping[int, dict[int, float]]:
    """Cost of ops per invocation, by run and key."""
    calls = {row["number"]: invocations_counted(metric, unknown_if_null(row["iterations"])) for row in rows}
    costs: dict[int, dict[int, float]] = defaultdict(dict)
    literal = text_literal(metric)
    for run, key, cost in engine.rows(OP_COSTS.format(table=COSTS, amount="amount", metric=literal)):
        invocations = calls[run]
        if isinstance(invocations, int) and invocations:
            costs[run][key] = _whole(cost) / invocations
    for run, key, cost in engine.rows(OP_COSTS.format(table=SPREADS, amount="median", metric=literal)):
        costs[run][key] = float(_whole(cost))
    return costs


def _whole(cost: int | None) -> int:
    """A cost, from a table that may be damaged."""
    if cost is None:
        raise StoreInvalid("the store cannot be read: a cost is missing")
    return int(cost)


def _seen(
    group: Sequence[Header], costs: Mapping[int, dict[int, float]], over: Over, *, keep_undated: bool
) -> ObservedCalls:
    dated = [
        row
        for row in group
        if row["host"] is not None and (row[over] is not None or keep_undated) and row["number"] in costs
    ]
    # Dates sort as texts. Compilers are in order of first use.
    nights = (
        sorted({str(row[over]) for row in dated}) if over == "date" else [*dict.fromkeys(row[over] for row in dated)]
    )
    hosts = sorted({row["host"] for row in dated})
    models = sorted({row["cpu_model"] or "unknown" for row in dated})
    columns: dict[str, list[Any]] = {name: [] for name in Observations.__slots__}
    for row in dated:
        ops = costs[row["number"]]
        columns["op"] += ops.keys()
        columns["cost_ns"] += ops.values()
        columns["run"] += [row["number"]] * len(ops)
        columns["host"] += [hosts.index(row["host"])] * len(ops)
        columns["cpu_model"] += [models.index(row["cpu_model"] or "unknown")] * len(ops)
        columns["night"] += [nights.index(str(row[over]))] * len(ops)
    function, inputs = (_first_known(group, column) for column in ("function", INPUTS))
    observations = Observations.of(**columns)
    return ObservedCalls(
        group[0]["model"], function, inputs, observations, nights, hosts, models, len(group) - len(dated)
    )


def _first_known(group: Sequence[Header], column: str) -> Text:
    """The first known value of a column in a group of runs."""
    return next((str(row[column]) for row in group if row[column] is not None), UNKNOWN)


# ---- records with names


def _trend_change(change: Change, seen: ObservedCalls, names: Names) -> StoreChange:
    night, low, high = (seen.nights[index] for index in (change.night, change.night_low, change.night_high))
    return record_from(
        StoreChange,
        change,
        op=_name(change.op, names),
        cpu_model=_one_or_all(change.cpu_model, seen.cpu_models),
        host=_one_or_all(change.host, seen.hosts),
        night=night,
        night_low=low,
        night_high=high,
        before=_rounded(change.before_ns),
        after=_rounded(change.after_ns),
        series=tuple(_points(seen, change.op, change.cpu_model, change.host)),
    )


_MOST_EXPENSIVE: Final = 12
"""Number of a model's ops with a series per night, whether they changed or not."""


def _most_expensive(seen: ObservedCalls, names: Names) -> Iterator[StoreSeries]:
    observations = seen.observations
    ops, positions = np.unique(observations.op, return_inverse=True)
    costs = np.bincount(positions, weights=observations.cost_ns)
    for index in sorted(range(len(ops)), key=lambda i: -costs[i])[:_MOST_EXPENSIVE]:
        op = int(ops[index])
        yield from _series(seen, op, _name(op, names))


def _series(seen: ObservedCalls, op: int, name: StoreOpName) -> Iterator[StoreSeries]:
    """The cost per night of an op, or of all ops (`EVERY`), on each processor model."""
    for model, cpu_model in enumerate(seen.cpu_models):
        if points := tuple(_points(seen, op, model, EVERY)):
            yield StoreSeries(name, cpu_model, points)


def _points(seen: ObservedCalls, op: int, cpu_model: int, host: int) -> Iterator[StorePoint]:
    """Median cost per night, over the selected hosts. For all ops: the sum over ops that ran in every night.

    An op missing in a night, such as one in a branch not taken, would make a false level shift.
    """
    observations = seen.observations
    selected = observations.cost_ns > 0 if op == EVERY else np.ones(len(observations.op), dtype=bool)
    for wanted, values in ((op, observations.op), (cpu_model, observations.cpu_model), (host, observations.host)):
        if wanted != EVERY:
            selected &= values == wanted
    ops_seen, nights_seen, medians = _medians(observations.where(selected))
    nights = np.unique(nights_seen)
    ops, counts = np.unique(ops_seen, return_counts=True)
    complete = np.isin(ops_seen, ops[counts == len(nights)])
    if complete.any():
        costs = np.bincount(np.searchsorted(nights, nights_seen[complete]), weights=medians[complete])
        for night, cost in zip(nights, costs, strict=True):
            yield StorePoint(seen.nights[int(night)], round(float(cost)))


def _medians(observations: Observations) -> tuple[Integers, Integers, Floats]:
    """Median cost of each op in each night, in this order."""
    order = np.lexsort((observations.cost_ns, observations.night, observations.op))
    op, night, cost = observations.op[order], observations.night[order], observations.cost_ns[order]
    begins = np.diff(op, prepend=-1).astype(bool) | np.diff(night, prepend=-1).astype(bool)
    first = np.flatnonzero(begins)
    count = np.diff(first, append=len(op))
    return op[first], night[first], (cost[first + (count - 1) // 2] + cost[first + count // 2]) / 2


def _outlier(outlier: OutlierHost, seen: ObservedCalls, names: Names) -> StoreHost:
    host, cpu_model = seen.hosts[outlier.host], seen.cpu_models[outlier.cpu_model]
    return record_from(StoreHost, outlier, host=host, cpu_model=cpu_model, op=_name(outlier.op, names))


def _difference(change: SetDifference, seen: ObservedCalls, names: Names) -> StoreDifference:
    return record_from(
        StoreDifference,
        change,
        op=_name(change.op, names),
        cpu_model=_one_or_all(change.cpu_model, seen.cpu_models),
        before=_rounded(change.before_ns),
        after=_rounded(change.after_ns),
    )


def _name(op: int, names: Names) -> StoreOpName:
    return ALL_OPS if op == EVERY else StoreOpName(**names.describe(op))


def _one_or_all(number: int, names: Sequence[str]) -> Text:
    return UNKNOWN if number == EVERY else names[number]


def _rounded(value: float | Unknown) -> int | Unknown:
    return UNKNOWN if isinstance(value, Unknown) else round(value)
