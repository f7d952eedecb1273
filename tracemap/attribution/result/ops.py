"""Costs per op: the shares of its sites and transfers added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.attribution.model import OpCost, OpResult, SiteResult, TransferResult
from tracemap.attribution.scan.percentiles import Spread
from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import OpId
from tracemap.units import UNKNOWN


@dataclass(slots=True)
class _OpSum:
    """One metric of one op, as it is added up."""

    inclusive: int = 0
    attributed: int = 0
    low: int = 0
    below: int = 0
    above: int = 0
    """How far the bounds of what samples decided lie from what was attributed."""
    sampled: bool = False

    def cost(self, spread: Spread, metric: str) -> OpCost:
        return OpCost(
            self.inclusive,
            self.attributed,
            low=self.low,
            high=self.inclusive,
            per_call=spread.get(metric),
            sampled_low=self.attributed + self.below if self.sampled else UNKNOWN,
            sampled_high=self.attributed + self.above if self.sampled else UNKNOWN,
        )


@dataclass(slots=True)
class _OpSums:
    """All metrics of one op."""

    calls: int = 0
    sums: dict[str, _OpSum] = field(default_factory=dict)


def op_results(
    graph: TraceGraph, results: Sequence[SiteResult | TransferResult], spreads: Mapping[OpId, Spread]
) -> tuple[OpResult, ...]:
    """Costs per op, for ops of sites that can run and of transfers that did, in the order of the model."""
    found: dict[OpId, _OpSums] = {}
    for result in results:
        _add(result, found)
    return tuple(
        OpResult(
            op.id,
            found[op.id].calls,
            {name: each.cost(spreads.get(op.id, {}), name) for name, each in found[op.id].sums.items()},
        )
        for op in graph.ops
        if op.id in found
    )


def _add(result: SiteResult | TransferResult, found: dict[OpId, _OpSums]) -> None:
    """Events that could be of other places prove nothing of this one's."""
    # Evidence alone proves a cost only where nobody else can have had it.
    sole = len(result.shares) == 1 and not result.split_evenly
    for share in result.shares:
        own = found.setdefault(share.op, _OpSums())
        own.calls += result.calls
        for name, cost in result.metrics.items():
            each = own.sums.setdefault(name, _OpSum())
            each.inclusive += cost.total
            each.attributed += share.attributed[name]
            each.low += cost.total if sole else 0
            if name in share.sampled:
                low, high = share.sampled[name]
                each.sampled = True
                each.below += low - share.attributed[name]
                each.above += high - share.attributed[name]
