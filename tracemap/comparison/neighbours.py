"""Ops that are found by their neighbours: who reads, or is read by, what is matched already.

Pairs of nodes with evidence are looked at best first. A pair gains where neighbours at the same operand are matched to
one another, and loses where one is matched to something else; operands, of which a value is made, tell more than
readers. What is found is evidence for its own neighbours.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tracemap.comparison.anchors import Side

_READS, _READERS, _ENDS, _SAME, _WHERE, _AGAINST = 6, 4, 4, 2, 1, 2
"""What a pair gains by an operand, by a reader, by what ends it or what it ends, by being equal, by the same scope.

The last is what it loses by a neighbour that says otherwise."""
ENOUGH: Final = 4
"""What a pair needs that neighbours propose."""
_MOST_NEIGHBOURS: Final = 24
"""Of a node with more readers, the first are looked at."""

_Candidate = tuple[int, int, int, int]


class Pairs:
    """Which nodes are matched so far: of each node of either side the place of its partner, -1 for none."""

    def __init__(self, before: Side, after: Side) -> None:
        self.before, self.after = before, after
        self.to_after = [-1] * len(before.flow)
        self.to_before = [-1] * len(after.flow)

    def add(self, one: int, two: int) -> bool:
        """Match two nodes; False where one of them is matched already, or they cannot be the same."""
        return self.can_be(one, two) and self.put(one, two)

    def put(self, one: int, two: int) -> bool:
        """Match two nodes of whatever kinds; False where one of them is matched already."""
        if self.to_after[one] >= 0 or self.to_before[two] >= 0:
            return False
        self.to_after[one], self.to_before[two] = two, one
        return True

    def can_be(self, one: int, two: int) -> bool:
        """Whether two nodes are of one kind."""
        first, second = self.before.flow[one], self.after.flow[two]
        return first.name == second.name and first.passes_on == second.passes_on

    @property
    def is_left(self) -> bool:
        """Whether both models have nodes without a partner."""
        return min(self.to_after, default=0) < 0 and min(self.to_before, default=0) < 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((one, two) for one, two in enumerate(self.to_after) if two >= 0)

    # ---- evidence

    def score(self, one: int, two: int) -> int:
        """What speaks for two nodes being the same."""
        first, second = self.before.flow[one], self.after.flow[two]
        score = _SAME * (first.exact == second.exact) + _WHERE * (bool(first.where) and first.where == second.where)
        for makers, others in zip(first.reads, second.reads, strict=False):
            score += self._of_operand(makers, others)
        score += self._of_readers(one, two)
        if first.holder >= 0 and self.to_after[first.holder] >= 0:
            score += _ENDS if self.to_after[first.holder] == second.holder else -_AGAINST
        ends = self.before.ends[one][:_MOST_NEIGHBOURS]
        return score + sum(_ENDS for end in ends if self.to_after[end] in self.after.ends[two])

    def _of_operand(self, makers: tuple[int, ...], others: tuple[int, ...]) -> int:
        if any(self.to_after[maker] in others for maker in makers):
            return _READS
        elsewhere = sum(any(to[maker] >= 0 for maker in several) for to, several in self._both(makers, others))
        return -_AGAINST * elsewhere

    def _both(self, makers: tuple[int, ...], others: tuple[int, ...]) -> Iterable[tuple[list[int], tuple[int, ...]]]:
        return (self.to_after, makers), (self.to_before, others)

    def _of_readers(self, one: int, two: int) -> int:
        score = 0
        for reader, number in self.before.readers[one][:_MOST_NEIGHBOURS]:
            other = self.to_after[reader]
            if other >= 0:
                score += _READERS if _reads(self.after, other, number, two) else -_AGAINST
        for reader, number in self.after.readers[two][:_MOST_NEIGHBOURS]:
            other = self.to_before[reader]
            if other >= 0 and not _reads(self.before, other, number, one):
                score -= _AGAINST
        return score


def _reads(side: Side, reader: int, number: int, maker: int) -> bool:
    reads = side.flow[reader].reads
    return number < len(reads) and maker in reads[number]


def along(
    pairs: Pairs, known: Iterable[tuple[int, int]], rings: tuple[Sequence[int], Sequence[int]]
) -> list[tuple[int, int]]:
    """Match neighbours of these pairs, and theirs, that have the same around them and are alone in that; in one pass.

    What is left has more than one neighbour like it, or stands where something was changed.
    """
    waiting = deque(known)
    found = []
    while waiting:
        one, two = waiting.popleft()
        for ones, twos in _beside(pairs, one, two):
            theirs = _alone([(number, rings[1][place], place) for place, number in twos])
            for key, first in _alone([(number, rings[0][place], place) for place, number in ones]).items():
                if key in theirs and pairs.add(first, theirs[key]):
                    found.append((first, theirs[key]))
                    waiting.append(found[-1])
    return found


_Numbered = list[tuple[int, int]]


def _beside(pairs: Pairs, one: int, two: int) -> Iterator[tuple[_Numbered, _Numbered]]:
    """What a pair reads, then who reads it, each with the number of the operand, on both sides; some is unmatched."""
    before, after = pairs.before, pairs.after
    for ones, twos in (
        (_makers(before, one), _makers(after, two)),
        (before.readers[one][:_MOST_NEIGHBOURS], after.readers[two][:_MOST_NEIGHBOURS]),
    ):
        if any(pairs.to_after[place] < 0 for place, _ in ones):
            yield ones, twos


def _makers(side: Side, place: int) -> _Numbered:
    return [(maker, number) for number, makers in enumerate(side.flow[place].reads) for maker in makers]


def _alone(keyed: list[tuple[int, int, int]]) -> dict[tuple[int, int], int]:
    """The places that have their key alone."""
    found: dict[tuple[int, int], int] = {}
    for number, ring, place in keyed:
        found[number, ring] = -1 if (number, ring) in found else place
    return {key: place for key, place in found.items() if place >= 0}


def spread(pairs: Pairs, known: Iterable[tuple[int, int]], least: int = ENOUGH) -> list[tuple[int, int]]:
    """Match neighbours of these pairs, and theirs, as long as the evidence is enough; returns what was found."""
    waiting: list[_Candidate] = []
    near = _near_unmatched(pairs)
    for one, two in known:
        if one in near:
            _propose(pairs, one, two, waiting, least)
    found = []
    while waiting:
        negative, distance, one, two = heapq.heappop(waiting)
        if pairs.to_after[one] >= 0 or pairs.to_before[two] >= 0:
            continue
        score = pairs.score(one, two)
        if score < -negative:  # something else was found since that speaks against it
            if score >= least:
                heapq.heappush(waiting, (-score, distance, one, two))
            continue
        if pairs.add(one, two):
            found.append((one, two))
            _propose(pairs, one, two, waiting, least)
    return found


def _near_unmatched(pairs: Pairs) -> set[int]:
    """The nodes before that lie as far from one without a partner as neighbours are looked for: two steps."""
    side = pairs.before
    near = {place for place, other in enumerate(pairs.to_after) if other < 0}
    for _ in range(2):
        near |= {each for place in near for each in _around(side, place)}
    return near


def _around(side: Side, place: int) -> Iterator[int]:
    node = side.flow[place]
    for makers in node.reads:
        yield from makers
    for reader, _ in (*side.readers[place], *side.passing[place]):
        yield reader
    yield from side.ends[place]
    if node.holder >= 0:
        yield node.holder


def _propose(pairs: Pairs, one: int, two: int, waiting: list[_Candidate], least: int) -> None:
    """Put the pairs of neighbours of a pair into the heap."""
    for first, second in dict.fromkeys(_neighbours(pairs, one, two)):
        if pairs.to_after[first] < 0 and pairs.to_before[second] < 0 and pairs.can_be(first, second):
            score = pairs.score(first, second)
            if score >= least:
                distance = abs((first - one) - (second - two))
                heapq.heappush(waiting, (-score, distance, first, second))


def _neighbours(pairs: Pairs, one: int, two: int) -> Iterator[tuple[int, int]]:
    before, after = pairs.before, pairs.after
    first, second = before.flow[one], after.flow[two]
    for makers, others in zip(first.reads, second.reads, strict=False):
        for maker in makers[:_MOST_NEIGHBOURS]:
            for other in others[:_MOST_NEIGHBOURS]:
                yield maker, other
                # Something may have been put between, or taken away.
                yield from ((maker, far) for several in after.flow[other].reads for far in several[:2])
                yield from ((far, other) for several in before.flow[maker].reads for far in several[:2])
    yield from _of_readers(before.readers[one], after.readers[two])
    yield from _of_readers(before.passing[one], after.passing[two])
    if first.holder >= 0 and second.holder >= 0:
        yield first.holder, second.holder
    yield from _of_readers([(end, 0) for end in before.ends[one]], [(end, 0) for end in after.ends[two]])
    yield from _behind(pairs, one, two)


def _of_readers(ones: list[tuple[int, int]], twos: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Readers by the same operand: all with all of few, in their order of many."""
    if len(ones) * len(twos) <= _MOST_NEIGHBOURS**2:
        yield from ((one, two) for one, number in ones for two, other in twos if number == other)
    else:
        yield from ((one, two) for (one, number), (two, other) in zip(ones, twos, strict=False) if number == other)


def _behind(pairs: Pairs, one: int, two: int) -> Iterator[tuple[int, int]]:
    """Readers of readers: something may have been put between, or taken away."""
    before, after = pairs.before, pairs.after
    ones, twos = before.readers[one][:4], after.readers[two][:4]
    for reader, _ in ones:
        for other, _ in twos:
            yield from ((reader, far) for far, _ in after.readers[other][:4])
            yield from ((far, other) for far, _ in before.readers[reader][:4])
