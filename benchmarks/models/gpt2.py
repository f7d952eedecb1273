"""GPT-2: by itself the smallest of those that were published, with 124 million weights."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.models.layers import attention, gelu, layer_norm, linear
from benchmarks.models.program import Function, Module, Value

_EPSILON = 1e-5


@dataclass(frozen=True)
class Gpt2:
    """How large it is."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    tokens: int = 64
    positions: int = 1024

    def module(self) -> Module:
        """`main`: token numbers [tokens] to logits [tokens, vocabulary]."""
        module = Module("gpt2")
        main = module.function("main")
        numbers = main.argument((self.tokens,), "i32", below=self.vocabulary)
        with main.scope("embedding"):
            table = main.parameter("wte", (self.vocabulary, self.width))
            places = main.part(main.parameter("wpe", (self.positions, self.width)), 0, 0, self.tokens)
            value = main.binary("add", main.rows(table, numbers), places)
        with main.scope("mask"):
            square = (self.tokens, self.tokens)
            mask = main.at_most(main.iota(square, 1), main.iota(square, 0))
        for layer in range(self.layers):
            with main.scope(f"h{layer}"):
                value = self._layer(main, value, mask)
        with main.scope("head"):
            with main.scope("norm"):
                value = layer_norm(main, value, _EPSILON)
            main.results = (main.contracted(value, table, (1, 1)),)
        return module

    def _layer(self, main: Function, value: Value, mask: Value) -> Value:
        with main.scope("attn"):
            with main.scope("norm"):
                normed = layer_norm(main, value, _EPSILON)
            with main.scope("qkv"):
                joined = linear(main, normed, 3 * self.width)
            query, key, found = (main.part(joined, 1, at * self.width, (at + 1) * self.width) for at in range(3))
            mixed = attention(main, query, key, found, self.heads, mask)
            with main.scope("out"):
                value = main.binary("add", value, linear(main, mixed, self.width))
        with main.scope("mlp"):
            with main.scope("norm"):
                normed = layer_norm(main, value, _EPSILON)
            with main.scope("up"):
                hidden = gelu(main, linear(main, normed, 4 * self.width))
            with main.scope("down"):
                return main.binary("add", value, linear(main, hidden, self.width))
