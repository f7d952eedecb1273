"""Reference for operations on whole tensors: views of memory, slices, packing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracemap.ir.attributes import DYNAMIC, Blobs, dense_elements, splat_value
from tracemap.ir.parsing import Operation, Value, operand_segments
from tracemap.kernels.reference.elements import (
    Array,
    Memory,
    NotEvaluated,
    View,
    computed_type,
    from_memory,
    stored_type,
    to_memory,
)
from tracemap.kernels.reference.scalars import Watch, evaluate, linear_index
from tracemap.kernels.reference.structured import Reduction
from tracemap.machine.integers import signed

# ---- tensors
#
# Operations of a kernel's function that are neither structured nor on scalars: views of memory, slices of tensors.


LOAD, STORE = "iree_codegen.load_from_buffer", "iree_codegen.store_to_buffer"
SUBSPAN = "hal.interface.binding.subspan"


Replacement = Callable[["View"], "Array | None"]


def not_replaced(_: View) -> Array | None:
    """The `Replacement` that replaces nothing."""
    return None


@dataclass
class State:
    """The values of a function during its evaluation, and the views that it stored.

    Attributes:
        memory: None while only addresses are computed.
        blobs: data of constants that are stored outside the operations.
        exact: the stored values before they were rounded to the type in memory.
        replaced: returns values to use in place of those in memory; None: those in memory.
        watch: sees every operation.
    """

    constants: Sequence[int]
    blobs: Blobs
    memory: Memory | None = None
    known: dict[Value, Any] = field(default_factory=dict)
    stored: list[View] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    exact: list[Array] = field(default_factory=list)
    replaced: Replacement = not_replaced
    watch: Watch | None = None

    def of(self, value: Value) -> Any:  # noqa: ANN401 - a view, a tensor or a number
        """The view, tensor or number of a value."""
        if value not in self.known:
            raise NotEvaluated("a value from outside the kernel has no reference")
        return self.known[value]

    def loaded(self, value: Any) -> Array:  # noqa: ANN401 - the same
        """A tensor or number; for a view, a copy of its elements in the type of evaluation."""
        if not isinstance(value, View):
            return value
        assert self.memory is not None
        if (values := self.replaced(value)) is not None:
            return values
        return from_memory(value.of(self.memory), value.element)

    def store(self, values: Array, view: View) -> None:
        """Write elements to memory."""
        assert self.memory is not None
        view.of(self.memory)[...] = to_memory(values, view.element)
        self.stored.append(view)
        self.exact.append(values)


Handler = Callable[[State, Operation], Sequence[Any]]


def _numbers(state: State, static: Iterable[Any], dynamic: Sequence[Value]) -> list[int]:
    """Offsets, sizes, strides or extents; dynamic ones come from values."""
    rest = iter(dynamic)
    return [int(state.of(next(rest))) if number == DYNAMIC else int(number) for number in static]


def _constant_load(state: State, operation: Operation) -> Sequence[Any]:
    number, kind = state.constants[operation.attributes["ordinal"].value], str(operation.results[0].type)
    return [computed_type(kind).type(signed(number, 64 if kind == "index" else int(kind[1:])))]


def _subspan(state: State, operation: Operation) -> Sequence[Any]:
    offset, dynamic = operand_segments(operation)
    kind = operation.results[0].type
    extents = _numbers(state, kind.shape, dynamic)
    begin = int(state.of(offset[0])) if offset else 0
    return [View.whole(operation.attributes["binding"].value, begin, extents, str(kind.element_type))]


def _slice_parameters(
    state: State, operation: Operation, first: int, rank: int
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Offsets, sizes, strides and remaining axes of a slice operation; its operand segments start at `first`."""
    segments = operand_segments(operation)[first:]
    names = ("static_offsets", "static_sizes", "static_strides")
    offsets, sizes, steps = (
        _numbers(state, operation.attributes[name], dynamic) for name, dynamic in zip(names, segments, strict=True)
    )
    # Rank reduction drops the first axes of extent 1.
    dropped = [axis for axis, size in enumerate(sizes) if size == 1][: len(sizes) - rank]
    return offsets, sizes, steps, [axis for axis in range(len(sizes)) if axis not in dropped]


def _subview(state: State, operation: Operation) -> Sequence[Any]:
    offsets, sizes, steps, axes = _slice_parameters(state, operation, 1, operation.results[0].type.rank)
    return [state.of(operation.operands[0]).part(offsets, sizes, steps, axes)]


def _slices(offsets: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> tuple[slice, ...]:
    return tuple(
        slice(offset, offset + (size - 1) * step + 1 if size else offset, step)
        for offset, size, step in zip(offsets, sizes, steps, strict=True)
    )


def _extract_slice(state: State, operation: Operation) -> Sequence[Any]:
    offsets, sizes, steps, axes = _slice_parameters(state, operation, 1, operation.results[0].type.rank)
    part = state.of(operation.operands[0])[_slices(offsets, sizes, steps)]
    return [part.reshape([sizes[axis] for axis in axes])]


def _insert_slice(state: State, operation: Operation) -> Sequence[Any]:
    source = state.of(operation.operands[0])
    offsets, sizes, steps, _ = _slice_parameters(state, operation, 2, source.ndim)
    target = state.of(operation.operands[1]).copy()
    target[_slices(offsets, sizes, steps)] = source.reshape(sizes)
    return [target]


def _empty(state: State, operation: Operation) -> Sequence[Any]:
    kind = operation.results[0].type
    return [np.zeros(_numbers(state, kind.shape, list(operation.operands)), computed_type(str(kind.element_type)))]


def _reshape(state: State, operation: Operation) -> Sequence[Any]:
    source, kind = state.of(operation.operands[0]), operation.results[0].type
    groups = [[int(axis) for axis in group] for group in operation.attributes["reassociation"]]
    if operation.name == "tensor.collapse_shape":
        extents = [math.prod(source.shape[axis] for axis in group) for group in groups]
    elif "static_output_shape" in operation.attributes:
        extents = _numbers(state, operation.attributes["static_output_shape"], list(operation.operands)[1:])
    else:
        extents = [int(extent) for extent in kind.shape]
    return [source.reshape(extents)]


def _dim(state: State, operation: Operation) -> Sequence[Any]:
    tensor = state.of(operation.operands[0])
    extents = tensor.extents if isinstance(tensor, View) else tensor.shape
    return [extents[int(state.of(operation.operands[1]))]]


def _fill(state: State, operation: Operation) -> Sequence[Any]:
    value, like = (state.of(operand) for operand in operation.operands)
    return [np.full(like.shape, value, dtype=computed_type(str(operation.results[0].type.element_type)))]


def _constant(state: State, operation: Operation) -> Sequence[Any]:
    attribute, kind = operation.attributes["value"], operation.results[0].type
    if not hasattr(kind, "element_type"):
        return [evaluate(operation, [])]
    element = str(kind.element_type)
    value, elements = splat_value(attribute), dense_elements(attribute)
    if value is not None:
        return [np.full(kind.shape, value, computed_type(element))]
    return [
        _blob(state, attribute, element, kind.shape) if elements is None else elements.astype(computed_type(element))
    ]


def _blob(state: State, attribute: Any, element: str, shape: Sequence[int]) -> npt.NDArray[Any]:  # noqa: ANN401 - of the bindings
    """The elements of a `dense_resource` constant."""
    data = np.frombuffer(state.blobs.of(attribute), np.uint8)
    kind = stored_type(element)
    if data.size != kind.itemsize * math.prod(shape):
        raise NotEvaluated("a constant with external data has no reference")
    return from_memory(data.view(kind).reshape(shape), element)


def _store(state: State, operation: Operation) -> Sequence[Any]:
    value, view = (state.of(operand) for operand in operation.operands)
    state.store(value, view)
    return []


HANDLERS: Mapping[str, Handler] = {
    "hal.interface.constant.load": _constant_load,
    SUBSPAN: _subspan,
    "memref.subview": _subview,
    "memref.assume_alignment": lambda state, operation: [state.of(operation.operands[0])],
    "memref.dim": _dim,
    "tensor.dim": _dim,
    LOAD: lambda state, operation: [state.loaded(state.of(operation.operands[0]))],
    STORE: _store,
    "tensor.empty": _empty,
    "tensor.extract_slice": _extract_slice,
    "tensor.insert_slice": _insert_slice,
    "tensor.expand_shape": _reshape,
    "tensor.collapse_shape": _reshape,
    "tensor.cast": lambda state, operation: [state.of(operation.operands[0])],
    "linalg.fill": _fill,
    "arith.constant": _constant,
    "affine.linearize_index": lambda state, operation: [
        linear_index(operation, list(map(state.of, operation.operands)))
    ],
    "func.return": lambda _, __: [],
}
OF_ADDRESSES: Final = ("arith.", "util.", "iree_tensor_ext.", "affine.")
"""Dialects that compute addresses and sizes."""
ADDRESSES: Final = {
    "hal.interface.constant.load",
    SUBSPAN,
    "memref.subview",
    "memref.assume_alignment",
    "memref.dim",
}
"""Operations that compute locations in memory without accessing it."""


# ---- packing
#
# Data tiling: tensors stored in tiles (`linalg.pack`, `linalg.unpack`).
#
# A packed tensor has permuted outer dimensions, one per dimension of the plain tensor, followed by the tile dimensions.
# Tiles that extend past the end of the tensor are padded.


@dataclass(frozen=True, slots=True)
class _Tiling:
    """`tiles`: tile extents by tiled axis, in order of the tile dimensions; `order`: order of the outer dimensions."""

    tiles: dict[int, int]
    order: tuple[int, ...]

    def split(self, extents: Sequence[int]) -> list[int]:
        """Extents after splitting: a tiled axis becomes two, its number of tiles and the tile extent."""
        parts = ((-(-size // self.tiles[axis]), self.tiles[axis]) if axis in self.tiles else (size,)
                 for axis, size in enumerate(extents))  # fmt: skip
        return [size for part in parts for size in part]

    def padded(self, extents: Sequence[int]) -> list[int]:
        """Extents rounded up to whole tiles."""
        return [-(-size // self.tiles.get(axis, 1)) * self.tiles.get(axis, 1) for axis, size in enumerate(extents)]

    def axes(self, rank: int) -> list[int]:
        """The axes of the split tensor, in the order of the packed tensor."""
        begins = [axis + sum(tiled < axis for tiled in self.tiles) for axis in range(rank)]
        return [*(begins[axis] for axis in self.order), *(begins[axis] + 1 for axis in self.tiles)]


def _tiling(state: State, operation: Operation, rank: int, dynamic: Sequence[Value]) -> _Tiling:
    sizes = _numbers(state, operation.attributes["static_inner_tiles"], dynamic)
    order = [int(axis) for axis in operation.attributes.get("outer_dims_perm", ())]
    tiled = [int(axis) for axis in operation.attributes["inner_dims_pos"]]
    return _Tiling(dict(zip(tiled, sizes, strict=True)), tuple(order or range(rank)))


def store_result(state: State, operation: Operation, values: Array) -> Sequence[Any]:
    """The results of an operation whose output is its second operand; in memory it is stored there instead."""
    target = state.of(operation.operands[1])
    if isinstance(target, View):
        state.store(values, target)
    return [values] * len(operation.results)


def _pack(state: State, operation: Operation) -> Sequence[Any]:
    (source,), _, padding, dynamic = operand_segments(operation)
    plain = state.loaded(state.of(source))
    tiling = _tiling(state, operation, plain.ndim, dynamic)
    whole = np.full(tiling.padded(plain.shape), state.of(padding[0]) if padding else 0, plain.dtype)
    whole[tuple(map(slice, plain.shape))] = plain
    packed = whole.reshape(tiling.split(plain.shape)).transpose(tiling.axes(plain.ndim))
    return store_result(state, operation, np.ascontiguousarray(packed))


def _unpack(state: State, operation: Operation) -> Sequence[Any]:
    source, target, *dynamic = operation.operands
    packed, extents = state.loaded(state.of(source)), state.loaded(state.of(target)).shape
    tiling = _tiling(state, operation, len(extents), dynamic)
    split = packed.transpose(np.argsort(tiling.axes(len(extents))))
    whole = split.reshape(tiling.padded(extents))[tuple(map(slice, extents))]
    return store_result(state, operation, np.ascontiguousarray(whole))


PACKING: Final[dict[str, Handler]] = {"linalg.pack": _pack, "linalg.unpack": _unpack}
