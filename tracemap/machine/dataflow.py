"""Data flow between instructions: which values each one needs, and chains of latencies."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from operator import itemgetter
from typing import Final, NamedTuple

from tracemap.machine.code import OUTSIDE, CodeLoop, Instruction, loops_around, loops_by_address
from tracemap.machine.debug_lines import Contracted

# ---- flow
#
# Find the op whose value an instruction carries, if its own debug line does not tell.
#
# The debug line of a load or store is that of the whole loop nest, not of an op. Registers tell the op: a load belongs
# to the first op that uses the value, a store to the op that computed it.


def value_lines(code: Contracted, loops: Sequence[CodeLoop]) -> dict[int, int]:
    """The line of the op whose value an instruction carries, by address; no entry if there is none.

    Args:
        code: code of a function. An instruction on an op's line carries that op's value.
        loops: loops of the function.
    """
    loop_at = loops_by_address(code.instructions, loops)
    carriers = _Carriers(code.instructions, loops, loop_at, code.lines.owned, code.factors)
    lines = ((instruction.address, carriers.line_of(index)) for index, instruction in enumerate(code.instructions))
    return {address: line for address, line in lines if line} | dict(code.products)


_Use = tuple[int, frozenset[str]]
"""An instruction, and the registers that it uses."""


@dataclass
class _Carriers:
    instructions: Sequence[Instruction]
    loops: Sequence[CodeLoop]
    loop_at: Mapping[int, int]
    owned: frozenset[int]
    factors: Mapping[int, tuple[frozenset[str], int]]
    _line_cache: dict[int, int] = field(default_factory=dict)
    _loop_cache: dict[int, list[int]] = field(default_factory=dict)
    _user_cache: dict[int, tuple[list[_Use], Iterator[_Use]]] = field(default_factory=dict)

    def line_of(self, index: int) -> int:
        """The line of the op whose value an instruction carries; 0 if there is none."""
        if index not in self._line_cache:
            self._line_cache[index] = self._line(index, set())
        return self._line_cache[index]

    def _line(self, index: int, passed: set[int]) -> int:
        """As `line_of`, uncached. `passed`: instructions already visited on the way."""
        instruction = self.instructions[index]
        own = instruction.line if instruction.line in self.owned else 0
        if own and not _is_reload(instruction):
            return own
        if index in self._line_cache or index in passed or len(passed) >= _MOST_PASSED:
            return self._line_cache.get(index, own)
        passed.add(index)
        if instruction.values.stores:
            return self._line_of_source(index, passed) or own
        return (self._line_of_users(index, passed) if _moves_element(instruction) else 0) or own

    def _line_of_users(self, index: int, passed: set[int]) -> int:
        """The op that uses the value of an instruction: the first one that its users lead to."""
        lines = (self._line_of_user(other, used, passed) for other, used in self._users_of(index))
        return next(filter(None, lines), 0)

    def _users_of(self, index: int) -> Iterator[_Use]:
        """The users of an instruction's value in execution order, and what they use; found once, as far as needed."""
        known, others = self._user_cache.setdefault(index, ([], self._find_users(index)))
        for place in count():
            if place == len(known):
                found = next(others, None)
                if found is None:
                    return
                known.append(found)
            yield known[place]

    def _find_users(self, index: int) -> Iterator[_Use]:
        waiting = self.instructions[index].values.writes
        for other in self._instructions_after(index):
            values = self.instructions[other].values
            if used := waiting & (values.reads | values.places):
                yield other, used
            waiting -= values.writes - values.partly
            if not waiting:
                return

    def _line_of_user(self, index: int, used: frozenset[str], passed: set[int]) -> int:
        """The op for which an instruction uses a value."""
        instruction = self.instructions[index]
        factors, line = self.factors.get(instruction.address, (frozenset(), 0))
        if used & factors:
            return line
        # A spilled value belongs to the op that uses it after the reload, whatever the line of the reload.
        if _is_spill(instruction) and index not in passed:
            passed.add(index)
            if later := self._line_of_users(index, passed):
                return later
        return self._line(index, passed)

    def _line_of_source(self, index: int, passed: set[int]) -> int:
        """The op that computed the value that an instruction stores."""
        stored = self.instructions[index].values.reads
        for other in self._instructions_before(index):
            instruction = self.instructions[other]
            if stored & instruction.values.writes:
                if instruction.line in self.owned:
                    return instruction.line
                if other in passed:
                    return 0
                passed.add(other)
                return self._line_of_source(other, passed)
        return 0

    def _instructions_after(self, index: int) -> Iterator[int]:
        """The other instructions in execution order after one.

        Once around its innermost loop, then from the end of that once around the next outer loop, and so on.
        """
        low = high = index
        for inside, goes_around in self._from_inside_out(index):
            yield from inside[bisect_left(inside, high + 1) :]
            if goes_around:
                yield from inside[: bisect_left(inside, low)]
            low, high = min(low, inside[0]), max(high, inside[-1])

    def _instructions_before(self, index: int) -> Iterator[int]:
        """The other instructions in reverse execution order before one."""
        low = high = index
        for inside, goes_around in self._from_inside_out(index):
            yield from reversed(inside[: bisect_left(inside, low)])
            if goes_around:
                yield from reversed(inside[bisect_left(inside, high + 1) :])
            low, high = min(low, inside[0]), max(high, inside[-1])

    def _from_inside_out(self, index: int) -> Iterator[tuple[list[int], bool]]:
        """The instructions of each loop around one, and whether they repeat; finally all instructions."""
        for loop in loops_around(self.loops, self.loop_at.get(self.instructions[index].address, OUTSIDE)):
            yield self._held_by(loop), True
        yield self._held_by(OUTSIDE), False

    def _held_by(self, loop: int) -> list[int]:
        """The instructions of a loop, nested loops included; for `OUTSIDE`, of the whole function."""
        if loop not in self._loop_cache:
            indexes = range(len(self.instructions))
            in_loop = (index for index in indexes if self.loops[loop].holds(self.instructions[index].address))
            self._loop_cache[loop] = list(indexes if loop == OUTSIDE else in_loop)
        return self._loop_cache[loop]


_MOST_PASSED: Final = 64
"""Limit on instructions that pass a value on before an op uses it."""

_MOVES = re.compile(r"v?mov|ld[rp]|ldur|st[rp]|stur")


def _is_reload(instruction: Instruction) -> bool:
    values = instruction.values
    return values.reloads and bool(values.reads) and _MOVES.match(instruction.mnemonic) is not None


def _is_spill(instruction: Instruction) -> bool:
    writes = instruction.values.writes
    is_slot = bool(writes) and all(register.startswith("[") for register in writes)
    return is_slot and _MOVES.match(instruction.mnemonic) is not None


def _moves_element(instruction: Instruction) -> bool:
    """Whether an instruction moves an element, as opposed to counting or computing an address."""
    values = instruction.values
    return values.loads or any(register.startswith(("v", "[")) for register in values.writes)


# ---- chains
#
# Dependency chains of a loop: latency from values that need earlier values.
#
# A processor overlaps many instructions, but a loop-carried sum is a chain: an iteration takes at least the latency
# from the sum back to itself. Also, the number of instructions in flight is limited: of a long chain within an
# iteration, only as many iterations overlap as fit into the window. Latencies are those of uops.info (Abel and
# Reineke, ASPLOS 2019) for current server cores, in classes; for AArch64, those of Arm's Software Optimization Guides.


_LOAD: Final = 500
"""Latency of a load from the first-level cache, from address to value, in hundredths of a cycle."""

_CLASSES: Final = tuple(
    (re.compile(pattern), hundredths)
    for pattern, hundredths in (
        (r"v?div[ps][sh]|fdiv", 1100),
        (r"v?div[ps]d", 1350),
        (r"v?sqrt[ps][sh]|fsqrt", 1450),
        (r"v?sqrt[ps]d", 1900),
        (r"i?div|[us]div", 1500),
        (r"call|bl", 2000),
        (r"vp?gather", 1500),
        (r"vr(cp|sqrt)", 500),
        (r"v?(round|rndscale|range|reduce|getexp|getmant|fixupimm|scalef)", 600),
        (r"v?cvt|fcvt|[su]cvtf", 400),
        (r"v?p?mull[dq]|v?pmulld", 600),
        (r"v?fn?m(add|sub)|fml[as]|fn?m(add|sub)", 400),
        (r"v?(add|sub|mul|max|min)[ps][shd]|f(add|sub|n?mul|max|min)|v?p(mul|madd|dp|sad)|vdpbf16", 400),
        (r"v?u?comis|v?cmp|vp?cmp|vptest|vfpclass|kmov|kortest|v?p?movmsk", 300),
        (r"v?mov[dq] \w*(r|e)|v?pextr|v?pinsr|v?extract|v?insert[fi]|v?perm|v?pbroadcast|v?broadcast|v?shuf[fi]", 300),
        (r"v?pmov[sz]x|v?p?compress|v?p?expand|v?align", 300),
        (r"imul|mulx?$|popcnt|lzcnt|tzcnt|bs[fr]|pdep|pext|m(add|sub)$|[us]mull", 300),
        (r"v?p?blend|v?p?and|v?p?x?or|v?pternlog|v?p?add|v?p?sub|v?unpck|v?punpck|v?p?shuf|v?movs[hl]dup|v?pack", 100),
    )
)
_OTHER: Final = 100
_SETS: Final = re.compile(r"v?p?x?or(p[sd]|[dq])?$|v?pcmpeq|v?psub|v?subp|xor$|sub$")
"""Instructions whose result does not depend on their operands if both are equal."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Instructions that wait for each other: total latency in hundredths of a cycle, and the part of each address."""

    hundredths: float = 0
    parts: Mapping[int, float] = field(default_factory=dict)

    def scaled(self, factor: float) -> Chain:
        """Multiply by a factor."""
        return Chain(self.hundredths * factor, {address: part * factor for address, part in self.parts.items()})


NO_CHAIN: Final = Chain()


@dataclass(frozen=True, slots=True)
class Chains:
    """Chains of a loop: carried between iterations (`carried`: per iteration), and within one iteration (`within`)."""

    carried: Chain = NO_CHAIN
    within: Chain = NO_CHAIN


_TURNS: Final = 6
_SETTLED: Final = 3


class _Result(NamedTuple):
    """A computed value: time, instruction and iteration, and the operand that arrived last."""

    at: int
    address: int
    turn: int
    before: _Result | None


_NOTHING: Final = _Result(0, 0, 0, None)


def chains_of(body: Sequence[Instruction]) -> Chains:
    """The longest chains of a loop.

    Args:
        body: the loop's instructions by address, without nested loops.
    """
    needs = [(instruction, *_dependencies(instruction), _latency_of(instruction)) for instruction in body]
    results: dict[str, _Result] = {}
    ends: list[_Result] = []
    for turn in range(_TURNS):
        latest = _NOTHING
        for instruction, reads, places, latency in needs:
            delays = ((reads, 0), (places, _LOAD if instruction.values.loads else 0))
            arrivals = [
                (results[register].at + delay, results[register])
                for registers, delay in delays
                for register in registers
                if register in results
            ]
            arrived, last = max(arrivals, key=itemgetter(0), default=(0, None))
            result = _Result(arrived + latency, instruction.address, turn, last)
            for register in instruction.values.writes:
                results[register] = result
            if result.at > latest.at:
                latest = result
        ends.append(latest)
        if turn == 1 and ends[1].at == ends[0].at:  # nothing is carried between iterations
            return Chains(within=_parts(ends[0], ends[0].at, 0))
    carried = (ends[-1].at - ends[_SETTLED - 1].at) / (_TURNS - _SETTLED)
    return Chains(_parts(ends[-1], carried, _SETTLED), _parts(ends[0], ends[0].at, 0))


def _parts(last_result: _Result, length: float, first_turn: int) -> Chain:
    """Distribute a length over the instructions on the path to a value, from an iteration on."""
    if length <= 0:
        return NO_CHAIN
    parts: Counter[int] = Counter()
    result: _Result | None = last_result
    while result is not None and result.turn >= first_turn:
        parts[result.address] += result.at - (result.before.at if result.before is not None else 0)
        result = result.before
    total = parts.total()
    if not total:
        return NO_CHAIN
    return Chain(length, {address: length * part / total for address, part in sorted(parts.items())})


def _dependencies(instruction: Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """The registers whose values an instruction waits for, and the registers of its address."""
    if _SETS.match(instruction.mnemonic):
        operands = instruction.operands.split(", ")
        if len(operands) > 1 and operands[-1] == operands[-2]:
            return frozenset(), frozenset()
    return instruction.values.reads, instruction.values.places


def _latency_of(instruction: Instruction) -> int:
    if instruction.values.stores:
        return 100
    own = _class_of(instruction.mnemonic, instruction.operands[:4])
    moves = instruction.mnemonic.lstrip("v").startswith(("mov", "ld", "broadcast", "lddqu"))
    return 100 if instruction.values.loads and moves else own


@cache
def _class_of(mnemonic: str, operands: str) -> int:
    text = f"{mnemonic} {operands}"
    return next((hundredths for pattern, hundredths in _CLASSES if pattern.match(text)), _OTHER)
