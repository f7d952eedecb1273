"""Bytes that a kernel's loads and stores bring from each level of the memory hierarchy, by loop nest.

This is the model of tiling compilers (Wolf and Lam, PLDI 1991). From inside out, take the first loop whose iterations
together touch more than a cache holds; each run of that loop brings its data in again. Data that fits into a cache
together with everything else that the kernel touches is still there from the previous call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from tracemap.machine.execution import Access
from tracemap.units import UNKNOWN, Unknown

LINE_BYTES: Final = 64


class Turns(NamedTuple):
    """A loop around an access, or a dimension of the grid: its index, stride in bytes, and trip count."""

    loop: int
    step: int | Unknown
    turns: float


@dataclass(frozen=True, slots=True)
class Stream:
    """Accesses that move together through the same memory, at most a cache line or a stride apart.

    `addresses`: addresses of the instructions; `base`: name of the memory, "" if unknown; `offset`: start in it;
    `around`: the loops around the accesses from inside out, then the grid.
    `touched`: bytes of cache lines touched by one iteration of the innermost loop, then by one run of each loop.
    `runs`: how often that happens.
    """

    addresses: tuple[int, ...]
    base: str
    offset: int
    around: tuple[Turns, ...]
    touched: tuple[float, ...]
    runs: tuple[float, ...]

    def depth_beyond(self, cache: int, touched_in_loop: Mapping[int, float]) -> int | None:
        """Index of the first loop around it whose iterations touch more than a cache holds; None: everything fits."""
        loops = (index for index, turns in enumerate(self.around) if touched_in_loop[turns.loop] > cache)
        return next(loops, None)


def streams_of(accesses: Mapping[int, tuple[Access, Sequence[Turns]]]) -> list[Stream]:
    """Group a kernel's accesses, given by address with their loops, into streams."""
    groups: dict[object, list[tuple[int, Access]]] = defaultdict(list)
    for address, (access, around) in accesses.items():
        key = address if access.place is UNKNOWN else (access.place.pointer, tuple(around))
        groups[key].append((address, access))
    return [
        _stream(part, tuple(accesses[part[0][0]][1]))
        for members in groups.values()
        for part in _near(members, accesses[members[0][0]][1])
    ]


def _near(members: Sequence[tuple[int, Access]], around: Sequence[Turns]) -> Iterator[list[tuple[int, Access]]]:
    """Split accesses with equal strides into parts whose members share cache lines, or read what others have read."""
    step = next((abs(turns.step) for turns in around if turns.step is not UNKNOWN and turns.step), 0)
    ordered = sorted(members, key=lambda member: _offset(member[1]))
    part = [ordered[0]]
    for previous, current in pairwise(ordered):
        if _offset(current[1]) - _offset(previous[1]) <= max(step, LINE_BYTES):
            part.append(current)
        else:
            yield part
            part = [current]
    yield part


def _offset(access: Access) -> int:
    return 0 if access.place is UNKNOWN else access.place.offset


def _stream(part: Sequence[tuple[int, Access]], around: tuple[Turns, ...]) -> Stream:
    accesses = [access for _, access in part]
    low, high = min(map(_offset, accesses)), max(_offset(access) + max(1, access.bytes) for access in accesses)
    # The alignment to cache lines is unknown. Lines that are apart are counted separately.
    lines = {line for access in accesses for line in _lines(access, low)}
    span, dense = float(high - low), float(min(high - low, len(lines) * LINE_BYTES))
    touched, runs = [dense], [1.0]
    for turns in around:
        span, dense = _grown(span, dense, turns)
        touched.append(max(dense, touched[-1]))
        runs = [*(count * turns.turns for count in runs), 1.0]
    place = accesses[0].place
    base = "" if place is UNKNOWN else place.pointer
    return Stream(tuple(address for address, _ in part), base, low, around, tuple(touched), tuple(runs))


def _lines(access: Access, low: int) -> range:
    begin = _offset(access) - low
    return range(begin // LINE_BYTES, (begin + max(1, access.bytes) - 1) // LINE_BYTES + 1)


def _grown(span: float, dense: float, turns: Turns) -> tuple[float, float]:
    """Span and touched bytes of all iterations of a loop, from those of one iteration."""
    if turns.step is UNKNOWN:  # anywhere: each iteration touches its own lines
        return max(span, dense * turns.turns), max(dense, LINE_BYTES) * turns.turns
    if not turns.step or turns.turns <= 1:
        return span, dense
    step = abs(turns.step)
    moved = step * (turns.turns - 1)
    separate_lines = max(dense, LINE_BYTES) * turns.turns
    return span + moved, min(dense + moved, separate_lines) if step <= max(span, LINE_BYTES) else separate_lines


def traffic_of(streams: Sequence[Stream], caches: Sequence[int]) -> list[tuple[float, ...]]:
    """Bytes that each stream brings from beyond each cache.

    Data that another stream brought shortly before is in the cache. So of streams that read the same memory in one
    iteration of the loop that does not fit, only the first brings it.

    Args:
        streams: streams of a kernel, in code order.
        caches: sizes in bytes, from the first level on.
    """
    touched_in_loop: dict[int, float] = defaultdict(float)
    for stream in streams:
        for turns, touched in zip(stream.around, stream.touched[1:], strict=True):
            touched_in_loop[turns.loop] += touched
    result = [[0.0] * len(caches) for _ in streams]
    for level, cache in enumerate(caches):
        seen: set[object] = set()
        for index, stream in enumerate(streams):
            depth = stream.depth_beyond(cache, touched_in_loop)
            if depth is None:
                continue
            key = (stream.base, stream.offset, stream.around[depth:], stream.touched[depth])
            if not stream.base or key not in seen:
                result[index][level] = stream.touched[depth + 1] * stream.runs[depth + 1]
            seen.add(key)
    return [tuple(row) for row in result]
