"""An op's share of each invocation, as a distribution: what its sites cost in it, by the op's weights in them.

A weight is what an op gets of what a site costs, and the same in all invocations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction

from tracemap.attribution.model import PerInvocation, PlaceResult, Series
from tracemap.attribution.result.totals import Totals
from tracemap.attribution.scan.series import values_by_target
from tracemap.attribution.scan.tables import Tables
from tracemap.attribution.scan.weighted import UNIT, Weighted, nothing, per_invocation
from tracemap.graph.ops import OpId
from tracemap.units import UNKNOWN, rounded

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
