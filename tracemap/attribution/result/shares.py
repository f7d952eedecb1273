"""Shares of ops: the cost of each site and transfer, split over its ops and added up per op."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

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
    slowness,
)
from tracemap.attribution.scan.connection import Tables
from tracemap.attribution.scan.scan import Scan
from tracemap.attribution.scan.series import values_by_target
from tracemap.attribution.scan.sums import Spread
from tracemap.attribution.scan.weighted import UNIT, Weighted, nothing, per_invocation
from tracemap.attribution.steps.counts import StepCounts
from tracemap.attribution.steps.estimates import CodeEstimates
from tracemap.attribution.weights import Weights, weights, weights_by_name
from tracemap.graph.model import Op, OpId, Site, TraceGraph, Transfer
from tracemap.machine.images import Image
from tracemap.measurements.model import SAMPLES, TIME_METRICS, Peaks
from tracemap.options.results import Rule
from tracemap.units import UNKNOWN, Integer, Unknown, rounded, split_by_largest_remainder, sum_of

# ---- totals
#
# Calls and metric sums per place: a target of several places is split over them evenly.


@dataclass(slots=True)
class PlaceTotal:
    """What happened at a site or transfer, and the numbers of the targets that it is of.

    `sums` are without what disturbed its calls, which is `disturbed`, by metric name.
    `absent`: by metric name how many events of its targets have no value. `tiles`: the workgroups of its calls.
    `split_evenly`: some of the events could have been another place's.
    """

    calls: int = 0
    tiles: Integer = 0
    absent: Counter[str] = field(default_factory=Counter)
    sums: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    disturbed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    targets: set[int] = field(default_factory=set)
    split_evenly: bool = False


@dataclass(frozen=True, slots=True)
class Totals:
    """By place; those that nothing happened at have none."""

    scan: Scan
    places: Mapping[str, PlaceTotal]

    @property
    def tells_calls(self) -> bool:
        """Whether the runs have events: samples alone say where time passes, not how often anything was called."""
        return bool(self.scan.by_target) or not self.scan.step_rows

    def calls(self, place: str) -> Integer:
        """How often a place was called."""
        return self.at(place).calls if self.tells_calls else UNKNOWN

    def at(self, place: str) -> PlaceTotal:
        """The total of a place, be it nothing."""
        return self.places.get(place) or PlaceTotal()

    def parts_of(self, target: int, metric: str) -> tuple[Sequence[str], Sequence[int]]:
        """The sites of a target, and how much of a metric of steps is each one's.

        Samples fall where time passes; counts of a simulator are about the same in every workgroup of the same code, of
        which a call has as many as the sizes of its operands ask for.
        """
        sites = self.scan.targets[target].places
        _, amounts = self._spread(sites, metric)
        return sites, amounts

    def spread_by(self, metric: str) -> str:
        """What of a metric of steps names only kernels of several sites is spread over these by, in words."""
        number = [each.name for each in self.scan.step_metrics].index(metric)
        targets = {row.target for row in self.scan.step_rows if row.target >= 0 and row.values[number]}
        places = [self.scan.targets[target].places for target in targets]
        return " and ".join(sorted({self._spread(sites, metric)[0] for sites in places if len(sites) > 1}))

    def _spread(self, sites: Sequence[str], metric: str) -> tuple[str, Sequence[int]]:
        for time in TIME_METRICS if metric == SAMPLES else ():
            costs = [self.at(site).sums.get(time, 0) for site in sites]
            if any(costs):
                return "by the time that they took", costs
        tiles = [count for site in sites if isinstance(count := self.at(site).tiles, int)]
        if len(tiles) == len(sites) and any(tiles):
            return "by how many workgroups they ran", tiles
        calls = [self.at(site).calls for site in sites]
        if any(calls):
            return "by how often they ran", calls
        return "in equal parts, as nothing tells how often they ran", [1] * len(sites)

    def slowest(self, place: str) -> tuple[SlowCall, ...]:
        """The slowest calls of all targets of a place."""
        targets = sorted(self.at(place).targets)
        calls = [call for target in targets for call in self.scan.slowest.get(target, ())]
        if len(targets) == 1 and calls and calls[-1].time_ns is not UNKNOWN:
            return self.scan.slowest[targets[0]]  # which are sorted already
        return tuple(sorted(calls, key=slowness)[:MOST_SLOWEST])

    @property
    def pools(self) -> list[frozenset[int]]:
        """The sets of targets whose events places have."""
        return [frozenset(total.targets) for total in self.places.values()]

    def steps(self, graph: TraceGraph, images: Callable[[], Sequence[Image]]) -> StepCounts:
        """What was seen inside of kernels; of a target that is several sites, each has a part."""
        names = [metric.name for metric in self.scan.step_metrics]
        rows = [row for row in self.scan.step_rows if row.target >= 0]
        return StepCounts(graph, names, rows, self.parts_of, images)


def totals(scan: Scan) -> Totals:
    """Split what each target has over its places."""
    places: dict[str, PlaceTotal] = defaultdict(PlaceTotal)
    for number, target in enumerate(scan.targets):
        if number not in scan.by_target:
            continue
        events, parts = scan.by_target[number], [places[place] for place in target.places]
        # Calls and metrics are split alike: the first places of a target get what cannot be divided.
        tiles = events.tiles
        of_tiles: Sequence[Integer] = [tiles] * len(parts) if tiles is UNKNOWN else _evenly(tiles, parts)
        for part, calls, tiles in zip(parts, _evenly(events.events, parts), of_tiles, strict=True):
            part.calls += calls
            part.tiles = sum_of((part.tiles, tiles))
            part.targets.add(number)
            part.split_evenly |= not target.exact
            part.absent.update(events.absent)
        for metric, total in events.worked.items():
            for part, share in zip(parts, _evenly(total, parts), strict=True):
                part.sums[metric] += share
        for metric, total in events.disturbed.items():
            for part, share in zip(parts, _evenly(total, parts), strict=True):
                part.disturbed[metric] += share
    return Totals(scan, dict(places))


def _evenly(total: int, places: Sequence[PlaceTotal]) -> Sequence[int]:
    """The parts of a total, one for each place."""
    return [total] if len(places) == 1 else split_by_largest_remainder(total, [1] * len(places))


# ---- invocations
#
# An op's share of each invocation, as a distribution: what its sites cost in it, by the op's weights in them.
#
# A weight is what an op gets of what a site costs, and the same in all invocations.


PerOp = Mapping[OpId, Mapping[str, PerInvocation]]
"""By op and metric name; no entry where it is not known."""


def shares_of_invocations(tables: Tables, totals: Totals, results: Mapping[str, PlaceResult]) -> PerOp:
    """The distributions of all ops of the results of sites and transfers, which are named by their places."""
    if totals.scan.invocations.count is UNKNOWN:
        return {}
    weights = [(names, _weights(totals, results, names[0])) for names in _alike(totals, results)]
    sums = [{op: _sum(each) for op, each in by_op.items()} for _, by_op in weights]
    known = per_invocation(tables, totals.scan, sorted({each for of_ops in sums for each in of_ops.values()}))
    found: dict[OpId, dict[str, PerInvocation]] = defaultdict(dict)
    for (names, by_op), of_ops in zip(weights, sums, strict=True):
        for op, each in by_op.items():
            largest = max(each.values()) if each else Fraction(1)
            for metric in names:
                found[op][metric] = _scaled(known[of_ops[op]][metric] if each else nothing(totals.scan), largest)
    return found


def series_of(tables: Tables, totals: Totals, results: Mapping[str, PlaceResult]) -> Series:
    """What each op cost in each single invocation."""
    values = values_by_target(tables, totals.scan)
    return Series(values, {metric: _weights(totals, results, metric) for metric in values})


def _alike(totals: Totals, results: Mapping[str, PlaceResult]) -> list[list[str]]:
    """The names of the metrics, those together by which all ops have the same weights."""
    names = [metric.name for metric in totals.scan.metrics]
    # Places that are alike have the same objects, of which there are few.
    of_ops = {id(share.weight): share.weight for result in results.values() for share in result.shares}
    found: dict[tuple[Fraction, ...], list[str]] = defaultdict(list)
    for name in names:
        found[tuple(weight[name] for weight in of_ops.values())].append(name)
    return list(found.values())


def _weights(totals: Totals, results: Mapping[str, PlaceResult], metric: str) -> Mapping[OpId, dict[int, Fraction]]:
    """What each op has of the events of each target; nothing where none of them ran."""
    found: dict[OpId, dict[int, Fraction]] = defaultdict(dict)
    for place, result in results.items():
        # The events of a target of several places are split evenly over these.
        parts = [(target, len(totals.scan.targets[target].places)) for target in totals.at(place).targets]
        for share in result.shares:
            of_op, weight = found[share.op], share.weight[metric]
            for target, places in parts if weight else ():
                own = weight / places if places > 1 else weight
                of_op[target] = of_op[target] + own if target in of_op else own
    return found


def _sum(by_target: Mapping[int, Fraction]) -> Weighted:
    """The weights in whole numbers, the largest as `UNIT`: ops whose weights are in proportion share one sum."""
    if len(by_target) == 1:
        (target,) = by_target
        return ((target, UNIT),)
    largest = max(by_target.values(), default=Fraction(1))
    return tuple(
        (target, rounded(UNIT * weight.numerator * largest.denominator, weight.denominator * largest.numerator))
        for target, weight in sorted(by_target.items())
    )


def _scaled(whole: PerInvocation, weight: Fraction) -> PerInvocation:
    if weight == 1:
        return whole
    above, below = weight.numerator, weight.denominator
    values = (whole.median, whole.median_low, whole.median_high, whole.p10, whole.p90, whole.max)
    return PerInvocation(*[value if value is UNKNOWN else rounded(value * above, below) for value in values])


# ---- shares
#
# Where an op's share is made: the cost of each site and transfer, split over its members, and added up per op.


_SEVERAL = 2
"""Workers from which there is anything to balance."""

_Part = tuple[PlaceResult, MemberShare]
"""What an op has of a site or transfer."""


@dataclass(frozen=True, slots=True)
class Splitting:
    """What costs are split by.

    `workers`: how many share a dispatch; `metrics` are the names of all; `per_call` has percentiles by set of targets;
    `bases` has by site what was seen inside of it, if the rule goes by that and anything was.
    """

    rule: Rule
    peaks: Peaks
    workers: Integer
    metrics: Sequence[str]
    totals: Totals
    steps: StepCounts
    per_call: Mapping[frozenset[int], Spread]
    bases: Mapping[str, Weights]

    def costs(self, place: str) -> dict[str, SiteCost]:
        """The costs of a site or transfer, by metric name."""
        total = self.totals.at(place)
        sums = {**total.sums, **self.steps.totals.get(place, {})}
        spread = self.per_call.get(frozenset(total.targets), {})
        return {
            name: SiteCost(sums.get(name, 0), total.disturbed.get(name, 0), spread.get(name)) for name in self.metrics
        }


def bases(
    graph: TraceGraph, rule: Rule, steps: StepCounts, estimates: CodeEstimates, ran: Container[str]
) -> dict[str, Weights]:
    """By site what was seen inside of it, else what its machine code tells; empty where the rule goes by neither."""
    if rule not in (Rule.MEASURED, Rule.CODE):
        return {}
    found: dict[str, Weights] = {}
    for site in graph.sites:
        basis = steps.basis(site) if rule is Rule.MEASURED and site.members else None
        if basis is None and site.id in ran:
            basis = estimates.weights(site)
        if basis is not None:
            found[site.id] = basis
    return found


def site_results(graph: TraceGraph, by: Splitting) -> tuple[SiteResult, ...]:
    """The sites that can run after load, or that did run."""
    ran = by.totals.places.keys() | by.steps.totals.keys()
    return tuple(_site(site, by) for site in graph.sites if not site.initializer or site.id in ran)


def transfer_results(graph: TraceGraph, by: Splitting) -> tuple[TransferResult, ...]:
    """The transfers that are of an op and did run."""
    return tuple(_transfer(each, by) for each in graph.transfers if each.ops and by.totals.at(each.id).calls)


def _site(site: Site, by: Splitting) -> SiteResult:
    total, metrics = by.totals.at(site.id), by.costs(site.id)
    split = _split(site, metrics, by) if site.members else _NOT_SPLIT
    return SiteResult(
        site=site.id,
        calls=by.totals.calls(site.id),
        metrics=metrics,
        shares=split.shares,
        split_evenly=total.split_evenly,
        tiles=total.tiles if total.calls else UNKNOWN,
        imbalance_percent=_imbalance(total, by.workers),
        slowest=by.totals.slowest(site.id),
        assumed_sizes=split.assumed_sizes,
        equal_members=split.equal_members,
        nobody=split.nobody,
    )


@dataclass(frozen=True, slots=True)
class _Split:
    """What the members of a site got, and nobody; as in `SiteResult`."""

    shares: tuple[MemberShare, ...]
    nobody: Mapping[str, int]
    assumed_sizes: bool
    equal_members: bool


_NOT_SPLIT: Final = _Split((), {}, assumed_sizes=False, equal_members=False)


def _split(site: Site, metrics: Mapping[str, SiteCost], by: Splitting) -> _Split:
    basis = by.bases.get(site.id) or weights(by.rule, site, by.peaks)
    # Bounds are those of the parts that the same weights gave, so that each part lies between its own.
    own = {name: _weights_of(name, site, basis, by) for name in metrics}
    parts = {name: own[name].split(cost.total) for name, cost in metrics.items()}
    of_ops = weights_by_name(tuple((name, own[name].deciding) for name in metrics))
    likely = {name: own[name].intervals(cost.total) for name, cost in metrics.items() if own[name].are_uncertain}
    ops = [member.op for member in site.members]
    shares = _shares(ops, parts, of_ops, likely, estimated=basis.factor > 1)
    return _Split(shares, {name: shares[-1] for name, shares in parts.items()}, basis.assumed, basis.equal)


def _weights_of(metric: str, site: Site, basis: Weights, by: Splitting) -> Weights:
    """Metrics of steps go by themselves where the rule goes by what was seen, all others by the basis."""
    return (by.steps.seen_at(site, metric) if by.rule is Rule.MEASURED else None) or basis


def _transfer(transfer: Transfer, by: Splitting) -> TransferResult:
    """A transfer is of its ops in equal parts: what is moved is the same for all."""
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
    """The time that the workers had over the time for which they worked, both without what disturbed them."""
    wall, cpu = (total.sums.get(name, 0) for name in ("duration_ns", "cpu_ns"))
    if workers is UNKNOWN or workers < _SEVERAL or not wall or not cpu:
        return UNKNOWN
    if total.absent["duration_ns"] or total.absent["cpu_ns"]:
        return UNKNOWN
    return rounded(100 * workers * wall, cpu)


def _shares(
    ops: Sequence[OpId],
    parts: Mapping[str, Sequence[int]],
    of_ops: Sequence[Mapping[str, Fraction]],
    likely: Mapping[str, Sequence[tuple[int, int]]],
    *,
    estimated: bool = False,
) -> tuple[MemberShare, ...]:
    """The n-th part of each metric is the n-th op's; parts of nobody come after those of ops."""
    by_op = [dict(zip(parts, amounts, strict=True)) for amounts in zip(*parts.values(), strict=True)]
    if not likely:
        return tuple(map(MemberShare, ops, by_op, of_ops))
    bounds = [{name: each[number] for name, each in likely.items()} for number in range(len(ops))]
    return tuple(map(MemberShare, ops, by_op, of_ops, bounds, [estimated] * len(ops)))


def op_results(
    graph: TraceGraph, results: Mapping[str, PlaceResult], of_places: Totals, per_invocation: PerOp, *, disturbed: bool
) -> tuple[OpResult, ...]:
    """Costs per op, for ops of sites that can run and of transfers that did, in the order of the model.

    `results` and `of_places` are of the same sites and transfers, by id.
    `disturbed`: calls of a run have waited so much that what they took may not be told from their work.
    """
    parts: dict[OpId, list[_Part]] = defaultdict(list)
    targets: dict[OpId, set[int]] = defaultdict(set)
    worked = {target: each.worked for target, each in of_places.scan.by_target.items()}
    for place, result in results.items():
        for share in result.shares:
            parts[share.op].append((result, share))
            targets[share.op] |= of_places.at(place).targets
    return tuple(
        _op_result(
            op,
            parts[op.id],
            [worked[target] for target in targets[op.id]],
            per_invocation.get(op.id, {}),
            disturbed,
        )
        for op in graph.ops
        if op.id in parts
    )


def _op_result(
    op: Op,
    parts: Sequence[_Part],
    events: Sequence[Mapping[str, int]],
    spreads: Mapping[str, PerInvocation],
    disturbed: bool,
) -> OpResult:
    # Evidence alone proves a cost only where nobody else can have had it: no other member, and no other place.
    proven = [result for result, _ in parts if len(result.shares) == 1 and not result.split_evenly]
    costs = {
        name: _op_cost(
            name, parts, proven, events, spreads.get(name, UNKNOWN_PER_INVOCATION), disturbed and name in TIME_METRICS
        )
        for name in parts[0][0].metrics
    }
    return OpResult(op.id, op.name, op.file, op.line, sum_of([result.calls for result, _ in parts]), costs)


def _op_cost(
    metric: str,
    parts: Sequence[_Part],
    proven: Sequence[PlaceResult],
    events: Sequence[Mapping[str, int]],
    per_invocation: PerInvocation,
    disturbed: bool,
) -> OpCost:
    attributed = sum([share.attributed[metric] for _, share in parts])
    wholes = [result.metrics[metric].total for result, _ in parts]
    least, most = _bounds(wholes, [result.metrics[metric].total for result in proven])
    # All events that could be of its places, whatever part these got; what is seen inside of kernels is of none.
    of_events = sum([each.get(metric, 0) for each in events])
    likely = [share for _, share in parts if metric in share.likely]
    low, high, uncertain = _interval(metric, attributed, likely) if likely else (UNKNOWN, UNKNOWN, False)
    return OpCost(
        inclusive=sum(wholes),
        attributed=attributed,
        low=min(least, of_events) if of_events < 0 else least,
        high=max(most, of_events),
        per_invocation=per_invocation,
        likely_low=low,
        likely_high=high,
        uncertain=uncertain or (disturbed and _is_wide(per_invocation)),
    )


def _bounds(wholes: Sequence[int], proven: Sequence[int]) -> tuple[int, int]:
    """The least and the most that an op can have of its places: all of those that are proven, nothing or all of others.

    What is counted may be negative, as memory that is given back: all of it is less than nothing.
    """
    if min(wholes) >= 0:  # as nearly all are, of which there are many
        return sum(proven), sum(wholes)
    below, above = (
        sum([pick(0, whole) for whole in wholes]) - sum([pick(0, whole) for whole in proven]) for pick in (min, max)
    )
    return sum(proven) + below, sum(proven) + above


def _is_wide(spread: PerInvocation) -> bool:
    """Whether what eight in ten invocations take lies as far apart as half of the median, or farther."""
    if isinstance(spread.p10, Unknown) or isinstance(spread.p90, Unknown) or isinstance(spread.median, Unknown):
        return False
    return spread.p90 > spread.p10 and 2 * (spread.p90 - spread.p10) >= spread.median


def _interval(metric: str, attributed: int, likely: Sequence[MemberShare]) -> tuple[int, int, bool]:
    """What is attributed, moved by as much as the bounds of what is uncertain lie from that; and if that is much.

    What is estimated is known to be off by half; only more than that is said.
    """
    below, above = (
        attributed + sum(share.likely[metric][bound] - share.attributed[metric] for share in likely) for bound in (0, 1)
    )
    much = 1 if all(share.estimated for share in likely) else 2
    return below, above, above > below and much * (above - below) >= attributed
