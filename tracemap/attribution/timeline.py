"""The events of a run one by one, each with its time and its target: what a timeline is drawn of.

Sums are made elsewhere (`attribute`); here single calls of the function are read, which are few rows of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tracemap.attribution.join.run import TRANSFER, UNMATCHED, Join, Targets
from tracemap.attribution.scan.lookups import Lookup, Source, lookups
from tracemap.attribution.scan.rows import first_of, joined
from tracemap.attribution.scan.submissions import submission_lookups
from tracemap.attribution.scan.tables import Row, open_tables
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
         event.thread, event.cpu_ns, event.invocation
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


def timeline(
    graph: TraceGraph, run: Run, invocations: Sequence[int], *, every: bool, memory_mb: int = 0
) -> tuple[Span, ...]:
    """The timed events of some calls of the function, in the order in which they began.

    Args:
        graph: the map that the run is of.
        run: an opened run.
        invocations: which calls, as its rows count them, warm-up included; none: the one whose events take as long as
            those of the median call. Of a run that does not tell calls apart all of its events are taken.
        every: all measured calls instead.
        memory_mb: what rows may hold of the memory; 0: what the machine can spare.

    Raises:
        UsageInvalid: the run does not say when events began, or has no such call.
        RunInvalid: a cell is not what its column says.
    """
    with open_tables([run], memory_mb) as tables:
        source = Source(run, Join(graph, run.header), tables, Targets())
        of_calls = tables.query(
            f"SELECT invocation, sum(duration_ns) FROM {source.events} WHERE {_TIMED} GROUP BY ALL ORDER BY ALL"
        )
        which = _TIMED if every else f"{_TIMED} AND {_chosen(run, of_calls, invocations)}"
        if not of_calls:
            raise UsageInvalid(f"{run.table}: its rows do not say when they began (start_ns, duration_ns)")
        of_events, _ = lookups(source, submission_lookups(source))
        rows = tables.query(_query(source, of_events, which))
        places = [target.places for target in source.targets]
        return tuple(_span(row, places) for row in rows)


def _chosen(run: Run, of_calls: Sequence[Row], wanted: Sequence[int]) -> str:
    """The condition by which rows are of the calls that are wanted, in SQL."""
    totals = {int(call): total for call, total in of_calls if call is not None}
    for call in wanted:
        if call not in totals:
            have = f"it has {min(totals)} to {max(totals)}" if totals else "its rows do not tell calls apart"
            raise UsageInvalid(f"{run.table}: no call {call} was measured; {have}")
    if not totals:
        return "true"
    ranked = sorted(totals, key=lambda call: (totals[call], call))
    calls = wanted or [ranked[(len(ranked) - 1) // 2]]
    return f"invocation IN ({', '.join(map(str, calls))})"


def _query(source: Source, of_events: Sequence[Lookup], which: str) -> str:
    return _SPANS.format(
        dispatch=first_of((lookup.of_dispatch for lookup in of_events), UNMATCHED),
        transfer=first_of((lookup.of_transfer for lookup in of_events), TRANSFER),
        events=source.events,
        which=which,
        joins=joined(of_events),
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
