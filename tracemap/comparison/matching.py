"""Match ops of two models: by structure, then by neighbours, then by order."""

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
    align_gaps,
    backward_numbers,
    forward_numbers,
    match_unique_neighbours,
    propagate,
    ring_numbers,
    unique_in_both,
)
from tracemap.graph.documents import Flow
from tracemap.graph.model import OpId
from tracemap.units import Unknown

_ROUNDS: Final = 4
"""Number of alternations between order and neighbours."""
_ALIKE: Final = 3
"""Radius of the ring by which unique neighbours match."""
_Rings = Sequence[Sequence[int]]


def match_flows(before: Flow, after: Flow, files: tuple[str, str] = ("", "")) -> tuple[Match, ...]:
    """Match the ops of two models whose nodes were numbered together; in the order of the first model.

    `files`: names of both models' texts, as locations in a program that was made from the other one have them.
    """
    pairs = Pairs(Side(before), Side(after))
    kinds: dict[int, How] = {}

    def note(proposals: Iterable[tuple[int, int]], by: How) -> list[tuple[int, int]]:
        matches = list(proposals)
        kinds.update({old: by for old, _ in matches})
        return matches

    rings = ring_numbers(pairs.before), ring_numbers(pairs.after)
    known = note(_add_all(pairs, _anchors(pairs, rings)), How.STRUCTURE)
    known += note(match_unique_neighbours(pairs, known, (rings[0][_ALIKE], rings[1][_ALIKE])), How.NEIGHBOURS)
    note(propagate(pairs, known), How.NEIGHBOURS)
    known = note(_add_all(pairs, _loose_anchors(pairs)), How.STRUCTURE)
    note(propagate(pairs, known), How.NEIGHBOURS)
    dialects_differ = are_of_other_dialects(before, after)
    if dialects_differ:
        note(approximate(pairs, files), How.APPROXIMATE)
    for iteration in range(1 if dialects_differ else _ROUNDS):
        if not pairs.is_left:
            break
        proposals = note(_likely(pairs, align_gaps(pairs, loose=iteration % 2 == 1)), How.ORDER)
        note(propagate(pairs, proposals), How.NEIGHBOURS)
    return tuple(_matches(pairs, kinds))


def _add_all(pairs: Pairs, proposed: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(old, new) for old, new in proposed if pairs.add(old, new)]


def _likely(pairs: Pairs, proposed: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Match pairs that no neighbour contradicts, those with most evidence first."""
    scored = sorted((-pairs.score(old, new), old, new) for old, new in proposed)
    for _, old, new in scored:
        if pairs.score(old, new) >= 0 and pairs.add(old, new):
            yield old, new


def _anchors(pairs: Pairs, rings: tuple[_Rings, _Rings]) -> Iterator[tuple[int, int]]:
    """Nodes with equal slices in both directions, then backward, then forward; then with equal rings."""
    yield from _by_cones(pairs, loose=False)
    for radius in RINGS:
        yield from unique_in_both(
            _matchable_keys(pairs.before, rings[0][radius]), _matchable_keys(pairs.after, rings[1][radius])
        )


def _loose_anchors(pairs: Pairs) -> Iterator[tuple[int, int]]:
    """Nodes with equal slices but for attributes and types, for programs in which a shape changed everywhere."""
    yield from _by_cones(pairs, loose=True, only_both=True)


def _by_cones(pairs: Pairs, *, loose: bool, only_both: bool = False) -> Iterator[tuple[int, int]]:
    sides, up, down = (pairs.before, pairs.after), Numbers(), Numbers()
    labels = [side.labels(loose=loose) for side in sides]
    ups = [backward_numbers(side, own, up) for side, own in zip(sides, labels, strict=True)]
    downs = [forward_numbers(side, own, down) for side, own in zip(sides, labels, strict=True)]
    both: list[Sequence[Hashable]] = [list(zip(*numbers, strict=True)) for numbers in zip(ups, downs, strict=True)]
    for keys in (both,) if only_both else (both, ups, downs):
        yield from unique_in_both(*(_matchable_keys(side, own) for side, own in zip(sides, keys, strict=True)))


def _matchable_keys(side: Side, keys: Sequence[Hashable]) -> list[Hashable]:
    """The keys of nodes that can match; None for functions, calls and returns, which compute nothing."""
    return [
        None if node.passes_on or (not node.reads and not side.users[index] and not node.is_argument) else key
        for index, (node, key) in enumerate(zip(side.flow, keys, strict=True))
    ]


def _matches(pairs: Pairs, kinds: dict[int, How]) -> Iterator[Match]:
    for old, new in pairs:
        old_node, new_node = pairs.before.flow[old], pairs.after.flow[new]
        if isinstance(old_node.op, OpId) and not isinstance(new_node.op, Unknown):
            edited = old_node.exact != new_node.exact and kinds[old] is not How.APPROXIMATE
            yield Match(old_node.op, new_node.op, kinds[old], edited=edited)
