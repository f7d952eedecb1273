"""The events of a run one by one, each with its time and its target: what a timeline is drawn of.

Sums are made elsewhere (`attribute`); here single calls of the function are read, which are few rows of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tracemap.attribution.call_statistics import Lengths, Together, lengths, together
from tracemap.attribution.join.targets import TRANSFER, UNMATCHED, Join, Targets
from tracemap.attribution.scan.connection import Row, open_tables
from tracemap.attribution.scan.lookups import Lookup, Source, lookups, submission_lookups
from tracemap.attribution.scan.rows import first_of, joined
from tracemap.errors import UsageInvalid
from tracemap.graph.model import TraceGraph
from tracemap.measurements.model import Run
from tracemap.units import UNKNOWN, Integer, Text

_TIMED: Final = "NOT warmup AND kind <> 'step' AND start_ns IS NOT NULL AND duration_ns IS NOT NULL"
_SPANS: Final = """
SELECT event.kind, CAST(CASE WHEN event.kind = 'dispatch' THEN {dispatch}
                             WHEN event.kind IN ('copy', 'fill', 'update') THEN {transfer} ELSE -1 END AS INTEGER),
       event.kernel, event.invocation, event.submission_id, event.thread, event.start_ns, event.duration_ns,
       event.covered_ns, event.cpu_ns
FROM (SELECT * FROM {events} WHERE {which}) AS event {joins}
ORDER BY event.start_ns, event.duration_ns DESC, event.kind, event.submission_id, event.command_index, event.kernel,
         event.thread, event.cpu_ns, event.invocation{limit}
"""
_OF_CALLS: Final = """
SELECT invocation, max(start_ns + duration_ns) - min(start_ns), count(*)
FROM {events} WHERE {timed} GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True, slots=True)
class Span:
    """An event that was timed.

    `places`: the sites or transfers that it may be of, one where the join is exact, none where it is of no op;
    `start_ns` is on the run's clock; `covered_ns` is the part of an `execute` in which a dispatch of it ran.
    """

    kind: str
    places: tuple[str, ...]
    kernel: Text
    invocation: Integer
    submission: Integer
    thread: Text
    start_ns: int
    duration_ns: int
    covered_ns: Integer
    cpu_ns: Integer

    @property
    def end_ns(self) -> int:
        """When it ended, on the run's clock."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Whole calls of a run, as many as there is room for: the median one, then those that take longest.

    `invocations`: which they are, the median one first; none where rows do not tell calls apart. `calls` and `events`:
    how many the run has, `events_of_median` of which are the median call's. `lengths`: of all calls of sites;
    `together`: how what was measured of them goes together.
    """

    spans: tuple[Span, ...]
    invocations: tuple[int, ...]
    calls: int
    events: int
    events_of_median: int
    lengths: Lengths
    together: Together


def timeline(
    graph: TraceGraph, run: Run, invocations: Sequence[int], *, every: bool, memory_mb: int = 0
) -> tuple[Span, ...]:
    """The timed events of some calls of the function, in the order in which they began.

    Args:
        graph: the map that the run is of.
        run: an opened run.
        invocations: which calls, as its rows count them, warm-up included; none: the one that takes the median time
            from its first event to its last. Of a run that does not tell calls apart all of its events are taken.
        every: all measured calls instead.
        memory_mb: what rows may hold of the memory; 0: what the machine can spare.

    Raises:
        UsageInvalid: the run does not say when events began, or has no such call.
        RunInvalid: a cell is not what its column says.
    """
    with open_tables([run], memory_mb) as tables:
        source = Source(run, Join(graph, run.header, run.site_choices), tables, Targets())
        calls = _calls(source)
        if not calls:
            raise UsageInvalid(f"{run.file}: its rows do not say when they began (start_ns, duration_ns)")
        which = _TIMED if every else f"{_TIMED} AND {_chosen(run, calls, invocations)}"
        of_events, _ = lookups(source, submission_lookups(source))
        return _spans(source, of_events, which)


def excerpt(graph: TraceGraph, run: Run, most: int, memory_mb: int = 0) -> Excerpt:
    """At most so many timed events of a run, of whole calls; none of a run that does not say when events began.

    Of a call that has more by itself, and of a run that does not tell calls apart, they are the first ones.

    Raises:
        RunInvalid: a cell is not what its column says.
    """
    with open_tables([run], memory_mb) as tables:
        source = Source(run, Join(graph, run.header, run.site_choices), tables, Targets())
        of_events, _ = lookups(source, submission_lookups(source))
        calls, of_sites = _calls(source), lengths(source, of_events)
        measures = together(source, of_events, of_sites)
        if not calls:
            return Excerpt((), (), 0, 0, 0, of_sites, measures)
        ranked = _ranked(calls)
        median, kept = _fitting(ranked, most)
        numbers = tuple(call.number for call in kept)
        which = f"{_TIMED} AND {_of_calls(numbers)}" if numbers else _TIMED
        spans = _spans(source, of_events, which, most)
        events = sum(call.events for call in calls)
        return Excerpt(spans, numbers, len(ranked), events, median.events if median else 0, of_sites, measures)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the function, -1 of rows that are of none: how long from its first event to its last, and how many."""

    number: int
    extent_ns: int
    events: int


def _calls(source: Source) -> list[_Call]:
    rows = source.tables.query(_OF_CALLS.format(events=source.events, timed=_TIMED))
    return [_Call(-1 if call is None else int(call), int(extent), int(events)) for call, extent, events in rows]


def _ranked(calls: Sequence[_Call]) -> list[_Call]:
    """The calls that rows tell apart, the slowest last."""
    return sorted((call for call in calls if call.number >= 0), key=lambda call: (call.extent_ns, call.number))


def _median(ranked: Sequence[_Call]) -> _Call | None:
    return ranked[(len(ranked) - 1) // 2] if ranked else None


def _fitting(ranked: Sequence[_Call], most: int) -> tuple[_Call | None, Sequence[_Call]]:
    """The median call, and it with the slowest ones that together have no more events than this."""
    median = _median(ranked)
    if median is None:
        return None, ()
    kept, room = [median], most - median.events
    for call in reversed(ranked):
        if call is median:
            continue
        room -= call.events
        if room < 0:
            break
        kept.append(call)
    return median, kept


def _chosen(run: Run, calls: Sequence[_Call], wanted: Sequence[int]) -> str:
    """The condition by which rows are of the calls that are wanted, in SQL."""
    ranked = _ranked(calls)
    have = {call.number for call in ranked}
    for call in wanted:
        if call not in have:
            told = f"it has {min(have)} to {max(have)}" if have else "its rows do not tell calls apart"
            raise UsageInvalid(f"{run.file}: no call {call} was measured; {told}")
    median = _median(ranked)
    return _of_calls(wanted or [median.number]) if median else "true"


def _of_calls(numbers: Sequence[int]) -> str:
    return f"invocation IN ({', '.join(map(str, numbers))})"


def _spans(source: Source, of_events: Sequence[Lookup], which: str, most: int = 0) -> tuple[Span, ...]:
    """The events for which a condition holds; not more than `most`, if it is not 0."""
    rows = source.tables.query(_query(source, of_events, which, f"\nLIMIT {most}" if most else ""))
    places = [target.places for target in source.targets]
    return tuple(_span(row, places) for row in rows)


def _query(source: Source, of_events: Sequence[Lookup], which: str, limit: str) -> str:
    return _SPANS.format(
        dispatch=first_of((lookup.of_dispatch for lookup in of_events), UNMATCHED),
        transfer=first_of((lookup.of_transfer for lookup in of_events), TRANSFER),
        events=source.events,
        which=which,
        joins=joined(of_events),
        limit=limit,
    )


def _span(row: Row, places: Sequence[tuple[str, ...]]) -> Span:
    kind, target, kernel, invocation, submission, thread, start, duration, covered, cpu = row
    return Span(
        kind,
        places[target] if target >= 0 else (),
        UNKNOWN if kernel is None else kernel,
        _known(invocation),
        _known(submission),
        UNKNOWN if thread is None else thread,
        int(start),
        int(duration),
        _known(covered),
        _known(cpu),
    )


def _known(value: int | None) -> Integer:
    return UNKNOWN if value is None else int(value)
