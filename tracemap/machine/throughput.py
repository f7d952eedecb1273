"""Reciprocal throughput of instructions: how long each keeps a core busy.

Reciprocal throughput is cycles per instruction in a sequence of independent instructions of one kind. The numbers come
from uops.info (Abel and Reineke, ASPLOS 2019) and LLVM's models of current server cores (Ice Lake, Sapphire Rapids,
Zen 4), and for AArch64 from Arm's Software Optimization Guides (Neoverse N1 to V2). They are grouped into classes;
where cores differ, the value lies between theirs. Divisions and roots count half, since their unit works in parallel to
other work. Register moves are handled by renaming. Only ratios within one loop matter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

Classes = Sequence[tuple[re.Pattern[str], tuple[int, int, int]]]
"""Pattern of a mnemonic with the kinds of its operands (`_kinds`) -> hundredths of a cycle for scalars and 128, 256 and
512 bits."""


def _classes(*rows: tuple[str, tuple[int, int, int]]) -> Classes:
    return [(re.compile(pattern), cycles) for pattern, cycles in rows]


# The first matching pattern counts. A leading "v" of mnemonics is removed.
_X86: Final = _classes(
    (r"div[ps][sh]", (200, 300, 500)),
    (r"div[ps]d", (250, 500, 900)),
    (r"sqrt[ps][sh]", (250, 400, 600)),
    (r"sqrt[ps]d", (350, 600, 1100)),
    (r"i?div ", (800, 800, 800)),
    (r"p?gather", (400, 800, 1600)),
    (r"p?scatter", (1100, 1800, 2600)),
    (r"r(cp|sqrt)", (100, 100, 200)),
    (r"(range|reduce|rndscale|round|getexp|getmant|fixupimm)", (100, 100, 130)),
    (r"p?compress|p?expand", (200, 200, 300)),
    # Pure loads, whatever their name.
    (r"(p?broadcast\w*|movddup|movs[hl]dup) \w\{?m", (20, 20, 20)),
    # Between register files.
    (r"(mov[dqw]|pbroadcast[bwdq]) [xyz]\{?r|(mov[dqw]|pextr[bwdq]|extractps) [rm]x|pinsr[bwdq] xxr", (100, 100, 100)),
    (r"cvtsi2|cvtt?[ps][sdh]2u?si|u?comis", (100, 100, 100)),
    (r"(cmp|pcmp|fpclass|ptestn?m)\w* k", (90, 90, 100)),
    (r"kmov\w m", (60, 60, 60)),
    (r"(kmov|kortest|kand|kor|kxor|kshift|kunpck|movmsk|pmovmsk)", (85, 85, 85)),
    (r"p?blend[mv]", (70, 70, 70)),
    (r"p?blend", (40, 40, 50)),
    # Within 128-bit lanes, and across lanes. Part of a register to or from memory is a merging load or a store.
    (r"(insert|extract)[fi]\w* [\w{]*m", (60, 60, 65)),
    (r"(insertps|palignr|unpck|movlh|movhl|pinsr)", (80, 80, 100)),
    (r"(permil|shufp|pshuf|punpck|pack|movddup|movs[hl]dup)", (50, 50, 100)),
    (r"(perm|insert|extract|align|shuf|p?broadcast)", (85, 100, 100)),
    (r"pmov[sz]x", (50, 100, 110)),
    (r"pmov[bwdqs]{2}", (100, 100, 115)),
    (r"cvt", (50, 50, 85)),
    (r"(cmp[^x ]|pcmp)", (55, 50, 80)),
    # A core has one or two of these units for 512 bits, and two for 256.
    (r"(fn?m(add|sub)|mul|add|sub|max|min|scalef|dp|pmul|pmadd|pdpbusd|pdpwssd)[a-z0-9]*[ps][shdb]", (50, 50, 75)),
    (r"p(mul|madd|sad|dp|sll|srl|sra)", (50, 50, 80)),
    (r"p(add|sub|max|min|abs|and|or|xor|ternlog|avg|rol|ror)", (30, 35, 50)),
    (r"(and|andn|or|xor)p[sd]", (30, 30, 50)),
    (r"movs[sd] xxx|mov\w+ [xyz]\{[xyz]", (35, 35, 45)),
    (r"(mov|lddqu)", (20, 20, 20)),
    (r"(imul|mulx|popcnt|lzcnt|tzcnt|bsf|bsr|pdep|pext)", (100, 100, 100)),
    (r"(lea|sh[lr]|sa[lr]|ro[lr]|rc[lr]|cmov|set|sbb|adc)", (50, 50, 50)),
    (r"(div|call)", (500, 500, 500)),
)
_X86_LOAD: Final = (35, 40, 60)
"""Two or three loads a cycle; half as many for 512 bits."""
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
"""Integer arithmetic and jumps: four or more a cycle."""


def hundredths_of_cycle(machine: str, mnemonic: str, operands: str, *, loads: bool, stores: bool) -> int:
    """Hundredths of a cycle that an instruction keeps a core busy, at least 1.

    Args:
        machine: ELF name of the architecture (`EM_X86_64`). For unknown ones, all instructions count the same.
        mnemonic: mnemonic in lower case.
        operands: operands as the disassembler prints them.
        loads: whether it reads memory.
        stores: whether it writes memory.
    """
    if machine == "EM_AARCH64":
        return _class_of(machine, mnemonic)[1]
    if machine != "EM_X86_64":
        return 100
    width = 2 if "zmm" in operands else 1 if "ymm" in operands else 0
    own = _class_of(machine, f"{mnemonic.removeprefix('v')} {_kinds(operands)}")[width]
    # Moves only load or store. Arithmetic with a memory operand uses separate units at the same time.
    memory = _X86_LOAD[width] * loads + _X86_STORE[width] * stores
    return max(own, memory)


def _kinds(operands: str) -> str:
    """A letter for each operand: vector of a width, mask, memory, number or other register; `{` if masked.

    >>> _kinds("zmm1 {k1} {z}, zmm2, dword ptr [rax + 4*rbx]{1to16}"), _kinds("k1, xmm2, xmm3"), _kinds("r8, xmm1, 1")
    ('z{zm', 'kxx', 'rxi')
    """
    return "".join(_kind(operand) for operand in operands.split(", ")) if operands else ""


_VECTOR_OR_MASK: Final = re.compile(r"[xyz]mm\d|k\d")


def _kind(operand: str) -> str:
    masked = "{" if "{k" in operand else ""
    if "[" in operand:
        return f"m{masked}"
    if _VECTOR_OR_MASK.match(operand):
        return operand[0] + masked
    return "i" if operand[:1].isdigit() or operand[:1] == "-" else "r"


@cache
def _class_of(machine: str, instruction: str) -> tuple[int, int, int]:
    classes = _X86 if machine == "EM_X86_64" else _AARCH64
    return next((cycles for pattern, cycles in classes if pattern.match(instruction)), _OTHER)
