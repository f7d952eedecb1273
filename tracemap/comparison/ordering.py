"""Ops that are found by their order: what stands between the same matched ops, in the same order, in both models."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from tracemap.comparison.neighbours import Pairs

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
