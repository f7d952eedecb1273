"""How long the values of a loop take to come about, as each needs the one before.

A processor works on many instructions at a time, but a sum that is added to in each turn is a chain: a turn takes at
least as long as the way from the sum to itself. And only so many instructions are in work at a time: of a long chain
within a turn only as many turns overlap as fit into that window. Latencies are those that uops.info (Abel and Reineke,
ASPLOS 2019) has for present-day server cores, put into classes; for AArch64 Arm's Software Optimization Guides.
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
"""Hundredths of a cycle from a place to its value, where that is in the first-level cache."""

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
"""What depends on nothing where both its operands are the same."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Instructions that wait for each other: hundredths of a cycle altogether, and how much each of them adds."""

    hundredths: float = 0
    parts: Mapping[int, float] = field(default_factory=dict)

    def scaled(self, factor: float) -> Chain:
        """A part of it."""
        return Chain(self.hundredths * factor, {address: part * factor for address, part in self.parts.items()})


NO_CHAIN: Final = Chain()


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains of a loop: from one turn to the next (`carried`: what a turn adds), and within one turn (`within`)."""

    carried: Chain = NO_CHAIN
    within: Chain = NO_CHAIN


_TURNS: Final = 6
_SETTLED: Final = 3


class _Made(NamedTuple):
    """A value: when it is there, what made it and in which turn, and the value that this waited for last."""

    at: int
    address: int
    turn: int
    before: _Made | None


_NOTHING: Final = _Made(0, 0, 0, None)


def chains_of(body: Sequence[Instruction]) -> Chains:
    """The longest chains of a loop.

    Args:
        body: the loop's instructions, without those of loops inside of it, by address.
    """
    needs = [(each, *_needed(each), _latency_of(each)) for each in body]
    made: dict[str, _Made] = {}
    ends: list[_Made] = []
    for turn in range(_TURNS):
        latest = _NOTHING
        for each, reads, places, latency in needs:
            new = _value(each, reads, places, latency, turn, made)
            for register in each.values.writes:
                made[register] = new
            if new.at > latest.at:
                latest = new
        ends.append(latest)
        if turn == 1 and ends[1].at == ends[0].at:  # nothing is carried from turn to turn
            return Chains(within=_parts(ends[0], ends[0].at, 0))
    carried = (ends[-1].at - ends[_SETTLED - 1].at) / (_TURNS - _SETTLED)
    return Chains(_parts(ends[-1], carried, _SETTLED), _parts(ends[0], ends[0].at, 0))


def _value(
    each: Instruction,
    reads: Collection[str],
    places: Collection[str],
    latency: int,
    turn: int,
    made: Mapping[str, _Made],
) -> _Made:
    last: _Made | None = None
    arrived = 0
    for registers, loaded in ((reads, 0), (places, _LOAD if each.values.loads else 0)):
        for register in registers:
            value = made.get(register)
            if value is not None and value.at + loaded > arrived:
                last, arrived = value, value.at + loaded
    return _Made(arrived + latency, each.address, turn, last)


def _parts(end: _Made, length: float, first_turn: int) -> Chain:
    """How much each instruction of the way to a value adds to a length, from some turn on."""
    if length <= 0:
        return NO_CHAIN
    parts: Counter[int] = Counter()
    made: _Made | None = end
    while made is not None and made.turn >= first_turn:
        parts[made.address] += made.at - (made.before.at if made.before is not None else 0)
        made = made.before
    total = parts.total()
    return (
        Chain(length, {address: length * part / total for address, part in sorted(parts.items())})
        if total
        else NO_CHAIN
    )


def _needed(each: Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """The registers whose values an instruction waits for, and those that its place is made of."""
    if _SETS.match(each.mnemonic):
        operands = each.operands.split(", ")
        if len(operands) > 1 and operands[-1] == operands[-2]:
            return frozenset(), frozenset()
    return each.values.reads, each.values.places


def _latency_of(each: Instruction) -> int:
    if each.values.stores:
        return 100
    own = _class_of(each.mnemonic, each.operands[:4])
    moves = each.mnemonic.lstrip("v").startswith(("mov", "ld", "broadcast", "lddqu"))
    return 100 if each.values.loads and moves else own


@cache
def _class_of(mnemonic: str, operands: str) -> int:
    text = f"{mnemonic} {operands}"
    return next((hundredths for pattern, hundredths in _CLASSES if pattern.match(text)), _OTHER)
