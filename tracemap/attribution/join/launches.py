"""The sites of kernels of which only the order is known in which they were launched: as tools of GPUs tell it.

A program launches kernels one after the other, in an order that its schedule allows: the launches of a run are a word
that the automaton of all its dispatches accepts. Its states are the dispatches that the host program can hand in; what
is left of them for a launch, between those before and behind it, are the sites that it may be of. Sets of states are
numbered, and what follows on each is looked up, as runs repeat one call thousands of times.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tracemap.attribution.join.ways import merged
from tracemap.graph.model import TraceGraph
from tracemap.graph.program import Command, Schedule
from tracemap.units import UNKNOWN, Text

States = frozenset[int]


@dataclass(frozen=True, slots=True)
class State:
    """A dispatch that the program can hand in.

    `site` is unknown where the compiler made one command of several sites; `begins`: it is the first of a call;
    `loading`: it runs while the program is loaded, before all calls.
    """

    kernel: str
    site: Text
    begins: bool
    loading: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch was: `states` that it may have been in, all of one kernel; none: no kernel of the program."""

    states: tuple[State, ...]

    @property
    def site(self) -> Text:
        """Where it was launched from, if that is known."""
        sites = {state.site for state in self.states}
        return sites.pop() if len(sites) == 1 else UNKNOWN

    @property
    def loading(self) -> bool:
        """Whether it surely ran while the program was loaded."""
        return bool(self.states) and all(state.loading for state in self.states)

    @property
    def beginning(self) -> bool | None:
        """Whether it is the first of a call; None: that is not known."""
        begins = {state.begins for state in self.states}
        return None if len(begins) > 1 else True in begins


@dataclass(frozen=True)
class Order:
    """The launches of a run: what each was, by its number in `kinds`.

    `whole`: they are those of whole calls; `filtered`: but for those of some kernels, of which there is none.
    """

    kinds: tuple[Launch, ...]
    numbers: Sequence[int]
    whole: bool
    filtered: bool

    @cached_property
    def invocations(self) -> Sequence[int | None]:
        """For each launch the number of its call, from 0; None for all where it is not known which begin one.

        What runs at load counts to the first call, as it does in profiles.
        """
        begin = [kind.beginning for kind in self.kinds]
        if None in begin:
            return [None] * len(self.numbers)
        begun = itertools.accumulate(begin[number] is True for number in self.numbers)
        return [max(count - 1, 0) for count in begun]


@dataclass
class Automaton:
    """All dispatches of a program, and which may follow on which; `first` may come first, `last` end a call."""

    states: list[State] = field(default_factory=list)
    following: list[States] = field(default_factory=list)
    first: States = frozenset()
    last: States = frozenset()

    @cached_property
    def kernels(self) -> frozenset[str]:
        """All that are dispatched."""
        return frozenset(state.kernel for state in self.states)


def ordered(graph: TraceGraph, kernels: Sequence[str]) -> Order | None:
    """What launches were, given their kernels in order; None: no way through the program has these.

    Launches of kernels that are none of the program's are passed over, as those of other modules; and where tools have
    left out some kernels, the order of the others is looked at. What begins or ends amid a call is taken for a part.
    """
    named = [graph.kernel_of_entry.get(kernel) for kernel in kernels]
    ours = [kernel for kernel in named if kernel is not None]
    for seen in (None, frozenset(ours)):
        automaton, found = automaton_of(graph, seen), None
        if automaton is not None and automaton.kernels.issuperset(ours):
            ways = _Ways(automaton)
            found = ways.fit(ours, whole=True) or ways.fit(ours, whole=False)
        if found is not None:
            return _with_others(replace(found, filtered=seen is not None), named)
    return None


def _with_others(found: Order, named: Sequence[str | None]) -> Order:
    """The order with those of other modules in it."""
    if len(found.numbers) == len(named):
        return found
    numbers = iter(found.numbers)
    other = len(found.kinds)
    every = [other if kernel is None else next(numbers) for kernel in named]
    return replace(found, kinds=(*found.kinds, Launch(())), numbers=every)


# ---- the automaton


def automaton_of(graph: TraceGraph, seen: frozenset[str] | None = None) -> Automaton | None:
    """The dispatches of a program and their order; of the kernels in `seen` alone, where it is given.

    None: the order in which functions hand in their work is not known.
    """
    if not graph.schedules or len(graph.schedules) != len(graph.functions):
        return None
    made = _Making(graph, seen)
    made.add_calls(merged(graph.schedules))
    made.add_loading()
    return made.automaton


@dataclass
class _Making:
    """Makes the automaton: states of the first dispatches of calls stand beside those of the same ones within."""

    graph: TraceGraph
    seen: frozenset[str] | None
    automaton: Automaton = field(default_factory=Automaton)

    def add_calls(self, schedule: Schedule) -> None:
        """Add what calls hand in."""
        made = self.automaton
        chains = [self._chains_of(submission.buffers) for submission in schedule.submissions]
        runs = {begins: [[self._added(chain, begins=begins) for chain in each] for each in chains] for begins in _BOTH}
        entries = _Entries(schedule, runs[False])
        made.first = _Entries(schedule, runs[True]).of(schedule.first).states
        for every in runs.values():
            for submission, chains_here in zip(schedule.submissions, every, strict=True):
                after = entries.of(submission.next)
                ends = submission.last or after.ends
                for chain in filter(None, chains_here):
                    made.following[chain[-1]] = after.states | (made.first if ends else frozenset())
                    made.last |= {chain[-1]} if ends else frozenset()

    def add_loading(self) -> None:
        """Add what runs before all calls; a run may have been recorded from after it on."""
        made = self.automaton
        buffers = [buffer for buffer in self.graph.command_buffers if buffer.initializer]
        commands = [command for buffer in buffers for command in buffer.commands]
        chain = self._added([*filter(self._is_seen, commands)], begins=False, loading=True)
        if chain:
            made.following[chain[-1]] = made.first
            made.last |= {chain[-1]}
            made.first |= {chain[0]}

    def _chains_of(self, ordinals: Iterable[int]) -> list[list[Command]]:
        buffers = [self.graph.command_buffers[ordinal] for ordinal in ordinals]
        return [[*filter(self._is_seen, buffer.commands)] for buffer in buffers] or [[]]

    def _is_seen(self, command: Command) -> bool:
        return command.kind == "dispatch" and (self.seen is None or command.kernel in self.seen)

    def _added(self, commands: Sequence[Command], *, begins: bool, loading: bool = False) -> list[int]:
        """Add dispatches that follow on one another; the numbers of their states."""
        numbers = []
        for place, command in enumerate(commands):
            site = UNKNOWN if command.merged else command.site
            numbers.append(len(self.automaton.states))
            self.automaton.states.append(State(str(command.kernel), site, begins and place == 0, loading))
            self.automaton.following.append(frozenset({numbers[-1] + 1}) if place + 1 < len(commands) else frozenset())
        return numbers


_BOTH = (False, True)


@dataclass(frozen=True, slots=True)
class _Entry:
    """The states that may come next, and whether the call may end without any."""

    states: States
    ends: bool


@dataclass(frozen=True, slots=True)
class _Entries:
    """Where submissions are entered: what hands in no dispatch, such as a transfer, is passed through."""

    schedule: Schedule
    chains: Sequence[Sequence[Sequence[int]]]

    def of(self, submissions: Iterable[int]) -> _Entry:
        """The states in which any of these submissions is entered, or one behind it."""
        states: set[int] = set()
        ends = False
        passed: set[int] = set()
        waiting = list(submissions)
        while waiting:
            number = waiting.pop()
            if number in passed:
                continue
            passed.add(number)
            states.update(chain[0] for chain in self.chains[number] if chain)
            if not all(self.chains[number]):
                waiting += self.schedule.submissions[number].next
                ends = ends or self.schedule.submissions[number].last
        return _Entry(frozenset(states), ends)


# ---- the ways through it


@dataclass
class _Ways:
    """Sets of states under numbers, and what follows on each for a kernel."""

    automaton: Automaton
    sets: dict[States, int] = field(default_factory=dict)
    listed: list[States] = field(default_factory=list)
    after: dict[tuple[int, str], int] = field(default_factory=dict)
    before: dict[tuple[int, int], int] = field(default_factory=dict)

    def fit(self, kernels: Sequence[str], *, whole: bool) -> Order | None:
        """What each launch may be; `whole`: the first is the first of the program or of a call, the last ends one."""
        reached = self._forward(kernels, self.automaton.first if whole else self._everywhere)
        if reached is None or not reached:
            return None
        ending = self.listed[reached[-1]] & self.automaton.last if whole else self.listed[reached[-1]]
        if not ending:
            return None
        kept = self._backward(reached, self._number(ending))
        kinds = {number: place for place, number in enumerate(dict.fromkeys(kept))}
        return Order(tuple(map(self._launch, kinds)), [kinds[number] for number in kept], whole, filtered=False)

    @cached_property
    def _everywhere(self) -> States:
        """All states that can be reached: nothing says where the run began."""
        found = set(self.automaton.first)
        waiting = list(found)
        while waiting:
            new = self.automaton.following[waiting.pop()] - found
            found |= new
            waiting += new
        return frozenset(found)

    def _launch(self, number: int) -> Launch:
        return Launch(tuple(self.automaton.states[state] for state in sorted(self.listed[number])))

    def _number(self, states: States) -> int:
        if states not in self.sets:
            self.sets[states] = len(self.listed)
            self.listed.append(states)
        return self.sets[states]

    def _forward(self, kernels: Sequence[str], first: States) -> list[int] | None:
        """For each launch the number of the states in which a way reaches it; None: there is no way."""
        reached: list[int] = []
        for kernel in kernels:
            if not reached:
                reached.append(self._number(self._of_kernel(first, kernel)))
            else:
                key = (reached[-1], kernel)
                if key not in self.after:
                    self.after[key] = self._number(self._of_kernel(self._following(self.listed[key[0]]), kernel))
                reached.append(self.after[key])
            if not self.listed[reached[-1]]:
                return None
        return reached

    def _of_kernel(self, states: States, kernel: str) -> States:
        return frozenset(state for state in states if self.automaton.states[state].kernel == kernel)

    def _following(self, states: States) -> States:
        return frozenset[int]().union(*(self.automaton.following[state] for state in states))

    def _backward(self, reached: Sequence[int], ending: int) -> list[int]:
        """Of the states reached those from which the end can be."""
        kept = [ending]
        for here in reversed(reached[:-1]):
            key = (here, kept[-1])
            if key not in self.before:
                behind = self.listed[kept[-1]]
                leading = (
                    state for state in self.listed[here] if not behind.isdisjoint(self.automaton.following[state])
                )
                self.before[key] = self._number(frozenset(leading))
            kept.append(self.before[key])
        return kept[::-1]
