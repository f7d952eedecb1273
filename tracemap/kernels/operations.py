"""Operations that `sweep` generates: programs of one operation with its sizes, element type and epilogue.

Sizes have the usual letters. A matrix product is M x K by K x N, and a batch has B of them. A split product sums P
parts of K. A convolution has N images of H x W with C channels, F filters of R x S, and stride D.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tracemap.core.errors import UsageInvalid

_NUMBER = re.compile(r"(\d{1,9})(?::(\d{1,9})(?::(\d{1,9}))?)?")
_MAX_OPERATIONS = 100_000
"""Maximum of operations in a sweep; more is probably a typo."""

ACCUMULATOR_TYPES: Final[Mapping[str, str]] = {"f32": "f32", "f16": "f32", "bf16": "f32", "i8": "i32", "f64": "f64"}
"""Element types and their accumulator types."""
EPILOGUES: Final = ("none", "bias", "relu", "bias+relu")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of operation: its sizes and their defaults, the named operation, and the shapes of its operands.

    Shapes are letters of sizes. A bias has the size of the output's axis `bias_axis`. The product of the sizes of
    `work` is the number of multiply-adds. `split`: the reduction over K is split into P consecutive parts.
    """

    defaults: Mapping[str, int]
    operation: str
    left: str
    right: str
    output: str
    bias_axis: int
    work: str
    windowed: bool = False
    split: bool = False


_MATMUL: Final = {"M": 128, "N": 128, "K": 128}
_CONVOLUTION: Final = {"N": 1, "H": 32, "W": 32, "C": 16, "F": 32, "R": 3, "S": 3, "D": 1}
_DEPTHWISE: Final = {letter: size for letter, size in _CONVOLUTION.items() if letter != "F"}
KINDS: Final[Mapping[str, Kind]] = {
    "matmul": Kind(_MATMUL, "matmul", "MK", "KN", "MN", 1, "MNK"),
    "batch_matmul": Kind({"B": 4, **_MATMUL}, "batch_matmul", "BMK", "BKN", "BMN", 2, "BMNK"),
    "splitk_matmul": Kind({**_MATMUL, "K": 1024, "P": 4}, "generic", "MK", "KN", "MN", 1, "MNK", split=True),
    "conv2d_nhwc": Kind(_CONVOLUTION, "conv_2d_nhwc_hwcf", "NHWC", "RSCF", "NPQF", 3, "NPQFRSC", windowed=True),
    "conv2d_nchw": Kind(_CONVOLUTION, "conv_2d_nchw_fchw", "NCHW", "FCRS", "NFPQ", 1, "NPQFRSC", windowed=True),
    "depthwise_conv2d_nhwc": Kind(
        _DEPTHWISE, "depthwise_conv_2d_nhwc_hwc", "NHWC", "RSC", "NPQC", 3, "NPQCRS", windowed=True
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
        return 2 * math.prod(self._extents[letter] for letter in KINDS[self.kind].work)

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

    def _tensor(self, letters: str, element: str) -> str:
        return f"tensor<{'x'.join(str(self._extents[letter]) for letter in letters)}x{element}>"

    def text(self) -> str:
        """The program: a function of the operands and the optional bias."""
        kind, summed = KINDS[self.kind], ACCUMULATOR_TYPES[self.element]
        left, right = self._tensor(kind.left, self.element), self._tensor(kind.right, self.element)
        out, bias = self._tensor(kind.output, summed), self._tensor(kind.output[kind.bias_axis], summed)
        zero = "0" if summed.startswith("i") else "0.0"
        with_bias = "bias" in self.epilogue
        lines = [
            f"func.func @{self.kind}(%a: {left}, %b: {right}{f', %c: {bias}' if with_bias else ''}) -> {out} {{",
            f"  %zero = arith.constant {zero} : {summed}",
            f"  %empty = tensor.empty() : {out}",
            f"  %filled = linalg.fill ins(%zero : {summed}) outs(%empty : {out}) -> {out}",
            *(self._split(summed) if kind.split else [self._named(left, right, out)]),
            *(self._epilogue(out, bias, summed) if self.epilogue != "none" else ()),
            f"  return {'%0' if self.epilogue == 'none' else '%1'} : {out}",
            "}",
        ]
        return "\n".join([*lines, ""])

    def _named(self, left: str, right: str, out: str) -> str:
        """The operation as a named op of the linalg dialect."""
        kind = KINDS[self.kind]
        strides = f"dense<{dict(self.sizes).get('D', 1)}> : tensor<2xi64>"
        windows = f" {{dilations = dense<1> : tensor<2xi64>, strides = {strides}}}" if kind.windowed else ""
        return f"  %0 = linalg.{kind.operation}{windows} ins(%a, %b : {left}, {right}) outs(%filled : {out}) -> {out}"

    def _split(self, summed: str) -> Iterator[str]:
        """A split product: the partial products over parts of K, then their sum."""
        whole_left, whole_right, left, right = (
            self._tensor(letters, self.element) for letters in ("MK", "KN", "MPT", "PTN")
        )
        parts, out = self._tensor("PMN", summed), self._tensor("MN", summed)
        size = self._extents
        yield f"  %as = tensor.expand_shape %a [[0], [1, 2]] output_shape [{size['M']}, {size['P']}, {size['T']}]"
        yield f"      : {whole_left} into {left}"
        yield f"  %bs = tensor.expand_shape %b [[0, 1], [2]] output_shape [{size['P']}, {size['T']}, {size['N']}]"
        yield f"      : {whole_right} into {right}"
        yield f"  %room = tensor.empty() : {parts}"
        yield f"  %zeros = linalg.fill ins(%zero : {summed}) outs(%room : {parts}) -> {parts}"
        maps = ", ".join(f"affine_map<(p, m, n, t) -> ({letters})>" for letters in ("m, p, t", "p, t, n", "p, m, n"))
        yield f"  %parts = linalg.generic {{indexing_maps = [{maps}],"
        yield '      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}'
        yield f"      ins(%as, %bs : {left}, {right}) outs(%zeros : {parts}) {{"
        yield f"  ^bb0(%x: {self.element}, %y: {self.element}, %o: {summed}):"
        widen, kind = ("extsi", "i") if summed.startswith("i") else ("extf", "f")
        prefix = "" if summed == self.element else "wide_"
        for name in "xy" if prefix else "":
            yield f"    %wide_{name} = arith.{widen} %{name} : {self.element} to {summed}"
        yield f"    %product = arith.mul{kind} %{prefix}x, %{prefix}y : {summed}"
        yield f"    %sum = arith.add{kind} %o, %product : {summed}"
        yield f"    linalg.yield %sum : {summed}"
        yield f"  }} -> {parts}"
        yield f"  %0 = linalg.reduce {{ arith.add{kind} }} ins(%parts : {parts}) outs(%filled : {out}) dimensions = [0]"

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
