"""Structured operations (the linalg dialect): loops over points, of which each operand sees some through an affine map.

An operation is a space of iteration, a map per operand, and a body for one point. Operands become views over the whole
space, and the body is computed on all points at once; dimensions that an output does not have are reduced: at once
where the body only adds, multiplies or compares, in order where it does more. Products that are summed up go to a
matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from tracemap.experiments.reference.elements import Array, NotEvaluated
from tracemap.experiments.reference.scalars import Outer, evaluate_block, operand_maps
from tracemap.ir.attributes import Linear
from tracemap.ir.parsing import Operation, Value

if TYPE_CHECKING:
    import numpy.typing as npt

_MOST_POINTS: Final = 1 << 22
"""Points that are computed at once; a space of more is parted."""
_MOST_STEPS: Final = 20_000
"""Steps of a reduction that is computed in order."""

_COMBINERS: Mapping[str, str] = {
    "arith.addf": "add",
    "arith.addi": "add",
    "arith.mulf": "multiply",
    "arith.muli": "multiply",
    "arith.maximumf": "maximum",
    "arith.minimumf": "minimum",
    "arith.maxnumf": "fmax",
    "arith.minnumf": "fmin",
    "arith.maxsi": "maximum",
    "arith.minsi": "minimum",
    "arith.andi": "bitwise_and",
    "arith.ori": "bitwise_or",
    "arith.xori": "bitwise_xor",
}
"""Operations that reduce in any order, and numpy's for the same."""
_WIDENING = {"arith.extf", "arith.extsi", "arith.sitofp"}
_WIDENING_TRUTH = {"arith.extui", "arith.uitofp"}
"""Conversions after which a number is what numpy takes it for: one with a sign, and a truth value as 0 or 1."""


@dataclass(frozen=True)
class _Space:
    """A part of the space of iteration: where it begins, its extents, and the operands' views over it.

    A view has an extent of 1 in dimensions that its operand does not see.
    """

    begins: tuple[int, ...]
    extents: tuple[int, ...]
    views: tuple[npt.NDArray[Any], ...]

    def part(self, dimension: int, begin: int, end: int) -> _Space:
        """The points from `begin` to `end` of a dimension."""

        def cut(view: npt.NDArray[Any]) -> npt.NDArray[Any]:
            if view.shape[dimension] == 1 and self.extents[dimension] != 1:
                return view
            place = [slice(None)] * view.ndim
            place[dimension] = slice(begin, end)
            return view[tuple(place)]

        begins, extents = list(self.begins), list(self.extents)
        begins[dimension] += begin
        extents[dimension] = end - begin
        return replace(self, begins=tuple(begins), extents=tuple(extents), views=tuple(map(cut, self.views)))

    def indices(self, dimension: int) -> Array:
        """The numbers of the points along a dimension, so that they broadcast over the space."""
        import numpy as np

        begin = self.begins[dimension]
        shape = [-1 if number == dimension else 1 for number in range(len(self.extents))]
        return np.arange(begin, begin + self.extents[dimension], dtype=np.int64).reshape(shape)

    def parts(self, dimension: int) -> Iterator[_Space]:
        """Parts along a dimension, small enough where they can be."""
        count = min(self.extents[dimension], -(-math.prod(self.extents) // _MOST_POINTS))
        edges = [self.extents[dimension] * number // count for number in range(count + 1)]
        for begin, end in pairwise(edges):
            yield self.part(dimension, begin, end)


@dataclass(frozen=True, slots=True)
class Reduction:
    """Numbers that go into one: how many, and of which type the one is."""

    length: int
    element: str


def evaluate_structured(
    operation: Operation, inputs: Sequence[Array], outputs: Sequence[Array], outer: Outer
) -> tuple[list[Array], list[Reduction]]:
    """The results of a structured operation, and what it reduces.

    Args:
        operation: any of the linalg dialect that has a body and maps.
        inputs: its inputs, tensors or numbers.
        outputs: what its outputs are before; they are not changed.
        outer: what the body takes from outside.

    Raises:
        NotEvaluated: there is no reference for it.
    """
    import numpy as np

    results = [np.array(each) for each in outputs]
    operands = [np.asarray(each) for each in (*inputs, *results)]
    maps = operand_maps(operation)
    extents = _extents(maps, operands)
    if 0 in extents:
        return results, []
    views = tuple(_view(each, along, extents) for each, along in zip(operands, maps, strict=True))
    space = _Space((0,) * len(extents), extents, views)
    body = _Body(operation, len(inputs), outer)
    seen = [{dimension for row in along for dimension in row.factors} for along in maps[len(inputs) :]]
    reduced = [tuple(sorted(set(range(len(extents))) - dimensions)) for dimensions in seen]
    if not _contract(body, space, reduced):
        _run(body, space, reduced)
    elements = [str(each.type) for each in body.accumulators]
    lengths = [math.prod(extents[axis] for axis in axes) for axes in reduced]
    return results, [
        Reduction(length, element) for length, element in zip(lengths, elements, strict=True) if length > 1
    ]


def _extents(maps: Sequence[Sequence[Linear]], operands: Sequence[Array]) -> tuple[int, ...]:
    """How far each dimension goes: as far as an operand that sees it by itself."""
    found: dict[int, int] = {}
    for along, operand in zip(maps, operands, strict=True):
        for row, extent in zip(along, operand.shape, strict=True):
            if row.is_dimension:
                found[next(iter(row.factors))] = extent
    count = 1 + max((dimension for along in maps for row in along for dimension in row.factors), default=-1)
    if any(number not in found for number in range(count)):
        raise NotEvaluated("a loop whose length no operand tells has no reference")
    return tuple(found[number] for number in range(count))


def _view(operand: npt.NDArray[Any], along: Sequence[Linear], extents: Sequence[int]) -> npt.NDArray[Any]:
    """An operand over the space: each dimension moves it by the sum of what it moves its axes."""
    import numpy as np

    steps = [0] * len(extents)
    for row, stride in zip(along, operand.strides, strict=True):
        for dimension, factor in row.factors.items():
            steps[dimension] += factor * stride
    last = [row.constant + sum(f * (extents[d] - 1) for d, f in row.factors.items()) for row in along]
    if any(row.constant < 0 or end >= size for row, end, size in zip(along, last, operand.shape, strict=True)):
        raise NotEvaluated("an operand that is read outside of its bounds has no reference")
    begin = operand[tuple(slice(row.constant, None) for row in along)] if along else operand
    seen = {dimension for row in along for dimension in row.factors}
    shape = [extent if number in seen else 1 for number, extent in enumerate(extents)]
    return np.lib.stride_tricks.as_strided(begin, shape, steps)


class _Body:
    """The body of a structured operation."""

    def __init__(self, operation: Operation, inputs: int, outer: Outer) -> None:
        self.block = operation.regions[0].blocks[0]
        operations = [each.operation for each in self.block.operations]
        self.operations, self.yielded = operations[:-1], list(operations[-1].operands)
        self.inputs = inputs
        self._outer = outer
        arguments = list(self.block.arguments)
        self.arguments, self.accumulators = arguments[:inputs], arguments[inputs:]

    def values(self, space: _Space, arguments: Sequence[Array], wanted: Sequence[Value]) -> list[Array]:
        """What values of the body are on all points of a space."""
        known: dict[Value, Array] = dict(zip(self.block.arguments, arguments, strict=True))
        return evaluate_block(self.operations, known, self._outer, wanted, space.indices)

    def reductions(self) -> list[tuple[str, Value]]:
        """Of each output the way in which it is reduced, and what is reduced; none where that cannot be told."""
        found: list[tuple[str, Value]] = []
        for value, accumulator in zip(self.yielded, self.accumulators, strict=True):
            owner = getattr(value.owner, "operation", value.owner)
            # Sums and orders of truth values are not those of numpy.
            combiner = _COMBINERS.get(getattr(owner, "name", ""), "") if str(value.type) != "i1" else ""
            uses = list(accumulator.uses)
            if not combiner or len(uses) != 1 or uses[0].owner.operation != owner:
                return []
            one, other = owner.operands
            found.append((combiner, other if one == accumulator else one))
        return found


def _run(body: _Body, space: _Space, reduced: Sequence[Sequence[int]]) -> None:
    """Compute all points, in parts; the outputs' views get the results."""
    sequential = [] if any(reduced) and body.reductions() else sorted({axis for axes in reduced for axis in axes})
    parallel = [number for number in range(len(space.extents)) if not any(number in axes for axes in reduced)]
    widest = max(parallel, key=lambda number: space.extents[number], default=None)
    spaces = [space] if widest is None else space.parts(widest)
    for part in spaces:
        if sequential:
            _in_order(body, part, sequential)
        elif any(reduced):
            _reduced(body, part, reduced)
        else:
            _write(body.values(part, part.views, body.yielded), part, body.inputs)


def _write(values: Sequence[Array], space: _Space, inputs: int) -> None:
    for view, value in zip(space.views[inputs:], values, strict=True):
        view[...] = value


def _reduced(body: _Body, space: _Space, reduced: Sequence[Sequence[int]]) -> None:
    """Compute what is reduced on all points, and reduce it at once."""
    import numpy as np

    ways = body.reductions()
    values = body.values(space, space.views, [value for _, value in ways])
    for (combiner, _), value, axes, view in zip(ways, values, reduced, space.views[body.inputs :], strict=True):
        combine: np.ufunc = getattr(np, combiner)
        # What does not depend on a dimension is still combined once for each of its points.
        whole = np.broadcast_to(value, space.extents)
        total = combine.reduce(whole, axis=tuple(axes), keepdims=True, dtype=view.dtype) if axes else whole
        with np.errstate(all="ignore"):
            view[...] = combine(view, total)


def _in_order(body: _Body, space: _Space, sequential: Sequence[int]) -> None:
    """Compute one step of a reduction after the other, as the loops would."""
    import numpy as np

    counts = [space.extents[axis] for axis in sequential]
    if math.prod(counts) > _MOST_STEPS:
        raise NotEvaluated(f"a reduction in order of {math.prod(counts):,} steps takes too long")
    for step in np.ndindex(*counts):
        point = space
        for axis, place in zip(sequential, step, strict=True):
            point = point.part(axis, place, place + 1)
        _write(body.values(point, point.views, body.yielded), point, body.inputs)


def _contract(body: _Body, space: _Space, reduced: Sequence[Sequence[int]]) -> bool:
    """Sums of products of two inputs, by a matrix product; whether it was one."""
    import numpy as np

    factors = _factors(body, reduced)
    if factors is None:
        return False
    views = [space.views[factor] for factor in factors]
    out = space.views[-1]
    if out.dtype.kind == "i" and max(view.dtype.itemsize for view in views) > 2:
        return False  # wide integers are not exact in double precision
    letters = [_seen(view, space.extents) for view in views]
    axes = [number for number in range(len(space.extents)) if number not in reduced[0]]
    unseen = set(axes) - set(letters[0]) - set(letters[1])
    if unseen or set(reduced[0]) - set(letters[0]) - set(letters[1]):
        return False
    operands = [view.reshape([view.shape[axis] for axis in seen]) for view, seen in zip(views, letters, strict=True)]
    left, right = (operand.astype(np.float64) for operand in operands)
    names = ["".join(chr(ord("a") + axis) for axis in each) for each in (*letters, axes)]
    total = np.einsum(f"{names[0]},{names[1]}->{names[2]}", left, right, optimize=True)
    shape = [1 if number in reduced[0] else extent for number, extent in enumerate(space.extents)]
    out[...] += total.reshape(shape).astype(out.dtype)
    return True


def _seen(view: npt.NDArray[Any], extents: Sequence[int]) -> list[int]:
    """The dimensions in which an operand's view is not the same everywhere."""
    return [number for number, size in enumerate(view.shape) if size == extents[number]]


def _factors(body: _Body, reduced: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """The numbers of the two inputs whose products an operation sums up; None where it does something else."""
    ways = body.reductions()
    if len(ways) != 1 or not reduced[0] or ways[0][0] != "add":
        return None
    owner = getattr(ways[0][1].owner, "operation", ways[0][1].owner)
    if getattr(owner, "name", "") not in ("arith.mulf", "arith.muli"):
        return None
    numbers = [_input_number(body, operand) for operand in owner.operands]
    return (numbers[0], numbers[1]) if min(numbers) >= 0 else None


def _input_number(body: _Body, value: Value) -> int:
    """The input that a value is, widened or not; -1 for none."""
    owner = getattr(value.owner, "operation", value.owner)
    name = getattr(owner, "name", "")
    if name in _WIDENING | _WIDENING_TRUTH:
        truth = str(owner.operands[0].type) == "i1"
        value = owner.operands[0] if truth == (name in _WIDENING_TRUTH) else value
    return next((number for number, argument in enumerate(body.arguments) if argument == value), -1)
