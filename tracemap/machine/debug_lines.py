"""Source lines of instructions: lines of ops, fused multiply-adds, and instructions without a debug line."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
from msgspec import structs

from tracemap.core.units import Integer
from tracemap.machine.code import Instruction
from tracemap.machine.values import widest

# ---- lines
#
# Lines of a kernel's text that contain ops, and the operations on them.


NO_LINE: Final = 0
"""No line; lines count from 1."""


class LineOp(msgspec.Struct, frozen=True):
    """The operation on a line.

    `around`: line of the enclosing operation, unknown for a top-level one; `takes`: lines of its operands.
    """

    line: int
    name: str
    around: Integer
    takes: Sequence[int] = ()


class OpLines(msgspec.Struct, frozen=True):
    """The lines of a kernel's text that belong to ops, and the operations on all lines."""

    owned: frozenset[int] = frozenset()
    operations: tuple[LineOp, ...] = ()

    @property
    def makers(self) -> dict[int, Sequence[int]]:
        """Lines of the operands of each operation, by line."""
        return {operation.line: operation.takes for operation in self.operations}


NO_LINES: Final = OpLines()
"""For code without a text."""


_AT_ONCE: Final = re.compile(
    r"arith\.(?!div|ceildiv|floordiv|rem)|math\.(absf|floor|ceil|round|roundeven|trunc|copysign)$"
)
"""Operations of a single instruction or a part of one, whose amounts of work are similar."""
_NARROWS: Final = ("arith.trunci", "arith.truncf")


def lines_sharing_work(lines: OpLines, seen: Collection[int]) -> Mapping[int, frozenset[int]]:
    """Lines without code whose work is done by instructions of other lines; by line, these other lines.

    The other lines are the nearest users with code. If there are none, since the result is stored, they are the nearest
    operands with code. Narrowing conversions always use the operands, since users need the narrow value. Only simple
    operations count as other lines: loads and long operations do more than that.

    Args:
        lines: lines of a kernel's text.
        seen: lines that have code.
    """
    makers = lines.makers
    users: dict[int, list[int]] = defaultdict(list)
    for line, operand_lines in makers.items():
        for operand in operand_lines:
            users[operand].append(line)
    short = {operation.line for operation in lines.operations if _AT_ONCE.match(operation.name)}
    without_code = [line for line in makers if line in short and line not in seen]
    narrow = {operation.line for operation in lines.operations if operation.name in _NARROWS}
    result: dict[int, frozenset[int]] = {}
    for line in without_code:
        first_edges, then_edges = (makers, users) if line in narrow else (users, makers)
        others = (reached(line, first_edges, seen)[0] or reached(line, then_edges, seen)[0]) & short
        if others:
            result[line] = others
    return result


def reached(
    line: int, edges: Mapping[int, Sequence[int]], seen: Collection[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """The nearest lines with code along edges from a line, and the lines without code on the way."""
    reached_lines: set[int] = set()
    waiting, passed = [line], {line}
    while waiting:
        for other in edges.get(waiting.pop(), ()):
            if other in seen:
                reached_lines.add(other)
            elif other not in passed:
                passed.add(other)
                waiting.append(other)
    return frozenset(reached_lines), frozenset(passed - {line})


# ---- products
#
# Multiplications in x86-64 and AArch64 code, some of which also add (fused multiply-add).


_MULTIPLIES: Final = re.compile(r"v?p?mul|fn?mul|[us]mull")
_ADDS_TOO: Final = re.compile(
    r"v?fn?m(?:add|sub)|v?pdp|v?dpbf16|v?pmadd52|fn?ml[as]|ml[as]$|fn?m(?:add|sub)|madd|msub|[us]ml[as]l|[us]dot"
)
_ORDER: Final = re.compile(r"132|213|231")
_ADDEND_OF_ORDER: Final = {"132": 1, "213": 2, "231": 0}
"""Index of the addend operand, by the digits in x86-64 mnemonics, which list the factors first, then the addend."""
_FOUR_OPERANDS: Final = re.compile(r"fn?m(?:add|sub)$|madd|msub")
_END_OF_NAME: Final = re.compile(r"[ .\[{]")


class Product(msgspec.Struct, frozen=True):
    """Multiplication of an instruction: registers of the factors, and whether a factor is loaded from memory.

    `adds`: it also adds to the product.
    """

    adds: bool
    factors: frozenset[str]
    loads_factor: bool


def product_of(instruction: Instruction) -> Product | None:
    """The multiplication of an instruction; None if there is none."""
    adds = _ADDS_TOO.match(instruction.mnemonic) is not None
    if not adds and not _MULTIPLIES.match(instruction.mnemonic):
        return None
    operands = instruction.operands.split(", ")
    if adds:
        del operands[_addend_index(instruction.mnemonic) : _addend_index(instruction.mnemonic) + 1]
    registers = frozenset(widest(_END_OF_NAME.split(operand)[0]) for operand in operands)
    return Product(adds, registers & instruction.values.reads, any("ptr [" in operand for operand in operands))


def _addend_index(mnemonic: str) -> int:
    order = _ORDER.search(mnemonic)
    return _ADDEND_OF_ORDER[order[0]] if order else 3 if _FOUR_OPERANDS.match(mnemonic) else 0


# ---- fused multiply-adds
#
# Multiplications that the compiler merged into a following addition.
#
# The merged operation has the location of the addition, and no instruction has the line of the multiplication. IREE
# turns a sum of products into a contraction, LLVM turns a product and an addition into one instruction. But an addition
# never compiles to a multiplying instruction. So multiplying instructions on its line belong to the multiplication, and
# so do loads of their factors. Fused multiply-adds belong to both: every second one is assigned to each.
#
# Source: MLIR's patterns that fold `arith.mulf` into a following `vector.multi_reduction`, which becomes a
# `vector.contract` (mlir/lib/Dialect/Vector/Transforms/VectorTransforms.cpp).


_SUMS: Final = frozenset({"arith.addf", "arith.addi", "arith.subf", "arith.subi"})
_PRODUCTS: Final = frozenset({"arith.mulf", "arith.muli", "math.powf", "math.fpowi", "math.ipowi"})
_MOVES: Final = re.compile(r"v?p?mov|v?broadcast|ld")


@dataclass(frozen=True, slots=True)
class Contracted:
    """The instructions of a kernel, with pure multiplications for a sum moved to the line of the multiplication.

    `lines`: lines of the kernel's text. For fused multiply-adds, by address: `factors` has the factors' registers and
    the line of the multiplication; `products` has this line for those that count as the multiplication.
    """

    instructions: Sequence[Instruction] = ()
    lines: OpLines = NO_LINES
    factors: Mapping[int, tuple[frozenset[str], int]] = field(default_factory=dict)
    products: Mapping[int, int] = field(default_factory=dict)


def separate_products(instructions: Sequence[Instruction], op_lines: OpLines) -> Contracted:
    """Separate merged multiplications from the sums that they were merged into."""
    products = {
        instruction.address: product for instruction in instructions if (product := product_of(instruction)) is not None
    }
    multiplying = {instruction.line for instruction in instructions if instruction.address in products}
    lines = _lines_of_products(op_lines, {instruction.line for instruction in instructions}, multiplying)
    if not lines:
        return Contracted(instructions, op_lines)
    on_sums = (instruction for instruction in instructions if instruction.line in lines)
    multiplications = ((instruction, products.get(instruction.address)) for instruction in on_sums)
    fused = [(instruction, product) for instruction, product in multiplications if product is not None and product.adds]
    in_registers = [instruction for instruction, product in fused if not instruction.values.loads]
    with_factor = [instruction for instruction, product in fused if product.loads_factor]
    return Contracted(
        [structs.replace(instruction, line=_line(instruction, products, lines)) for instruction in instructions],
        op_lines,
        {instruction.address: (product.factors, lines[instruction.line]) for instruction, product in fused},
        {instruction.address: lines[instruction.line] for instruction in (*in_registers[1::2], *with_factor)},
    )


def _line(instruction: Instruction, products: Mapping[int, Product], lines: Mapping[int, int]) -> int:
    """The multiplication's line for a pure multiplication; no line for a load, which then follows its user."""
    if instruction.line not in lines:
        return instruction.line
    product = products.get(instruction.address)
    if product is not None:
        return instruction.line if product.adds else lines[instruction.line]
    return NO_LINE if instruction.values.loads and _MOVES.match(instruction.mnemonic) else instruction.line


def _lines_of_products(lines: OpLines, seen: Collection[int], multiplying: Collection[int]) -> Mapping[int, int]:
    """Lines of merged multiplications, by the lines of the sums.

    `seen`: lines that have code; `multiplying`: those of multiplying instructions.
    """
    makers = lines.makers
    without_code = {
        operation.line for operation in lines.operations if operation.name in _PRODUCTS and operation.line not in seen
    }
    product_of_sum: dict[int, int] = {}
    for operation in lines.operations:
        if operation.name in _SUMS and operation.line in multiplying:
            products = without_code & reached(operation.line, makers, seen)[1]
            if products:
                product_of_sum[operation.line] = min(products)
                without_code.remove(product_of_sum[operation.line])
    return product_of_sum


# ---- missing lines
#
# Instructions that LLVM left without an op's line, although they do an op's work.
#
# LLVM drops the line of code that it moves out of a loop. When it scalarizes vector code, it uses the line of the loop
# nest. The op then has no instruction. Floating-point instructions without a line, or on the line of the nest, are
# assigned to an op in the nest. That op computes the same and has no code. This is an inference. If several ops
# qualify, each gets an equal number of the instructions, in order.
#
# Source: when to drop a location (llvm/docs/HowToUpdateDebugInfo.rst).


_NUMBERS: Final = r"(?:[ps][sdh]|$| )"
_KINDS: Final[Sequence[tuple[re.Pattern[str], Collection[str]]]] = (
    (re.compile(rf"v?add{_NUMBERS}|fadd"), ("arith.addf",)),
    (re.compile(rf"v?sub{_NUMBERS}|fsub"), ("arith.subf",)),
    (re.compile(rf"v?mul{_NUMBERS}|fn?mul"), ("arith.mulf",)),
    (re.compile(rf"v?div{_NUMBERS}|fdiv"), ("arith.divf",)),
    (re.compile(rf"v?max{_NUMBERS}|fmax"), ("arith.maximumf", "arith.maxnumf")),
    (re.compile(rf"v?min{_NUMBERS}|fmin"), ("arith.minimumf", "arith.minnumf")),
    (re.compile(rf"v?sqrt{_NUMBERS}|fsqrt"), ("math.sqrt", "math.rsqrt")),
    (re.compile(r"v?fn?m(?:add|sub)|fml[as]"), ("arith.addf", "arith.subf")),
)
"""Floating-point instructions of x86-64 and AArch64, with the equivalent operations."""


def code_of_ops(instructions: Sequence[Instruction], lines: OpLines) -> Contracted:
    """The instructions of a kernel, on the lines of the ops whose work they do."""
    return assign_missing_lines(separate_products(instructions, lines))


def assign_missing_lines(code: Contracted) -> Contracted:
    """Assign instructions without an op's line to an op without code that computes the same."""
    with_code = {instruction.line for instruction in code.instructions} | {line for _, line in code.factors.values()}
    without_code = [operation for operation in code.lines.operations if operation.line not in with_code]
    line_of = _lines(code, without_code) if without_code else {}
    if not line_of:
        return code
    moved = [
        structs.replace(instruction, line=line_of.get(instruction.address, instruction.line))
        for instruction in code.instructions
    ]
    return replace(code, instructions=moved)


def _lines(code: Contracted, without_code: Sequence[LineOp]) -> Mapping[int, int]:
    """The lines of ops without code, by the addresses of instructions that compute the same without an op's line."""
    addresses_by_lines: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for instruction in code.instructions:
        if instruction.line not in code.lines.owned:
            lines = _equivalent_lines(instruction, without_code)
            if lines:
                addresses_by_lines[lines].append(instruction.address)
    return {
        address: lines[index * len(lines) // len(addresses)]
        for lines, addresses in addresses_by_lines.items()
        for index, address in enumerate(addresses)
    }


def _equivalent_lines(instruction: Instruction, without_code: Sequence[LineOp]) -> tuple[int, ...]:
    names = next((names for pattern, names in _KINDS if pattern.match(instruction.mnemonic)), ())
    return tuple(
        operation.line
        for operation in without_code
        if operation.name in names and instruction.line in (NO_LINE, operation.around)
    )
