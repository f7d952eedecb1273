"""The timeline tab: single invocations, event by event, on tracks.

A page shows the median and the slowest invocations of a run, up to a number of events. A note counts the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tracemap.attribution.call_statistics import NO_TIME
from tracemap.attribution.timeline import Excerpt, TimedEvent
from tracemap.core.units import Integer, format_count, plural
from tracemap.map.model import OpId
from tracemap.reports.cost_lookup import MapCosts
from tracemap.reports.escaping import as_shown
from tracemap.reports.page.model import CallHistogram, Timeline, TimelineCall, TimelineItem, TimelineTrack
from tracemap.reports.page.overview_tab import Family
from tracemap.reports.timeline_tracks import Track, span_name, tracks_of

MOST_SPANS: Final = 20_000
"""Most events of a page, over all runs."""
_MOST_SCOPES: Final = 7
"""Scopes with a colour of their own."""

Scope = tuple[str, ...]


def timeline_of(costed: MapCosts, excerpts: Sequence[Excerpt], families: Mapping[OpId, Family]) -> Timeline | None:
    """The timeline of a page; None if no run records when its events started."""
    if not any(excerpt.spans for excerpt in excerpts):
        return None
    items = _Items(costed)
    calls = _Calls()
    begins = tuple(min((span.start_ns for span in excerpt.spans), default=0) for excerpt in excerpts)
    tracks = [
        _track(run, track, begins[run], items, calls)
        for run, excerpt in enumerate(excerpts)
        for track in tracks_of(excerpt.spans)
    ]
    scopes, rows = items.coloured(families)
    return Timeline(begins, calls.rows(begins), rows, tuple(tracks), calls.median(excerpts), scopes, _note(excerpts))


def histograms_by_site(costed: MapCosts, excerpts: Sequence[Excerpt]) -> Mapping[str, CallHistogram]:
    """Histograms of wall times of calls by site, over all runs; without sites that have no calls."""
    histograms = {}
    for site in costed.graph.sites:
        bins: Counter[int] = Counter()
        for excerpt in excerpts:
            bins.update(excerpt.lengths.get(site.id, {}))
        none = bins.pop(NO_TIME, 0)
        if bins or none:
            first, last = min(bins, default=0), max(bins, default=-1)
            histograms[site.id] = CallHistogram(none, first, tuple(bins[number] for number in range(first, last + 1)))
    return histograms


def _track(run: int, track: Track, begin: int, items: _Items, calls: _Calls) -> TimelineTrack:
    ends = [begin, *(span.end_ns for span in track.spans)]
    return TimelineTrack(
        run=run,
        name=as_shown(track.name),
        kind=track.spans[0].kind,
        gaps=tuple(span.start_ns - end for span, end in zip(track.spans, ends, strict=False)),
        durations=tuple(span.duration_ns for span in track.spans),
        items=tuple(items.number(span) for span in track.spans),
        calls=tuple(calls.number(run, span) for span in track.spans),
    )


@dataclass(slots=True)
class _Calls:
    """Numbers invocations in the order of their spans, and collects the spans."""

    spans: dict[tuple[int, Integer], list[TimedEvent]] = field(default_factory=lambda: defaultdict(list))
    numbers: dict[tuple[int, Integer], int] = field(default_factory=dict)

    def number(self, run: int, span: TimedEvent) -> int:
        key = run, span.invocation
        self.spans[key].append(span)
        return self.numbers.setdefault(key, len(self.numbers))

    def median(self, excerpts: Sequence[Excerpt]) -> int:
        """The index of the median invocation of the first run with spans."""
        run, first = next((run, excerpt) for run, excerpt in enumerate(excerpts) if excerpt.spans)
        invocation: Integer = first.invocations[0] if first.invocations else first.spans[0].invocation
        return self.numbers[run, invocation]

    def rows(self, begins: Sequence[int]) -> tuple[TimelineCall, ...]:
        rows = []
        for run, invocation in self.numbers:
            spans = self.spans[run, invocation]
            first, last = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
            rows.append(TimelineCall(run + 1, invocation, first - begins[run], last - begins[run], len(spans)))
        return tuple(rows)


_Key = tuple[str, str, tuple[str, ...]]


@dataclass(slots=True)
class _Items:
    """Distinct items of spans, and their total times, which decide on colours."""

    costed: MapCosts
    numbers: dict[_Key, int] = field(default_factory=dict)
    times: Counter[_Key] = field(default_factory=Counter)

    def number(self, span: TimedEvent) -> int:
        """The index of a span's item."""
        key = span.kind, span_name(span), span.places
        self.times[key] += span.duration_ns
        return self.numbers.setdefault(key, len(self.numbers))

    def coloured(self, families: Mapping[OpId, Family]) -> tuple[tuple[str, ...], tuple[TimelineItem, ...]]:
        """The scopes with a colour, and the items with their colours."""
        roots = {key: self._root(key) for key in self.numbers}
        # If several call paths lead to an op in one site, the first one counts.
        scope_of_root = {(reached.work, reached.op.id): reached.scope for reached in reversed(self.costed.reached)}
        scopes = {key: scope_of_root.get(root, ()) for key, root in roots.items()}
        times: Counter[Scope] = Counter()
        for key, scope in scopes.items():
            if scope:
                times[scope] += self.times[key]
        depth = _distinguishing_depth(times)
        colours = self._colours(_at_depth(times, depth), depth)
        items = []
        for key, scope in scopes.items():
            number = colours.get(scope[:depth], len(colours)) if scope else -1
            items.append(self._item(key, number, families.get(roots[key][1])))
        others = ["other scopes"] if any(item.scope == len(colours) for item in items) else []
        return (*(as_shown("/".join(scope)) for scope in colours), *others), tuple(items)

    def _colours(self, times: Counter[Scope], depth: int) -> Mapping[Scope, int]:
        """The scopes with most time, numbered in the order of the program."""
        longest = {scope for scope, _ in times.most_common(_MOST_SCOPES)}
        in_program_order = dict.fromkeys(reached.scope[:depth] for reached in self.costed.reached)
        return {scope: number for number, scope in enumerate(scope for scope in in_program_order if scope in longest)}

    def _root(self, key: _Key) -> tuple[str, OpId]:
        """The first dispatch site or transfer that a span may be of, and the op that gives it its scope."""
        graph = self.costed.graph
        for place in key[2]:
            site = graph.site_by_id.get(place)
            if site is None:
                ops = graph.transfer_by_id[place].ops
            else:
                ops = tuple(member.op for member in sorted(site.members, key=lambda member: not member.root))
            if ops:
                return place, ops[0]
        return "", OpId("")

    def _item(self, key: _Key, scope: int, family: Family | None) -> TimelineItem:
        kind, label, places = key
        sites = tuple(place for place in places if place in self.costed.graph.site_by_id)
        transfers = [self.costed.graph.transfer_by_id[place] for place in places if place not in sites]
        ops = dict.fromkeys(str(op) for transfer in transfers for op in transfer.ops)
        return TimelineItem(as_shown(label), kind, sites, tuple(ops), scope, family.value if family else "")


def _distinguishing_depth(times: Mapping[Scope, int]) -> int:
    """Number of leading parts of scopes to colour by: the least at which no scope has more than half of the time.

    If a scope always has more, the least depth with two scopes; 1 with a single scope.
    """
    deepest = max(map(len, times), default=0)
    depth_of_two = 0
    for depth in range(1, deepest + 1):
        at_depth = _at_depth(times, depth)
        if max(at_depth.values()) * 2 <= sum(at_depth.values()):
            return depth
        depth_of_two = depth_of_two or (depth if len(at_depth) > 1 else 0)
    return depth_of_two or 1


def _at_depth(times: Mapping[Scope, int], depth: int) -> Counter[Scope]:
    sums: Counter[Scope] = Counter()
    for scope, time_ns in times.items():
        sums[scope[:depth]] += time_ns
    return sums


def _note(excerpts: Sequence[Excerpt]) -> str:
    if len(excerpts) == 1:
        return _run_note(excerpts[0])
    return " ".join(f"Run {number}: {_run_note(excerpt)}" for number, excerpt in enumerate(excerpts, start=1))


def _run_note(excerpt: Excerpt) -> str:
    """The numbers of shown and hidden invocations and events."""
    if not excerpt.spans:
        return "No timeline: the run does not record when events started."
    invocations, spans = len(excerpt.invocations), len(excerpt.spans)
    if not invocations:
        first = f"Its first {format_count(spans)} of {format_count(excerpt.events)} events are shown."
        shown = first if spans < excerpt.events else "All of its events are shown."
        return f"The run does not distinguish invocations. {shown}"
    if excerpt.events_of_median > spans:
        part = f"the first {format_count(spans)} of its {format_count(excerpt.events_of_median)} events"
        return f"The median of {plural(excerpt.calls, 'invocation')} is shown, with {part}."
    if invocations == excerpt.calls:
        all_shown = f"All {plural(invocations, 'invocation')} are shown."
        return all_shown if invocations > 1 else "The only invocation is shown."
    slowest = f" and the {plural(invocations - 1, 'slowest one')}" if invocations > 1 else ""
    count = f"{format_count(invocations)} of {plural(excerpt.calls, 'invocation')}"
    hidden = f"{plural(excerpt.events - spans, 'event')} of the others are not"
    return f"{count} are shown: the median{slowest}, from their first event to their last. {hidden}."
