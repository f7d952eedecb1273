"""What changed in a fleet, and what differs between two sets of its runs: from tables to findings with names.

What an op costs in a run is the median over the run's invocations; where a run does not tell these apart, its cost by
the number of its invocations. Numbers are found by `trends`, `hosts` and `nightlies`; here they get their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from tracemap.codec import view
from tracemap.errors import StoreInvalid, UsageInvalid
from tracemap.measurements.model import calls_counted
from tracemap.store.engine import Engine, text_literal
from tracemap.store.findings import Change, NightChange, OutlierHost
from tracemap.store.grouping import grouped_by_call, looked, register
from tracemap.store.headers import INPUTS, Header, Headers
from tracemap.store.hosts import outliers
from tracemap.store.layout import COSTS, SPREADS, told
from tracemap.store.lineage import Names
from tracemap.store.model import (
    FleetChange,
    FleetComparison,
    FleetDifference,
    FleetHost,
    FleetName,
    FleetPoint,
    FleetSeries,
    FleetTrend,
    FleetTrends,
    ModelDifferences,
)
from tracemap.store.series import Floats, Integers
from tracemap.store.set_comparison import compared
from tracemap.store.trends import EVERY, Observations, changes
from tracemap.units import UNKNOWN, Text, Unknown

Over = Literal["date", "compiler"]

MEDIANS: Final = """
SELECT spreads.run, keyed.op_key,
       CASE WHEN count(*) = count(spreads.median) THEN CAST(sum(spreads.median) AS DECIMAL(38,0)) END AS cost
FROM spreads JOIN chosen ON chosen.number = spreads.run JOIN keyed ON keyed.map = chosen.map AND keyed.op = spreads.op
WHERE spreads.metric = {metric} GROUP BY spreads.run, keyed.op_key
"""
SUMS: Final = """
SELECT costs.run, keyed.op_key,
       CASE WHEN count(*) = count(costs.amount) THEN CAST(sum(costs.amount) AS DECIMAL(38,0)) END AS cost
FROM costs JOIN chosen ON chosen.number = costs.run JOIN keyed ON keyed.map = chosen.map AND keyed.op = costs.op
WHERE costs.metric = {metric} GROUP BY costs.run, keyed.op_key
"""

ALL_OPS: Final = FleetName(op="all ops", name=UNKNOWN, file=UNKNOWN, line=UNKNOWN, scope=UNKNOWN)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the ops of one model cost in calls of a function: the observations, and what their numbers stand for.

    `nights` are the values of the column that grows with time; `untold`: runs that are left out, as they do not tell
    when they were recorded, where, or by how many invocations.
    """

    model: str
    function: Text
    inputs: Text
    observations: Observations
    nights: Sequence[str]
    hosts: Sequence[str]
    cpu_models: Sequence[str]
    untold: int

    @property
    def call(self) -> tuple[str, Text, Text]:
        """What was called: model, function and sizes of inputs."""
        return self.model, self.function, self.inputs

    def place(self, number: int, of: Sequence[str]) -> Text:
        """The name of a number; unknown: all of them."""
        return UNKNOWN if number == EVERY else of[number]


def fleet_trends(engine: Engine, headers: Headers, names: Names, metric: str, over: Over, least: float) -> FleetTrends:
    """What became slower or faster over the runs, and which hosts are unlike others.

    Raises:
        UsageInvalid: no run has the metric, or tells when and where it was recorded.
    """
    found = []
    for seen in observed(engine, headers, names, metric, over):
        said = changes(seen.observations, least_ratio=least)
        found.append(
            FleetTrend(
                model=seen.model,
                function=seen.function,
                inputs=seen.inputs,
                nights=len(seen.nights),
                hosts=len(seen.hosts),
                cpu_models=len(seen.cpu_models),
                series=said.series,
                untold=seen.untold,
                changes=tuple(_change(each, seen, names) for each in said.changes),
                outliers=tuple(_outlier(each, seen, names) for each in outliers(seen.observations)),
                dearest=tuple(_dearest(seen, names)),
                in_order=tuple(seen.nights),
            )
        )
    return FleetTrends(metric=metric, over=over, models=tuple(found), looked=looked(headers))


def fleet_comparison(
    engine: Engine, sides: tuple[Headers, Headers], names: Names, metric: str, least: float
) -> FleetComparison:
    """What ops cost in one set of runs and in another, on which CPU models.

    Raises:
        UsageInvalid: no run has the metric, a run is in both sets, or no model is.
    """
    before, after = sides
    if both := {row["run"] for row in before.rows} & {row["run"] for row in after.rows}:
        raise UsageInvalid(
            f"{len(both)} runs are of both sides, {min(both)} for one; choose sides that have none in common"
        )
    of_before, of_after = (
        [*observed(engine, side, names, metric, "date", keep_undated=True)] for side in (before, after)
    )
    common = [*_of_both(of_before, of_after)]
    if not common:
        raise UsageInvalid(
            "no model has runs of one function on both sides, with inputs of the same sizes: nothing can be compared"
        )
    found = []
    for one, two in common:
        said = compared(one.observations, two.observations, least_ratio=least)
        differences = tuple(_difference(each, one, names) for each in said.changes)
        found.append(ModelDifferences(*one.call, said.compared, said.lonely, one.untold + two.untold, differences))
    return FleetComparison(metric=metric, models=tuple(found), before=looked(before), after=looked(after))


def _of_both(before: Sequence[Seen], after: Sequence[Seen]) -> Iterator[tuple[Seen, Seen]]:
    """What was called on both sides; where one does not tell the sizes of inputs, it is laid beside the only others."""
    for one in before:
        of_one, of_two = ([each for each in side if each.call[:2] == one.call[:2]] for side in (before, after))
        for two in of_two:
            untold = UNKNOWN in {one.inputs, two.inputs} and len(of_one) == len(of_two) == 1
            if one.inputs == two.inputs or untold:
                yield _alike(one, two)


def _alike(one: Seen, two: Seen) -> tuple[Seen, Seen]:
    """Both with the same numbers for hosts and CPU models."""
    hosts, models = ([*dict.fromkeys([*a, *b])] for a, b in ((one.hosts, two.hosts), (one.cpu_models, two.cpu_models)))

    def renumbered(seen: Seen) -> Seen:
        told = seen.observations
        host = np.asarray([hosts.index(each) for each in seen.hosts], dtype=np.int64)[told.host]
        model = np.asarray([models.index(each) for each in seen.cpu_models], dtype=np.int64)[told.cpu_model]
        columns = {name: getattr(told, name) for name in ("op", "night", "run", "cost_ns")}
        made = Observations.of(**columns, host=host, cpu_model=model)
        return Seen(*seen.call, made, seen.nights, hosts, models, seen.untold)

    return renumbered(one), renumbered(two)


# ---- from the tables


def observed(
    engine: Engine, headers: Headers, names: Names, metric: str, over: Over, *, keep_undated: bool = False
) -> Iterator[Seen]:
    """What ops cost, for each function of each model and sizes of its inputs, as only such calls cost the same.

    `keep_undated`: when runs were recorded does not matter.

    Raises:
        UsageInvalid: no run has the metric, or tells when and where it was recorded.
    """
    groups = grouped_by_call(headers.rows)
    register(engine, headers, names, groups)
    engine.view(COSTS, headers.files(COSTS))
    engine.view(SPREADS, headers.files(SPREADS))
    costs = _costs_of_runs(engine, headers.rows, metric)
    if not costs:
        raise UsageInvalid(f"--metric {metric}: no run has it in any op, or tells of how many invocations")
    seen = [_seen(group, costs, over, keep_undated=keep_undated) for group in groups]
    there = [each for each in seen if len(each.observations.op)]
    if not there:
        raise UsageInvalid("no run tells when and on which host it was recorded; say it with --recorded and --host")
    yield from there


def _costs_of_runs(engine: Engine, rows: Sequence[Header], metric: str) -> Mapping[int, dict[int, float]]:
    """By run and key what an op costs in an invocation."""
    calls = {row["number"]: calls_counted(metric, told(row["iterations"])) for row in rows}
    found: dict[int, dict[int, float]] = {}
    for run, key, cost in engine.rows(SUMS.format(metric=text_literal(metric))):
        of_run = calls[run]
        if isinstance(of_run, int) and of_run:
            found.setdefault(run, {})[key] = _whole(cost) / of_run
    for run, key, cost in engine.rows(MEDIANS.format(metric=text_literal(metric))):
        found.setdefault(run, {})[key] = float(_whole(cost))
    return found


def _whole(cost: int | None) -> int:
    """A cost of a table that may be damaged.

    Raises:
        StoreInvalid: it is lost.
    """
    if cost is None:
        raise StoreInvalid("the store cannot be read: a cost is lost")
    return int(cost)


def _seen(group: Sequence[Header], costs: Mapping[int, dict[int, float]], over: Over, *, keep_undated: bool) -> Seen:
    told = [row for row in group if row["host"] is not None and (row[over] is not None or keep_undated)]
    told = [row for row in told if row["number"] in costs]
    # Dates are in the order of their letters; compilers in that in which they came into use.
    nights = sorted({str(row[over]) for row in told}) if over == "date" else [*dict.fromkeys(row[over] for row in told)]
    hosts = sorted({row["host"] for row in told})
    models = sorted({row["cpu_model"] or "unknown" for row in told})
    columns: dict[str, list[Any]] = {name: [] for name in Observations.__slots__}
    for row in told:
        place = (hosts.index(row["host"]), models.index(row["cpu_model"] or "unknown"), nights.index(str(row[over])))
        for key, cost in costs[row["number"]].items():
            for name, value in zip(
                ("op", "host", "cpu_model", "night", "run", "cost_ns"), (key, *place, row["number"], cost), strict=True
            ):
                columns[name].append(value)
    function, inputs = (_said(group, column) for column in ("function", INPUTS))
    made = Observations.of(**columns)
    return Seen(group[0]["model"], function, inputs, made, nights, hosts, models, len(group) - len(told))


def _said(group: Sequence[Header], column: str) -> Text:
    """What the runs of a group tell in a column, where any does."""
    return next((str(row[column]) for row in group if row[column] is not None), UNKNOWN)


# ---- to findings with names


def _change(change: Change, seen: Seen, names: Names) -> FleetChange:
    night, low, high = (seen.nights[each] for each in (change.night, change.night_low, change.night_high))
    return view(
        FleetChange,
        change,
        op=_name(change.op, names),
        cpu_model=seen.place(change.cpu_model, seen.cpu_models),
        host=seen.place(change.host, seen.hosts),
        night=night,
        night_low=low,
        night_high=high,
        before=_rounded(change.before_ns),
        after=_rounded(change.after_ns),
        series=tuple(_points(seen, change.op, change.cpu_model, change.host)),
    )


_DEAREST: Final = 12
"""Ops of a model whose nights are shown, be they the same ever since."""


def _dearest(seen: Seen, names: Names) -> Iterator[FleetSeries]:
    told = seen.observations
    ops, place = np.unique(told.op, return_inverse=True)
    costs = np.bincount(place, weights=told.cost_ns)
    for number in sorted(range(len(ops)), key=lambda each: -costs[each])[:_DEAREST]:
        op = int(ops[number])
        for model, cpu_model in enumerate(seen.cpu_models):
            if points := tuple(_points(seen, op, model, EVERY)):
                yield FleetSeries(_name(op, names), cpu_model, points)


def _points(seen: Seen, op: int, cpu_model: int, host: int) -> Iterator[FleetPoint]:
    """The median of each night, over the hosts that are asked for; of all ops the sum over those that run in all.

    What a night lacks, as a branch that was not taken, would make a step where nothing became slower.
    """
    told = seen.observations
    chosen = told.cost_ns > 0 if op == EVERY else np.ones(len(told.op), dtype=bool)
    for number, of in ((op, told.op), (cpu_model, told.cpu_model), (host, told.host)):
        if number != EVERY:
            chosen &= of == number
    of_op, of_night, median = _medians(told.where(chosen))
    nights = np.unique(of_night)
    ops, there = np.unique(of_op, return_counts=True)
    whole = np.isin(of_op, ops[there == len(nights)])
    if whole.any():
        costs = np.bincount(np.searchsorted(nights, of_night[whole]), weights=median[whole])
        for each, cost in zip(nights, costs, strict=True):
            yield FleetPoint(seen.nights[int(each)], round(float(cost)))


def _medians(told: Observations) -> tuple[Integers, Integers, Floats]:
    """Each op of each night, in order, with the median of its costs."""
    order = np.lexsort((told.cost_ns, told.night, told.op))
    op, night, cost = told.op[order], told.night[order], told.cost_ns[order]
    begins = np.diff(op, prepend=-1).astype(bool) | np.diff(night, prepend=-1).astype(bool)
    first = np.flatnonzero(begins)
    count = np.diff(first, append=len(op))
    return op[first], night[first], (cost[first + (count - 1) // 2] + cost[first + count // 2]) / 2


def _outlier(found: OutlierHost, seen: Seen, names: Names) -> FleetHost:
    host, cpu_model = seen.hosts[found.host], seen.cpu_models[found.cpu_model]
    return view(FleetHost, found, host=host, cpu_model=cpu_model, op=_name(found.op, names))


def _difference(found: NightChange, seen: Seen, names: Names) -> FleetDifference:
    return view(
        FleetDifference,
        found,
        op=_name(found.op, names),
        cpu_model=seen.place(found.cpu_model, seen.cpu_models),
        before=_rounded(found.before_ns),
        after=_rounded(found.after_ns),
    )


def _name(op: int, names: Names) -> FleetName:
    return ALL_OPS if op == EVERY else FleetName(**names.said(op))


def _rounded(value: float | Unknown) -> int | Unknown:
    return UNKNOWN if isinstance(value, Unknown) else round(value)
