"""BERT: by itself the base one, with 109 million weights; the encoder and its pooler."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.models.layers import attention, gelu, layer_norm, linear
from benchmarks.models.program import Function, Module, Value

_EPSILON = 1e-12


@dataclass(frozen=True)
class Bert:
    """How large it is."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 30522
    tokens: int = 128
    positions: int = 512

    def module(self) -> Module:
        """`main`: numbers of tokens and segments, [tokens] each, to [tokens, width] and what is pooled, [1, width]."""
        module = Module("bert")
        main = module.function("main")
        numbers, segments = (main.argument((self.tokens,), "i32", below=most) for most in (self.vocabulary, 2))
        with main.scope("embeddings"):
            words = main.rows(main.parameter("word", (self.vocabulary, self.width), deviation=1.0), numbers)
            kinds = main.rows(main.parameter("segment", (2, self.width), deviation=1.0), segments)
            table = main.parameter("position", (self.positions, self.width), deviation=1.0)
            places = main.part(table, 0, 0, self.tokens)
            value = layer_norm(main, main.binary("add", main.binary("add", words, kinds), places), _EPSILON)
        for layer in range(self.layers):
            with main.scope(f"encoder/layer{layer}"):
                value = self._layer(main, value)
        with main.scope("pooler"):
            pooled = main.unary("tanh", linear(main, main.part(value, 0, 0, 1), self.width))
        main.results = (value, pooled)
        return module

    def _layer(self, main: Function, value: Value) -> Value:
        with main.scope("attention"):
            parts = []
            for name in ("query", "key", "value"):
                with main.scope(name):
                    parts.append(linear(main, value, self.width))
            query, key, found = parts
            mixed = attention(main, query, key, found, self.heads, None)
            with main.scope("output"):
                value = _normed_sum(main, value, linear(main, mixed, self.width))
        with main.scope("intermediate"):
            hidden = gelu(main, linear(main, value, 4 * self.width))
        with main.scope("output"):
            return _normed_sum(main, value, linear(main, hidden, self.width))


def _normed_sum(main: Function, value: Value, more: Value) -> Value:
    summed = main.binary("add", value, more)
    with main.scope("norm"):
        return layer_norm(main, summed, _EPSILON)
