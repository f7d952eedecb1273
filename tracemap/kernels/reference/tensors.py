"""Reference for operations on whole tensors: views of memory, slices, packing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracemap.ir.attributes import DYNAMIC, dense_elements, splat_value
from tracemap.ir.parsing import Operation, Value, operand_segments
from tracemap.kernels.reference.elements import Array, NotEvaluated, View, computed_type, from_memory, stored_type
from tracemap.kernels.reference.scalars import evaluate, linear_index

if TYPE_CHECKING:
    import numpy.typing as npt


# ---- tensors
#
# Operations of a kernel's function that are neither structured nor on scalars: views of memory, slices of tensors.


LOAD, STORE = "iree_codegen.load_from_buffer", "iree_codegen.store_to_buffer"


class State(Protocol):
    """The values of a function during its evaluation."""

    def of(self, value: Value) -> Any:  # noqa: ANN401 - a view, a tensor or a number
        """The view, tensor or number of a value."""

    def loaded(self, value: Any) -> Array:  # noqa: ANN401 - the same
        """A tensor or number; for a view, its elements."""

    def store(self, values: Array, view: View) -> None:
        """Write elements to memory."""

    def constant(self, ordinal: int) -> int:
        """A push constant."""

    def blob(self, attribute: object) -> bytes:
        """The data of a constant that is stored outside the operations (a resource blob)."""


Handler = Callable[[State, Operation], Sequence[Any]]


def _numbers(state: State, operation: Operation, static: str, dynamic: Sequence[Value]) -> list[int]:
    """Offsets, sizes or strides; static ones come from an attribute, dynamic ones from operands."""
    rest = iter(dynamic)
    return [int(state.of(next(rest))) if number == DYNAMIC else int(number) for number in operation.attributes[static]]


def _extents(state: State, kind: Any, dynamic: Sequence[Value]) -> list[int]:  # noqa: ANN401 - of the bindings
    """The extents of a shaped type; dynamic ones come from values."""
    rest = iter(dynamic)
    return [int(state.of(next(rest))) if extent == DYNAMIC else int(extent) for extent in kind.shape]


def _constant_load(state: State, operation: Operation) -> Sequence[Any]:
    number = state.constant(operation.attributes["ordinal"].value)
    return [computed_type(str(operation.results[0].type)).type(_signed(number, str(operation.results[0].type)))]


def _signed(number: int, kind: str) -> int:
    bits = 64 if kind == "index" else int(kind[1:])
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def _subspan(state: State, operation: Operation) -> Sequence[Any]:
    offset, dynamic = operand_segments(operation)
    kind = operation.results[0].type
    extents = _extents(state, kind, dynamic)
    begin = int(state.of(offset[0])) if offset else 0
    return [View.whole(operation.attributes["binding"].value, begin, extents, str(kind.element_type))]


def _remaining_axes(sizes: Sequence[int], rank: int) -> list[int]:
    """The axes after rank reduction, which drops the first axes of extent 1."""
    to_drop = len(sizes) - rank
    axes: list[int] = []
    for axis, size in enumerate(sizes):
        if size == 1 and to_drop:
            to_drop -= 1
        else:
            axes.append(axis)
    return axes


def _slice_parameters(
    state: State, operation: Operation, first: int, rank: int
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Offsets, sizes, strides and remaining axes of a slice operation; its operand segments start at `first`."""
    segments = operand_segments(operation)[first:]
    names = ("static_offsets", "static_sizes", "static_strides")
    offsets, sizes, steps = (
        _numbers(state, operation, name, dynamic) for name, dynamic in zip(names, segments, strict=True)
    )
    return offsets, sizes, steps, _remaining_axes(sizes, rank)


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
    import numpy as np

    kind = operation.results[0].type
    return [np.zeros(_extents(state, kind, list(operation.operands)), computed_type(str(kind.element_type)))]


def _reshape(state: State, operation: Operation) -> Sequence[Any]:
    source, kind = state.of(operation.operands[0]), operation.results[0].type
    groups = [[int(axis) for axis in group] for group in operation.attributes["reassociation"]]
    if operation.name == "tensor.collapse_shape":
        extents = [_product(source.shape[axis] for axis in group) for group in groups]
    elif "static_output_shape" in operation.attributes:
        extents = _numbers(state, operation, "static_output_shape", list(operation.operands)[1:])
    else:
        extents = [int(extent) for extent in kind.shape]
    return [source.reshape(extents)]


def _product(numbers: Any) -> int:  # noqa: ANN401 - a series of numbers
    result = 1
    for number in numbers:
        result *= number
    return result


def _dim(state: State, operation: Operation) -> Sequence[Any]:
    tensor = state.of(operation.operands[0])
    extents = tensor.extents if isinstance(tensor, View) else tensor.shape
    return [extents[int(state.of(operation.operands[1]))]]


def _fill(state: State, operation: Operation) -> Sequence[Any]:
    import numpy as np

    value, like = (state.of(operand) for operand in operation.operands)
    return [np.full(like.shape, value, dtype=computed_type(str(operation.results[0].type.element_type)))]


def _constant(state: State, operation: Operation) -> Sequence[Any]:
    import numpy as np

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
    import numpy as np

    data = np.frombuffer(state.blob(attribute), np.uint8)
    kind = stored_type(element)
    if data.size != kind.itemsize * _product(shape):
        raise NotEvaluated("a constant with external data has no reference")
    return from_memory(data.view(kind).reshape(shape), element)


def _store(state: State, operation: Operation) -> Sequence[Any]:
    value, view = (state.of(operand) for operand in operation.operands)
    state.store(value, view)
    return []


def _linearize(state: State, operation: Operation) -> Sequence[Any]:
    return [linear_index(operation, [state.of(operand) for operand in operation.operands])]


HANDLERS: Mapping[str, Handler] = {
    "hal.interface.constant.load": _constant_load,
    "hal.interface.binding.subspan": _subspan,
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
    "affine.linearize_index": _linearize,
    "func.return": lambda _, __: [],
}
OF_ADDRESSES: Final = ("arith.", "util.", "iree_tensor_ext.", "affine.")
"""Dialects that compute addresses and sizes."""
ADDRESSES: Final = {
    "hal.interface.constant.load",
    "hal.interface.binding.subspan",
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
    rest = iter(dynamic)
    sizes = [
        int(state.of(next(rest))) if size == DYNAMIC else int(size)
        for size in operation.attributes["static_inner_tiles"]
    ]
    order = [int(axis) for axis in operation.attributes.get("outer_dims_perm", ())]
    tiled = [int(axis) for axis in operation.attributes["inner_dims_pos"]]
    return _Tiling(dict(zip(tiled, sizes, strict=True)), tuple(order or range(rank)))


def _store_result(state: State, operation: Operation, values: Array) -> Sequence[Any]:
    target = state.of(operation.operands[1])
    if isinstance(target, View):
        state.store(values, target)
    return [values] * len(operation.results)


def _pack(state: State, operation: Operation) -> Sequence[Any]:
    import numpy as np

    (source,), _, padding, dynamic = operand_segments(operation)
    plain = state.loaded(state.of(source))
    tiling = _tiling(state, operation, plain.ndim, dynamic)
    whole = np.full(tiling.padded(plain.shape), state.of(padding[0]) if padding else 0, plain.dtype)
    whole[tuple(map(slice, plain.shape))] = plain
    packed = whole.reshape(tiling.split(plain.shape)).transpose(tiling.axes(plain.ndim))
    return _store_result(state, operation, np.ascontiguousarray(packed))


def _unpack(state: State, operation: Operation) -> Sequence[Any]:
    import numpy as np

    source, target, *dynamic = operation.operands
    packed, extents = state.loaded(state.of(source)), state.loaded(state.of(target)).shape
    tiling = _tiling(state, operation, len(extents), dynamic)
    split = packed.transpose(np.argsort(tiling.axes(len(extents))))
    whole = split.reshape(tiling.padded(extents))[tuple(map(slice, extents))]
    return _store_result(state, operation, np.ascontiguousarray(whole))


PACKING: Final[dict[str, Handler]] = {"linalg.pack": _pack, "linalg.unpack": _unpack}
