"""Instructions that multiply, of x86-64 and AArch64; some of them add to the product at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tracemap.machine.code import Instruction
from tracemap.machine.values import widest

_MULTIPLIES: Final = re.compile(r"v?p?mul|fn?mul|[us]mull")
_ADDS_TOO: Final = re.compile(
    r"v?fn?m(?:add|sub)|v?pdp|v?dpbf16|v?pmadd52|fn?ml[as]|ml[as]$|fn?m(?:add|sub)|madd|msub|[us]ml[as]l|[us]dot"
)
_ORDER: Final = re.compile(r"132|213|231")
_ADDEND_OF_ORDER: Final = {"132": 1, "213": 2, "231": 0}
"""Which operand is added, by the digits in the names of x86-64: they number the factors first, then what is added."""
_FOUR_OPERANDS: Final = re.compile(r"fn?m(?:add|sub)$|madd|msub")
_END_OF_NAME: Final = re.compile(r"[ .\[{]")


@dataclass(frozen=True, slots=True)
class Product:
    """What an instruction multiplies: the registers of the factors, and whether a factor is in memory.

    `adds`: it adds to the product as well.
    """

    adds: bool
    factors: frozenset[str]
    loads_factor: bool


def product_of(instruction: Instruction) -> Product | None:
    """What an instruction multiplies; None where it does not."""
    adds = _ADDS_TOO.match(instruction.mnemonic) is not None
    if not adds and not _MULTIPLIES.match(instruction.mnemonic):
        return None
    operands = instruction.operands.split(", ")
    if adds:
        del operands[_place_of_addend(instruction.mnemonic) : _place_of_addend(instruction.mnemonic) + 1]
    registers = frozenset(widest(_END_OF_NAME.split(each)[0]) for each in operands)
    return Product(adds, registers & instruction.values.reads, any("ptr [" in each for each in operands))


def _place_of_addend(mnemonic: str) -> int:
    order = _ORDER.search(mnemonic)
    return _ADDEND_OF_ORDER[order[0]] if order else 3 if _FOUR_OPERANDS.match(mnemonic) else 0
