"""Integer state of x86-64 code: numbers in registers, on the stack and in memory that pointers reach."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from tracemap.core.units import UNKNOWN, Unknown

# ---- operands
#
# Parse the operands of x86-64 instructions from Intel syntax: registers, memory, numbers.


class Register(NamedTuple):
    """A general register: name of the widest register that contains it, and size of the accessed low part in bytes.

    Size 0: the second byte (`ah`).
    """

    name: str
    size: int


class Memory(NamedTuple):
    """A memory operand: `size` bytes at base + scale * counter + offset. Registers are "" if absent."""

    base: str
    counter: str
    scale: int
    offset: int
    size: int


Operand = Register | Memory | int | None
"""None: a vector register or another operand without an integer."""


def _registers() -> dict[str, Register]:
    registers = {}
    for letter in "abcd":
        parts = {f"r{letter}x": 8, f"e{letter}x": 4, f"{letter}x": 2, f"{letter}l": 1, f"{letter}h": 0}
        registers.update({part: Register(f"r{letter}x", size) for part, size in parts.items()})
    for name in ("si", "di", "bp", "sp"):
        parts = {f"r{name}": 8, f"e{name}": 4, name: 2, f"{name}l": 1}
        registers.update({part: Register(f"r{name}", size) for part, size in parts.items()})
    for number in range(8, 16):
        parts = {f"r{number}": 8, f"r{number}d": 4, f"r{number}w": 2, f"r{number}b": 1}
        registers.update({part: Register(f"r{number}", size) for part, size in parts.items()})
    return registers


_REGISTERS: Final = _registers()
GENERAL: Final = frozenset(register.name for register in _REGISTERS.values())
"""The general registers, by the name of the widest one."""

_SIZES: Final = {"byte": 1, "word": 2, "dword": 4, "qword": 8, "xmmword": 16, "ymmword": 32, "zmmword": 64}
_MEMORY: Final = re.compile(r"(?:(\w+) ptr )?(?:\w+:)?\[([^\]]*)\]")
_TERM: Final = re.compile(r"([+-]?)(?:(\w+)\*(\d)|(0x[0-9a-f]+|\d+)|(\w+))")
_NUMBER: Final = re.compile(r"-?(?:0x[0-9a-f]+|\d+)$")


@lru_cache(maxsize=1 << 14)
def operands_of(text: str) -> tuple[Operand, ...]:
    """Parse the operands of an instruction.

    >>> operands_of("eax, dword ptr [rcx + rsi*4 - 0x10]")
    (Register(name='rax', size=4), Memory(base='rcx', counter='rsi', scale=4, offset=-16, size=4))
    """
    return tuple(map(_operand, text.split(", "))) if text else ()


def _operand(text: str) -> Operand:
    if match := _MEMORY.search(text):
        return _memory(match[2], _SIZES.get(match[1] or "", 0))
    if text in _REGISTERS:
        return _REGISTERS[text]
    return int(text, 0) if _NUMBER.match(text) else None


def _memory(expression: str, size: int) -> Memory:
    base, counter, scale, offset = "", "", 1, 0
    for sign, scaled_register, factor, constant, name in _TERM.findall(expression.replace(" ", "")):
        if constant:
            offset += int(constant, 0) * (-1 if sign == "-" else 1)
        elif name and not base:
            base = name
        else:
            counter, scale = scaled_register or name, int(factor or 1)
    return Memory(base, counter, scale, offset, size)


# ---- integers
#
# Values are integers, offsets from a named pointer (`Value.pointer`), or unknown. That suffices to follow a kernel's
# control flow, whose loops count integers, and to find its memory accesses.


_BITS: Final = 64
_K = TypeVar("_K")


class Value(NamedTuple):
    """An integer, or an offset from a pointer. `pointer`: its name, "" for none; `offset`: signed.

    With pointer `LOW_BYTE` only the lowest byte is known, from the offset.
    """

    pointer: str
    offset: int


Known = Value | Unknown

ZERO: Final = Value("", 0)
LOW_BYTE: Final = "\0low"
STACK: Final = "\0stack"
"""The stack pointer at function entry."""
_CODE: Final = "\0code"
"""Base of constants next to the code."""
_DEEPEST: Final = 3
"""Limit on pointers loaded from pointers. Elements of arrays are not tracked."""


def number(value: int) -> Value:
    """Wrap an integer as a value."""
    return Value("", value)


def is_number(value: Known) -> bool:
    """Whether a value is a known integer."""
    return value is not UNKNOWN and not value.pointer


def signed(value: int, bits: int = _BITS) -> int:
    """Interpret the low bits as a signed integer."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def unsigned(value: int, bits: int) -> int:
    """Interpret the low bits as an unsigned integer."""
    return value & ((1 << bits) - 1)


def add(left: Known, right: Known) -> Known:
    """Add two values. The sum of two pointers is unknown."""
    if (
        left is UNKNOWN
        or right is UNKNOWN
        or (left.pointer and right.pointer)
        or LOW_BYTE in (left.pointer, right.pointer)
    ):
        return UNKNOWN
    return Value(left.pointer or right.pointer, left.offset + right.offset)


def multiply(value: Known, factor: int) -> Known:
    """Multiply a value by an integer."""
    if value is UNKNOWN or (value.pointer and factor != 1):
        return UNKNOWN
    return Value(value.pointer, value.offset * factor)


def subtract(left: Known, right: Known) -> Known:
    """Subtract two values. The difference of offsets from one pointer is an integer."""
    if left is UNKNOWN or right is UNKNOWN or LOW_BYTE in (left.pointer, right.pointer):
        return UNKNOWN
    if right.pointer and left.pointer != right.pointer:
        return UNKNOWN
    return Value("" if right.pointer else left.pointer, left.offset - right.offset)


# ---- conditions


class Comparison(NamedTuple):
    """The last comparison, which decides conditions: two integers and their width in bits."""

    left: int
    right: int
    bits: int

    def holds(self, condition: str) -> bool:
        """Whether a condition (`ne`, `b`, `ge`, …) holds."""
        return CONDITIONS[condition](self.left, self.right, self.bits)

    def moved(self, following: Comparison, times: int) -> Comparison:
        """Extrapolate by `times` iterations, from the change between this comparison and the next."""
        left = self.left + times * (following.left - self.left)
        right = self.right + times * (following.right - self.right)
        return Comparison(left, right, self.bits)


def _by(test: Callable[[int, int], bool], form: Callable[[int, int], int]) -> Callable[[int, int, int], bool]:
    return lambda left, right, bits: test(form(left, bits), form(right, bits))


CONDITIONS: Final[Mapping[str, Callable[[int, int, int], bool]]] = {
    **dict.fromkeys(("e", "z"), _by(lambda a, b: a == b, unsigned)),
    **dict.fromkeys(("ne", "nz"), _by(lambda a, b: a != b, unsigned)),
    **dict.fromkeys(("b", "c", "nae"), _by(lambda a, b: a < b, unsigned)),
    **dict.fromkeys(("ae", "nb", "nc"), _by(lambda a, b: a >= b, unsigned)),
    **dict.fromkeys(("be", "na"), _by(lambda a, b: a <= b, unsigned)),
    **dict.fromkeys(("a", "nbe"), _by(lambda a, b: a > b, unsigned)),
    **dict.fromkeys(("l", "nge"), _by(lambda a, b: a < b, signed)),
    **dict.fromkeys(("ge", "nl"), _by(lambda a, b: a >= b, signed)),
    **dict.fromkeys(("le", "ng"), _by(lambda a, b: a <= b, signed)),
    **dict.fromkeys(("g", "nle"), _by(lambda a, b: a > b, signed)),
    "s": lambda left, right, bits: signed(left - right, bits) < 0,
    "ns": lambda left, right, bits: signed(left - right, bits) >= 0,
}
"""Integer conditions of jumps, by their suffix."""


# ---- state


@dataclass(frozen=True, slots=True)
class Surroundings:
    """State at function entry: arguments by register, and integers in memory by pointer.

    A pointer-sized load from anywhere else gives a new pointer.
    """

    registers: Mapping[str, Value]
    memory: Mapping[Value, int]


@dataclass(slots=True)
class State:
    """Integers in registers and on the stack, and the last comparison."""

    around: Surroundings
    registers: dict[str, Known] = field(default_factory=dict)
    stack: dict[int, Known] = field(default_factory=dict)
    compared: Comparison | Unknown = UNKNOWN

    @classmethod
    def at_entry(cls, around: Surroundings) -> State:
        """The state at function entry."""
        return cls(around, {**around.registers, "rsp": Value(STACK, 0)})

    def copy(self) -> State:
        """Copy the state, for modification."""
        return State(self.around, dict(self.registers), dict(self.stack), self.compared)

    def merged(self, other: State) -> State:
        """Merge the states of two paths: keep the values that they share."""
        return State(
            self.around,
            _common(self.registers, other.registers),
            _common(self.stack, other.stack),
            self.compared if self.compared == other.compared else UNKNOWN,
        )

    def moved(self, following: State, times: int) -> State:
        """Extrapolate by `times` iterations of a loop, from the change between this state and the next."""
        return State(
            self.around,
            _extrapolated(self.registers, following.registers, times),
            _extrapolated(self.stack, following.stack, times),
        )

    def get(self, operand: Operand) -> Known:
        """Read an operand."""
        if isinstance(operand, Register):
            return _part(self.registers.get(operand.name, UNKNOWN), operand.size)
        if isinstance(operand, int):
            return number(operand)
        return self._load(operand) if isinstance(operand, Memory) else UNKNOWN

    def put(self, operand: Operand, value: Known) -> None:
        """Write an operand."""
        if isinstance(operand, Register):
            self._write(operand, value)
        elif isinstance(operand, Memory):
            place = self.address(operand)
            if place is not UNKNOWN and place.pointer == STACK:
                self.stack[place.offset] = _part(value, operand.size)

    def forget(self, *registers: str) -> None:
        """Set registers and the last comparison to unknown."""
        self.registers.update(dict.fromkeys(registers, UNKNOWN))
        self.compared = UNKNOWN

    def address(self, operand: Memory) -> Known:
        """The address of a memory operand."""
        base, counter, scale, offset, _ = operand
        if base == "rip":
            return Value(_CODE, offset)
        place = self.registers.get(base, UNKNOWN) if base else ZERO
        if counter:
            place = add(place, multiply(self.registers.get(counter, UNKNOWN), scale))
        if place is UNKNOWN or place.pointer == LOW_BYTE:
            return UNKNOWN
        return Value(place.pointer, place.offset + offset)

    def _write(self, register: Register, value: Known) -> None:
        """Write a register. A write of 4 bytes clears the upper 4; smaller writes keep the other bytes."""
        name, size = register
        previous, part = self.registers.get(name, UNKNOWN), _part(value, size)
        if size >= 4 or part is UNKNOWN:
            self.registers[name] = part
        elif previous is not UNKNOWN and not previous.pointer and not part.pointer:
            upper_bytes = previous.offset & ~((1 << 8 * size) - 1)
            self.registers[name] = number(upper_bytes | part.offset)
        else:
            self.registers[name] = Value(LOW_BYTE, unsigned(part.offset, 8))

    def _load(self, operand: Memory) -> Known:
        place = self.address(operand)
        if place is UNKNOWN or not place.pointer:
            return UNKNOWN
        if place.pointer == STACK:
            return _part(self.stack.get(place.offset, UNKNOWN), operand.size)
        if place in self.around.memory:
            return number(unsigned(self.around.memory[place], 8 * operand.size))
        is_tracked = operand.size == 8 and place.pointer.count("[") < _DEEPEST
        return Value(loaded_pointer(place), 0) if is_tracked else UNKNOWN


def loaded_pointer(place: Value) -> str:
    """Name of the pointer that is loaded from an address."""
    return f"{place.pointer}[{place.offset}]"


def _common(first: Mapping[_K, Known], second: Mapping[_K, Known]) -> dict[_K, Known]:
    return {key: value for key, value in first.items() if second.get(key) == value}


def _extrapolated(values: Mapping[_K, Known], next_values: Mapping[_K, Known], times: int) -> dict[_K, Known]:
    extrapolated: dict[_K, Known] = {}
    for key, value in values.items():
        next_value = next_values.get(key, UNKNOWN)
        if value is not UNKNOWN and next_value is not UNKNOWN and value.pointer == next_value.pointer:
            extrapolated[key] = Value(value.pointer, value.offset + times * (next_value.offset - value.offset))
    return extrapolated


def _part(value: Known, size: int) -> Known:
    """The low bytes of a value."""
    if value is UNKNOWN or size == 8 or (value.pointer == LOW_BYTE and size > 1):
        return value
    if not size or value.pointer not in ("", LOW_BYTE):
        return UNKNOWN
    return number(unsigned(value.offset, 8 * size))
