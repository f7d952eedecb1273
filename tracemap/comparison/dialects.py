"""Programs of different dialects laid beside each other: a StableHLO model and the linalg form of it, torch and ONNX.

No op of one is an op of the other, so what is matched is approximate: first what comes from the same place, as the
locations of a program that was made from the other say; then, within the same scopes, and last between what is matched,
ops that do the like, in their order. Of several orders that fit, the one with most of like shapes and scopes is taken:
the alignment of Needleman and Wunsch (Journal of Molecular Biology 48, 1970, p. 443).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Final

from tracemap.comparison.neighbourhoods import Pairs, Side, gaps
from tracemap.graph.documents import OWN_TEXT, Flow, FlowNode
from tracemap.locations import CallSite, FileRange, Fused, Location, is_informative

_LIKE, _SHAPE, _SCOPE = 2, 4, 1
"""What two ops gain by doing the like, by the same shape, by the same scope: of few kinds of ops there are many."""
_MOST_CELLS: Final = 250_000
"""Of longer series the n-th op of a kind is taken for the n-th."""
_CONSTANT: Final = "constant"
_Found = Iterator[tuple[int, int]]


def are_of_other_dialects(before: Flow, after: Flow) -> bool:
    """Whether most of what one program computes is of another dialect than what the other does."""
    one, two = _dialect(before), _dialect(after)
    return bool(one and two) and one != two


def _dialect(flow: Flow) -> str:
    counts = Counter(node.name.partition(".")[0] for node in flow if node.word and node.word != _CONSTANT)
    return max(sorted(counts), key=counts.__getitem__, default="")


def approximate(pairs: Pairs, files: tuple[str, str]) -> list[tuple[int, int]]:
    """Match ops that do the like, by location, then by scope, then by order; returns what was found.

    `files`: what the texts of both programs are called, as locations of the other may name them.
    """
    located = _Located()
    found = list(_by_location(pairs, files, located))
    working = _untold(pairs.before, located.before), _untold(pairs.after, located.after)
    ones, twos = (_in_scopes(side, places) for side, places in zip((pairs.before, pairs.after), working, strict=True))
    for scope in sorted(ones.keys() & twos.keys()):
        found += _aligned(pairs, ones[scope], twos[scope])
    for before, after in gaps(pairs, sorted(found)):
        left = [one for one in before if one in working[0]]
        found += _aligned(pairs, left, [two for two in after if two in working[1]])
    return found


@dataclass(frozen=True, slots=True)
class _Located:
    """The ops of each side that share a place with some of the other: where they come from is told."""

    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)


def _untold(side: Side, located: set[int]) -> set[int]:
    """The ops that do something, and do not say where they come from; of constants there are too many alike."""
    return {place for place, node in enumerate(side.flow) if node.word not in ("", _CONSTANT) and place not in located}


# ---- by location


def _by_location(pairs: Pairs, files: tuple[str, str], located: _Located) -> _Found:
    """What is said to come from the same place: as a whole, then as a part of what is fused or inlined."""
    for own in (0, 1):
        named = [file if side == own else "" for side, file in enumerate(files)]
        for parts in ((False, False), (False, True), (True, False)):
            sides = zip((pairs.before, pairs.after), named, parts, strict=True)
            ones, twos = (_at_places(*side) for side in sides)
            for place, group in ones.items():
                if place in twos:
                    located.before.update(group)
                    located.after.update(twos[place])
                    yield from _of_a_place(pairs, group, twos[place])


def _at_places(side: Side, file: str, in_parts: bool) -> Mapping[Hashable, list[int]]:
    """The ops of each place; `file`: what the model's own text is called, "" where its places say nothing."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for place, node in enumerate(side.flow):
        if node.word:
            for each in _parts(node.location) if in_parts else (node.location,):
                if is_informative(each) and (key := _key(each, file)) is not None:
                    found[key].append(place)
    return found


def _key(location: Location, file: str) -> Hashable:
    """What is the same for one place, wherever its file lies; None of the model's own text where that has no name."""
    if not isinstance(location, FileRange):
        return location
    name = file if location.file == OWN_TEXT else location.file
    return replace(location, file=PurePath(name).name) if name else None


def _parts(location: Location) -> Iterator[Location]:
    """The places that a location is made of; of what was inlined that in the function."""
    match location:
        case CallSite():
            yield location.callee
            yield from _parts(location.callee)
        case Fused():
            for each in dict.fromkeys(location.locations):
                yield each
                yield from _parts(each)
        case _:
            pass


def _of_a_place(pairs: Pairs, ones: Sequence[int], twos: Sequence[int]) -> _Found:
    """Ops of one place: those that do the like, then others of the same shape, in their order: they became that."""
    yield from _aligned(pairs, ones, twos)
    flows = pairs.before.flow, pairs.after.flow
    left = [one for one in ones if pairs.to_after[one] < 0 and flows[0][one].word != _CONSTANT]
    right = [two for two in twos if pairs.to_before[two] < 0 and flows[1][two].word != _CONSTANT]
    in_order = zip(left, right, strict=False)
    yield from _put(pairs, ((one, two) for one, two in in_order if flows[0][one].shape == flows[1][two].shape))


# ---- by scope and order


def _in_scopes(side: Side, places: Iterable[int]) -> Mapping[tuple[str, ...], list[int]]:
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place in sorted(places):
        if scope := side.flow[place].where:
            found[scope].append(place)
    return found


def _aligned(pairs: Pairs, ones: Sequence[int], twos: Sequence[int]) -> list[tuple[int, int]]:
    """Match ops of two series that do the like, in their order."""
    ones = [one for one in ones if pairs.to_after[one] < 0]
    twos = [two for two in twos if pairs.to_before[two] < 0]
    left, right = [pairs.before.flow[one] for one in ones], [pairs.after.flow[two] for two in twos]
    steps = _by_number(left, right) if len(ones) * len(twos) > _MOST_CELLS else _best(left, right)
    return list(_put(pairs, ((ones[i], twos[j]) for i, j in steps)))


def _put(pairs: Pairs, proposed: Iterable[tuple[int, int]]) -> _Found:
    return ((one, two) for one, two in proposed if pairs.put(one, two))


def _likeness(one: FlowNode, two: FlowNode) -> int:
    if one.word != two.word:
        return 0
    return _LIKE + _SHAPE * (one.shape == two.shape) + _SCOPE * (one.where == two.where)


def _best(left: Sequence[FlowNode], right: Sequence[FlowNode]) -> _Found:
    """The alignment of two series with most likeness; of equal ones the one that matches earlier ops."""
    gains = [[_likeness(one, two) for two in right] for one in left]
    # totals[i][j]: of the best alignment of what begins there.
    totals = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in range(len(left) - 1, -1, -1):
        row, below, gain = totals[i], totals[i + 1], gains[i]
        for j in range(len(right) - 1, -1, -1):
            with_both = below[j + 1] + gain[j] if gain[j] else 0
            row[j] = max(below[j], row[j + 1], with_both)
    i = j = 0
    while i < len(left) and j < len(right):
        if gains[i][j] and totals[i][j] == totals[i + 1][j + 1] + gains[i][j]:
            yield i, j
            i, j = i + 1, j + 1
        elif totals[i][j] == totals[i + 1][j]:
            i += 1
        else:
            j += 1


def _by_number(left: Sequence[FlowNode], right: Sequence[FlowNode]) -> _Found:
    places: dict[Hashable, list[int]] = defaultdict(list)
    for j in range(len(right) - 1, -1, -1):
        places[right[j].word, right[j].shape].append(j)
    for i, node in enumerate(left):
        if places[node.word, node.shape]:
            yield i, places[node.word, node.shape].pop()
