"""Launches known only by order, compared with a search over all orders; and its cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.builders import graph, op
from tracemap.attribution.join.schedule_nfa import identify_launches
from tracemap.core.functions import Function
from tracemap.core.units import UNKNOWN
from tracemap.map.model import Command, CommandBuffer, Kernel, Schedule, Submission, TraceGraph

pytestmark = pytest.mark.quick

KERNELS = ("a", "b")


@st.composite
def programs(draw: st.DrawFn) -> TraceGraph:
    """Up to four places with any edges, of buffers with up to two dispatches; one buffer may run at load."""
    chains = draw(st.lists(st.lists(st.sampled_from(KERNELS), max_size=2), min_size=1, max_size=3))
    loading = draw(st.lists(st.sampled_from(KERNELS), max_size=2))
    numbers = itertools.count()

    def buffer(ordinal: int, kernels: Sequence[str], *, initializer: bool) -> CommandBuffer:
        commands = tuple(Command("dispatch", kernel, f"site{next(numbers)}") for kernel in kernels)
        return CommandBuffer(ordinal, "f", False, initializer, commands)

    buffers = [buffer(ordinal, chain, initializer=False) for ordinal, chain in enumerate(chains)]
    buffers.append(buffer(len(chains), loading, initializer=True))
    count = draw(st.integers(1, 4))
    places = st.lists(st.integers(0, count - 1), max_size=3, unique=True).map(tuple)
    choices = st.lists(st.integers(0, len(chains) - 1), min_size=1, max_size=2, unique=True).map(tuple)
    submissions = tuple(Submission(draw(choices), UNKNOWN, draw(places), draw(st.booleans())) for _ in range(count))
    first = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2, unique=True).map(tuple))
    return structs.replace(
        graph([op(1, 1)], []),
        kernels=tuple(Kernel(kernel, ()) for kernel in KERNELS),
        command_buffers=tuple(buffers),
        schedules=(Schedule("f", first, submissions),),
        functions=(Function("f", ()),),
    )


Launched = tuple[str, str]
"""A kernel and its site."""


def calls_of(made: TraceGraph, most: int) -> set[tuple[Launched, ...]]:
    """What a call can launch, if it is no more than so much and passes no more than seven places."""
    (schedule,) = made.schedules
    found: set[tuple[Launched, ...]] = set()

    def go(place: int, so_far: tuple[Launched, ...], passed: int) -> None:
        for ordinal in schedule.submissions[place].buffers:
            commands = made.command_buffers[ordinal].commands
            here = (*so_far, *((str(each.kernel), str(each.site)) for each in commands))
            if len(here) > most:
                continue
            if schedule.submissions[place].last:
                found.add(here)
            if passed:
                for after in schedule.submissions[place].next:
                    go(after, here, passed - 1)

    for place in schedule.first:
        go(place, (), 7)
    return found


def whole_runs(made: TraceGraph, length: int) -> Iterator[tuple[Launched, ...]]:
    """All runs of so many launches: with or without what runs at load, then whole calls."""
    calls = {call for call in calls_of(made, length) if call}
    loading = tuple((str(each.kernel), str(each.site)) for each in made.command_buffers[-1].commands)
    waiting = [start for start in {(), loading} if len(start) <= length]
    while waiting:
        start = waiting.pop()
        if len(start) == length:
            yield start
            continue
        waiting += [(*start, *call) for call in calls if len(start) + len(call) <= length]


@settings(max_examples=200, deadline=None)
@given(made=programs(), data=st.data())
def test_whole_calls_are_told_as_trying_all_ways_tells_them(made: TraceGraph, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 4))
    kernels = data.draw(st.lists(st.sampled_from(KERNELS), min_size=length, max_size=length))
    expected = sites_by_trying(made, kernels)
    if not expected:
        return
    order = identify_launches(made, kernels)
    assert order.whole
    assert [set(order.kinds[number].sites) for number in order.numbers] == expected


def sites_by_trying(made: TraceGraph, kernels: Sequence[str]) -> list[set[str]]:
    """For each launch the sites that it has in any run of these; empty: there is none."""
    runs = [run for run in whole_runs(made, len(kernels)) if [kernel for kernel, _ in run] == list(kernels)]
    return [{site for _, site in launches} for launches in zip(*runs, strict=True)]


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(made=programs(), data=st.data())
def test_the_truth_is_among_what_is_told(made: TraceGraph, data: st.DataObject) -> None:
    """Of whole runs, of parts of them, and of those without a kernel."""
    runs = sorted(run for length in range(1, 6) for run in whole_runs(made, length))
    if not runs:
        return
    run = data.draw(st.sampled_from(runs))
    begin = data.draw(st.integers(0, len(run) - 1))
    parts: dict[str, Sequence[Launched]] = {
        "whole": run,
        "part": run[begin : begin + data.draw(st.integers(1, len(run)))],
        "filtered": [each for each in run if each[0] == run[0][0]],
    }
    some = parts[data.draw(st.sampled_from(list(parts)))]
    order = identify_launches(made, [kernel for kernel, _ in some])
    if order.whole and len(some) < len(run):
        return  # what may be whole calls is taken for these
    for number, (_, site) in zip(order.numbers, some, strict=True):
        assert site in order.kinds[number].sites


def straight(kernels: Sequence[str]) -> TraceGraph:
    """A program that dispatches these, each from a site of its own."""
    commands = tuple(Command("dispatch", kernel, f"site{number}") for number, kernel in enumerate(kernels))
    return structs.replace(
        graph([op(1, 1)], []),
        kernels=tuple(Kernel(kernel, ()) for kernel in dict.fromkeys(kernels)),
        command_buffers=(CommandBuffer(0, "f", False, False, commands),),
        schedules=(Schedule("f", (0,), (Submission((0,), UNKNOWN, (), last=True),)),),
        functions=(Function("f", ()),),
    )


def test_calls_that_are_cut_have_no_numbers() -> None:
    order = identify_launches(straight("abc"), "bcabcabcab")
    assert order.invocations() == [None, None, 0, 0, 0, 1, 1, 1, None, None]
    assert (order.whole, order.calls) == (False, UNKNOWN)
    whole = identify_launches(straight("abc"), "abcabc")
    assert (whole.invocations(), whole.calls) == ([0, 0, 0, 1, 1, 1], 2)


def test_a_filter_is_taken_for_one() -> None:
    """A kernel that is not there at all; where the others may be a part of the run, too, they are of either."""
    order = identify_launches(straight("aab"), "aaaa")
    assert [order.kinds[number].sites for number in order.numbers] == [("site0",), ("site1",)] * 2
    assert (order.filtered, order.calls) == (True, 2)
    either = identify_launches(straight("aaba"), "aaa")
    assert [set(either.kinds[number].sites) for number in either.numbers] == [
        {"site0", "site3"},
        {"site0", "site1"},
        {"site1", "site3"},
    ]
    assert (either.whole, either.calls) == (False, UNKNOWN)


def test_names_of_code_are_those_that_ptx_can_have() -> None:
    """Each byte that PTX does not know is one sign: of two in UTF-8 there are two."""
    order = identify_launches(straight(["f$é.x", "g"]), ["f____x", "g"])
    assert [order.kinds[number].sites for number in order.numbers] == [("site0",), ("site1",)]


@pytest.mark.long
def test_what_is_too_much_is_not_looked_at() -> None:
    """Thousands of equal sites, and a run that does not begin with the first: any may be any."""
    from tracemap.attribution.join.schedule_nfa import UnknownOrder

    many = [*"a" * 6000, "c"]
    assert identify_launches(straight(many), many).whole
    with pytest.raises(UnknownOrder, match="too many paths"):
        identify_launches(straight(many), many[1:])
