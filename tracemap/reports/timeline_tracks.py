"""Tracks of timelines: spans on a track do not overlap."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate
from typing import Final

from tracemap.attribution.model import Attribution, MemberShare
from tracemap.attribution.timeline import TimedEvent
from tracemap.core.sanitize import without_controls
from tracemap.core.units import Integer, Unknown
from tracemap.map.model import Op, OpId, TraceGraph
from tracemap.map.query import scope_of, scope_text
from tracemap.reports.cost_lookup import DEFAULT_METRIC

_TRACK_OF: Final = {
    "execute": "submissions",
    "dispatch": "kernels",
    "copy": "transfers",
    "fill": "transfers",
    "update": "transfers",
    "migration": "transfers",
    "alloca": "memory",
    "dealloca": "memory",
}


@dataclass(frozen=True, slots=True)
class Track:
    """Spans that do not overlap, in the order of their start."""

    name: str
    spans: tuple[TimedEvent, ...]


def tracks_of(spans: Sequence[TimedEvent]) -> tuple[Track, ...]:
    """Tracks by kind of event and thread, submissions first, with further tracks for overlapping spans."""
    lanes_by_name: dict[str, _Lanes] = {}
    order = list(dict.fromkeys(_TRACK_OF.values()))
    for span in sorted(spans, key=lambda span: order.index(_TRACK_OF[span.kind])):
        lanes_by_name.setdefault(_track_name(span), _Lanes()).add(span)
    return tuple(
        Track(name if index == 0 else f"{name} ({index + 1})", tuple(lane))
        for name, lanes in lanes_by_name.items()
        for index, lane in enumerate(lanes.spans)
    )


def _track_name(span: TimedEvent) -> str:
    name = _TRACK_OF[span.kind]
    return name if isinstance(span.thread, Unknown) else f"{name} {without_controls(span.thread)}"


@dataclass(slots=True)
class _Lanes:
    """Assigns spans, in the order of their start, to the first free lane."""

    spans: list[list[TimedEvent]] = field(default_factory=list)
    busy: list[tuple[int, int]] = field(default_factory=list)
    """Heap of occupied lanes by the end of their span, for logarithmic time per span."""
    free: list[int] = field(default_factory=list)
    """Heap of free lanes."""

    def add(self, span: TimedEvent) -> None:
        while self.busy and self.busy[0][0] <= span.start_ns:
            heappush(self.free, heappop(self.busy)[1])
        if not self.free:
            self.free.append(len(self.spans))
            self.spans.append([])
        lane = heappop(self.free)
        self.spans[lane].append(span)
        heappush(self.busy, (span.end_ns, lane))


def allocated_levels(spans: Sequence[TimedEvent]) -> list[tuple[int, int]]:
    """The times at which the allocated memory changes, in ns, with the bytes from then on; empty if sizes are unknown.

    Memory is taken when an allocation begins, and free when a release has ended, or its invocation ends.
    """
    changes = Counter[int]()
    held, ends = Counter[Integer](), dict[Integer, int]()
    for span in spans:
        ends[span.invocation] = max(span.end_ns, ends.get(span.invocation, span.end_ns))
        if span.kind not in _MEMORY:
            continue
        if isinstance(span.payload_bytes, Unknown):
            return []
        is_release = span.kind == "dealloca"
        size = -span.payload_bytes if is_release else span.payload_bytes
        changes[span.end_ns if is_release else span.start_ns] += size
        held[span.invocation] += size
    for invocation, size in held.items():
        changes[ends[invocation]] -= size
    times = sorted(time for time, change in changes.items() if change)
    return list(zip(times, accumulate(changes[time] for time in times), strict=True))


_MEMORY: Final = ("alloca", "dealloca")


def span_name(span: TimedEvent) -> str:
    """Label of a span: its kernel, else the kind of event."""
    return span.kind if isinstance(span.kernel, Unknown) else without_controls(span.kernel)


@dataclass(frozen=True, slots=True)
class OpShare:
    """An op of a span, and its share of the cost in percent."""

    op: Op
    scope: str
    """With the scopes of the calls that lead to the op."""
    percent: float


class Shares:
    """The ops of spans, the largest shares first."""

    def __init__(self, graph: TraceGraph, attribution: Attribution) -> None:
        self._graph = graph
        names = [metric.name for metric in attribution.metrics]
        self.metric = DEFAULT_METRIC if DEFAULT_METRIC in names else names[0]
        self._paths = {(site.id, member.op): member.paths for site in graph.sites for member in site.members}
        self._shares: Mapping[str, Sequence[MemberShare]] = {
            **{site.site: site.shares for site in attribution.sites},
            **{transfer.transfer: transfer.shares for transfer in attribution.transfers},
        }

    def of(self, span: TimedEvent) -> list[OpShare]:
        """The ops of a span's dispatch site or transfer; the mean over candidates if there are several."""
        percent: dict[OpId, float] = defaultdict(float)
        for work in span.places:
            for share in self._shares.get(work, ()):
                percent[share.op] += float(share.weight.get(self.metric, 0)) * 100 / len(span.places)
        ranked = sorted(percent.items(), key=lambda item: -item[1])
        return [OpShare(self._graph.op_by_id[op], self._scope(op, span), round(share, 2)) for op, share in ranked]

    def _scope(self, op: OpId, span: TimedEvent) -> str:
        paths = list(dict.fromkeys(path for work in span.places for path in self._paths.get((work, op), ())))
        if len(paths) != 1:
            return scope_text(self._graph, self._graph.op_by_id[op])
        return "/".join(scope_of(self._graph, self._graph.op_by_id[op], paths[0]))
