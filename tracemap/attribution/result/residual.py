"""Unattributed costs, with their reasons."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from tracemap.attribution.join.targets import EXECUTE, MEMORY, OUTSIDE_KERNELS, TRANSFER, UNMATCHED
from tracemap.attribution.model import ResidualReason, ResidualRow, SiteResult
from tracemap.attribution.result.shares import Totals
from tracemap.attribution.scan.scan import Scan
from tracemap.graph.model import TraceGraph
from tracemap.units import UNKNOWN, Integer, sum_of

_REASON_OF = {
    UNMATCHED: ResidualReason.UNMATCHED,
    OUTSIDE_KERNELS: ResidualReason.OUTSIDE_KERNELS,
    TRANSFER: ResidualReason.TRANSFER,
    MEMORY: ResidualReason.MEMORY,
}


_Cost = tuple[ResidualReason, Integer, Mapping[str, int]]
"""A reason, a number of events, and their cost by metric name."""


def residual_rows(
    graph: TraceGraph, totals: Totals, sites: Sequence[SiteResult], metrics: Sequence[str]
) -> tuple[ResidualRow, ...]:
    """One row for each reason that applies; unmatched events get a row even if they cost nothing."""
    events: dict[ResidualReason, Integer] = defaultdict(lambda: 0 if totals.has_calls else UNKNOWN)
    sums: dict[ResidualReason, Counter[str]] = defaultdict(Counter)
    event_costs = (_targetless_costs(totals.scan), _queue_costs(totals.scan), _outlier_costs(totals.scan))
    costs = (*event_costs, _ownerless_transfers(graph, totals), _site_costs(sites))
    for reason, count, cost in chain.from_iterable(costs):
        events[reason] = sum_of((events[reason], count))
        sums[reason].update(cost)
    return tuple(
        ResidualRow(reason, events[reason], {name: sums[reason][name] for name in metrics})
        for reason in ResidualReason
        if reason in sums and (any(sums[reason].values()) or reason is ResidualReason.UNMATCHED)
    )


def _targetless_costs(scan: Scan) -> Iterator[_Cost]:
    """Costs of events without a target, and of `step` rows outside kernels or in kernels that the map lacks."""
    for number, events in scan.by_target.items():
        if number in _REASON_OF:
            yield _REASON_OF[number], events.events, events.sums
    # Step rows only locate the time of events that are counted already, so they add no events.
    names = [metric.name for metric in scan.step_metrics]
    for row in scan.step_rows:
        if row.target < 0:
            yield _REASON_OF[row.target], 0, dict(zip(names, row.values, strict=True))


def _queue_costs(scan: Scan) -> Iterator[_Cost]:
    """Costs of submissions, without the time in which their dispatches ran: the dispatches' own rows count that."""
    if EXECUTE in scan.by_target:
        executes = scan.by_target[EXECUTE]
        uncovered = {name: total - scan.execute_covered[name] for name, total in executes.sums.items()}
        yield ResidualReason.QUEUE, executes.events, uncovered


def _outlier_costs(scan: Scan) -> Iterator[_Cost]:
    """Time of calls above the outlier threshold."""
    for events in scan.by_target.values():
        if events.disturbed_calls:
            yield ResidualReason.DISTURBANCE, events.disturbed_calls, events.disturbed


def _ownerless_transfers(graph: TraceGraph, totals: Totals) -> Iterator[_Cost]:
    """Costs of the map's transfers that belong to no op: unattributed, as are transfers that the map lacks."""
    for transfer in graph.transfers:
        if transfer.id in totals.places and not transfer.ops:
            total = totals.at(transfer.id)
            yield ResidualReason.TRANSFER, total.calls, total.sums


def _site_costs(sites: Sequence[SiteResult]) -> Iterator[_Cost]:
    """Costs of dispatch sites without an op, and of kernel code that belongs to no op at the others."""
    for site in sites:
        if not site.shares:
            yield ResidualReason.COMPILER_MADE, site.calls, {name: cost.total for name, cost in site.metrics.items()}
        elif any(site.nobody.values()):
            yield ResidualReason.KERNEL_OVERHEAD, site.calls, site.nobody
