"""What x86-64 instructions do to the whole numbers of a state.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

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
    added,
    is_number,
    number,
    operands_of,
    scaled,
    signed,
    subtracted,
    unsigned,
)
from tracemap.units import UNKNOWN, Unknown

Operands = Sequence[Operand]
Effect = Callable[[State, Operands, int], None]
"""What an instruction does to a state, from its operands and the size in bytes of the first."""


@dataclass(frozen=True, slots=True)
class IntegerStep:
    """An instruction as far as whole numbers go through it; `writes` are the general registers that it writes."""

    mnemonic: str
    operands: tuple[Operand, ...]
    size: int
    writes: tuple[str, ...]
    effect: Effect | None
    """None: what it writes is not followed."""

    def run(self, state: State) -> None:
        """Change a state as the instruction does."""
        if self.effect is not None:
            self.effect(state, self.operands, self.size)
            return
        state.registers.update(dict.fromkeys(self.writes, UNKNOWN))
        if not _KEEPS_FLAGS.match(self.mnemonic):
            state.compared = UNKNOWN


@lru_cache(maxsize=1 << 14)
def integer_step(mnemonic: str, text: str, writes: frozenset[str]) -> IntegerStep | None:
    """An instruction as far as whole numbers go through it; None where none do.

    Args:
        mnemonic: in small letters.
        text: its operands, as Intel writes them.
        writes: the registers that it writes.
    """
    general = tuple(sorted(writes & GENERAL))
    if not general and mnemonic[:1] in "vkn" and _KEEPS_FLAGS.match(mnemonic):  # of vectors, masks, or nothing at all
        return None
    operands = operands_of(text)
    sized = (each.size for each in operands if isinstance(each, (Register, Memory)))
    effect = None if None in operands else _EFFECTS.get(mnemonic) or _conditional(mnemonic)
    return IntegerStep(mnemonic, operands, next(sized, 8) or 8, general, effect)


_KEEPS_FLAGS: Final = re.compile(
    r"(v(?!u?comis|testp|ptest$)|k(?!ortest|test)|mov|lea|nop|prefetch|push|pop|not$|cdq|cqo|\w+x$|j|ret|endbr|xchg|cmov|set)"
)


def _numbers(one: Known, two: Known) -> tuple[int, int] | None:
    """Two values as numbers; None where one is none, or not known."""
    if one is UNKNOWN or two is UNKNOWN or one.pointer or two.pointer:
        return None
    return one.offset, two.offset


def _arithmetic(compute: Callable[[int, int, int], int], form: Callable[[int, int], int] = unsigned) -> Effect:
    """Of the last two operands, into the first."""

    def run(state: State, operands: Operands, size: int) -> None:
        found = _numbers(*(state.get(each) for each in operands[-2:]))
        bits = 8 * size
        result = UNKNOWN if found is None else number(compute(form(found[0], bits), form(found[1], bits), bits))
        _put_and_compare(state, operands[0], result, size)

    return run


def _put_and_compare(state: State, target: Operand, result: Known, size: int) -> None:
    """Write a result; what it is beside 0 is what conditions go by."""
    state.put(target, result)
    state.compared = _comparison(result, ZERO, size)


def _comparison(one: Known, two: Known, size: int) -> Comparison | Unknown:
    if one is UNKNOWN or two is UNKNOWN or one.pointer != two.pointer or one.pointer == LOW_BYTE:
        return UNKNOWN
    return Comparison(one.offset, two.offset, 8 * size)


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
    _put_and_compare(state, operands[0], added(state.get(operands[0]), state.get(operands[1])), size)


def _sub(state: State, operands: Operands, size: int) -> None:
    same = operands[0] == operands[1]
    one, two = (ZERO, ZERO) if same else (state.get(operands[0]), state.get(operands[1]))
    state.put(operands[0], subtracted(one, two))
    state.compared = _comparison(one, two, size)


def _with_carry(compute: Callable[[Known, Known], Known]) -> Effect:
    """Adds or subtracts one more where what was compared or subtracted last has borrowed."""

    def run(state: State, operands: Operands, _: int) -> None:
        compared = state.compared
        carry = UNKNOWN if compared is UNKNOWN else number(int(compared.holds("b")))
        cancels = compute is subtracted and operands[0] == operands[1]
        one, two = (ZERO, ZERO) if cancels else (state.get(each) for each in operands)
        state.put(operands[0], compute(compute(one, two), carry))
        state.compared = UNKNOWN

    return run


def _neg(state: State, operands: Operands, size: int) -> None:
    value = state.get(operands[0])
    state.put(operands[0], subtracted(ZERO, value))
    state.compared = _comparison(ZERO, value, size)


def _cmp(state: State, operands: Operands, size: int) -> None:
    state.compared = _comparison(state.get(operands[0]), state.get(operands[1]), size)


def _test(state: State, operands: Operands, size: int) -> None:
    found = _numbers(state.get(operands[0]), state.get(operands[1]))
    state.compared = UNKNOWN if found is None else Comparison(found[0] & found[1], 0, 8 * size)


def _xor(state: State, operands: Operands, size: int) -> None:
    if operands[0] == operands[1]:
        _put_and_compare(state, operands[0], ZERO, size)
    else:
        _BITWISE_XOR(state, operands, size)


_BITWISE_XOR: Final = _arithmetic(lambda one, two, _: one ^ two)


def _and(state: State, operands: Operands, size: int) -> None:
    value, mask = state.get(operands[0]), operands[1]
    if value is not UNKNOWN and value.pointer == STACK and isinstance(mask, int):  # aligns the stack
        state.put(operands[0], Value(STACK, value.offset & signed(mask)))
        state.compared = UNKNOWN
    else:
        _BITWISE_AND(state, operands, size)


_BITWISE_AND: Final = _arithmetic(lambda one, two, _: one & two)


def _or(state: State, operands: Operands, size: int) -> None:
    one, two = state.get(operands[0]), state.get(operands[1])
    # An offset into what is aligned is put in by `or`, as by `add`.
    if one is not UNKNOWN and two is not UNKNOWN and bool(one.pointer) != bool(two.pointer):
        state.put(operands[0], added(one, two))
        state.compared = UNKNOWN
    else:
        _BITWISE_OR(state, operands, size)


_BITWISE_OR: Final = _arithmetic(lambda one, two, _: one | two)


def _not(state: State, operands: Operands, _: int) -> None:
    value = state.get(operands[0])
    state.put(operands[0], number(~value.offset) if value is not UNKNOWN and not value.pointer else UNKNOWN)


def _imul(state: State, operands: Operands, size: int) -> None:
    if len(operands) == 1:
        _mul(state, operands, size)
        return
    one, two = (state.get(each) for each in operands[-2:])
    factor, other = (two, one) if is_number(two) else (one, two)
    known = factor is not UNKNOWN and not factor.pointer
    state.put(operands[0], scaled(other, factor.offset) if known and factor is not UNKNOWN else UNKNOWN)
    state.compared = UNKNOWN


def _product(one: Known, two: Known, size: int) -> tuple[Known, Known]:
    """The upper and the lower half of a product."""
    found = _numbers(one, two)
    if found is None:
        return UNKNOWN, UNKNOWN
    product = unsigned(found[0], 8 * size) * unsigned(found[1], 8 * size)
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
        found = _numbers(state.get(Register("rax", size)), state.get(operands[0]))
        state.forget("rax", "rdx")
        if found is not None and form(found[1], 8 * size):
            dividend, divisor = (form(each, 8 * size) for each in found)
            quotient = abs(dividend) // abs(divisor) * (-1 if (dividend < 0) != (divisor < 0) else 1)
            state.put(Register("rax", size), number(quotient))
            state.put(Register("rdx", size), number(dividend - quotient * divisor))

    return run


def _push(state: State, operands: Operands, _: int) -> None:
    value, pointer = state.get(operands[0]), added(state.registers.get("rsp", UNKNOWN), number(-8))
    state.registers["rsp"] = pointer
    if pointer is not UNKNOWN:
        state.stack[pointer.offset] = value


def _pop(state: State, operands: Operands, _: int) -> None:
    pointer = state.registers.get("rsp", UNKNOWN)
    state.put(operands[0], state.stack.get(pointer.offset, UNKNOWN) if pointer is not UNKNOWN else UNKNOWN)
    state.registers["rsp"] = added(pointer, number(8))


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
    one, two = (state.get(each) for each in operands)
    state.put(operands[0], two)
    state.put(operands[1], one)


_EFFECTS: Final[Mapping[str, Effect]] = {
    **dict.fromkeys(("mov", "movabs", "movzx"), _mov),
    **dict.fromkeys(("movsx", "movsxd"), _movsx),
    "lea": _lea,
    "add": _add,
    "sub": _sub,
    "sbb": _with_carry(subtracted),
    "adc": _with_carry(added),
    "cmp": _cmp,
    "test": _test,
    "xor": _xor,
    "and": _and,
    "andn": _arithmetic(lambda one, two, _: ~one & two),
    "or": _or,
    "inc": _unary(lambda value: added(value, number(1))),
    "dec": _unary(lambda value: added(value, number(-1))),
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
    **dict.fromkeys(("shl", "sal", "shlx"), _arithmetic(lambda one, two, bits: one << (two & (bits - 1)))),
    **dict.fromkeys(("shr", "shrx"), _arithmetic(lambda one, two, bits: one >> (two & (bits - 1)))),
    **dict.fromkeys(("sar", "sarx"), _arithmetic(lambda one, two, bits: one >> (two & (bits - 1)), signed)),
}


def _conditional(mnemonic: str) -> Effect | None:
    """What an instruction does that goes by what was compared (`cmovl`, `setb`); None for all others."""
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
        one, two, compared = state.get(operands[0]), state.get(operands[1]), state.compared
        if compared is UNKNOWN:
            state.put(operands[0], one if one == two else UNKNOWN)
        else:
            state.put(operands[0], two if compared.holds(condition) else one)

    return run
