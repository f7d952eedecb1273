"""Ops of two models matched, also across dialects."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Final

from msgspec import structs

from tracemap.compare.model import Match, MatchKind
from tracemap.compare.neighbourhoods import (
    RINGS,
    Numbers,
    Pairs,
    Side,
    align,
    align_gaps,
    backward_numbers,
    forward_numbers,
    gaps,
    match_unique_neighbours,
    propagate,
    ring_numbers,
    unique_in_both,
)
from tracemap.core.locations import CallSite, FileRange, Fused, Location, is_informative
from tracemap.core.units import Unknown
from tracemap.map.bundle_documents import OWN_TEXT, Flow, FlowNode
from tracemap.map.model import OpId

# ---- dialects
#
# Match programs of different dialects, such as a StableHLO model and its linalg form, or torch and ONNX.
#
# Ops of different dialects are never equal, so these matches are approximate. Ops with a common location match first,
# if one program was made from the other. Then ops of the same kind match, in order: within equal scopes, and finally
# between matched ops. Among possible orders, take the alignment with most equal shapes and scopes.


_LIKE, _SHAPE, _SCOPE = 2, 4, 1
"""Score for the same kind of op, the same shape, and the same scope. Kinds are few and repeat often, so shape wins."""
_CONSTANT: Final = "constant"
_IndexPairs = Iterator[tuple[int, int]]


def _dialect(flow: Flow) -> str:
    """The dialect of most ops; "" without ops."""
    counts = Counter(node.name.partition(".")[0] for node in flow if node.word and node.word != _CONSTANT)
    return max(sorted(counts), key=counts.__getitem__, default="")


def approximate(pairs: Pairs, files: tuple[str, str]) -> list[tuple[int, int]]:
    """Match ops of the same kind, by location, then by scope, then by order; returns the new matches.

    `files`: names of both programs' texts, as locations in the other program have them.
    """
    # The ops of each side that share a location with the other side, so that their origin is known.
    shared: tuple[set[int], set[int]] = (set(), set())
    matches = list(_by_location(pairs, files, shared))
    # The others that compute something, except for constants, which are too many and too alike.
    candidates = [
        {index for index, node in enumerate(side.flow) if node.word not in ("", _CONSTANT)} - known
        for side, known in zip((pairs.before, pairs.after), shared, strict=True)
    ]
    old_scopes, new_scopes = (
        _in_scopes(side, indexes) for side, indexes in zip((pairs.before, pairs.after), candidates, strict=True)
    )
    for scope in sorted(old_scopes.keys() & new_scopes.keys()):
        matches += _aligned(pairs, old_scopes[scope], new_scopes[scope])
    for before, after in gaps(pairs, sorted(matches)):
        old_indexes = [old for old in before if old in candidates[0]]
        matches += _aligned(pairs, old_indexes, [new for new in after if new in candidates[1]])
    return matches


# ---- by location


def _by_location(pairs: Pairs, files: tuple[str, str], shared: tuple[set[int], set[int]]) -> _IndexPairs:
    """Match ops with a common location: the whole location first, then a part of a fused or inlined one."""
    for owner in (0, 1):
        file_names = [file if side == owner else "" for side, file in enumerate(files)]
        for parts in ((False, False), (False, True), (True, False)):
            sides = zip((pairs.before, pairs.after), file_names, parts, strict=True)
            old_ops, new_ops = (_at_places(*side) for side in sides)
            for location, ops in old_ops.items():
                if location in new_ops:
                    shared[0].update(ops)
                    shared[1].update(new_ops[location])
                    yield from _match_at_location(pairs, ops, new_ops[location])


def _at_places(side: Side, file: str, in_parts: bool) -> Mapping[Hashable, list[int]]:
    """Ops by location. `file`: name of the model's own text; "": locations in it do not count."""
    indexes: dict[Hashable, list[int]] = defaultdict(list)
    for index, node in enumerate(side.flow):
        if node.word:
            for location in _parts(node.location) if in_parts else (node.location,):
                if is_informative(location) and (key := _key(location, file)) is not None:
                    indexes[key].append(index)
    return indexes


def _key(location: Location, file: str) -> Hashable:
    """Key of a location, independent of the file's folder; None for a location in the model's own, unnamed text."""
    if not isinstance(location, FileRange):
        return location
    name = file if location.file == OWN_TEXT else location.file
    return structs.replace(location, file=PurePath(name).name) if name else None


def _parts(location: Location) -> Iterator[Location]:
    """The parts of a location; for an inlined call, the callee's location."""
    match location:
        case CallSite():
            yield location.callee
            yield from _parts(location.callee)
        case Fused():
            for part in dict.fromkeys(location.locations):
                yield part
                yield from _parts(part)
        case _:
            pass


def _match_at_location(pairs: Pairs, old_indexes: Sequence[int], new_indexes: Sequence[int]) -> _IndexPairs:
    """Match ops at one location: those of the same kind, then others of the same shape, in order."""
    yield from _aligned(pairs, old_indexes, new_indexes)
    flows = pairs.before.flow, pairs.after.flow
    unmatched_old = [old for old in old_indexes if pairs.to_after[old] < 0 and flows[0][old].word != _CONSTANT]
    unmatched_new = [new for new in new_indexes if pairs.to_before[new] < 0 and flows[1][new].word != _CONSTANT]
    remaining = zip(unmatched_old, unmatched_new, strict=False)
    yield from _put_all(pairs, ((old, new) for old, new in remaining if flows[0][old].shape == flows[1][new].shape))


# ---- by scope and order


def _in_scopes(side: Side, indexes: Iterable[int]) -> Mapping[tuple[str, ...], list[int]]:
    indexes_by_scope: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index in sorted(indexes):
        if scope := side.flow[index].where:
            indexes_by_scope[scope].append(index)
    return indexes_by_scope


def _aligned(pairs: Pairs, old_indexes: Sequence[int], new_indexes: Sequence[int]) -> list[tuple[int, int]]:
    """Match ops of the same kind in two series, in order."""
    old_indexes = [old for old in old_indexes if pairs.to_after[old] < 0]
    new_indexes = [new for new in new_indexes if pairs.to_before[new] < 0]
    old_nodes, new_nodes = (
        [pairs.before.flow[old] for old in old_indexes],
        [pairs.after.flow[new] for new in new_indexes],
    )
    alignment = align(old_nodes, new_nodes, _likeness, lambda node: (node.word, node.shape))
    return list(_put_all(pairs, ((old_indexes[i], new_indexes[j]) for i, j in alignment)))


def _put_all(pairs: Pairs, proposed: Iterable[tuple[int, int]]) -> _IndexPairs:
    return ((old, new) for old, new in proposed if pairs.put(old, new))


def _likeness(old: FlowNode, new: FlowNode) -> int:
    if old.word != new.word:
        return 0
    return _LIKE + _SHAPE * (old.shape == new.shape) + _SCOPE * (old.where == new.where)


# ---- matching


_ROUNDS: Final = 4
"""Number of alternations between order and neighbours."""
_ALIKE: Final = 3
"""Radius of the ring by which unique neighbours match."""
_Rings = Sequence[Sequence[int]]


def match_flows(before: Flow, after: Flow, files: tuple[str, str] = ("", "")) -> tuple[Match, ...]:
    """Match the ops of two models whose nodes were numbered together; in the order of the first model.

    `files`: names of both models' texts, as locations in a program that was made from the other one have them.
    """
    pairs = Pairs(*map(Side, _with_numbered_arguments(before, after)))
    kinds: dict[int, MatchKind] = {}

    def note(proposals: Iterable[tuple[int, int]], by: MatchKind) -> list[tuple[int, int]]:
        matches = list(proposals)
        kinds.update({old: by for old, _ in matches})
        return matches

    rings = ring_numbers(pairs.before), ring_numbers(pairs.after)
    known = note(_add_all(pairs, _anchors(pairs, rings)), MatchKind.STRUCTURE)
    known += note(match_unique_neighbours(pairs, known, (rings[0][_ALIKE], rings[1][_ALIKE])), MatchKind.NEIGHBOURS)
    note(propagate(pairs, known), MatchKind.NEIGHBOURS)
    # Slices that are equal but for attributes and types, for programs in which a shape changed everywhere.
    known = note(_add_all(pairs, _by_cones(pairs, loose=True, only_both=True)), MatchKind.STRUCTURE)
    note(propagate(pairs, known), MatchKind.NEIGHBOURS)
    dialects = {_dialect(before), _dialect(after)}
    dialects_differ = len(dialects) == 2 and "" not in dialects
    if dialects_differ:
        note(approximate(pairs, files), MatchKind.APPROXIMATE)
    for iteration in range(1 if dialects_differ else _ROUNDS):
        if not pairs.is_left:
            break
        proposals = note(_likely(pairs, align_gaps(pairs, loose=iteration % 2 == 1)), MatchKind.ORDER)
        note(propagate(pairs, proposals), MatchKind.NEIGHBOURS)
    return tuple(_matches(pairs, kinds))


_ARGUMENTS: Final = 1 << 62
"""The number of the first argument: beyond all numbers of contents, which are counted from 0."""


def _with_numbered_arguments(before: Flow, after: Flow) -> tuple[Flow, Flow]:
    """Distinguish the arguments of entry points by their order, if both models have as many.

    Otherwise layers that differ only in which weights they read would be equal, and could match another layer.
    """
    count = sum(node.is_argument for node in before)
    if count != sum(node.is_argument for node in after):
        return before, after
    types = [[node.exact for node in flow if node.is_argument] for flow in (before, after)]
    same = [old == new for old, new in zip(*types, strict=True)]

    def numbered(flow: Flow) -> Iterator[FlowNode]:
        numbers = iter(range(count))
        for node in flow:
            if node.is_argument:
                number = next(numbers)
                own = _ARGUMENTS + number
                yield structs.replace(node, loose=own, exact=own if same[number] else node.exact)
            else:
                yield node

    return tuple(numbered(before)), tuple(numbered(after))


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


def _by_cones(pairs: Pairs, *, loose: bool, only_both: bool = False) -> Iterator[tuple[int, int]]:
    sides = (pairs.before, pairs.after)
    up: Numbers = {}
    down: Numbers = {}
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


def _matches(pairs: Pairs, kinds: dict[int, MatchKind]) -> Iterator[Match]:
    for old, new in pairs:
        old_node, new_node = pairs.before.flow[old], pairs.after.flow[new]
        if isinstance(old_node.op, OpId) and not isinstance(new_node.op, Unknown):
            edited = old_node.exact != new_node.exact and kinds[old] is not MatchKind.APPROXIMATE
            yield Match(old_node.op, new_node.op, kinds[old], edited=edited)
