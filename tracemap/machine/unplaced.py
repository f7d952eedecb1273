"""Instructions that the code generator has left on no op's line, though they do an op's work.

LLVM takes the line from what it moves out of a loop, and gives what it makes of whole vectors element by element the
line of the loop nest. Of the op whose work it is, no instruction is left then. What computes with floating-point
numbers, and stands on no line or on that of the nest, is of an op in the nest that does the same and has no code:
inferred, as nothing tells. Of several such ops each has as many of these instructions, in order.

Source: when to drop a location (llvm/docs/HowToUpdateDebugInfo.rst).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tracemap.machine.code import Instruction
from tracemap.machine.contracted import Contracted, contracted
from tracemap.machine.lines import NO_LINE, LineOp, OpLines

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
