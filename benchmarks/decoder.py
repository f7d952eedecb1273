"""The text of a decoder of any number of layers, in StableHLO: `python -m benchmarks.decoder 48 > decoder48.mlir`.

Each layer is that of GPT-2 (norm, attention of several heads, norm, two products with GELU between), as small as asked
for, and its weights are arguments: what grows with layers is the number of ops and of sites, not the work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import click

from benchmarks.models.layers import gelu, over_rows, softmax
from benchmarks.models.program import Function, Module, Value


@dataclass(frozen=True)
class Decoder:
    """How large a decoder is."""

    layers: int
    width: int = 64
    heads: int = 4
    tokens: int = 16

    def text(self) -> str:
        """The module."""
        module = Module("decoder")
        main = module.function("main")
        value = main.argument((self.tokens, self.width))
        for layer in range(self.layers):
            for scope, part in (("attn", self._attention), ("mlp", self._perceptron)):
                with main.scope(f"h{layer}/{scope}"):
                    value = main.binary("add", value, part(main, self._normed(main, value)))
        main.results = (value,)
        return module.text

    def _normed(self, main: Function, value: Value) -> Value:
        """To mean 0 and deviation 1, times a weight of each column."""
        rows = (self.tokens,)
        count = main.constant(f"{self.width}.0", rows)
        mean = main.binary("divide", main.reduced("add", value), count)
        centred = main.binary("subtract", value, over_rows(main, mean, value))
        variance = main.binary("divide", main.reduced("add", main.binary("multiply", centred, centred)), count)
        scale = main.unary("rsqrt", main.binary("add", variance, main.constant("1.0e-05", rows)))
        scaled = main.binary("multiply", centred, over_rows(main, scale, value))
        return main.binary("multiply", scaled, main.argument((self.width,)))

    def _attention(self, main: Function, value: Value) -> Value:
        size = self.width // self.heads
        joined = main.contracted(value, main.argument((self.width, 3 * self.width)), (1, 0))
        parts = [main.part(joined, 1, part * self.width, (part + 1) * self.width) for part in range(3)]
        split = (self.tokens, self.heads, size)
        query, key, found = (main.turned(main.reshaped(each, *split), 1, 0, 2) for each in parts)
        scores = main.contracted(query, key, (2, 2), (0, 0))
        weights = softmax(main, main.scaled(scores, 1 / math.sqrt(size)))
        mixed = main.contracted(weights, found, (2, 1), (0, 0))
        flat = main.reshaped(main.turned(mixed, 1, 0, 2), self.tokens, self.width)
        return main.contracted(flat, main.argument((self.width, self.width)), (1, 0))

    def _perceptron(self, main: Function, value: Value) -> Value:
        wide = 4 * self.width
        hidden = main.contracted(value, main.argument((self.width, wide)), (1, 0))
        hidden = main.binary("add", hidden, main.argument((wide,)))
        return main.contracted(gelu(main, hidden), main.argument((wide, self.width)), (1, 0))


@click.command()
@click.argument("layers", type=click.IntRange(1))
def main(layers: int) -> None:
    """Print a decoder of LAYERS layers."""
    click.echo(Decoder(layers).text(), nl=False)


if __name__ == "__main__":
    main()
