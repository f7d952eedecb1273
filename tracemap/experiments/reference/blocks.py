"""Bodies: series of operations on numbers, each computed on all points of a space at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracemap.experiments.reference.elements import UNDEFINED, Array, NotEvaluated
from tracemap.experiments.reference.scalars import evaluate
from tracemap.ir.affine import Linear, NotLinear, linear_maps
from tracemap.ir.constants import DYNAMIC
from tracemap.ir.parsing import Operation, Value

if TYPE_CHECKING:
    import numpy.typing as npt

Outer = Callable[[Value], Array]
"""What a value is that the body takes from outside."""


def operand_maps(operation: Operation) -> list[list[Linear]]:
    """The maps of an operation's operands.

    Raises:
        NotEvaluated: they have no reference.
    """
    try:
        return linear_maps(operation)
    except NotLinear as error:
        raise NotEvaluated(f"{operation.name} has no reference: {error}") from error


def no_indices(_: int) -> Array:
    """Of a body that is no loop's."""
    raise NotEvaluated("an index of no loop has no reference")


def evaluate_block(
    operations: Sequence[Operation],
    known: dict[Value, Array],
    outer: Outer,
    wanted: Sequence[Value],
    indices: Callable[[int], Array] = no_indices,
) -> list[Array]:
    """What values are behind operations on numbers; `indices` are those of the loops around, by dimension."""

    def of(value: Value) -> Array:
        return known[value] if value in known else outer(value)

    for operation in operations:
        if operation.name == "linalg.index":
            results: Sequence[Array] = (indices(operation.attributes["dim"].value),)
        else:
            results = _computed(operation, [of(each) for each in operation.operands])
        known.update(zip(operation.results, results, strict=True))
    return [of(value) for value in wanted]


def _computed(operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    if operation.name == "tensor.extract":
        return (_extracted(operands[0], operands[1:]),)
    if operation.name == "affine.apply":
        row = operand_maps(operation)[0][0]
        return (row.constant + sum(factor * operands[number] for number, factor in row.factors.items()),)
    if operation.name == "affine.linearize_index":
        return (linear_index(operation, operands),)
    made = evaluate(operation, list(operands))
    return made if isinstance(made, tuple) else (made,)


def linear_index(operation: Operation, operands: Sequence[Array]) -> Array:
    """`affine.linearize_index`: one index of several, the last one fastest."""
    count = int(operation.attributes["operandSegmentSizes"][0])
    indices, dynamic = operands[:count], iter(operands[count:])
    basis = [next(dynamic) if size == DYNAMIC else int(size) for size in operation.attributes["static_basis"]]
    total = indices[0]
    for index, size in zip(indices[1:], basis[len(basis) - count + 1 :], strict=True):
        total = total * size + index
    return total


def _extracted(tensor: npt.NDArray[Any], indices: Sequence[Array]) -> Array:
    import numpy as np

    if not indices:
        return tensor[()]
    places = np.broadcast_arrays(*indices)
    if any(np.any((place < 0) | (place >= size)) for place, size in zip(places, tensor.shape, strict=True)):
        raise NotEvaluated(f"{UNDEFINED}an element lies outside of its tensor")
    return tensor[tuple(places)]
