"""The schedule of a program as an automaton, and the sites of launches of which only the order is known."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from tracemap.core.units import UNKNOWN, Integer
from tracemap.map.model import Command, Schedule, Submission, TraceGraph, entry_name

# ---- ways
#
# The path of a call through the host program, inferred from its sequence of submissions.
#
# The schedule of an entry point is an automaton. Its states are the submissions in the program's text, its input is
# the sequence of a call's submissions. A single submission may match several states; its neighbours often leave only
# one. If several remain, all states on any matching path are candidates.


Meaning = int | str
"""Identity of a submission: the ordinal of the command buffer that it executes, or the id of a transfer."""
Meanings = frozenset[Meaning]


def meanings_of(submission: Submission) -> Meanings:
    """All possible identities of a state of a schedule."""
    return frozenset(submission.buffers) if submission.transfer is UNKNOWN else frozenset({submission.transfer})


def merged(schedules: Sequence[Schedule]) -> Schedule:
    """One schedule with the paths of all, for runs whose function is unknown."""
    first: list[int] = []
    submissions: list[Submission] = []
    for schedule in schedules:
        base = len(submissions)
        first += [base + state for state in schedule.first]
        submissions += [
            Submission(own.buffers, own.transfer, tuple(base + state for state in own.next), own.last)
            for own in schedule.submissions
        ]
    return Schedule("", tuple(first), tuple(submissions))


def narrowed(schedule: Schedule, seen: Sequence[Meanings], *, one_call: bool) -> list[Meanings]:
    """The candidate identities of each submission of a call, narrowed by the others; unchanged if no path matches.

    Args:
        schedule: the schedule of the function.
        seen: the candidates of each submission by itself, in order.
        one_call: whether these are the submissions of one call, or of several in sequence.
    """
    # The last call of a killed program is unfinished.
    for repeats, unfinished in ((False, False), (True, False), (True, True))[0 if one_call else 1 :]:
        matching = _Paths(schedule, repeats).fit(seen, unfinished=unfinished)
        if matching:
            return matching
    return list(seen)


@dataclass(frozen=True)
class _Paths:
    """The paths of one call, or of calls in sequence (`repeats`)."""

    schedule: Schedule
    repeats: bool

    @cached_property
    def _meanings(self) -> tuple[Meanings, ...]:
        return tuple(meanings_of(submission) for submission in self.schedule.submissions)

    # Works on sets of states rather than single paths: there can be exponentially many paths, but only as many states
    # as the program has submissions.

    def fit(self, seen: Sequence[Meanings], *, unfinished: bool) -> list[Meanings]:
        """The identities on any matching path: a forward pass, then a backward pass; empty if no path matches."""
        reached = self._forward(seen)
        ending = {state for state in reached[-1] if unfinished or self._is_last(state)} if reached else set()
        if not ending:
            return []
        return [
            frozenset[Meaning]().union(*(self._meanings[state] & meanings for state in states))
            for states, meanings in zip(self._backward(reached, ending), seen, strict=True)
        ]

    def _forward(self, seen: Sequence[Meanings]) -> list[Set[int]]:
        """For each submission, the states that a path from the start reaches with it."""
        reached: list[Set[int]] = []
        following: Set[int] = set(self.schedule.first)
        for meanings in seen:
            reached.append({state for state in following if self._meanings[state] & meanings})
            following = self._after(reached[-1])
        return reached

    def _after(self, states: Set[int]) -> Set[int]:
        following = {after for state in states for after in self.schedule.submissions[state].next}
        if self.repeats and any(map(self._is_last, states)):
            following.update(self.schedule.first)
        return following

    def _backward(self, reached: Sequence[Set[int]], ending: Set[int]) -> list[Set[int]]:
        """For each submission, the reached states that lead to an ending state."""
        leading: list[Set[int]] = [ending]
        for states in reversed(reached[:-1]):
            starts_call = self.repeats and not leading[-1].isdisjoint(self.schedule.first)
            leading.append({state for state in states if self._leads_to(state, leading[-1], starts_call)})
        return leading[::-1]

    def _leads_to(self, state: int, after: Set[int], starts_call: bool) -> bool:
        return not after.isdisjoint(self.schedule.submissions[state].next) or (starts_call and self._is_last(state))

    def _is_last(self, state: int) -> bool:
        return self.schedule.submissions[state].last


# ---- entries
#
# The first dispatches of submissions. Submissions without dispatches, such as transfers, are skipped.


@dataclass(frozen=True, slots=True)
class Entry:
    """The numbers of the dispatches that may come next, and whether the call may end without any."""

    states: frozenset[int]
    ends: bool


MOST_STATES: Final = 4_000_000
"""Most states in all sets together, some hundred megabytes. Ambiguous launches need the most."""


class UnknownOrder(Exception):
    """The order of launches does not identify their sites; the message has the reason."""


_NOTHING = Entry(frozenset(), ends=False)


@dataclass(frozen=True)
class Entries:
    """Entries of submissions. `chains`: for each submission, the dispatches of each buffer that it may execute."""

    schedule: Schedule
    chains: Sequence[Sequence[Sequence[int]]]

    def combined(self, submissions: Iterable[int]) -> Entry:
        """The combined entry of these submissions.

        Raises:
            OrderUntold: see `_by_submission`.
        """
        return _united([self._by_submission[number] for number in submissions])

    @cached_property
    def _by_submission(self) -> dict[int, Entry]:
        """The entry of each submission, in reverse topological order; submissions in a skippable cycle share one.

        Raises:
            OrderUntold: too many dispatches may come next, such as after thousands of skippable submissions.
        """
        import networkx as nx  # only runs that name no dispatches need it

        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(len(self.chains)))
        graph.add_edges_from((number, after) for number in graph for after in self._skips_to(number))
        components: nx.DiGraph[int] = nx.condensation(graph)
        entries: dict[int, Entry] = {}
        size = 0
        for component in reversed(list(nx.topological_sort(components))):
            members = sorted(components.nodes[component]["members"])
            following = [entries[after] for number in members for after in self._skips_to(number) if after in entries]
            entry = _united([*map(self._own, members), *following])
            size += len(entry.states)
            if size > MOST_STATES:
                raise UnknownOrder("too many kernels may follow each launch of the program")
            entries.update(dict.fromkeys(members, entry))
        return entries

    def _skips_to(self, number: int) -> Sequence[int]:
        return () if all(self.chains[number]) else self.schedule.submissions[number].next

    def _own(self, number: int) -> Entry:
        states = frozenset(chain[0] for chain in self.chains[number] if chain)
        return Entry(states, ends=not all(self.chains[number]) and self.schedule.submissions[number].last)


def _united(entries: Sequence[Entry]) -> Entry:
    distinct = [entry for entry in dict.fromkeys(entries) if entry != _NOTHING]
    if len(distinct) <= 1:  # nearly always; shares the set, which is large
        return distinct[0] if distinct else _NOTHING
    states = frozenset[int]().union(*(entry.states for entry in distinct))
    return Entry(states, any(entry.ends for entry in distinct))


# ---- automaton
#
# The automaton of a program's dispatches: it accepts the sequences of launches of its runs.
#
# Kernels have the names of their code on a device (`entry_name`).


States = frozenset[int]


@dataclass(frozen=True, slots=True)
class State:
    """A dispatch that the program can submit.

    `sites`: several if the compiler merged them into one command; `begins`: it is the first of a call; `function`: the
    index of the entry point, or `LOADING` if it runs at load, before all calls.
    """

    kernel: str
    sites: tuple[str, ...]
    begins: bool
    function: int


LOADING = -1


@dataclass
class Automaton:
    """All dispatches of a program, and the possible successors of each.

    `first`: the states that may come first; `last`: the states that may end a call; `all_seen`: every call launches
    something.
    """

    states: list[State] = field(default_factory=list)
    following: list[States] = field(default_factory=list)
    first: States = frozenset()
    last: States = frozenset()
    all_seen: bool = True

    @cached_property
    def kernels(self) -> frozenset[str]:
        """All dispatched kernels."""
        return frozenset(state.kernel for state in self.states)


def automaton_of(graph: TraceGraph, seen: frozenset[str] | None = None) -> Automaton:
    """The automaton of a program's dispatches, restricted to the kernels in `seen` if given.

    Raises:
        OrderUntold: the map has no complete schedule, or too many dispatches may follow each other.
    """
    if not graph.schedules or len(graph.schedules) != len(graph.functions):
        raise UnknownOrder("the map does not have the order in which the program launches kernels")
    builder = _Builder(graph, seen)
    builder.add_calls()
    builder.add_loading()
    return builder.automaton


@dataclass
class _Builder:
    graph: TraceGraph
    seen: frozenset[str] | None
    automaton: Automaton = field(default_factory=Automaton)

    def add_calls(self) -> None:
        """Add the dispatches of calls."""
        automaton = self.automaton
        schedule = merged(self.graph.schedules)
        counts = (len(of_function.submissions) for of_function in self.graph.schedules)
        functions = [index for index, count in enumerate(counts) for _ in range(count)]
        chains = [
            [self._add_chain(chain, function) for chain in self._chains_of(submission.buffers)]
            for submission, function in zip(schedule.submissions, functions, strict=True)
        ]
        entries = Entries(schedule, chains)
        first = entries.combined(schedule.first)
        ending = []
        for submission, chains_here in zip(schedule.submissions, chains, strict=True):
            after = entries.combined(submission.next)
            for chain in filter(None, chains_here):
                automaton.following[chain[-1]] = after.states
                if submission.last or after.ends:
                    ending.append(chain[-1])
        automaton.all_seen = not first.ends
        self._begin(first.states, frozenset(ending))

    def _begin(self, first: States, ending: States) -> None:
        """Add states for first dispatches of calls: copies of the states of the same dispatches inside a call."""
        automaton = self.automaton
        copies = {}
        for state in sorted(first):
            copies[state] = len(automaton.states)
            automaton.states.append(replace(automaton.states[state], begins=True))
            automaton.following.append(automaton.following[state])
        automaton.first = frozenset(copies.values())
        automaton.last = ending | {copy for state, copy in copies.items() if state in ending}
        unions: dict[States, States] = {}
        for state in automaton.last:
            after = automaton.following[state]
            automaton.following[state] = unions.setdefault(after, after | automaton.first)

    def add_loading(self) -> None:
        """Add the dispatches at load, before all calls; a recording may also start after them."""
        automaton = self.automaton
        buffers = [buffer for buffer in self.graph.command_buffers if buffer.initializer]
        commands = [command for buffer in buffers for command in buffer.commands]
        chain = self._add_chain([*filter(self._is_seen, commands)], LOADING)
        if chain:
            automaton.following[chain[-1]] = automaton.first
            automaton.last |= {chain[-1]}
            automaton.first |= {chain[0]}

    def _chains_of(self, ordinals: Iterable[int]) -> list[list[Command]]:
        buffers = [self.graph.command_buffers[ordinal] for ordinal in ordinals]
        return [[*filter(self._is_seen, buffer.commands)] for buffer in buffers] or [[]]

    def _is_seen(self, command: Command) -> bool:
        return command.kind == "dispatch" and (self.seen is None or entry_name(str(command.kernel)) in self.seen)

    def _add_chain(self, commands: Sequence[Command], function: int) -> list[int]:
        """Add consecutive dispatches; return the numbers of their states."""
        automaton = self.automaton
        numbers = []
        for command in commands:
            numbers.append(len(automaton.states))
            sites = tuple(str(site) for site in (command.site, *command.merged) if site is not UNKNOWN)
            automaton.states.append(State(entry_name(str(command.kernel)), sites, begins=False, function=function))
            automaton.following.append(frozenset({numbers[-1] + 1}))
        if numbers:
            automaton.following[numbers[-1]] = frozenset()
        return numbers


# ---- launches
#
# The dispatch sites of launches whose order alone is known, as in traces of GPU tools.
#
# A program launches kernels in an order that its schedule allows, so the launches of a run are a word that the
# automaton accepts. Its states are the dispatches that the host program can submit. The states that remain for a
# launch, given those before and after it, are its candidate sites. Sets of states are numbered and their successors
# cached, because a run repeats one call thousands of times.


@dataclass(frozen=True, slots=True)
class Launch:
    """The candidates of a launch: dispatch sites (none: no kernel of the program) and functions.

    `beginning`: whether it is the first launch of a call; None if unknown.
    """

    sites: tuple[str, ...]
    functions: frozenset[int]
    beginning: bool | None

    @property
    def loading(self) -> bool:
        """Whether it certainly ran while the program was loaded."""
        return self.functions == {LOADING}


@dataclass(frozen=True)
class LaunchOrder:
    """The launches of a run; `numbers` has the index in `kinds` of each.

    `whole`: the launches form whole calls, otherwise the first or the last call may be truncated; `filtered`: the
    launches of some kernels are missing; `all_seen`: every call launches something.
    """

    kinds: tuple[Launch, ...]
    numbers: Sequence[int]
    whole: bool
    filtered: bool
    all_seen: bool

    @cached_property
    def begun(self) -> Sequence[int] | None:
        """For each launch, the number of calls begun up to and including it; None if the beginnings are unknown."""
        begin = [kind.beginning for kind in self.kinds]
        if None in begin:
            return None
        return list(itertools.accumulate(begin[number] is True for number in self.numbers))

    @property
    def calls(self) -> Integer:
        """Number of calls; unknown if some may be truncated, launch nothing, or belong to another function."""
        functions = frozenset[int]().union(*(kind.functions for kind in self.kinds)) - {LOADING}
        if not (self.whole and self.all_seen and self.begun) or len(functions) > 1:
            return UNKNOWN
        return self.begun[-1]

    def invocations(self) -> list[int | None]:
        """For each launch, the index of its call; None if unknown, or if the call is truncated.

        Launches at load belong to the first call, as in profiles.
        """
        if self.begun is None:
            return [None] * len(self.numbers)
        truncated = 0 if self.whole else self.begun[-1]
        loading = [kind.loading for kind in self.kinds]
        return [
            count - 1 if 0 < count != truncated else 0 if loading[number] else None
            for count, number in zip(self.begun, self.numbers, strict=True)
        ]


def identify_launches(graph: TraceGraph, kernels: Sequence[str]) -> LaunchOrder:
    """Identify launches from the names of their code in order.

    Launches of kernels that the program does not have are skipped, as those of other modules. Launches that do not form
    whole calls are a part of a run, or the tool left out some kernels. If both explanations match, both are candidates.

    Raises:
        OrderUntold: no path through the program has these launches, the paths are unknown, or there are too many.
    """
    own = {entry_name(kernel.name) for kernel in graph.kernels}
    ours = [kernel for kernel in kernels if kernel in own]
    if not ours:
        raise UnknownOrder("no kernel of the program was launched")
    automaton = automaton_of(graph)
    order = _LaunchPaths(automaton).fit(ours, whole=True) or _incomplete(graph, automaton, ours)
    if order is None:
        raise UnknownOrder("the program never launches the kernels in this order")
    return _with_others(order, [kernel in own for kernel in kernels])


def _incomplete(graph: TraceGraph, automaton: Automaton, kernels: Sequence[str]) -> LaunchOrder | None:
    """Identify launches that do not form whole calls."""
    part = _LaunchPaths(automaton).fit(kernels, whole=False)
    seen = frozenset(kernels)
    if seen == automaton.kernels:
        return part
    restricted = automaton_of(graph, seen)
    filtered = _LaunchPaths(restricted).fit(kernels, whole=True)
    if part is None:
        order = filtered or _LaunchPaths(restricted).fit(kernels, whole=False)
        return None if order is None else replace(order, filtered=True)
    return part if filtered is None else _either(part, filtered)


def _either(first: LaunchOrder, second: LaunchOrder) -> LaunchOrder:
    """The union of two matching explanations."""
    pairs = list(zip(first.numbers, second.numbers, strict=True))
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    kinds = (_union(first.kinds[first_number], second.kinds[second_number]) for first_number, second_number in numbers)
    return LaunchOrder(tuple(kinds), [numbers[pair] for pair in pairs], whole=False, filtered=True, all_seen=False)


def _union(first: Launch, second: Launch) -> Launch:
    sites = tuple(dict.fromkeys((*first.sites, *second.sites)))
    beginning = first.beginning if first.beginning is second.beginning else None
    return Launch(sites, first.functions | second.functions, beginning)


def _with_others(order: LaunchOrder, is_ours: Sequence[bool]) -> LaunchOrder:
    """Insert the launches of other modules into the order."""
    if all(is_ours):
        return order
    rest = iter(order.numbers)
    numbers = [next(rest) if ours else len(order.kinds) for ours in is_ours]
    return replace(order, kinds=(*order.kinds, Launch((), frozenset(), beginning=False)), numbers=numbers)


@dataclass
class _LaunchPaths:
    """Numbered sets of states, and their successors by kernel."""

    automaton: Automaton
    sets: dict[States, int] = field(default_factory=dict)
    listed: list[States] = field(default_factory=list)
    after: dict[tuple[int, str], int] = field(default_factory=dict)
    before: dict[tuple[int, int], int] = field(default_factory=dict)
    size: int = 0

    def fit(self, kernels: Sequence[str], *, whole: bool) -> LaunchOrder | None:
        """The candidates of each launch; None if no path matches.

        `whole`: the first launch must begin the program or a call, and the last must end a call.

        Raises:
            OrderUntold: there are too many paths.
        """
        reached = self._forward(kernels, self.automaton.first if whole else self._everywhere)
        if reached is None:
            return None
        ending = self.listed[reached[-1]] & self.automaton.last if whole else self.listed[reached[-1]]
        if not ending:
            return None
        sets_on_path = self._backward(reached, self._number(ending))
        kinds = {number: index for index, number in enumerate(dict.fromkeys(sets_on_path))}
        launches = tuple(map(self._launch, kinds))
        return LaunchOrder(launches, [kinds[number] for number in sets_on_path], whole, False, self.automaton.all_seen)

    @cached_property
    def _everywhere(self) -> States:
        """All reachable states, for runs with an unknown beginning."""
        reachable = set(self.automaton.first)
        pending = list(reachable)
        while pending:
            new = self.automaton.following[pending.pop()] - reachable
            reachable |= new
            pending += new
        return frozenset(reachable)

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
                raise UnknownOrder("too many paths through the program launch kernels in this order")
            self.sets[states] = len(self.listed)
            self.listed.append(states)
        return self.sets[states]

    def _forward(self, kernels: Sequence[str], first: States) -> list[int] | None:
        """For each launch, the number of the set of states in which a path reaches it; None if no path matches."""
        reached = [self._number(self._with_kernel(first, kernels[0]))]
        for kernel in kernels[1:]:
            if not self.listed[reached[-1]]:
                return None
            key = (reached[-1], kernel)
            if key not in self.after:
                self.after[key] = self._number(self._with_kernel(self._following(self.listed[key[0]]), kernel))
            reached.append(self.after[key])
        return reached

    def _with_kernel(self, states: States, kernel: str) -> States:
        return frozenset(state for state in states if self.automaton.states[state].kernel == kernel)

    def _following(self, states: States) -> States:
        return frozenset[int]().union(*(self.automaton.following[state] for state in states))

    def _backward(self, reached: Sequence[int], ending: int) -> list[int]:
        """For each launch, the number of the reached states that lead to the end."""
        leading_sets = [ending]
        for current in reversed(reached[:-1]):
            key = (current, leading_sets[-1])
            if key not in self.before:
                successors, following = self.listed[leading_sets[-1]], self.automaton.following
                leading = (state for state in self.listed[current] if not successors.isdisjoint(following[state]))
                self.before[key] = self._number(frozenset(leading))
            leading_sets.append(self.before[key])
        return leading_sets[::-1]
