"""The automaton of what a program dispatches: its words are the launches of runs.

Kernels go by the names that their code has on a device (`entry_name`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tracemap.attribution.join.entries import Entries, OrderUntold
from tracemap.attribution.join.ways import merged
from tracemap.graph.model import TraceGraph, entry_name
from tracemap.graph.program import Command
from tracemap.units import UNKNOWN

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
