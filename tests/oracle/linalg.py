"""Writes small models in linalg, one op on a line of its own, and notes the lines of the ops that are asked about."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

FUNCTIONS = ("math.tanh", "math.exp", "math.log1p", "math.sqrt", "math.rsqrt", "math.erf", "math.sin", "math.absf")
COSTLY = ("math.tanh", "math.exp", "math.log1p", "math.erf", "math.sin")

SIZE = "256x256"
_PARALLEL = 'iterator_types = ["parallel", "parallel"]'

Parts = Sequence[tuple[str, int]]
"""Functions, and how often each is applied."""


@dataclass(frozen=True, slots=True)
class Indices:
    """An argument of whole numbers below `below`: one after the other, or in any order."""

    rows: int
    columns: int
    below: int
    shuffled: bool


@dataclass(frozen=True, slots=True)
class Program:
    """A model that becomes one kernel; `lines` are those of the ops asked about, `inputs` what it is called with.

    No inputs: they are made up. An input is written as IREE writes it.
    """

    name: str
    text: str
    lines: tuple[int, ...]
    inputs: tuple[str | Indices, ...] = ()


@dataclass
class Writer:
    """Writes a function of linalg ops over matrices of f32; its arguments are `%x0`, `%x1` and so on."""

    arguments: Sequence[str]
    lines: list[str] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """The head is written once the result is known."""
        self.lines += [
            "#id = affine_map<(d0, d1) -> (d0, d1)>",
            "#turned = affine_map<(d0, d1) -> (d1, d0)>",
            "#row = affine_map<(d0, d1) -> (d0)>",
            "",
        ]

    def line(self, text: str) -> None:
        """One more line of the function."""
        self.lines.append(f"  {text}")

    def asks(self) -> None:
        """The next line is asked about."""
        self.asked.append(len(self.lines) + 1)

    def _generic(self, result: str, maps: str, inputs: str, outputs: str, block: Sequence[str]) -> None:
        """An op with the lines of its block, of which the first names its arguments."""
        self.line(f"{result} = linalg.generic {{{maps}}} {inputs} outs({outputs}) {{")
        self.lines += [f"  {block[0]}", *(f"    {each}" for each in block[1:]), "    linalg.yield %v : f32"]
        self.line(f"}} -> {outputs.partition(' : ')[2]}")

    def _empty(self, name: str, size: str) -> str:
        self.line(f"{name} = tensor.empty() : tensor<{size}xf32>")
        return f"{name} : tensor<{size}xf32>"

    def _filled(self, name: str, size: str) -> str:
        """Zeros."""
        self.line(f"{name}.z = arith.constant 0.0 : f32")
        empty = self._empty(f"{name}.e", size)
        self.line(f"{name}.f = linalg.fill ins({name}.z : f32) outs({empty}) -> tensor<{size}xf32>")
        return f"{name}.f : tensor<{size}xf32>"

    def elementwise(self, result: str, source: str, size: str, body: Sequence[str], reads: str = "#id") -> None:
        """An op over all elements, which is asked about; the body's last value is `%v`."""
        maps = f"indexing_maps = [{reads}, #id], {_PARALLEL}"
        empty = self._empty(f"{result}.e", size)
        self.asks()
        self._generic(result, maps, f"ins({source} : tensor<{size}xf32>)", empty, ["^bb0(%in: f32, %out: f32):", *body])

    def gathered(self, result: str, source: str, table: int, indices: str, size: str, body: Sequence[str]) -> None:
        """An op over the elements of a table that indices name, which is asked about."""
        find = "%p = arith.index_cast %n : i32 to index"
        take = f"%in = tensor.extract {source}[%p] : tensor<{table}xf32>"
        maps = f"indexing_maps = [#id, #id], {_PARALLEL}"
        empty = self._empty(f"{result}.e", size)
        self.asks()
        block = ["^bb0(%n: i32, %out: f32):", find, take, *body]
        self._generic(result, maps, f"ins({indices} : tensor<{size}xi32>)", empty, block)

    def combined(
        self, result: str, operation: str, one: str, other: str, size: str, reads: str = "#id", *, asked: bool = False
    ) -> None:
        """Two matrices, element by element, or one whose rows go with elements of a vector."""
        second = size.partition("x")[0] if reads == "#row" else size
        maps = f"indexing_maps = [#id, {reads}, #id], {_PARALLEL}"
        inputs = f"ins({one}, {other} : tensor<{size}xf32>, tensor<{second}xf32>)"
        block = ["^bb0(%l: f32, %r: f32, %out: f32):", f"%v = {operation} %l, %r : f32"]
        empty = self._empty(f"{result}.e", size)
        if asked:
            self.asks()
        self._generic(result, maps, inputs, empty, block)

    def summed(self, result: str, source: str, size: str) -> None:
        """The sums of rows; they are not asked about."""
        maps = 'indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]'
        block = ["^bb0(%in: f32, %acc: f32):", "%v = arith.addf %in, %acc : f32"]
        start = self._filled(result, size.partition("x")[0])
        self._generic(result, maps, f"ins({source} : tensor<{size}xf32>)", start, block)

    def product(self, result: str, rows: int, inner: int, columns: int) -> None:
        """The product of the first two arguments; it is not asked about."""
        start = self._filled(result, f"{rows}x{columns}")
        self.line(
            f"{result} = linalg.matmul ins(%x0, %x1 : tensor<{rows}x{inner}xf32>, tensor<{inner}x{columns}xf32>) "
            f"outs({start}) -> tensor<{rows}x{columns}xf32>"
        )

    def applied(self, source: str, size: str, parts: Parts) -> str:
        """Ops one after the other, each a function so many times; returns the last one's name."""
        for number, (function, times) in enumerate(parts):
            self.elementwise(f"%y{number}", source, size, applied(function, times))
            source = f"%y{number}"
        return source

    def program(self, name: str, result: str, size: str, inputs: Sequence[str | Indices] = ()) -> Program:
        """The model, which returns this value."""
        given = ", ".join(f"%x{number}: tensor<{each}>" for number, each in enumerate(self.arguments))
        self.lines[3] = f"func.func @main({given}) -> tensor<{size}xf32> {{"
        self.line(f"return {result} : tensor<{size}xf32>")
        return Program(name, "\n".join([*self.lines, "}"]) + "\n", tuple(self.asked), tuple(inputs))


def applied(function: str, times: int) -> list[str]:
    """A function applied to `%in` so often, one after the other; the last value is `%v`."""
    names = ["%in", *(f"%t{number}" for number in range(1, times)), "%v"]
    return [f"{new} = {function} {old} : f32" for old, new in itertools.pairwise(names)]


def listed(parts: Parts) -> str:
    """Functions in words."""
    return ", ".join(f"{times} {function[5:]}" for function, times in parts)


# ---- programs


def chain(parts: Parts) -> Program:
    """Ops one after the other, each a function so many times."""
    writer = Writer([f"{SIZE}xf32"])
    return writer.program(listed(parts), writer.applied("%x0", SIZE, parts), SIZE)


def chain_then_sum(parts: Parts) -> Program:
    """A chain whose rows are summed up."""
    writer = Writer([f"{SIZE}xf32"])
    writer.summed("%s", writer.applied("%x0", SIZE, parts), SIZE)
    return writer.program(f"sum of {listed(parts)}", "%s", SIZE.partition("x")[0])


def sum_then_chain(size: str, before: Parts, after: Parts) -> Program:
    """Elements go through `before` and are summed up per row; then each is divided by its row's sum and goes through
    `after`: one kernel of two loops. The ops before are asked about first.
    """
    writer = Writer([f"{size}xf32"])
    writer.elementwise("%t", "%x0", size, applied(*before[0]))
    writer.summed("%s", "%t", size)
    writer.combined("%d", "arith.divf", "%x0", "%s", size, "#row")
    return writer.program(f"sum of {listed(before)}, {listed(after)}", writer.applied("%d", size, after), size)


def epilogue(parts: Parts, rows: int = 256, inner: int = 64, columns: int = 256) -> Program:
    """A matrix product, and a chain on its result."""
    writer = Writer([f"{rows}x{inner}xf32", f"{inner}x{columns}xf32"])
    writer.product("%p", rows, inner, columns)
    size = f"{rows}x{columns}"
    return writer.program(f"product, then {listed(parts)}", writer.applied("%p", size, parts), size)


def two_reads(functions: tuple[str, str], size: str, first: str = "#id", second: str = "#id") -> Program:
    """Two ops that read a matrix each, in these orders, and the sum of both."""
    writer = Writer([f"{size}xf32"] * 2)
    for name, source, function, reads in zip(("%a", "%b"), ("%x0", "%x1"), functions, (first, second), strict=True):
        writer.elementwise(name, source, size, applied(function, 1), reads)
    writer.combined("%s", "arith.addf", "%a", "%b", size)
    words = [
        f"{'turned ' * (reads != '#id')}{name[5:]}" for name, reads in zip(functions, (first, second), strict=True)
    ]
    return writer.program(f"{' + '.join(words)}, {size}", "%s", size)


def product_and_sum(size: str, factor: str = "#id", addend: str = "#id") -> Program:
    """A product of two matrices, element by element, to which a third is added: often one instruction does both.

    `factor` and `addend`: the orders in which the second and the third matrix are read.
    """
    writer = Writer([f"{size}xf32"] * 3)
    writer.combined("%p", "arith.mulf", "%x0", "%x1", size, factor, asked=True)
    writer.combined("%s", "arith.addf", "%p", "%x2", size, addend, asked=True)
    words = [f"{'turned ' * (reads != '#id')}{word}" for word, reads in (("factor", factor), ("addend", addend))]
    return writer.program(f"product and sum, {', '.join(words)}, {size}", "%s", size)


def sum_of_squares(size: str) -> Program:
    """The squares of a matrix, which is asked about, and the sums of their rows: the compiler makes one op of both."""
    writer = Writer([f"{size}xf32"])
    writer.elementwise("%a", "%x0", size, ["%v = arith.mulf %in, %in : f32"])
    writer.summed("%s", "%a", size)
    return writer.program(f"sum of squares, {size}", "%s", size.partition("x")[0])


def read_then_chain(functions: tuple[str, str], size: str, reads: str = "#id") -> Program:
    """An op that reads in this order, and another one on its result."""
    writer = Writer([f"{size}xf32"])
    writer.elementwise("%a", "%x0", size, applied(functions[0], 1), reads)
    writer.elementwise("%b", "%a", size, applied(functions[1], 1))
    turned = "turned " * (reads != "#id")
    return writer.program(f"{turned}{functions[0][5:]}, {functions[1][5:]}, {size}", "%b", size)


_GATHERED: Final = 512
"""The rows and columns of what is gathered."""


def gathered_alone(function: str, table: int) -> Program:
    """The op of `gather` that gathers, in any order, and the sum, without the other op."""
    size = f"{_GATHERED}x{_GATHERED}"
    writer = Writer([f"{table}xf32", f"{size}xi32", f"{size}xf32"])
    writer.gathered("%a", "%x0", table, "%x1", size, applied(function, 1))
    writer.combined("%s", "arith.addf", "%a", "%x2", size)
    inputs = (f"{table}xf32=1", Indices(_GATHERED, _GATHERED, table, shuffled=True), f"{size}xf32=0.5")
    return writer.program(f"gather {function[5:]} alone, {table} elements", "%s", size, inputs)


def beside_gather(function: str = "") -> Program:
    """The other op of `gather`, and the sum; without a function only the sum, which copies."""
    size = f"{_GATHERED}x{_GATHERED}"
    writer = Writer([f"{size}xf32", f"{size}xf32"])
    if function:
        writer.elementwise("%b", "%x0", size, applied(function, 1))
    writer.combined("%s", "arith.addf", "%b" if function else "%x0", "%x1", size)
    return writer.program(f"{function[5:] or 'nothing'} and a sum", "%s", size, (f"{size}xf32=0.5",) * 2)


def gather(form: str, functions: tuple[str, str], table: int, *, shuffled: bool) -> Program:
    """An op that gathers from a table, and another one: `first` or `last` beside it, or `chain`, on its result.

    The op that gathers is asked about first in the forms `first` and `chain`, and last in `last`.
    """
    size = f"{_GATHERED}x{_GATHERED}"
    writer = Writer([f"{table}xf32", f"{size}xi32", f"{size}xf32"])
    if form == "last":
        writer.elementwise("%b", "%x2", size, applied(functions[1], 1))
    writer.gathered("%a", "%x0", table, "%x1", size, applied(functions[0], 1))
    if form != "last":
        writer.elementwise("%b", "%a" if form == "chain" else "%x2", size, applied(functions[1], 1))
    writer.combined("%s", "arith.addf", "%b", "%x2" if form == "chain" else "%a", size)
    name = f"gather {functions[0][5:]} ({form}), {functions[1][5:]}, {table} elements"
    inputs = (f"{table}xf32=1", Indices(_GATHERED, _GATHERED, table, shuffled), f"{size}xf32=0.5")
    return writer.program(name, "%s", size, inputs)
