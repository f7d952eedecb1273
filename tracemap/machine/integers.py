"""Integer state of x86-64 code, and effects of instructions on it.

The state has numbers in registers, on the stack and in memory that pointers reach.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, TypeGuard, TypeVar

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


_PARTS: Final = [
    *((f"r{name}x", f"e{name}x", f"{name}x", f"{name}l") for name in "abcd"),
    *((f"r{name}", f"e{name}", name, f"{name}l") for name in ("si", "di", "bp", "sp")),
    *((f"r{index}", f"r{index}d", f"r{index}w", f"r{index}b") for index in range(8, 16)),
]
_REGISTERS: Final = {
    **{part: Register(parts[0], size) for parts in _PARTS for part, size in zip(parts, (8, 4, 2, 1), strict=True)},
    **{f"{name}h": Register(f"r{name}x", 0) for name in "abcd"},
}
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


def is_number(value: Known) -> TypeGuard[Value]:
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
        elif is_number(previous) and not part.pointer:
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


# ---- effects of instructions
#
# Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.


Operands = Sequence[Operand]
Effect = Callable[[State, Operands, int], None]
"""Effect of an instruction on a state, given its operands and the size of the first in bytes."""


@dataclass(frozen=True, slots=True)
class IntegerStep:
    """The integer effect of an instruction. `writes`: the general registers that it writes."""

    mnemonic: str
    operands: tuple[Operand, ...]
    size: int
    writes: tuple[str, ...]
    effect: Effect | None
    """None: not modelled; written registers become unknown."""

    def run(self, state: State) -> None:
        """Apply the instruction to a state."""
        if self.effect is not None:
            self.effect(state, self.operands, self.size)
            return
        state.registers.update(dict.fromkeys(self.writes, UNKNOWN))
        if not _KEEPS_FLAGS.match(self.mnemonic):
            state.compared = UNKNOWN


@lru_cache(maxsize=1 << 14)
def integer_step(mnemonic: str, text: str, writes: frozenset[str]) -> IntegerStep | None:
    """The integer effect of an instruction; None if it has none.

    Args:
        mnemonic: mnemonic in lower case.
        text: operands in Intel syntax.
        writes: registers that it writes.
    """
    general = tuple(sorted(writes & GENERAL))
    if not general and mnemonic[:1] in "vkn" and _KEEPS_FLAGS.match(mnemonic):  # vectors, masks, or no effect
        return None
    operands = operands_of(text)
    sizes = (operand.size for operand in operands if isinstance(operand, (Register, Memory)))
    effect = None if None in operands else _EFFECTS.get(mnemonic)
    return IntegerStep(mnemonic, operands, next(sizes, 8) or 8, general, effect)


_KEEPS_FLAGS: Final = re.compile(
    r"(v(?!u?comis|testp|ptest$)|k(?!ortest|test)|mov|lea|nop|prefetch|push|pop|not$|cdq|cqo|\w+x$|j|ret|endbr|xchg|cmov|set)"
)


def _numbers(first: Known, second: Known) -> tuple[int, int] | None:
    """Two values as integers; None if one is a pointer or unknown."""
    return (first.offset, second.offset) if is_number(first) and is_number(second) else None


def _arithmetic(
    compute: Callable[[int, int, int], int], form: Callable[[int, int], int] = unsigned, *, cancels: bool = False
) -> Effect:
    """Arithmetic on the last two operands, with the result in the first; `cancels`: of equal ones it is 0."""

    def run(state: State, operands: Operands, size: int) -> None:
        same = cancels and operands[0] == operands[1]
        numbers = (0, 0) if same else _numbers(*(state.get(operand) for operand in operands[-2:]))
        bits = 8 * size
        result = UNKNOWN if numbers is None else number(compute(form(numbers[0], bits), form(numbers[1], bits), bits))
        _put_and_compare(state, operands[0], result, size)

    return run


def _put_and_compare(state: State, target: Operand, result: Known, size: int) -> None:
    """Write a result. Conditions then compare it with 0."""
    state.put(target, result)
    state.compared = _comparison(result, ZERO, size)


def _comparison(left: Known, right: Known, size: int) -> Comparison | Unknown:
    if left is UNKNOWN or right is UNKNOWN or left.pointer != right.pointer or left.pointer == LOW_BYTE:
        return UNKNOWN
    return Comparison(left.offset, right.offset, 8 * size)


def _unary(compute: Callable[[Known], Known]) -> Effect:
    def run(state: State, operands: Operands, size: int) -> None:
        _put_and_compare(state, operands[0], compute(state.get(operands[0])), size)

    return run


def _mov(state: State, operands: Operands, _: int) -> None:
    state.put(operands[0], state.get(operands[1]))


def _movsx(state: State, operands: Operands, _: int) -> None:
    value, source = state.get(operands[1]), operands[1]
    if is_number(value) and isinstance(source, (Register, Memory)):
        value = number(signed(value.offset, 8 * source.size))
    else:
        value = UNKNOWN
    state.put(operands[0], value)


def _lea(state: State, operands: Operands, _: int) -> None:
    state.put(operands[0], state.address(operands[1]) if isinstance(operands[1], Memory) else UNKNOWN)


def _add(state: State, operands: Operands, size: int) -> None:
    _put_and_compare(state, operands[0], add(state.get(operands[0]), state.get(operands[1])), size)


def _sub(state: State, operands: Operands, size: int) -> None:
    same = operands[0] == operands[1]
    left, right = (ZERO, ZERO) if same else (state.get(operands[0]), state.get(operands[1]))
    state.put(operands[0], subtract(left, right))
    state.compared = _comparison(left, right, size)


def _with_carry(compute: Callable[[Known, Known], Known]) -> Effect:
    """Add or subtract with carry, from the last comparison or subtraction."""

    def run(state: State, operands: Operands, _: int) -> None:
        compared = state.compared
        carry = UNKNOWN if compared is UNKNOWN else number(int(compared.holds("b")))
        cancels = compute is subtract and operands[0] == operands[1]
        left, right = (ZERO, ZERO) if cancels else (state.get(operand) for operand in operands)
        state.put(operands[0], compute(compute(left, right), carry))
        state.compared = UNKNOWN

    return run


def _neg(state: State, operands: Operands, size: int) -> None:
    value = state.get(operands[0])
    state.put(operands[0], subtract(ZERO, value))
    state.compared = _comparison(ZERO, value, size)


def _cmp(state: State, operands: Operands, size: int) -> None:
    state.compared = _comparison(state.get(operands[0]), state.get(operands[1]), size)


def _test(state: State, operands: Operands, size: int) -> None:
    numbers = _numbers(state.get(operands[0]), state.get(operands[1]))
    state.compared = UNKNOWN if numbers is None else Comparison(numbers[0] & numbers[1], 0, 8 * size)


def _and(state: State, operands: Operands, size: int) -> None:
    value, mask = state.get(operands[0]), operands[1]
    if value is not UNKNOWN and value.pointer == STACK and isinstance(mask, int):  # aligns the stack
        state.put(operands[0], Value(STACK, value.offset & signed(mask)))
        state.compared = UNKNOWN
    else:
        _BITWISE_AND(state, operands, size)


_BITWISE_AND: Final = _arithmetic(lambda a, b, _: a & b)


def _or(state: State, operands: Operands, size: int) -> None:
    a, b = state.get(operands[0]), state.get(operands[1])
    # With aligned pointers, `or` adds an offset.
    if a is not UNKNOWN and b is not UNKNOWN and bool(a.pointer) != bool(b.pointer):
        state.put(operands[0], add(a, b))
        state.compared = UNKNOWN
    else:
        _BITWISE_OR(state, operands, size)


_BITWISE_OR: Final = _arithmetic(lambda a, b, _: a | b)


def _not(state: State, operands: Operands, _: int) -> None:
    value = state.get(operands[0])
    state.put(operands[0], number(~value.offset) if is_number(value) else UNKNOWN)


def _imul(state: State, operands: Operands, size: int) -> None:
    if len(operands) == 1:
        _mul(state, operands, size)
        return
    left, right = (state.get(operand) for operand in operands[-2:])
    factor, other = (right, left) if is_number(right) else (left, right)
    state.put(operands[0], multiply(other, factor.offset) if is_number(factor) else UNKNOWN)
    state.compared = UNKNOWN


def _product(left: Known, right: Known, size: int) -> tuple[Known, Known]:
    numbers = _numbers(left, right)
    if numbers is None:
        return UNKNOWN, UNKNOWN
    product = unsigned(numbers[0], 8 * size) * unsigned(numbers[1], 8 * size)
    return number(product >> 8 * size), number(unsigned(product, 8 * size))


def _mul(state: State, operands: Operands, size: int) -> None:
    high, low = _product(state.get(Register("rax", size)), state.get(operands[0]), size)
    state.put(Register("rax", size), low)
    state.put(Register("rdx", size), high)
    state.compared = UNKNOWN


def _mulx(state: State, operands: Operands, size: int) -> None:
    high, low = _product(state.get(Register("rdx", size)), state.get(operands[2]), size)
    state.put(operands[1], low)
    state.put(operands[0], high)


def _division(form: Callable[[int, int], int]) -> Effect:
    def run(state: State, operands: Operands, size: int) -> None:
        numbers = _numbers(state.get(Register("rax", size)), state.get(operands[0]))
        state.forget("rax", "rdx")
        if numbers is not None and form(numbers[1], 8 * size):
            dividend, divisor = (form(value, 8 * size) for value in numbers)
            quotient = abs(dividend) // abs(divisor) * (-1 if (dividend < 0) != (divisor < 0) else 1)
            state.put(Register("rax", size), number(quotient))
            state.put(Register("rdx", size), number(dividend - quotient * divisor))

    return run


def _push(state: State, operands: Operands, _: int) -> None:
    value, pointer = state.get(operands[0]), add(state.registers.get("rsp", UNKNOWN), number(-8))
    state.registers["rsp"] = pointer
    if pointer is not UNKNOWN:
        state.stack[pointer.offset] = value


def _pop(state: State, operands: Operands, _: int) -> None:
    pointer = state.registers.get("rsp", UNKNOWN)
    state.put(operands[0], state.stack.get(pointer.offset, UNKNOWN) if pointer is not UNKNOWN else UNKNOWN)
    state.registers["rsp"] = add(pointer, number(8))


def _sign_into_rdx(size: int) -> Effect:
    def run(state: State, _operands: Operands, _size: int) -> None:
        value = state.get(Register("rax", size))
        sign = number(-1 if signed(value.offset, 8 * size) < 0 else 0) if is_number(value) else UNKNOWN
        state.put(Register("rdx", size), sign)

    return run


def _xchg(state: State, operands: Operands, _: int) -> None:
    first, second = (state.get(operand) for operand in operands)
    state.put(operands[0], second)
    state.put(operands[1], first)


def _set(condition: str) -> Effect:
    def run(state: State, operands: Operands, _: int) -> None:
        compared = state.compared
        state.put(operands[0], UNKNOWN if compared is UNKNOWN else number(int(compared.holds(condition))))

    return run


def _cmov(condition: str) -> Effect:
    def run(state: State, operands: Operands, _: int) -> None:
        old, new, compared = state.get(operands[0]), state.get(operands[1]), state.compared
        if compared is UNKNOWN:
            state.put(operands[0], old if old == new else UNKNOWN)
        else:
            state.put(operands[0], new if compared.holds(condition) else old)

    return run


_EFFECTS: Final[Mapping[str, Effect]] = {
    **dict.fromkeys(("mov", "movabs", "movzx"), _mov),
    **dict.fromkeys(("movsx", "movsxd"), _movsx),
    "lea": _lea,
    "add": _add,
    "sub": _sub,
    "sbb": _with_carry(subtract),
    "adc": _with_carry(add),
    "cmp": _cmp,
    "test": _test,
    "xor": _arithmetic(lambda a, b, _: a ^ b, cancels=True),
    "and": _and,
    "andn": _arithmetic(lambda a, b, _: ~a & b),
    "or": _or,
    "inc": _unary(lambda value: add(value, number(1))),
    "dec": _unary(lambda value: add(value, number(-1))),
    "neg": _neg,
    "not": _not,
    "imul": _imul,
    "mul": _mul,
    "mulx": _mulx,
    "div": _division(unsigned),
    "idiv": _division(signed),
    "push": _push,
    "pop": _pop,
    "call": lambda state, *_: state.forget("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"),
    "cdqe": lambda state, *_: _movsx(state, (Register("rax", 8), Register("rax", 4)), 8),
    "cdq": _sign_into_rdx(4),
    "cqo": _sign_into_rdx(8),
    "xchg": _xchg,
    **dict.fromkeys(("shl", "sal", "shlx"), _arithmetic(lambda a, b, bits: a << (b & (bits - 1)))),
    **dict.fromkeys(("shr", "shrx"), _arithmetic(lambda a, b, bits: a >> (b & (bits - 1)))),
    **dict.fromkeys(("sar", "sarx"), _arithmetic(lambda a, b, bits: a >> (b & (bits - 1)), signed)),
    **{f"set{condition}": _set(condition) for condition in CONDITIONS},
    **{f"cmov{condition}": _cmov(condition) for condition in CONDITIONS},
}
