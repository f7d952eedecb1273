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
"""Cost per invocation in ns, by op id."""

_LEAST_SHARE: Final = 0.01
"""Least significant change, as a share of the longer invocation."""


def ratio_of(before: Sequence[float], after: Sequence[float]) -> Ratio | None:
    """After over before, pair by pair; None if all costs before are 0."""
    ratios = [after_ns / before_ns for before_ns, after_ns in zip(before, after, strict=True) if before_ns > 0]
    if not ratios:
        return None
    return Ratio(*(round(ratio, 4) for ratio in (statistics.median(ratios), min(ratios), max(ratios))))


def whole_of(before: Sequence[Costs], after: Sequence[Costs]) -> Ratio | None:
    """The change of the sum of all ops; None without recordings."""
    return ratio_of(list(map(_sum, before)), list(map(_sum, after)))


@dataclass(frozen=True, slots=True)
class Touched:
    """The replaced kernels by name, and the threshold of a significant change in percent.

    `same`: kernels with identical machine code in both bundles.
    """

    kernels: Set[str]
    threshold: float
    same: Set[str] = frozenset()


def changes(
    graph: TraceGraph, touched: Touched, before: Sequence[Costs], after: Sequence[Costs]
) -> tuple[OpChange, ...]:
    """Changes of the ops that occur in all recordings: significant ones first, then by change of an invocation.

    Args:
        graph: the map of either bundle.
        touched: the replaced kernels and the threshold.
        before: costs in recordings of the first bundle.
        after: costs in recordings of the second bundle, paired with `before` by index.
    """
    common = [op_id for op_id in (before[0] if before else {}) if all(op_id in costs for costs in (*before, *after))]
    replaced = {op_id for op_id in common if touched.kernels & _kernels_of(graph, graph.op_by_id[op_id])}
    untouched = [op_id for op_id in common if op_id not in replaced]
    drifts = [_drift(first, second, untouched) for first, second in zip(before, after, strict=True)]
    invocations_ns = [statistics.median(map(_sum, recordings)) for recordings in (before, after) if recordings]
    least_ns = _LEAST_SHARE * max(invocations_ns, default=0.0)
    op_changes = []
    for op_id in common:
        costs_before = [costs[op_id] for costs in before]
        costs_after = [costs[op_id] / drift for costs, drift in zip(after, drifts, strict=True)]
        ratio = ratio_of(costs_before, costs_after)
        if ratio is not None:
            before_ns, after_ns = statistics.median(costs_before), statistics.median(costs_after)
            material = abs(after_ns - before_ns) >= least_ns
            differs = len(costs_before) > 1 and material and _is_clear(ratio, touched.threshold)
            op, medians = graph.op_by_id[op_id], (round(before_ns, 1), round(after_ns, 1))
            same = _kernels_of(graph, op) <= touched.same
            flags = {"named": differs and not same, "beside": differs and same, "replaced": op_id in replaced}
            op_changes.append(OpChange(op.id, op.name, op.line, *medians, ratio, **flags))
    return tuple(sorted(op_changes, key=lambda op: (not op.named, -abs(op.after_ns - op.before_ns))))


def same_kernels(before: Path, after: Path) -> frozenset[str]:
    """The kernels with identical machine code in two modules."""
    return frozenset(name for name, same in same_code(before, after).items() if same)


def _kernels_of(graph: TraceGraph, op: Op) -> Set[str]:
    return {graph.site_by_id[site].kernel for site in graph.sites_of_op.get(op.id, ())}


def _is_clear(ratio: Ratio, threshold: float) -> bool:
    """Whether all pairs differ by more than the threshold, in the same direction."""
    limit = 1 + threshold / 100
    return ratio.low > limit or ratio.high < 1 / limit


def _drift(before: Costs, after: Costs, untouched: Sequence[str]) -> float:
    """Slowdown of the machine in the second recording of a pair, measured on untouched ops.

    1 if these are too few or too small a part of the work.
    """
    slowdown = slower_by([(before[op_id], after[op_id]) for op_id in untouched], (_sum(before), _sum(after)))
    return 1.0 if isinstance(slowdown, Unknown) else slowdown


def _sum(costs: Costs) -> float:
    return sum(costs.values())
