"""A program written op by op: each op is a line of StableHLO with its place, and what it computes, in numpy.

A line says where it is of, `loc("h0/attn/dot_general")`, as exporters of frameworks do. Parameters are external: the
program names them, and an archive holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]

NUMPY: Final = {"f32": "<f4", "f16": "<f2", "i8": "|i1", "i32": "<i4", "i1": "|b1"}
"""The types of elements, as numpy names them."""

_UNARY: Final[Mapping[str, Callable[[Array], Array]]] = {
    "exponential": np.exp,
    "tanh": np.tanh,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "negate": np.negative,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "cosine": np.cos,
    "sine": np.sin,
}
_BINARY: Final[Mapping[str, Callable[[Array, Array], Array]]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
}
_REDUCING: Final[Mapping[str, tuple[str, Callable[..., Array]]]] = {
    "add": ("0.0", np.sum),
    "maximum": ("0xFF800000", np.max),
}


@dataclass(frozen=True, slots=True)
class Value:
    """What an op yields: its name in the text, and its type."""

    name: str
    shape: Shape
    kind: str = "f32"

    def __str__(self) -> str:
        return self.name

    @property
    def type(self) -> str:
        """As MLIR writes it."""
        return tensor(self.shape, self.kind)


def tensor(shape: Shape, kind: str = "f32") -> str:
    """A type as MLIR writes it: `tensor<4x8xf32>`."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{kind}>"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that lies in an archive under its name; what its random numbers are around, and how far from it."""

    name: str
    shape: Shape
    kind: str
    mean: float
    deviation: float

    @property
    def bytes(self) -> int:
        """How much of the archive it takes."""
        return int(np.prod(self.shape)) * np.dtype(NUMPY[self.kind]).itemsize


@dataclass(frozen=True, slots=True)
class _Op:
    text: str
    operands: tuple[Value, ...]
    result: Value
    compute: Callable[..., Array]


@dataclass
class Function:
    """A function that is written op by op; `results` are set last."""

    name: str
    parameters: dict[str, Parameter]
    """Those of the module: all of its functions share them."""
    arguments: list[Value] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    results: tuple[Value, ...] = ()
    _ops: list[_Op] = field(default_factory=list)
    _loaded: dict[Value, str] = field(default_factory=dict)
    _scope: str = ""

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """What is written inside is of this scope, below those around it."""
        outer = self._scope
        self._scope = f"{outer}/{name}" if outer else name
        yield
        self._scope = outer

    def argument(self, shape: Shape, kind: str = "f32", *, below: int = 0) -> Value:
        """The next argument; whole numbers are from 0 to below `below`."""
        self.arguments.append(Value(f"%a{len(self.arguments)}", shape, kind))
        self.below.append(below)
        return self.arguments[-1]

    def parameter(
        self, name: str, shape: Shape, kind: str = "f32", *, mean: float = 0.0, deviation: float = 0.02
    ) -> Value:
        """A parameter of the module, whose name is that of the scope and its own."""
        full = f"{self._scope.replace('/', '.')}.{name}" if self._scope else name
        made = Parameter(full, shape, kind, mean, deviation)
        assert self.parameters.setdefault(full, made) == made, f"{full} is another elsewhere"
        value = self._op(f'util.global.load @"{full}" : {tensor(shape, kind)}', (), shape, kind, _never)
        self._loaded[value] = full
        return value

    def constant(self, value: str, shape: Shape = (), kind: str = "f32") -> Value:
        """The same number everywhere; `value` as MLIR writes it."""
        number = -np.inf if value == "0xFF800000" else float(value)
        text = f"stablehlo.constant dense<{value}> : {tensor(shape, kind)}"
        return self._op(text, (), shape, kind, lambda: np.full(shape, number, NUMPY[kind]))

    def listed(self, values: Sequence[float]) -> Value:
        """A constant vector."""
        text = f"stablehlo.constant dense<[{', '.join(f'{value:e}' for value in values)}]>"
        held = np.array([float(f"{value:e}") for value in values], NUMPY["f32"])
        return self._op(f"{text} : {tensor(held.shape)}", (), held.shape, "f32", lambda: held)

    def iota(self, shape: Shape, axis: int, kind: str = "i32") -> Value:
        """Numbers along an axis, from 0."""
        along = [-1 if at == axis else 1 for at in range(len(shape))]
        counted = np.broadcast_to(np.arange(shape[axis]).reshape(along), shape)
        text = f"stablehlo.iota dim = {axis} : {tensor(shape, kind)}"
        return self._op(text, (), shape, kind, lambda: counted.astype(NUMPY[kind]))

    def unary(self, name: str, of: Value) -> Value:
        """An op of one operand, by its name in StableHLO."""
        return self._op(f"stablehlo.{name} {of} : {of.type}", (of,), of.shape, of.kind, _UNARY[name])

    def binary(self, name: str, one: Value, other: Value) -> Value:
        """`other`: spread over the last axes of `one` where it has fewer."""
        if other.shape != one.shape:
            other = self.spread(other, one.shape, range(len(one.shape) - len(other.shape), len(one.shape)))
        return self._op(
            f"stablehlo.{name} {one}, {other} : {one.type}", (one, other), one.shape, one.kind, _BINARY[name]
        )

    def scaled(self, of: Value, by: float) -> Value:
        """Times a number."""
        return self.binary("multiply", of, self.constant(f"{by:e}", of.shape))

    def at_most(self, one: Value, other: Value) -> Value:
        """Where one is no more than the other."""
        text = f"stablehlo.compare LE, {one}, {other}, SIGNED : ({one.type}, {other.type}) -> {tensor(one.shape, 'i1')}"
        return self._op(text, (one, other), one.shape, "i1", np.less_equal)

    def select(self, which: Value, one: Value, other: Value) -> Value:
        """One where `which` is true, else the other."""
        text = f"stablehlo.select {which}, {one}, {other} : {which.type}, {one.type}"
        return self._op(text, (which, one, other), one.shape, one.kind, np.where)

    def converted(self, of: Value, kind: str) -> Value:
        """In another type; itself where it has that."""
        if of.kind == kind:
            return of
        text = f"stablehlo.convert {of} : ({of.type}) -> {tensor(of.shape, kind)}"
        return self._op(text, (of,), of.shape, kind, lambda x: x.astype(NUMPY[kind]))

    def spread(self, of: Value, shape: Shape, axes: Sequence[int]) -> Value:
        """`axes`: where in the result the axes of `of` are."""
        text = f"stablehlo.broadcast_in_dim {of}, dims = {list(axes)} : ({of.type}) -> {tensor(shape, of.kind)}"
        placed = [1] * len(shape)
        for axis, size in zip(axes, of.shape, strict=True):
            placed[axis] = size
        return self._op(text, (of,), shape, of.kind, lambda x: np.broadcast_to(x.reshape(placed), shape))

    def reduced(self, name: str, of: Value, axes: Sequence[int] = (-1,)) -> Value:
        """`add` or `maximum` along axes."""
        along = sorted(axis % len(of.shape) for axis in axes)
        start, function = _REDUCING[name]
        first = self.constant(start)
        shape = tuple(size for axis, size in enumerate(of.shape) if axis not in along)
        kinds = f"({of.type}, {first.type}) -> {tensor(shape)}"
        text = f"stablehlo.reduce({of} init: {first}) applies stablehlo.{name} across dimensions = {along} : {kinds}"
        return self._op(text, (of,), shape, of.kind, lambda x: function(x, axis=tuple(along)))

    def contracted(
        self, one: Value, other: Value, over: tuple[int, int], batch: tuple[int, int] | None = None
    ) -> Value:
        """The product over an axis of each; `batch`: an axis of each that goes along with the other."""
        batches = ((batch[0],), (batch[1],)) if batch else ((), ())
        free = [
            [size for axis, size in enumerate(value.shape) if axis != over[side] and axis not in batches[side]]
            for side, value in enumerate((one, other))
        ]
        shape = (*(one.shape[axis] for axis in batches[0]), *free[0], *free[1])
        batching = f"batching_dims = [{batch[0]}] x [{batch[1]}], " if batch else ""
        along = f"{batching}contracting_dims = [{over[0]}] x [{over[1]}]"
        text = f"stablehlo.dot_general {one}, {other}, {along} : ({one.type}, {other.type}) -> {tensor(shape)}"
        return self._op(text, (one, other), shape, "f32", lambda x, y: _product(x, y, over, batch))

    def reshaped(self, of: Value, *shape: int) -> Value:
        """In another shape."""
        text = f"stablehlo.reshape {of} : ({of.type}) -> {tensor(shape, of.kind)}"
        return self._op(text, (of,), shape, of.kind, lambda x: x.reshape(shape))

    def turned(self, of: Value, *order: int) -> Value:
        """With its axes in another order."""
        shape = tuple(of.shape[axis] for axis in order)
        text = f"stablehlo.transpose {of}, dims = {list(order)} : ({of.type}) -> {tensor(shape, of.kind)}"
        return self._op(text, (of,), shape, of.kind, lambda x: x.transpose(order))

    def part(self, of: Value, axis: int, begin: int, end: int) -> Value:
        """From `begin` to before `end` of an axis."""
        bounds = [(0, size) for size in of.shape]
        bounds[axis % len(bounds)] = (begin, end)
        shape = tuple(last - first for first, last in bounds)
        where = ", ".join(f"{first}:{last}" for first, last in bounds)
        text = f"stablehlo.slice {of} [{where}] : ({of.type}) -> {tensor(shape, of.kind)}"
        return self._op(text, (of,), shape, of.kind, lambda x: x[tuple(slice(*each) for each in bounds)])

    def joined(self, one: Value, other: Value, axis: int) -> Value:
        """One behind the other along an axis."""
        axis %= len(one.shape)
        shape = tuple(size + (other.shape[at] if at == axis else 0) for at, size in enumerate(one.shape))
        kinds = f"({one.type}, {other.type}) -> {tensor(shape, one.kind)}"
        text = f"stablehlo.concatenate {one}, {other}, dim = {axis} : {kinds}"
        return self._op(text, (one, other), shape, one.kind, lambda x, y: np.concatenate((x, y), axis))

    def rows(self, table: Value, numbers: Value) -> Value:
        """Those rows of a table that have these numbers."""
        shape = (*numbers.shape, table.shape[1])
        axis = len(numbers.shape)
        how = f"offset_dims = [{axis}], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {axis}"
        kinds = f"({table.type}, {numbers.type}) -> {tensor(shape, table.kind)}"
        sizes = f"slice_sizes = array<i64: 1, {table.shape[1]}>, indices_are_sorted = false"
        attributes = f"dimension_numbers = #stablehlo.gather<{how}>, {sizes}"
        text = f'"stablehlo.gather"({table}, {numbers}) <{{{attributes}}}> : {kinds}'
        return self._op(text, (table, numbers), shape, table.kind, lambda x, at: x[at])

    def updated(self, of: Value, part: Value, at: Sequence[Value]) -> Value:
        """`of` with a part replaced, which begins at these numbers."""
        where = ", ".join(map(str, at))
        kinds = ", ".join(each.type for each in (of, part, *at))
        text = f"stablehlo.dynamic_update_slice {of}, {part}, {where} : ({kinds}) -> {of.type}"
        return self._op(text, (of, part, *at), of.shape, of.kind, _updated)

    def convolved(self, image: Value, kernel: Value, stride: int = 1, pad: int = 0) -> Value:
        """`image`: [batch, height, width, channels]; `kernel`: [height, width, channels, filters]."""
        shape = (*_strided(image.shape, kernel.shape[0], stride, pad)[:3], kernel.shape[3])
        window = f"window = {{stride = [{stride}, {stride}], pad = [[{pad}, {pad}], [{pad}, {pad}]]}}"
        counts = "{batch_group_count = 1 : i64, feature_group_count = 1 : i64}"
        how = f"dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], {window} {counts}"
        kinds = f"({image.type}, {kernel.type}) -> {tensor(shape)}"
        text = f"stablehlo.convolution({image}, {kernel}) {how} : {kinds}"

        def compute(x: Array, weights: Array) -> Array:
            seen = _windows(x, weights.shape[0], stride, pad, 0.0)
            return np.tensordot(seen, weights, ((4, 5, 3), (0, 1, 2)))

        return self._op(text, (image, kernel), shape, image.kind, compute)

    def most_of_windows(self, image: Value, size: int, stride: int, pad: int) -> Value:
        """The maxima of windows over height and width."""
        first = self.constant("0xFF800000")
        shape = _strided(image.shape, size, stride, pad)
        how = (
            f"padding = dense<[[0, 0], [{pad}, {pad}], [{pad}, {pad}], [0, 0]]> : tensor<4x2xi64>, "
            f"window_dimensions = array<i64: 1, {size}, {size}, 1>, "
            f"window_strides = array<i64: 1, {stride}, {stride}, 1>"
        )
        body = (
            "^bb0(%one: tensor<f32>, %other: tensor<f32>): %most = stablehlo.maximum %one, %other : tensor<f32> "
            "stablehlo.return %most : tensor<f32>"
        )
        kinds = f"({image.type}, {first.type}) -> {tensor(shape)}"
        text = f'"stablehlo.reduce_window"({image}, {first}) <{{{how}}}> ({{ {body} }}) : {kinds}'
        return self._op(
            text, (image,), shape, image.kind, lambda x: _windows(x, size, stride, pad, -np.inf).max(axis=(4, 5))
        )

    def lines(self) -> Iterator[str]:
        """The function as text."""
        arguments = ", ".join(f"{each}: {each.type}" for each in self.arguments)
        kinds = ", ".join(each.type for each in self.results)
        yield f"  func.func @{self.name}({arguments}) -> ({kinds}) {{"
        for op in self._ops:
            yield op.text
        yield f"    return {', '.join(map(str, self.results))} : {kinds}"
        yield "  }"

    def evaluated(self, inputs: Sequence[Array], parameters: Mapping[str, Array]) -> list[Array]:
        """What numpy computes; a value is let go of behind its last use."""
        values: dict[Value, Array] = dict(zip(self.arguments, inputs, strict=True))
        last = {operand: number for number, op in enumerate(self._ops) for operand in op.operands}
        for number, op in enumerate(self._ops):
            name = self._loaded.get(op.result)
            made = parameters[name] if name is not None else op.compute(*(values[each] for each in op.operands))
            assert made.shape == op.result.shape, op.text
            values[op.result] = made.astype(NUMPY[op.result.kind], copy=False)
            for each in {operand for operand in op.operands if last[operand] == number} - {*self.results}:
                del values[each]
        return [values[each] for each in self.results]

    def _op(
        self, text: str, operands: tuple[Value, ...], shape: Shape, kind: str, compute: Callable[..., Array]
    ) -> Value:
        result = Value(f"%v{len(self._ops)}", shape, kind)
        name = text.split(maxsplit=1)[0].split("(", maxsplit=1)[0].strip('"').removeprefix("stablehlo.")
        place = f"{self._scope}/{name}" if self._scope else name
        self._ops.append(_Op(f'    {result} = {text} loc("{place}")', operands, result, compute))
        return result


@dataclass
class Module:
    """Functions that share parameters."""

    name: str
    functions: dict[str, Function] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def function(self, name: str) -> Function:
        """A further function."""
        self.functions[name] = Function(name, self.parameters)
        return self.functions[name]

    @property
    def text(self) -> str:
        """The module as MLIR."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"module @{self.name} {{"
        for each in self.parameters.values():
            where = f'#flow.parameter.named<"model"::"{each.name}">'
            yield f'  util.global private @"{each.name}" = {where} : {tensor(each.shape, each.kind)}'
        for function in self.functions.values():
            yield from function.lines()
        yield "}"


def _never(*_: Array) -> Array:
    raise AssertionError("parameters are loaded, not computed")


def _product(one: Array, other: Array, over: tuple[int, int], batch: tuple[int, int] | None) -> Array:
    if batch is None:
        return np.tensordot(one, other, over)
    left, right = np.moveaxis(one, batch[0], 0), np.moveaxis(other, batch[1], 0)
    # Where the contracted axis is once that of the batch went to the front.
    axes = [axis + 1 if axis < along else axis for axis, along in zip(over, batch, strict=True)]
    return np.stack([np.tensordot(x, y, (axes[0] - 1, axes[1] - 1)) for x, y in zip(left, right, strict=True)])


def _updated(of: Array, part: Array, *at: Array) -> Array:
    made = of.copy()
    # As StableHLO has it: a part that would reach beyond the end begins earlier.
    begins = [min(max(int(begin), 0), size - long) for begin, size, long in zip(at, of.shape, part.shape, strict=True)]
    made[tuple(slice(begin, begin + long) for begin, long in zip(begins, part.shape, strict=True))] = part
    return made


def _strided(shape: Shape, size: int, stride: int, pad: int) -> Shape:
    height, width = ((each + 2 * pad - size) // stride + 1 for each in shape[1:3])
    return (shape[0], height, width, shape[3])


def _windows(image: Array, size: int, stride: int, pad: int, filling: float) -> Array:
    """[batch, height, width, channels, window's height, window's width]."""
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=filling)
    return sliding_window_view(padded, (size, size), (1, 2))[:, ::stride, ::stride]
