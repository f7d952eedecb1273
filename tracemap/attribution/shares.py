"""Shares of ops: the cost of each site and transfer, split over its ops and added up per op."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec
from msgspec import structs

from tracemap.attribution.kernel_lines.counts import StepCounts
from tracemap.attribution.kernel_lines.estimates import CodeEstimates
from tracemap.attribution.model import (
    MOST_SLOWEST,
    UNKNOWN_PER_INVOCATION,
    MemberShare,
    OpCost,
    OpResult,
    PerInvocation,
    PlaceResult,
    Series,
    SiteCost,
    SiteResult,
    SlowCall,
    TransferResult,
    slowness_key,
)
from tracemap.attribution.scan.connection import Tables
from tracemap.attribution.scan.scan import Scan
from tracemap.attribution.scan.series import values_by_target
from tracemap.attribution.scan.sums import Spread
from tracemap.attribution.scan.weighted import UNIT, Weighted, per_invocation, zero_distribution
from tracemap.attribution.weights import Weights, weights, weights_by_name
from tracemap.core.units import UNKNOWN, Integer, rounded_ratio, split_by_largest_remainder, sum_of
from tracemap.machine.images import Image
from tracemap.map.model import OpId, Site, TraceGraph, Transfer
from tracemap.options.results import Rule
from tracemap.runs.model import SAMPLES, TIME_METRICS, Peaks

# ---- totals
#
# Calls and metric sums per place (a dispatch site or transfer). A target with several places is split evenly.


@dataclass(slots=True)
class PlaceTotal:
    """Calls and costs of a dispatch site or transfer, and the numbers of the targets that include it.

    `sums` exclude outlier time, which is in `outliers`; both by metric name.
    `absent`: number of its targets' events without a value, by metric name. `tiles`: the workgroups of its calls.
    `split_evenly`: some of the events may belong to another place.
    """

    calls: int = 0
    tiles: Integer = 0
    absent: Counter[str] = field(default_factory=Counter)
    sums: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    outliers: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    targets: set[int] = field(default_factory=set)
    split_evenly: bool = False


class Totals(msgspec.Struct, frozen=True):
    """Totals by place; places without events or samples have none."""

    scan: Scan
    places: Mapping[str, PlaceTotal]

    @property
    def has_calls(self) -> bool:
        """Whether the runs count calls: samples alone show where time passes, not how often anything was called."""
        return bool(self.scan.by_target) or not self.scan.step_rows

    def calls(self, place: str) -> Integer:
        """Number of calls of a place."""
        return self.at(place).calls if self.has_calls else UNKNOWN

    def at(self, place: str) -> PlaceTotal:
        """The total of a place; zero if it has none."""
        return self.places.get(place) or PlaceTotal()

    def parts_of(self, target: int, metric: str) -> tuple[Sequence[str], Sequence[int]]:
        """The dispatch sites of a target, and the weights for splitting a metric of `step` rows over them.

        Samples are split by time. Simulated counts are split by workgroups: counts are about the same in every
        workgroup of the same code, and operand sizes decide how many a call has.
        """
        sites = self.scan.targets[target].places
        _, amounts = self._spread(sites, metric)
        return sites, amounts

    def spread_by(self, metric: str) -> str:
        """The criterion by which a metric of `step` rows was split over the sites of a kernel, in words."""
        number = [step_metric.name for step_metric in self.scan.step_metrics].index(metric)
        targets = {row.target for row in self.scan.step_rows if row.target >= 0 and row.values[number]}
        places = [self.scan.targets[target].places for target in targets]
        return " and ".join(sorted({self._spread(sites, metric)[0] for sites in places if len(sites) > 1}))

    def _spread(self, sites: Sequence[str], metric: str) -> tuple[str, Sequence[int]]:
        for time in TIME_METRICS if metric == SAMPLES else ():
            costs = [self.at(site).sums.get(time, 0) for site in sites]
            if any(costs):
                return "by their time", costs
        tiles = [count for site in sites if isinstance(count := self.at(site).tiles, int)]
        if len(tiles) == len(sites) and any(tiles):
            return "by number of workgroups", tiles
        calls = [self.at(site).calls for site in sites]
        if any(calls):
            return "by number of calls", calls
        return "in equal parts, because the number of calls is unknown", [1] * len(sites)

    def slowest(self, place: str) -> tuple[SlowCall, ...]:
        """The slowest calls of all targets of a place."""
        targets = sorted(self.at(place).targets)
        calls = [call for target in targets for call in self.scan.slowest.get(target, ())]
        if len(targets) == 1 and calls and calls[-1].time_ns is not UNKNOWN:
            return self.scan.slowest[targets[0]]  # sorted already
        return tuple(sorted(calls, key=slowness_key)[:MOST_SLOWEST])

    def steps(self, graph: TraceGraph, images: Callable[[], Sequence[Image]]) -> StepCounts:
        """Measurements inside kernels; a target with several sites is split over them."""
        names = [metric.name for metric in self.scan.step_metrics]
        rows = [row for row in self.scan.step_rows if row.target >= 0]
        return StepCounts(graph, names, rows, self.parts_of, images)


def totals(scan: Scan) -> Totals:
    """Split the events of each target over its places."""
    places: dict[str, PlaceTotal] = defaultdict(PlaceTotal)
    for number, target in enumerate(scan.targets):
        if number not in scan.by_target:
            continue
        events, parts = scan.by_target[number], [places[place] for place in target.places]
        # Calls and metrics are split in the same way: the first places of a target get the indivisible rest.
        tiles = events.tiles
        tile_parts: Sequence[Integer] = [tiles] * len(parts) if tiles is UNKNOWN else _evenly(tiles, parts)
        for part, calls, tiles in zip(parts, _evenly(events.events, parts), tile_parts, strict=True):
            part.calls += calls
            part.tiles = sum_of((part.tiles, tiles))
            part.targets.add(number)
            part.split_evenly |= not target.exact
            part.absent.update(events.absent)
        worked = (events.worked, [part.sums for part in parts])
        above = (events.outliers, [part.outliers for part in parts])
        for totals_of, sums_of_parts in (worked, above):
            for metric, total in totals_of.items():
                for sums, share in zip(sums_of_parts, _evenly(total, parts), strict=True):
                    sums[metric] += share
    return Totals(scan, dict(places))


def _evenly(total: int, places: Sequence[PlaceTotal]) -> Sequence[int]:
    return [total] if len(places) == 1 else split_by_largest_remainder(total, [1] * len(places))


# ---- invocations
#
# The distribution of an op's cost over invocations: the cost of its sites in an invocation, times its weights there.
#
# A weight is the op's fraction of a site's cost. It is the same in all invocations.


PerOp = Mapping[OpId, Mapping[str, PerInvocation]]
"""Distributions by op and metric name; no entry if unknown."""


def shares_of_invocations(tables: Tables, totals: Totals, results: Mapping[str, PlaceResult]) -> PerOp:
    """The distributions over invocations of all ops in these results, which are given by place."""
    if totals.scan.invocations.count is UNKNOWN:
        return {}
    weights = [(names, _weights(totals, results, names[0])) for names in _metrics_by_weights(totals, results)]
    sums = [{op: _weighted_sum(by_target) for op, by_target in by_op.items()} for _, by_op in weights]
    distinct_sums = sorted({weighted for sum_of_op in sums for weighted in sum_of_op.values()})
    distributions = per_invocation(tables, totals.scan, distinct_sums)
    zero = zero_distribution(totals.scan)
    by_op_and_metric: dict[OpId, dict[str, PerInvocation]] = defaultdict(dict)
    for (names, by_op), sum_of_op in zip(weights, sums, strict=True):
        for op, by_target in by_op.items():
            largest = max(by_target.values()) if by_target else Fraction(1)
            for metric in names:
                distribution = distributions[sum_of_op[op]][metric] if by_target else zero
                by_op_and_metric[op][metric] = _scaled(distribution, largest)
    return by_op_and_metric


def series_of(tables: Tables, totals: Totals, results: Mapping[str, PlaceResult]) -> Series:
    """Costs of all ops in each single invocation."""
    values = values_by_target(tables, totals.scan)
    return Series(values, {metric: _weights(totals, results, metric) for metric in values})


def _metrics_by_weights(totals: Totals, results: Mapping[str, PlaceResult]) -> list[list[str]]:
    """The names of the metrics, grouped by equal weights of all ops."""
    names = [metric.name for metric in totals.scan.metrics]
    # Equal places share their weight objects, so there are few distinct ones.
    distinct = {id(share.weight): share.weight for result in results.values() for share in result.shares}
    groups: dict[tuple[Fraction, ...], list[str]] = defaultdict(list)
    for name in names:
        groups[tuple(weight[name] for weight in distinct.values())].append(name)
    return list(groups.values())


def _weights(totals: Totals, results: Mapping[str, PlaceResult], metric: str) -> Mapping[OpId, dict[int, Fraction]]:
    """The op's fraction of each target, by op and target; empty for an op whose places did not run."""
    by_op: dict[OpId, dict[int, Fraction]] = defaultdict(dict)
    for place, result in results.items():
        # The events of a target with several places are split evenly over them.
        parts = [(target, len(totals.scan.targets[target].places)) for target in totals.at(place).targets]
        for share in result.shares:
            by_target, weight = by_op[share.op], share.weight[metric]
            for target, places in parts if weight else ():
                fraction = weight / places if places > 1 else weight
                by_target[target] = by_target[target] + fraction if target in by_target else fraction
    return by_op


def _weighted_sum(by_target: Mapping[int, Fraction]) -> Weighted:
    """Weights as whole numbers, with `UNIT` for the largest, so that ops with proportional weights share one sum."""
    if len(by_target) == 1:
        (target,) = by_target
        return ((target, UNIT),)
    largest = max(by_target.values(), default=Fraction(1))
    return tuple(
        (target, rounded_ratio(UNIT * weight.numerator * largest.denominator, weight.denominator * largest.numerator))
        for target, weight in sorted(by_target.items())
    )


def _scaled(whole: PerInvocation, weight: Fraction) -> PerInvocation:
    if weight == 1:
        return whole
    scaled = (
        value if value is UNKNOWN else rounded_ratio(value * weight.numerator, weight.denominator)
        for value in structs.astuple(whole)
    )
    return PerInvocation(*scaled)


# ---- shares


_SEVERAL = 2
"""Fewest workers for which there is an imbalance."""

_Part = tuple[PlaceResult, MemberShare]
"""The share of an op in a dispatch site or transfer."""


class SplitInput(msgspec.Struct, frozen=True):
    """The rule and the data by which costs are split.

    `workers`: number of workers that share a dispatch; `metrics`: names of all metrics; `per_call`: percentiles by set
    of targets; `site_weights`: weights by site from measurements or machine code, if the rule uses them and they exist.
    """

    rule: Rule
    peaks: Peaks
    workers: Integer
    metrics: Sequence[str]
    totals: Totals
    steps: StepCounts
    per_call: Mapping[frozenset[int], Spread]
    site_weights: Mapping[str, Weights]

    def costs(self, place: str) -> dict[str, SiteCost]:
        """The costs of a dispatch site or transfer, by metric name."""
        total = self.totals.at(place)
        sums = {**total.sums, **self.steps.totals.get(place, {})}
        spread = self.per_call.get(frozenset(total.targets), {})
        return {
            name: SiteCost(sums.get(name, 0), total.outliers.get(name, 0), spread.get(name)) for name in self.metrics
        }


def weights_by_site(
    graph: TraceGraph, rule: Rule, steps: StepCounts, estimates: CodeEstimates, ran: Container[str]
) -> dict[str, Weights]:
    """Weights by site from measurements inside its kernel, else from machine code; empty if the rule uses neither."""
    if rule not in (Rule.MEASURED, Rule.CODE):
        return {}
    weights_of_site: dict[str, Weights] = {}
    for site in graph.sites:
        basis = steps.basis(site) if rule is Rule.MEASURED and site.members else None
        if basis is None and site.id in ran:
            basis = estimates.weights(site)
        if basis is not None:
            weights_of_site[site.id] = basis
    return weights_of_site


def site_results(graph: TraceGraph, by: SplitInput) -> tuple[SiteResult, ...]:
    """The dispatch sites that can run after load, or that did run."""
    ran = by.totals.places.keys() | by.steps.totals.keys()
    return tuple(_site(site, by) for site in graph.sites if not site.initializer or site.id in ran)


def transfer_results(graph: TraceGraph, by: SplitInput) -> tuple[TransferResult, ...]:
    """The transfers that belong to an op and did run."""
    ran = (transfer for transfer in graph.all_transfers if by.totals.at(transfer.id).calls)
    return tuple(_transfer(transfer, by) for transfer in ran if transfer.ops)


def _site(site: Site, by: SplitInput) -> SiteResult:
    total, metrics = by.totals.at(site.id), by.costs(site.id)
    basis = (by.site_weights.get(site.id) or weights(by.rule, site, by.peaks)) if site.members else Weights(())
    # Shares and their intervals come from the same weights, so that each share lies in its interval. They are the
    # metric's own if it was measured at steps and the rule is `measured`, else the basis.
    weights_of = {
        name: (by.steps.seen_at(site, name) if by.rule is Rule.MEASURED else None) or basis
        for name in (metrics if site.members else ())
    }
    parts = {name: own.split(metrics[name].total) for name, own in weights_of.items()}
    fractions = weights_by_name(tuple((name, own.effective) for name, own in weights_of.items()))
    likely = {name: own.intervals(metrics[name].total) for name, own in weights_of.items() if own.are_uncertain}
    ops = [member.op for member in site.members]
    return SiteResult(
        site=site.id,
        calls=by.totals.calls(site.id),
        metrics=metrics,
        shares=_shares(ops, parts, fractions, likely, estimated=basis.factor > 1),
        split_evenly=total.split_evenly,
        tiles=total.tiles if total.calls else UNKNOWN,
        imbalance_percent=_imbalance(total, by.workers),
        slowest=by.totals.slowest(site.id),
        assumed_sizes=basis.assumed,
        equal_members=basis.equal,
        nobody={name: amounts[-1] for name, amounts in parts.items()},
    )


def _transfer(transfer: Transfer, by: SplitInput) -> TransferResult:
    """A transfer's result: its ops get equal parts, because the same data is moved for all of them."""
    total, metrics = by.totals.at(transfer.id), by.costs(transfer.id)
    even = [1] * len(transfer.ops)
    parts = {name: split_by_largest_remainder(cost.total, even) for name, cost in metrics.items()}
    return TransferResult(
        transfer=transfer.id,
        calls=total.calls,
        metrics=metrics,
        shares=_shares(transfer.ops, parts, weights_by_name(tuple((name, tuple(even)) for name in metrics)), {}),
        split_evenly=total.split_evenly,
        slowest=by.totals.slowest(transfer.id),
    )


def _imbalance(total: PlaceTotal, workers: Integer) -> Integer:
    """Time for which the workers were held over the time that they worked, both without outliers, in percent."""
    wall, cpu = (total.sums.get(name, 0) for name in ("duration_ns", "cpu_ns"))
    if workers is UNKNOWN or workers < _SEVERAL or not wall or not cpu:
        return UNKNOWN
    if total.absent["duration_ns"] or total.absent["cpu_ns"]:
        return UNKNOWN
    return rounded_ratio(100 * workers * wall, cpu)


def _shares(
    ops: Sequence[OpId],
    parts: Mapping[str, Sequence[int]],
    fractions: Sequence[Mapping[str, Fraction]],
    likely: Mapping[str, Sequence[tuple[int, int]]],
    *,
    estimated: bool = False,
) -> tuple[MemberShare, ...]:
    """Shares of the ops: the n-th part of each metric belongs to the n-th op; an unattributed part comes last."""
    by_op = [dict(zip(parts, amounts, strict=True)) for amounts in zip(*parts.values(), strict=True)]
    if not likely:
        return tuple(map(MemberShare, ops, by_op, fractions))
    bounds = [{name: intervals[index] for name, intervals in likely.items()} for index in range(len(ops))]
    return tuple(map(MemberShare, ops, by_op, fractions, bounds, [estimated] * len(ops)))


def op_results(
    graph: TraceGraph, results: Mapping[str, PlaceResult], totals: Totals, per_invocation: PerOp, *, noisy: bool
) -> tuple[OpResult, ...]:
    """Costs per op, for ops of sites that can run and of transfers that did run, in the order of the model.

    `results` and `totals` have the same sites and transfers, by id.
    `noisy`: a run is so noisy that waits may not be distinguishable from work.
    """
    parts: dict[OpId, list[_Part]] = defaultdict(list)
    targets: dict[OpId, set[int]] = defaultdict(set)
    worked = {target: target_sum.worked for target, target_sum in totals.scan.by_target.items()}
    for place, result in results.items():
        for share in result.shares:
            parts[share.op].append((result, share))
            targets[share.op] |= totals.at(place).targets
    op_results = []
    for op in graph.ops:
        if op.id not in parts:
            continue
        own, spreads = parts[op.id], per_invocation.get(op.id, {})
        events = [worked[target] for target in targets[op.id]]
        # Evidence alone proves a cost only if no other op of the dispatch and no other place can have caused it.
        proven = [result for result, _ in own if len(result.shares) == 1 and not result.split_evenly]
        costs = {
            name: _op_cost(
                name, own, proven, events, spreads.get(name, UNKNOWN_PER_INVOCATION), noisy and name in TIME_METRICS
            )
            for name in own[0][0].metrics
        }
        calls = sum_of([result.calls for result, _ in own])
        op_results.append(OpResult(op.id, op.name, op.file, op.line, calls, costs))
    return tuple(op_results)


def _op_cost(
    metric: str,
    parts: Sequence[_Part],
    proven: Sequence[PlaceResult],
    events: Sequence[Mapping[str, int]],
    per_invocation: PerInvocation,
    noisy: bool,
) -> OpCost:
    attributed = sum([share.attributed[metric] for _, share in parts])
    wholes = [result.metrics[metric].total for result, _ in parts]
    least, most = _bounds(wholes, [result.metrics[metric].total for result in proven])
    # All events that may belong to its places, whatever part these got; metrics of steps have no events.
    candidates = sum([target_sums.get(metric, 0) for target_sums in events])
    likely = [share for _, share in parts if metric in share.likely]
    low, high, uncertain = _interval(metric, attributed, likely) if likely else (UNKNOWN, UNKNOWN, False)
    return OpCost(
        inclusive=sum(wholes),
        attributed=attributed,
        low=min(least, candidates) if candidates < 0 else least,
        high=max(most, candidates),
        per_invocation=per_invocation,
        likely_low=low,
        likely_high=high,
        uncertain=uncertain or (noisy and _is_wide(per_invocation)),
    )


def _bounds(wholes: Sequence[int], proven: Sequence[int]) -> tuple[int, int]:
    """Bounds of an op's cost: all of its proven places, and nothing or all of the others.

    A metric may be negative, such as released memory; then all of it is the lower bound.
    """
    if min(wholes) >= 0:  # fast path for nearly all
        return sum(proven), sum(wholes)
    below, above = (
        sum([pick(0, whole) for whole in wholes]) - sum([pick(0, whole) for whole in proven]) for pick in (min, max)
    )
    return sum(proven) + below, sum(proven) + above


def _is_wide(distribution: PerInvocation) -> bool:
    """Whether p10 and p90 are at least half of the median apart."""
    p10, p90, median = distribution.p10, distribution.p90, distribution.median
    if p10 is UNKNOWN or p90 is UNKNOWN or median is UNKNOWN:
        return False
    return p90 > p10 and 2 * (p90 - p10) >= median


def _interval(metric: str, attributed: int, likely: Sequence[MemberShare]) -> tuple[int, int, bool]:
    """The likely range of an attributed cost (low, high), and whether the range marks the cost as uncertain.

    The distances of the bounds from the shares add up. A range marks the cost if it is at least half of the cost. For
    estimates it must be at least the whole cost, because half of it is their usual error.
    """
    below, above = (
        attributed + sum(share.likely[metric][bound] - share.attributed[metric] for share in likely) for bound in (0, 1)
    )
    multiple = 1 if all(share.estimated for share in likely) else 2
    return below, above, above > below and multiple * (above - below) >= attributed
