"""Whole numbers in registers, on the stack and behind pointers, as x86-64 code computes with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from tracemap.units import UNKNOWN, Unknown

# ---- operands
#
# Operands of x86-64 instructions, from their text as Intel writes it: registers, places in memory, numbers.


class Register(NamedTuple):
    """A general register, by the name of the widest one that it is part of, and how many of its lowest bytes are meant.

    0 bytes: the second byte alone (`ah`).
    """

    name: str
    size: int


class Memory(NamedTuple):
    """A place in memory: `size` bytes at base + scale x counter + offset; registers, "" for none."""

    base: str
    counter: str
    scale: int
    offset: int
    size: int


Operand = Register | Memory | int | None
"""None: a vector register, or anything else that no whole number goes through."""


def _registers() -> dict[str, Register]:
    found = {}
    for letter in "abcd":
        parts = {f"r{letter}x": 8, f"e{letter}x": 4, f"{letter}x": 2, f"{letter}l": 1, f"{letter}h": 0}
        found.update({part: Register(f"r{letter}x", size) for part, size in parts.items()})
    for name in ("si", "di", "bp", "sp"):
        parts = {f"r{name}": 8, f"e{name}": 4, name: 2, f"{name}l": 1}
        found.update({part: Register(f"r{name}", size) for part, size in parts.items()})
    for place in range(8, 16):
        parts = {f"r{place}": 8, f"r{place}d": 4, f"r{place}w": 2, f"r{place}b": 1}
        found.update({part: Register(f"r{place}", size) for part, size in parts.items()})
    return found


_REGISTERS: Final = _registers()
GENERAL: Final = frozenset(each.name for each in _REGISTERS.values())
"""The general registers by the names of the widest ones."""

_SIZES: Final = {"byte": 1, "word": 2, "dword": 4, "qword": 8, "xmmword": 16, "ymmword": 32, "zmmword": 64}
_MEMORY: Final = re.compile(r"(?:(\w+) ptr )?(?:\w+:)?\[([^\]]*)\]")
_TERM: Final = re.compile(r"([+-]?)(?:(\w+)\*(\d)|(0x[0-9a-f]+|\d+)|(\w+))")
_NUMBER: Final = re.compile(r"-?(?:0x[0-9a-f]+|\d+)$")


@lru_cache(maxsize=1 << 14)
def operands_of(text: str) -> tuple[Operand, ...]:
    """The operands of an instruction.

    >>> operands_of("eax, dword ptr [rcx + rsi*4 - 0x10]")
    (Register(name='rax', size=4), Memory(base='rcx', counter='rsi', scale=4, offset=-16, size=4))
    """
    return tuple(map(_operand, text.split(", "))) if text else ()


def _operand(text: str) -> Operand:
    if found := _MEMORY.search(text):
        return _memory(found[2], _SIZES.get(found[1] or "", 0))
    if text in _REGISTERS:
        return _REGISTERS[text]
    return int(text, 0) if _NUMBER.match(text) else None


def _memory(place: str, size: int) -> Memory:
    base, counter, scale, offset = "", "", 1, 0
    for sign, scaled, factor, constant, name in _TERM.findall(place.replace(" ", "")):
        if constant:
            offset += int(constant, 0) * (-1 if sign == "-" else 1)
        elif name and not base:
            base = name
        else:
            counter, scale = scaled or name, int(factor or 1)
    return Memory(base, counter, scale, offset, size)


# ---- integers
#
# Whole numbers in registers, on the stack and behind pointers, as x86-64 code computes with them.
#
# A value is a number, or a number of bytes behind a pointer that `Value.pointer` names, or unknown. That is enough to
# follow the control flow of a kernel, whose loops count whole numbers, and to see where it goes in memory.


_BITS: Final = 64
_K = TypeVar("_K")


class Value(NamedTuple):
    """A number, or one behind a pointer: `pointer` names it, "" for none; `offset` has a sign.

    Of one behind `LOW_BYTE` only the lowest byte is known, which is the offset's.
    """

    pointer: str
    offset: int


Known = Value | Unknown

ZERO: Final = Value("", 0)
LOW_BYTE: Final = "\0low"
STACK: Final = "\0stack"
"""The pointer that the stack pointer is when the function begins."""
_CODE: Final = "\0code"
"""The pointer that constants beside the code lie behind."""
_DEEPEST: Final = 3
"""Pointers that lead to one another; elements of arrays are not followed."""


def number(value: int) -> Value:
    """A number as a value."""
    return Value("", value)


def is_number(value: Known) -> bool:
    """Whether a value is a number, and known."""
    return value is not UNKNOWN and not value.pointer


def signed(value: int, bits: int = _BITS) -> int:
    """A number of so many bits, the highest of which is its sign."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def unsigned(value: int, bits: int) -> int:
    """A number of so many bits, without a sign."""
    return value & ((1 << bits) - 1)


def added(one: Known, other: Known) -> Known:
    """The sum of two values; of two pointers none is known."""
    if (
        one is UNKNOWN
        or other is UNKNOWN
        or (one.pointer and other.pointer)
        or LOW_BYTE in (one.pointer, other.pointer)
    ):
        return UNKNOWN
    return Value(one.pointer or other.pointer, one.offset + other.offset)


def scaled(value: Known, factor: int) -> Known:
    """A value times a number."""
    if value is UNKNOWN or (value.pointer and factor != 1):
        return UNKNOWN
    return Value(value.pointer, value.offset * factor)


def subtracted(one: Known, other: Known) -> Known:
    """The difference of two values; of two behind the same pointer it is a number."""
    if one is UNKNOWN or other is UNKNOWN or LOW_BYTE in (one.pointer, other.pointer):
        return UNKNOWN
    if other.pointer and one.pointer != other.pointer:
        return UNKNOWN
    return Value("" if other.pointer else one.pointer, one.offset - other.offset)


# ---- conditions


class Comparison(NamedTuple):
    """What conditions go by: two numbers that were compared, and how many bits they have."""

    left: int
    right: int
    bits: int

    def holds(self, condition: str) -> bool:
        """Whether a condition (`ne`, `b`, `ge` …) holds."""
        return CONDITIONS[condition](self.left, self.right, self.bits)

    def moved(self, other: Comparison, times: int) -> Comparison:
        """What it is after as many more turns, each of which changes it as from this one to another."""
        left = self.left + times * (other.left - self.left)
        right = self.right + times * (other.right - self.right)
        return Comparison(left, right, self.bits)


def _by(test: Callable[[int, int], bool], form: Callable[[int, int], int]) -> Callable[[int, int, int], bool]:
    return lambda left, right, bits: test(form(left, bits), form(right, bits))


CONDITIONS: Final[Mapping[str, Callable[[int, int, int], bool]]] = {
    **dict.fromkeys(("e", "z"), _by(lambda one, two: one == two, unsigned)),
    **dict.fromkeys(("ne", "nz"), _by(lambda one, two: one != two, unsigned)),
    **dict.fromkeys(("b", "c", "nae"), _by(lambda one, two: one < two, unsigned)),
    **dict.fromkeys(("ae", "nb", "nc"), _by(lambda one, two: one >= two, unsigned)),
    **dict.fromkeys(("be", "na"), _by(lambda one, two: one <= two, unsigned)),
    **dict.fromkeys(("a", "nbe"), _by(lambda one, two: one > two, unsigned)),
    **dict.fromkeys(("l", "nge"), _by(lambda one, two: one < two, signed)),
    **dict.fromkeys(("ge", "nl"), _by(lambda one, two: one >= two, signed)),
    **dict.fromkeys(("le", "ng"), _by(lambda one, two: one <= two, signed)),
    **dict.fromkeys(("g", "nle"), _by(lambda one, two: one > two, signed)),
    "s": lambda left, right, bits: signed(left - right, bits) < 0,
    "ns": lambda left, right, bits: signed(left - right, bits) >= 0,
}
"""The conditions of jumps that whole numbers decide, by the ends of their names."""


# ---- state


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a function finds: the values of arguments by register, and the numbers that lie behind pointers.

    What is loaded from elsewhere is a pointer of its own, as far as it is as wide as one.
    """

    registers: Mapping[str, Value]
    memory: Mapping[Value, int]


@dataclass(slots=True)
class State:
    """The whole numbers in registers and on the stack, and what was compared last."""

    around: Surroundings
    registers: dict[str, Known] = field(default_factory=dict)
    stack: dict[int, Known] = field(default_factory=dict)
    compared: Comparison | Unknown = UNKNOWN

    @classmethod
    def at_entry(cls, around: Surroundings) -> State:
        """What it is when a function begins."""
        return cls(around, {**around.registers, "rsp": Value(STACK, 0)})

    def copy(self) -> State:
        """One that may be changed."""
        return State(self.around, dict(self.registers), dict(self.stack), self.compared)

    def merged(self, other: State) -> State:
        """What is the same, whichever of two ways was taken."""
        return State(
            self.around,
            _common(self.registers, other.registers),
            _common(self.stack, other.stack),
            self.compared if self.compared == other.compared else UNKNOWN,
        )

    def moved(self, other: State, times: int) -> State:
        """What it is after as many more turns of a loop, each of which changes it as from this one to another."""
        return State(
            self.around,
            _moved(self.registers, other.registers, times),
            _moved(self.stack, other.stack, times),
        )

    def get(self, operand: Operand) -> Known:
        """The value of an operand."""
        if isinstance(operand, Register):
            return _part(self.registers.get(operand.name, UNKNOWN), operand.size)
        if isinstance(operand, int):
            return number(operand)
        return self._load(operand) if isinstance(operand, Memory) else UNKNOWN

    def put(self, operand: Operand, value: Known) -> None:
        """Write a value to where an operand is."""
        if isinstance(operand, Register):
            self._write(operand, value)
        elif isinstance(operand, Memory):
            place = self.address(operand)
            if place is not UNKNOWN and place.pointer == STACK:
                self.stack[place.offset] = _part(value, operand.size)

    def forget(self, *registers: str) -> None:
        """Have registers and what was compared unknown."""
        self.registers.update(dict.fromkeys(registers, UNKNOWN))
        self.compared = UNKNOWN

    def address(self, operand: Memory) -> Known:
        """Where an operand in memory is."""
        base, counter, scale, offset, _ = operand
        if base == "rip":
            return Value(_CODE, offset)
        place = self.registers.get(base, UNKNOWN) if base else ZERO
        if counter:
            place = added(place, scaled(self.registers.get(counter, UNKNOWN), scale))
        if place is UNKNOWN or place.pointer == LOW_BYTE:
            return UNKNOWN
        return Value(place.pointer, place.offset + offset)

    def _write(self, register: Register, value: Known) -> None:
        """Write a register: of four bytes the other four become nothing, of fewer the others stay."""
        name, size = register
        before, part = self.registers.get(name, UNKNOWN), _part(value, size)
        if size >= 4 or part is UNKNOWN:
            self.registers[name] = part
        elif before is not UNKNOWN and not before.pointer and not part.pointer:
            kept = before.offset & ~((1 << 8 * size) - 1)
            self.registers[name] = number(kept | part.offset)
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
        leads_on = operand.size == 8 and place.pointer.count("[") < _DEEPEST
        return Value(loaded_pointer(place), 0) if leads_on else UNKNOWN


def loaded_pointer(place: Value) -> str:
    """The name of the pointer that is loaded from a place."""
    return f"{place.pointer}[{place.offset}]"


def _common(one: Mapping[_K, Known], other: Mapping[_K, Known]) -> dict[_K, Known]:
    return {key: value for key, value in one.items() if other.get(key) == value}


def _moved(one: Mapping[_K, Known], other: Mapping[_K, Known], times: int) -> dict[_K, Known]:
    found: dict[_K, Known] = {}
    for key, value in one.items():
        then = other.get(key, UNKNOWN)
        if value is not UNKNOWN and then is not UNKNOWN and value.pointer == then.pointer:
            found[key] = Value(value.pointer, value.offset + times * (then.offset - value.offset))
    return found


def _part(value: Known, size: int) -> Known:
    """The lowest bytes of a value."""
    if value is UNKNOWN or size == 8 or (value.pointer == LOW_BYTE and size > 1):
        return value
    if not size or value.pointer not in ("", LOW_BYTE):
        return UNKNOWN
    return number(unsigned(value.offset, 8 * size))
