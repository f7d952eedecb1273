"""The text of a decoder of any number of layers, in StableHLO: `python -m benchmarks.decoder 48 > decoder48.mlir`.

Each layer is that of GPT-2 (norm, attention of several heads, norm, two products with GELU between), as small as asked
for: what grows with layers is the number of ops and of sites, not the work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import click


@dataclass
class _Writer:
    """Lines of a function; each value is named once."""

    lines: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    scope: str = ""
    _count: int = 0

    def argument(self, *shape: int) -> str:
        self.arguments.append(f"%a{len(self.arguments)}: {tensor(*shape)}")
        return f"%a{len(self.arguments) - 1}"

    def op(self, text: str) -> str:
        """Write an op, whose result is returned."""
        self._count += 1
        name = text.split(maxsplit=1)[0].strip('"').removeprefix("stablehlo.")
        self.lines.append(f'    %v{self._count} = {text} loc("{self.scope}/{name}")')
        return f"%v{self._count}"

    def constant(self, value: str, *shape: int) -> str:
        return self.op(f"stablehlo.constant dense<{value}> : {tensor(*shape)}")

    def unary(self, name: str, of: str, *shape: int) -> str:
        return self.op(f"stablehlo.{name} {of} : {tensor(*shape)}")

    def binary(self, name: str, one: str, other: str, *shape: int) -> str:
        return self.op(f"stablehlo.{name} {one}, {other} : {tensor(*shape)}")

    def spread(self, of: str, from_shape: tuple[int, ...], axes: tuple[int, ...], to_shape: tuple[int, ...]) -> str:
        kinds = f"({tensor(*from_shape)}) -> {tensor(*to_shape)}"
        return self.op(f"stablehlo.broadcast_in_dim {of}, dims = {list(axes)} : {kinds}")

    def reduced(self, name: str, of: str, start: str, *shape: int) -> str:
        """Along the last axis."""
        first = self.constant(start)
        kinds = f"({tensor(*shape)}, tensor<f32>) -> {tensor(*shape[:-1])}"
        along = f"applies stablehlo.{name} across dimensions = [{len(shape) - 1}]"
        return self.op(f"stablehlo.reduce({of} init: {first}) {along} : {kinds}")

    def product(self, one: str, shape: tuple[int, int], other: str, width: int) -> str:
        kinds = f"({tensor(*shape)}, {tensor(shape[1], width)}) -> {tensor(shape[0], width)}"
        return self.op(f"stablehlo.dot_general {one}, {other}, contracting_dims = [1] x [0] : {kinds}")

    def reshaped(self, of: str, from_shape: tuple[int, ...], to_shape: tuple[int, ...]) -> str:
        return self.op(f"stablehlo.reshape {of} : ({tensor(*from_shape)}) -> {tensor(*to_shape)}")

    def turned(self, of: str, from_shape: tuple[int, ...], order: tuple[int, ...]) -> str:
        to_shape = tuple(from_shape[axis] for axis in order)
        kinds = f"({tensor(*from_shape)}) -> {tensor(*to_shape)}"
        return self.op(f"stablehlo.transpose {of}, dims = {list(order)} : {kinds}")

    def sliced(self, of: str, shape: tuple[int, int], begin: int, end: int) -> str:
        kinds = f"({tensor(*shape)}) -> {tensor(shape[0], end - begin)}"
        return self.op(f"stablehlo.slice {of} [0:{shape[0]}, {begin}:{end}] : {kinds}")


def tensor(*shape: int) -> str:
    """The type of numbers of a shape."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}f32>"


@dataclass(frozen=True)
class Decoder:
    """How large a decoder is."""

    layers: int
    width: int = 64
    heads: int = 4
    tokens: int = 16

    def text(self) -> str:
        """The module."""
        writer = _Writer()
        shape = (self.tokens, self.width)
        value = writer.argument(*shape)
        for layer in range(self.layers):
            for scope, part in (("attn", self._attention), ("mlp", self._perceptron)):
                writer.scope = f"h{layer}/{scope}"
                normed = self._normed(writer, value)
                value = writer.binary("add", value, part(writer, normed), *shape)
        return "\n".join(self._module(writer, value)) + "\n"

    def _module(self, writer: _Writer, value: str) -> Iterator[str]:
        kind = tensor(self.tokens, self.width)
        yield "module {"
        yield f"  func.func @main({', '.join(writer.arguments)}) -> {kind} {{"
        yield from writer.lines
        yield f"    return {value} : {kind}"
        yield "  }"
        yield "}"

    def _normed(self, writer: _Writer, value: str) -> str:
        """To mean 0 and deviation 1, times a weight of each column."""
        rows, shape = (self.tokens,), (self.tokens, self.width)
        count = writer.constant(f"{self.width}.0", *rows)
        total = writer.reduced("add", value, "0.0", *shape)
        mean = writer.spread(writer.binary("divide", total, count, *rows), rows, (0,), shape)
        centred = writer.binary("subtract", value, mean, *shape)
        squares = writer.reduced("add", writer.binary("multiply", centred, centred, *shape), "0.0", *shape)
        variance = writer.binary("divide", squares, count, *rows)
        least = writer.constant("1.0e-05", *rows)
        scale = writer.unary("rsqrt", writer.binary("add", variance, least, *rows), *rows)
        scaled = writer.binary("multiply", centred, writer.spread(scale, rows, (0,), shape), *shape)
        weight = writer.spread(writer.argument(self.width), (self.width,), (1,), shape)
        return writer.binary("multiply", scaled, weight, *shape)

    def _attention(self, writer: _Writer, value: str) -> str:
        shape, size = (self.tokens, self.width), self.width // self.heads
        wide = (self.tokens, 3 * self.width)
        joined = writer.product(value, shape, writer.argument(self.width, wide[1]), wide[1])
        parts = [writer.sliced(joined, wide, part * self.width, (part + 1) * self.width) for part in range(3)]
        split = (self.tokens, self.heads, size)
        query, key, found = (writer.turned(writer.reshaped(each, shape, split), split, (1, 0, 2)) for each in parts)
        by_head, square = (self.heads, self.tokens, size), (self.heads, self.tokens, self.tokens)
        kinds = f"({tensor(*by_head)}, {tensor(*by_head)}) -> {tensor(*square)}"
        batched = "batching_dims = [0] x [0], contracting_dims"
        scores = writer.op(f"stablehlo.dot_general {query}, {key}, {batched} = [2] x [2] : {kinds}")
        factor = writer.constant(f"{1 / math.sqrt(size):e}", *square)
        weights = self._softmax(writer, writer.binary("multiply", scores, factor, *square), square)
        kinds = f"({tensor(*square)}, {tensor(*by_head)}) -> {tensor(*by_head)}"
        mixed = writer.op(f"stablehlo.dot_general {weights}, {found}, {batched} = [2] x [1] : {kinds}")
        flat = writer.reshaped(writer.turned(mixed, by_head, (1, 0, 2)), split, shape)
        return writer.product(flat, shape, writer.argument(self.width, self.width), self.width)

    def _softmax(self, writer: _Writer, value: str, shape: tuple[int, int, int]) -> str:
        most = writer.spread(writer.reduced("maximum", value, "0xFF800000", *shape), shape[:-1], (0, 1), shape)
        powers = writer.unary("exponential", writer.binary("subtract", value, most, *shape), *shape)
        total = writer.spread(writer.reduced("add", powers, "0.0", *shape), shape[:-1], (0, 1), shape)
        return writer.binary("divide", powers, total, *shape)

    def _perceptron(self, writer: _Writer, value: str) -> str:
        wide = (self.tokens, 4 * self.width)
        hidden = writer.product(value, (self.tokens, self.width), writer.argument(self.width, wide[1]), wide[1])
        bias = writer.spread(writer.argument(wide[1]), (wide[1],), (1,), wide)
        hidden = writer.binary("add", hidden, bias, *wide)
        cube = writer.binary("multiply", hidden, writer.binary("multiply", hidden, hidden, *wide), *wide)
        part = writer.binary("multiply", cube, writer.constant("4.471500e-02", *wide), *wide)
        inner = writer.binary("add", hidden, part, *wide)
        gate = writer.unary(
            "tanh", writer.binary("multiply", inner, writer.constant("0.797884583", *wide), *wide), *wide
        )
        opened = writer.binary("add", gate, writer.constant("1.0", *wide), *wide)
        half = writer.binary("multiply", hidden, writer.constant("0.5", *wide), *wide)
        active = writer.binary("multiply", half, opened, *wide)
        return writer.product(active, wide, writer.argument(wide[1], self.width), self.width)


@click.command()
@click.argument("layers", type=click.IntRange(1))
def main(layers: int) -> None:
    """Print a decoder of LAYERS layers."""
    click.echo(Decoder(layers).text(), nl=False)


if __name__ == "__main__":
    main()
