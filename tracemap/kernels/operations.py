"""Operations that `sweep` generates, and their description."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN, Integer
from tracemap.ir.attributes import DYNAMIC, Shape, shape_of
from tracemap.ir.dispatch_bodies import read_body
from tracemap.ir.parsing import MlirParser, Operation, Value, walk
from tracemap.kernels.reference.elements import SURPRISES, View, stored_bits
from tracemap.kernels.reference.kernel import Access, KernelFunction
from tracemap.kernels.reference.tensors import LOAD
from tracemap.map.build.sites.cost import CostModel

# ---- describing
#
# A kernel as text: arguments, configuration, and the operation in its name.


_OPERATION_IN_NAME = re.compile(r".*?_dispatch_\d+_(.+)", re.DOTALL)
_PIPELINE = re.compile(r"pipeline = (?:#[\w.]+pipeline<)?(\w+)")
_TILES = re.compile(r"(\w+) = (\[[\d, \[\]]*\])")


def operation_name(kernel: str) -> str:
    """The operation in a kernel's name: `matmul_64x64x64_f32` of `main_dispatch_4_matmul_64x64x64_f32`."""
    match = _OPERATION_IN_NAME.fullmatch(kernel)
    return match[1] if match else kernel


def arguments(accesses: Sequence[Access]) -> str:
    """The shapes that a kernel reads and writes: `64x64xf32, 64xf32 -> 64x64xf32`."""
    read = [_shape(access) for access in accesses if access.loaded]
    written = [_shape(access) for access in accesses if access.stored]
    return f"{', '.join(read)} -> {', '.join(written)}"


def _shape(access: Access) -> str:
    return "x".join([*map(str, access.view.extents), access.view.element])


def configuration(function: Operation) -> str:
    """A kernel's pipeline, and the tiles of its most tiled operation: `CPUDefault distribution=[64, 64, 0]`."""
    pipeline = ""
    if "translation_info" in function.attributes:
        match = _PIPELINE.search(str(function.attributes["translation_info"]))
        pipeline = match[1] if match else ""
    configs = [
        str(operation.attributes["lowering_config"])
        for operation in walk(function)
        if "lowering_config" in operation.attributes
    ]
    tiles = max((_TILES.findall(config) for config in configs), key=len, default=[])
    return " ".join([*([pipeline] if pipeline else []), *(f"{name}={sizes}" for name, sizes in tiles)])


# ---- amounts
#
# Operations and bytes of a kernel call, counted by the map's rules for kernels whose sizes the map does not know.
#
# The kernel's push constants decide the sizes of its tensors. A tensor that an unsupported operation produces has an
# unknown size.


_KERNEL: Final = ("kernel",)
_STRUCTURED: Final = ("linalg.", "iree_linalg_ext.")
_MAX_DEPTH: Final = 100


def amounts(function: KernelFunction, accesses: Sequence[Access], parser: MlirParser) -> tuple[Integer, Integer]:
    """Operations and bytes of a call; unknown if they depend on an unknown size."""
    moved = sum(_bytes(access.view) * (access.loaded + access.stored) for access in accesses)
    try:
        body = read_body(parser, function.operation, _Sizes(function.numbers()).shape)
    except SURPRISES:
        return UNKNOWN, moved
    # As in the map, operations that compute sizes and addresses do not count.
    counted = [replace(op, iterations=0) if op.parent < 0 and not _makes_tensors(op.results) else op for op in body]
    return CostModel(counted, lambda _: _KERNEL).operations.get(*_KERNEL, 0), moved


def _makes_tensors(results: Sequence[Shape]) -> bool:
    return any(shape.element_bits is not UNKNOWN for shape in results)


def _bytes(view: View) -> int:
    return -(-math.prod(view.extents) * stored_bits(view.element) // 8)


class _Sizes:
    """Sizes of tensors in a kernel's function; `number_of` evaluates a value to a number or a view of memory."""

    def __init__(self, number_of: Callable[[Value], Any]) -> None:
        self._number_of = number_of

    def shape(self, value: Value) -> Shape:
        """The shape of a value, with its dynamic sizes resolved as far as possible."""
        return self._shape(value, 0)

    def _shape(self, value: Value, depth: int) -> Shape:
        static_shape = shape_of(str(value.type))
        owner = getattr(value.owner, "operation", value.owner)
        if UNKNOWN not in static_shape.extents or not hasattr(owner, "name") or depth > _MAX_DEPTH:
            return static_shape
        if owner.name == LOAD:
            return Shape(tuple(self._number_of(owner.operands[0]).extents), static_shape.element_bits)
        if owner.name == "tensor.empty":
            dynamic = iter(owner.operands)
            sizes = (self._number_of(next(dynamic)) if size == DYNAMIC else size for size in value.type.shape)
            return Shape(tuple(map(int, sizes)), static_shape.element_bits)
        if owner.name.startswith(_STRUCTURED):
            return self._shape(_output(owner, value.result_number), depth + 1)
        return static_shape


def _output(operation: Operation, number: int) -> Value:
    """The output operand of a result; outputs are the last operands."""
    return operation.operands[len(operation.operands) - len(operation.results) + number]


# ---- operations
#
# Operations for sweeps: programs of one operation with its sizes, element type and epilogue.
#
# Sizes have the usual letters. A matrix product is M x K by K x N, and a batch has B of them. A split product sums P
# parts of K. A convolution has N images of H x W with C channels, F filters of R x S, and stride D.


_NUMBER = re.compile(r"(\d{1,9})(?::(\d{1,9})(?::(\d{1,9}))?)?")
_MAX_OPERATIONS = 100_000
"""Maximum of operations in a sweep; more is probably a typo."""

ACCUMULATOR_TYPES: Final[Mapping[str, str]] = {"f32": "f32", "f16": "f32", "bf16": "f32", "i8": "i32", "f64": "f64"}
"""Element types and their accumulator types."""
EPILOGUES: Final = ("none", "bias", "relu", "bias+relu")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of operation: its sizes and their defaults, the named operation, and the shapes of its operands.

    Shapes are tuples of size letters. A bias has the size of the output's axis `bias_axis`.
    """

    defaults: Mapping[str, int]
    operation: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    output: tuple[str, ...]
    bias_axis: int
    work: tuple[str, ...]
    """Letters whose product is the number of multiply-adds."""
    windowed: bool = False
    split: bool = False
    """The reduction over K is split into P consecutive parts."""


_CONVOLUTION = {"N": 1, "H": 32, "W": 32, "C": 16, "F": 32, "R": 3, "S": 3, "D": 1}
KINDS: Final[Mapping[str, Kind]] = {
    "matmul": Kind({"M": 128, "N": 128, "K": 128}, "matmul", ("M", "K"), ("K", "N"), ("M", "N"), 1, ("M", "N", "K")),
    "batch_matmul": Kind(
        {"B": 4, "M": 128, "N": 128, "K": 128},
        "batch_matmul",
        ("B", "M", "K"),
        ("B", "K", "N"),
        ("B", "M", "N"),
        2,
        ("B", "M", "N", "K"),
    ),
    "splitk_matmul": Kind(
        {"M": 128, "N": 128, "K": 1024, "P": 4},
        "generic",
        ("M", "K"),
        ("K", "N"),
        ("M", "N"),
        1,
        ("M", "N", "K"),
        split=True,
    ),
    "conv2d_nhwc": Kind(
        _CONVOLUTION,
        "conv_2d_nhwc_hwcf",
        ("N", "H", "W", "C"),
        ("R", "S", "C", "F"),
        ("N", "P", "Q", "F"),
        3,
        ("N", "P", "Q", "F", "R", "S", "C"),
        windowed=True,
    ),
    "conv2d_nchw": Kind(
        _CONVOLUTION,
        "conv_2d_nchw_fchw",
        ("N", "C", "H", "W"),
        ("F", "C", "R", "S"),
        ("N", "F", "P", "Q"),
        1,
        ("N", "P", "Q", "F", "R", "S", "C"),
        windowed=True,
    ),
    "depthwise_conv2d_nhwc": Kind(
        {name: value for name, value in _CONVOLUTION.items() if name != "F"},
        "depthwise_conv_2d_nhwc_hwc",
        ("N", "H", "W", "C"),
        ("R", "S", "C"),
        ("N", "P", "Q", "C"),
        3,
        ("N", "P", "Q", "C", "R", "S"),
        windowed=True,
    ),
}


@dataclass(frozen=True, slots=True)
class SweptOperation:
    """One operation: its kind, sizes by letter, element type and epilogue."""

    kind: str
    sizes: tuple[tuple[str, int], ...]
    element: str
    epilogue: str

    @property
    def name(self) -> str:
        """Unique name, also valid as a file name: `matmul_128x256x512_f32_bias_relu`."""
        sizes = "x".join(str(size) for _, size in self.sizes)
        epilogue = "" if self.epilogue == "none" else f"_{self.epilogue.replace('+', '_')}"
        return f"{self.kind}_{sizes}_{self.element}{epilogue}"

    @property
    def operations(self) -> int:
        """Multiplications and additions, without those of the epilogue."""
        product = 2
        for letter in KINDS[self.kind].work:
            product *= self._extents[letter]
        return product

    @property
    def _extents(self) -> dict[str, int]:
        """The sizes, plus the derived ones: output height P and width Q, or part size T."""
        extents = dict(self.sizes)
        if KINDS[self.kind].windowed:
            extents["P"] = (extents["H"] - extents["R"]) // extents["D"] + 1
            extents["Q"] = (extents["W"] - extents["S"]) // extents["D"] + 1
        if KINDS[self.kind].split:
            extents["T"] = extents["K"] // extents["P"]
        return extents

    def _tensor(self, letters: Sequence[str], element: str) -> str:
        return f"tensor<{'x'.join(str(self._extents[letter]) for letter in letters)}x{element}>"

    def text(self) -> str:
        """The program: a function of the operands and the optional bias."""
        kind, summed = KINDS[self.kind], ACCUMULATOR_TYPES[self.element]
        left, right = self._tensor(kind.left, self.element), self._tensor(kind.right, self.element)
        out, bias = self._tensor(kind.output, summed), self._tensor([kind.output[kind.bias_axis]], summed)
        zero = "0" if summed.startswith("i") else "0.0"
        with_bias = "bias" in self.epilogue
        lines = [
            f"func.func @{self.kind}(%a: {left}, %b: {right}{f', %c: {bias}' if with_bias else ''}) -> {out} {{",
            f"  %zero = arith.constant {zero} : {summed}",
            f"  %empty = tensor.empty() : {out}",
            f"  %filled = linalg.fill ins(%zero : {summed}) outs(%empty : {out}) -> {out}",
            *(self._split(summed) if kind.split else self._named()),
            *(self._epilogue(out, bias, summed) if self.epilogue != "none" else ()),
            f"  return {'%0' if self.epilogue == 'none' else '%1'} : {out}",
            "}",
        ]
        return "\n".join([*lines, ""])

    def _named(self) -> Iterator[str]:
        """The operation as a named op of the linalg dialect."""
        kind = KINDS[self.kind]
        left, right = self._tensor(kind.left, self.element), self._tensor(kind.right, self.element)
        out = self._tensor(kind.output, ACCUMULATOR_TYPES[self.element])
        strides = f"dense<{dict(self.sizes).get('D', 1)}> : tensor<2xi64>"
        windows = f" {{dilations = dense<1> : tensor<2xi64>, strides = {strides}}}" if kind.windowed else ""
        yield f"  %0 = linalg.{kind.operation}{windows} ins(%a, %b : {left}, {right}) outs(%filled : {out}) -> {out}"

    def _split(self, summed: str) -> Iterator[str]:
        """A split product: the partial products over parts of K, then their sum."""
        whole = [self._tensor(letters, self.element) for letters in (("M", "K"), ("K", "N"))]
        left, right = (self._tensor(letters, self.element) for letters in (("M", "P", "T"), ("P", "T", "N")))
        parts, out = self._tensor(("P", "M", "N"), summed), self._tensor(("M", "N"), summed)
        size = self._extents
        yield f"  %as = tensor.expand_shape %a [[0], [1, 2]] output_shape [{size['M']}, {size['P']}, {size['T']}]"
        yield f"      : {whole[0]} into {left}"
        yield f"  %bs = tensor.expand_shape %b [[0, 1], [2]] output_shape [{size['P']}, {size['T']}, {size['N']}]"
        yield f"      : {whole[1]} into {right}"
        yield f"  %room = tensor.empty() : {parts}"
        yield f"  %zeros = linalg.fill ins(%zero : {summed}) outs(%room : {parts}) -> {parts}"
        maps = ", ".join(f"affine_map<(p, m, n, t) -> ({letters})>" for letters in ("m, p, t", "p, t, n", "p, m, n"))
        yield f"  %parts = linalg.generic {{indexing_maps = [{maps}],"
        yield '      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}'
        yield f"      ins(%as, %bs : {left}, {right}) outs(%zeros : {parts}) {{"
        yield f"  ^bb0(%x: {self.element}, %y: {self.element}, %o: {summed}):"
        yield from self._multiplied(summed)
        yield f"  }} -> {parts}"
        add = "addi" if summed.startswith("i") else "addf"
        yield f"  %0 = linalg.reduce {{ arith.{add} }} ins(%parts : {parts}) outs(%filled : {out}) dimensions = [0]"

    def _multiplied(self, summed: str) -> Iterator[str]:
        """The body of a product: convert the operands to the accumulator type, multiply and add."""
        whole_number = summed.startswith("i")
        names = ["%x", "%y"]
        if summed != self.element:
            names = ["%wide_x", "%wide_y"]
            widen = "extsi" if whole_number else "extf"
            for narrow, wide in zip(("%x", "%y"), names, strict=True):
                yield f"    {wide} = arith.{widen} {narrow} : {self.element} to {summed}"
        kind = "i" if whole_number else "f"
        yield f"    %product = arith.mul{kind} {', '.join(names)} : {summed}"
        yield f"    %sum = arith.add{kind} %o, %product : {summed}"
        yield f"    linalg.yield %sum : {summed}"

    def _epilogue(self, out: str, bias: str, summed: str) -> Iterator[str]:
        kind = KINDS[self.kind]
        axes = ", ".join(f"d{axis}" for axis in range(len(kind.output)))
        whole, along = f"affine_map<({axes}) -> ({axes})>", f"affine_map<({axes}) -> (d{kind.bias_axis})>"
        with_bias, whole_number = "bias" in self.epilogue, summed.startswith("i")
        maps = ", ".join([whole, *([along] if with_bias else []), whole])
        iterators = ", ".join(['"parallel"'] * len(kind.output))
        yield f"  %1 = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}"
        inputs = f"%0, %c : {out}, {bias}" if with_bias else f"%0 : {out}"
        yield f"      ins({inputs}) outs(%empty : {out}) {{"
        yield f"  ^bb0(%x: {summed}{f', %y: {summed}' if with_bias else ''}, %o: {summed}):"
        value = "%x"
        if with_bias:
            yield f"    %s = arith.{'addi' if whole_number else 'addf'} %x, %y : {summed}"
            value = "%s"
        if "relu" in self.epilogue:
            yield f"    %r = arith.{'maxsi' if whole_number else 'maximumf'} {value}, %zero : {summed}"
            value = "%r"
        yield f"    linalg.yield {value} : {summed}"
        yield f"  }} -> {out}"


def sizes_of(text: str) -> list[int]:
    """Parse sizes: numbers and ranges separated by commas; `64:256:64` includes 256.

    >>> sizes_of("32,64:256:64")
    [32, 64, 128, 192, 256]

    Raises:
        UsageInvalid: the text is malformed, or has too many sizes.
    """
    all_sizes: list[int] = []
    for part in text.split(","):
        match = _NUMBER.fullmatch(part.strip())
        if match is None or int(match[1]) < 1 or (match[3] is not None and int(match[3]) < 1):
            raise UsageInvalid(f"{part!r}: a size is a number of at least 1, or start:stop:step")
        start = int(match[1])
        sizes = range(start, int(match[2] or start) + 1, int(match[3] or 1))
        if not sizes:
            raise UsageInvalid(f"{part!r}: empty range: it ends below its start")
        if len(all_sizes) + len(sizes) > _MAX_OPERATIONS:
            raise UsageInvalid(f"{part!r}: more than {_MAX_OPERATIONS:,} sizes; use a larger step")
        all_sizes += sizes
    return all_sizes


def generate_operations(
    kind: str, size_texts: Mapping[str, str], elements: Sequence[str], epilogues: Sequence[str]
) -> list[SweptOperation]:
    """All operations of a kind with these sizes (by letter, as typed), element types and epilogues, in order.

    Raises:
        UsageInvalid: the kind has no such letter, a window is too large, K cannot be split, or there are too many
            operations.
    """
    defaults = KINDS[kind].defaults
    for letter in size_texts:
        if letter not in defaults:
            raise UsageInvalid(f"{letter}: a {kind} has the sizes {', '.join(defaults)}")
    choices = [sizes_of(size_texts.get(letter, str(default))) for letter, default in defaults.items()]
    operations = []
    for combination in itertools.product(*choices):
        sizes = tuple(zip(defaults, combination, strict=True))
        extents = dict(sizes)
        if KINDS[kind].windowed and (extents["R"] > extents["H"] or extents["S"] > extents["W"]):
            raise UsageInvalid(f"a window of {extents['R']}x{extents['S']} does not fit {extents['H']}x{extents['W']}")
        if KINDS[kind].split and extents["K"] % extents["P"]:
            raise UsageInvalid(f"K={extents['K']}: cannot be split into {extents['P']} parts (P) of equal size")
        operations += [SweptOperation(kind, sizes, element, epilogue) for element in elements for epilogue in epilogues]
        if len(operations) > _MAX_OPERATIONS:
            raise UsageInvalid(f"more than {_MAX_OPERATIONS:,} operations; pass fewer sizes")
    return operations
