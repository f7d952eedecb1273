"""The sites of kernels of which only the order is known in which they were launched: as tools of GPUs tell it.

A program launches kernels one after the other, in an order that its schedule allows: the launches of a run are a word
that the automaton of all its dispatches accepts. Its states are the dispatches that the host program can hand in; what
is left of them for a launch, between those before and behind it, are the sites that it may be of. Sets of states are
numbered, and what follows on each is looked up, as runs repeat one call thousands of times.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tracemap.attribution.join.automaton import LOADING, Automaton, States, automaton_of
from tracemap.attribution.join.entries import MOST_STATES, OrderUntold
from tracemap.graph.model import TraceGraph, entry_name
from tracemap.units import UNKNOWN, Integer


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
