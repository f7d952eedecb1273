"""Dependency chains of a loop: latency from values that need earlier values.

A processor overlaps many instructions, but a loop-carried sum is a chain: an iteration takes at least the latency from
the sum back to itself. Also, the number of instructions in flight is limited: of a long chain within an iteration, only
as many iterations overlap as fit into the window. Latencies are those of uops.info (Abel and Reineke, ASPLOS 2019) for
current server cores, in classes; for AArch64, those of Arm's Software Optimization Guides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

from tracemap.machine.code import Instruction

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
            result = _value(instruction, reads, places, latency, turn, results)
            for register in instruction.values.writes:
                results[register] = result
            if result.at > latest.at:
                latest = result
        ends.append(latest)
        if turn == 1 and ends[1].at == ends[0].at:  # nothing is carried between iterations
            return Chains(within=_parts(ends[0], ends[0].at, 0))
    carried = (ends[-1].at - ends[_SETTLED - 1].at) / (_TURNS - _SETTLED)
    return Chains(_parts(ends[-1], carried, _SETTLED), _parts(ends[0], ends[0].at, 0))


def _value(
    instruction: Instruction,
    reads: Collection[str],
    places: Collection[str],
    latency: int,
    turn: int,
    results: Mapping[str, _Result],
) -> _Result:
    last: _Result | None = None
    arrived = 0
    for registers, loaded in ((reads, 0), (places, _LOAD if instruction.values.loads else 0)):
        for register in registers:
            value = results.get(register)
            if value is not None and value.at + loaded > arrived:
                last, arrived = value, value.at + loaded
    return _Result(arrived + latency, instruction.address, turn, last)


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
    return (
        Chain(length, {address: length * part / total for address, part in sorted(parts.items())})
        if total
        else NO_CHAIN
    )


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
