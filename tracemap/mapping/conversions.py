"""Ops of the model that only change the element type, and which operands of other ops they make.

The compiler folds them into the products that use them, where no location is left of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from tracemap.ir.source import FUNCTIONS, Source, SourceModel, SourceOperation
from tracemap.ir.types import shape_of
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

    op: str
    bits_before: Integer
    bits_after: Integer

    def is_folded_into(self, bits_read: Integer) -> bool:
        """Whether what reads elements of this width does the conversion itself."""
        return bits_read == self.bits_before != self.bits_after


def is_scalar_conversion(name: str) -> bool:
    """Whether an operation on numbers only changes their type."""
    return name in _SCALAR_CONVERSIONS


def conversions_read(
    model: SourceModel, part_names: Mapping[int, Sequence[str]], moves: Set[int]
) -> Mapping[str, Mapping[int, Conversion]]:
    """Op id -> place of an operand -> the op that converts it; moves of elements (`moves`) may stand between."""
    converting = {
        op.index: _conversion(model, op)
        for op in model.operations
        if op.is_op and op.operands and _converts(op, part_names.get(op.index, ()))
    }
    found: dict[str, dict[int, Conversion]] = {}
    for operation in model.operations:
        if not operation.is_op:
            continue
        for place, source in enumerate(operation.operands):
            maker = _maker(model, source, moves)
            if maker in converting:
                found.setdefault(f"op{operation.index}", {})[place] = converting[maker]
    return found


def _converts(operation: SourceOperation, part_names: Sequence[str]) -> bool:
    if operation.name == "linalg.generic":
        return len(part_names) == 2 and is_scalar_conversion(part_names[0])
    return operation.name in _CONVERSIONS


def _conversion(model: SourceModel, operation: SourceOperation) -> Conversion:
    before = shape_of(_type_of(model, operation.operands[0])).element_bits
    return Conversion(f"op{operation.index}", before, shape_of(operation.results[0]).element_bits)


def _type_of(model: SourceModel, source: Source) -> str:
    """The printed type of a value; empty for arguments of regions."""
    maker = model.operations[source.maker]
    if not source.argument:
        return maker.results[source.number]
    return model.arguments[maker.symbol][source.number].type if maker.name in FUNCTIONS else ""


def _maker(model: SourceModel, source: Source, moves: Set[int]) -> int:
    """The op that makes a value, looked for behind moves of elements; -1 for arguments."""
    while not source.argument:
        maker = model.operations[source.maker]
        if maker.index not in moves or not maker.operands:
            return maker.owner
        source = maker.operands[0]
    return -1
