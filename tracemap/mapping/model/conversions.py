"""Ops of the model that only change the element type, and what they make for other ops.

The compiler folds them into the products that use them, where no location is left of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracemap.graph.ops import OpId
from tracemap.ir.scalars import is_conversion
from tracemap.ir.source import Definition, SourceModel, SourceOperation
from tracemap.ir.types import shape_of
from tracemap.mapping.model.origins import Origin, Origins
from tracemap.units import UNKNOWN, Integer

_CONVERSIONS = frozenset(
    """
    onnx.Cast onnx.CastLike stablehlo.convert torch.aten.to.dtype torch.aten.to.dtype_layout
    torch.prims.convert_element_type tosa.cast
    """.split()
)


@dataclass(frozen=True, slots=True)
class Conversion:
    """An op that converts elements: its id, and the bits of an element before and after."""

    op: OpId
    bits_before: Integer
    bits_after: Integer

    def is_folded_into(self, bits_read: Integer) -> bool:
        """Whether what reads elements of this width does the conversion itself; what a loop carries has no width."""
        return self.bits_before in (bits_read, UNKNOWN) and bits_read != self.bits_after


@dataclass(frozen=True, slots=True)
class Converted:
    """An operand of an op that a conversion makes.

    `sources`: what the op reads where it does the conversion itself, as indices, functions for their arguments: what is
    converted, and moves of it, as the compiler may do those in front of the conversion and behind it first.
    """

    number: int
    conversion: Conversion
    sources: frozenset[int]


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

    @property
    def ops(self) -> frozenset[OpId]:
        """The ops that convert."""
        return frozenset(each.op for each in self._found.values())

    def read_by(self, op: OpId, path: tuple[OpId, ...]) -> tuple[Converted, ...]:
        """The operands of an op that conversions make, when these calls led to it, in order."""
        if not self._found:
            return ()
        operands = self._model.operations[op.number].operands
        read = (self._converted(number, definition, path) for number, definition in enumerate(operands))
        return tuple(each for each in read if each is not None)

    def _converted(self, number: int, definition: Definition, path: tuple[OpId, ...]) -> Converted | None:
        behind = self._origins.way(Origin(definition, path))
        maker = self._origins.maker(behind[-1])
        if maker is None or maker.index not in self._found:
            return None
        before = self._origins.way(Origin(maker.operands[0], behind[-1].path))
        values = (origin.definition for origin in (*behind[:-1], *before))
        sources = frozenset(self._model.operations[value.maker].owner for value in values)
        return Converted(number, self._found[maker.index], sources)


def _converts(operation: SourceOperation, parts: Sequence[SourceOperation]) -> bool:
    if operation.name == "linalg.generic":
        return len(parts) == 2 and is_conversion(parts[0].name)
    return operation.name in _CONVERSIONS


def _conversion(model: SourceModel, operation: SourceOperation) -> Conversion:
    before = shape_of(model.type_of(operation.operands[0])).element_bits
    return Conversion(OpId.of(operation.index), before, shape_of(operation.results[0]).element_bits)
