"""Loads and stores of a kernel: bytes they move, and the cache level they come from."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from tracemap.core.units import UNKNOWN, Unknown
from tracemap.machine.caches import LINE_BYTES
from tracemap.machine.code import WINDOW, Instruction
from tracemap.machine.execution import Access
from tracemap.machine.values import Place

# ---- traffic
#
# Bytes that a kernel's loads and stores bring from each level of the memory hierarchy, by loop nest.
#
# This is the model of tiling compilers (Wolf and Lam, PLDI 1991). From inside out, take the first loop whose
# iterations together touch more than a cache holds; each run of that loop brings its data in again. Data that fits
# into a cache together with everything else that the kernel touches is still there from the previous call.


_T = TypeVar("_T")


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
    """Split accesses with equal strides into groups that share cache lines, or that read what others have read."""
    step = next((abs(turns.step) for turns in around if turns.step is not UNKNOWN and turns.step), 0)
    return _split(members, lambda member: _offset(member[1]), step)


def _split(items: Iterable[_T], offset: Callable[[_T], int], step: int) -> Iterator[list[_T]]:
    """Sort by offset, and split where the next one is farther away than a cache line and a stride."""
    ordered = sorted(items, key=offset)
    part = ordered[:1]
    for previous, current in pairwise(ordered):
        if offset(current) - offset(previous) > max(step, LINE_BYTES):
            yield part
            part = []
        part.append(current)
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
            # The first loop around it whose iterations touch more than the cache holds.
            beyond = (index for index, turns in enumerate(stream.around) if touched_in_loop[turns.loop] > cache)
            if (depth := next(beyond, None)) is None:
                continue
            key = (stream.base, stream.offset, stream.around[depth:], stream.touched[depth])
            if not stream.base or key not in seen:
                result[index][level] = stream.touched[depth + 1] * stream.runs[depth + 1]
            seen.add(key)
    return [tuple(row) for row in result]


# ---- memory
#
# Memory waits in a loop: which instructions wait for memory, which for values computed from loads; bytes brought in.
#
# Instructions retire in order, so a processor waits for the oldest instruction that has not retired. A sample of the
# program counter names that instruction or the next one, since many processors take the interrupt when the awaited
# instruction completes. (T. Downs, "Where do interrupts happen?", 2019, tested on Skylake; Zen 3 behaves the same.) So
# the wait for a load shows at the load and at the next instruction only: when a user of the value is the oldest
# instruction, the value is there.
#
# While a load waits, instructions that do not need its value proceed. Those that need it start later and are waited
# for in turn. Time without retirement belongs to the instruction whose latency the processor exposes (B. Gottschall,
# L. Eeckhout, M. Jahre, "TIP: Time-Proportional Instruction Profiling", MICRO 2021).


@dataclass(frozen=True, slots=True)
class _Value:
    """A register's value in a loop: the addresses of the loads that it depends on, and whether it is late.

    A late value is computed from a loaded one. Others are known early (from outside the loop, or an induction variable)
    or loaded, and at most moved since.
    """

    late: bool
    loads: frozenset[int]


_EARLY: Final = _Value(late=False, loads=frozenset())
_MOVES: Final = re.compile(
    r"v?(mov|lddqu|insert|extract|pinsr|pextr|pmov[sz]x|perm|pperm|unpck|punpck|shuf|pshuf|palign|align|broadcast"
    r"|pbroadcast)|(f?mov|[us]mov|ins|dup|ext|zip|uzp|trn|tbl|[us]?xtl)"
)
"""Instructions that move values without computing."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Instructions of a loop that may wait for memory, and those that wait for values computed from loads; by address.

    `load_of`: for instructions that wait for memory alone, the awaited load, possibly itself. `sources_of`:
    for instructions that wait for computed values, the loads of these values, if they are at most a window earlier.
    """

    load_of: Mapping[int, int]
    sources_of: Mapping[int, frozenset[int]]


def waits_of(body: Sequence[Instruction]) -> Waits:
    """Find the instructions of a loop that wait for memory, and those that wait for values computed from loads.

    Two kinds wait for memory alone: loads that do not compute with late values, and instructions right after such loads
    that do not either. The address of a load may come from a load itself, as in a gather.

    Args:
        body: the loop's instructions by address, without nested loops.
    """
    sources: dict[str, _Value] = {}
    waits = Waits({}, {})
    for _ in range(2):  # the second pass starts with the registers that the first one leaves
        waits = _waits_once(body, sources)
    return waits


def _waits_once(body: Sequence[Instruction], sources: dict[str, _Value]) -> Waits:
    load_of: dict[int, int] = {}
    sources_of: dict[int, frozenset[int]] = {}
    # The previous instruction if it is a load, and the loads that its value depends on.
    previous_load, previous_loads = _NO_LOAD, _NONE
    index_of = {instruction.address: index for index, instruction in enumerate(body)}
    for index, instruction in enumerate(body):
        values = instruction.values
        is_load = values.loads and not values.near
        # Registers of a load's address do not count.
        registers = values.reads if is_load else values.reads | values.places
        operands = [sources.get(register, _EARLY) for register in sorted(registers)]
        late = any(operand.late for operand in operands)
        loads = frozenset().union(*(operand.loads for operand in operands))
        if is_load and values.writes:
            loads |= {instruction.address}
        if is_load and not late:
            load_of[instruction.address] = instruction.address
        elif previous_load != _NO_LOAD and not late:
            load_of[instruction.address] = previous_load
        else:
            depends_on = loads or previous_loads
            recent = frozenset(
                load_address for load_address in depends_on if (index - index_of[load_address]) % len(body) <= WINDOW
            )
            if recent:
                sources_of[instruction.address] = recent
        previous_load = instruction.address if load_of.get(instruction.address) == instruction.address else _NO_LOAD
        previous_loads = _NONE if previous_load != _NO_LOAD else loads
        is_moved = not late and (is_load or _MOVES.match(instruction.mnemonic) is not None)
        sources |= dict.fromkeys(values.writes, _Value(late=bool(loads) and not is_moved, loads=loads))
    return Waits(load_of, sources_of)


_NO_LOAD: Final = -1
_NONE: Final[frozenset[int]] = frozenset()


# ---- bytes brought in


def bytes_brought_in(loads: Sequence[Instruction], body: Sequence[Instruction]) -> int:
    """Bytes of cache lines that these loads bring in per iteration of a loop.

    A load with a stride below the line size brings a new line only every few iterations. Loads that are so close that
    one iteration reads the lines of another are counted once. Two loads between which a register of the address changes
    read different memory, as when indexes are extracted from a vector. A register with the same value in every
    iteration, such as a spilled pointer, has stride 0.
    """
    steps, written = _steps(body), {register for instruction in body for register in instruction.values.writes}
    offsets: dict[tuple[Place, int, int], set[int]] = defaultdict(set)
    addresses = {load.address for load in loads}
    writes: Counter[str] = Counter()
    unchanged: frozenset[str] = frozenset()
    for instruction in body:
        values = instruction.values
        for place in values.loaded if instruction.address in addresses else ():
            key = replace(place, offset=0), writes[place.base] + writes[place.index], _step_of(place, steps, unchanged)
            offsets[key].add(place.offset)
        writes.update(register for register in values.writes if not steps[register])
        restores = values.reloads and written.isdisjoint(values.reads | values.places)
        unchanged = unchanged | values.writes if restores else unchanged - values.writes
    total = 0
    for (place, _, step), stream_offsets in offsets.items():
        for stream in _split(stream_offsets, int, step):  # each stream moves through its own memory
            lines = {offset // LINE_BYTES for offset in stream}
            total += min(step, LINE_BYTES * place.lanes * len(lines))
    return total


def _steps(body: Sequence[Instruction]) -> dict[str, int]:
    """Stride of each register that a loop writes, per iteration; 0 if unknown."""
    steps: Counter[str] = Counter()
    unknown: set[str] = set()
    for instruction in body:
        for register in instruction.values.writes:
            steps[register] += instruction.values.step
            if not instruction.values.step:
                unknown.add(register)
    return {register: 0 if register in unknown else step for register, step in steps.items()}


def _step_of(place: Place, steps: Mapping[str, int], unchanged: Collection[str]) -> int:
    """Stride of an address in bytes per iteration; the largest possible one if unknown.

    `unchanged`: registers that hold the value of the previous iteration at this point.
    """
    registers = [register for register in (place.base, place.index) if register]
    known = {register: 0 if register in unchanged else steps.get(register) for register in registers}
    if any(step == 0 and register not in unchanged for register, step in known.items()):
        return _FAR
    return abs((known.get(place.base) or 0) + place.scale * (known.get(place.index) or 0))


_FAR: Final = 1 << 62
