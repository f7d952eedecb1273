"""Costs without an op, each with its reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.attribution.join.run import EXECUTE, MEMORY, OUTSIDE_KERNELS, TRANSFER, UNMATCHED
from tracemap.attribution.model import ResidualReason, ResidualRow, SiteResult
from tracemap.attribution.result.totals import Totals
from tracemap.attribution.scan.scan import Scan
from tracemap.graph.model import TraceGraph

_REASON_OF = {
    UNMATCHED: ResidualReason.UNMATCHED,
    OUTSIDE_KERNELS: ResidualReason.OUTSIDE_KERNELS,
    TRANSFER: ResidualReason.TRANSFER,
    MEMORY: ResidualReason.MEMORY,
}


@dataclass(slots=True)
class _Row:
    events: int = 0
    sums: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, events: int, sums: Mapping[str, int]) -> None:
        self.events += events
        for name, value in sums.items():
            self.sums[name] += value


def residual_rows(
    graph: TraceGraph, totals: Totals, sites: Sequence[SiteResult], metrics: Sequence[str]
) -> tuple[ResidualRow, ...]:
    """One row for each reason that applies; unmatched events are worth a row even if they cost nothing."""
    rows: dict[ResidualReason, _Row] = defaultdict(_Row)
    _add_events(totals.scan, rows)
    _add_executes(totals.scan, rows)
    _add_ownerless_transfers(graph, totals, rows)
    _add_sites(sites, rows)
    return tuple(
        ResidualRow(reason, rows[reason].events, {name: rows[reason].sums.get(name, 0) for name in metrics})
        for reason in ResidualReason
        if reason in rows and (any(rows[reason].sums.values()) or reason is ResidualReason.UNMATCHED)
    )


def _add_events(scan: Scan, rows: dict[ResidualReason, _Row]) -> None:
    """Events without a target, and rows of steps in kernels that the map does not have, and in none."""
    for number, events in scan.by_target.items():
        if number in _REASON_OF:
            rows[_REASON_OF[number]].add(events.events, events.sums)
    # Rows of steps say where the time of events went that are counted already: they add no events.
    names = [metric.name for metric in scan.step_metrics]
    for row in scan.step_rows:
        if row.target < 0:
            rows[_REASON_OF[row.target]].add(0, dict(zip(names, row.values, strict=True)))


def _add_executes(scan: Scan, rows: dict[ResidualReason, _Row]) -> None:
    """Submissions: what their dispatches cover is counted with these, the rest is overhead."""
    if EXECUTE in scan.by_target:
        executes, covered = scan.by_target[EXECUTE], scan.execute_covered
        overhead = {name: total - covered[name] for name, total in executes.sums.items()}
        rows[ResidualReason.OVERHEAD].add(executes.events, overhead)
        rows[ResidualReason.COUNTED_IN_DISPATCHES].add(executes.events, covered)


def _add_ownerless_transfers(graph: TraceGraph, totals: Totals, rows: dict[ResidualReason, _Row]) -> None:
    """Transfers of the map that are of no op are residual as those that the map does not have."""
    for transfer in graph.transfers:
        if transfer.id in totals.places and not transfer.ops:
            total = totals.at(transfer.id)
            rows[ResidualReason.TRANSFER].add(total.calls, total.sums)


def _add_sites(sites: Sequence[SiteResult], rows: dict[ResidualReason, _Row]) -> None:
    """Sites that ran and have no member, and what is of none of their members at the others."""
    for site in sites:
        if not site.shares:
            totals = {name: cost.total for name, cost in site.metrics.items()}
            rows[ResidualReason.COMPILER_MADE].add(site.calls, totals)
        elif any(site.nobody.values()):
            rows[ResidualReason.KERNEL_OVERHEAD].add(site.calls, site.nobody)
