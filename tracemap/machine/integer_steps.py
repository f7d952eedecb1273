"""Effects of x86-64 instructions on the integer state.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tracemap.core.units import UNKNOWN, Unknown
from tracemap.machine.integers import (
    CONDITIONS,
    GENERAL,
    LOW_BYTE,
    STACK,
    ZERO,
    Comparison,
    Known,
    Memory,
    Operand,
    Register,
    State,
    Value,
    add,
    is_number,
    multiply,
    number,
    operands_of,
    signed,
    subtract,
    unsigned,
)

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
    effect = None if None in operands else _EFFECTS.get(mnemonic) or _conditional(mnemonic)
    return IntegerStep(mnemonic, operands, next(sizes, 8) or 8, general, effect)


_KEEPS_FLAGS: Final = re.compile(
    r"(v(?!u?comis|testp|ptest$)|k(?!ortest|test)|mov|lea|nop|prefetch|push|pop|not$|cdq|cqo|\w+x$|j|ret|endbr|xchg|cmov|set)"
)


def _numbers(first: Known, second: Known) -> tuple[int, int] | None:
    """Two values as integers; None if one is a pointer or unknown."""
    if first is UNKNOWN or second is UNKNOWN or first.pointer or second.pointer:
        return None
    return first.offset, second.offset


def _arithmetic(compute: Callable[[int, int, int], int], form: Callable[[int, int], int] = unsigned) -> Effect:
    """Arithmetic on the last two operands, with the result in the first."""

    def run(state: State, operands: Operands, size: int) -> None:
        numbers = _numbers(*(state.get(operand) for operand in operands[-2:]))
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
    known = value is not UNKNOWN and not value.pointer and isinstance(source, (Register, Memory))
    bits = 8 * source.size if isinstance(source, (Register, Memory)) else 64
    state.put(operands[0], number(signed(value.offset, bits)) if known and value is not UNKNOWN else UNKNOWN)


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


def _xor(state: State, operands: Operands, size: int) -> None:
    if operands[0] == operands[1]:
        _put_and_compare(state, operands[0], ZERO, size)
    else:
        _BITWISE_XOR(state, operands, size)


_BITWISE_XOR: Final = _arithmetic(lambda a, b, _: a ^ b)


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
    state.put(operands[0], number(~value.offset) if value is not UNKNOWN and not value.pointer else UNKNOWN)


def _imul(state: State, operands: Operands, size: int) -> None:
    if len(operands) == 1:
        _mul(state, operands, size)
        return
    left, right = (state.get(operand) for operand in operands[-2:])
    factor, other = (right, left) if is_number(right) else (left, right)
    known = factor is not UNKNOWN and not factor.pointer
    state.put(operands[0], multiply(other, factor.offset) if known and factor is not UNKNOWN else UNKNOWN)
    state.compared = UNKNOWN


def _product(left: Known, right: Known, size: int) -> tuple[Known, Known]:
    """The upper and lower halves of a product."""
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


def _call(state: State, _operands: Operands, _size: int) -> None:
    state.forget("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")


def _cdqe(state: State, _operands: Operands, _size: int) -> None:
    _movsx(state, (Register("rax", 8), Register("rax", 4)), 8)


def _sign_into_rdx(size: int) -> Effect:
    def run(state: State, _operands: Operands, _size: int) -> None:
        value = state.get(Register("rax", size))
        known = value is not UNKNOWN and not value.pointer
        sign = -1 if value is not UNKNOWN and signed(value.offset, 8 * size) < 0 else 0
        state.put(Register("rdx", size), number(sign) if known else UNKNOWN)

    return run


def _xchg(state: State, operands: Operands, _: int) -> None:
    first, second = (state.get(operand) for operand in operands)
    state.put(operands[0], second)
    state.put(operands[1], first)


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
    "xor": _xor,
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
    "call": _call,
    "cdqe": _cdqe,
    "cdq": _sign_into_rdx(4),
    "cqo": _sign_into_rdx(8),
    "xchg": _xchg,
    **dict.fromkeys(("shl", "sal", "shlx"), _arithmetic(lambda a, b, bits: a << (b & (bits - 1)))),
    **dict.fromkeys(("shr", "shrx"), _arithmetic(lambda a, b, bits: a >> (b & (bits - 1)))),
    **dict.fromkeys(("sar", "sarx"), _arithmetic(lambda a, b, bits: a >> (b & (bits - 1)), signed)),
}


def _conditional(mnemonic: str) -> Effect | None:
    """The effect of a conditional instruction (`cmovl`, `setb`); None for all others."""
    kind, condition = mnemonic[:4], mnemonic[4:]
    if mnemonic.startswith("set") and mnemonic[3:] in CONDITIONS:
        return _set(mnemonic[3:])
    return _cmov(condition) if kind == "cmov" and condition in CONDITIONS else None


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
