"""Which registers and memory an instruction reads and writes, as far as values go through them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

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


class _Operand(NamedTuple):
    """An operand, taken out of the library's record at once: each look into that takes long.

    `register`, `base` and `counter` are names of the widest registers, "" for none. `access`: what is done with it, 0
    where the library does not say. `size`: of what is in memory, in bytes.
    """

    kind: int
    access: int
    register: str = ""
    base: str = ""
    counter: str = ""
    scale: int = 1
    offset: int = 0
    size: int = 0
    number: int = 0


_REGISTER, _NUMBER, _MEMORY = 1, 2, 3
"""Kinds of operands (Capstone, CS_OP_REG, CS_OP_IMM, CS_OP_MEM)."""
_READ, _WRITTEN = 1, 2
"""Ways to access one (CS_AC_READ, CS_AC_WRITE)."""


def values_of(decoded: Decoded, machine: str) -> Values:
    """What a decoded instruction does; `machine` is the architecture's name as ELF has it."""
    operands = _operands_of_x86(decoded) if machine == _X86 else _operands_of_others(decoded, machine)
    read, written = _read_and_written(decoded, operands, machine)
    result = _untold_result(decoded.mnemonic, operands, written)
    if result is not None and result.register:
        written = frozenset({result.register}) - _NO_VALUES
        read -= written
    found = replace(NO_VALUES, reads=read, writes=written, step=_step(decoded.mnemonic, operands))
    in_memory = any(each.kind == _MEMORY for each in operands)
    return _values_in_memory(decoded, operands, result, found) if in_memory else found


def _values_in_memory(
    decoded: Decoded, operands: Sequence[_Operand], result: _Operand | None, registers: Values
) -> Values:
    """The same of an instruction with an operand in memory, from what it does to registers."""
    memory = [each for each in operands if each.kind == _MEMORY]
    places = frozenset([name for each in memory for name in (each.base, each.counter)]) - _NO_VALUES
    is_access = not _NO_ACCESS.match(decoded.mnemonic)
    loads, stores = _accesses(decoded.mnemonic, memory, result) if is_access else (False, False)
    slots = frozenset(_slots(memory))
    # Registers that are taken as values, even if an address is made of them too, as in `add rax, [rax]`.
    data = frozenset([each.register for each in operands if each.access & _READ]) & registers.reads & places
    return Values(
        reads=(registers.reads - places) | data | (slots if loads else frozenset()),
        places=places,
        writes=registers.writes | (slots if stores else frozenset()),
        loads=loads,
        stores=stores and not slots,
        near=loads and all(each.base in _NEAR for each in memory),
        loaded=frozenset(_place(decoded, each) for each in memory if loads),
        partly=slots if stores and any(each.counter for each in memory) else frozenset(),
        step=registers.step,
    )


_X86: Final = "EM_X86_64"


def _operands_of_x86(decoded: Decoded) -> list[_Operand]:
    """The operands, without what the library says of those behind the first of which it does not say it.

    The library (Capstone 5.0.9, X86Mapping.c: X86_get_op_access) tells it of the first operands, then there is a 0,
    and whatever stood in memory for those behind it.
    """
    found = []
    is_told = True
    for each in decoded.operands:
        is_told = is_told and each.access != 0
        found.append(_operand(decoded, each, each.access if is_told else 0, _X86))
    return found


def _operands_of_others(decoded: Decoded, machine: str) -> list[_Operand]:
    return [_operand(decoded, each, each.access, machine) for each in decoded.operands]


def _operand(decoded: Decoded, operand: Decoded, access: int, machine: str) -> _Operand:
    kind: int = operand.type
    if kind == _REGISTER:
        return _Operand(kind, access, _name(decoded, operand.reg, machine))
    if kind == _MEMORY:
        memory = operand.mem
        base, counter = _name(decoded, memory.base, machine), _name(decoded, memory.index, machine)
        size = operand.size if machine == _X86 else _WORD_BYTES
        scale = memory.scale if machine == _X86 else 1  # on AArch64 an index is shifted
        return _Operand(kind, access, "", base, counter, scale, memory.disp, size)
    return _Operand(kind, access, number=operand.imm if kind == _NUMBER else 0)


def _read_and_written(
    decoded: Decoded, operands: Sequence[_Operand], machine: str
) -> tuple[frozenset[str], frozenset[str]]:
    """The registers that an instruction reads and writes; of a call those that the called function may."""
    implied = (decoded.regs_read, decoded.regs_write) if machine == _X86 else decoded.regs_access()
    read, written = ([_name(decoded, each, machine) for each in registers] for registers in implied)
    for place, each in enumerate(operands if machine == _X86 else ()):
        if each.kind == _MEMORY:
            read += (each.base, each.counter)
        elif each.kind == _REGISTER:
            if each.access & _READ or (place and not each.access):  # what is no result is taken
                read.append(each.register)
            if each.access & _WRITTEN:
                written.append(each.register)
    given, changed = _CALLS.get(decoded.mnemonic, (frozenset(), frozenset()))
    return (frozenset(read) - _NO_VALUES) | given, (frozenset(written) - _NO_VALUES) | changed


def _untold_result(mnemonic: str, operands: Sequence[_Operand], written: frozenset[str]) -> _Operand | None:
    """The first operand, where it is the result and the library does not say so.

    It does not of some instructions of AVX-512, and takes what some moves write to memory for what they read.
    """
    if not operands or written or _NO_RESULT.match(mnemonic):
        return None
    first = operands[0]
    return first if not first.access or (first.kind == _MEMORY and _MOVE.match(mnemonic)) else None


def _accesses(mnemonic: str, memory: Sequence[_Operand], result: _Operand | None) -> tuple[bool, bool]:
    """Whether an instruction that has operands in memory loads, and whether it stores."""
    if _OF_AARCH64.match(mnemonic):  # where an address is counted on, the library says that memory is written
        return mnemonic[0] == "l", mnemonic[0] == "s"
    loads = any(each.access & _READ or not each.access for each in memory if each is not result)
    return loads, any(each is result or each.access & _WRITTEN for each in memory)


_WIDTH: Final = re.compile(r"([xyz])mm")
_LANES = {"x": 4, "y": 8, "z": 16}


def _place(decoded: Decoded, operand: _Operand) -> Place:
    width = _WIDTH.search(decoded.op_str) if "gather" in decoded.mnemonic else None
    lanes = _LANES[width[1]] if width else 1
    return Place(operand.base, operand.counter, operand.scale, operand.offset, lanes)


def _step(mnemonic: str, operands: Sequence[_Operand]) -> int:
    """The constant that an instruction counts a register on by, 0 where it does not."""
    if mnemonic in _COUNTS_ONE:
        return _COUNTS_ONE[mnemonic]
    if mnemonic not in _COUNTS:
        return 0
    first, *others, last = operands
    same = first.register and all(other.register == first.register for other in others)
    return _COUNTS[mnemonic] * last.number if same and last.kind == _NUMBER else 0


_COUNTS: Final = {"add": 1, "sub": -1}
_COUNTS_ONE: Final = {"inc": 1, "dec": -1}


def _slots(memory: Sequence[_Operand]) -> Iterator[str]:
    """The places on the stack that operands are; one that is counted to may be any in a vector."""
    for each in memory:
        if each.base in _STACK:
            size = _WIDEST_BYTES if each.counter else max(1, each.size)
            low = each.offset // _WORD_BYTES * _WORD_BYTES
            yield from (f"[{each.base}{place:+}]" for place in range(low, each.offset + size, _WORD_BYTES))


_WIDEST_BYTES: Final = 64
_WORD_BYTES: Final = 4


def _name(decoded: Decoded, register: int, machine: str) -> str:
    """The name of the widest register that one is part of. The library is asked once, as that takes long."""
    known = _NAMES[machine]
    if register not in known:
        known[register] = widest(decoded.reg_name(register) or "")
    return known[register]


_NAMES: Final[defaultdict[str, dict[int, str]]] = defaultdict(dict)
"""By architecture, and by the library's number of a register."""
