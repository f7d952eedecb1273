"""Reference for `iree_linalg_ext` operations: sort, scatter, top-k, FFT, attention and others.

Semantics follow the dialect's definition (IREE: compiler/src/iree/compiler/Dialect/LinalgExt/IR). A stage of the FFT is
that of Cooley and Tukey.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracemap.ir.attributes import Linear
from tracemap.ir.parsing import Operation
from tracemap.kernels.reference.elements import UNDEFINED, Array, NotEvaluated
from tracemap.kernels.reference.scalars import Body, operand_maps
from tracemap.kernels.reference.tensors import Handler, State, store_result

_MAX_PAIRS: Final = 1 << 26
"""Maximum of pairwise comparisons within rows."""
_MAX_SCATTERED: Final = 1 << 17


def _sort(state: State, operation: Operation) -> Sequence[Any]:
    """Sort along a dimension by a comparison (`iree_linalg_ext.sort`); all operands get the same order."""
    values = _tensors(state, operation)
    axis = operation.attributes["dimension"].value
    order = _order(state, operation, values, axis, several=len(values) > 1)
    return [np.take_along_axis(value, order, axis) for value in values]


def _topk(state: State, operation: Operation) -> Sequence[Any]:
    """The first elements along a dimension by a comparison, and their indices (`iree_linalg_ext.topk`).

    The initial values of the outputs take part, and come first among equal elements.
    """
    *inputs, values, old_indices = _tensors(state, operation)
    axis = operation.attributes["dimension"].value
    shape = inputs[0].shape
    counter_shape = [-1 if at == axis else 1 for at in range(len(shape))]
    counter = np.arange(shape[axis], dtype=old_indices.dtype).reshape(counter_shape)
    input_indices = inputs[1] if len(inputs) > 1 else np.broadcast_to(counter, shape)
    keys = np.concatenate([values, inputs[0]], axis)
    order = _order(state, operation, [keys], axis, several=False)
    first = np.take(order, np.arange(values.shape[axis]), axis)
    indices = np.concatenate([old_indices, input_indices], axis)
    return [np.take_along_axis(keys, first, axis), np.take_along_axis(indices, first, axis)]


def _order(
    state: State, operation: Operation, values: Sequence[Array], axis: int, *, several: bool
) -> npt.NDArray[Any]:
    """Source indices of a stable sort along an axis, from the number of elements of a row that precede each one."""
    length = values[0].shape[axis]
    if values[0].size * length > _MAX_PAIRS:
        raise NotEvaluated(f"a sort of rows of {length:,} elements has no reference")
    columns = [np.expand_dims(np.moveaxis(value, axis, -1), -1) for value in values]
    rows = [np.expand_dims(np.moveaxis(value, axis, -1), -2) for value in values]
    pairs = itertools.chain.from_iterable(zip(rows, columns, strict=True))
    with np.errstate(all="ignore"):
        (comparison,) = Body(operation, state.of, state.watch).values([*pairs])
    shape = (*columns[0].shape[:-1], length)
    before = np.broadcast_to(comparison, shape).astype(bool)
    strictly = before & ~np.swapaxes(before, -1, -2)
    tied = ~strictly & ~np.swapaxes(strictly, -1, -2)
    earlier = np.tri(length, k=-1, dtype=bool)
    if several and np.any(tied & earlier):
        raise NotEvaluated(f"{UNDEFINED}equal elements have no defined order in a sort of several tensors")
    ranks = np.count_nonzero(strictly | (tied & earlier), axis=-1)
    return np.moveaxis(np.argsort(ranks, axis=-1, kind="stable"), -1, axis)


def _scatter(state: State, operation: Operation) -> Sequence[Any]:
    """Write slices of the updates to the given indices, in order (`iree_linalg_ext.scatter`)."""
    updates, indices, before = _tensors(state, operation)[:3]
    dimensions = [int(dimension) for dimension in operation.attributes["dimension_map"]]
    batch = indices.ndim if len(dimensions) == 1 and indices.shape[-1:] != (1,) else indices.ndim - 1
    if math.prod(indices.shape[:batch]) > _MAX_SCATTERED:
        raise NotEvaluated(f"a scatter of more than {_MAX_SCATTERED:,} slices has no reference")
    targets = indices.reshape(*indices.shape[:batch], -1)
    if operation.attributes["unique_indices"].value and len(np.unique(targets.reshape(-1, len(dimensions)), axis=0)) < (
        math.prod(targets.shape[:-1])
    ):
        raise NotEvaluated(f"{UNDEFINED}a scatter requires unique indices, and the random ones are not unique")
    body = Body(operation, state.of, state.watch)
    result = np.array(before)
    window = updates.shape[batch:]
    for number in np.ndindex(*indices.shape[:batch]):
        begins = [0] * before.ndim
        for dimension, target in zip(dimensions, targets[number], strict=True):
            begins[dimension] = int(target)
        extents = [1] * (before.ndim - len(window)) + list(window)
        if any(
            not 0 <= begin <= size - extent for begin, extent, size in zip(begins, extents, before.shape, strict=True)
        ):
            raise NotEvaluated(f"{UNDEFINED}a slice is scattered out of bounds of its tensor")
        region = tuple(slice(begin, begin + extent) for begin, extent in zip(begins, extents, strict=True))
        (result[region],) = body.values([updates[number].reshape(extents), result[region]])
    return [result]


def _fft(state: State, operation: Operation) -> Sequence[Any]:
    """A stage of an FFT along the last dimension (`iree_linalg_ext.fft`): butterflies in blocks of 2^stage."""
    stage, *factors, real, imaginary = (state.loaded(state.of(operand)) for operand in operation.operands)
    size, half = 1 << int(stage), 1 << (int(stage) - 1)
    blocks = (real + 1j * imaginary).reshape(*real.shape[:-1], -1, size)
    turned = factors[0] + 1j * factors[1] if factors else np.exp(-2j * np.pi * np.arange(half) / size)
    low, high = blocks[..., :half], blocks[..., half:] * turned
    result = np.concatenate([low + high, low - high], -1).reshape(real.shape)
    return [result.real, result.imag]


def _tensors(state: State, operation: Operation) -> list[Array]:
    if not operation.results:
        raise NotEvaluated(f"{operation.name} on memory has no reference")
    return [state.loaded(state.of(operand)) for operand in operation.operands]


_INPUTS_OF_ATTENTION: Final = 4
"""Query, key, value and scale; a mask is the fifth."""
_BASE_INDEPENDENT: Final = {"arith.constant", "arith.mulf", "arith.divf", "arith.extf", "arith.truncf"}


def _map_store(state: State, operation: Operation) -> Sequence[Any]:
    """Store source elements at the indices that the body computes, if its mask is set (`iree_linalg_ext.map_store`)."""
    source, target = (state.of(operand) for operand in operation.operands)
    before = state.loaded(target)
    shape = source.shape
    indices = np.meshgrid(*(np.arange(extent, dtype=np.int64) for extent in shape), indexing="ij", sparse=True)
    *target_indices, mask = Body(operation, state.of, state.watch).values(indices)
    stored = np.array(before)
    active = np.broadcast_to(mask, shape)
    stored[tuple(np.broadcast_to(index, shape)[active] for index in target_indices)] = source[active]
    return store_result(state, operation, stored)


def _online_attention(state: State, operation: Operation) -> Sequence[Any]:
    """Attention that continues from an accumulated product, maximum and sum.

    The maximum here is in base e, while IREE may use another base. Product and sum do not depend on the base. A kernel
    that uses the maximum otherwise has no reference.
    """
    values = [state.loaded(state.of(operand)) for operand in operation.operands]
    if list(operation.results[1].uses):
        raise NotEvaluated("an attention whose maximum is used has no reference")
    segments = operation.attributes.get("operandSegmentSizes")
    count = len(values) - 3 if segments is None else int(segments[0])
    maps = [_axes(rows) for rows in operand_maps(operation)]
    query, key, value, scale = values[:_INPUTS_OF_ATTENTION]
    before, maximum, total = values[-3:]
    rows, columns = maps[0], maps[1]
    score_axes = sorted(({*rows, *columns} - _summed(maps)) | {*maps[2]} & {*columns} - _summed(maps))
    scores = np.einsum(_subscripts([rows, columns], score_axes), query, key, optimize=True) * scale
    scores = _transform_scores(state, operation, scores)
    if count > _INPUTS_OF_ATTENTION:
        scores = _mask_scores(scores, values[_INPUTS_OF_ATTENTION], maps[_INPUTS_OF_ATTENTION], score_axes)
    with np.errstate(all="ignore"):
        old_maximum = _broadcast(maximum, maps[-2], score_axes)
        reduced = tuple(number for number, axis in enumerate(score_axes) if axis not in maps[-2])
        new_maximum = np.maximum(old_maximum, scores.max(axis=reduced, keepdims=True))
        weights = np.exp(scores - new_maximum)
        factor = np.exp(old_maximum - new_maximum).squeeze(reduced)
        sums = total * factor + weights.sum(axis=reduced)
        outer = [axis for axis in score_axes if axis in maps[-2]]
        product = np.einsum(_subscripts([score_axes, maps[2]], maps[-3]), weights, value, optimize=True)
        result = before * np.broadcast_to(_broadcast(factor, outer, maps[-3]), before.shape) + product
    return [result, new_maximum.squeeze(reduced), sums]


def _subscripts(operands: Sequence[Sequence[int]], result: Sequence[int]) -> str:
    words = ["".join(chr(ord("a") + axis) for axis in axes) for axes in (*operands, result)]
    return f"{','.join(words[:-1])}->{words[-1]}"


def _axes(rows: Sequence[Linear]) -> list[int]:
    """The loop dimensions of an operand, in the order of its axes."""
    if not all(row.is_dimension for row in rows):
        raise NotEvaluated("an attention with operand maps other than permutations has no reference")
    return [next(iter(row.factors)) for row in rows]


def _summed(maps: Sequence[Sequence[int]]) -> set[int]:
    """The dimensions that a score sums over: those of query and key that neither value nor output has."""
    return ({*maps[0]} & {*maps[1]}) - {*maps[2]} - {*maps[-3]}


def _broadcast(array: Array, axes: Sequence[int], target_axes: Sequence[int]) -> Array:
    """Reshape an array so that it broadcasts over the target dimensions."""
    order = [axes.index(axis) for axis in target_axes if axis in axes]
    shape = [array.shape[axes.index(axis)] if axis in axes else 1 for axis in target_axes]
    return array.transpose(order).reshape(shape)


def _mask_scores(scores: Array, mask: Array, axes: Sequence[int], target_axes: Sequence[int]) -> Array:
    """Apply a mask: a boolean mask excludes scores, a numeric mask is added."""
    whole_mask = _broadcast(mask, axes, target_axes)
    return np.where(whole_mask, scores, -np.inf) if whole_mask.dtype == np.bool_ else scores + whole_mask


def _transform_scores(state: State, operation: Operation, scores: Array) -> Array:
    """Apply the body to the scores. Bodies that do more than scale depend on the exponents' base, and are refused."""
    body = Body(operation, state.of, state.watch)
    if any(op.name not in _BASE_INDEPENDENT for op in body.operations):
        raise NotEvaluated("an attention that does more to its scores than scale them has no reference")
    return body.values([scores])[0]


EXTENSIONS: Mapping[str, Handler] = {
    "iree_linalg_ext.fft": _fft,
    "iree_linalg_ext.map_store": _map_store,
    "iree_linalg_ext.online_attention": _online_attention,
    "iree_linalg_ext.scatter": _scatter,
    "iree_linalg_ext.sort": _sort,
    "iree_linalg_ext.topk": _topk,
}
