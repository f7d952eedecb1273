"""Registers and memory that an instruction reads and writes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

Decoded = Any
"""A `capstone.CsInsn`; the library has no type hints."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A memory operand: `base` + `scale` * `index` + `offset`, in bytes. Registers are "" if absent.

    `lanes`: number of elements with an address of their own; 1 except for gathers.
    """

    base: str
    index: str
    scale: int
    offset: int
    lanes: int = 1


class DataFlow(msgspec.Struct, frozen=True):
    """Data flow of an instruction.

    Registers have the name of the widest one: `eax` is `rax`, `xmm3` and `zmm3` are `v3`.
    Stack slots count as registers, one for every 4 bytes (`[rsp+64]`), since values are spilled there and vectors are
    assembled there from elements.

    `reads`: registers whose values it uses; `places`: registers in addresses; `writes`: registers with a new value;
    `partly`: the written registers that keep part of their old value. `near`: it loads from the stack or from constants
    next to the code only, so no instruction waits for memory.
    """

    reads: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    loads: bool = False
    stores: bool = False
    near: bool = False
    loaded: frozenset[Place] = frozenset()
    """Addresses of the loads."""
    partly: frozenset[str] = frozenset()
    step: int = 0
    """Constant that it adds to the written register, if it does nothing else; 0: none, or unknown."""

    @property
    def reloads(self) -> bool:
        """Whether it only restores a constant or a spilled value, for lack of registers."""
        return self.near and all(register.startswith("[") for register in self.reads)


NO_VALUES: Final = DataFlow()
"""For bytes that are not an instruction."""

_NO_VALUES = frozenset({"rflags", "eflags", "flags", "nzcv", "rip", "eip", "xzr", "wzr", ""})
_VECTOR = re.compile(r"(?:[xyz]mm|[zvqdshb])(\d+)$")
_NUMBERED = re.compile(r"(?:[wx](\d+)|(r\d+)[dwb]?)$")
_OLD = re.compile(r"[er]?([abcd])[xlh]$|[er]?(si|di|bp|sp)l?$")
_NO_ACCESS = re.compile(r"lea|nop|prefetch|clflush|clwb")
"""Instructions with a memory operand that they do not access for a value."""
_NO_RESULT = re.compile(r"v?u?com|cmp$|test|bt$|fcmp|ccmp|tst|j|b\b|b\.|cb|tb|call|push|ret|nop|prefetch")
"""Instructions without a result except flags."""
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
"""Registers that a callee may read, and that it may change, by calling convention (System V, AAPCS64)."""


def widest(register: str) -> str:
    """Name of the widest register that contains a register; names in lower case."""
    if match := _VECTOR.match(register):
        return f"v{match[1]}"
    if match := _NUMBERED.match(register):
        return match[2] or f"x{match[1]}"
    if match := _OLD.match(register):
        return f"r{match[1]}x" if match[1] else f"r{match[2]}"
    return register


class _Operand(NamedTuple):
    """An operand, copied from the library's record, whose attributes are slow to access.

    `register`, `base` and `counter` are names of widest registers, "" if absent. `access`: read or write, 0 if the
    library does not say. `size`: size in memory in bytes.
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
"""Access flags (CS_AC_READ, CS_AC_WRITE)."""


def values_of(decoded: Decoded, machine: str) -> DataFlow:
    """The data flow of a decoded instruction; `machine`: the ELF name of the architecture."""
    operands = _operands_of(decoded, machine)
    reads, writes = _reads_and_writes(decoded, operands, machine)
    result = _unmarked_result(decoded.mnemonic, operands, writes)
    if result is not None and result.register:
        writes = frozenset({result.register}) - _NO_VALUES
        reads -= writes
    values = DataFlow(reads, writes=writes, step=_step(decoded.mnemonic, operands))
    in_memory = any(operand.kind == _MEMORY for operand in operands)
    return _values_in_memory(decoded, operands, result, values) if in_memory else values


def _values_in_memory(
    decoded: Decoded, operands: Sequence[_Operand], result: _Operand | None, registers: DataFlow
) -> DataFlow:
    """Complete the data flow of an instruction with a memory operand, from that of its registers."""
    memory = [operand for operand in operands if operand.kind == _MEMORY]
    places = frozenset([name for operand in memory for name in (operand.base, operand.counter)]) - _NO_VALUES
    is_access = not _NO_ACCESS.match(decoded.mnemonic)
    loads, stores = _accesses(decoded.mnemonic, memory, result) if is_access else (False, False)
    slots = frozenset(_slots(memory))
    # Registers that are read as values, even if they are also part of an address, as in `add rax, [rax]`.
    data = frozenset([operand.register for operand in operands if operand.access & _READ]) & registers.reads & places
    return DataFlow(
        reads=(registers.reads - places) | data | (slots if loads else frozenset()),
        places=places,
        writes=registers.writes | (slots if stores else frozenset()),
        loads=loads,
        stores=stores and not slots,
        near=loads and all(operand.base in _NEAR for operand in memory),
        loaded=frozenset(_place(decoded, operand) for operand in memory if loads),
        partly=slots if stores and any(operand.counter for operand in memory) else frozenset(),
        step=registers.step,
    )


_X86: Final = "EM_X86_64"


def _operands_of(decoded: Decoded, machine: str) -> list[_Operand]:
    """The operands. For x86, access flags after the first operand with an unknown access are ignored.

    Capstone 5.0.9 (X86Mapping.c: X86_get_op_access) fills the flags up to a 0; flags after that are garbage.
    """
    result = []
    is_known = True
    for operand in decoded.operands:
        is_known = is_known and (operand.access != 0 or machine != _X86)
        result.append(_operand(decoded, operand, operand.access if is_known else 0, machine))
    return result


def _operand(decoded: Decoded, operand: Decoded, access: int, machine: str) -> _Operand:
    kind: int = operand.type
    if kind == _REGISTER:
        return _Operand(kind, access, _name(decoded, operand.reg, machine))
    if kind == _MEMORY:
        memory = operand.mem
        base, counter = _name(decoded, memory.base, machine), _name(decoded, memory.index, machine)
        size = operand.size if machine == _X86 else _WORD_BYTES
        scale = memory.scale if machine == _X86 else 1  # AArch64 shifts the index
        return _Operand(kind, access, "", base, counter, scale, memory.disp, size)
    return _Operand(kind, access, number=operand.imm if kind == _NUMBER else 0)


def _reads_and_writes(
    decoded: Decoded, operands: Sequence[_Operand], machine: str
) -> tuple[frozenset[str], frozenset[str]]:
    """The registers that an instruction reads and writes; for a call, those that the callee may."""
    implied = (decoded.regs_read, decoded.regs_write) if machine == _X86 else decoded.regs_access()
    reads, writes = ([_name(decoded, operand, machine) for operand in registers] for registers in implied)
    for index, operand in enumerate(operands if machine == _X86 else ()):
        if operand.kind == _MEMORY:
            reads += (operand.base, operand.counter)
        elif operand.kind == _REGISTER:
            if operand.access & _READ or (index and not operand.access):  # an operand other than the result is read
                reads.append(operand.register)
            if operand.access & _WRITTEN:
                writes.append(operand.register)
    callee_reads, callee_writes = _CALLS.get(decoded.mnemonic, (frozenset(), frozenset()))
    return (frozenset(reads) - _NO_VALUES) | callee_reads, (frozenset(writes) - _NO_VALUES) | callee_writes


def _unmarked_result(mnemonic: str, operands: Sequence[_Operand], writes: frozenset[str]) -> _Operand | None:
    """The first operand, if it is the result but the library does not mark it.

    The library omits it for some AVX-512 instructions, and marks the memory that some moves write as read.
    """
    if not operands or writes or _NO_RESULT.match(mnemonic):
        return None
    first = operands[0]
    return first if not first.access or (first.kind == _MEMORY and _MOVE.match(mnemonic)) else None


def _accesses(mnemonic: str, memory: Sequence[_Operand], result: _Operand | None) -> tuple[bool, bool]:
    """Whether an instruction with memory operands loads, and whether it stores."""
    if _OF_AARCH64.match(mnemonic):  # for pre- and post-indexed addresses, the library marks memory as written
        return mnemonic[0] == "l", mnemonic[0] == "s"
    loads = any(operand.access & _READ or not operand.access for operand in memory if operand is not result)
    return loads, any(operand is result or operand.access & _WRITTEN for operand in memory)


_WIDTH: Final = re.compile(r"([xyz])mm")
_LANES = {"x": 4, "y": 8, "z": 16}


def _place(decoded: Decoded, operand: _Operand) -> Place:
    width = _WIDTH.search(decoded.op_str) if "gather" in decoded.mnemonic else None
    lanes = _LANES[width[1]] if width else 1
    return Place(operand.base, operand.counter, operand.scale, operand.offset, lanes)


def _step(mnemonic: str, operands: Sequence[_Operand]) -> int:
    """Constant that an instruction adds to a register; 0 if it does not."""
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
    """Stack slots of operands. An indexed access may be to any slot of a vector."""
    for operand in memory:
        if operand.base in _STACK:
            size = _WIDEST_BYTES if operand.counter else max(1, operand.size)
            low = operand.offset // _WORD_BYTES * _WORD_BYTES
            yield from (f"[{operand.base}{offset:+}]" for offset in range(low, operand.offset + size, _WORD_BYTES))


_WIDEST_BYTES: Final = 64
_WORD_BYTES: Final = 4


def _name(decoded: Decoded, register: int, machine: str) -> str:
    """Name of the widest register that contains a register. Cached, since the library is slow."""
    known = _NAMES[machine]
    if register not in known:
        known[register] = widest(decoded.reg_name(register) or "")
    return known[register]


_NAMES: Final[defaultdict[str, dict[int, str]]] = defaultdict(dict)
"""Names of registers by architecture and the library's register number."""
