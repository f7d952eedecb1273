"""Ops of the model that only change the element type, and which operands of other ops they make.

The compiler folds them into the products that use them, where no location is left of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from tracemap.ir.source import Source, SourceModel, SourceOperation

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


def is_scalar_conversion(name: str) -> bool:
    """Whether an operation on numbers only changes their type."""
    return name in _SCALAR_CONVERSIONS


def conversions_read(
    model: SourceModel, part_names: Mapping[int, Sequence[str]], moves: Set[int]
) -> Mapping[str, Mapping[int, str]]:
    """Op id -> place of an operand -> id of the op that converts it; moves of elements (`moves`) may stand between."""
    converting = {op.index for op in model.operations if op.is_op and _converts(op, part_names.get(op.index, ()))}
    found: dict[str, dict[int, str]] = {}
    for operation in model.operations:
        if not operation.is_op:
            continue
        for place, source in enumerate(operation.operands):
            maker = _maker(model, source, moves)
            if maker in converting:
                found.setdefault(f"op{operation.index}", {})[place] = f"op{maker}"
    return found


def _converts(operation: SourceOperation, part_names: Sequence[str]) -> bool:
    if operation.name == "linalg.generic":
        return len(part_names) == 2 and is_scalar_conversion(part_names[0])
    return operation.name in _CONVERSIONS


def _maker(model: SourceModel, source: Source, moves: Set[int]) -> int:
    """The op that makes a value, looked for behind moves of elements; -1 for arguments."""
    while not source.argument:
        maker = model.operations[source.maker]
        if maker.index not in moves or not maker.operands:
            return maker.owner
        source = maker.operands[0]
    return -1
