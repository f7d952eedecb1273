"""Single events of a run with their times and targets, for timelines.

`attribute` computes sums. This module reads single invocations, which are few of the run's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tracemap.attribution.call_statistics import LatencyHistograms, Together, latency_histograms, together
from tracemap.attribution.join.targets import Targets
from tracemap.attribution.scan.connection import open_tables
from tracemap.attribution.scan.event_lookups import Lookup, Source, clauses, lookups, source_of
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.map.model import TraceGraph
from tracemap.runs.model import Run

_TIMED: Final = "NOT warmup AND kind <> 'step' AND start_ns IS NOT NULL AND duration_ns IS NOT NULL"
_SPANS: Final = """
SELECT event.kind, CAST(CASE WHEN event.kind = 'dispatch' THEN {dispatch}
                             WHEN event.kind IN ('copy', 'fill', 'update') THEN {transfer} ELSE -1 END AS INTEGER),
       event.kernel, event.invocation, event.submission_id, event.thread, event.start_ns, event.duration_ns,
       event.covered_ns, event.cpu_ns, event.payload_bytes
FROM (SELECT * FROM {events} WHERE {which}) AS event {joins}
ORDER BY event.start_ns, event.duration_ns DESC, event.kind, event.submission_id, event.command_index, event.kernel,
         event.thread, event.cpu_ns, event.invocation{limit}
"""
_INVOCATIONS: Final = """
SELECT coalesce(invocation, -1) AS number, CAST(max(start_ns + duration_ns) - min(start_ns) AS BIGINT), count(*)
FROM {events} WHERE {timed} GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """A timed event.

    `places`: the candidate sites or transfers; one if the join is exact, none if the event has no target. `start_ns` is
    on the run's clock. `covered_ns`: the part of an `execute` in which its dispatches ran. `payload_bytes`: bytes
    that are moved, allocated or released.
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
    payload_bytes: Integer = UNKNOWN

    @property
    def end_ns(self) -> int:
        """Its end, on the run's clock."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Whole invocations of a run, up to a number of events: the median one, then the longest ones.

    `invocations`: their numbers, the median one first; empty if rows have no invocation. `calls` and `events`: numbers
    of invocations and events of the run; `events_of_median`: number of events of the median invocation. `lengths`:
    histograms of the durations of all calls of sites; `together`: correlations of their metrics.
    """

    spans: tuple[TimedEvent, ...]
    invocations: tuple[int, ...]
    calls: int
    events: int
    events_of_median: int
    lengths: LatencyHistograms
    together: Together


def timeline(
    graph: TraceGraph, run: Run, invocations: Sequence[int], *, every: bool, memory_mb: int = 0
) -> tuple[TimedEvent, ...]:
    """The timed events of some invocations, in the order of their starts.

    Args:
        graph: the map of the run's module.
        run: an opened run.
        invocations: numbers of invocations, as in the run's rows, warm-up included; empty: the invocation with the
            median time from its first event to its last. If rows have no invocation, all events are taken.
        every: take all measured invocations instead.
        memory_mb: memory limit for rows; 0: the memory that the machine can spare.

    Raises:
        UsageInvalid: the run has no start times, or no such invocation.
        RunInvalid: a cell does not have its column's type.
    """
    with open_tables([run], memory_mb) as tables:
        source = source_of(graph, run, tables, Targets())
        measured = _invocations(source)
        if not measured:
            raise UsageInvalid(f"{run.file}: no timeline, because its rows have no start times (start_ns, duration_ns)")
        which = _TIMED if every else f"{_TIMED} AND {_chosen(run, measured, invocations)}"
        event_lookups, _ = lookups(source)
        return _spans(source, event_lookups, which)


def excerpt(graph: TraceGraph, run: Run, most: int, memory_mb: int = 0) -> Excerpt:
    """At most `most` timed events of a run, from whole invocations; empty if the run has no start times.

    If a single invocation has more events, or rows have no invocation, the first events are taken.

    Raises:
        RunInvalid: a cell does not have its column's type.
    """
    with open_tables([run], memory_mb) as tables:
        source = source_of(graph, run, tables, Targets())
        event_lookups, _ = lookups(source)
        invocations, histograms = _invocations(source), latency_histograms(source, event_lookups)
        correlations = together(source, event_lookups, histograms)
        if not invocations:
            return Excerpt((), (), 0, 0, 0, histograms, correlations)
        ranked = _ranked(invocations)
        median, chosen = _fitting(ranked, most)
        numbers = tuple(invocation.number for invocation in chosen)
        which = f"{_TIMED} AND {_in_invocations(numbers)}" if numbers else _TIMED
        spans = _spans(source, event_lookups, which, most)
        events = sum(invocation.events for invocation in invocations)
        median_events = median.events if median else 0
        return Excerpt(spans, numbers, len(ranked), events, median_events, histograms, correlations)


@dataclass(frozen=True, slots=True)
class _Invocation:
    """Index of an invocation (-1: rows without one), time from its first event to its last, and number of events."""

    number: int
    extent_ns: int
    events: int


def _invocations(source: Source) -> list[_Invocation]:
    return [_Invocation(*row) for row in source.tables.query(_INVOCATIONS.format(events=source.events, timed=_TIMED))]


def _ranked(invocations: Sequence[_Invocation]) -> list[_Invocation]:
    """The invocations with a number, the slowest last."""
    numbered = (invocation for invocation in invocations if invocation.number >= 0)
    return sorted(numbered, key=lambda invocation: (invocation.extent_ns, invocation.number))


def _median(ranked: Sequence[_Invocation]) -> _Invocation | None:
    return ranked[(len(ranked) - 1) // 2] if ranked else None


def _fitting(ranked: Sequence[_Invocation], most: int) -> tuple[_Invocation | None, Sequence[_Invocation]]:
    """The median invocation, and the list of it and the slowest ones that have at most `most` events together."""
    median = _median(ranked)
    if median is None:
        return None, ()
    chosen, room = [median], most - median.events
    for invocation in reversed(ranked):
        if invocation is median:
            continue
        room -= invocation.events
        if room < 0:
            break
        chosen.append(invocation)
    return median, chosen


def _chosen(run: Run, invocations: Sequence[_Invocation], requested: Sequence[int]) -> str:
    """The SQL condition for rows of the requested invocations, by default the median one."""
    ranked = _ranked(invocations)
    available = {invocation.number for invocation in ranked}
    for number in requested:
        if number not in available:
            reason = (
                f"it has {min(available)} to {max(available)}" if available else "its rows have no invocation numbers"
            )
            raise UsageInvalid(f"{run.file}: invocation {number} was not measured; {reason}")
    median = _median(ranked)
    return _in_invocations(requested or [median.number]) if median else "true"


def _in_invocations(numbers: Sequence[int]) -> str:
    return f"invocation IN ({', '.join(map(str, numbers))})"


def _spans(source: Source, event_lookups: Sequence[Lookup], which: str, most: int = 0) -> tuple[TimedEvent, ...]:
    """The events that satisfy a condition, at most `most` unless it is 0."""
    limit = f"\nLIMIT {most}" if most else ""
    rows = source.tables.query(_SPANS.format(which=which, limit=limit, **clauses(source, event_lookups)))
    places = [target.places for target in source.targets]
    spans = []
    for kind, target, *cells in rows:
        known: list[Any] = [UNKNOWN if cell is None else cell for cell in cells]
        spans.append(TimedEvent(kind, places[target] if target >= 0 else (), *known))
    return tuple(spans)
