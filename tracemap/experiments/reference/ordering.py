"""Operations of IREE's own that sort, choose, scatter and transform (`iree_linalg_ext`), by their definitions.

Sources: IREE: compiler/src/iree/compiler/Dialect/LinalgExt/IR; a stage of the transform is that of Cooley and Tukey.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tracemap.experiments.reference.blocks import evaluate_block
from tracemap.experiments.reference.elements import UNDEFINED, Array, NotEvaluated
from tracemap.ir.parsing import Operation, Value

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracemap.experiments.reference.tensors import State

_MOST_PAIRS: Final = 1 << 26
"""Comparisons of all elements with all others of their row."""
_MOST_SCATTERED: Final = 1 << 17


def _sort(state: State, operation: Operation) -> Sequence[Any]:
    """Rows along a dimension in the order of a comparison (`iree_linalg_ext.sort`), all operands alike."""
    import numpy as np

    values = _tensors(state, operation)
    axis = operation.attributes["dimension"].value
    order = _order(state, operation, values, axis, several=len(values) > 1)
    return [np.take_along_axis(each, order, axis) for each in values]


def _topk(state: State, operation: Operation) -> Sequence[Any]:
    """The first elements along a dimension, in the order of a comparison, and where they are (`iree_linalg_ext.topk`).

    What the outputs are before takes part, and comes first among equals.
    """
    import numpy as np

    *inputs, values, places = _tensors(state, operation)
    axis = operation.attributes["dimension"].value
    shape = inputs[0].shape
    along = np.arange(shape[axis], dtype=places.dtype).reshape([-1 if at == axis else 1 for at in range(len(shape))])
    positions = inputs[1] if len(inputs) > 1 else np.broadcast_to(along, shape)
    keys = np.concatenate([values, inputs[0]], axis)
    order = _order(state, operation, [keys], axis, several=False)
    first = np.take(order, np.arange(values.shape[axis]), axis)
    found = np.concatenate([places, positions], axis)
    return [np.take_along_axis(keys, first, axis), np.take_along_axis(found, first, axis)]


def _order(
    state: State, operation: Operation, values: Sequence[Array], axis: int, *, several: bool
) -> npt.NDArray[Any]:
    """Where the elements of the sorted rows come from, equal ones in their order.

    Each element's place is how many others of its row come before it.
    """
    import numpy as np

    length = values[0].shape[axis]
    if values[0].size * length > _MOST_PAIRS:
        raise NotEvaluated(f"a sort of rows of {length:,} elements has no reference")
    block = operation.regions[0].blocks[0]
    ones = [np.expand_dims(np.moveaxis(each, axis, -1), -1) for each in values]
    others = [np.expand_dims(np.moveaxis(each, axis, -1), -2) for each in values]
    known: dict[Value, Array] = {}
    for at, (one, other) in enumerate(zip(ones, others, strict=True)):
        known[block.arguments[2 * at]], known[block.arguments[2 * at + 1]] = other, one
    inner = [each.operation for each in block.operations]
    with np.errstate(all="ignore"):
        (found,) = evaluate_block(inner[:-1], known, state.of, list(inner[-1].operands))
    shape = (*ones[0].shape[:-1], length)
    before = np.broadcast_to(found, shape).astype(bool)
    strictly = before & ~np.swapaxes(before, -1, -2)
    tied = ~strictly & ~np.swapaxes(strictly, -1, -2)
    earlier = np.tri(length, k=-1, dtype=bool)
    if several and np.any(tied & earlier):
        raise NotEvaluated(f"{UNDEFINED}elements that are equal have no order in a sort of several tensors")
    places = np.count_nonzero(strictly | (tied & earlier), axis=-1)
    return np.moveaxis(np.argsort(places, axis=-1, kind="stable"), -1, axis)


def _scatter(state: State, operation: Operation) -> Sequence[Any]:
    """Slices of updates go where indices say, one after the other (`iree_linalg_ext.scatter`)."""
    import numpy as np

    updates, indices, before = _tensors(state, operation)[:3]
    dimensions = [int(each) for each in operation.attributes["dimension_map"]]
    batch = indices.ndim if len(dimensions) == 1 and indices.shape[-1:] != (1,) else indices.ndim - 1
    if math.prod(indices.shape[:batch]) > _MOST_SCATTERED:
        raise NotEvaluated("so many scattered slices have no reference")
    places = indices.reshape(*indices.shape[:batch], -1)
    if operation.attributes["unique_indices"].value and len(np.unique(places.reshape(-1, len(dimensions)), axis=0)) < (
        math.prod(places.shape[:-1])
    ):
        raise NotEvaluated(f"{UNDEFINED}made-up indices of a scatter are not unique, as it needs them")
    block = operation.regions[0].blocks[0]
    inner = [each.operation for each in block.operations]
    result = np.array(before)
    window = updates.shape[batch:]
    for number in np.ndindex(*indices.shape[:batch]):
        begins = [0] * before.ndim
        for dimension, place in zip(dimensions, places[number], strict=True):
            begins[dimension] = int(place)
        extents = [1] * (before.ndim - len(window)) + list(window)
        if any(
            not 0 <= begin <= size - extent for begin, extent, size in zip(begins, extents, before.shape, strict=True)
        ):
            raise NotEvaluated(f"{UNDEFINED}a slice is scattered outside of its tensor")
        where = tuple(slice(begin, begin + extent) for begin, extent in zip(begins, extents, strict=True))
        known: dict[Value, Array] = {
            block.arguments[0]: updates[number].reshape(extents),
            block.arguments[1]: result[where],
        }
        (result[where],) = evaluate_block(inner[:-1], known, state.of, list(inner[-1].operands))
    return [result]


def _fft(state: State, operation: Operation) -> Sequence[Any]:
    """One stage of a transform along the last dimension (`iree_linalg_ext.fft`): butterflies of blocks of 2^stage."""
    import numpy as np

    stage, *factors, real, imaginary = (state.loaded(state.of(each)) for each in operation.operands)
    size, half = 1 << int(stage), 1 << (int(stage) - 1)
    blocks = (real + 1j * imaginary).reshape(*real.shape[:-1], -1, size)
    turned = factors[0] + 1j * factors[1] if factors else np.exp(-2j * np.pi * np.arange(half) / size)
    low, high = blocks[..., :half], blocks[..., half:] * turned
    made = np.concatenate([low + high, low - high], -1).reshape(real.shape)
    return [made.real, made.imag]


def _tensors(state: State, operation: Operation) -> list[Array]:
    """The operands of an operation on tensors."""
    if not operation.results:
        raise NotEvaluated(f"{operation.name} on memory has no reference")
    return [state.loaded(state.of(each)) for each in operation.operands]


ORDERING: Mapping[str, Callable[[Any, Operation], Sequence[Any]]] = {
    "iree_linalg_ext.fft": _fft,
    "iree_linalg_ext.scatter": _scatter,
    "iree_linalg_ext.sort": _sort,
    "iree_linalg_ext.topk": _topk,
}
