"""Timelines as tracks: spans that do not overlap lie on one, others beside each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from tracemap.attribution.model import Attribution, MemberShare
from tracemap.attribution.timeline import Span
from tracemap.graph.model import Op, OpId, TraceGraph
from tracemap.graph.query import scope_of, scope_text
from tracemap.reports.cost_lookup import DEFAULT_METRIC
from tracemap.sanitize import without_controls
from tracemap.units import Unknown

_TRACK_OF: Final = {
    "execute": "submissions",
    "dispatch": "kernels",
    "copy": "transfers",
    "fill": "transfers",
    "update": "transfers",
    "alloca": "memory",
    "dealloca": "memory",
}


@dataclass(frozen=True, slots=True)
class Track:
    """Spans that do not overlap, in the order in which they began."""

    name: str
    spans: tuple[Span, ...]


def tracks_of(spans: Sequence[Span]) -> tuple[Track, ...]:
    """Tracks by kind of event and thread, submissions first; a further one wherever spans would overlap."""
    several: dict[str, _Lanes] = {}
    order = list(dict.fromkeys(_TRACK_OF.values()))
    for span in sorted(spans, key=lambda each: order.index(_TRACK_OF[each.kind])):
        several.setdefault(_track_name(span), _Lanes()).add(span)
    return tuple(
        Track(name if number == 0 else f"{name} ({number + 1})", tuple(lane))
        for name, lanes in several.items()
        for number, lane in enumerate(lanes.spans)
    )


def _track_name(span: Span) -> str:
    name = _TRACK_OF[span.kind]
    return name if isinstance(span.thread, Unknown) else f"{name} {without_controls(span.thread)}"


@dataclass(slots=True)
class _Lanes:
    """Spans that come in the order in which they begin, each on the first lane that is free by then."""

    spans: list[list[Span]] = field(default_factory=list)
    busy: list[tuple[int, int]] = field(default_factory=list)
    """A heap of lanes by when they get free, so that thousands of spans at once are no matter."""
    free: list[int] = field(default_factory=list)
    """A heap of the numbers of the others."""

    def add(self, span: Span) -> None:
        while self.busy and self.busy[0][0] <= span.start_ns:
            heappush(self.free, heappop(self.busy)[1])
        if not self.free:
            self.free.append(len(self.spans))
            self.spans.append([])
        lane = heappop(self.free)
        self.spans[lane].append(span)
        heappush(self.busy, (span.end_ns, lane))


def span_name(span: Span) -> str:
    """What is read in a span: the kernel that runs, else the kind of event."""
    return span.kind if isinstance(span.kernel, Unknown) else without_controls(span.kernel)


@dataclass(frozen=True, slots=True)
class OpShare:
    """An op of a span, and its part of the cost in percent, of the metric that is split."""

    op: Op
    scope: str
    """As the calls have it that lead to the op there."""
    percent: float


class Shares:
    """Which ops a span is of, those with the largest share first."""

    def __init__(self, graph: TraceGraph, attribution: Attribution) -> None:
        self._graph = graph
        names = [metric.name for metric in attribution.metrics]
        self.metric = DEFAULT_METRIC if DEFAULT_METRIC in names else names[0]
        self._paths = {(site.id, member.op): member.paths for site in graph.sites for member in site.members}
        self._shares: Mapping[str, Sequence[MemberShare]] = {
            **{site.site: site.shares for site in attribution.sites},
            **{each.transfer: each.shares for each in attribution.transfers},
        }

    def of(self, span: Span) -> list[OpShare]:
        """The ops of its place; of one that may be several places the mean of them."""
        percent: dict[OpId, float] = defaultdict(float)
        for place in span.places:
            for share in self._shares.get(place, ()):
                percent[share.op] += float(share.weight.get(self.metric, 0)) * 100 / len(span.places)
        ranked = sorted(percent.items(), key=lambda item: -item[1])
        return [OpShare(self._graph.op_by_id[op], self._scope(op, span), round(part, 2)) for op, part in ranked]

    def _scope(self, op: OpId, span: Span) -> str:
        at = [(place, op) for place in span.places]
        paths = list(dict.fromkeys(path for each in at for path in self._paths.get(each, ())))
        if len(paths) != 1:
            return scope_text(self._graph, self._graph.op_by_id[op])
        return "/".join(scope_of(self._graph, self._graph.op_by_id[op], paths[0]))
