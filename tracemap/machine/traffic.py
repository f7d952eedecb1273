"""How many bytes a kernel's loads and stores bring from which level of the memory, by the loops that they stand in.

The model is the one of compilers that choose tiles: what a loop touches is counted once for each time that it runs, for
the first loop, from inside out, whose turns together touch more than a cache holds (Wolf and Lam, PLDI 1991). What fits
into a cache with all that the kernel touches is there from the call before.
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
    """A loop around an access, or a dimension of the grid: which, the bytes that a turn moves the place, and turns."""

    loop: int
    step: int | Unknown
    turns: float


@dataclass(frozen=True, slots=True)
class Stream:
    """Accesses that go on together through the same memory, a line or two apart.

    `addresses` are those of the instructions; `base` names the memory, "" where that is not known; `offset` is where it
    begins there; `around` the loops around them, from inside out, then the grid.
    `touched`: how many bytes of lines one run of each of these touches, after those of a single turn of the innermost;
    `runs`: how often that happens.
    """

    addresses: tuple[int, ...]
    base: str
    offset: int
    around: tuple[Turns, ...]
    touched: tuple[float, ...]
    runs: tuple[float, ...]

    def depth_beyond(self, cache: int, together: Mapping[int, float]) -> int | None:
        """The number of the first loop around it whose turns touch more than a cache holds; None: all of it fits."""
        loops = (place for place, turns in enumerate(self.around) if together[turns.loop] > cache)
        return next(loops, None)


def streams_of(accesses: Mapping[int, tuple[Access, Sequence[Turns]]]) -> list[Stream]:
    """The streams of a kernel, from its accesses and what stands around each, by address."""
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
    """Accesses with the same steps in parts, in each of which one reads what another has read, or the line beside."""
    step = next((abs(each.step) for each in around if each.step is not UNKNOWN and each.step), 0)
    ordered = sorted(members, key=lambda each: _offset(each[1]))
    part = [ordered[0]]
    for one, other in pairwise(ordered):
        if _offset(other[1]) - _offset(one[1]) <= max(step, LINE_BYTES):
            part.append(other)
        else:
            yield part
            part = [other]
    yield part


def _offset(access: Access) -> int:
    return 0 if access.place is UNKNOWN else access.place.offset


def _stream(part: Sequence[tuple[int, Access]], around: tuple[Turns, ...]) -> Stream:
    accesses = [access for _, access in part]
    low, high = min(map(_offset, accesses)), max(_offset(each) + max(1, each.bytes) for each in accesses)
    # Where it begins within a line is not known; lines that lie apart are counted as such.
    lines = {line for each in accesses for line in _lines(each, low)}
    span, dense = float(high - low), float(min(high - low, len(lines) * LINE_BYTES))
    touched, runs = [dense], [1.0]
    for each in around:
        span, dense = _grown(span, dense, each)
        touched.append(max(dense, touched[-1]))
        runs = [*(one * each.turns for one in runs), 1.0]
    place = accesses[0].place
    base = "" if place is UNKNOWN else place.pointer
    return Stream(tuple(address for address, _ in part), base, low, around, tuple(touched), tuple(runs))


def _lines(access: Access, low: int) -> range:
    begin = _offset(access) - low
    return range(begin // LINE_BYTES, (begin + max(1, access.bytes) - 1) // LINE_BYTES + 1)


def _grown(span: float, dense: float, turns: Turns) -> tuple[float, float]:
    """What is spanned and touched in all turns of a loop, from what it is in one."""
    if turns.step is UNKNOWN:  # anywhere: each turn has lines of its own
        return max(span, dense * turns.turns), max(dense, LINE_BYTES) * turns.turns
    if not turns.step or turns.turns <= 1:
        return span, dense
    step = abs(turns.step)
    moved = step * (turns.turns - 1)
    of_lines = max(dense, LINE_BYTES) * turns.turns
    return span + moved, min(dense + moved, of_lines) if step <= max(span, LINE_BYTES) else of_lines


def brought(streams: Sequence[Stream], caches: Sequence[int]) -> list[tuple[float, ...]]:
    """How many bytes each stream brings in from behind each cache.

    What another stream has brought shortly before is there: of those that read the same in one turn of the loop whose
    turns do not fit, only the first brings it.

    Args:
        streams: of a kernel, in the order of its code.
        caches: how many bytes they hold, from the first level on.
    """
    together: dict[int, float] = defaultdict(float)
    for stream in streams:
        for turns, touched in zip(stream.around, stream.touched[1:], strict=True):
            together[turns.loop] += touched
    found = [[0.0] * len(caches) for _ in streams]
    for level, cache in enumerate(caches):
        seen: set[object] = set()
        for place, stream in enumerate(streams):
            depth = stream.depth_beyond(cache, together)
            if depth is None:
                continue
            same = (stream.base, stream.offset, stream.around[depth:], stream.touched[depth])
            if not stream.base or same not in seen:
                found[place][level] = stream.touched[depth + 1] * stream.runs[depth + 1]
            seen.add(same)
    return [tuple(each) for each in found]
