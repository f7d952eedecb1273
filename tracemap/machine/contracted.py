"""Multiplications to whose results something is added: the compiler often makes one operation of both.

It is then at the place of the addition, and no instruction has the line of the multiplication any more. IREE makes a
contraction of a sum of products, LLVM one instruction of a product and an addition. But an addition is never compiled
to an instruction that multiplies: those on its line are the multiplication's, and so are the loads of what they
multiply. One that multiplies and adds is of both: every second one is taken for each.

Source: the patterns of MLIR that fold `arith.mulf` into the `vector.multi_reduction` behind it, which becomes a
`vector.contract` (mlir/lib/Dialect/Vector/Transforms/VectorTransforms.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tracemap.machine.code import Instruction
from tracemap.machine.lines import NO_LINE, NO_LINES, OpLines, reached
from tracemap.machine.products import Product, product_of

_SUMS: Final = frozenset({"arith.addf", "arith.addi", "arith.subf", "arith.subi"})
_PRODUCTS: Final = frozenset({"arith.mulf", "arith.muli", "math.powf", "math.fpowi", "math.ipowi"})
_MOVES: Final = re.compile(r"v?p?mov|v?broadcast|ld")


@dataclass(frozen=True, slots=True)
class Contracted:
    """The instructions of a kernel, those that only multiply for a sum on the line of the multiplication.

    `lines`: those of the kernel's text that are of ops. Of instructions that multiply and add at once, by address:
    `factors` are the registers that they multiply, with the line of the multiplication; `products` has this line for
    those that count as the multiplication's.
    """

    instructions: Sequence[Instruction] = ()
    lines: OpLines = NO_LINES
    factors: Mapping[int, tuple[frozenset[str], int]] = field(default_factory=dict)
    products: Mapping[int, int] = field(default_factory=dict)


def contracted(instructions: Sequence[Instruction], op_lines: OpLines) -> Contracted:
    """Instructions of a kernel, with multiplications that sums have taken in told apart from these."""
    multiplied = {each.address: found for each in instructions if (found := product_of(each)) is not None}
    multiplying = {each.line for each in instructions if each.address in multiplied}
    lines = _lines_of_products(op_lines, {each.line for each in instructions}, multiplying)
    if not lines:
        return Contracted(instructions, op_lines)
    do_both = [(each, multiplied[each.address]) for each in instructions if _does_both(each, multiplied, lines)]
    in_registers = [each for each, product in do_both if not each.values.loads]
    with_factor = [each for each, product in do_both if product.loads_factor]
    return Contracted(
        [replace(each, line=_line(each, multiplied, lines)) for each in instructions],
        op_lines,
        {each.address: (product.factors, lines[each.line]) for each, product in do_both},
        {each.address: lines[each.line] for each in (*in_registers[1::2], *with_factor)},
    )


def _does_both(instruction: Instruction, multiplied: Mapping[int, Product], lines: Collection[int]) -> bool:
    return instruction.line in lines and instruction.address in multiplied and multiplied[instruction.address].adds


def _line(instruction: Instruction, multiplied: Mapping[int, Product], lines: Mapping[int, int]) -> int:
    """The line of the multiplication where it does no more; what only brings a value there is of what takes that."""
    if instruction.line not in lines:
        return instruction.line
    product = multiplied.get(instruction.address)
    if product is not None:
        return instruction.line if product.adds else lines[instruction.line]
    return NO_LINE if instruction.values.loads and _MOVES.match(instruction.mnemonic) else instruction.line


def _lines_of_products(lines: OpLines, seen: Collection[int], multiplying: Collection[int]) -> Mapping[int, int]:
    """The lines of multiplications that sums have taken in, by those of the sums.

    Args:
        lines: of the kernel's text.
        seen: the lines that instructions have.
        multiplying: those of instructions that multiply.
    """
    makers = lines.makers
    lost = {each.line for each in lines.operations if each.name in _PRODUCTS and each.line not in seen}
    found: dict[int, int] = {}
    for each in lines.operations:
        if each.name in _SUMS and each.line in multiplying:
            products = lost & reached(each.line, makers, seen)[1]
            if products:
                found[each.line] = min(products)
                lost.remove(found[each.line])
    return found
