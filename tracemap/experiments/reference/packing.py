"""Tensors in tiles (`linalg.pack`, `linalg.unpack`): what data tiling makes of them, and back.

A packed tensor has an outer dimension for each of the plain one's, in an order of its own, and behind them the tiles'
extents. What a tile has beyond the tensor's end is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tracemap.experiments.reference.elements import Array
from tracemap.experiments.reference.memory import View
from tracemap.experiments.reference.tensors import Handler, State
from tracemap.ir.constants import DYNAMIC
from tracemap.ir.parsing import Operation, Value, operand_parts


@dataclass(frozen=True, slots=True)
class _Tiling:
    """`tiles`: by the axis that is tiled the extent of its tiles, in their order; `order`: of the outer dimensions."""

    tiles: dict[int, int]
    order: tuple[int, ...]

    def split(self, extents: Sequence[int]) -> list[int]:
        """Extents with each tiled one as a number of tiles and the extent of one, next to each other."""
        parts = ((-(-size // self.tiles[axis]), self.tiles[axis]) if axis in self.tiles else (size,)
                 for axis, size in enumerate(extents))  # fmt: skip
        return [size for part in parts for size in part]

    def padded(self, extents: Sequence[int]) -> list[int]:
        """Extents of whole tiles."""
        return [-(-size // self.tiles.get(axis, 1)) * self.tiles.get(axis, 1) for axis, size in enumerate(extents)]

    def axes(self, rank: int) -> list[int]:
        """Of the packed tensor's axes those of the split one."""
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


def _written(state: State, operation: Operation, values: Array) -> Sequence[Any]:
    target = state.of(operation.operands[1])
    if isinstance(target, View):
        state.store(values, target)
    return [values] * len(operation.results)


def _pack(state: State, operation: Operation) -> Sequence[Any]:
    import numpy as np

    (source,), _, padding, dynamic = operand_parts(operation)
    plain = state.loaded(state.of(source))
    tiling = _tiling(state, operation, plain.ndim, dynamic)
    whole = np.full(tiling.padded(plain.shape), state.of(padding[0]) if padding else 0, plain.dtype)
    whole[tuple(map(slice, plain.shape))] = plain
    packed = whole.reshape(tiling.split(plain.shape)).transpose(tiling.axes(plain.ndim))
    return _written(state, operation, np.ascontiguousarray(packed))


def _unpack(state: State, operation: Operation) -> Sequence[Any]:
    import numpy as np

    source, target, *dynamic = operation.operands
    packed, extents = state.loaded(state.of(source)), state.loaded(state.of(target)).shape
    tiling = _tiling(state, operation, len(extents), dynamic)
    split = packed.transpose(np.argsort(tiling.axes(len(extents))))
    whole = split.reshape(tiling.padded(extents))[tuple(map(slice, extents))]
    return _written(state, operation, np.ascontiguousarray(whole))


PACKING: Final[dict[str, Handler]] = {"linalg.pack": _pack, "linalg.unpack": _unpack}
