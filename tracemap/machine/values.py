"""Which registers and memory an instruction reads and writes, as far as values go through them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

Decoded = Any
"""A `capstone.CsInsn`; the library has no type hints."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where in memory an operand is: `base` + `scale` x `index` + `offset`, in bytes; registers, "" for none.

    `lanes`: how many elements are looked for, each in a place of its own; 1 but for gathers.
    """

    base: str
    index: str
    scale: int
    offset: int
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Values:
    """Registers by the name of the widest one that they are part of: `eax` is `rax`, `xmm3` and `zmm3` are `v3`.

    The stack counts as more registers, one for each four bytes, `[rsp+64]`: values are put there for want of registers,
    and vectors are put together there of elements. `partly` are those of `writes` of which the rest stays as it was.

    `reads` are those whose values it takes, `places` those that make up addresses in memory, `writes` those that have
    a new value behind it. `near`: what it loads lies beside the code or on the stack, so that nothing waits for it.
    """

    reads: frozenset[str]
    places: frozenset[str]
    writes: frozenset[str]
    loads: bool
    stores: bool
    near: bool
    loaded: frozenset[Place]
    """Where it loads from."""
    partly: frozenset[str]
    step: int
    """What it adds to the register that it writes, where it does nothing else; 0: nothing, or that is not known."""

    @property
    def reloads(self) -> bool:
        """Whether it only brings back what there is no register for: a constant, or what was put on the stack."""
        return self.near and all(register.startswith("[") for register in self.reads)


NO_VALUES: Final = Values(
    *(frozenset(), frozenset(), frozenset()),
    loads=False,
    stores=False,
    near=False,
    loaded=frozenset(),
    partly=frozenset(),
    step=0,
)
"""Of bytes that are no instruction."""

_NO_VALUES = frozenset({"rflags", "eflags", "flags", "nzcv", "rip", "eip", "xzr", "wzr", ""})
_VECTOR = re.compile(r"(?:[xyz]mm|[zvqdshb])(\d+)$")
_NUMBERED = re.compile(r"(?:[wx](\d+)|(r\d+)[dwb]?)$")
_OLD = re.compile(r"[er]?([abcd])[xlh]$|[er]?(si|di|bp|sp)l?$")
_NO_ACCESS = re.compile(r"lea|nop|prefetch|clflush|clwb")
"""What has a place in memory as operand, and does not go there for a value."""
_NO_RESULT = re.compile(r"v?u?com|cmp$|test|bt$|fcmp|ccmp|tst|j|b\b|b\.|cb|tb|call|push|ret|nop|prefetch")
"""What has no result but flags, or none at all."""
_MOVE = re.compile(r"v?mov|vp?maskmov|v?p?extr|v?pmov|v?p?compress|v?p?scatter|k?mov")
_OF_AARCH64 = re.compile(r"(ld|st)(r|p|n|u|x|[1234])")
_STACK = frozenset({"rsp", "rbp", "sp", "x29", "fp"})
_NEAR = frozenset({"rip", "eip"}) | _STACK


def _registers(*numbers: int, kind: str = "v") -> frozenset[str]:
    return frozenset(f"{kind}{number}" for number in range(*numbers))


_OF_X86: Final = frozenset({"rdi", "rsi", "rdx", "rcx", "r8", "r9"}) | _registers(8)
_OF_AARCH64_CALLS: Final = _registers(8, kind="x") | _registers(8)
_CALLS: Final = {
    "call": (_OF_X86, _OF_X86 | {"rax", "r10", "r11"} | _registers(32)),
    **dict.fromkeys(("bl", "blr"), (_OF_AARCH64_CALLS, _registers(19, kind="x") | _registers(8) | _registers(16, 32))),
}
"""What a called function may take, and what it may leave changed, by the calling conventions (System V, AAPCS64)."""


def widest(register: str) -> str:
    """The name of the widest register that one, in small letters, is part of."""
    if found := _VECTOR.match(register):
        return f"v{found[1]}"
    if found := _NUMBERED.match(register):
        return found[2] or f"x{found[1]}"
    if found := _OLD.match(register):
        return f"r{found[1]}x" if found[1] else f"r{found[2]}"
    return register


def values_of(decoded: Decoded, machine: str) -> Values:
    """What a decoded instruction does; `machine` is the architecture's name as ELF has it."""
    import capstone

    read, written = _read_and_written(decoded, machine)
    result = _untold_result(decoded, written)
    if result is not None and result.type == capstone.CS_OP_REG:
        written = _named(decoded, [result.reg], machine)
        read -= written
    memory = [each for each in decoded.operands if each.type == capstone.CS_OP_MEM]
    bases = [each.mem.base for each in memory]
    places = _named(decoded, [*bases, *(each.mem.index for each in memory)], machine)
    loads, stores = (False, False) if _NO_ACCESS.match(decoded.mnemonic) else _accesses(decoded, memory, result)
    slots = frozenset(_slots(decoded, memory))
    return Values(
        reads=(read - places) | (_data(decoded, machine) & read & places) | (slots if loads else frozenset()),
        places=places,
        writes=written | (slots if stores else frozenset()),
        loads=loads,
        stores=stores and not slots,
        near=loads and all(decoded.reg_name(base) in _NEAR for base in bases),
        loaded=frozenset(_place(decoded, each, machine) for each in memory if loads),
        partly=slots if stores and any(each.mem.index for each in memory) else frozenset(),
        step=_step(decoded),
    )


def _read_and_written(decoded: Decoded, machine: str) -> tuple[frozenset[str], frozenset[str]]:
    """The registers that an instruction reads and writes; of a call those that the called function may."""
    registers = _registers_of_x86(decoded) if machine == "EM_X86_64" else decoded.regs_access()
    read, written = (_named(decoded, each, machine) for each in registers)
    given, changed = _CALLS.get(decoded.mnemonic, (frozenset(), frozenset()))
    return read | given, written | changed


def _registers_of_x86(decoded: Decoded) -> tuple[list[int], list[int]]:
    """The registers that are read, and those that are written; operands of which that is not told are made to say so.

    The library (Capstone 5.0.9, X86Mapping.c: X86_get_op_access) tells it of the first operands, then there is a 0,
    and whatever stood in memory for those behind it. What it says of registers itself is made of that too.
    """
    import capstone

    read, written = list(decoded.regs_read), list(decoded.regs_write)
    is_told = True
    for place, each in enumerate(decoded.operands):
        is_told = is_told and each.access != 0
        if not is_told:
            each.access = 0
        if each.type == capstone.CS_OP_MEM:
            read += [each.mem.segment, each.mem.base, each.mem.index]
        elif each.type == capstone.CS_OP_REG:
            if each.access & capstone.CS_AC_READ or (place and not is_told):  # what is no result is taken
                read.append(each.reg)
            if each.access & capstone.CS_AC_WRITE:
                written.append(each.reg)
    return read, written


def _untold_result(decoded: Decoded, written: frozenset[str]) -> Decoded | None:
    """The first operand, where it is the result and the library does not say so.

    It does not of some instructions of AVX-512, and takes what some moves write to memory for what they read.
    """
    import capstone

    first = next(iter(decoded.operands), None)
    if first is None or written or _NO_RESULT.match(decoded.mnemonic):
        return None
    return first if not first.access or (first.type == capstone.CS_OP_MEM and _MOVE.match(decoded.mnemonic)) else None


def _accesses(decoded: Decoded, memory: Sequence[Decoded], result: Decoded | None) -> tuple[bool, bool]:
    """Whether an instruction loads, and whether it stores."""
    import capstone

    if _OF_AARCH64.match(decoded.mnemonic):  # where an address is counted on, the library says that memory is written
        return bool(memory) and decoded.mnemonic[0] == "l", bool(memory) and decoded.mnemonic[0] == "s"
    others = [each for each in memory if each is not result]
    writes = [each for each in memory if each is result or each.access & capstone.CS_AC_WRITE]
    return any(each.access & capstone.CS_AC_READ or not each.access for each in others), bool(writes)


_WIDTH: Final = re.compile(r"([xyz])mm")
_LANES = {"x": 4, "y": 8, "z": 16}


def _place(decoded: Decoded, operand: Decoded, machine: str) -> Place:
    memory = operand.mem
    base, index = (_name(decoded, register, machine) for register in (memory.base, memory.index))
    width = _WIDTH.search(decoded.op_str) if "gather" in decoded.mnemonic else None
    lanes = _LANES[width[1]] if width else 1
    return Place(base, index, getattr(memory, "scale", 1), memory.disp, lanes)  # on AArch64 an index is shifted


def _step(decoded: Decoded) -> int:
    """The constant that an instruction counts a register on by, 0 where it does not."""
    import capstone

    if decoded.mnemonic in _COUNTS_ONE:
        return _COUNTS_ONE[decoded.mnemonic]
    if decoded.mnemonic not in _COUNTS:
        return 0
    first, *others, last = decoded.operands
    same = all(other.type == capstone.CS_OP_REG and other.reg == first.reg for other in others)
    if first.type != capstone.CS_OP_REG or last.type != capstone.CS_OP_IMM or not same:
        return 0
    return _COUNTS[decoded.mnemonic] * int(last.imm)


_COUNTS: Final = {"add": 1, "sub": -1}
_COUNTS_ONE: Final = {"inc": 1, "dec": -1}


def _slots(decoded: Decoded, memory: Sequence[Decoded]) -> Iterator[str]:
    """The places on the stack that operands are; one that is counted to may be any in a vector."""
    for each in memory:
        base = decoded.reg_name(each.mem.base)
        if base in _STACK:
            size = _WIDEST_BYTES if each.mem.index else max(1, each.size if hasattr(each, "size") else _WORD_BYTES)
            low = each.mem.disp // _WORD_BYTES * _WORD_BYTES
            yield from (f"[{base}{place:+}]" for place in range(low, each.mem.disp + size, _WORD_BYTES))


_WIDEST_BYTES: Final = 64
_WORD_BYTES: Final = 4


def _named(decoded: Decoded, registers: Iterable[int], machine: str) -> frozenset[str]:
    return frozenset([_name(decoded, each, machine) for each in registers]) - _NO_VALUES


def _name(decoded: Decoded, register: int, machine: str) -> str:
    """The name of the widest register that one is part of. The library is asked once, as that takes long."""
    known = _NAMES[machine]
    if register not in known:
        known[register] = widest(decoded.reg_name(register) or "")
    return known[register]


_NAMES: Final[defaultdict[str, dict[int, str]]] = defaultdict(dict)
"""By architecture, and by the library's number of a register."""


def _data(decoded: Decoded, machine: str) -> frozenset[str]:
    """Registers that are taken as values, even if an address is made of them too, as in `add rax, [rax]`."""
    import capstone

    operands = (each for each in decoded.operands if each.type == capstone.CS_OP_REG)
    return _named(decoded, [each.reg for each in operands if each.access & capstone.CS_AC_READ], machine)
