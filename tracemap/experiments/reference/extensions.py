"""Operations of IREE's own (`iree_linalg_ext`) that kernels have before code generation.

Their semantics are those of the dialect's definition (IREE: compiler/src/iree/compiler/Dialect/LinalgExt/IR).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tracemap.experiments.reference.blocks import evaluate_block, operand_maps
from tracemap.experiments.reference.elements import Array, NotEvaluated
from tracemap.experiments.reference.memory import View
from tracemap.experiments.reference.ordering import ORDERING
from tracemap.experiments.reference.tensors import State
from tracemap.ir.affine import Linear
from tracemap.ir.parsing import Operation, Value

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
