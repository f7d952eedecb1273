"""Compiler remarks with the costs of their ops, the most expensive first."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from tracemap.attribution.model import MetricTotal
from tracemap.graph.documents import FIGURES, Remark, Remarks
from tracemap.reports.cost_lookup import CostedMap
from tracemap.units import Text

_FIRST = ("regalloc", "loop-vectorize", "slp-vectorizer", "loop-unroll")
"""Passes whose missed optimisations usually cost most."""
_KINDS = {"missed": 0, "passed": 1, "analysis": 2}


def ranked(remarks: Remarks, costed: CostedMap, metric: MetricTotal, run: Text) -> Remarks:
    """The remarks with their ops' share of the run's cost in their kernel, the most expensive first.

    Args:
        remarks: the bundle's remarks.
        costed: the bundle's map and the costs of the run.
        metric: the metric of the shares; its `work` is the total.
        run: the run's name.
    """
    of_kernel: dict[Text, dict[str, int]] = {}
    for result in costed.site_results.values():
        costs = of_kernel.setdefault(costed.graph.site_by_id[result.site].kernel, {})
        for share in result.shares:
            costs[share.op] = costs.get(share.op, 0) + share.attributed.get(metric.name, 0)

    def with_share(remark: Remark) -> Remark:
        costs = of_kernel.get(remark.kernel, {})
        share = sum(costs.get(op, 0) for op in remark.ops) / metric.work if metric.work else 0.0
        return structs.replace(remark, cost_share=share)

    with_shares = tuple(map(with_share, remarks.remarks))
    return structs.replace(remarks, run=run, metric=metric.name, remarks=in_order(with_shares))


def in_order(remarks: Sequence[Remark]) -> tuple[Remark, ...]:
    """Sort remarks by cost, kernel and line; on a line, missed optimisations come first and counts last."""
    numbers: dict[Text, int] = {}
    for remark in remarks:
        numbers.setdefault(remark.kernel, len(numbers))

    def key(remark: Remark) -> tuple[object, ...]:
        line = remark.line if isinstance(remark.line, int) else 0
        return -(remark.cost_share or 0), numbers[remark.kernel], line, *_urgency(remark)

    return tuple(sorted(remarks, key=key))


def _urgency(remark: Remark) -> tuple[object, ...]:
    passes = _FIRST.index(remark.pass_name) if remark.pass_name in _FIRST else len(_FIRST)
    kind = _KINDS.get(remark.kind, len(_KINDS)) if isinstance(remark.kind, str) else len(_KINDS)
    return remark.pass_name in FIGURES, kind, passes, " spills " not in remark.text, -remark.count, remark.text
