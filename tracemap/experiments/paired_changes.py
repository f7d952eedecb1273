"""Paired recordings of two bundles, and the ops whose cost changed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.experiments.model import OpChange, Ratio
from tracemap.graph.model import Op, TraceGraph
from tracemap.machine.figures import same_code
from tracemap.measurements.medians import slower_by
from tracemap.units import Unknown

Costs = Mapping[str, float]
"""What an op costs per invocation, by its id, in ns."""

_LEAST_SHARE: Final = 0.01
"""Of an invocation, the longer of the two: what changes it by less is not named."""


def ratio_of(before: Sequence[float], after: Sequence[float]) -> Ratio | None:
    """After over before, pair by pair; None where nothing was spent before."""
    ratios = [two / one for one, two in zip(before, after, strict=True) if one > 0]
    if not ratios:
        return None
    return Ratio(*(round(each, 4) for each in (statistics.median(ratios), min(ratios), max(ratios))))


def whole_of(before: Sequence[Costs], after: Sequence[Costs]) -> Ratio | None:
    """The change of all ops together; None without recordings."""
    return ratio_of(list(map(_sum, before)), list(map(_sum, after)))


@dataclass(frozen=True, slots=True)
class Touched:
    """What was changed: kernels, by name; and which change of an op's cost is worth a name, in percent.

    `same`: kernels whose machine code is known to be the same in both bundles.
    """

    kernels: Set[str]
    threshold: float
    same: Set[str] = frozenset()


def changes(
    graph: TraceGraph, touched: Touched, before: Sequence[Costs], after: Sequence[Costs]
) -> tuple[OpChange, ...]:
    """Ops that all recordings have, named ones first, then by how much they changed an invocation.

    Args:
        graph: the map of either bundle.
        touched: what was changed.
        before: costs in recordings of the one bundle.
        after: those of the other, each recorded next to the one of the same place.
    """
    common = [name for name in (before[0] if before else {}) if all(name in each for each in (*before, *after))]
    inside = {name for name in common if touched.kernels & _kernels_of(graph, graph.op_by_id[name])}
    outside = [name for name in common if name not in inside]
    drifts = [_drift(one, two, outside) for one, two in zip(before, after, strict=True)]
    sides = [statistics.median(map(_sum, side)) for side in (before, after) if side]
    least_ns = _LEAST_SHARE * max(sides, default=0.0)
    found = []
    for name in common:
        one = [each[name] for each in before]
        two = [each[name] / drift for each, drift in zip(after, drifts, strict=True)]
        ratio = ratio_of(one, two)
        if ratio is not None:
            before_ns, after_ns = statistics.median(one), statistics.median(two)
            material = abs(after_ns - before_ns) >= least_ns
            differs = len(one) > 1 and material and _is_clear(ratio, touched.threshold)
            op, costs = graph.op_by_id[name], (round(before_ns, 1), round(after_ns, 1))
            same = _kernels_of(graph, op) <= touched.same
            seen = {"named": differs and not same, "beside": differs and same, "replaced": name in inside}
            found.append(OpChange(op.id, op.name, op.line, *costs, ratio, **seen))
    return tuple(sorted(found, key=lambda each: (not each.named, -abs(each.after_ns - each.before_ns))))


def same_kernels(before: Path, after: Path) -> frozenset[str]:
    """The kernels that two modules have the same code for."""
    return frozenset(name for name, same in same_code(before, after).items() if same)


def _kernels_of(graph: TraceGraph, op: Op) -> Set[str]:
    return {graph.site_by_id[site].kernel for site in graph.sites_of_op.get(op.id, ())}


def _is_clear(ratio: Ratio, threshold: float) -> bool:
    """Whether all pairs differ by more than the threshold, in the same direction."""
    limit = 1 + threshold / 100
    return ratio.low > limit or ratio.high < 1 / limit


def _drift(before: Costs, after: Costs, untouched: Sequence[str]) -> float:
    """How many times as slow the machine was for the second recording of a pair, by the ops that nothing was done to.

    1 where these are too few, or too little of the work, to tell.
    """
    found = slower_by([(before[name], after[name]) for name in untouched], (_sum(before), _sum(after)))
    return 1.0 if isinstance(found, Unknown) else found


def _sum(costs: Costs) -> float:
    return sum(costs.values())
