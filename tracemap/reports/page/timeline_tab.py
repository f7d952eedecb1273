"""The tab of the timeline: single calls of the function, event by event, on tracks; as many as a page has room for.

Of each run these are whole calls, the median one and the slowest; what is left out is counted and said.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tracemap.attribution.call_statistics import NO_TIME
from tracemap.attribution.timeline import Excerpt, Span
from tracemap.graph.model import OpId, Site
from tracemap.reports.cost_lookup import CostedMap
from tracemap.reports.escaping import as_shown
from tracemap.reports.page.model import CallLengths, Timeline, TimelineCall, TimelineItem, TimelineTrack
from tracemap.reports.page.overview_tab import Family
from tracemap.reports.tracks import Track, span_name, tracks_of
from tracemap.units import Integer, format_count, plural

MOST_SPANS: Final = 20_000
"""Of a page, of all its runs together."""
_MOST_SCOPES: Final = 7
"""As many as there are colours."""

Scope = tuple[str, ...]


def timeline_of(costed: CostedMap, excerpts: Sequence[Excerpt], families: Mapping[OpId, Family]) -> Timeline | None:
    """The timeline of a page, with what is there of each run; None where no run says when its events began."""
    if not any(each.spans for each in excerpts):
        return None
    items = _Items(costed)
    calls = _Calls()
    begins = tuple(min((span.start_ns for span in each.spans), default=0) for each in excerpts)
    tracks = [
        _track(run, track, begins[run], items, calls)
        for run, each in enumerate(excerpts)
        for track in tracks_of(each.spans)
    ]
    scopes, made = items.coloured(families)
    return Timeline(begins, calls.rows(begins), made, tuple(tracks), calls.median(excerpts), scopes, _note(excerpts))


def lengths_of(costed: CostedMap, excerpts: Sequence[Excerpt]) -> Mapping[str, CallLengths]:
    """By site how long its calls took, in all runs together; sites without calls are left out."""
    found = {}
    for site in costed.graph.sites:
        bins: Counter[int] = Counter()
        for excerpt in excerpts:
            bins.update(excerpt.lengths.get(site.id, {}))
        none = bins.pop(NO_TIME, 0)
        if bins or none:
            first, last = min(bins, default=0), max(bins, default=-1)
            found[site.id] = CallLengths(none, first, tuple(bins[number] for number in range(first, last + 1)))
    return found


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
    """Numbers calls of the function as their spans come, and keeps when each began and ended."""

    spans: dict[tuple[int, Integer], list[Span]] = field(default_factory=lambda: defaultdict(list))
    numbers: dict[tuple[int, Integer], int] = field(default_factory=dict)

    def number(self, run: int, span: Span) -> int:
        key = run, span.invocation
        self.spans[key].append(span)
        return self.numbers.setdefault(key, len(self.numbers))

    def median(self, excerpts: Sequence[Excerpt]) -> int:
        """The number of the median call of the first run that has any."""
        run, first = next((run, each) for run, each in enumerate(excerpts) if each.spans)
        invocation: Integer = first.invocations[0] if first.invocations else first.spans[0].invocation
        return self.numbers[run, invocation]

    def rows(self, begins: Sequence[int]) -> tuple[TimelineCall, ...]:
        return tuple(self._row(run, invocation, begins[run]) for run, invocation in self.numbers)

    def _row(self, run: int, invocation: Integer, begin: int) -> TimelineCall:
        spans = self.spans[run, invocation]
        first, last = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
        return TimelineCall(run + 1, invocation, first - begin, last - begin, len(spans))


_Key = tuple[str, str, tuple[str, ...]]


@dataclass(slots=True)
class _Items:
    """What spans are of, each once; and how long those of each scope took, to choose which get a colour."""

    costed: CostedMap
    numbers: dict[_Key, int] = field(default_factory=dict)
    times: Counter[_Key] = field(default_factory=Counter)

    def number(self, span: Span) -> int:
        """The number of what a span is of."""
        key = span.kind, span_name(span), span.places
        self.times[key] += span.duration_ns
        return self.numbers.setdefault(key, len(self.numbers))

    def coloured(self, families: Mapping[OpId, Family]) -> tuple[tuple[str, ...], tuple[TimelineItem, ...]]:
        """The scopes that get a colour, and the items with theirs."""
        roots = {key: self._root(key) for key in self.numbers}
        # Of an op that several calls lead to within one site the first is shown.
        of_root = {(each.work, each.op.id): each.scope for each in reversed(self.costed.reached)}
        scopes = {key: of_root.get(root, ()) for key, root in roots.items()}
        times: Counter[Scope] = Counter()
        for key, scope in scopes.items():
            if scope:
                times[scope] += self.times[key]
        depth = _telling_depth(times)
        chosen = self._in_order(_at_depth(times, depth), depth)
        items = []
        for key, scope in scopes.items():
            number = chosen.get(scope[:depth], len(chosen)) if scope else -1
            items.append(self._item(key, number, families.get(roots[key][1])))
        others = ["other scopes"] if any(item.scope == len(chosen) for item in items) else []
        return (*(as_shown("/".join(scope)) for scope in chosen), *others), tuple(items)

    def _in_order(self, times: Counter[Scope], depth: int) -> Mapping[Scope, int]:
        """The scopes that take longest, numbered in the order of the program."""
        longest = {scope for scope, _ in times.most_common(_MOST_SCOPES)}
        of_program = dict.fromkeys(each.scope[:depth] for each in self.costed.reached)
        return {scope: number for number, scope in enumerate(scope for scope in of_program if scope in longest)}

    def _root(self, key: _Key) -> tuple[str, OpId]:
        """The place that a span is of, the first where it may be several, and the op that it has its scope from."""
        graph = self.costed.graph
        for place in key[2]:
            site = graph.site_by_id.get(place)
            ops = _root_first(site) if site else graph.transfer_by_id[place].ops
            if ops:
                return place, ops[0]
        return "", OpId("")

    def _item(self, key: _Key, scope: int, family: Family | None) -> TimelineItem:
        kind, label, places = key
        sites = tuple(place for place in places if place in self.costed.graph.site_by_id)
        transfers = [self.costed.graph.transfer_by_id[place] for place in places if place not in sites]
        ops = dict.fromkeys(str(op) for transfer in transfers for op in transfer.ops)
        return TimelineItem(as_shown(label), kind, sites, tuple(ops), scope, family.value if family else "")


def _root_first(site: Site) -> list[OpId]:
    return [member.op for member in sorted(site.members, key=lambda member: not member.root)]


def _telling_depth(times: Mapping[Scope, int]) -> int:
    """How many parts of a scope tell spans apart: so many that no scope has more than half of the time.

    Where one has more at any depth, it is as many as make two scopes of them; one where there is a single scope.
    """
    deepest = max(map(len, times), default=0)
    two = 0
    for depth in range(1, deepest + 1):
        at_depth = _at_depth(times, depth)
        if max(at_depth.values()) * 2 <= sum(at_depth.values()):
            return depth
        two = two or (depth if len(at_depth) > 1 else 0)
    return two or 1


def _at_depth(times: Mapping[Scope, int], depth: int) -> Counter[Scope]:
    found: Counter[Scope] = Counter()
    for scope, time_ns in times.items():
        found[scope[:depth]] += time_ns
    return found


def _note(excerpts: Sequence[Excerpt]) -> str:
    """What is on the page, and what is not."""
    if len(excerpts) == 1:
        return _said(excerpts[0])
    return " ".join(f"Run {number}: {_said(each)}" for number, each in enumerate(excerpts, start=1))


def _said(excerpt: Excerpt) -> str:
    if not excerpt.spans:
        return "Its rows do not say when events began."
    shown, here = len(excerpt.invocations), len(excerpt.spans)
    if not shown:
        first = f"Its first {format_count(here)} of {format_count(excerpt.events)} events are here."
        found = first if here < excerpt.events else "All of its events are here."
        return f"The run does not tell calls apart. {found}"
    if excerpt.events_of_median > here:
        cut = f"the first {format_count(here)} of its {format_count(excerpt.events_of_median)} events"
        return f"Of {plural(excerpt.calls, 'call')} the median one is here, from its first event to its last: {cut}."
    if shown == excerpt.calls:
        return f"All {plural(shown, 'call')} that were measured are here." if shown > 1 else "The only call is here."
    others = f" and the {plural(shown - 1, 'slowest one')}" if shown > 1 else ""
    begin = f"{format_count(shown)} of {format_count(excerpt.calls)} calls are here: the median one{others}"
    left = f"{plural(excerpt.calls - shown, 'call')} with {plural(excerpt.events - here, 'event')} are left out"
    return f"{begin}, from their first event to their last. {left}."
