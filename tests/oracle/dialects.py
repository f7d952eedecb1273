"""The two dialects that programs are written in: how each op reads, one op a line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from tests.oracle.program import Extents


class Tensor(NamedTuple):
    """A value: its number, its name in the text, its extents and element type."""

    number: int
    name: str
    extents: Extents
    element: str = "f32"

    @property
    def type(self) -> str:
        """The printed type."""
        return tensor_type(self.extents, self.element)


def tensor_type(extents: Extents, element: str = "f32") -> str:
    """`tensor<2x?xf32>`."""
    extents_text = "".join("?x" if extent is None else f"{extent}x" for extent in extents)
    return f"tensor<{extents_text}{element}>"


class Line(NamedTuple):
    """A line of text, without its result, and the name of the op on it."""

    op: str
    text: str


STABLEHLO = {
    "mul": "multiply", "add": "add", "sub": "subtract", "div": "divide", "max": "maximum", "min": "minimum",
    "exp": "exponential", "tanh": "tanh", "sin": "sine", "cos": "cosine", "neg": "negate", "abs": "abs",
    "log1p": "log_plus_one", "expm1": "exponential_minus_one", "rsqrt": "rsqrt", "sqrt": "sqrt", "floor": "floor",
    "log": "log", "gt": "compare", "select": "select",
}  # fmt: skip
SCALAR = {
    "mul": "arith.mulf", "add": "arith.addf", "sub": "arith.subf", "div": "arith.divf", "max": "arith.maximumf",
    "min": "arith.minimumf", "exp": "math.exp", "tanh": "math.tanh", "sin": "math.sin", "cos": "math.cos",
    "neg": "arith.negf", "abs": "math.absf", "log1p": "math.log1p", "expm1": "math.expm1", "rsqrt": "math.rsqrt",
    "sqrt": "math.sqrt", "floor": "math.floor", "log": "math.log", "extf": "arith.extf", "truncf": "arith.truncf",
    "gt": "arith.cmpf", "select": "arith.select",
}  # fmt: skip
"""What is computed, in each dialect's words, by our own short word."""
RESULT_ELEMENT = {"truncf": "f16", "gt": "i1"}
"""The element types of results that are not f32."""
INITIAL = {"add": "0.0", "mul": "1.0", "max": "0xFF800000", "min": "0x7F800000"}


class Dialect(ABC):
    """How ops are written. Every method gives the text after `%x = `."""

    name: str
    scalars_in_line = False
    """Whether a number stands as a scalar beside the op, instead of as a tensor of its result's shape."""
    needs_destination = False
    """Whether ops write into a tensor that stands on a line of its own."""

    @abstractmethod
    def elementwise(self, word: str, operands: Sequence[Tensor], result: Extents, into: str) -> Line:
        """An op on each element; operands of lower rank are scalars."""

    @abstractmethod
    def reduce(self, word: str, operand: Tensor, over: Sequence[int], result: Extents, into: str) -> Line:
        """A reduction; `into` names the initial value."""

    @abstractmethod
    def matmul(self, left: Tensor, right: Tensor, result: Extents, into: str) -> Line:
        """A matrix product, or a batch of them."""

    @abstractmethod
    def convolution(self, image: Tensor, kernel: Tensor, result: Extents, into: str) -> Line:
        """A convolution, nhwc by hwcf, stride 1, not padded."""

    @abstractmethod
    def transpose(self, operand: Tensor, order: Sequence[int], result: Extents, into: str) -> Line:
        """A permutation of dimensions."""

    @abstractmethod
    def broadcast(self, operand: Tensor, kept: Sequence[int], result: Extents, into: str) -> Line:
        """A repetition; `kept`: the places of the operand's dimensions in the result."""

    @abstractmethod
    def merge(self, operand: Tensor, result: Extents) -> Line:
        """A reshape that merges all dimensions into one."""

    @abstractmethod
    def cut(self, operand: Tensor, result: Extents) -> Line:
        """The first elements along the last dimension."""

    @abstractmethod
    def number(self, value: str, extents: Extents) -> Line:
        """A constant of one value."""


class StableHlo(Dialect):
    """As JAX writes."""

    name = "stablehlo"

    def elementwise(self, word: str, operands: Sequence[Tensor], result: Extents, into: str) -> Line:
        names = ", ".join(operand.name for operand in operands)
        if word in ("extf", "truncf"):
            types = f"({operands[0].type}) -> {tensor_type(result, RESULT_ELEMENT.get(word, 'f32'))}"
            return self._line("convert", f"{names} : {types}")
        if word == "gt":
            types = f"({tensor_type(result)}, {tensor_type(result)}) -> {tensor_type(result, 'i1')}"
            return self._line("compare", f"GT, {names} : {types}")
        if word == "select":
            return self._line("select", f"{names} : {tensor_type(result, 'i1')}, {tensor_type(result)}")
        return self._line(STABLEHLO[word], f"{names} : {tensor_type(result)}")

    def reduce(self, word: str, operand: Tensor, over: Sequence[int], result: Extents, into: str) -> Line:
        how = f"({operand.name} init: {into}) applies stablehlo.{STABLEHLO[word]} across dimensions = {list(over)}"
        return Line(
            "stablehlo.reduce", f"stablehlo.reduce{how} : ({operand.type}, tensor<f32>) -> {tensor_type(result)}"
        )

    def matmul(self, left: Tensor, right: Tensor, result: Extents, into: str) -> Line:
        rank = len(left.extents)
        batch = "batching_dims = [0] x [0], " if rank == 3 else ""
        dims = f"{batch}contracting_dims = [{rank - 1}] x [{rank - 2}]"
        types = f"({left.type}, {right.type}) -> {tensor_type(result)}"
        return self._line("dot_general", f"{left.name}, {right.name}, {dims} : {types}")

    def convolution(self, image: Tensor, kernel: Tensor, result: Extents, into: str) -> Line:
        dims = "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1]}"
        groups = "{batch_group_count = 1 : i64, feature_group_count = 1 : i64}"
        types = f"({image.type}, {kernel.type}) -> {tensor_type(result)}"
        text = f"stablehlo.convolution({image.name}, {kernel.name}) {dims} {groups} : {types}"
        return Line("stablehlo.convolution", text)

    def transpose(self, operand: Tensor, order: Sequence[int], result: Extents, into: str) -> Line:
        types = f"({operand.type}) -> {tensor_type(result)}"
        return self._line("transpose", f"{operand.name}, dims = {list(order)} : {types}")

    def broadcast(self, operand: Tensor, kept: Sequence[int], result: Extents, into: str) -> Line:
        types = f"({operand.type}) -> {tensor_type(result)}"
        return self._line("broadcast_in_dim", f"{operand.name}, dims = {list(kept)} : {types}")

    def merge(self, operand: Tensor, result: Extents) -> Line:
        return self._line("reshape", f"{operand.name} : ({operand.type}) -> {tensor_type(result)}")

    def cut(self, operand: Tensor, result: Extents) -> Line:
        ends = ", ".join(f"0:{extent}" for extent in result)
        return self._line("slice", f"{operand.name} [{ends}] : ({operand.type}) -> {tensor_type(result)}")

    def number(self, value: str, extents: Extents) -> Line:
        return self._line("constant", f"dense<{value}> : {tensor_type(extents)}")

    @staticmethod
    def _line(op: str, rest: str) -> Line:
        return Line(f"stablehlo.{op}", f"stablehlo.{op} {rest}")


class Linalg(Dialect):
    """As compilers' own tests write: generic ops on tensors, each with its destination."""

    name = "linalg"
    scalars_in_line = True
    needs_destination = True

    def elementwise(self, word: str, operands: Sequence[Tensor], result: Extents, into: str) -> Line:
        tensors = [operand for operand in operands if operand.number >= 0]
        rank = len(result)
        names = [f"%a{place}" if operand.number >= 0 else operand.name for place, operand in enumerate(operands)]
        arguments = [(f"%a{place}", each.element) for place, each in enumerate(operands) if each.number >= 0]
        element = RESULT_ELEMENT.get(word, "f32")
        types = f"{operands[0].element} to {element}" if word in ("extf", "truncf") else "f32"
        how = "ogt, " if word == "gt" else ""
        body = f"%t = {SCALAR[word]} {how}{', '.join(names)} : {types} linalg.yield %t : {element}"
        maps = [_all(rank)] * (len(tensors) + 1)
        return _generic(maps, ["parallel"] * rank, tensors, arguments, into, result, body, element)

    def reduce(self, word: str, operand: Tensor, over: Sequence[int], result: Extents, into: str) -> Line:
        rank = len(operand.extents)
        kept = [dimension for dimension in range(rank) if dimension not in over]
        kinds = ["reduction" if dimension in over else "parallel" for dimension in range(rank)]
        body = f"%t = {SCALAR[word]} %a0, %o : f32 linalg.yield %t : f32"
        return _generic([_all(rank), _some(rank, kept)], kinds, [operand], [("%a0", "f32")], into, result, body)

    def matmul(self, left: Tensor, right: Tensor, result: Extents, into: str) -> Line:
        op = "linalg.batch_matmul" if len(left.extents) == 3 else "linalg.matmul"
        return self._named(op, (left, right), result, into)

    def convolution(self, image: Tensor, kernel: Tensor, result: Extents, into: str) -> Line:
        return self._named("linalg.conv_2d_nhwc_hwcf", (image, kernel), result, into)

    def transpose(self, operand: Tensor, order: Sequence[int], result: Extents, into: str) -> Line:
        text = f"ins({operand.name} : {operand.type}) outs({into} : {tensor_type(result)}) permutation = {list(order)}"
        return Line("linalg.transpose", f"linalg.transpose {text}")

    def broadcast(self, operand: Tensor, kept: Sequence[int], result: Extents, into: str) -> Line:
        added = [dimension for dimension in range(len(result)) if dimension not in kept]
        text = f"ins({operand.name} : {operand.type}) outs({into} : {tensor_type(result)}) dimensions = {added}"
        return Line("linalg.broadcast", f"linalg.broadcast {text}")

    def merge(self, operand: Tensor, result: Extents) -> Line:
        places = ", ".join(map(str, range(len(operand.extents))))
        types = f"{operand.type} into {tensor_type(result)}"
        return Line("tensor.collapse_shape", f"tensor.collapse_shape {operand.name} [[{places}]] : {types}")

    def cut(self, operand: Tensor, result: Extents) -> Line:
        zeros, ones = (", ".join(each for _ in result) for each in "01")
        sizes = ", ".join(map(str, result))
        text = f"{operand.name}[{zeros}] [{sizes}] [{ones}] : {operand.type} to {tensor_type(result)}"
        return Line("tensor.extract_slice", f"tensor.extract_slice {text}")

    def number(self, value: str, extents: Extents) -> Line:
        if not extents:
            return Line("arith.constant", f"arith.constant {value} : f32")
        return Line("arith.constant", f"arith.constant dense<{value}> : {tensor_type(extents)}")

    @staticmethod
    def _named(op: str, operands: Sequence[Tensor], result: Extents, into: str) -> Line:
        names = ", ".join(operand.name for operand in operands)
        types = ", ".join(operand.type for operand in operands)
        out = tensor_type(result)
        return Line(op, f"{op} ins({names} : {types}) outs({into} : {out}) -> {out}")


def _generic(  # noqa: PLR0917  # the parts of the text, in the order of the text
    maps: Sequence[str],
    kinds: Sequence[str],
    operands: Sequence[Tensor],
    arguments: Sequence[tuple[str, str]],
    into: str,
    result: Extents,
    body: str,
    element: str = "f32",
) -> Line:
    names = ", ".join(operand.name for operand in operands)
    types = ", ".join(operand.type for operand in operands)
    block = ", ".join(f"{name}: {kind}" for name, kind in [*arguments, ("%o", element)])
    iterators = ", ".join(f'"{kind}"' for kind in kinds)
    out = tensor_type(result, element)
    head = f"linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{iterators}]}}"
    return Line(
        "linalg.generic", f"{head} ins({names} : {types}) outs({into} : {out}) {{ ^bb0({block}): {body} }} -> {out}"
    )


def _some(rank: int, kept: Sequence[int]) -> str:
    dims = ", ".join(f"d{dimension}" for dimension in range(rank))
    return f"affine_map<({dims}) -> ({', '.join(f'd{dimension}' for dimension in kept)})>"


def _all(rank: int) -> str:
    return _some(rank, range(rank))
