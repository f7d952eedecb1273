"""Ops of the model that only change the element type, and what they make for other ops.

The compiler folds them into the products that use them, where no location is left of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracemap.graph.ops import OpId
from tracemap.ir.scalars import is_conversion
from tracemap.ir.source import SourceModel, SourceOperation
from tracemap.ir.types import shape_of
from tracemap.mapping.model.origins import Origins
from tracemap.units import Integer

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
        """Whether what reads elements of this width does the conversion itself."""
        return bits_read == self.bits_before != self.bits_after


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

    def sources(self, op: OpId, operand: int, path: tuple[OpId, ...]) -> frozenset[int]:
        """What an op reads where it does the conversion of an operand itself, as indices; a function for its arguments.

        What is converted, and moves of it, as the compiler may do those in front of the conversion and behind it first.
        """
        behind = self._origins.way(self._model.operations[op.number].operands[operand], path)
        conversion = self._origins.maker(behind[-1])
        if conversion is None or not conversion.operands:
            return frozenset()
        before = self._origins.way(conversion.operands[0], behind[-1].path)
        origins = (origin.definition for origin in (*behind[:-1], *before))
        return frozenset(self._model.operations[definition.maker].owner for definition in origins)


def _converts(operation: SourceOperation, parts: Sequence[SourceOperation]) -> bool:
    if operation.name == "linalg.generic":
        return len(parts) == 2 and is_conversion(parts[0].name)
    return operation.name in _CONVERSIONS


def _conversion(model: SourceModel, operation: SourceOperation) -> Conversion:
    before = shape_of(model.type_of(operation.operands[0])).element_bits
    return Conversion(OpId.of(operation.index), before, shape_of(operation.results[0]).element_bits)
