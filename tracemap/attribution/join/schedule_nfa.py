"""The schedule of a program as an automaton, and the sites of launches of which only the order is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Generic, TypeVar

from msgspec import structs

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
            structs.replace(own, next=tuple(base + state for state in own.next)) for own in schedule.submissions
        ]
    return Schedule("", tuple(first), tuple(submissions))


def narrowed(schedule: Schedule, seen: Sequence[Meanings], *, one_call: bool) -> list[Meanings]:
    """The candidate identities of each submission of a call, narrowed by the others; unchanged if no path matches.

    Args:
        schedule: the schedule of the function.
        seen: the candidates of each submission by itself, in order.
        one_call: whether these are the submissions of one call, or of several in sequence.
    """
    first, submissions = frozenset(schedule.first), schedule.submissions
    meanings = [meanings_of(submission) for submission in submissions]
    last = frozenset(state for state, submission in enumerate(submissions) if submission.last)
    # The last call of a killed program is unfinished.
    for repeats, unfinished in ((False, False), (True, False), (True, True))[0 if one_call else 1 :]:
        following = [frozenset(own.next) | (first if repeats and own.last else frozenset()) for own in submissions]
        paths = _Paths[Meanings](following, lambda state, own: not meanings[state].isdisjoint(own))
        matching = paths.fit(seen, first, None if unfinished else last)
        if matching is not None:
            return [
                frozenset[Meaning]().union(*(meanings[state] & own for state in paths.listed[number]))
                for number, own in zip(matching, seen, strict=True)
            ]
    return list(seen)


States = frozenset[int]
Symbol = TypeVar("Symbol", bound=Hashable)


class UnknownOrder(Exception):
    """The order of launches does not identify their sites; the message has the reason."""


@dataclass
class _Paths(Generic[Symbol]):
    """The paths through an automaton that a sequence of symbols matches.

    There can be exponentially many paths, but only as many states as the program has submissions, so this works on sets
    of states. The sets are numbered and their successors cached, because a run repeats one call thousands of times.

    Args:
        following: the possible successors of each state.
        matches: whether a state matches a symbol.
        most_states: most states in all sets together.
    """

    following: Sequence[States]
    matches: Callable[[int, Symbol], bool]
    most_states: float = math.inf
    listed: list[States] = field(default_factory=list)
    """The sets, by number."""
    _numbers: dict[States, int] = field(default_factory=dict)
    _size: int = 0

    def fit(self, symbols: Sequence[Symbol], first: States, last: States | None) -> list[int] | None:
        """For each symbol, the number of the set of states on any matching path; None if no path matches.

        Args:
            symbols: the symbols.
            first: the states that a path may begin with.
            last: the states that it may end with; None: all.

        Raises:
            UnknownOrder: there are too many paths.
        """
        reached = self._forward(symbols, first)
        if not reached:
            return reached
        ending = self.listed[reached[-1]]
        ending = ending if last is None else ending & last
        return self._backward(reached, self._number(ending)) if ending else None

    def _number(self, states: Iterable[int]) -> int:
        states = frozenset(states)
        if states not in self._numbers:
            self._size += len(states)
            if self._size > self.most_states:
                raise UnknownOrder("too many paths through the program launch kernels in this order")
            self._numbers[states] = len(self.listed)
            self.listed.append(states)
        return self._numbers[states]

    def _forward(self, symbols: Sequence[Symbol], first: States) -> list[int] | None:
        """For each symbol, the number of the set of states in which a path reaches it; None if no path matches."""
        reached: list[int] = []
        after: dict[tuple[int, Symbol], int] = {}
        current = -1  # before the first symbol
        for symbol in symbols:
            key = (current, symbol)
            if key not in after:
                states = (self.following[state] for state in self.listed[current]) if reached else (first,)
                candidates = States().union(*states)
                after[key] = self._number(state for state in candidates if self.matches(state, symbol))
            current = after[key]
            if not self.listed[current]:
                return None
            reached.append(current)
        return reached

    def _backward(self, reached: Sequence[int], ending: int) -> list[int]:
        """For each symbol, the number of the reached states that lead to the end."""
        leading = [ending]
        before: dict[tuple[int, int], int] = {}
        for current in reversed(reached[:-1]):
            key = (current, leading[-1])
            if key not in before:
                successors = self.listed[key[1]]
                states = self.listed[current]
                before[key] = self._number(
                    state for state in states if not successors.isdisjoint(self.following[state])
                )
            leading.append(before[key])
        return leading[::-1]


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

_NOTHING = Entry(frozenset(), ends=False)


def _entries(schedule: Schedule, chains: Sequence[Sequence[Sequence[int]]]) -> dict[int, Entry]:
    """The entry of each submission, in reverse topological order; submissions in a skippable cycle share one.

    `chains`: for each submission, the dispatches of each buffer that it may execute.

    Raises:
        UnknownOrder: too many dispatches may come next, such as after thousands of skippable submissions.
    """
    skips_to = [
        () if all(own_chains) else submission.next
        for own_chains, submission in zip(chains, schedule.submissions, strict=True)
    ]
    entries: dict[int, Entry] = {}
    size = 0
    for members in _components_last_first(skips_to):
        own = [
            Entry(
                frozenset(chain[0] for chain in chains[number] if chain),
                ends=not all(chains[number]) and schedule.submissions[number].last,
            )
            for number in members
        ]
        entry = _united(
            [*own, *(entries[after] for number in members for after in skips_to[number] if after in entries)]
        )
        size += len(entry.states)
        if size > MOST_STATES:
            raise UnknownOrder("too many kernels may follow each launch of the program")
        entries.update(dict.fromkeys(members, entry))
    return entries


def _components_last_first(skips_to: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
    """The strongly connected components of submissions, in reverse topological order."""
    if not any(skips_to):
        yield from ([number] for number in range(len(skips_to)))
        return
    import networkx as nx  # few programs have submissions that may be skipped

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(skips_to)))
    graph.add_edges_from((number, after) for number in graph for after in skips_to[number])
    components: nx.DiGraph[int] = nx.condensation(graph)
    for component in reversed(list(nx.topological_sort(components))):
        yield sorted(components.nodes[component]["members"])


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
    """All dispatches of a program, and the possible successors of each; of the kernels in `seen` only, if given.

    `first`: the states that may come first; `last`: the states that may end a call; `all_seen`: every call launches
    something.

    Raises:
        UnknownOrder: the map has no complete schedule, or too many dispatches may follow each other.
    """

    graph: TraceGraph
    seen: frozenset[str] | None = None
    states: list[State] = field(default_factory=list)
    following: list[States] = field(default_factory=list)
    first: States = frozenset()
    last: States = frozenset()
    all_seen: bool = True

    def __post_init__(self) -> None:
        if not self.graph.schedules or len(self.graph.schedules) != len(self.graph.functions):
            raise UnknownOrder("the map does not have the order in which the program launches kernels")
        schedule = merged(self.graph.schedules)
        counts = (len(of_function.submissions) for of_function in self.graph.schedules)
        functions = [index for index, count in enumerate(counts) for _ in range(count)]
        buffers = self.graph.command_buffers
        chains = [
            [self._add_chain(buffers[ordinal].commands, function) for ordinal in submission.buffers] or [[]]
            for submission, function in zip(schedule.submissions, functions, strict=True)
        ]
        entries = _entries(schedule, chains)
        ending = []
        for submission, chains_here in zip(schedule.submissions, chains, strict=True):
            after = _united([entries[number] for number in submission.next])
            for chain in filter(None, chains_here):
                self.following[chain[-1]] = after.states
                if submission.last or after.ends:
                    ending.append(chain[-1])
        first = _united([entries[number] for number in schedule.first])
        self.all_seen = not first.ends
        self._begin(first.states, frozenset(ending))
        # The dispatches at load run before all calls; a recording may also start after them.
        at_load = [command for buffer in buffers if buffer.initializer for command in buffer.commands]
        if chain := self._add_chain(at_load, LOADING):
            self.following[chain[-1]] = self.first
            self.last |= {chain[-1]}
            self.first |= {chain[0]}

    def _begin(self, first: States, ending: States) -> None:
        """Add states for first dispatches of calls: copies of the states of the same dispatches inside a call."""
        copies = {}
        for state in sorted(first):
            copies[state] = len(self.states)
            self.states.append(replace(self.states[state], begins=True))
            self.following.append(self.following[state])
        self.first = frozenset(copies.values())
        self.last = ending | {copy for state, copy in copies.items() if state in ending}
        unions: dict[States, States] = {}
        for state in self.last:
            after = self.following[state]
            self.following[state] = unions.setdefault(after, after | self.first)

    def _add_chain(self, commands: Iterable[Command], function: int) -> list[int]:
        """Add the dispatches among consecutive commands; return the numbers of their states."""
        begin = len(self.states)
        for command in commands:
            kernel = entry_name(str(command.kernel))
            if command.kind == "dispatch" and (self.seen is None or kernel in self.seen):
                sites = tuple(str(site) for site in (command.site, *command.merged) if site is not UNKNOWN)
                self.states.append(State(kernel, sites, begins=False, function=function))
                self.following.append(frozenset({len(self.states)}))
        numbers = list(range(begin, len(self.states)))
        if numbers:
            self.following[-1] = frozenset()
        return numbers

    @property
    def reachable(self) -> States:
        """All states that a run reaches, for runs with an unknown beginning."""
        reachable = set(self.first)
        pending = list(reachable)
        while pending:
            new = self.following[pending.pop()] - reachable
            reachable |= new
            pending += new
        return frozenset(reachable)

    def launch(self, numbers: States) -> Launch:
        """The candidates of a launch in one of these states."""
        states = [self.states[number] for number in sorted(numbers)]
        begins = {state.begins for state in states}
        return Launch(
            tuple(dict.fromkeys(site for state in states for site in state.sites)),
            frozenset(state.function for state in states),
            begins.pop() if len(begins) == 1 else None,
        )


# ---- launches
#
# The dispatch sites of launches whose order alone is known, as in traces of GPU tools.
#
# A program launches kernels in an order that its schedule allows, so the launches of a run are a word that the
# automaton accepts. Its states are the dispatches that the host program can submit. The states that remain for a
# launch, given those before and after it, are its candidate sites.


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


def identify_launches(graph: TraceGraph, kernels: Sequence[str], *, from_start: bool = False) -> LaunchOrder:
    """Identify launches from the names of their code in order.

    Launches of kernels that the program does not have are skipped, as those of other modules. Launches that do not form
    whole calls are a part of a run, or the tool left out some kernels. If both explanations match, both are candidates.
    With `from_start`, all launches from the program's start on are there, so only the last call can be incomplete.

    Raises:
        UnknownOrder: no path through the program has these launches, the paths are unknown, or there are too many.
    """
    own = {entry_name(kernel.name) for kernel in graph.kernels}
    ours = [kernel for kernel in kernels if kernel in own]
    if not ours:
        raise UnknownOrder("no kernel of the program was launched")
    automaton = Automaton(graph)
    order = _fit(automaton, ours, whole=True)
    if order is None and from_start:
        order = _fit(automaton, ours, whole=False, from_start=True)
    order = order or _incomplete(graph, automaton, ours)
    if order is None:
        raise UnknownOrder("the program never launches the kernels in this order")
    if len(ours) == len(kernels):
        return order
    rest = iter(order.numbers)
    numbers = [next(rest) if kernel in own else len(order.kinds) for kernel in kernels]
    return replace(order, kinds=(*order.kinds, Launch((), frozenset(), beginning=False)), numbers=numbers)


def _incomplete(graph: TraceGraph, automaton: Automaton, kernels: Sequence[str]) -> LaunchOrder | None:
    """Identify launches that do not form whole calls."""
    part = _fit(automaton, kernels, whole=False)
    seen = frozenset(kernels)
    if seen == {state.kernel for state in automaton.states}:
        return part
    restricted = Automaton(graph, seen)
    filtered = _fit(restricted, kernels, whole=True)
    if part is None:
        order = filtered or _fit(restricted, kernels, whole=False)
        return None if order is None else replace(order, filtered=True)
    return part if filtered is None else _either(part, filtered)


def _either(first: LaunchOrder, second: LaunchOrder) -> LaunchOrder:
    """The union of two matching explanations."""
    pairs = list(zip(first.numbers, second.numbers, strict=True))
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    kinds = []
    for first_number, second_number in numbers:
        one, other = first.kinds[first_number], second.kinds[second_number]
        beginning = one.beginning if one.beginning is other.beginning else None
        sites = tuple(dict.fromkeys((*one.sites, *other.sites)))
        kinds.append(Launch(sites, one.functions | other.functions, beginning))
    return LaunchOrder(tuple(kinds), [numbers[pair] for pair in pairs], whole=False, filtered=True, all_seen=False)


def _fit(automaton: Automaton, kernels: Sequence[str], *, whole: bool, from_start: bool = False) -> LaunchOrder | None:
    """The candidates of each launch; None if no path matches.

    `whole`: the first launch must begin the program or a call, and the last must end a call. `from_start`: only the
    former.
    """
    paths = _Paths[str](
        automaton.following, lambda state, kernel: automaton.states[state].kernel == kernel, MOST_STATES
    )
    first = automaton.first if whole or from_start else automaton.reachable
    last = automaton.last if whole else None
    on_path = paths.fit(kernels, first, last)
    if on_path is None:
        return None
    kinds = {number: index for index, number in enumerate(dict.fromkeys(on_path))}
    launches = tuple(automaton.launch(paths.listed[number]) for number in kinds)
    return LaunchOrder(launches, [kinds[number] for number in on_path], whole, False, automaton.all_seen)
