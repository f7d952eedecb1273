"""What machine code is told of the text that it was made of: which lines are of ops, and what these do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from tracemap.units import Integer

NO_LINE: Final = 0
"""Lines count from 1."""


@dataclass(frozen=True, slots=True)
class LineOp:
    """The operation on a line; `around`: the line of the one that holds it, unknown for what stands in none."""

    line: int
    name: str
    around: Integer


@dataclass(frozen=True, slots=True)
class OpLines:
    """The lines of a kernel's text that are of ops, and the operations on them, by line."""

    owned: frozenset[int] = frozenset()
    operations: tuple[LineOp, ...] = ()


NO_LINES: Final = OpLines()
"""Of code of which no text is known."""

_SUMS: Final = ("arith.addf", "arith.subf")
_BITS: Final = ("arith.andi", "arith.ori", "arith.xori")
_SHIFTS: Final = ("arith.shrui", "arith.shrsi")
_TAKEN_IN_BY: Final[Mapping[str, Collection[str]]] = {
    "arith.negf": (*_SUMS, "arith.mulf", "arith.divf"),
    **dict.fromkeys(("arith.cmpf", "arith.cmpi"), ("arith.select", "arith.uitofp")),
    **dict.fromkeys(("arith.addi", "arith.subi"), ("arith.select",)),
    **dict.fromkeys(_BITS, _BITS),
    **dict.fromkeys(("arith.extsi", "arith.extui"), ("arith.muli", *_SHIFTS)),
    "arith.muli": _SHIFTS,
}
"""What compilers fold into which operations behind: signs of what is added, comparisons of what selects the larger one
or makes a number of a truth value, sums that are selected instead of a summand (an index counted from the end),
logic of three operands, products of wider numbers of which a shift takes the upper half."""
_TAKEN_IN_AFTER: Final[Mapping[str, Collection[str]]] = {"arith.trunci": _SHIFTS}
"""What they fold into operations before: what is left of such a product is as narrow as its factors."""


def taken_in(lines: OpLines, seen: Collection[int]) -> Mapping[int, int]:
    """Lines without any code whose work instructions of another one do as well, with that line.

    It is the next line in the same operation that can have taken it in, or the one before: inferred, as nothing tells.

    Args:
        lines: of a kernel's text.
        seen: the lines that have code.
    """
    found: dict[int, int] = {}
    waiting: list[LineOp] = []
    before: dict[Integer, LineOp] = {}
    for each in lines.operations:
        last = before.get(each.around)
        if each.line in seen:
            before[each.around] = each
            took = [one for one in waiting if one.around == each.around and each.name in _TAKEN_IN_BY[one.name]]
            found |= {one.line: each.line for one in took}
            waiting = [one for one in waiting if one not in took]
        elif each.name in _TAKEN_IN_BY:
            waiting.append(each)
        elif last is not None and last.name in _TAKEN_IN_AFTER.get(each.name, ()):
            found[each.line] = last.line
    return found
