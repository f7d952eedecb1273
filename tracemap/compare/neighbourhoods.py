"""Match ops by their surroundings: structure, neighbours, order."""

from __future__ import annotations

import heapq
import operator
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, product
from typing import TYPE_CHECKING, Final, TypeVar

from tracemap.map.bundle_documents import Flow

# ---- structure
#
# Hash the structure around each node with numbers that are equal in both models.
#
# A node's backward number covers its backward slice (operands of operands), its forward number the forward slice (users
# of users). Its ring number covers all nodes within a few steps (colours of Weisfeiler and Leman, 1968). Two nodes
# match if each is the only node of its model with a number, and the numbers are equal.


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    Places = NDArray[np.int64]

RINGS: Final = (6, 4, 3, 2, 1)
"""Radii of rings in steps, the most specific first."""


Numbers = dict[Hashable, int]
"""Numbers of contents, in order of appearance."""


class Side:
    """One of the two models: its nodes, and the users of each."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.users: list[list[tuple[int, int]]] = [[] for _ in flow]
        """Users of each node, with the operand's index. Calls and returns, which only forward values, are left out."""
        self.passing: list[list[tuple[int, int]]] = [[] for _ in flow]
        """Calls and returns that forward the value of each node."""
        self.ends: list[list[int]] = [[] for _ in flow]
        """Terminators of each node; for functions, their calls."""
        for index, node in enumerate(flow):
            for operand, producers in enumerate(node.reads):
                for producer in producers:
                    (self.passing if node.passes_on else self.users)[producer].append((index, operand))
            if node.holder >= 0:
                self.ends[node.holder].append(index)

    def labels(self, *, loose: bool) -> list[int]:
        """The number of each node on its own."""
        return [node.loose if loose else node.exact for node in self.flow]

    @cached_property
    def producers_first(self) -> list[int]:
        """All indexes in topological order: nodes after their operands, functions after their calls."""
        return _topological(range(len(self.flow)), lambda index: chain.from_iterable(self.flow[index].reads))

    @cached_property
    def users_first(self) -> list[int]:
        """All indexes in topological order: nodes after their users."""
        last_first = range(len(self.flow) - 1, -1, -1)
        return _topological(last_first, lambda index: (user for user, _ in self.users[index]))

    @cached_property
    def edges(self) -> tuple[Places, Places, Hashes]:
        """Edges in three columns: the user, the producer, and a hash of the operand's index."""
        import numpy as np

        edges = [(index, *read) for index in range(len(self.flow)) for read in _producers(self, index)]
        columns = np.array(edges, dtype=np.int64).reshape(-1, 3)
        return columns[:, 0], columns[:, 1], _mixed(columns[:, 2].astype(np.uint64))


def _topological(roots: Sequence[int], needs: Callable[[int], Iterable[int]]) -> list[int]:
    """Order all indexes after the indexes that they need. A cycle is cut at one of its nodes."""
    done, opened = [False] * len(roots), set[int]()
    ordered = []
    for root in roots:
        waiting = [root]
        while waiting:
            index = waiting[-1]
            missing = () if done[index] else [need for need in needs(index) if not done[need] and need not in opened]
            if missing and index not in opened:
                opened.add(index)
                waiting += missing
                continue
            waiting.pop()
            if not done[index]:
                done[index] = True
                ordered.append(index)
    return ordered


def backward_numbers(side: Side, labels: Sequence[int], numbers: Numbers) -> list[int]:
    """Numbers of the backward slices."""
    result = [-1] * len(labels)
    for index in side.producers_first:
        read = [
            # An operand mostly has a single producer.
            result[producers[0]] if len(producers) == 1 else tuple(sorted([result[producer] for producer in producers]))
            for producers in side.flow[index].reads
        ]
        result[index] = numbers.setdefault((labels[index], *read), len(numbers))
    return result


def forward_numbers(side: Side, labels: Sequence[int], numbers: Numbers) -> list[int]:
    """Numbers of the forward slices. Users come after their operands, except for functions' contents."""
    result = [-1] * len(labels)
    for index in side.users_first:
        users = sorted([(result[user], operand) for user, operand in side.users[index]])
        result[index] = numbers.setdefault((labels[index], *users), len(numbers))
    return result


def ring_numbers(side: Side) -> list[list[int]]:
    """Numbers of the nodes within 0, 1, 2, … steps around each node. With 64 bits, collisions are negligible.

    Each step is computed at once, in columns. A set of neighbours is the sum of their mixed numbers, modulo 2^64.
    """
    import numpy as np

    user, producer, operand = side.edges
    is_direct = ~np.array([node.passes_on for node in side.flow], dtype=bool)[user]
    current = _mixed(np.array(side.labels(loose=False), dtype=np.uint64))
    rings = [current]
    for _ in range(max(RINGS)):
        from_operands, from_users = np.zeros_like(current), np.zeros_like(current)
        np.add.at(from_operands, user, _mixed(current[producer] + operand))
        np.add.at(from_users, producer[is_direct], _mixed(current[user[is_direct]] ^ operand[is_direct]))
        current = _mixed(_mixed(_mixed(current) + from_operands) + from_users)
        rings.append(current)
    return [ring.tolist() for ring in rings]


def _mixed(numbers: Hashes) -> Hashes:
    """Mix numbers so that each bit affects all bits (Steele, Lea and Flood 2014: the finalizer of SplitMix64)."""
    import numpy as np

    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def unique_in_both(before: Sequence[Hashable], after: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Indexes of nodes that are the only one with their key in both models. Key `None` never matches."""
    before_indexes, after_indexes = (
        _unique((key, index) for index, key in enumerate(keys)) for keys in (before, after)
    )
    return (
        (index, after_indexes[key]) for key, index in before_indexes.items() if key is not None and key in after_indexes
    )


def _unique(keyed: Iterable[tuple[Hashable, int]]) -> dict[Hashable, int]:
    """The indexes with a unique key."""
    indexes: dict[Hashable, int] = {}
    for key, index in keyed:
        indexes[key] = -1 if key in indexes else index
    return {key: index for key, index in indexes.items() if index >= 0}


# ---- neighbours
#
# Match nodes next to matched nodes: operands and users.
#
# Candidates are processed in order of evidence. A pair gains score if neighbours at the same operand are matched to
# each other, and loses score if one is matched elsewhere. Operands define a value, so they weigh more than users. Each
# new match is evidence for its own neighbours.


_READS, _USERS, _ENDS, _SAME, _WHERE, _AGAINST = 6, 4, 4, 2, 1, 2
"""Score of a pair for: an operand, a user, a terminator or its holder, equal contents, equal scope.

The last is the penalty for a neighbour that is matched elsewhere."""
_FEW_USERS, _READS_COMMON = 3, 2
"""An operand with more users, such as a constant that all layers read, is less evidence."""
LEAST_SCORE: Final = 4
"""Smallest score of a match that neighbours propose."""
_MOST_NEIGHBOURS: Final = 24
"""Limit on the users of a node that are considered."""

_Candidate = tuple[int, int, int, int]


class Pairs:
    """The matches so far: for each node of both sides the index of its partner, -1 for none."""

    def __init__(self, before: Side, after: Side) -> None:
        self.before, self.after = before, after
        self.to_after = [-1] * len(before.flow)
        self.to_before = [-1] * len(after.flow)

    def add(self, old: int, new: int) -> bool:
        """Match two nodes. False: one of them is already matched, or they are of different kinds."""
        return self.can_be(old, new) and self.put(old, new)

    def put(self, old: int, new: int) -> bool:
        """Match two nodes of any kinds. False: one of them is already matched."""
        if self.to_after[old] >= 0 or self.to_before[new] >= 0:
            return False
        self.to_after[old], self.to_before[new] = new, old
        return True

    def can_be(self, old: int, new: int) -> bool:
        """Whether two nodes are of the same kind."""
        old_node, new_node = self.before.flow[old], self.after.flow[new]
        return old_node.name == new_node.name and old_node.passes_on == new_node.passes_on

    @property
    def is_left(self) -> bool:
        """Whether both models have unmatched nodes."""
        return min(self.to_after, default=0) < 0 and min(self.to_before, default=0) < 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((old, new) for old, new in enumerate(self.to_after) if new >= 0)

    # ---- evidence

    def score(self, old: int, new: int) -> int:
        """Evidence that two nodes are the same."""
        old_node, new_node = self.before.flow[old], self.after.flow[new]
        score = _SAME * (old_node.exact == new_node.exact) + _WHERE * (
            bool(old_node.where) and old_node.where == new_node.where
        )
        for producers, others in zip(old_node.reads, new_node.reads, strict=False):
            score += self._of_operand(producers, others)
        score += self._of_users(old, new)
        if old_node.holder >= 0 and self.to_after[old_node.holder] >= 0:
            score += _ENDS if self.to_after[old_node.holder] == new_node.holder else -_AGAINST
        ends = self.before.ends[old][:_MOST_NEIGHBOURS]
        return score + sum(_ENDS for end in ends if self.to_after[end] in self.after.ends[new])

    def _of_operand(self, producers: tuple[int, ...], others: tuple[int, ...]) -> int:
        for producer in producers:
            if self.to_after[producer] in others:
                return _READS if len(self.before.users[producer]) <= _FEW_USERS else _READS_COMMON
        sides = (self.to_after, producers), (self.to_before, others)
        return -_AGAINST * sum(any(to[producer] >= 0 for producer in own) for to, own in sides)

    def _of_users(self, old: int, new: int) -> int:
        score = 0
        for user, operand in self.before.users[old][:_MOST_NEIGHBOURS]:
            other = self.to_after[user]
            if other >= 0:
                score += _USERS if _reads(self.after, other, operand, new) else -_AGAINST
        for user, operand in self.after.users[new][:_MOST_NEIGHBOURS]:
            other = self.to_before[user]
            if other >= 0 and not _reads(self.before, other, operand, old):
                score -= _AGAINST
        return score


def _reads(side: Side, user: int, operand: int, producer: int) -> bool:
    reads = side.flow[user].reads
    return operand < len(reads) and producer in reads[operand]


def match_unique_neighbours(
    pairs: Pairs, known: Iterable[tuple[int, int]], rings: tuple[Sequence[int], Sequence[int]]
) -> list[tuple[int, int]]:
    """Match neighbours of pairs, and their neighbours, if they are the only one with their ring number; in one pass.

    Nodes with several equal neighbours, or near a change, remain unmatched.
    """
    waiting = deque(known)
    matches = []
    while waiting:
        old, new = waiting.popleft()
        for old_indexes, new_indexes in _operands_and_users(pairs, old, new):
            new_candidates = _unique(((operand, rings[1][index]), index) for index, operand in new_indexes)
            old_candidates = _unique(((operand, rings[0][index]), index) for index, operand in old_indexes)
            for key, old_neighbour in old_candidates.items():
                if key in new_candidates and pairs.add(old_neighbour, new_candidates[key]):
                    matches.append((old_neighbour, new_candidates[key]))
                    waiting.append(matches[-1])
    return matches


_Numbered = list[tuple[int, int]]


def _operands_and_users(pairs: Pairs, old: int, new: int) -> Iterator[tuple[_Numbered, _Numbered]]:
    """Operands of a pair, then users, with operand indexes, on both sides; only if some are unmatched."""
    before, after = pairs.before, pairs.after
    for old_indexes, new_indexes in (
        (_producers(before, old), _producers(after, new)),
        (before.users[old][:_MOST_NEIGHBOURS], after.users[new][:_MOST_NEIGHBOURS]),
    ):
        if any(pairs.to_after[index] < 0 for index, _ in old_indexes):
            yield old_indexes, new_indexes


def _producers(side: Side, index: int) -> _Numbered:
    return [(producer, operand) for operand, producers in enumerate(side.flow[index].reads) for producer in producers]


def propagate(pairs: Pairs, known: Iterable[tuple[int, int]], least: int = LEAST_SCORE) -> list[tuple[int, int]]:
    """Match neighbours of pairs, and their neighbours, while the evidence is sufficient; returns the new matches."""
    waiting: list[_Candidate] = []
    near = _near_unmatched(pairs)
    for old, new in known:
        if old in near:
            _propose(pairs, old, new, waiting, least)
    matches = []
    while waiting:
        negative, distance, old, new = heapq.heappop(waiting)
        if pairs.to_after[old] >= 0 or pairs.to_before[new] >= 0:
            continue
        score = pairs.score(old, new)
        if score < -negative:  # a later match contradicts it
            if score >= least:
                heapq.heappush(waiting, (-score, distance, old, new))
            continue
        if pairs.add(old, new):
            matches.append((old, new))
            _propose(pairs, old, new, waiting, least)
    return matches


def _near_unmatched(pairs: Pairs) -> set[int]:
    """Nodes before that are within two steps of an unmatched node, the distance at which neighbours are considered."""
    side = pairs.before
    near = {index for index, partner in enumerate(pairs.to_after) if partner < 0}
    for _ in range(2):
        near |= {neighbour for index in near for neighbour in _around(side, index)}
    return near


def _around(side: Side, index: int) -> Iterator[int]:
    node = side.flow[index]
    for producers in node.reads:
        yield from producers
    for user, _ in (*side.users[index], *side.passing[index]):
        yield user
    yield from side.ends[index]
    if node.holder >= 0:
        yield node.holder


def _propose(pairs: Pairs, old: int, new: int, waiting: list[_Candidate], least: int) -> None:
    for old_neighbour, new_neighbour in dict.fromkeys(_neighbours(pairs, old, new)):
        if (
            pairs.to_after[old_neighbour] < 0
            and pairs.to_before[new_neighbour] < 0
            and pairs.can_be(old_neighbour, new_neighbour)
        ):
            score = pairs.score(old_neighbour, new_neighbour)
            if score >= least:
                distance = abs((old_neighbour - old) - (new_neighbour - new))
                heapq.heappush(waiting, (-score, distance, old_neighbour, new_neighbour))


def _neighbours(pairs: Pairs, old: int, new: int) -> Iterator[tuple[int, int]]:
    before, after = pairs.before, pairs.after
    old_node, new_node = before.flow[old], after.flow[new]
    for producers, others in zip(old_node.reads, new_node.reads, strict=False):
        for producer, other in product(producers[:_MOST_NEIGHBOURS], others[:_MOST_NEIGHBOURS]):
            yield producer, other
            # A node may have been inserted or removed in between.
            yield from ((producer, far) for more_producers in after.flow[other].reads for far in more_producers[:2])
            yield from ((far, other) for more_producers in before.flow[producer].reads for far in more_producers[:2])
    yield from _user_pairs(before.users[old], after.users[new])
    yield from _user_pairs(before.passing[old], after.passing[new])
    if old_node.holder >= 0 and new_node.holder >= 0:
        yield old_node.holder, new_node.holder
    yield from _user_pairs([(end, 0) for end in before.ends[old]], [(end, 0) for end in after.ends[new]])
    yield from _pairs_of_far_users(pairs, old, new)


def _user_pairs(old_indexes: list[tuple[int, int]], new_indexes: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Pairs of users by the same operand: all combinations of a few, in order for many."""
    few = len(old_indexes) * len(new_indexes) <= _MOST_NEIGHBOURS**2
    pairs = product(old_indexes, new_indexes) if few else zip(old_indexes, new_indexes, strict=False)
    return ((old, new) for (old, old_operand), (new, new_operand) in pairs if old_operand == new_operand)


def _pairs_of_far_users(pairs: Pairs, old: int, new: int) -> Iterator[tuple[int, int]]:
    """Pairs of users of users, since a node may have been inserted or removed in between."""
    before, after = pairs.before.users, pairs.after.users
    for (user, _), (other, _) in product(before[old][:4], after[new][:4]):
        yield from ((user, far) for far, _ in after[other][:4])
        yield from ((far, other) for far, _ in before[user][:4])


# ---- order


_MOST_CELLS: Final = 250_000
"""Limit for exact alignment."""


def align_gaps(pairs: Pairs, *, loose: bool) -> Iterator[tuple[int, int]]:
    """Pairs of unmatched nodes, by a longest common subsequence in each gap between matched nodes."""
    old_labels, new_labels = pairs.before.labels(loose=loose), pairs.after.labels(loose=loose)
    for old_indexes, new_indexes in gaps(pairs, list(pairs)):
        if old_indexes and new_indexes:
            alignment = align(
                [old_labels[old] for old in old_indexes], [new_labels[new] for new in new_indexes], operator.eq, int
            )
            yield from ((old_indexes[i], new_indexes[j]) for i, j in alignment)


def gaps(pairs: Pairs, matched: Sequence[tuple[int, int]]) -> Iterator[tuple[list[int], list[int]]]:
    """Unmatched indexes between matched nodes, where these are in the same order in both models."""
    bounds = [*longest_rising(matched), (len(pairs.to_after), len(pairs.to_before))]
    left = [[index for index, partner in enumerate(to) if partner < 0] for to in (pairs.to_after, pairs.to_before)]
    begin = [0, 0]
    for end in bounds:
        positions = [bisect_left(indexes, bound) for indexes, bound in zip(left, end, strict=True)]
        old_indexes, new_indexes = (own[first:last] for own, first, last in zip(left, begin, positions, strict=True))
        yield old_indexes, new_indexes
        begin = positions


def longest_rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Longest subsequence of pairs whose second parts rise (Fredman 1975). The other pairs have moved."""
    tails: list[int] = []
    indexes: list[int] = []
    previous: list[int] = []
    for index, (_, value) in enumerate(pairs):
        position = bisect_left(tails, value)
        previous.append(indexes[position - 1] if position else -1)
        tails[position : position + 1] = [value]
        indexes[position : position + 1] = [index]
    result = []
    index = indexes[-1] if indexes else -1
    while index >= 0:
        result.append(pairs[index])
        index = previous[index]
    return result[::-1]


_Item = TypeVar("_Item")


def align(
    left: Sequence[_Item],
    right: Sequence[_Item],
    gain_of: Callable[[_Item, _Item], int],
    key: Callable[[_Item], Hashable],
) -> Iterator[tuple[int, int]]:
    """The alignment of two series with the highest total gain; of equal alignments, the one that matches earlier items.

    Gains are at least 0, and items without a gain do not match (Needleman and Wunsch, Journal of Molecular Biology 48,
    1970, p. 443). In series that are too long for this, the n-th items of a key match.
    """
    import numpy as np

    if len(left) * len(right) > _MOST_CELLS:
        indexes: dict[Hashable, list[int]] = defaultdict(list)
        for j in range(len(right) - 1, -1, -1):
            indexes[key(right[j])].append(j)
        yield from ((i, indexes[key(item)].pop()) for i, item in enumerate(left) if indexes[key(item)])
        return
    gains = np.array([[gain_of(old, new) for new in right] for old in left], dtype=np.int64)
    # totals[i, j]: gain of the best alignment from there on.
    totals = np.zeros((len(left) + 1, len(right) + 1), dtype=np.int64)
    for i in range(len(left) - 1, -1, -1):
        with_both = np.where(gains[i], totals[i + 1, 1:] + gains[i], 0)
        best = np.maximum(totals[i + 1, :-1], with_both)
        totals[i, :-1] = np.maximum.accumulate(best[::-1])[::-1]
    i = j = 0
    while i < len(left) and j < len(right):
        if gains[i, j] and totals[i, j] == totals[i + 1, j + 1] + gains[i, j]:
            yield i, j
            i, j = i + 1, j + 1
        elif totals[i, j] == totals[i + 1, j]:
            i += 1
        else:
            j += 1
