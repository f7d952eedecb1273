"""The parts of elapsed time, against a walk over every nanosecond; and on real recordings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb
from hypothesis import given, settings
from hypothesis import strategies as st

from tracemap.measurements.elapsed import elapsed_parts
from tracemap.measurements.events import EventTable
from tracemap.measurements.model import UNKNOWN_PARTS, ElapsedParts
from tracemap.units import UNKNOWN

Event = tuple[str, int, int, int]
"""Kind, submission, start and duration, from the beginning of the invocation."""

COLUMNS = "row, kind, kernel, submission_id, command_index, start_ns, duration_ns, covered_ns, invocation, warmup"


@st.composite
def invocation(draw: st.DrawFn) -> list[Event]:
    """Executes one after the other with dispatches in them, and transfers anywhere."""
    events: list[Event] = []
    at = draw(st.integers(0, 5))
    for submission in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, 20))
        events.append(("execute", submission, at, length))
        for _ in range(draw(st.integers(0, 3))):
            begin = draw(st.integers(0, length - 1))
            events.append(("dispatch", submission, at + begin, draw(st.integers(1, length - begin))))
        at += length + draw(st.integers(0, 6))
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["copy", "fill", "alloca"]))
        events.append((kind, 99, draw(st.integers(0, at)), draw(st.integers(1, 9))))
    return events


def moments(invocations: Sequence[Sequence[Event]]) -> tuple[int, int, int, int, int]:
    """Kernels, transfers, queue, host and between, by asking of every nanosecond who is the first to have it."""
    kernels = transfers = queue = host = between = 0
    last = None
    for events in invocations:
        spans = sorted((start, start + length, kind) for kind, _, start, length in events if kind != "dispatch")
        begin, end = spans[0][0], max(stop for _, stop, _ in spans)
        between += 0 if last is None else begin - last
        owners = [next((k for s, e, k in spans if s <= moment < e), "") for moment in range(begin, end)]
        moved = sum(owner in ("copy", "fill") for owner in owners)
        busy = sum(owner in ("execute", "alloca") for owner in owners)
        covered = sum(
            any(k == "dispatch" and number == of and s <= moment < s + n for k, of, s, n in events)
            for kind, number, start, length in events
            if kind == "execute"
            for moment in range(start, start + length)
        )
        running = min(covered, busy)
        kernels, transfers, queue = kernels + running, transfers + moved, queue + busy - running
        host += owners.count("")
        last = end
    return kernels, transfers, queue, host, between


def rows(invocations: Sequence[Sequence[Event]]) -> Iterator[str]:
    number = 0
    for index, events in enumerate(invocations):
        for kind, submission, start, length in events:
            number += 1
            submitted = 100 * index + submission
            yield f"({number}, '{kind}', 'k', {submitted}, 0, {start}, {length}, NULL::BIGINT, {index}, false)"


def parts(invocations: Sequence[Sequence[Event]], elapsed_ns: int) -> ElapsedParts:
    with duckdb.connect() as connection:
        values = ", ".join(rows(invocations))
        table = EventTable(connection, "events", f"SELECT * FROM (VALUES {values}) AS e({COLUMNS})")
        return elapsed_parts(table, elapsed_ns)


@settings(max_examples=60, deadline=None)
@given(found=st.lists(invocation(), min_size=1, max_size=3), pause=st.integers(0, 9), late=st.integers(0, 9))
def test_every_moment_is_of_one_part(found: list[list[Event]], pause: int, late: int) -> None:
    """One invocation behind the other, with pauses; the program's clock goes on for a while."""
    placed, begin = [], 1000
    for events in found:
        shifted = [(kind, number, start + begin, length) for kind, number, start, length in events]
        placed.append(shifted)
        begin = max(start + length for _, _, start, length in shifted) + pause
    expected = moments(placed)
    elapsed = sum(expected) + late
    got = parts(placed, elapsed)
    assert got == ElapsedParts(*expected, late)
    assert sum(value for value in got.values() if isinstance(value, int)) == elapsed


def test_overlapping_invocations_are_not_divided() -> None:
    """A program that begins a call before the one before has ended: a moment is of two."""
    first: list[Event] = [("execute", 0, 0, 10)]
    second: list[Event] = [("execute", 0, 5, 10)]
    assert parts([first, second], 100) == UNKNOWN_PARTS


def test_what_is_not_known_is_not_divided() -> None:
    events: list[Event] = [("execute", 0, 0, 10)]
    assert parts([events], 9) == UNKNOWN_PARTS
    with duckdb.connect() as connection:
        table = EventTable(connection, "events", f"SELECT * FROM (VALUES {', '.join(rows([events]))}) AS e({COLUMNS})")
        assert elapsed_parts(table, UNKNOWN) == UNKNOWN_PARTS
