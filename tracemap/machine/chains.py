"""How long the values of a loop take to come about: what a turn cannot be faster than, as each needs the one before.

A processor works on many instructions at a time, but a sum that is added to in each turn is a chain: a turn takes at
least as long as the way from the sum to itself. Latencies are those that uops.info (Abel and Reineke, ASPLOS 2019) has
for present-day server cores, put into classes; for AArch64 those of Arm's Software Optimization Guides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

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
    """The longest chain through the turns of a loop: hundredths of a cycle a turn, and how much each instruction adds."""

    hundredths: float = 0
    parts: Mapping[int, float] = field(default_factory=dict)


NO_CHAIN: Final = Chain()
_TURNS: Final = 6
_SETTLED: Final = 3


@dataclass(frozen=True, slots=True)
class _Made:
    """A value: when it is there, what made it, and the value that this waited for last."""

    at: int
    address: int
    latency: int
    turn: int
    before: _Made | None


def chain_of(body: Sequence[Instruction]) -> Chain:
    """The longest chain through the turns of a loop.

    Args:
        body: the loop's instructions, without those of loops inside of it, by address.
    """
    needs = [(each, _needed(each), _latency_of(each)) for each in body]
    made: dict[str, _Made] = {}
    ends: list[_Made] = []
    for turn in range(_TURNS):
        for each, (reads, places), latency in needs:
            last: _Made | None = None
            for register in reads:
                value = made.get(register)
                if value is not None and (last is None or value.at > last.at):
                    last = value
            loaded = _LOAD if each.values.loads else 0
            arrived = last.at if last is not None else 0
            for register in places:
                value = made.get(register)
                if value is not None and value.at + loaded > arrived:
                    last, arrived = value, value.at + loaded
            new = _Made(arrived + latency, each.address, latency, turn, last)
            for register in each.values.writes:
                made[register] = new
        ends.append(max(made.values(), key=lambda one: one.at, default=_Made(0, 0, 0, 0, None)))
    return _longest(ends)


def _longest(ends: Sequence[_Made]) -> Chain:
    """What the last turns add to the longest chain."""
    turns = _TURNS - _SETTLED
    length = (ends[-1].at - ends[_SETTLED - 1].at) / turns
    if length <= 0:
        return NO_CHAIN
    parts: Counter[int] = Counter()
    made: _Made | None = ends[-1]
    while made is not None and made.before is not None:
        if made.turn >= _SETTLED:
            parts[made.address] += made.at - made.before.at
        made = made.before
    total = parts.total()
    return Chain(length, {address: length * part / total for address, part in sorted(parts.items())}) if total else NO_CHAIN


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
