"""Writes small models, in StableHLO or in linalg, whose parts are taken out or repeated by name.

A part is one op or several. A model is written with a count for each part: 0 takes it out, 1 writes it, more repeats
it. Each repetition reads arrays of its own where the part reads any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

Shape = tuple[int, ...]

UNARY: Final = {
    "tanh": ("tanh", "math.tanh"),
    "exp": ("exponential", "math.exp"),
    "expm1": ("exponential_minus_one", "math.expm1"),
    "log": ("log", "math.log"),
    "log1p": ("log_plus_one", "math.log1p"),
    "sqrt": ("sqrt", "math.sqrt"),
    "rsqrt": ("rsqrt", "math.rsqrt"),
    "sine": ("sine", "math.sin"),
    "cosine": ("cosine", "math.cos"),
    "cbrt": ("cbrt", "math.cbrt"),
    "negate": ("negate", "arith.negf"),
    "floor": ("floor", "math.floor"),
    "abs": ("abs", "math.absf"),
}
BINARY: Final = {
    "add": ("add", "arith.addf", "arith.addi"),
    "sub": ("subtract", "arith.subf", "arith.subi"),
    "mul": ("multiply", "arith.mulf", "arith.muli"),
    "div": ("divide", "arith.divf", "arith.divsi"),
    "rem": ("remainder", "arith.remf", "arith.remsi"),
    "max": ("maximum", "arith.maximumf", "arith.maxsi"),
    "min": ("minimum", "arith.minimumf", "arith.minsi"),
    "pow": ("power", "math.powf", "math.ipowi"),
    "and": ("and", "", "arith.andi"),
    "or": ("or", "", "arith.ori"),
    "xor": ("xor", "", "arith.xori"),
    "shl": ("shift_left", "", "arith.shli"),
    "shr": ("shift_right_arithmetic", "", "arith.shrsi"),
}
BITS: Final = {"f64": 32, "f32": 32, "i32": 32, "f16": 16, "bf16": 16, "i8": 8, "i1": 8, "i4": 4} | dict.fromkeys(
    ("f8E4M3FN", "f8E5M2"), 8
)
"""Bits of an element in memory; a plain build computes f64 in single precision."""


def tensor(shape: Shape, dtype: str) -> str:
    """The MLIR type."""
    return f"tensor<{'x'.join([*map(str, shape), dtype])}>"


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the model."""

    name: str
    shape: Shape
    dtype: str

    @property
    def type(self) -> str:
        """The MLIR type."""
        return tensor(self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the model; `below` and `order` describe an array of indices, all other arrays are constant."""

    shape: Shape
    dtype: str
    below: int = 0
    shuffled: bool = False

    @property
    def text(self) -> str:
        """The shape and type as IREE's flags spell it."""
        return "x".join([*map(str, self.shape), {"i1": "i8", "f64": "f32"}.get(self.dtype, self.dtype)])

    @property
    def fill(self) -> str:
        """The value of all elements, where these are no indices."""
        return "0.5" if "f" in self.dtype else "11" if self.dtype == "i4" else "1"


@dataclass(frozen=True, slots=True)
class Model:
    """A model's text, its arguments, and the lines of each part."""

    text: str
    arguments: tuple[Argument, ...]
    lines: Mapping[str, tuple[int, ...]]


@dataclass
class Sketch:
    """A model being written; `counts` names the parts that are not written exactly once."""

    dialect: str
    counts: Mapping[str, int] = field(default_factory=dict)
    _body: list[str] = field(default_factory=list)
    _arguments: list[Argument] = field(default_factory=list)
    _lines: dict[str, list[int]] = field(default_factory=dict)
    _last: int = 0
    _used: bool = False

    # ---- parts

    def count(self, part: str) -> int:
        """The number of times that a part is written."""
        return self.counts.get(part, 1)

    def argument(self, shape: Shape, dtype: str = "f32", *, below: int = 0, shuffled: bool = False) -> Value:
        """One more argument."""
        self._arguments.append(Argument(shape, dtype, below, shuffled))
        return Value(f"%x{len(self._arguments) - 1}", shape, dtype)

    def unary(self, function: str, value: Value, part: str = "") -> Value:
        """A function of each element, as often as the part is to be written."""
        for _ in range(self.count(part)):
            value = self._unary(function, value, part)
        return value

    def binary(self, function: str, value: Value, part: str = "", shape: Shape = (), axis: int = 0) -> Value:
        """A function of each element and that of another argument, which is broadcast along `axis` if smaller."""
        for _ in range(self.count(part)):
            other = self.argument(shape or value.shape, value.dtype)
            value = self.pair(function, value, self.spread(other, value.shape, axis, part), part)
        return value

    # ---- ops, each written once

    def _unary(self, function: str, value: Value, part: str) -> Value:
        stablehlo, linalg = UNARY[function]
        if self.dialect == "stablehlo":
            return self._op(f"stablehlo.{stablehlo} {value.name} : {value.type}", value.shape, value.dtype, part)
        name = linalg if "f" in value.dtype else "math.absi"
        return self._elementwise([f"%v = {name} %a0 : {value.dtype}"], [value], value.dtype, part)

    def pair(self, function: str, one: Value, other: Value, part: str = "") -> Value:
        """A function of two arrays, element by element."""
        stablehlo, of_floats, of_integers = BINARY[function]
        if self.dialect == "stablehlo":
            text = f"stablehlo.{stablehlo} {one.name}, {other.name} : {one.type}"
            return self._op(text, one.shape, one.dtype, part)
        name = of_floats if "f" in one.dtype else of_integers
        return self._elementwise([f"%v = {name} %a0, %a1 : {one.dtype}"], [one, other], one.dtype, part)

    def spread(self, value: Value, shape: Shape, axis: int, part: str = "") -> Value:
        """A vector made a matrix; `axis` is the axis along which the vector lies."""
        if value.shape == shape:
            return value
        if self.dialect == "stablehlo":
            kind = f"({value.type}) -> {tensor(shape, value.dtype)}"
            text = f"stablehlo.broadcast_in_dim {value.name}, dims = [{axis}] : {kind}"
            return self._op(text, shape, value.dtype, part)
        other = ", ".join(str(each) for each in range(len(shape)) if each != axis)
        return self._into(
            f"linalg.broadcast ins({value.name} : {value.type})", f" dimensions = [{other}]", shape, value.dtype, part
        )

    def convert(self, value: Value, dtype: str, part: str = "") -> Value:
        """The same elements in another type."""
        if value.dtype == dtype:
            return value
        if self.dialect == "stablehlo":
            text = f"stablehlo.convert {value.name} : ({value.type}) -> {tensor(value.shape, dtype)}"
            return self._op(text, value.shape, dtype, part)
        body = [f"%v = {_conversion(value.dtype, dtype)} %a0 : {value.dtype} to {dtype}"]
        return self._elementwise(body, [value], dtype, part)

    def compare(self, direction: str, one: Value, other: Value, part: str = "") -> Value:
        """A mask: where `one` is greater (GT), less (LT) or the like than `other`."""
        if self.dialect == "stablehlo":
            kind = f"({one.type}, {other.type}) -> {tensor(one.shape, 'i1')}"
            text = f"stablehlo.compare {direction}, {one.name}, {other.name} : {kind}"
            return self._op(text, one.shape, "i1", part)
        floats = "f" in one.dtype
        name = f"arith.cmpf o{direction.lower()}" if floats else f"arith.cmpi s{direction.lower()}"
        return self._elementwise([f"%v = {name}, %a0, %a1 : {one.dtype}"], [one, other], "i1", part)

    def select(self, mask: Value, one: Value, other: Value, part: str = "") -> Value:
        """Elements of `one` where the mask is set, else of `other`."""
        if self.dialect == "stablehlo":
            text = f"stablehlo.select {mask.name}, {one.name}, {other.name} : {mask.type}, {one.type}"
            return self._op(text, one.shape, one.dtype, part)
        body = [f"%v = arith.select %a0, %a1, %a2 : {one.dtype}"]
        return self._elementwise(body, [mask, one, other], one.dtype, part)

    def reduce(self, value: Value, axis: int, part: str = "", function: str = "add") -> Value:
        """The sums (or maxima) along an axis."""
        start = {"add": "0.0", "max": "0xFF800000"}[function] if "f" in value.dtype else "0"
        shape = tuple(size for each, size in enumerate(value.shape) if each != axis)
        if self.dialect == "stablehlo":
            name = BINARY[function][0]
            zero = self.constant(start, (), value.dtype)
            kind = f"({value.type}, {zero.type}) -> {tensor(shape, value.dtype)}"
            how = f"applies stablehlo.{name} across dimensions = [{axis}]"
            return self._op(
                f"stablehlo.reduce({value.name} init: {zero.name}) {how} : {kind}", shape, value.dtype, part
            )
        name = BINARY[function][1 if "f" in value.dtype else 2]
        filled = self._filled(start, shape, value.dtype)
        body = [f"%v = {name} %a0, %out : {value.dtype}"]
        names = ", ".join(f"d{each}" for each in range(len(value.shape)))
        kept = ", ".join(f"d{each}" for each in range(len(value.shape)) if each != axis)
        maps = f"affine_map<({names}) -> ({names})>, affine_map<({names}) -> ({kept})>"
        kinds = ["reduction" if each == axis else "parallel" for each in range(len(value.shape))]
        return self._generic(body, [value], maps, kinds, filled, part)

    def transpose(self, value: Value, part: str = "") -> Value:
        """Rows become columns."""
        shape = value.shape[::-1]
        if self.dialect == "stablehlo":
            kind = f"({value.type}) -> {tensor(shape, value.dtype)}"
            return self._op(f"stablehlo.transpose {value.name}, dims = [1, 0] : {kind}", shape, value.dtype, part)
        return self._into(
            f"linalg.transpose ins({value.name} : {value.type})", " permutation = [1, 0]", shape, value.dtype, part
        )

    def slice(self, value: Value, starts: Shape, sizes: Shape, steps: Shape, part: str = "") -> Value:
        """Some rows and columns."""
        kind = tensor(sizes, value.dtype)
        if self.dialect == "stablehlo":
            ends = [start + (size - 1) * step + 1 for start, size, step in zip(starts, sizes, steps, strict=True)]
            cut = ", ".join(f"{a}:{b}:{c}" for a, b, c in zip(starts, ends, steps, strict=True))
            text = f"stablehlo.slice {value.name} [{cut}] : ({value.type}) -> {kind}"
            return self._op(text, sizes, value.dtype, part)
        places = " ".join(f"[{', '.join(map(str, each))}]" for each in (starts, sizes, steps))
        text = f"tensor.extract_slice {value.name}{places} : {value.type} to {kind}"
        return self._op(text, sizes, value.dtype, part)

    def reverse(self, value: Value, axis: int, part: str = "") -> Value:
        """The elements along an axis from last to first; StableHLO only."""
        return self._op(
            f"stablehlo.reverse {value.name}, dims = [{axis}] : {value.type}", value.shape, value.dtype, part
        )

    def concatenate(self, one: Value, other: Value, axis: int, part: str = "") -> Value:
        """One array after the other."""
        shape = tuple(
            a + b if each == axis else a for each, (a, b) in enumerate(zip(one.shape, other.shape, strict=True))
        )
        kind = f"({one.type}, {other.type}) -> {tensor(shape, one.dtype)}"
        if self.dialect == "stablehlo":
            text = f"stablehlo.concatenate {one.name}, {other.name}, dim = {axis} : {kind}"
        else:
            text = f"tensor.concat dim({axis}) {one.name}, {other.name} : {kind}"
        return self._op(text, shape, one.dtype, part)

    def pad(self, value: Value, low: Shape, high: Shape, part: str = "") -> Value:
        """Zeros around."""
        shape = tuple(a + b + c for a, b, c in zip(low, value.shape, high, strict=True))
        if self.dialect == "stablehlo":
            zero = self.constant("0.0", (), value.dtype)
            amounts = f"low = {list(low)}, high = {list(high)}, interior = {[0] * len(low)}"
            kind = f"({value.type}, {zero.type}) -> {tensor(shape, value.dtype)}"
            return self._op(f"stablehlo.pad {value.name}, {zero.name}, {amounts} : {kind}", shape, value.dtype, part)
        zero = self._op(f"arith.constant 0.0 : {value.dtype}", (), value.dtype, "")
        names = ", ".join(f"%i{each}: index" for each in range(len(shape)))
        made = self._op(f"tensor.pad {value.name} low{list(low)} high{list(high)} {{", shape, value.dtype, part)
        self._body += [f"  ^bb0({names}):", f"    tensor.yield {zero.name} : {value.dtype}"]
        self._body.append(f"  }} : {value.type} to {made.type}")
        return made

    def iota(self, shape: Shape, axis: int, dtype: str, part: str = "") -> Value:
        """The numbers of rows or columns."""
        if self.dialect == "stablehlo":
            return self._op(f"stablehlo.iota dim = {axis} : {tensor(shape, dtype)}", shape, dtype, part)
        body = [f"%i = linalg.index {axis} : index", "%n = arith.index_cast %i : index to i32"]
        body.append("%v = arith.sitofp %n : i32 to f32" if dtype == "f32" else "%v = arith.addi %n, %n : i32")
        return self._elementwise(body, [], dtype, part, shape)

    def dot(self, one: Value, other: Value, part: str = "", dtype: str = "f32") -> Value:
        """The product of two matrices."""
        shape = one.shape[0], other.shape[1]
        if self.dialect == "stablehlo":
            kind = f"({one.type}, {other.type}) -> {tensor(shape, dtype)}"
            return self._op(f"stablehlo.dot {one.name}, {other.name} : {kind}", shape, dtype, part)
        filled = self._filled("0.0", shape, dtype)
        given = f"ins({one.name}, {other.name} : {one.type}, {other.type})"
        text = f"linalg.matmul {given} outs({filled.name} : {filled.type}) -> {filled.type}"
        return self._op(text, shape, dtype, part)

    def convolution(self, image: Value, window: Value, part: str = "") -> Value:
        """A convolution without padding: batch, rows, columns, features by rows, columns, features, features."""
        rows, columns = (a - b + 1 for a, b in zip(image.shape[1:3], window.shape[:2], strict=True))
        shape = (image.shape[0], rows, columns, window.shape[3])
        if self.dialect == "stablehlo":
            how = "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1]}"
            counts = "{batch_group_count = 1 : i64, feature_group_count = 1 : i64}"
            kind = f"({image.type}, {window.type}) -> {tensor(shape, image.dtype)}"
            text = f"stablehlo.convolution({image.name}, {window.name}) {how} {counts} : {kind}"
            return self._op(text, shape, image.dtype, part)
        filled = self._filled("0.0", shape, image.dtype)
        given = f"ins({image.name}, {window.name} : {image.type}, {window.type})"
        text = f"linalg.conv_2d_nhwc_hwcf {given} outs({filled.name} : {filled.type}) -> {filled.type}"
        return self._op(text, shape, image.dtype, part)

    def gather(self, table: Value, indices: Value, part: str = "") -> Value:
        """The elements of a vector that a matrix of indices names."""
        if self.dialect == "stablehlo":
            kind = f"({table.type}, {indices.type}) -> {tensor(indices.shape, table.dtype)}"
            numbers = f"collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {len(indices.shape)}"
            how = f"dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = array<i64: 1>"
            text = f'"stablehlo.gather"({table.name}, {indices.name}) <{{{how}, indices_are_sorted = false}}> : {kind}'
            return self._op(text, indices.shape, table.dtype, part)
        body = ["%p = arith.index_cast %a0 : i32 to index", f"%v = tensor.extract {table.name}[%p] : {table.type}"]
        return self._elementwise(body, [indices], table.dtype, part)

    def constant(self, value: str, shape: Shape, dtype: str) -> Value:
        """An array of equal elements."""
        kind = tensor(shape, dtype)
        name = "stablehlo.constant" if self.dialect == "stablehlo" else "arith.constant"
        return self._op(f"{name} dense<{value}> : {kind}", shape, dtype, "")

    # ---- writing

    def model(self, *results: Value) -> Model:
        """The model, which returns these values."""
        given = [each if not each.name.startswith("%x") else self._unary("negate", each, "") for each in results]
        arguments = ", ".join(
            f"%x{number}: {tensor(each.shape, each.dtype)}" for number, each in enumerate(self._arguments)
        )
        types = ", ".join(each.type for each in given)
        head = f"func.func @main({arguments}) -> ({types}) {{"
        foot = f"  return {', '.join(each.name for each in given)} : {types}"
        lines = {part: tuple(lines) for part, lines in self._lines.items()}
        return Model("\n".join([head, *self._body, foot, "}"]) + "\n", tuple(self._arguments), lines)

    def _op(self, text: str, shape: Shape, dtype: str, part: str) -> Value:
        self._last += 1
        self._body.append(f"  %v{self._last} = {text}")
        self._lines.setdefault(part, []).append(len(self._body) + 1)
        return Value(f"%v{self._last}", shape, dtype)

    def _empty(self, shape: Shape, dtype: str) -> Value:
        return self._op(f"tensor.empty() : {tensor(shape, dtype)}", shape, dtype, "")

    def _filled(self, start: str, shape: Shape, dtype: str) -> Value:
        zero = self._op(f"arith.constant {start} : {dtype}", (), dtype, "")
        empty = self._empty(shape, dtype)
        text = f"linalg.fill ins({zero.name} : {dtype}) outs({empty.name} : {empty.type}) -> {empty.type}"
        return self._op(text, shape, dtype, "")

    def _into(self, text: str, more: str, shape: Shape, dtype: str, part: str) -> Value:
        """A named op of linalg, which has no result type."""
        empty = self._empty(shape, dtype)
        return self._op(f"{text} outs({empty.name} : {empty.type}){more}", shape, dtype, part)

    def _elementwise(
        self, body: Sequence[str], inputs: Sequence[Value], dtype: str, part: str, shape: Shape = ()
    ) -> Value:
        shape = inputs[0].shape if inputs else shape
        names = ", ".join(f"d{each}" for each in range(len(shape)))
        maps = ", ".join([f"affine_map<({names}) -> ({names})>"] * (len(inputs) + 1))
        return self._generic(body, inputs, maps, ["parallel"] * len(shape), self._empty(shape, dtype), part)

    def _generic(
        self, body: Sequence[str], inputs: Sequence[Value], maps: str, kinds: Sequence[str], into: Value, part: str
    ) -> Value:
        iterators = ", ".join(f'"{kind}"' for kind in kinds)
        given = ""
        if inputs:
            given = f"ins({', '.join(each.name for each in inputs)} : {', '.join(each.type for each in inputs)}) "
        attributes = f"{{indexing_maps = [{maps}], iterator_types = [{iterators}]}}"
        made = self._op(
            f"linalg.generic {attributes} {given}outs({into.name} : {into.type}) {{", into.shape, into.dtype, part
        )
        arguments = [*(f"%a{number}: {each.dtype}" for number, each in enumerate(inputs)), f"%out: {into.dtype}"]
        self._body += [f"  ^bb0({', '.join(arguments)}):", *(f"    {line}" for line in body)]
        self._body += [f"    linalg.yield %v : {into.dtype}", f"  }} -> {into.type}"]
        return made


def _conversion(old: str, new: str) -> str:
    """The op of arith that converts a scalar."""
    if "f" in old and "f" in new:
        return "arith.extf" if new == "f64" or BITS[new] > BITS[old] else "arith.truncf"
    if "f" in old:
        return "arith.fptosi"
    if "f" in new:
        return "arith.uitofp" if old == "i1" else "arith.sitofp"
    return "arith.extsi" if BITS[new] > BITS[old] else "arith.trunci"
