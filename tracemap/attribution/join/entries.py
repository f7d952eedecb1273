"""With which dispatches the submissions of a schedule begin: what hands in none, as a transfer, is passed through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import networkx as nx

from tracemap.graph.program import Schedule


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
