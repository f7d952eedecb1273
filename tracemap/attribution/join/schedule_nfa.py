"""The schedule of a program as an automaton, and the sites of launches of which only the order is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import structs

from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.map.model import CommandBuffer, Schedule, Submission, TraceGraph, entry_name
from tracemap.runs.columns import is_transfer_name, matches_transfer, transfer_name

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


class Entry(msgspec.Struct, frozen=True):
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


class State(msgspec.Struct, frozen=True):
    """A dispatch that the program can submit, or a copy or fill.

    `kernel`: of a copy or fill, its name as by `transfer_name`. `sites`: several if the compiler merged them into one
    command; of a copy or fill, the transfer, "" if it is not the program's. `begins`: it is the first of a call;
    `function`: the index of the entry point, or `LOADING` if it runs at load, before all calls.
    """

    kernel: str
    sites: tuple[str, ...]
    begins: bool
    function: int


LOADING = -1
_FOREIGN: Final = transfer_name("", UNKNOWN)
"""The name of a state for any copy or fill that is not the program's."""


class TransferStates(IntEnum):
    """The copies and fills that have states in an automaton."""

    NONE = 0
    IN_BUFFERS = 1
    ALL = 2


@dataclass
class Automaton:
    """All dispatches of a program, and the possible successors of each; of the kernels in `seen` only, if given.

    `transfers`: the copies and fills that have states, too. `foreign`: others may come at load and between calls.
    `first`: the states that may come first; `last`: the states that may end a call; `all_seen`: every call launches
    something.

    Raises:
        UnknownOrder: the map has no complete schedule, or too many dispatches may follow each other.
    """

    graph: TraceGraph
    seen: frozenset[str] | None = None
    transfers: TransferStates = TransferStates.NONE
    foreign: bool = False
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
            [self._add_chain(self._work(buffers[ordinal]), function) for ordinal in submission.buffers]
            or [self._add_chain(self._moved(submission.transfer), function)]
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
        at_load = (work for buffer in buffers if buffer.initializer for work in self._work(buffer))
        if chain := self._add_chain(at_load, LOADING):
            self.following[chain[-1]] = self.first
            self.last |= {chain[-1]}
            self.first |= {chain[0]}
        if self.foreign:
            self._add_foreign()

    def _add_foreign(self) -> None:
        """Add a state for copies and fills of the host or another program, at load and between calls."""
        number = len(self.states)
        loading = States(place for place, state in enumerate(self.states) if state.function == LOADING)
        for place in sorted(self.last | loading):
            self.following[place] |= {number}
        self.states.append(State(_FOREIGN, ("",), begins=False, function=LOADING))
        self.following.append(self.first | loading | {number})
        self.first |= {number}
        self.last |= {number}

    def _begin(self, first: States, ending: States) -> None:
        """Add states for first dispatches of calls: copies of the states of the same dispatches inside a call."""
        copies = {}
        for state in sorted(first):
            copies[state] = len(self.states)
            self.states.append(structs.replace(self.states[state], begins=True))
            self.following.append(self.following[state])
        self.first = frozenset(copies.values())
        self.last = ending | {copy for state, copy in copies.items() if state in ending}
        unions: dict[States, States] = {}
        for state in self.last:
            after = self.following[state]
            self.following[state] = unions.setdefault(after, after | self.first)

    def _work(self, buffer: CommandBuffer) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The name and places of each command of a buffer that has a state."""
        for index, command in enumerate(buffer.commands):
            kernel = entry_name(str(command.kernel))
            if command.kind == "dispatch" and (self.seen is None or kernel in self.seen):
                yield kernel, tuple(str(site) for site in (command.site, *command.merged) if site is not UNKNOWN)
            elif (
                self.transfers and (own := self.graph.buffer_transfers.get((buffer.ordinal, index))) and own.bytes != 0
            ):
                yield transfer_name(own.kind, own.bytes), (own.id,)

    def _moved(self, transfer: Text) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The name and the place of a transfer that the host program submits, if it has a state."""
        own = self.graph.transfer_by_id.get(str(transfer))
        if self.transfers is TransferStates.ALL and own is not None and own.bytes != 0:
            yield transfer_name(own.kind, own.bytes), (own.id,)

    def _add_chain(self, work: Iterable[tuple[str, tuple[str, ...]]], function: int) -> list[int]:
        """Add consecutive work, as names and places; return the numbers of their states."""
        begin = len(self.states)
        for name, places in work:
            self.states.append(State(name, places, begins=False, function=function))
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


class Launch(msgspec.Struct, frozen=True):
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


class LaunchOrder(msgspec.Struct, frozen=True, dict=True):
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
    return structs.replace(order, kinds=(*order.kinds, Launch((), frozenset(), beginning=False)), numbers=numbers)


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
        return None if order is None else structs.replace(order, filtered=True)
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
    paths = _Paths[str](automaton.following, lambda state, name: _matches(automaton.states[state], name), MOST_STATES)
    first = automaton.first if whole or from_start else automaton.reachable
    last = automaton.last if whole else None
    on_path = paths.fit(kernels, first, last)
    if on_path is None:
        return None
    kinds = {number: index for index, number in enumerate(dict.fromkeys(on_path))}
    launches = tuple(automaton.launch(paths.listed[number]) for number in kinds)
    return LaunchOrder(launches, [kinds[number] for number in on_path], whole, False, automaton.all_seen)


def _matches(state: State, name: str) -> bool:
    """Whether a launch, copy or fill of this name may be one of a state; sizes that the map lacks match any."""
    return state.kernel == name or matches_transfer(state.kernel, name)


# ---- copies and fills
#
# The copies and fills of runs that time each of them, as those of CUDA: they are in the program's order, too.


class TransferOrder(msgspec.Struct, frozen=True):
    """The transfer of each copy and fill of a run, in order: its id, "" if it is not the program's.

    UNKNOWN if the order leaves several; `why`: the reason, if it leaves all of them.
    """

    places: Sequence[Text]
    why: str = ""

    @property
    def unknown(self) -> int:
        """Number of copies and fills whose transfer is unknown."""
        return sum(place is UNKNOWN for place in self.places)


def identify_transfers(graph: TraceGraph, names: Sequence[str]) -> TransferOrder:
    """Identify the copies and fills among the work of a run in order.

    A copy or fill whose size no transfer of the program has belongs to the host, as one that loads arguments. The
    others have to be where the program submits them, between its launches; some may be the host's, at load and between
    calls.

    Args:
        graph: the map.
        names: names of launches (their kernels' code), copies and fills (`runs.columns.transfer_name`).
    """
    moves: set[str] = set()
    kernels = {entry_name(kernel.name) for kernel in graph.kernels}
    outside = [TransferStates.ALL] if graph.transfers else []
    # A device may carry out transfers outside of command buffers without a copy or fill of its own, in mapped memory.
    choices = [(states, foreign) for states in (*outside, TransferStates.IN_BUFFERS) for foreign in (False, True)]
    why = "the program never submits its copies and fills in this order"
    for whole, (states, foreign) in itertools.product((True, False), choices):
        try:
            automaton = Automaton(graph, transfers=states, foreign=foreign)
            own = [state for state in automaton.states if is_transfer_name(state.kernel) and state.kernel != _FOREIGN]
            moves = {name for name in set(names) if any(_matches(state, name) for state in own)}
            if not moves:
                return TransferOrder([""] * sum(map(is_transfer_name, names)))
            ours = [name for name in names if name in moves or name in kernels]
            order = _fit(automaton, ours, whole=whole)
        except UnknownOrder as reason:
            return TransferOrder([UNKNOWN for name in names if is_transfer_name(name)], str(reason))
        if order is not None:
            places = [kind.sites[0] if len(kind.sites) == 1 else UNKNOWN for kind in order.kinds]
            rest = iter(order.numbers)
            located = [(name, places[next(rest)] if name in moves or name in kernels else "") for name in names]
            return TransferOrder([place for name, place in located if is_transfer_name(name)])
    return TransferOrder([UNKNOWN if name in moves else "" for name in names if is_transfer_name(name)], why)
