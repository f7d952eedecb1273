"""Dispatches found by the order of submissions, compared with a search over all orders."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import graph, op, site
from tracemap.attribution.join.schedule_nfa import Meanings, meanings_of, merged, narrowed
from tracemap.attribution.join.targets import by_creation
from tracemap.attribution.model import MOST_SLOWEST, SlowCall
from tracemap.attribution.scan import rows as rows_of_runs
from tracemap.attribution.scan.connection import Tables, open_tables
from tracemap.attribution.scan.scan import Scan, percentiles, scan
from tracemap.attribution.scan.sums import pooled_at_once, pooled_in_steps
from tracemap.core.units import UNKNOWN
from tracemap.map.model import Command, CommandBuffer, Schedule, Submission, TraceGraph
from tracemap.runs.model import RecordedBuffer
from tracemap.runs.runfile import read_run


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Up to five places with any edges; each runs one or two of three buffers."""
    count = draw(st.integers(1, 5))
    places = st.lists(st.integers(0, count - 1), max_size=3, unique=True).map(tuple)
    submissions = tuple(
        Submission(
            tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True))),
            UNKNOWN,
            draw(places),
            draw(st.booleans()),
        )
        for _ in range(count)
    )
    return Schedule("f", draw(places), submissions)


SEEN = st.lists(st.frozensets(st.integers(0, 2), min_size=1), min_size=1, max_size=5)


def whole_ways(schedule: Schedule, length: int) -> Iterator[tuple[int, ...]]:
    """All ways of one call with as many submissions."""
    for way in itertools.product(range(len(schedule.submissions)), repeat=length):
        follows = all(after in schedule.submissions[place].next for place, after in itertools.pairwise(way))
        if way[0] in schedule.first and follows and schedule.submissions[way[-1]].last:
            yield way


@settings(max_examples=300)
@given(schedule=schedules(), seen=SEEN)
def test_one_call_is_told_as_trying_all_ways_tells_it(schedule: Schedule, seen: list[Meanings]) -> None:
    expected: list[set[int | str]] = [set() for _ in seen]
    for way in whole_ways(schedule, len(seen)):
        fitting = [meanings_of(schedule.submissions[place]) & can for place, can in zip(way, seen, strict=True)]
        if all(fitting):
            for place, meanings in enumerate(fitting):
                expected[place] |= meanings
    told = narrowed(schedule, seen, one_call=True)
    if expected[0]:
        assert [set(each) for each in told] == expected
    else:
        assert all(each <= can for each, can in zip(told, seen, strict=True))


def test_several_calls_and_an_unfinished_one() -> None:
    """A B, A B, A: of buffers that all look alike."""
    places = (Submission((0,), UNKNOWN, (1,), last=False), Submission((1,), UNKNOWN, (), last=True))
    either: Meanings = frozenset({0, 1})
    told = narrowed(Schedule("f", (0,), places), [either] * 5, one_call=False)
    assert told == [frozenset({each}) for each in (0, 1, 0, 1, 0)]


def test_what_no_way_explains_stays_as_it_was() -> None:
    places = (Submission((0,), UNKNOWN, (), last=True),)
    seen: list[Meanings] = [frozenset({1, 2}), frozenset({0, 1})]
    assert narrowed(Schedule("f", (0,), places), seen, one_call=True) == seen


def test_merged_schedules_have_the_ways_of_all() -> None:
    one = Schedule("f", (0,), (Submission((0,), UNKNOWN, (), last=True),))
    other = Schedule("g", (0,), (Submission((1,), UNKNOWN, (1,), last=False), Submission((0,), UNKNOWN, (), last=True)))
    both: Meanings = frozenset({0, 1})
    assert narrowed(merged([one, other]), [both, both], one_call=True) == [frozenset({1}), frozenset({0})]
    assert narrowed(merged([one, other]), [both], one_call=True) == [frozenset({0})]


def load_time(count: int, kinds: Sequence[int]) -> list[CommandBuffer]:
    """Memoized buffers; those of a kind look alike."""
    return [
        CommandBuffer(number, "f", True, False, (Command("dispatch", f"k{kinds[number]}", "site0"),))
        for number in range(count)
    ]


@settings(max_examples=300)
@given(data=st.data())
def test_creation_order_is_told_as_trying_all_numberings_tells_it(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    kinds = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    numbers = sorted(data.draw(st.sets(st.integers(1, count + 2), min_size=count, max_size=count)))
    ran = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    static = load_time(count, kinds)
    recorded = [RecordedBuffer(numbers[ordinal], False, kinds[ordinal]) for ordinal in ran]
    matches = [[buffer for buffer in static if kinds[buffer.ordinal] == kind] for kind in (0, 1)]
    expected: dict[int, set[int]] = {buffer.id: set() for buffer in recorded}
    for ids in itertools.combinations(range(1, max(numbers) + count + 1), count):
        place_of = {number: ordinal for ordinal, number in enumerate(ids)}
        chosen = {buffer.id: place_of.get(buffer.id, -1) for buffer in recorded}
        if all(chosen[b.id] >= 0 and kinds[chosen[b.id]] == b.program for b in recorded):
            for number, ordinal in chosen.items():
                expected[number].add(ordinal)
    found = by_creation(static, matches, recorded)
    assert {number: set(ordinals) for number, ordinals in found.items()} == expected


def test_numbers_that_cannot_be_fall_back_to_their_order() -> None:
    """Numbers that leave no room for what was created between: order alone decides."""
    static = load_time(4, [0, 1, 1, 0])
    recorded = [RecordedBuffer(1, False, 0), RecordedBuffer(2, False, 0)]
    assert by_creation(static, [[static[0], static[3]], static[1:3]], recorded) == {1: [0], 2: [3]}


VALUES = st.lists(
    st.tuples(st.sampled_from(["k0", "k1", "k2"]), st.one_of(st.integers(0, 50), st.integers(0, 2**60))),
    min_size=1,
    max_size=80,
)


@contextmanager
def scanned(table: Path, made: TraceGraph) -> Iterator[tuple[Tables, Scan]]:
    """What a table's events are for a map, and the connection as long as it is open."""
    runs = [read_run(table)]
    with open_tables(runs) as tables:
        yield tables, scan(tables, made, runs)


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rows=VALUES)
def test_percentiles_in_steps_are_those_at_once(tmp_path: Path, rows: list[tuple[str, int]]) -> None:
    table = tmp_path / "r.csv"
    table.write_text("kernel,duration_ns\n" + "".join(f"{kernel},{value}\n" for kernel, value in rows))
    sites = [site(number, number + 1, kernel=f"k{number}") for number in range(3)]
    made = graph([op(1, 1), op(2, 2), op(3, 3)], sites)
    with scanned(table, made) as (tables, _):
        pools = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 2)]
        tables.fill("pools", "pool INTEGER, target INTEGER", pools)
        assert pooled_in_steps(tables, ["duration_ns"]) == pooled_at_once(tables, ["duration_ns"])


@pytest.mark.parametrize("values", [[5], [1, 2], [1, 1, 1, 9], list(range(100))])
def test_percentiles_are_values_that_occurred(tmp_path: Path, values: list[int]) -> None:
    table = tmp_path / "r.csv"
    table.write_text("kernel,duration_ns\n" + "".join(f"k0,{value}\n" for value in values))
    with scanned(table, graph([op(1, 1)], [site(0, 1, kernel="k0")])) as (_, seen):
        found = seen.by_target[0].per_call["duration_ns"]
    count = len(values)
    expected = [sorted(values)[max(0, -(-count * tenths // 10) - 1)] for tenths in (1, 5, 9)]
    assert [found.p10, found.median, found.p90] == expected


@pytest.mark.long
def test_what_is_kept_compressed_adds_up_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of runs that are large for the memory: 300,000 events, of which the database keeps several groups."""
    table, chance = tmp_path / "r.csv", random.Random(3)
    with table.open("w") as file:
        file.write("kernel,invocation,start_ns,duration_ns\n")
        for row in range(300_000):
            file.write(f"k{chance.randrange(3)},{row // 7},{row * 1000},{chance.randrange(1, 10**6)}\n")
    made = graph([op(1, 1), op(2, 2), op(3, 3)], [site(number, number + 1, kernel=f"k{number}") for number in range(3)])
    found = []
    for part in (0.5, 0.0):
        monkeypatch.setattr(rows_of_runs, "_IN_MEMORY", part)
        with scanned(table, made) as (tables, seen):
            kept = "SELECT database_name FROM duckdb_tables() WHERE table_name = 'resolved'"
            assert (tables.query(kept) == [("compressed_memory",)]) == (part == 0.0)
            pools = [frozenset({0, 1}), frozenset({1, 2})]
            found.append((seen.by_target, seen.slowest, seen.invocations, percentiles(tables, seen, pools)))
    assert found[0] == found[1]
    assert sum(each.events for each in found[0][0].values()) == 300_000


def test_calls_that_are_all_alike_are_no_outliers(tmp_path: Path) -> None:
    """A small file has millions of equal rows: each is as slow as the slowest, and none is kept or sorted for it."""
    table = tmp_path / "r.csv"
    table.write_text("kernel,invocation,duration_ns\n" + "k0,3,5\n" * 20_000, encoding="utf-8")
    with scanned(table, graph([op(1, 1)], [site(0, 1, kernel="k0")])) as (tables, seen):
        assert tables.query("SELECT count(*) FROM outliers") == [(0,)]
    assert seen.slowest[0] == (SlowCall(1, 3, UNKNOWN, 5, UNKNOWN),) * MOST_SLOWEST
    assert seen.by_target[0].events == 20_000
