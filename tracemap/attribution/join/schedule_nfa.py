"""The schedule of a program as an automaton, and the sites of launches whose order alone is known."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import networkx as nx

from tracemap.attribution.join.ways import merged
from tracemap.graph.model import Command, Schedule, TraceGraph, entry_name
from tracemap.units import UNKNOWN, Integer

# ---- entries
#
# With which dispatches the submissions of a schedule begin: what hands in none, as a transfer, is passed through.


@dataclass(frozen=True, slots=True)
class Entry:
    """The dispatches that may come next, by their numbers, and whether the call may end without any."""

    states: frozenset[int]
    ends: bool


MOST_STATES: Final = 4_000_000
"""Of all sets together that are looked at: some hundred megabytes; where launches tell little there are the most."""


class OrderUntold(Exception):
    """The order of launches does not tell their sites; the message says why."""


_NOTHING = Entry(frozenset(), ends=False)


@dataclass(frozen=True)
class Entries:
    """Where submissions are entered; `chains`: of each the dispatches of the buffers that it may execute."""

    schedule: Schedule
    chains: Sequence[Sequence[Sequence[int]]]

    def of(self, submissions: Iterable[int]) -> Entry:
        """What comes where any of these submissions is entered.

        Raises:
            OrderUntold: see `_by_submission`.
        """
        return _united([self._by_submission[number] for number in submissions])

    @cached_property
    def _by_submission(self) -> dict[int, Entry]:
        """Each once, those behind first: of submissions in a circle that are passed through all have the same.

        Raises:
            OrderUntold: too much may come next, as behind thousands of submissions that each may be passed.
        """
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(len(self.chains)))
        graph.add_edges_from((number, after) for number in graph for after in self._passed_to(number))
        circles: nx.DiGraph[int] = nx.condensation(graph)
        found: dict[int, Entry] = {}
        size = 0
        for circle in reversed(list(nx.topological_sort(circles))):
            members = sorted(circles.nodes[circle]["members"])
            behind = [found[after] for number in members for after in self._passed_to(number) if after in found]
            entry = _united([*map(self._own, members), *behind])
            size += len(entry.states)
            if size > MOST_STATES:
                raise OrderUntold("too much may follow on the launches of the program")
            found.update(dict.fromkeys(members, entry))
        return found

    def _passed_to(self, number: int) -> Sequence[int]:
        return () if all(self.chains[number]) else self.schedule.submissions[number].next

    def _own(self, number: int) -> Entry:
        states = frozenset(chain[0] for chain in self.chains[number] if chain)
        return Entry(states, ends=not all(self.chains[number]) and self.schedule.submissions[number].last)


def _united(entries: Sequence[Entry]) -> Entry:
    some = [entry for entry in dict.fromkeys(entries) if entry != _NOTHING]
    if len(some) <= 1:  # as nearly always: sets are large, and shared
        return some[0] if some else _NOTHING
    states = frozenset[int]().union(*(entry.states for entry in some))
    return Entry(states, any(entry.ends for entry in some))


# ---- automaton
#
# The automaton of what a program dispatches: its words are the launches of runs.
#
# Kernels go by the names that their code has on a device (`entry_name`).


States = frozenset[int]


@dataclass(frozen=True, slots=True)
class State:
    """A dispatch that the program can hand in.

    `sites`: several where the compiler made one command of them; `begins`: it is the first of a call; `function`: the
    number of the entry point; -1: it runs while the program is loaded, before all calls.
    """

    kernel: str
    sites: tuple[str, ...]
    begins: bool
    function: int


LOADING = -1


@dataclass
class Automaton:
    """All dispatches of a program, and which may follow on which; `first` may come first, `last` end a call."""

    states: list[State] = field(default_factory=list)
    following: list[States] = field(default_factory=list)
    first: States = frozenset()
    last: States = frozenset()
    all_seen: bool = True

    @cached_property
    def kernels(self) -> frozenset[str]:
        """All that are dispatched."""
        return frozenset(state.kernel for state in self.states)


def automaton_of(graph: TraceGraph, seen: frozenset[str] | None = None) -> Automaton:
    """The dispatches of a program and their order; of the kernels in `seen` alone, where it is given.

    Raises:
        OrderUntold: the order in which functions hand in their work is not known, or there is too much to choose from.
    """
    if not graph.schedules or len(graph.schedules) != len(graph.functions):
        raise OrderUntold("the map does not tell in which order the program launches kernels")
    made = _Making(graph, seen)
    made.add_calls()
    made.add_loading()
    return made.automaton


@dataclass
class _Making:
    graph: TraceGraph
    seen: frozenset[str] | None
    automaton: Automaton = field(default_factory=Automaton)

    def add_calls(self) -> None:
        """Add what calls hand in."""
        made = self.automaton
        schedule = merged(self.graph.schedules)
        counts = (len(each.submissions) for each in self.graph.schedules)
        functions = [number for number, count in enumerate(counts) for _ in range(count)]
        chains = [
            [self._added(chain, function) for chain in self._chains_of(submission.buffers)]
            for submission, function in zip(schedule.submissions, functions, strict=True)
        ]
        entries = Entries(schedule, chains)
        first = entries.of(schedule.first)
        ending = []
        for submission, chains_here in zip(schedule.submissions, chains, strict=True):
            after = entries.of(submission.next)
            for chain in filter(None, chains_here):
                made.following[chain[-1]] = after.states
                if submission.last or after.ends:
                    ending.append(chain[-1])
        made.all_seen = not first.ends
        self._begin(first.states, frozenset(ending))

    def _begin(self, first: States, ending: States) -> None:
        """Let calls begin: states of their first dispatches stand beside those of the same ones within."""
        made = self.automaton
        begins = {}
        for state in sorted(first):
            begins[state] = len(made.states)
            made.states.append(replace(made.states[state], begins=True))
            made.following.append(made.following[state])
        made.first = frozenset(begins.values())
        made.last = ending | {copy for state, copy in begins.items() if state in ending}
        together: dict[States, States] = {}
        for state in made.last:
            after = made.following[state]
            made.following[state] = together.setdefault(after, after | made.first)

    def add_loading(self) -> None:
        """Add what runs before all calls; a run may have been recorded from after it on."""
        made = self.automaton
        buffers = [buffer for buffer in self.graph.command_buffers if buffer.initializer]
        commands = [command for buffer in buffers for command in buffer.commands]
        chain = self._added([*filter(self._is_seen, commands)], LOADING)
        if chain:
            made.following[chain[-1]] = made.first
            made.last |= {chain[-1]}
            made.first |= {chain[0]}

    def _chains_of(self, ordinals: Iterable[int]) -> list[list[Command]]:
        buffers = [self.graph.command_buffers[ordinal] for ordinal in ordinals]
        return [[*filter(self._is_seen, buffer.commands)] for buffer in buffers] or [[]]

    def _is_seen(self, command: Command) -> bool:
        return command.kind == "dispatch" and (self.seen is None or entry_name(str(command.kernel)) in self.seen)

    def _added(self, commands: Sequence[Command], function: int) -> list[int]:
        """Add dispatches that follow on one another; the numbers of their states."""
        made = self.automaton
        numbers = []
        for command in commands:
            numbers.append(len(made.states))
            sites = tuple(str(site) for site in (command.site, *command.merged) if site is not UNKNOWN)
            made.states.append(State(entry_name(str(command.kernel)), sites, begins=False, function=function))
            made.following.append(frozenset({numbers[-1] + 1}))
        if numbers:
            made.following[numbers[-1]] = frozenset()
        return numbers


# ---- launches
#
# The sites of kernels of which only the order is known in which they were launched: as tools of GPUs tell it.
#
# A program launches kernels one after the other, in an order that its schedule allows: the launches of a run are a
# word that the automaton of all its dispatches accepts. Its states are the dispatches that the host program can hand
# in; what is left of them for a launch, between those before and behind it, are the sites that it may be of. Sets of
# states are numbered, and what follows on each is looked up, as runs repeat one call thousands of times.


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch may have been: the sites (none: no kernel of the program), and of which functions it was.

    `beginning`: whether it is the first of a call; None: that is not known.
    """

    sites: tuple[str, ...]
    functions: frozenset[int]
    beginning: bool | None

    @property
    def loading(self) -> bool:
        """Whether it surely ran while the program was loaded."""
        return self.functions == {LOADING}


@dataclass(frozen=True)
class Order:
    """The launches of a run: what each was, by its number in `kinds`.

    `whole`: they are those of whole calls, else the first or the last call may be cut; `filtered`: but for those of
    some kernels, of which there is none; `all_seen`: each call launches something.
    """

    kinds: tuple[Launch, ...]
    numbers: Sequence[int]
    whole: bool
    filtered: bool
    all_seen: bool

    @cached_property
    def begun(self) -> Sequence[int] | None:
        """For each launch how many calls have begun with it or before; None: it is not known which begin one."""
        begin = [kind.beginning for kind in self.kinds]
        if None in begin:
            return None
        return list(itertools.accumulate(begin[number] is True for number in self.numbers))

    @property
    def calls(self) -> Integer:
        """How many calls there were; unknown where some may be cut, launch nothing, or be of another function."""
        functions = frozenset[int]().union(*(kind.functions for kind in self.kinds)) - {LOADING}
        if not (self.whole and self.all_seen and self.begun) or len(functions) > 1:
            return UNKNOWN
        return self.begun[-1]

    def invocations(self) -> list[int | None]:
        """For each launch the number of its call, from 0; None: not known, or the call is cut.

        What runs at load counts to the first call, as it does in profiles.
        """
        if self.begun is None:
            return [None] * len(self.numbers)
        cut = 0 if self.whole else self.begun[-1]
        loading = [kind.loading for kind in self.kinds]
        return [
            count - 1 if 0 < count != cut else 0 if loading[number] else None
            for count, number in zip(self.begun, self.numbers, strict=True)
        ]


def ordered(graph: TraceGraph, kernels: Sequence[str]) -> Order:
    """What launches were, given the names of their code in order.

    Launches of kernels that are none of the program's are passed over, as those of other modules. Where they are not
    those of whole calls, they are a part of a run, or tools have left out some kernels; what fits both may be either.

    Raises:
        OrderUntold: no way through the program has these, or it is not known which ways there are, or too many are.
    """
    own = {entry_name(kernel.name) for kernel in graph.kernels}
    ours = [kernel for kernel in kernels if kernel in own]
    if not ours:
        raise OrderUntold("no kernel of the program was launched")
    every = automaton_of(graph)
    found = _Ways(every).fit(ours, whole=True) or _otherwise(graph, every, ours)
    if found is None:
        raise OrderUntold("the kernels were not launched in an order that the program has")
    return _with_others(found, [kernel in own for kernel in kernels])


def _otherwise(graph: TraceGraph, every: Automaton, kernels: Sequence[str]) -> Order | None:
    """What launches were that are not those of whole calls."""
    part = _Ways(every).fit(kernels, whole=False)
    seen = frozenset(kernels)
    if seen == every.kernels:
        return part
    some = automaton_of(graph, seen)
    filtered = _Ways(some).fit(kernels, whole=True)
    if part is None:
        found = filtered or _Ways(some).fit(kernels, whole=False)
        return None if found is None else replace(found, filtered=True)
    return part if filtered is None else _either(part, filtered)


def _either(one: Order, other: Order) -> Order:
    """What is left where two readings fit."""
    pairs = list(zip(one.numbers, other.numbers, strict=True))
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    kinds = (_both(one.kinds[first], other.kinds[second]) for first, second in numbers)
    return Order(tuple(kinds), [numbers[pair] for pair in pairs], whole=False, filtered=True, all_seen=False)


def _both(one: Launch, other: Launch) -> Launch:
    sites = tuple(dict.fromkeys((*one.sites, *other.sites)))
    beginning = one.beginning if one.beginning is other.beginning else None
    return Launch(sites, one.functions | other.functions, beginning)


def _with_others(found: Order, is_ours: Sequence[bool]) -> Order:
    """The order with the launches of other modules in it."""
    if all(is_ours):
        return found
    numbers = iter(found.numbers)
    every = [next(numbers) if ours else len(found.kinds) for ours in is_ours]
    return replace(found, kinds=(*found.kinds, Launch((), frozenset(), beginning=False)), numbers=every)


@dataclass
class _Ways:
    """Sets of states under numbers, and what follows on each for a kernel."""

    automaton: Automaton
    sets: dict[States, int] = field(default_factory=dict)
    listed: list[States] = field(default_factory=list)
    after: dict[tuple[int, str], int] = field(default_factory=dict)
    before: dict[tuple[int, int], int] = field(default_factory=dict)
    size: int = 0

    def fit(self, kernels: Sequence[str], *, whole: bool) -> Order | None:
        """What each launch may be; `whole`: the first is the first of the program or of a call, the last ends one.

        None: there is no way.

        Raises:
            OrderUntold: there are too many.
        """
        reached = self._forward(kernels, self.automaton.first if whole else self._everywhere)
        if reached is None:
            return None
        ending = self.listed[reached[-1]] & self.automaton.last if whole else self.listed[reached[-1]]
        if not ending:
            return None
        kept = self._backward(reached, self._number(ending))
        kinds = {number: place for place, number in enumerate(dict.fromkeys(kept))}
        launches = tuple(map(self._launch, kinds))
        return Order(launches, [kinds[number] for number in kept], whole, False, self.automaton.all_seen)

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
        states = [self.automaton.states[state] for state in sorted(self.listed[number])]
        begins = {state.begins for state in states}
        return Launch(
            tuple(dict.fromkeys(site for state in states for site in state.sites)),
            frozenset(state.function for state in states),
            begins.pop() if len(begins) == 1 else None,
        )

    def _number(self, states: States) -> int:
        if states not in self.sets:
            self.size += len(states)
            if self.size > MOST_STATES:
                raise OrderUntold("too many ways through the program launch kernels in this order")
            self.sets[states] = len(self.listed)
            self.listed.append(states)
        return self.sets[states]

    def _forward(self, kernels: Sequence[str], first: States) -> list[int] | None:
        """For each launch the number of the states in which a way reaches it; None: there is no way."""
        reached = [self._number(self._of_kernel(first, kernels[0]))]
        for kernel in kernels[1:]:
            if not self.listed[reached[-1]]:
                return None
            key = (reached[-1], kernel)
            if key not in self.after:
                self.after[key] = self._number(self._of_kernel(self._following(self.listed[key[0]]), kernel))
            reached.append(self.after[key])
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
                behind, following = self.listed[kept[-1]], self.automaton.following
                leading = (state for state in self.listed[here] if not behind.isdisjoint(following[state]))
                self.before[key] = self._number(frozenset(leading))
            kept.append(self.before[key])
        return kept[::-1]
