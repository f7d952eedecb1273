"""Ops that are found by what is computed before and behind them: numbers for neighbourhoods, equal in both models.

A node's number *upwards* stands for all that its value is made of, *downwards* for all that is made of it, of a *ring*
for what lies a few steps around it (the colours of Weisfeiler and Leman, 1968). What has a number that no other node of
its model has, and one of the other model has alone as well, is the same op.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tracemap.graph.flow import Flow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    Places = NDArray[np.int64]

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

    @cached_property
    def makers_first(self) -> list[int]:
        """All places, each behind what it reads (functions behind their calls)."""
        return _behind(
            range(len(self.flow)), lambda place: (each for makers in self.flow[place].reads for each in makers)
        )

    @cached_property
    def readers_first(self) -> list[int]:
        """All places, each behind those that read it."""
        last_first = range(len(self.flow) - 1, -1, -1)
        return _behind(last_first, lambda place: (reader for reader, _ in self.readers[place]))

    @cached_property
    def edges(self) -> tuple[Places, Places, Hashes]:
        """Who reads what, in three columns: the reader, the maker, and a hash of the number of the operand."""
        import numpy as np

        found = [
            (place, maker, number)
            for place, node in enumerate(self.flow)
            for number, makers in enumerate(node.reads)
            for maker in makers
        ]
        places = np.array(found, dtype=np.int64).reshape(-1, 3)
        return places[:, 0], places[:, 1], _mixed(places[:, 2].astype(np.uint64))


def _behind(roots: Sequence[int], needs: Callable[[int], Iterable[int]]) -> list[int]:
    """All places, each behind those that it needs; where these go round, one of them is left out."""
    done, opened = [False] * len(roots), set[int]()
    found = []
    for root in roots:
        waiting = [root]
        while waiting:
            place = waiting[-1]
            missing = () if done[place] else [each for each in needs(place) if not done[each] and each not in opened]
            if missing and place not in opened:
                opened.add(place)
                waiting += missing
                continue
            waiting.pop()
            if not done[place]:
                done[place] = True
                found.append(place)
    return found


def upwards(side: Side, labels: Sequence[int], numbers: Numbers) -> list[int]:
    """Numbers of what each value is made of."""
    found = [-1] * len(labels)
    for place in side.makers_first:
        read = [_several(found, makers) for makers in side.flow[place].reads]
        found[place] = numbers.of((labels[place], *read))
    return found


def _several(found: Sequence[int], makers: Sequence[int]) -> Hashable:
    """What an operand may be; mostly it is one thing."""
    return found[makers[0]] if len(makers) == 1 else tuple(sorted([found[maker] for maker in makers]))


def downwards(side: Side, labels: Sequence[int], numbers: Numbers) -> list[int]:
    """Numbers of what is made of each value; what reads it stands behind it, but for what functions hold."""
    found = [-1] * len(labels)
    for place in side.readers_first:
        readers = sorted([(found[reader], number) for reader, number in side.readers[place]])
        found[place] = numbers.of((labels[place], *readers))
    return found


def ringed(side: Side) -> list[list[int]]:
    """Numbers of what lies up to 0, 1, 2, … steps around each node; of 64 bits, which do not agree by chance.

    All of a step is done at once, in columns: a set of neighbours is the sum of their mixed numbers, modulo 2^64.
    """
    import numpy as np

    reader, maker, operand = side.edges
    is_read = ~np.array([node.passes_on for node in side.flow], dtype=bool)[reader]
    before = _mixed(np.array(side.labels(loose=False), dtype=np.uint64))
    steps = [before]
    for _ in range(max(RINGS)):
        made, making = np.zeros_like(before), np.zeros_like(before)
        np.add.at(made, reader, _mixed(before[maker] + operand))
        np.add.at(making, maker[is_read], _mixed(before[reader[is_read]] ^ operand[is_read]))
        before = _mixed(_mixed(_mixed(before) + made) + making)
        steps.append(before)
    return [step.tolist() for step in steps]


def _mixed(numbers: Hashes) -> Hashes:
    """Numbers with all bits changed by each (Steele, Lea and Flood 2014: the finalizer of SplitMix64)."""
    import numpy as np

    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


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
