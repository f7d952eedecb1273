"""How far ops and kernels are from what the machine allows (Williams, Waterman, Patterson: Roofline, CACM 2009).

The time that is attainable is the larger of operations over peak and bytes over bandwidth, of one core, as the run's
header has them; what was measured is the CPU time of all workers, so that both are of as many cores as worked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tracemap.graph.ops import OpId
from tracemap.graph.program import Membership
from tracemap.reports.costed import DEFAULT_METRIC, CostedMap
from tracemap.reports.escaping import as_shown
from tracemap.reports.page.pictures import Roofline, RoofPoint
from tracemap.units import Integer, Unknown

MOST_POINTS: Final = 400
"""Of ops, and as many of kernels: the dearest."""


@dataclass(slots=True)
class _Work:
    """What something did in all calls, as far as it is known."""

    operations: int = 0
    bytes: int = 0
    is_known: bool = True

    def add(self, member: Membership, calls: Integer) -> None:
        if isinstance(member.operations, Unknown) or isinstance(member.bytes, Unknown) or isinstance(calls, Unknown):
            self.is_known = False
        else:
            self.operations += member.operations * calls
            self.bytes += member.bytes * calls


def roofline_of(costed: CostedMap) -> Roofline | None:
    """The roofline of a page; None without a run that measured CPU time."""
    attribution = costed.attribution
    number = next((at for at, metric in enumerate(costed.metrics) if metric.name == DEFAULT_METRIC), -1)
    if attribution is None or number < 0:
        return None
    peaks = attribution.run.peaks
    points, unknown = [], 0
    for found in (_ops(costed), _kernels(costed)):
        ranked = sorted(found, key=lambda each: -each[2])
        for kind, name, time_ns, work in ranked[:MOST_POINTS]:
            if not work.is_known or not work.operations + work.bytes:
                unknown += kind == "op"
                continue
            attainable_s = max(work.operations / peaks.operations_per_second, work.bytes / peaks.bytes_per_second)
            label = as_shown(costed.graph.op_by_id[OpId(name)].name if kind == "op" else name)
            points.append(
                RoofPoint(kind, name, label, work.operations, work.bytes, time_ns, max(1, round(attainable_s * 1e9)))
            )
    return Roofline(number, peaks.operations_per_second, peaks.bytes_per_second, peaks.source, tuple(points), unknown)


def _ops(costed: CostedMap) -> Iterator[tuple[str, str, int, _Work]]:
    works: Mapping[str, _Work] = defaultdict(_Work)
    for site in costed.graph.sites:
        if of_site := costed.site_results.get(site.id):
            for member in site.members:
                works[member.op].add(member, of_site.calls)
    for op, result in costed.op_results.items():
        if (time_ns := result.metrics[DEFAULT_METRIC].attributed) > 0 and op in works:
            yield "op", str(op), time_ns, works[op]


def _kernels(costed: CostedMap) -> Iterator[tuple[str, str, int, _Work]]:
    works: Mapping[str, _Work] = defaultdict(_Work)
    times: dict[str, int] = defaultdict(int)
    for site in costed.graph.sites:
        if site.members and (result := costed.site_results.get(site.id)):
            times[site.kernel] += result.metrics[DEFAULT_METRIC].total
            for member in site.members:
                works[site.kernel].add(member, result.calls)
    for kernel, time_ns in times.items():
        if time_ns > 0:
            yield "kernel", kernel, time_ns, works[kernel]
