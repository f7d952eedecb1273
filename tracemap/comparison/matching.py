"""Which op of one model is which of another: by what is computed, then by neighbours, then by order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final

from tracemap.comparison.dialects import approximate, are_of_other_dialects
from tracemap.comparison.model import How, Match
from tracemap.comparison.neighbourhoods import (
    RINGS,
    Numbers,
    Pairs,
    Side,
    alone_in_both,
    along,
    downwards,
    in_order,
    ringed,
    spread,
    upwards,
)
from tracemap.graph.documents import Flow
from tracemap.graph.model import OpId
from tracemap.units import Unknown

_ROUNDS: Final = 4
"""How often order and neighbours take turns."""
_ALIKE: Final = 3
"""Neighbours of what is matched that have the same so many steps around them are looked at no further."""
_Rings = Sequence[Sequence[int]]


def match_flows(before: Flow, after: Flow, files: tuple[str, str] = ("", "")) -> tuple[Match, ...]:
    """Match the ops of two models that were numbered together; in the order of the first.

    `files`: what the texts of both are called, as locations of the one that was made from the other name it.
    """
    pairs = Pairs(Side(before), Side(after))
    how: dict[int, How] = {}

    def note(found: Iterable[tuple[int, int]], by: How) -> list[tuple[int, int]]:
        noted = list(found)
        how.update({one: by for one, _ in noted})
        return noted

    rings = ringed(pairs.before), ringed(pairs.after)
    known = note(_added(pairs, _anchors(pairs, rings)), How.STRUCTURE)
    known += note(along(pairs, known, (rings[0][_ALIKE], rings[1][_ALIKE])), How.NEIGHBOURS)
    note(spread(pairs, known), How.NEIGHBOURS)
    known = note(_added(pairs, _loose_anchors(pairs)), How.STRUCTURE)
    note(spread(pairs, known), How.NEIGHBOURS)
    other = are_of_other_dialects(before, after)
    if other:
        note(approximate(pairs, files), How.APPROXIMATE)
    for number in range(1 if other else _ROUNDS):
        if not pairs.is_left:
            break
        found = note(_likely(pairs, in_order(pairs, loose=number % 2 == 1)), How.ORDER)
        note(spread(pairs, found), How.NEIGHBOURS)
    return tuple(_matches(pairs, how))


def _added(pairs: Pairs, proposed: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(one, two) for one, two in proposed if pairs.add(one, two)]


def _likely(pairs: Pairs, proposed: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Those whose neighbours do not say otherwise, those with most evidence first."""
    scored = sorted((-pairs.score(one, two), one, two) for one, two in proposed)
    for _, one, two in scored:
        if pairs.score(one, two) >= 0 and pairs.add(one, two):
            yield one, two


def _anchors(pairs: Pairs, rings: tuple[_Rings, _Rings]) -> Iterator[tuple[int, int]]:
    """What has the same in front of it and behind it; then in front; then behind; then around it."""
    yield from _by_cones(pairs, loose=False)
    for steps in RINGS:
        yield from alone_in_both(_told(pairs.before, rings[0][steps]), _told(pairs.after, rings[1][steps]))


def _loose_anchors(pairs: Pairs) -> Iterator[tuple[int, int]]:
    """The same without attributes and types: of programs in which a shape has changed everywhere."""
    yield from _by_cones(pairs, loose=True, only_both=True)


def _by_cones(pairs: Pairs, *, loose: bool, only_both: bool = False) -> Iterator[tuple[int, int]]:
    sides, up, down = (pairs.before, pairs.after), Numbers(), Numbers()
    labels = [side.labels(loose=loose) for side in sides]
    ups = [upwards(side, own, up) for side, own in zip(sides, labels, strict=True)]
    downs = [downwards(side, own, down) for side, own in zip(sides, labels, strict=True)]
    both: list[Sequence[Hashable]] = [list(zip(*each, strict=True)) for each in zip(ups, downs, strict=True)]
    for keys in (both,) if only_both else (both, ups, downs):
        yield from alone_in_both(*(_told(side, own) for side, own in zip(sides, keys, strict=True)))


def _told(side: Side, keys: Sequence[Hashable]) -> list[Hashable]:
    """The keys of nodes that these tell of: not of functions, calls and returns, which compute nothing."""
    return [
        None if node.passes_on or (not node.reads and not side.readers[place] and not node.is_argument) else key
        for place, (node, key) in enumerate(zip(side.flow, keys, strict=True))
    ]


def _matches(pairs: Pairs, how: dict[int, How]) -> Iterator[Match]:
    for one, two in pairs:
        first, second = pairs.before.flow[one], pairs.after.flow[two]
        if isinstance(first.op, OpId) and not isinstance(second.op, Unknown):
            edited = first.exact != second.exact and how[one] is not How.APPROXIMATE
            yield Match(first.op, second.op, how[one], edited=edited)
