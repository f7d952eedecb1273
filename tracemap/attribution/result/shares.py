"""Where an op's share is made: the cost of each site and transfer, split over its members, and added up per op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from tracemap.attribution.model import (
    UNKNOWN_PER_INVOCATION,
    MemberShare,
    OpCost,
    OpResult,
    PerInvocation,
    PlaceResult,
    SiteCost,
    SiteResult,
    TransferResult,
)
from tracemap.attribution.result.invocations import PerOp
from tracemap.attribution.result.totals import PlaceTotal, Totals
from tracemap.attribution.scan.percentiles import Spread
from tracemap.attribution.steps.counts import StepCounts
from tracemap.attribution.steps.estimates import CodeEstimates
from tracemap.attribution.weights import Weights, weights, weights_by_name
from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import Op, OpId
from tracemap.graph.program import Site, Transfer
from tracemap.measurements.model import TIME_METRICS, Peaks
from tracemap.options.attribute import Rule
from tracemap.units import UNKNOWN, Integer, Unknown, rounded, split_by_largest_remainder, sum_of

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
