"""Ops matched by what surrounds them: anchors, neighbours, order."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tracemap.graph.documents import Flow

# ---- anchors
#
# Ops that are found by what is computed before and behind them: numbers for neighbourhoods, equal in both models.
#
# A node's number *upwards* stands for all that its value is made of, *downwards* for all that is made of it, of a
# *ring* for what lies a few steps around it (the colours of Weisfeiler and Leman, 1968). What has a number that no
# other node of its model has, and one of the other model has alone as well, is the same op.


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


# ---- neighbours
#
# Ops that are found by their neighbours: who reads, or is read by, what is matched already.
#
# Pairs of nodes with evidence are looked at best first. A pair gains where neighbours at the same operand are matched
# to one another, and loses where one is matched to something else; operands, of which a value is made, tell more than
# readers. What is found is evidence for its own neighbours.


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
            theirs = _unmatched_alone([(number, rings[1][place], place) for place, number in twos])
            for key, first in _unmatched_alone([(number, rings[0][place], place) for place, number in ones]).items():
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


def _unmatched_alone(keyed: list[tuple[int, int, int]]) -> dict[tuple[int, int], int]:
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
    yield from _pairs_behind(pairs, one, two)


def _of_readers(ones: list[tuple[int, int]], twos: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Readers by the same operand: all with all of few, in their order of many."""
    if len(ones) * len(twos) <= _MOST_NEIGHBOURS**2:
        yield from ((one, two) for one, number in ones for two, other in twos if number == other)
    else:
        yield from ((one, two) for (one, number), (two, other) in zip(ones, twos, strict=False) if number == other)


def _pairs_behind(pairs: Pairs, one: int, two: int) -> Iterator[tuple[int, int]]:
    """Readers of readers: something may have been put between, or taken away."""
    before, after = pairs.before, pairs.after
    ones, twos = before.readers[one][:4], after.readers[two][:4]
    for reader, _ in ones:
        for other, _ in twos:
            yield from ((reader, far) for far, _ in after.readers[other][:4])
            yield from ((far, other) for far, _ in before.readers[reader][:4])


# ---- ordering
#
# Ops that are found by their order: what stands between the same matched ops, in the same order, in both models.


_MOST_CELLS: Final = 250_000
"""Of larger gaps the n-th node of a label is taken for the n-th."""


def in_order(pairs: Pairs, *, loose: bool) -> Iterator[tuple[int, int]]:
    """Pairs of unmatched nodes by a longest common subsequence of each gap between matched ones."""
    first, second = pairs.before.labels(loose=loose), pairs.after.labels(loose=loose)
    for ones, twos in gaps(pairs, list(pairs)):
        if ones and twos:
            yield from _common([(one, first[one]) for one in ones], [(two, second[two]) for two in twos])


def gaps(pairs: Pairs, matched: Sequence[tuple[int, int]]) -> Iterator[tuple[list[int], list[int]]]:
    """The unmatched places between these matched ones, as far as they stand in the same order in both models."""
    ends = [*rising(matched), (len(pairs.to_after), len(pairs.to_before))]
    left = [[place for place, other in enumerate(to) if other < 0] for to in (pairs.to_after, pairs.to_before)]
    begin = [0, 0]
    for end in ends:
        places = [bisect_left(*each) for each in zip(left, end, strict=True)]
        ones, twos = (own[first:last] for own, first, last in zip(left, begin, places, strict=True))
        yield ones, twos
        begin = places


def rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest series of pairs whose second parts rise (Fredman 1975): the others have moved."""
    tails: list[int] = []
    at: list[int] = []
    before: list[int] = []
    for number, (_, two) in enumerate(pairs):
        place = bisect_left(tails, two)
        before.append(at[place - 1] if place else -1)
        tails[place : place + 1] = [two]
        at[place : place + 1] = [number]
    found = []
    number = at[-1] if at else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


_Labelled = Sequence[tuple[int, Hashable]]


def _common(ones: _Labelled, twos: _Labelled) -> Iterator[tuple[int, int]]:
    if len(ones) * len(twos) > _MOST_CELLS:
        yield from _by_number(ones, twos)
        return
    # lengths[i][j]: of the longest common subsequence of what begins there.
    lengths = [[0] * (len(twos) + 1) for _ in range(len(ones) + 1)]
    for i in range(len(ones) - 1, -1, -1):
        row, below, label = lengths[i], lengths[i + 1], ones[i][1]
        for j in range(len(twos) - 1, -1, -1):
            row[j] = below[j + 1] + 1 if label == twos[j][1] else max(below[j], row[j + 1])
    i = j = 0
    while i < len(ones) and j < len(twos):
        if ones[i][1] == twos[j][1]:
            yield ones[i][0], twos[j][0]
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1


def _by_number(ones: _Labelled, twos: _Labelled) -> Iterator[tuple[int, int]]:
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, label in reversed(twos):
        places[label].append(place)
    for place, label in ones:
        if places[label]:
            yield place, places[label].pop()
