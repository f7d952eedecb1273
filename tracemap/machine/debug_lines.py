"""Source lines of instructions: lines of ops, fused multiply-adds, and instructions without a debug line."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tracemap.machine.code import Instruction
from tracemap.machine.values import widest
from tracemap.units import Integer

# ---- lines
#
# What machine code is told of the text that it was made of: which lines are of ops, and what these do.


NO_LINE: Final = 0
"""Lines count from 1."""


@dataclass(frozen=True, slots=True)
class LineOp:
    """The operation on a line.

    `around`: the line of the one that holds it, unknown for what stands in none; `takes`: the lines there whose results
    it computes with.
    """

    line: int
    name: str
    around: Integer
    takes: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class OpLines:
    """The lines of a kernel's text that are of ops, and the operations on them, by line."""

    owned: frozenset[int] = frozenset()
    operations: tuple[LineOp, ...] = ()

    @property
    def makers(self) -> dict[int, Sequence[int]]:
        """Of each of these lines those whose results it computes with."""
        return {each.line: each.takes for each in self.operations}


NO_LINES: Final = OpLines()
"""Of code of which no text is known."""


_AT_ONCE: Final = re.compile(
    r"arith\.(?!div|ceildiv|floordiv|rem)|math\.(absf|floor|ceil|round|roundeven|trunc|copysign)$"
)
"""What an instruction does, or a part of one: two of these are about as much work as one another."""
_NARROWS: Final = ("arith.trunci", "arith.truncf")


def taken_in(lines: OpLines, seen: Collection[int]) -> Mapping[int, frozenset[int]]:
    """Lines without any code whose work instructions of others do as well, with these lines.

    These are the ones that take its result, or that of what has no code either. Where nobody does, as it is stored,
    they are those that made what it takes; of what narrows numbers they always are, as its user takes them narrow. What
    reads memory, or takes long, does more than that.

    Args:
        lines: of a kernel's text.
        seen: the lines that have code.
    """
    makers, users = lines.makers, _turned(lines.makers)
    short = {each.line for each in lines.operations if _AT_ONCE.match(each.name)}
    lost = [line for line in makers if line in short and line not in seen]
    narrow = {each.line for each in lines.operations if each.name in _NARROWS}
    found: dict[int, frozenset[int]] = {}
    for line in lost:
        first, then = (makers, users) if line in narrow else (users, makers)
        others = (reached(line, first, seen)[0] or reached(line, then, seen)[0]) & short
        if others:
            found[line] = others
    return found


def _turned(makers: Mapping[int, Sequence[int]]) -> Mapping[int, Sequence[int]]:
    users: dict[int, list[int]] = defaultdict(list)
    for line, taken in makers.items():
        for other in taken:
            users[other].append(line)
    return users


def reached(
    line: int, ways: Mapping[int, Sequence[int]], seen: Collection[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """The lines to which ways lead from one by lines without code: the first that have some, and those without."""
    found: set[int] = set()
    waiting, passed = [line], {line}
    while waiting:
        for other in ways.get(waiting.pop(), ()):
            if other in seen:
                found.add(other)
            elif other not in passed:
                passed.add(other)
                waiting.append(other)
    return frozenset(found), frozenset(passed - {line})


# ---- products
#
# Instructions that multiply, of x86-64 and AArch64; some of them add to the product at once.


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


# ---- contracted
#
# Multiplications to whose results something is added: the compiler often makes one operation of both.
#
# It is then at the place of the addition, and no instruction has the line of the multiplication any more. IREE makes a
# contraction of a sum of products, LLVM one instruction of a product and an addition. But an addition is never
# compiled to an instruction that multiplies: those on its line are the multiplication's, and so are the loads of what
# they multiply. One that multiplies and adds is of both: every second one is taken for each.
#
# Source: the patterns of MLIR that fold `arith.mulf` into the `vector.multi_reduction` behind it, which becomes a
# `vector.contract` (mlir/lib/Dialect/Vector/Transforms/VectorTransforms.cpp).


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


# ---- unplaced
#
# Instructions that the code generator has left on no op's line, though they do an op's work.
#
# LLVM takes the line from what it moves out of a loop, and gives what it makes of whole vectors element by element the
# line of the loop nest. Of the op whose work it is, no instruction is left then. What computes with floating-point
# numbers, and stands on no line or on that of the nest, is of an op in the nest that does the same and has no code:
# inferred, as nothing tells. Of several such ops each has as many of these instructions, in order.
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
"""What instructions of x86-64 and AArch64 compute, by the operations of the text that are the same."""


def code_of_ops(instructions: Sequence[Instruction], lines: OpLines) -> Contracted:
    """The instructions of a kernel on the lines of the ops whose work they do; `lines`: of its text."""
    return placed(contracted(instructions, lines))


def placed(code: Contracted) -> Contracted:
    """The instructions of a kernel, those on no op's line on that of the op without code that does what they do."""
    with_code = {*(each.line for each in code.instructions), *(line for _, line in code.factors.values())}
    lost = [each for each in code.lines.operations if each.line not in with_code]
    line_of = _lines(code, lost) if lost else {}
    if not line_of:
        return code
    return replace(
        code, instructions=[replace(each, line=line_of.get(each.address, each.line)) for each in code.instructions]
    )


def _lines(code: Contracted, lost: Sequence[LineOp]) -> Mapping[int, int]:
    """The lines of ops without code, by the addresses of instructions that do the same on no op's line."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for each in code.instructions:
        if each.line not in code.lines.owned:
            lines = _doing_the_same(each, lost)
            if lines:
                found[lines].append(each.address)
    return {
        address: lines[place * len(lines) // len(addresses)]
        for lines, addresses in found.items()
        for place, address in enumerate(addresses)
    }


def _doing_the_same(instruction: Instruction, lost: Sequence[LineOp]) -> tuple[int, ...]:
    names = next((names for pattern, names in _KINDS if pattern.match(instruction.mnemonic)), ())
    return tuple(each.line for each in lost if each.name in names and instruction.line in (NO_LINE, each.around))
