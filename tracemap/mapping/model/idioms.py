"""Ops of the model that lose their locations in others: conversions of elements, and what a softmax is made of.

The compiler folds conversions into the products that use them, and raises idioms to one op of its own, which carries
the location of the idiom's last op alone. The others are found by the idiom's shape in the def-use graph, whatever the
dialect calls them, and also where they have other uses that the compiler computes elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from tracemap.graph.ops import OpId
from tracemap.ir.source import FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.ir.types import shape_of
from tracemap.mapping.model.dataflow import Origin, Origins
from tracemap.mapping.model.kinds import is_constant_like, is_destination
from tracemap.units import Integer

_CONVERSIONS = frozenset(
    """
    onnx.Cast onnx.CastLike stablehlo.convert torch.aten.to.dtype torch.aten.to.dtype_layout
    torch.prims.convert_element_type tosa.cast
    """.split()
)
_SCALAR_CONVERSIONS = frozenset(
    """
    arith.extf arith.extsi arith.extui arith.fptosi arith.fptoui arith.sitofp arith.truncf arith.trunci arith.uitofp
    """.split()
)


@dataclass(frozen=True, slots=True)
class Conversion:
    """An op that converts elements: its id, and the bits of an element before and after."""

    op: OpId
    bits_before: Integer
    bits_after: Integer

    def is_folded_into(self, bits_read: Integer) -> bool:
        """Whether what reads elements of this width does the conversion itself."""
        return bits_read == self.bits_before != self.bits_after


def is_scalar_conversion(name: str) -> bool:
    """Whether an operation on numbers only changes their type."""
    return name in _SCALAR_CONVERSIONS


class Conversions:
    """The conversions of a model, found from the ops that read what they make."""

    def __init__(self, model: SourceModel, parts_of: Mapping[int, Sequence[SourceOperation]], origins: Origins) -> None:
        self._model = model
        self._origins = origins
        self._found = {
            op.index: _conversion(model, op)
            for op in model.operations
            if op.is_op and op.operands and _converts(op, parts_of.get(op.index, ()))
        }

    def read_by(self, op: OpId, operand: int, path: tuple[OpId, ...]) -> Conversion | None:
        """What converts an operand of an op, when these calls led to it; None where nothing does."""
        operation = self._model.operations[op.number]
        if not self._found or not 0 <= operand < len(operation.operands):
            return None
        maker = self._origins.maker(self._origins.operands(operation, path)[operand])
        return None if maker is None else self._found.get(maker.index)


def _converts(operation: SourceOperation, parts: Sequence[SourceOperation]) -> bool:
    if operation.name == "linalg.generic":
        return len(parts) == 2 and is_scalar_conversion(parts[0].name)
    return operation.name in _CONVERSIONS


def _conversion(model: SourceModel, operation: SourceOperation) -> Conversion:
    before = shape_of(_type_of(model, operation.operands[0])).element_bits
    return Conversion(OpId.of(operation.index), before, shape_of(operation.results[0]).element_bits)


def _type_of(model: SourceModel, definition: Definition) -> str:
    """The printed type of a value; empty for arguments of regions."""
    maker = model.operations[definition.maker]
    if not definition.argument:
        return maker.results[definition.number]
    return model.arguments[maker.symbol][definition.number].type if maker.name in FUNCTIONS else ""


RAISED = frozenset({"linalg.softmax"})
"""Ops of dispatch bodies that stand for an idiom."""

_MAX_STEPS = 4
"""How many ops in a row an idiom may have where one would do: conversions, a maximum with minus infinity."""


class SoftmaxFinder:
    """Finds what a softmax is made of: q = p / sum(p), where p is made of x and something made of x alone."""

    def __init__(self, model: SourceModel, origins: Origins) -> None:
        self._operations = model.operations
        self._origins = origins

    def parts(self, last: int, path: tuple[OpId, ...]) -> frozenset[int]:
        """The ops of the softmax that ends in an op (which is left out); none where it is no such idiom."""
        inputs = self._inputs(self._operations[last], path)
        if len(inputs) != 2:
            return frozenset()
        # Names of ops are not looked at, so it is tried both ways which of the two inputs is the sum.
        for powers, total in permutations(inputs):
            summed = self._chain(total, powers)
            below = self._powers(powers)
            if summed and below:
                return summed | below
        return frozenset()

    def _powers(self, powers: Origin) -> frozenset[int]:
        """The ops from x to p: steps with one input up to the one that has two, x and what is made of x."""
        found: set[int] = set()
        for _ in range(_MAX_STEPS):
            maker = self._origins.maker(powers)
            if maker is None:
                break
            found.add(maker.index)
            inputs = self._inputs(maker, powers.path)
            if len(inputs) == 2:
                chains = [self._chain(highest, value) for value, highest in permutations(inputs)]
                return next((chain | found for chain in chains if chain), frozenset())
            if len(inputs) != 1:
                break
            powers = inputs[0]
        return frozenset()

    def _chain(self, end: Origin, start: Origin) -> frozenset[int]:
        """The ops that make `end` of `start` alone; none where others are needed."""
        found: set[int] = set()
        for _ in range(_MAX_STEPS):
            maker = self._origins.maker(end)
            inputs = [] if maker is None else self._inputs(maker, end.path)
            if maker is None or len(inputs) != 1:
                break
            found.add(maker.index)
            if inputs[0] == start:
                return frozenset(found)
            end = inputs[0]
        return frozenset()

    def _inputs(self, operation: SourceOperation, path: tuple[OpId, ...]) -> list[Origin]:
        """The different values that an op computes with: no constants, no destinations."""
        return [
            origin for origin in dict.fromkeys(self._origins.operands(operation, path)) if not self._is_given(origin)
        ]

    def _is_given(self, origin: Origin) -> bool:
        maker = self._origins.maker(origin)
        return maker is not None and (is_destination(maker) or (not maker.operands and is_constant_like(maker)))
