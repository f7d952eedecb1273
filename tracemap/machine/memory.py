"""What a loop has to do with memory: which instructions wait for it, which for what waited, and what it brings.

Instructions retire in order: what a processor waits for is the oldest one that has not. A sample of the program counter
names it, or the one behind it, as many processors take the interrupt when the one that they wait for is done (T. Downs,
"Where do interrupts happen?", 2019, by tests on Skylake; Zen 3 does so as well). So what a load waits for is seen at it
and right behind it, and nowhere else: when what takes the value is the oldest, the value is there.

While a load waits, what does not need its value goes on. What is computed from the value has yet to begin and is waited
for in turn: the time in which nothing retires is of what the processor exposes the latency of (B. Gottschall,
L. Eeckhout, M. Jahre, "TIP: Time-Proportional Instruction Profiling", MICRO 2021).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Final

from tracemap.machine.code import WINDOW, Instruction
from tracemap.machine.values import Place

LINE_BYTES: Final = 64


class _Source(Enum):
    """Where the value of a register comes from, in a loop."""

    EARLY = 0
    """Known long before: from outside of the loop, or counted on."""
    MEMORY = 1
    """Loaded, and at most put elsewhere since."""
    LATE = 2
    """Computed from what was loaded."""


@dataclass(frozen=True, slots=True)
class _Value:
    """Where a value comes from, and the addresses of the loads that it is made of."""

    source: _Source
    loads: frozenset[int]


_EARLY: Final = _Value(_Source.EARLY, frozenset())
_MOVES: Final = re.compile(
    r"v?(mov|lddqu|insert|extract|pinsr|pextr|pmov[sz]x|perm|pperm|unpck|punpck|shuf|pshuf|palign|align|broadcast"
    r"|pbroadcast)|(f?mov|[us]mov|ins|dup|ext|zip|uzp|trn|tbl|[us]?xtl)"
)
"""What puts values elsewhere, and computes nothing of them."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The instructions of a loop that can be found waiting for memory, and those behind them.

    `load_of`: of those that wait for memory alone, the load that is waited for, which may be they themselves; `behind`:
    of those that wait for what is made of loaded values, the loads of these, as far as they are no more than a window
    before; all by address.
    """

    load_of: Mapping[int, int]
    behind: Mapping[int, frozenset[int]]


def waits_of(body: Sequence[Instruction]) -> Waits:
    """What waits for memory in a loop, and what is behind such waits.

    For memory alone wait loads that compute with nothing that comes late, wherever they know their place from (it may
    be loaded as well, as in a gather), and what stands right behind one and computes with nothing late either.

    Args:
        body: the loop's instructions, without those of loops inside of it, by address.
    """
    sources: dict[str, _Value] = {}
    waits = Waits({}, {})
    for _ in range(2):  # the second time with what the first one has left in the registers
        waits = _once(body, sources)
    return waits


def _once(body: Sequence[Instruction], sources: dict[str, _Value]) -> Waits:
    load_of: dict[int, int] = {}
    behind: dict[int, frozenset[int]] = {}
    load, waited = _NO_LOAD, _NONE  # the instruction before, if it loads; the loads of what it computes with
    number_of = {each.address: number for number, each in enumerate(body)}
    for number, each in enumerate(body):
        given = _given(each, sources)
        value = _made(each, given)
        late = any(other.source is _Source.LATE for other in given)
        if _loads(each) and not late:
            load_of[each.address] = each.address
        elif load != _NO_LOAD and not late:
            load_of[each.address] = load
        else:
            loads = value.loads or waited
            near = frozenset(one for one in loads if (number - number_of[one]) % len(body) <= WINDOW)
            if near:
                behind[each.address] = near
        load = each.address if load_of.get(each.address) == each.address else _NO_LOAD
        waited = _NONE if load != _NO_LOAD else value.loads
        sources |= dict.fromkeys(each.values.writes, value)
    return Waits(load_of, behind)


_NO_LOAD: Final = -1
_NONE: Final[frozenset[int]] = frozenset()


def _loads(each: Instruction) -> bool:
    return each.values.loads and not each.values.near


def _given(each: Instruction, sources: Mapping[str, _Value]) -> list[_Value]:
    """The values that an instruction computes with; what gives a load its place is none of them."""
    registers = each.values.reads if _loads(each) else each.values.reads | each.values.places
    return [sources.get(register, _EARLY) for register in sorted(registers)]


def _made(each: Instruction, given: Sequence[_Value]) -> _Value:
    loads = frozenset().union(*(value.loads for value in given))
    if _loads(each) and each.values.writes:
        loads |= {each.address}
    if not loads:
        return _EARLY
    late = any(value.source is _Source.LATE for value in given)
    kept = not late and (_loads(each) or _MOVES.match(each.mnemonic) is not None)
    return _Value(_Source.MEMORY if kept else _Source.LATE, loads)


# ---- what a loop brings in


def brought_by(loads: Sequence[Instruction], body: Sequence[Instruction]) -> int:
    """How many bytes of lines of memory these loads of a loop bring in one turn.

    A place that goes on by less than a line in each turn brings a new line only so often. Loads so near to each other
    that one turn reads what another has brought are counted together. Where a register gets another value between them,
    as where one index after the other is taken from a vector, they read elsewhere. One that gets the same in each turn,
    as a pointer that is on the stack for want of registers, stays where it is.
    """
    steps, written = _steps(body), {register for each in body for register in each.values.writes}
    offsets: dict[tuple[Place, int, int], set[int]] = defaultdict(set)
    asked = {load.address for load in loads}
    writes: Counter[str] = Counter()
    same: frozenset[str] = frozenset()
    for each in body:
        values = each.values
        for place in values.loaded if each.address in asked else ():
            key = replace(place, offset=0), writes[place.base] + writes[place.index], _step_of(place, steps, same)
            offsets[key].add(place.offset)
        writes.update(register for register in values.writes if not steps[register])
        brings_back = values.reloads and written.isdisjoint(values.reads | values.places)
        same = same | values.writes if brings_back else same - values.writes
    total = 0
    for (place, _, step), found in offsets.items():
        total += sum(min(step, LINE_BYTES * place.lanes * lines) for lines in _streams(sorted(found), step))
    return total


def _steps(body: Sequence[Instruction]) -> dict[str, int]:
    """How far each register that a loop writes goes on in one turn, 0 where that is not known."""
    steps: Counter[str] = Counter()
    unknown: set[str] = set()
    for each in body:
        for register in each.values.writes:
            steps[register] += each.values.step
            if not each.values.step:
                unknown.add(register)
    return {register: 0 if register in unknown else step for register, step in steps.items()}


def _step_of(place: Place, steps: Mapping[str, int], same: Collection[str]) -> int:
    """How many bytes a place goes on by in one turn; as many as can be, where that is not known.

    `same`: the registers that have by then what they had there in the turn before.
    """
    registers = [register for register in (place.base, place.index) if register]
    known = {register: 0 if register in same else steps.get(register) for register in registers}
    if any(step == 0 and register not in same for register, step in known.items()):
        return _FAR
    return abs((known.get(place.base) or 0) + place.scale * (known.get(place.index) or 0))


_FAR: Final = 1 << 62


def _streams(offsets: Sequence[int], step: int) -> Iterator[int]:
    """How many lines the parts of memory have in one turn, of which each is read on and on."""
    lines = {offsets[0] // LINE_BYTES}
    for one, other in pairwise(offsets):
        if other - one > max(step, LINE_BYTES):
            yield len(lines)
            lines = set()
        lines.add(other // LINE_BYTES)
    yield len(lines)
