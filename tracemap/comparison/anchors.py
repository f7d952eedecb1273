"""Ops that are found by what is computed before and behind them: numbers for neighbourhoods, equal in both models.

A node's number *upwards* stands for all that its value is made of, *downwards* for all that is made of it, of a *ring*
for what lies a few steps around it (the colours of Weisfeiler and Leman, 1968). What has a number that no other node of
its model has, and one of the other model has alone as well, is the same op.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from tracemap.graph.flow import Flow

RINGS: Final = (6, 4, 3, 2, 1)
"""How many steps around a node are looked at, the most telling first."""


class Numbers:
    """Equal things get equal numbers, in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, content: Hashable) -> int:
        """The number of a thing."""
        return self._numbers.setdefault(content, len(self._numbers))


class Side:
    """One of the two models: its nodes, and who reads what each makes."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.readers: list[list[tuple[int, int]]] = [[] for _ in flow]
        """Of each node those that read it, each with the number of the operand; what only passes on is left out."""
        self.passing: list[list[tuple[int, int]]] = [[] for _ in flow]
        """Of each node the calls and returns that pass its value on."""
        self.ends: list[list[int]] = [[] for _ in flow]
        """Of each node its terminators, and of functions their calls."""
        for place, node in enumerate(flow):
            for number, makers in enumerate(node.reads):
                for maker in makers:
                    (self.passing if node.passes_on else self.readers)[maker].append((place, number))
            if node.holder >= 0:
                self.ends[node.holder].append(place)

    def labels(self, *, loose: bool) -> list[int]:
        """The number that each node has by itself."""
        return [node.loose if loose else node.exact for node in self.flow]


def upwards(side: Side, labels: Sequence[int], numbers: Numbers) -> list[int]:
    """Numbers of what each value is made of."""
    found = [-1] * len(labels)
    for place, node in enumerate(side.flow):
        found[place] = _up(side, place, labels, found, numbers)
        if node.passes_on:
            found[place] = -1
    return found


def _up(side: Side, root: int, labels: Sequence[int], found: list[int], numbers: Numbers) -> int:
    """The number of a node; of what stands behind it (functions behind their calls) first."""
    waiting, opened = [root], set[int]()
    while waiting:
        place = waiting[-1]
        makers = [maker for several in side.flow[place].reads for maker in several]
        missing = [maker for maker in makers if found[maker] < 0 and maker not in opened]
        if found[place] < 0 and missing and place not in opened:
            opened.add(place)
            waiting += missing
            continue
        waiting.pop()
        if found[place] < 0:
            read = tuple(tuple(sorted(found[maker] for maker in several)) for several in side.flow[place].reads)
            found[place] = numbers.of(("up", labels[place], read))
    return found[root]


def downwards(side: Side, labels: Sequence[int], numbers: Numbers) -> list[int]:
    """Numbers of what is made of each value; what reads it stands behind it, but for what functions hold."""
    found = [-1] * len(labels)
    for place in _last_readers_first(side):
        readers = sorted((found[reader], number) for reader, number in side.readers[place])
        found[place] = numbers.of(("down", labels[place], tuple(readers)))
    return found


def _last_readers_first(side: Side) -> Iterator[int]:
    """All places, each behind those that read it."""
    done = [False] * len(side.flow)
    for root in range(len(side.flow) - 1, -1, -1):
        waiting, opened = [root], set[int]()
        while waiting:
            place = waiting[-1]
            missing = [reader for reader, _ in side.readers[place] if not done[reader] and reader not in opened]
            if not done[place] and missing and place not in opened:
                opened.add(place)
                waiting += missing
                continue
            waiting.pop()
            if not done[place]:
                done[place] = True
                yield place


def ringed(side: Side, labels: Sequence[int], numbers: Numbers, steps: int) -> list[int]:
    """Numbers of what lies up to so many steps around each node."""
    found = list(labels)
    for _ in range(steps):
        before = found
        found = []
        for place, node in enumerate(side.flow):
            read = tuple(tuple(sorted(before[maker] for maker in several)) for several in node.reads)
            readers = sorted((before[reader], number) for reader, number in side.readers[place])
            found.append(numbers.of(("ring", before[place], read, tuple(readers))))
    return found


def alone_in_both(before: Sequence[Hashable], after: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """The places, in both models, of what only one node of each has; `None` counts as nothing."""
    first, second = _alone(before), _alone(after)
    for key, place in first.items():
        if key in second:
            yield place, second[key]


def _alone(keys: Sequence[Hashable]) -> dict[Hashable, int]:
    places: dict[Hashable, int] = {}
    several = set[Hashable]()
    for place, key in enumerate(keys):
        if key in places:
            several.add(key)
        places[key] = place
    return {key: place for key, place in places.items() if key is not None and key not in several}
