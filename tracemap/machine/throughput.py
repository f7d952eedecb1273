"""How much of a processor core an instruction takes, where nothing that knows the processor tells it.

The measure is the reciprocal throughput: cycles per instruction of one kind after the other when nothing waits. The
numbers are those that uops.info (Abel and Reineke, ASPLOS 2019) has for present-day server cores (Ice Lake, Zen 4),
and for AArch64 Arm's Software Optimization Guides (Neoverse N1 to V2), put into a few classes: where cores differ, a
value between theirs. Divisions and roots count half of that: they have a unit of their own, beside which the core goes
on with other work; moves between registers are done while instructions are renamed. Only the ratios matter, within one
loop.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

Classes = Sequence[tuple[re.Pattern[str], tuple[int, int, int]]]
"""Pattern of a mnemonic -> hundredths of a cycle for scalars and 128, 256 and 512 bits."""


def _classes(*rows: tuple[str, tuple[int, int, int]]) -> Classes:
    return [(re.compile(pattern), cycles) for pattern, cycles in rows]


# The first pattern that fits counts; "v" before a mnemonic is taken off.
_X86: Final = _classes(
    (r"div[ps]s", (200, 300, 500)),
    (r"div[ps]d", (250, 500, 900)),
    (r"sqrt[ps]s", (250, 400, 600)),
    (r"sqrt[ps]d", (350, 600, 1100)),
    (r"i?div$", (800, 800, 800)),
    (r"p?gather", (400, 800, 1600)),
    (r"p?scatter", (1100, 1800, 2600)),
    (r"r(cp|sqrt)", (100, 100, 200)),
    (r"(range|reduce|rndscale|round|getexp|getmant|fixupimm)", (100, 100, 150)),
    (r"p?compress|p?expand", (200, 200, 300)),
    (
        r"(cvt|pmov[bwdq]{2}|movq|perm|pack|unpck|punpck|shuf|pshuf|insert|extract|pinsr|pextr|align|palign|blend|broadcast|pbroadcast)",
        (50, 75, 100),
    ),
    (r"(kmov|kortest|kand|kor|kxor|kshift|kunpck|movmsk|pmovmsk)", (100, 100, 100)),
    (r"(cmp[^x]|pcmp|ptestn?m|fpclass)", (50, 75, 100)),
    (r"(fn?m(add|sub)|mul|add|sub|max|min|scalef|dp|pmul|pmadd|pdpbusd|pdpwssd)[a-z0-9]*[ps][shdb]", (50, 50, 100)),
    (r"p(mul|madd|sad|dp|add|sub|max|min|sll|srl|sra|abs|and|or|xor|ternlog|avg|rol|ror)", (35, 50, 75)),
    (r"(and|andn|or|xor)p[sd]", (30, 40, 60)),
    (r"(mov|lddqu)", (20, 20, 20)),
    (r"(imul|mulx|popcnt|lzcnt|tzcnt|bsf|bsr|pdep|pext)", (100, 100, 100)),
    (r"(div|call)", (500, 500, 500)),
)
_X86_LOAD: Final = (35, 40, 60)
"""Two or three loads a cycle, half as many of 512 bits."""
_X86_STORE: Final = (60, 75, 100)

_AARCH64: Final = _classes(
    (r"fdiv", (400, 800, 800)),
    (r"fsqrt", (500, 900, 900)),
    (r"[us]div", (700, 700, 700)),
    (r"frecpe|frsqrte", (100, 100, 100)),
    (r"(ld[1234]|ldn?p)", (60, 60, 60)),
    (r"ld", (40, 40, 40)),
    (r"st", (60, 75, 75)),
    (r"(fcvt|[su]cvtf|frint|addv|[fsu](max|min)n?m?v|tbl|tbx|ins|dup|[us]mov)", (75, 75, 75)),
    (r"f", (40, 40, 40)),
    (r"(madd|msub|mul|[us]mull|[us]dot|[us]mla)", (75, 75, 75)),
)
_OTHER: Final = (25, 25, 25)
"""Whole-number arithmetic and jumps: four or more a cycle."""


def hundredths_of_cycle(machine: str, mnemonic: str, operands: str, *, loads: bool, stores: bool) -> int:
    """How long a core is busy with an instruction, at least 1.

    Args:
        machine: the architecture's name as ELF has it (`EM_X86_64`); of others each instruction counts the same.
        mnemonic: in small letters.
        operands: as a disassembler prints them.
        loads: whether it reads memory.
        stores: whether it writes memory.
    """
    if machine == "EM_AARCH64":
        return _class_of(machine, mnemonic)[1]
    if machine != "EM_X86_64":
        return 100
    width = 2 if "zmm" in operands else 1 if "ymm" in operands else 0
    own = _class_of(machine, mnemonic.removeprefix("v"))[width]
    # What moves only loads or stores; what computes too is busy with both at once, on units of their own.
    memory = _X86_LOAD[width] * loads + _X86_STORE[width] * stores
    return max(own, memory)


@cache
def _class_of(machine: str, mnemonic: str) -> tuple[int, int, int]:
    classes = _X86 if machine == "EM_X86_64" else _AARCH64
    return next((cycles for pattern, cycles in classes if pattern.match(mnemonic)), _OTHER)
