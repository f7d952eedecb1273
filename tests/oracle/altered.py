"""Programs of which one kernel is made cheaper or more expensive, or removed, and nothing else.

A kernel reads arguments of its own, so that a longer or shorter reduction changes no other kernel. The programs are a
chain, branches that may run at the same time, a loop, attention and convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.oracle.stock import Program


@dataclass(frozen=True, slots=True)
class Alteration:
    """A program before and after; `line`: that of the op whose kernel is altered; `removed`: the kernel is gone.

    `whole`: the prediction is asked for the kernel with all its ops, not only for the op of this line.
    """

    name: str
    before: Program
    after: Program
    line: int
    removed: bool = False
    whole: bool = False
    tiles: tuple[str, str] | None = None
    """A text of the kernel's configuration and its replacement, with which `tracemap swap` makes the program after."""


@dataclass(slots=True)
class _Writer:
    """Lines of a function, its arguments and their inputs."""

    arguments: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)

    def argument(self, name: str, shape: str, value: str = "0.01") -> str:
        """Declare an argument; returns its type."""
        self.arguments.append(f"%{name}: tensor<{shape}>")
        self.inputs.append(f"{shape}={value}")
        return f"tensor<{shape}>"

    def add(self, line: str, mark: str = "") -> None:
        """Add a line of the body; a marked line can be asked for."""
        self.lines.append(f"  {line}")
        if mark:
            self.marks[mark] = len(self.lines) + 1

    def program(self, name: str, results: Mapping[str, str]) -> Program:
        """The whole program, whose body begins on its second line."""
        kinds = ", ".join(results.values())
        head = f"func.func @main({', '.join(self.arguments)}) -> ({kinds}) {{"
        end = [f"  return {', '.join(results)} : {kinds}", "}"]
        return Program(name, "\n".join([head, *self.lines, *end]) + "\n", tuple(self.inputs))


Parameters = Mapping[str, int]
"""The length of a part's reduction, by the part's mark; 0: the part is left out."""
Maker = Callable[[str, Parameters], tuple[Program, dict[str, int]]]


def _product(writer: _Writer, mark: str, rows: int, depth: int, columns: int, result: str) -> str:
    """Multiply two arguments."""
    left = writer.argument(f"a_{mark}", f"{rows}x{depth}xf32")
    right = writer.argument(f"b_{mark}", f"{depth}x{columns}xf32")
    kind = f"tensor<{rows}x{columns}xf32>"
    writer.add(
        f"%{result} = stablehlo.dot_general %a_{mark}, %b_{mark}, contracting_dims = [1] x [0]"
        f" : ({left}, {right}) -> {kind}",
        mark,
    )
    return kind


def chain(name: str, lengths: Parameters) -> tuple[Program, dict[str, int]]:
    """A kernel after the other: products that are added to what came before, with a function of the sum."""
    writer = _Writer()
    kind = writer.argument("h0", "128x256xf32")
    value = "%h0"
    for number, (mark, depth) in enumerate(lengths.items()):
        if depth:
            _product(writer, mark, 128, depth, 256, f"p{number}")
            writer.add(f"%s{number} = stablehlo.add %p{number}, {value} : {kind}")
            writer.add(f"%h{number + 1} = stablehlo.tanh %s{number} : {kind}")
            value = f"%h{number + 1}"
    return writer.program(name, {value: kind}), writer.marks


def branches(name: str, lengths: Parameters) -> tuple[Program, dict[str, int]]:
    """Independent products of one workgroup each, which run at the same time if there are workers."""
    writer = _Writer()
    results = {}
    for number, (mark, depth) in enumerate(lengths.items()):
        if depth:
            results[f"%p{number}"] = _product(writer, mark, 8, depth, 16 + 8 * number, f"p{number}")
    return writer.program(name, results), writer.marks


def branches_joined(name: str, lengths: Parameters) -> tuple[Program, dict[str, int]]:
    """Independent sums, and a product that needs all of them."""
    writer = _Writer()
    parts, kinds = [], []
    writer.add("%zero = stablehlo.constant dense<0.0> : tensor<f32>")
    for number, (mark, depth) in enumerate(lengths.items()):
        if mark == "last" or not depth:
            continue
        rows = 16 * (number + 1)
        kind = writer.argument(f"x_{mark}", f"{rows}x{depth}xf32")
        writer.add(
            f"%r{number} = stablehlo.reduce(%x_{mark} init: %zero) applies stablehlo.maximum across dimensions = [1]"
            f" : ({kind}, tensor<f32>) -> tensor<{rows}xf32>",
            mark,
        )
        parts.append(f"%r{number}")
        kinds.append(f"tensor<{rows}xf32>")
    last = _product(writer, "last", 64, lengths["last"], 64, "last")
    return writer.program(name, {"%last": last, **dict(zip(parts, kinds, strict=True))}), writer.marks


_TRIPS: Final = 20


def loop(name: str, lengths: Parameters) -> tuple[Program, dict[str, int]]:
    """Products of a row of two sequences and a matrix, in each trip of a loop."""
    writer = _Writer()
    kind = writer.argument("h0", "32x256xf32")
    writer.add("%c0 = stablehlo.constant dense<0> : tensor<i32>")
    carried = [("i", "%c0", "tensor<i32>"), ("h", "%h0", kind)]
    for mark, depth in lengths.items():
        if depth:
            carried.append((f"x_{mark}", f"%x_{mark}", writer.argument(f"x_{mark}", f"{_TRIPS}x32x{depth}xf32")))
            carried.append((f"b_{mark}", f"%b_{mark}", writer.argument(f"b_{mark}", f"{depth}x256xf32")))
    types = ", ".join(each for *_, each in carried)
    writer.add(
        f"%out:{len(carried)} = stablehlo.while({', '.join(f'%it{n} = {start}' for n, start, _ in carried)}) : {types}"
    )
    writer.add("cond {")
    writer.add(f"  %n = stablehlo.constant dense<{_TRIPS}> : tensor<i32>")
    writer.add("  %less = stablehlo.compare LT, %iti, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>")
    writer.add("  stablehlo.return %less : tensor<i1>")
    writer.add("} do {")
    writer.add("  %z = stablehlo.constant dense<0> : tensor<i32>")
    value = "%ith"
    for number, (mark, depth) in enumerate(lengths.items()):
        if not depth:
            continue
        row, matrix = f"tensor<32x{depth}xf32>", f"tensor<{depth}x256xf32>"
        writer.add(
            f"  %s{number} = stablehlo.dynamic_slice %itx_{mark}, %iti, %z, %z, sizes = [1, 32, {depth}]"
            f" : (tensor<{_TRIPS}x32x{depth}xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x32x{depth}xf32>"
        )
        writer.add(f"  %x{number} = stablehlo.reshape %s{number} : (tensor<1x32x{depth}xf32>) -> {row}")
        writer.add(
            f"  %p{number} = stablehlo.dot_general %x{number}, %itb_{mark}, contracting_dims = [1] x [0]"
            f" : ({row}, {matrix}) -> {kind}",
            mark,
        )
        writer.add(f"  %t{number} = stablehlo.add %p{number}, {value} : {kind}")
        writer.add(f"  %h{number + 1} = stablehlo.tanh %t{number} : {kind}")
        value = f"%h{number + 1}"
    writer.add("  %one = stablehlo.constant dense<1> : tensor<i32>")
    writer.add("  %newi = stablehlo.add %iti, %one : tensor<i32>")
    results = ["%newi", value, *(f"%it{each}" for each, *_ in carried[2:])]
    writer.add(f"  stablehlo.return {', '.join(results)} : {types}")
    writer.add("}")
    return writer.program(name, {"%out#1": kind}), writer.marks


def attention(name: str, lengths: Parameters) -> tuple[Program, dict[str, int]]:
    """Attention of four heads with separate depths of keys and values."""
    writer = _Writer()
    depth, width = lengths["keys"], lengths["values"]
    queries, scores, values = f"4x96x{depth}xf32", "tensor<4x96x96xf32>", f"4x96x{width}xf32"
    q, k, v = (writer.argument(*each) for each in (("q", queries), ("k", queries), ("v", values)))
    batched = "batching_dims = [0] x [0], contracting_dims"
    writer.add("%low = stablehlo.constant dense<0xFF800000> : tensor<f32>")
    writer.add("%zero = stablehlo.constant dense<0.0> : tensor<f32>")
    writer.add(f"%s = stablehlo.dot_general %q, %k, {batched} = [2] x [2] : ({q}, {k}) -> {scores}", "keys")
    rows = "tensor<4x96xf32>"
    reduced = f"across dimensions = [2] : ({scores}, tensor<f32>) -> {rows}"
    writer.add(f"%m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum {reduced}")
    writer.add(f"%mb = stablehlo.broadcast_in_dim %m, dims = [0, 1] : ({rows}) -> {scores}")
    writer.add(f"%d = stablehlo.subtract %s, %mb : {scores}")
    writer.add(f"%e = stablehlo.exponential %d : {scores}")
    writer.add(f"%t = stablehlo.reduce(%e init: %zero) applies stablehlo.add {reduced}")
    writer.add(f"%tb = stablehlo.broadcast_in_dim %t, dims = [0, 1] : ({rows}) -> {scores}")
    writer.add(f"%p = stablehlo.divide %e, %tb : {scores}")
    result = f"tensor<4x96x{width}xf32>"
    writer.add(f"%o = stablehlo.dot_general %p, %v, {batched} = [2] x [1] : ({scores}, {v}) -> {result}", "values")
    return writer.program(name, {"%o": result}), writer.marks


def convolutions(name: str, lengths: Parameters) -> tuple[Program, dict[str, int]]:
    """Two convolutions; the channels of the input alter the first, those of the result the second."""
    writer = _Writer()
    first, last = lengths["first"], lengths["last"]
    image = writer.argument("x", f"1x26x26x{first}xf32")
    filters = writer.argument("w1", f"3x3x{first}x32xf32")
    more = writer.argument("w2", f"3x3x32x{last}xf32")
    hidden, result = "tensor<1x24x24x32xf32>", f"tensor<1x22x22x{last}xf32>"
    how = "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1]}"
    groups = "{batch_group_count = 1 : i64, feature_group_count = 1 : i64}"
    writer.add(f"%c = stablehlo.convolution(%x, %w1) {how} {groups} : ({image}, {filters}) -> {hidden}", "first")
    writer.add("%z = stablehlo.constant dense<0.0> : tensor<1x24x24x32xf32>")
    writer.add(f"%r = stablehlo.maximum %c, %z : {hidden}")
    writer.add(f"%y = stablehlo.convolution(%r, %w2) {how} {groups} : ({hidden}, {more}) -> {result}", "last")
    return writer.program(name, {"%y": result}), writer.marks


def alterations() -> Iterator[Alteration]:
    """All of them."""
    usual = {"a": 512, "b": 256, "c": 1024, "d": 128}
    yield from _altered(
        "chain", chain, usual, {"a": (320, 896, 0), "b": (160,), "c": (640, 0), "d": (384,)}, whole=True
    )
    # The longest branch takes most of the time on two workers; shorter ones run next to it.
    wide = {"long": 16384, "middle": 8192, "short": 4096, "last": 3072}
    yield from _altered("branches", branches, wide, {"long": (9216, 32768), "middle": (5120, 0), "short": (12288,)})
    sums = {"x": 16384, "y": 32768, "z": 8192, "last": 1024}
    yield from _altered("sums", branches_joined, sums, {"x": (0,), "y": (16384,), "last": (512, 2048)})
    rows = {"x": 256, "y": 512}
    yield from _altered("loop", loop, rows, {"x": (128, 320), "y": (384, 0)}, whole=True)
    yield from _altered("attention", attention, {"keys": 64, "values": 64}, {"keys": (256,), "values": (32, 128)})
    yield from _altered("convolutions", convolutions, {"first": 16, "last": 32}, {"first": (32,), "last": (16,)})


def swaps() -> Iterator[Alteration]:
    """Kernels that `tracemap swap` replaces by themselves with other tiles."""
    chained, marks = chain("chain", {"a": 512, "b": 256, "c": 1024, "d": 128})
    for mark in ("a", "c"):
        tiles = ("vector_common_parallel = [8, 16, 0]", "vector_common_parallel = [4, 16, 0]")
        yield Alteration(f"chain: other tiles of {mark}", chained, chained, marks[mark], whole=True, tiles=tiles)


def _altered(
    name: str, maker: Maker, usual: Parameters, changes: Mapping[str, tuple[int, ...]], *, whole: bool = False
) -> Iterator[Alteration]:
    before, marks = maker(name, usual)
    for mark, lengths in changes.items():
        for length in lengths:
            after, _ = maker(f"{name}_{mark}_{length}", {**usual, mark: length})
            shown = f"{name}: {mark} " + (f"{usual[mark]} to {length}" if length else "removed")
            yield Alteration(shown, before, after, marks[mark], removed=not length, whole=whole)
