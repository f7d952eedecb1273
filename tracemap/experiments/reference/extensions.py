"""Operations of `iree_linalg_ext`: sort, scatter, top-k, attention and others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tracemap.experiments.reference.elements import UNDEFINED, Array, NotEvaluated
from tracemap.experiments.reference.memory import View
from tracemap.experiments.reference.scalars import evaluate_block, operand_maps
from tracemap.experiments.reference.tensors import State
from tracemap.ir.attributes import Linear
from tracemap.ir.parsing import Operation, Value

if TYPE_CHECKING:
    import numpy.typing as npt


# ---- ordering
#
# Operations of IREE's own that sort, choose, scatter and transform (`iree_linalg_ext`), by their definitions.
#
# Sources: IREE: compiler/src/iree/compiler/Dialect/LinalgExt/IR; a stage of the transform is that of Cooley and Tukey.


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


# ---- extensions
#
# Operations of IREE's own (`iree_linalg_ext`) that kernels have before code generation.
#
# Their semantics are those of the dialect's definition (IREE: compiler/src/iree/compiler/Dialect/LinalgExt/IR).


_INPUTS_OF_ATTENTION: Final = 4
"""Query, key, value and scale; a mask is the fifth."""
_OF_ANY_BASE: Final = {"arith.constant", "arith.mulf", "arith.divf", "arith.extf", "arith.truncf"}


def _map_store(state: State, operation: Operation) -> Sequence[Any]:
    """Each element of the source goes where the body says, if it says so (`iree_linalg_ext.map_store`)."""
    import numpy as np

    source, target = (state.of(each) for each in operation.operands)
    before = state.loaded(target)
    block = operation.regions[0].blocks[0]
    operations = [each.operation for each in block.operations]
    shape = source.shape
    indices = np.meshgrid(*(np.arange(extent, dtype=np.int64) for extent in shape), indexing="ij", sparse=True)
    known: dict[Value, Array] = dict(zip(block.arguments, indices, strict=True))
    *places, mask = evaluate_block(operations[:-1], known, state.of, list(operations[-1].operands))
    stored = np.array(before)
    chosen = np.broadcast_to(mask, shape)
    stored[tuple(np.broadcast_to(place, shape)[chosen] for place in places)] = source[chosen]
    if isinstance(target, View):
        state.store(stored, target)
    return [stored] * len(operation.results)


def _online_attention(state: State, operation: Operation) -> Sequence[Any]:
    """Attention, with the accumulated product, maximum and sum that it goes on from.

    The maximum is that of natural exponents, where IREE may keep another base's: it is of use for nothing but the other
    two, which do not depend on the base. What uses it has no reference.
    """
    import numpy as np

    values = [state.loaded(state.of(each)) for each in operation.operands]
    if list(operation.results[1].uses):
        raise NotEvaluated("the maximum of an attention has no reference where it is used")
    count = int(operation.attributes["operandSegmentSizes"][0]) if _segmented(operation) else len(values) - 3
    maps = [_axes(rows) for rows in operand_maps(operation)]
    query, key, value, scale = values[:_INPUTS_OF_ATTENTION]
    before, maximum, total = values[-3:]
    rows, columns = maps[0], maps[1]
    kept = sorted(({*rows, *columns} - _summed(maps)) | {*maps[2]} & {*columns} - _summed(maps))
    scores = np.einsum(_letters([rows, columns], kept), query, key, optimize=True) * scale
    scores = _changed(state, operation, scores)
    if count > _INPUTS_OF_ATTENTION:
        scores = _masked(scores, values[_INPUTS_OF_ATTENTION], maps[_INPUTS_OF_ATTENTION], kept)
    with np.errstate(all="ignore"):
        spread = _spread(maximum, maps[-2], kept)
        along = tuple(number for number, axis in enumerate(kept) if axis not in maps[-2])
        highest = np.maximum(spread, scores.max(axis=along, keepdims=True))
        weights = np.exp(scores - highest)
        factor = np.exp(spread - highest).squeeze(along)
        sums = total * factor + weights.sum(axis=along)
        outer = [axis for axis in kept if axis in maps[-2]]
        product = np.einsum(_letters([kept, maps[2]], maps[-3]), weights, value, optimize=True)
        result = before * np.broadcast_to(_spread(factor, outer, maps[-3]), before.shape) + product
    return [result, highest.squeeze(along), sums]


def _letters(operands: Sequence[Sequence[int]], result: Sequence[int]) -> str:
    """Dimensions as `numpy.einsum` writes them."""
    words = ["".join(chr(ord("a") + axis) for axis in each) for each in (*operands, result)]
    return f"{','.join(words[:-1])}->{words[-1]}"


def _segmented(operation: Operation) -> bool:
    return "operandSegmentSizes" in operation.attributes


def _axes(rows: Sequence[Linear]) -> list[int]:
    """The dimensions that an operand has, in the order of its axes."""
    if not all(row.is_dimension for row in rows):
        raise NotEvaluated("an attention whose operands are more than permuted has no reference")
    return [next(iter(row.factors)) for row in rows]


def _summed(maps: Sequence[Sequence[int]]) -> set[int]:
    """The dimensions that go into a score: those of query and key that neither value nor output has."""
    return ({*maps[0]} & {*maps[1]}) - {*maps[2]} - {*maps[-3]}


def _spread(array: Array, axes: Sequence[int], over: Sequence[int]) -> Array:
    """An array with some dimensions as one that broadcasts over others."""
    order = [axes.index(axis) for axis in over if axis in axes]
    shape = [array.shape[axes.index(axis)] if axis in axes else 1 for axis in over]
    return array.transpose(order).reshape(shape)


def _masked(scores: Array, mask: Array, axes: Sequence[int], over: Sequence[int]) -> Array:
    """A mask of truth values leaves out, one of numbers is added."""
    import numpy as np

    spread = _spread(mask, axes, over)
    return np.where(spread, scores, -np.inf) if spread.dtype == np.bool_ else scores + spread


def _changed(state: State, operation: Operation, scores: Array) -> Array:
    """What the body makes of the scores; where it does more than scale them, that depends on the exponents' base."""
    block = operation.regions[0].blocks[0]
    operations = [each.operation for each in block.operations]
    if any(each.name not in _OF_ANY_BASE for each in operations[:-1]):
        raise NotEvaluated("an attention that does more to its scores than scale them has no reference")
    known: dict[Value, Array] = {block.arguments[0]: scores}
    return evaluate_block(operations[:-1], known, state.of, list(operations[-1].operands))[0]


EXTENSIONS: Mapping[str, Callable[[Any, Operation], Sequence[Any]]] = {
    "iree_linalg_ext.map_store": _map_store,
    "iree_linalg_ext.online_attention": _online_attention,
    **ORDERING,
}
