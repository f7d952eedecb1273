"""How often an op of a structured op's region runs: not in the turns of loops inside of which it stays the same.

A layer norm multiplies each element of a row by the reciprocal root of the row's variance. Fused into one region the
root stands beside the multiplication, once for each element, as it is written. The compiler moves out of a loop what
does not change in it, so that the root is taken once for a row. Where workgroups share a row out, each of them takes it
again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracemap.ir.bodies import NO_DIMENSION, BodyOp
from tracemap.ir.types import product
from tracemap.units import UNKNOWN, Integer

PASS_THROUGH = frozenset({"tensor.expand_shape", "tensor.collapse_shape", "tensor.cast", "tensor.extract_slice"})
"""Body ops that only hand tensors on."""

_SAME_EVERYWHERE = frozenset({"arith.constant"})
_TILE = 8
"""Rows of results that IREE's CPU code generator keeps in registers for x86-64 and AArch64 (KernelDispatch.cpp)."""
_SHARED_OUT = 64
"""Elements of a loop that IREE's CPU code generator gives to a workgroup at most (KernelDispatch.cpp)."""
_INPUTS_OF_CONTRACTION = 2


class Hoisting:
    """Tells of the ops of one body how often they run."""

    def __init__(self, body: Sequence[BodyOp]) -> None:
        self._body = body
        self._holding = {op.parent for op in body}
        self._changes: dict[int, frozenset[int]] = {}

    def turns(self, op: BodyOp) -> Integer:
        """How often an op of a region runs when the op around it runs once.

        The loops are run from the outside to the inside, and what stays the same in the innermost of them stands
        before these. What changes in an inner loop alone runs in all turns of those around it.
        """
        around = self._body[op.parent]
        if not around.loops:
            return around.iterations
        order = self._order(around)
        changing = self._changing(op, around)
        innermost = max((place for place, loop in enumerate(order) if loop in changing), default=-1)
        turned = order[: innermost + 1]
        tiled = self._tiled(around, [loop for loop in turned if loop not in changing])
        own = [_tiles(around.loops[loop], _TILE) if loop == tiled else around.loops[loop] for loop in turned]
        return product((*own, *(_tiles(around.loops[loop], _SHARED_OUT) for loop in self._shared_out(order, turned))))

    def _shared_out(self, order: Sequence[int], turned: Sequence[int]) -> Sequence[int]:
        """The loops in whose turns nothing changes, as far as workgroups share them out and compute it again each.

        Where something is reduced in the dispatch, a workgroup has whole rows.
        """
        reduces = any(self._reduces(op) for op in self._body)
        return [] if reduces else order[len(turned) :]

    def _tiled(self, around: BodyOp, unchanging: Sequence[int]) -> int:
        """The loop of which the turns that share a tile of a contraction's results compute this once; -1: none."""
        inputs = _inputs(around)
        used_again = all(len(set(loops)) < len(around.loops) for loops in around.positions[:inputs])
        if inputs < _INPUTS_OF_CONTRACTION or not used_again or not around.positions[inputs:]:
            return -1
        of_results = set(around.positions[inputs])
        return max((loop for loop in unchanging if loop in of_results), default=-1)

    def _order(self, around: BodyOp) -> list[int]:
        """The loops from the outermost to the innermost.

        What is reduced in the same dispatch is there for each of its elements, and so the loops over these are the
        outer ones of all that uses it.
        """
        outer = {
            loop
            for operand, loops in zip(around.operands, around.positions, strict=False)
            if self._is_reduced(operand.producer)
            for loop in loops
        }
        return sorted(range(len(around.loops)), key=lambda loop: (loop not in outer, loop))

    def _is_reduced(self, producer: int) -> bool:
        """Whether what makes a tensor in the body adds up more elements than it makes."""
        while producer >= 0 and self._body[producer].name in PASS_THROUGH:
            producer = self._body[producer].operands[0].producer
        if producer < 0:
            return False
        return self._reduces(self._body[producer])

    @staticmethod
    def _reduces(op: BodyOp) -> bool:
        made = op.results[0].elements if op.loops and op.results else UNKNOWN
        return made is not UNKNOWN and op.iterations is not UNKNOWN and op.iterations > made

    def _changing(self, op: BodyOp, around: BodyOp) -> frozenset[int]:
        """The loops in whose turns what an op of a region computes is not always the same."""
        if op.index not in self._changes:
            self._changes[op.index] = self._work_out(op, around)
        return self._changes[op.index]

    def _work_out(self, op: BodyOp, around: BodyOp) -> frozenset[int]:
        every = frozenset(range(len(around.loops)))
        if op.parent != around.index or op.index in self._holding or not (op.operands or op.name in _SAME_EVERYWHERE):
            return every
        found: set[int] = set()
        for operand in op.operands:
            if operand.producer >= 0:
                maker = self._body[operand.producer]
                # What is made before the structured op is the same in all of its turns.
                found |= self._changing(maker, around) if maker.parent >= 0 else set()
            else:
                found |= self._changing_argument(operand.argument, around)
        return frozenset(found)

    def _changing_argument(self, number: int, around: BodyOp) -> frozenset[int]:
        """The loops in whose turns a region is handed other elements; all where it is handed its own result on."""
        read = around.positions[: _inputs(around)]
        loops = read[number] if 0 <= number < len(read) else (NO_DIMENSION,)
        return frozenset(range(len(around.loops)) if NO_DIMENSION in loops else loops)


def _inputs(around: BodyOp) -> int:
    """How many operands of a structured op are read; behind them stands what its results are made in."""
    return max(0, len(around.operands) - len(around.results))


def _tiles(extent: Integer, tile: int) -> Integer:
    return UNKNOWN if extent is UNKNOWN else -(-extent // tile)
