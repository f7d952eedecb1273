"""Which registers and memory an instruction reads and writes, as far as values go through them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

Decoded = Any
"""A `capstone.CsInsn`; the library has no type hints."""


@dataclass(frozen=True, slots=True)
class Values:
    """Registers by the name of the widest one that they are part of: `eax` is `rax`, `xmm3` and `zmm3` are `v3`.

    `reads` are those whose values it takes, `places` those that make up addresses in memory, `writes` those that have
    a new value behind it. `constant`: what it loads lies beside the code, and is always near.
    """

    reads: frozenset[str]
    places: frozenset[str]
    writes: frozenset[str]
    loads: bool
    stores: bool
    constant: bool

    @property
    def brings_constant(self) -> bool:
        """Whether it only brings what lies beside the code into a register."""
        return self.constant and not self.reads


NO_VALUES: Final = Values(frozenset(), frozenset(), frozenset(), loads=False, stores=False, constant=False)
"""Of bytes that are no instruction."""

_NO_VALUES = frozenset({"rflags", "eflags", "flags", "nzcv", "rip", "eip", "xzr", "wzr", ""})
_VECTOR = re.compile(r"(?:[xyz]mm|[zvqdshb])(\d+)$")
_NUMBERED = re.compile(r"(?:[wx](\d+)|(r\d+)[dwb]?)$")
_OLD = re.compile(r"[er]?([abcd])[xlh]$|[er]?(si|di|bp|sp)l?$")
_NO_ACCESS = re.compile(r"lea|nop|prefetch|clflush|clwb")
"""What has a place in memory as operand, and does not go there for a value."""


def _widest(register: str) -> str:
    if found := _VECTOR.match(register):
        return f"v{found[1]}"
    if found := _NUMBERED.match(register):
        return found[2] or f"x{found[1]}"
    if found := _OLD.match(register):
        return f"r{found[1]}x" if found[1] else f"r{found[2]}"
    return register


def values_of(decoded: Decoded) -> Values:
    """What a decoded instruction does."""
    import capstone

    read, written = (_named(decoded, registers) for registers in decoded.regs_access())
    result = _untold_result(decoded, written)
    if result is not None and result.type == capstone.CS_OP_REG:
        written = _named(decoded, [result.reg])
        read -= written
    memory = [each for each in decoded.operands if each.type == capstone.CS_OP_MEM]
    places = _named(decoded, [part for each in memory for part in (each.mem.base, each.mem.index)])
    if _NO_ACCESS.match(decoded.mnemonic):
        memory = []
    loads = [each for each in memory if each.access & capstone.CS_AC_READ or not (each.access or each is result)]
    return Values(
        reads=(read - places) | (_data(decoded) & read & places),
        places=places,
        writes=written,
        loads=bool(loads),
        stores=any(each.access & capstone.CS_AC_WRITE or each is result for each in memory),
        constant=bool(loads) and all(decoded.reg_name(each.mem.base) in ("rip", "eip") for each in loads),
    )


def _untold_result(decoded: Decoded, written: frozenset[str]) -> Decoded | None:
    """Of some instructions of AVX-512 the library does not know what they do: there the first operand is the result."""
    first = next(iter(decoded.operands), None)
    return first if first is not None and not first.access and not written else None


def _named(decoded: Decoded, registers: Sequence[int]) -> frozenset[str]:
    return frozenset(map(_widest, {decoded.reg_name(each) or "" for each in registers} - _NO_VALUES))


def _data(decoded: Decoded) -> frozenset[str]:
    """Registers that are taken as values, even if an address is made of them too, as in `add rax, [rax]`."""
    import capstone

    operands = (each for each in decoded.operands if each.type == capstone.CS_OP_REG)
    return _named(decoded, [each.reg for each in operands if each.access & capstone.CS_AC_READ])
