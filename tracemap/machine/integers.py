"""What x86-64 instructions do to whole numbers in registers and on the stack: loop counters, bounds, and addresses.

A value is a number, or a number of bytes behind a pointer that is not known (`Value.base` names it), or unknown. That is
enough to follow the control flow of a kernel, whose loops count whole numbers, and to see where it goes in memory.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from tracemap.units import UNKNOWN, Unknown

_BITS: Final = 64
_ALL: Final = (1 << _BITS) - 1


class Value(NamedTuple):
    """A number, or one behind a pointer: `base` names the pointer, "" for none; `offset` has a sign."""

    base: str
    offset: int


Known = Value | Unknown


def signed(number: int, bits: int = _BITS) -> int:
    """A number of so many bits, the highest of which is its sign."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


class Comparison(NamedTuple):
    """What conditions go by: two numbers that were compared, and how many bits they have."""

    left: int
    right: int
    bits: int

    def holds(self, condition: str) -> bool:
        """Whether a condition (`ne`, `b`, `ge` …) holds."""
        return _CONDITIONS[condition](self.left, self.right, self.bits)

    def moved(self, other: Comparison, times: int) -> Comparison:
        """What it is after as many more turns, each of which changes it as from this one to another."""
        left = self.left + times * (other.left - self.left)
        right = self.right + times * (other.right - self.right)
        return Comparison(left, right, self.bits)


def _unsigned(number: int, bits: int) -> int:
    return number & ((1 << bits) - 1)


def _by(test: Callable[[int, int], bool], *, sign: bool) -> Callable[[int, int, int], bool]:
    form = signed if sign else _unsigned
    return lambda left, right, bits: test(form(left, bits), form(right, bits))


_CONDITIONS: Final[Mapping[str, Callable[[int, int, int], bool]]] = {
    **dict.fromkeys(("e", "z"), _by(lambda one, two: one == two, sign=False)),
    **dict.fromkeys(("ne", "nz"), _by(lambda one, two: one != two, sign=False)),
    **dict.fromkeys(("b", "c", "nae"), _by(lambda one, two: one < two, sign=False)),
    **dict.fromkeys(("ae", "nb", "nc"), _by(lambda one, two: one >= two, sign=False)),
    **dict.fromkeys(("be", "na"), _by(lambda one, two: one <= two, sign=False)),
    **dict.fromkeys(("a", "nbe"), _by(lambda one, two: one > two, sign=False)),
    **dict.fromkeys(("l", "nge"), _by(lambda one, two: one < two, sign=True)),
    **dict.fromkeys(("ge", "nl"), _by(lambda one, two: one >= two, sign=True)),
    **dict.fromkeys(("le", "ng"), _by(lambda one, two: one <= two, sign=True)),
    **dict.fromkeys(("g", "nle"), _by(lambda one, two: one > two, sign=True)),
    "s": lambda left, right, bits: signed(left - right, bits) < 0,
    "ns": lambda left, right, bits: signed(left - right, bits) >= 0,
}


# ---- operands


class Register(NamedTuple):
    """A general register, by the name of the widest one that it is part of, and the bytes of it that are meant."""

    name: str
    size: int


class Memory(NamedTuple):
    """A place in memory: `size` bytes at base + scale x index + offset; registers, "" for none."""

    base: str
    index: str
    scale: int
    offset: int
    size: int


Operand = Register | Memory | int | None
"""None: a vector register, or anything else that no whole number goes through."""


def _names() -> dict[str, Register]:
    found = {}
    for letter in "abcd":
        names = (f"r{letter}x", 8), (f"e{letter}x", 4), (f"{letter}x", 2), (f"{letter}l", 1), (f"{letter}h", 0)
        found.update({name: Register(f"r{letter}x", size) for name, size in names})
    for name in ("si", "di", "bp", "sp"):
        names = (f"r{name}", 8), (f"e{name}", 4), (name, 2), (f"{name}l", 1)
        found.update({each: Register(f"r{name}", size) for each, size in names})
    for number in range(8, 16):
        names = (f"r{number}", 8), (f"r{number}d", 4), (f"r{number}w", 2), (f"r{number}b", 1)
        found.update({each: Register(f"r{number}", size) for each, size in names})
    return found


_REGISTERS: Final = _names()
_SIZES: Final = {"byte": 1, "word": 2, "dword": 4, "qword": 8, "xmmword": 16, "ymmword": 32, "zmmword": 64}
_MEMORY: Final = re.compile(r"(?:(\w+) ptr )?(?:\w+:)?\[([^\]]*)\]")
_TERM: Final = re.compile(r"([+-]?) ?(?:(\w+)\*(\d)|(\d)\*(\w+)|(0x[0-9a-f]+|\d+)|(\w+))")
_NUMBER: Final = re.compile(r"-?(?:0x[0-9a-f]+|\d+)$")


@lru_cache(maxsize=1 << 14)
def operands_of(text: str) -> tuple[Operand, ...]:
    """The operands of an instruction, from its text as Intel writes it.

    >>> operands_of("eax, dword ptr [rcx + 4*rsi - 0x10]")
    (Register(name='rax', size=4), Memory(base='rcx', index='rsi', scale=4, offset=-16, size=4))
    """
    return tuple(map(_operand, text.split(", "))) if text else ()


def _operand(text: str) -> Operand:
    if found := _MEMORY.search(text):
        return _memory(found[2], _SIZES.get(found[1] or "", 0))
    if text in _REGISTERS:
        return _REGISTERS[text]
    return int(text, 0) if _NUMBER.match(text) else None


def _memory(place: str, size: int) -> Memory:
    base, index, scale, offset = "", "", 1, 0
    for sign, scaled, by, by_first, scaled_last, number, name in _TERM.findall(place.replace(" ", "")):
        if number:
            offset += int(number, 0) * (-1 if sign == "-" else 1)
        elif name and not base:
            base = name
        else:
            index, scale = (scaled or scaled_last or name), int(by or by_first or 1)
    return Memory(base, index, scale, signed(offset), size)


# ---- state

_STACK: Final = "\0stack"
"""The pointer that the stack pointer is when the function begins."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a function finds: the values of arguments by register, and what lies in memory behind pointers.

    `memory` has numbers by pointer and offset; what else is loaded from there is a pointer of its own.
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
        return cls(around, {**around.registers, "rsp": Value(_STACK, 0)})

    def copy(self) -> State:
        """One that may be changed."""
        return State(self.around, dict(self.registers), dict(self.stack), self.compared)

    def merged(self, other: State) -> State:
        """What is the same, whichever of two ways was taken."""
        registers = {name: value for name, value in self.registers.items() if other.registers.get(name) == value}
        stack = {place: value for place, value in self.stack.items() if other.stack.get(place) == value}
        return State(self.around, registers, stack, self.compared if self.compared == other.compared else UNKNOWN)

    def moved(self, other: State, times: int) -> State:
        """What it is after as many more turns of a loop, each of which changes it as from this one to another."""
        registers = {
            name: _moved(value, other.registers.get(name, UNKNOWN), times) for name, value in self.registers.items()
        }
        stack = {place: _moved(value, other.stack.get(place, UNKNOWN), times) for place, value in self.stack.items()}
        return State(self.around, registers, stack)

    # -- reading and writing

    def get(self, operand: Operand) -> Known:
        """The value of an operand."""
        if isinstance(operand, Register):
            low = self.registers.get(operand.name + _LOW, UNKNOWN) if operand.size == 1 else UNKNOWN
            return _part(self.registers.get(operand.name, low), operand.size)
        if isinstance(operand, int):
            return Value("", operand)
        if isinstance(operand, Memory):
            return self._load(operand)
        return UNKNOWN

    def put(self, operand: Operand, value: Known) -> None:
        """Write a value to where an operand is."""
        if isinstance(operand, Register):
            self._write(operand, value)
        elif isinstance(operand, Memory):
            place = self.address(operand)
            if place is not UNKNOWN and place.base == _STACK:
                self.stack[place.offset] = value if operand.size == 8 or _is_number(value) else UNKNOWN

    def _write(self, register: Register, value: Known) -> None:
        """Write a register: of four bytes the other four become nothing, of fewer the others stay."""
        name, before = register.name, self.registers.get(register.name, UNKNOWN)
        self.registers.pop(name + _LOW, None)
        if register.size >= 4 or value is UNKNOWN or value.base:
            self.registers[name] = _written(value, register.size)
        elif before is not UNKNOWN and not before.base and register.size:
            mask = (1 << 8 * register.size) - 1
            self.registers[name] = Value("", (before.offset & ~mask) | (value.offset & mask))
        else:
            self.registers.pop(name, None)
            if register.size == 1:
                self.registers[name + _LOW] = value

    def address(self, operand: Memory) -> Known:
        """Where an operand in memory is."""
        if operand.base == "rip":
            return Value("\0code", operand.offset)
        base = self.registers.get(operand.base, UNKNOWN) if operand.base else _ZERO
        index = self.registers.get(operand.index, UNKNOWN) if operand.index else _ZERO
        if base is UNKNOWN or index is UNKNOWN:
            return UNKNOWN
        return added(added(base, scaled(index, operand.scale)), Value("", operand.offset))

    def _load(self, operand: Memory) -> Known:
        place = self.address(operand)
        if place is UNKNOWN or not place.base:
            return UNKNOWN
        if place.base == _STACK:
            return self.stack.get(place.offset, UNKNOWN)
        if place in self.around.memory:
            return Value("", self.around.memory[place] & ((1 << 8 * operand.size) - 1))
        # Only few pointers are loaded, one from where another leads to; elements are not.
        return Value(f"{place.base}[{place.offset}]", 0) if operand.size == 8 and place.base.count("[") < 3 else UNKNOWN


_ZERO: Final = Value("", 0)
_LOW: Final = ":low"
"""Behind the name of a register of which only the lowest byte is known."""


def _is_number(value: Known) -> bool:
    return value is not UNKNOWN and not value.base


def _moved(value: Known, other: Known, times: int) -> Known:
    if value is UNKNOWN or other is UNKNOWN or value.base != other.base:
        return UNKNOWN
    return Value(value.base, value.offset + times * (other.offset - value.offset))


def _part(value: Known, size: int) -> Known:
    if value is UNKNOWN or size == 8:
        return value
    if value.base or not size:
        return UNKNOWN
    return Value("", value.offset & ((1 << 8 * size) - 1))


def _written(value: Known, size: int) -> Known:
    """What a register holds behind a write of a part of it: of four bytes the others are set to nothing."""
    if value is UNKNOWN or size < 4:
        return UNKNOWN
    if size == 4:
        return Value("", value.offset & 0xFFFFFFFF) if not value.base else UNKNOWN
    return Value("", signed(value.offset)) if not value.base else value


def added(one: Known, other: Known) -> Known:
    """The sum of two values; of two pointers none is known."""
    if one is UNKNOWN or other is UNKNOWN or (one.base and other.base):
        return UNKNOWN
    return Value(one.base or other.base, one.offset + other.offset)


def scaled(value: Known, factor: int) -> Known:
    """A number times another."""
    if value is UNKNOWN or (value.base and factor != 1):
        return UNKNOWN
    return Value(value.base, value.offset * factor)


def subtracted(one: Known, other: Known) -> Known:
    """The difference of two values; of two behind the same pointer it is a number."""
    if one is UNKNOWN or other is UNKNOWN or (other.base and one.base != other.base):
        return UNKNOWN
    return Value("" if other.base else one.base, one.offset - other.offset)


# ---- instructions

Effect = Callable[[State, Sequence[Operand], int], None]
"""What an instruction does to a state, from its operands and their size in bytes."""


def _arithmetic(compute: Callable[[int, int, int], int], *, sign: bool = False) -> Effect:
    """Of two numbers: the first operand is the first of them and the result, or there are three operands."""

    def run(state: State, operands: Sequence[Operand], size: int) -> None:
        one, two = (state.get(each) for each in operands[-2:])
        result: Known = UNKNOWN
        if _is_number(one) and _is_number(two):
            form = signed if sign else _unsigned
            numbers = (form(each.offset, 8 * size) for each in (one, two) if each is not UNKNOWN)
            result = Value("", compute(*numbers, 8 * size))
        state.put(operands[0], result)
        state.compared = _against_zero(result, size)

    return run


def _against_zero(value: Known, size: int) -> Comparison | Unknown:
    return Comparison(value.offset, 0, 8 * size) if value is not UNKNOWN and not value.base else UNKNOWN


def _mov(state: State, operands: Sequence[Operand], size: int) -> None:
    state.put(operands[0], state.get(operands[1]))


def _movsx(state: State, operands: Sequence[Operand], size: int) -> None:
    value, source = state.get(operands[1]), operands[1]
    bits = 8 * source.size if isinstance(source, (Register, Memory)) else _BITS
    state.put(
        operands[0], Value("", signed(value.offset, bits)) if _is_number(value) and value is not UNKNOWN else UNKNOWN
    )


def _lea(state: State, operands: Sequence[Operand], size: int) -> None:
    state.put(operands[0], state.address(operands[1]) if isinstance(operands[1], Memory) else UNKNOWN)


def _add(state: State, operands: Sequence[Operand], size: int) -> None:
    result = added(state.get(operands[0]), state.get(operands[1]))
    state.put(operands[0], result)
    state.compared = _against_zero(result, size)


def _sub(state: State, operands: Sequence[Operand], size: int) -> None:
    one, two = state.get(operands[0]), state.get(operands[1])
    if operands[0] == operands[1]:
        one = two = _ZERO
    state.put(operands[0], subtracted(one, two))
    state.compared = _comparison(one, two, size)


def _cmp(state: State, operands: Sequence[Operand], size: int) -> None:
    state.compared = _comparison(state.get(operands[0]), state.get(operands[1]), size)


def _comparison(one: Known, two: Known, size: int) -> Comparison | Unknown:
    if one is UNKNOWN or two is UNKNOWN or one.base != two.base:
        return UNKNOWN
    return Comparison(one.offset, two.offset, 8 * size)


def _test(state: State, operands: Sequence[Operand], size: int) -> None:
    one, two = state.get(operands[0]), state.get(operands[1])
    both = one is not UNKNOWN and two is not UNKNOWN and not one.base and not two.base
    state.compared = (
        Comparison(one.offset & two.offset, 0, 8 * size)
        if both and one is not UNKNOWN and two is not UNKNOWN
        else UNKNOWN
    )


def _xor(state: State, operands: Sequence[Operand], size: int) -> None:
    if operands[0] == operands[1]:
        state.put(operands[0], _ZERO)
        state.compared = Comparison(0, 0, 8 * size)
    else:
        _BITWISE_XOR(state, operands, size)


_BITWISE_XOR: Final = _arithmetic(lambda one, two, _: one ^ two)


def _and(state: State, operands: Sequence[Operand], size: int) -> None:
    value, mask = state.get(operands[0]), operands[1]
    if value is not UNKNOWN and value.base == _STACK and isinstance(mask, int):  # aligns the stack
        state.put(operands[0], Value(_STACK, value.offset & mask))
        state.compared = UNKNOWN
    else:
        _BITWISE_AND(state, operands, size)


_BITWISE_AND: Final = _arithmetic(lambda one, two, _: one & two)


def _or(state: State, operands: Sequence[Operand], size: int) -> None:
    one, two = operands
    pointer, number = state.get(one), state.get(two)
    # An offset into what is aligned is put in by `or`, as by `add`.
    if pointer is not UNKNOWN and number is not UNKNOWN and bool(pointer.base) != bool(number.base):
        state.put(one, added(pointer, number))
        state.compared = UNKNOWN
    else:
        _BITWISE_OR(state, operands, size)


_BITWISE_OR: Final = _arithmetic(lambda one, two, _: one | two)


def _step(by: int) -> Effect:
    def run(state: State, operands: Sequence[Operand], size: int) -> None:
        result = added(state.get(operands[0]), Value("", by))
        state.put(operands[0], result)
        state.compared = _against_zero(result, size)

    return run


def _neg(state: State, operands: Sequence[Operand], size: int) -> None:
    result = subtracted(_ZERO, state.get(operands[0]))
    state.put(operands[0], result)
    state.compared = _against_zero(result, size)


def _not(state: State, operands: Sequence[Operand], size: int) -> None:
    value = state.get(operands[0])
    state.put(operands[0], Value("", ~value.offset) if value is not UNKNOWN and not value.base else UNKNOWN)


def _imul(state: State, operands: Sequence[Operand], size: int) -> None:
    if len(operands) == 1:
        _clobber(state, ("rax", "rdx"))
        return
    one, two = (state.get(each) for each in operands[-2:])
    number, pointer = (two, one) if one is not UNKNOWN and one.base else (one, two)
    known = number is not UNKNOWN and not number.base
    state.put(operands[0], scaled(pointer, number.offset) if known and number is not UNKNOWN else UNKNOWN)
    state.compared = UNKNOWN


def _div(*, sign: bool) -> Effect:
    def run(state: State, operands: Sequence[Operand], size: int) -> None:
        dividend, divisor = state.get(Register("rax", size)), state.get(operands[0])
        _clobber(state, ("rax", "rdx"))
        form = signed if sign else _unsigned
        if dividend is not UNKNOWN and divisor is not UNKNOWN and not dividend.base and not divisor.base:
            one, two = (form(each.offset, 8 * size) for each in (dividend, divisor))
            if two:
                quotient = abs(one) // abs(two) * (-1 if (one < 0) != (two < 0) else 1)
                state.put(Register("rax", size), Value("", quotient))
                state.put(Register("rdx", size), Value("", one - quotient * two))

    return run


def _mulx(state: State, operands: Sequence[Operand], size: int) -> None:
    one, two = state.get(Register("rdx", size)), state.get(operands[2])
    high: Known = UNKNOWN
    low: Known = UNKNOWN
    if one is not UNKNOWN and two is not UNKNOWN and not one.base and not two.base:
        product = _unsigned(one.offset, 8 * size) * _unsigned(two.offset, 8 * size)
        high, low = Value("", product >> 8 * size), Value("", product & ((1 << 8 * size) - 1))
    state.put(operands[1], low)
    state.put(operands[0], high)


def _mul(state: State, operands: Sequence[Operand], size: int) -> None:
    one, two = state.get(Register("rax", size)), state.get(operands[0])
    _clobber(state, ("rax", "rdx"))
    if one is not UNKNOWN and two is not UNKNOWN and not one.base and not two.base:
        product = _unsigned(one.offset, 8 * size) * _unsigned(two.offset, 8 * size)
        state.put(Register("rax", size), Value("", product & ((1 << 8 * size) - 1)))
        state.put(Register("rdx", size), Value("", product >> 8 * size))


def _push(state: State, operands: Sequence[Operand], size: int) -> None:
    value, pointer = state.get(operands[0]), added(state.registers.get("rsp", UNKNOWN), Value("", -8))
    state.registers["rsp"] = pointer
    if pointer is not UNKNOWN:
        state.stack[pointer.offset] = value


def _pop(state: State, operands: Sequence[Operand], size: int) -> None:
    pointer = state.registers.get("rsp", UNKNOWN)
    state.put(operands[0], state.stack.get(pointer.offset, UNKNOWN) if pointer is not UNKNOWN else UNKNOWN)
    state.registers["rsp"] = added(pointer, Value("", 8))


def _clobber(state: State, registers: Sequence[str]) -> None:
    state.registers.update(dict.fromkeys(registers, UNKNOWN))
    state.compared = UNKNOWN


def _call(state: State, operands: Sequence[Operand], size: int) -> None:
    _clobber(state, ("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"))


def _cdqe(state: State, operands: Sequence[Operand], size: int) -> None:
    value = state.get(Register("rax", 4))
    state.registers["rax"] = Value("", signed(value.offset, 32)) if value is not UNKNOWN else UNKNOWN


def _cdq(size: int) -> Effect:
    def run(state: State, operands: Sequence[Operand], _: int) -> None:
        value = state.get(Register("rax", size))
        negative = value is not UNKNOWN and signed(value.offset, 8 * size) < 0
        state.put(Register("rdx", size), UNKNOWN if value is UNKNOWN or value.base else Value("", -int(negative)))

    return run


def _xchg(state: State, operands: Sequence[Operand], size: int) -> None:
    one, two = (state.get(each) for each in operands)
    state.put(operands[0], two)
    state.put(operands[1], one)


def _shift(number: int, by: int, bits: int) -> int:
    return number << (by & (bits - 1))


_EFFECTS: Final[Mapping[str, Effect]] = {
    **dict.fromkeys(("mov", "movabs", "movzx"), _mov),
    **dict.fromkeys(("movsx", "movsxd"), _movsx),
    "lea": _lea,
    "add": _add,
    "sub": _sub,
    "cmp": _cmp,
    "test": _test,
    "xor": _xor,
    "and": _and,
    "or": _or,
    "inc": _step(1),
    "dec": _step(-1),
    "neg": _neg,
    "not": _not,
    "imul": _imul,
    "mul": _mul,
    "mulx": _mulx,
    "div": _div(sign=False),
    "idiv": _div(sign=True),
    "push": _push,
    "pop": _pop,
    "call": _call,
    "cdqe": _cdqe,
    "cdq": _cdq(4),
    "cqo": _cdq(8),
    "xchg": _xchg,
    **dict.fromkeys(("shl", "sal", "shlx"), _arithmetic(_shift)),
    **dict.fromkeys(("shr", "shrx"), _arithmetic(lambda one, two, bits: one >> (two & (bits - 1)))),
    **dict.fromkeys(("sar", "sarx"), _arithmetic(lambda one, two, bits: one >> (two & (bits - 1)), sign=True)),
    "andn": _arithmetic(lambda one, two, _: ~one & two),
}
_CONDITIONAL: Final = re.compile(r"(cmov|set)(\w+)$")
_KEEPS_FLAGS: Final = re.compile(
    r"(v(?!u?comis|test|ptest)|k(?!or|test)|mov|lea|nop|prefetch|push|pop|not$|cdq|cqo|\w+x$|jmp|j|ret|endbr|xchg|cmov|set)"
)


@dataclass(frozen=True, slots=True)
class IntegerStep:
    """An instruction as far as whole numbers go through it: its place in a state's surroundings is not looked at."""

    mnemonic: str
    operands: tuple[Operand, ...]
    size: int
    writes: tuple[str, ...]
    """General registers that get a value which is not followed."""

    def run(self, state: State) -> None:
        """Change a state as the instruction does."""
        effect = _EFFECTS.get(self.mnemonic)
        if effect is not None and self.operands_are_known:
            effect(state, self.operands, self.size)
        elif found := _CONDITIONAL.match(self.mnemonic):
            self._conditional(state, found[1], found[2])
        else:
            state.registers.update(dict.fromkeys(self.writes, UNKNOWN))
            if not _KEEPS_FLAGS.match(self.mnemonic):
                state.compared = UNKNOWN

    @property
    def operands_are_known(self) -> bool:
        """Whether all operands are registers, places or numbers."""
        return None not in self.operands

    def _conditional(self, state: State, kind: str, condition: str) -> None:
        known = state.compared is not UNKNOWN and condition in _CONDITIONS
        if kind == "set":
            holds = state.compared.holds(condition) if known and state.compared is not UNKNOWN else False
            state.put(self.operands[0], Value("", int(holds)) if known else UNKNOWN)
        elif not known or state.compared is UNKNOWN:
            one, two = state.get(self.operands[0]), state.get(self.operands[1])
            state.put(self.operands[0], one if one == two else UNKNOWN)
        elif state.compared.holds(condition):
            state.put(self.operands[0], state.get(self.operands[1]))
        elif isinstance(self.operands[0], Register) and self.operands[0].size == 4:
            state.put(self.operands[0], state.get(self.operands[0]))


_NOT_WHOLE: Final = re.compile(
    r"(v(?!u?comis|test|ptest|movd|movq|pextr|mov|pmovmsk|extractps|cvtt?[sp][sdh]2u?si)|nop|prefetch)"
)


def integer_step(mnemonic: str, text: str, writes: frozenset[str]) -> IntegerStep | None:
    """An instruction as far as whole numbers go through it; None where none do.

    Args:
        mnemonic: in small letters.
        text: its operands.
        writes: the registers that it writes.
    """
    general = tuple(sorted(writes & _GENERAL))
    if _NOT_WHOLE.match(mnemonic) and not general:
        return None
    if mnemonic.startswith(("v", "k")) and not general and _KEEPS_FLAGS.match(mnemonic):
        return None
    operands = operands_of(text)
    sizes = [each.size for each in operands if isinstance(each, (Register, Memory))]
    return IntegerStep(mnemonic, operands, sizes[0] if sizes and sizes[0] else 8, general)


_GENERAL: Final = frozenset(each.name for each in _REGISTERS.values())
