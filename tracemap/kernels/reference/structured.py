"""Reference for structured operations (the linalg dialect).

An operation has an iteration space, an affine map per operand, and a body for a point. Operands become views over the
whole space, and the body is computed on all points at once. Dimensions that an output lacks are reduced. If the body
only adds, multiplies or compares, it reduces all points at once, otherwise in loop order. Sums of products are computed
as matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracemap.ir.attributes import Linear
from tracemap.ir.parsing import Operation, Value, producer_of
from tracemap.kernels.reference.elements import Array, NotEvaluated
from tracemap.kernels.reference.scalars import ARITHMETIC, Body, Outer, Watch, operand_maps

_MAX_POINTS: Final = 1 << 22
"""Maximum of points computed at once; larger spaces are split."""
_MAX_STEPS: Final = 20_000
"""Maximum of steps of a reduction in loop order."""

_COMBINERS: Final = {
    f"arith.{name}": ARITHMETIC[f"arith.{name}"]
    for name in "addf addi mulf muli maximumf minimumf maxnumf minnumf maxsi minsi andi ori xori".split()
}
"""Operations that reduce in any order, and the numpy functions that do the same."""
_WIDENING = {"arith.extf", "arith.extsi", "arith.sitofp"}
_WIDENING_BOOLEAN = {"arith.extui", "arith.uitofp"}
"""Widening conversions that numpy performs the same way: of signed numbers, and of booleans (to 0 or 1)."""


@dataclass(frozen=True)
class _Space:
    """A part of the iteration space: its first point, its extents, and the operands' views over it.

    A view has extent 1 in dimensions that its operand does not depend on.
    """

    begins: tuple[int, ...]
    extents: tuple[int, ...]
    views: tuple[npt.NDArray[Any], ...]

    def part(self, dimension: int, begin: int, end: int) -> _Space:
        """The points from `begin` to `end` of a dimension."""

        def cut(view: npt.NDArray[Any]) -> npt.NDArray[Any]:
            if view.shape[dimension] == 1 and self.extents[dimension] != 1:
                return view
            region = [slice(None)] * view.ndim
            region[dimension] = slice(begin, end)
            return view[tuple(region)]

        begins, extents = list(self.begins), list(self.extents)
        begins[dimension] += begin
        extents[dimension] = end - begin
        return replace(self, begins=tuple(begins), extents=tuple(extents), views=tuple(map(cut, self.views)))

    def indices(self, dimension: int) -> Array:
        """The indices of the points along a dimension, broadcastable over the space."""
        begin = self.begins[dimension]
        shape = [-1 if number == dimension else 1 for number in range(len(self.extents))]
        return np.arange(begin, begin + self.extents[dimension], dtype=np.int64).reshape(shape)

    def parts(self, dimension: int) -> Iterator[_Space]:
        """Split along a dimension into parts of at most `_MAX_POINTS`, if possible."""
        count = min(self.extents[dimension], -(-math.prod(self.extents) // _MAX_POINTS))
        edges = [self.extents[dimension] * number // count for number in range(count + 1)]
        for begin, end in pairwise(edges):
            yield self.part(dimension, begin, end)


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction: the number of reduced elements, and the type of the accumulator."""

    length: int
    element: str


def evaluate_structured(
    operation: Operation,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    outer: Outer,
    watch: Watch | None = None,
) -> tuple[list[Array], list[Reduction]]:
    """The results of a structured operation, and its reductions.

    Args:
        operation: an operation of the linalg dialect with a body and maps.
        inputs: its inputs, tensors or numbers.
        outputs: initial values of its outputs; not modified.
        outer: evaluates values from outside the body.
        watch: sees the operations of the body, or the whole operation if it is computed as a matrix product.

    Raises:
        NotEvaluated: the operation is not supported.
    """
    results = [np.array(value) for value in outputs]
    operands = [np.asarray(operand) for operand in (*inputs, *results)]
    maps = operand_maps(operation)
    extents = _extents(maps, operands)
    if 0 in extents:
        return results, []
    views = tuple(_view(operand, rows, extents) for operand, rows in zip(operands, maps, strict=True))
    space = _Space((0,) * len(extents), extents, views)
    body = _Body(operation, len(inputs), outer, watch)
    output_dimensions = [{dimension for row in rows for dimension in row.factors} for rows in maps[len(inputs) :]]
    reduced = [tuple(sorted(set(range(len(extents))) - dimensions)) for dimensions in output_dimensions]
    if not _contract(body, space, reduced):
        _run(body, space, reduced)
    elements = [str(accumulator.type) for accumulator in body.accumulators]
    lengths = [math.prod(extents[axis] for axis in axes) for axes in reduced]
    return results, [
        Reduction(length, element) for length, element in zip(lengths, elements, strict=True) if length > 1
    ]


def _extents(maps: Sequence[Sequence[Linear]], operands: Sequence[Array]) -> tuple[int, ...]:
    """Loop extents: the extent of an operand's axis that is indexed by this loop alone."""
    by_dimension: dict[int, int] = {}
    for rows, operand in zip(maps, operands, strict=True):
        for row, extent in zip(rows, operand.shape, strict=True):
            if row.is_dimension:
                by_dimension[next(iter(row.factors))] = extent
    count = 1 + max((dimension for rows in maps for row in rows for dimension in row.factors), default=-1)
    if any(number not in by_dimension for number in range(count)):
        raise NotEvaluated("a loop whose extent no operand determines has no reference")
    return tuple(by_dimension[number] for number in range(count))


def _view(operand: npt.NDArray[Any], rows: Sequence[Linear], extents: Sequence[int]) -> npt.NDArray[Any]:
    """A strided view of an operand over the iteration space; its stride in a loop sums over the operand's axes."""
    steps = [0] * len(extents)
    for row, stride in zip(rows, operand.strides, strict=True):
        for dimension, factor in row.factors.items():
            steps[dimension] += factor * stride
    last = [row.constant + sum(f * (extents[d] - 1) for d, f in row.factors.items()) for row in rows]
    if any(row.constant < 0 or end >= size for row, end, size in zip(rows, last, operand.shape, strict=True)):
        raise NotEvaluated("an operand that is accessed out of bounds has no reference")
    begin = operand[tuple(slice(row.constant, None) for row in rows)] if rows else operand
    used = {dimension for row in rows for dimension in row.factors}
    shape = [extent if number in used else 1 for number, extent in enumerate(extents)]
    return np.lib.stride_tricks.as_strided(begin, shape, steps)


class _Body(Body):
    """The body of an operation of the linalg dialect, with this number of inputs."""

    def __init__(self, operation: Operation, inputs: int, outer: Outer, watch: Watch | None) -> None:
        super().__init__(operation, outer, watch)
        self.inputs, self.accumulators = inputs, self.arguments[inputs:]

    def over(self, space: _Space, results_of: Sequence[Value] | None = None) -> list[Array]:
        """Evaluate values on all points of a space."""
        return self.values(space.views, results_of, space.indices)

    def reductions(self) -> list[tuple[Any, Value]]:
        """Per output, the numpy combiner and the value it reduces; empty if the body does more than reduce."""
        combined: list[tuple[Any, Value]] = []
        for value, accumulator in zip(self.yielded, self.accumulators, strict=True):
            owner = producer_of(value)
            # numpy sums and orders booleans differently.
            combine = _COMBINERS.get(owner.name) if owner is not None and str(value.type) != "i1" else None
            uses = list(accumulator.uses)
            if owner is None or combine is None or len(uses) != 1 or uses[0].owner.operation != owner:
                return []
            left, right = owner.operands
            combined.append((combine, right if left == accumulator else left))
        return combined


def _run(body: _Body, space: _Space, reduced: Sequence[Sequence[int]]) -> None:
    """Compute all points, in parts, and write the results to the outputs' views."""
    sequential = [] if any(reduced) and body.reductions() else sorted({axis for axes in reduced for axis in axes})
    parallel = [number for number in range(len(space.extents)) if not any(number in axes for axes in reduced)]
    widest = max(parallel, key=lambda number: space.extents[number], default=None)
    spaces = [space] if widest is None else space.parts(widest)
    for part in spaces:
        if sequential:
            _reduce_in_order(body, part, sequential)
        elif any(reduced):
            _reduce_at_once(body, part, reduced)
        else:
            _write(body.over(part), part, body.inputs)


def _write(values: Sequence[Array], space: _Space, inputs: int) -> None:
    for view, value in zip(space.views[inputs:], values, strict=True):
        view[...] = value


def _reduce_at_once(body: _Body, space: _Space, reduced: Sequence[Sequence[int]]) -> None:
    """Compute the reduced values on all points, then reduce with numpy."""
    reductions = body.reductions()
    values = body.over(space, [value for _, value in reductions])
    elements = [str(accumulator.type) for accumulator in body.accumulators]
    for (combine, _), value, axes, view, element in zip(
        reductions, values, reduced, space.views[body.inputs :], elements, strict=True
    ):
        # A value that does not depend on a reduced dimension is still combined once per point.
        whole = np.broadcast_to(value, space.extents)
        total = combine.reduce(whole, axis=tuple(axes), keepdims=True, dtype=view.dtype) if axes else whole
        if body.watch is not None and axes and combine is np.add:
            terms = math.prod(space.extents[axis] for axis in axes)
            sizes = partial(np.add.reduce, np.abs(whole), axis=tuple(axes), keepdims=True)
            total = body.watch.summed(total, sizes, terms, element)
        with np.errstate(all="ignore"):
            view[...] = combine(view, total)


def _reduce_in_order(body: _Body, space: _Space, sequential: Sequence[int]) -> None:
    """Compute the steps of a reduction in loop order."""
    counts = [space.extents[axis] for axis in sequential]
    if math.prod(counts) > _MAX_STEPS:
        raise NotEvaluated(f"a reduction in loop order with {math.prod(counts):,} steps takes too long")
    for step in np.ndindex(*counts):
        point = space
        for axis, index in zip(sequential, step, strict=True):
            point = point.part(axis, index, index + 1)
        _write(body.over(point), point, body.inputs)


def _contract(body: _Body, space: _Space, reduced: Sequence[Sequence[int]]) -> bool:
    """Compute a sum of products of two inputs as a matrix product; returns False if the body is something else."""
    factors = _factors(body, reduced)
    if factors is None:
        return False
    views = [space.views[factor] for factor in factors]
    out = space.views[-1]
    if out.dtype.kind == "i" and max(view.dtype.itemsize for view in views) > 2:
        return False  # wide integers are not exact in double precision
    dimensions = [[axis for axis, size in enumerate(view.shape) if size == space.extents[axis]] for view in views]
    axes = [number for number in range(len(space.extents)) if number not in reduced[0]]
    unused = set(axes) - set(dimensions[0]) - set(dimensions[1])
    if unused or set(reduced[0]) - set(dimensions[0]) - set(dimensions[1]):
        return False
    operands = [view.reshape([view.shape[axis] for axis in used]) for view, used in zip(views, dimensions, strict=True)]
    left, right = (operand.astype(np.float64) for operand in operands)
    subscripts = ["".join(chr(ord("a") + axis) for axis in used) for used in (*dimensions, axes)]
    formula = f"{subscripts[0]},{subscripts[1]}->{subscripts[2]}"
    total = np.einsum(formula, left, right, optimize=True)
    if body.watch is not None:
        terms = math.prod(space.extents[axis] for axis in reduced[0])
        sizes = partial(np.einsum, formula, np.abs(left), np.abs(right), optimize=True)
        total = body.watch.summed(total, sizes, terms, str(body.accumulators[0].type))
    shape = [1 if number in reduced[0] else extent for number, extent in enumerate(space.extents)]
    out[...] += total.reshape(shape).astype(out.dtype)
    return True


def _factors(body: _Body, reduced: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """Indices of the two inputs whose products an operation sums; None if it does something else."""
    reductions = body.reductions()
    if len(reductions) != 1 or not reduced[0] or reductions[0][0] is not np.add:
        return None
    owner = producer_of(reductions[0][1])
    if owner is None or owner.name not in ("arith.mulf", "arith.muli"):
        return None
    left, right = (_input_number(body, operand) for operand in owner.operands)
    return (left, right) if min(left, right) >= 0 else None


def _input_number(body: _Body, value: Value) -> int:
    """Index of the input that a value equals, possibly after widening; -1 for none."""
    owner = producer_of(value)
    if owner is not None and owner.name in _WIDENING | _WIDENING_BOOLEAN:
        boolean = str(owner.operands[0].type) == "i1"
        value = owner.operands[0] if boolean == (owner.name in _WIDENING_BOOLEAN) else value
    return next((number for number, argument in enumerate(body.arguments[: body.inputs]) if argument == value), -1)
