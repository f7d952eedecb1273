"""A decoder like Llama: RMS norms, rotary places, heads that share keys, gated perceptrons, a cache of both.

Two functions share the weights: `prefill` reads a prompt and makes the cache, `decode` takes one token and puts it into
the cache. Weights are f16, or i8 with a scale for each output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.models.layers import LEAST, rms_norm, softmax
from benchmarks.models.program import Function, Module, Value

_EPSILON = 1e-5
_BASE = 10_000.0


@dataclass(frozen=True)
class Llama:
    """How large it is, by itself 1.1 billion weights; `places`: how many tokens the cache holds; `kind`: of weights."""

    kind: str = "f16"
    layers: int = 22
    width: int = 2048
    heads: int = 32
    cached_heads: int = 4
    hidden: int = 5632
    vocabulary: int = 32000
    tokens: int = 16
    places: int = 64

    @property
    def size(self) -> int:
        """Of a head."""
        return self.width // self.heads

    @property
    def cache(self) -> tuple[int, int, int, int]:
        """The shape of the cache of keys, and of that of values."""
        return (self.layers, self.places, self.cached_heads, self.size)

    def module(self) -> Module:
        """`prefill`: tokens to logits of the last, keys, values; `decode`: token, place, keys, values to the same."""
        module = Module(f"llama_{self.kind}")
        prefill = module.function("prefill")
        numbers = prefill.argument((self.tokens,), "i32", below=self.vocabulary)
        with prefill.scope("cache"):
            place = prefill.constant("0", (), "i32")
            caches = [prefill.constant("0.0", self.cache, "f16") for _ in range(2)]
        self._write(prefill, numbers, place, caches)
        decode = module.function("decode")
        number = decode.argument((1,), "i32", below=self.vocabulary)
        place = decode.argument((), "i32", below=self.places)
        self._write(decode, number, place, [decode.argument(self.cache, "f16") for _ in range(2)])
        return module

    def _write(self, into: Function, numbers: Value, place: Value, caches: list[Value]) -> None:
        tokens = numbers.shape[0]
        with into.scope("embedding"):
            table = into.parameter("table", (self.vocabulary, self.width), "f16", deviation=1.0)
            value = into.converted(into.rows(table, numbers), "f32")
        with into.scope("rotary"):
            places = into.binary("add", into.iota((tokens,), 0), into.spread(place, (tokens,), ()))
            turns = self._turns(into, places)
        with into.scope("mask"):
            square = (tokens, self.places)
            mask = into.at_most(into.iota(square, 1), into.spread(places, square, (0,)))
        for layer in range(self.layers):
            with into.scope(f"layer{layer}"):
                value = self._layer(into, value, layer, place, caches, turns, mask)
        with into.scope("head"):
            last = into.part(value, 0, tokens - 1, tokens)
            with into.scope("norm"):
                last = rms_norm(into, last, _EPSILON)
            logits = self._linear(into, last, self.vocabulary)
        into.results = (logits, *caches)

    def _layer(
        self,
        into: Function,
        value: Value,
        layer: int,
        place: Value,
        caches: list[Value],
        turns: tuple[Value, Value],
        mask: Value,
    ) -> Value:
        """A layer, which puts its keys and values into the caches."""
        with into.scope("attn"):
            with into.scope("norm"):
                normed = rms_norm(into, value, _EPSILON)
            with into.scope("q"):
                query = self._turned(into, self._by_head(into, normed, self.heads), turns)
            for at, name in enumerate("kv"):
                with into.scope(name):
                    made = self._by_head(into, normed, self.cached_heads)
                    made = self._turned(into, made, turns) if name == "k" else made
                    caches[at] = self._cached(into, caches[at], made, layer, place)
            keys, values = (self._of_layer(into, cache, layer) for cache in caches)
            mixed = self._attention(into, query, keys, values, mask)
            with into.scope("o"):
                value = into.binary("add", value, self._linear(into, mixed, self.width))
        with into.scope("mlp"):
            with into.scope("norm"):
                normed = rms_norm(into, value, _EPSILON)
            with into.scope("gate"):
                gate = self._linear(into, normed, self.hidden)
                gate = into.binary("multiply", gate, into.unary("logistic", gate))
            with into.scope("up"):
                opened = into.binary("multiply", gate, self._linear(into, normed, self.hidden))
            with into.scope("down"):
                return into.binary("add", value, self._linear(into, opened, self.width))

    def _linear(self, into: Function, value: Value, width: int) -> Value:
        """A product with weights [outputs, inputs]."""
        inputs = value.shape[-1]
        weights = into.parameter("weight", (width, inputs), self.kind, deviation=inputs**-0.5)
        made = into.contracted(value, into.converted(weights, "f32"), (1, 1))
        if self.kind == "i8":
            middle = 1 / (73 * math.sqrt(inputs))  # 73: the deviation of numbers from -127 to 127
            made = into.binary("multiply", made, into.parameter("scale", (width,), mean=middle, deviation=middle / 10))
        return made

    def _by_head(self, into: Function, value: Value, heads: int) -> Value:
        return into.reshaped(self._linear(into, value, heads * self.size), value.shape[0], heads, self.size)

    def _turns(self, into: Function, places: Value) -> tuple[Value, Value]:
        """Cosine and sine of each place, [tokens, half a head]."""
        half = self.size // 2
        shape = (places.shape[0], half)
        speeds = into.listed([_BASE ** (-at / half) for at in range(half)])
        along = into.spread(into.converted(places, "f32"), shape, (0,))
        angles = into.binary("multiply", along, speeds)
        return into.unary("cosine", angles), into.unary("sine", angles)

    def _turned(self, into: Function, value: Value, turns: tuple[Value, Value]) -> Value:
        """Each pair of a head's halves turned by its place: [tokens, heads, size]."""
        half = self.size // 2
        one, other = into.part(value, 2, 0, half), into.part(value, 2, half, self.size)
        cosine, sine = (into.spread(each, one.shape, (0, 2)) for each in turns)
        first = into.binary("subtract", into.binary("multiply", one, cosine), into.binary("multiply", other, sine))
        second = into.binary("add", into.binary("multiply", other, cosine), into.binary("multiply", one, sine))
        return into.joined(first, second, 2)

    def _cached(self, into: Function, cache: Value, made: Value, layer: int, place: Value) -> Value:
        piece = into.reshaped(into.converted(made, "f16"), 1, *made.shape)
        at = [into.constant(str(layer), (), "i32"), place, *(into.constant("0", (), "i32") for _ in range(2))]
        return into.updated(cache, piece, at)

    def _of_layer(self, into: Function, cache: Value, layer: int) -> Value:
        return into.converted(into.reshaped(into.part(cache, 0, layer, layer + 1), *self.cache[1:]), "f32")

    def _attention(self, into: Function, query: Value, keys: Value, values: Value, mask: Value) -> Value:
        """`query`: [tokens, heads, size]; keys and values [places, cached heads, size]."""
        tokens, shared = query.shape[0], self.heads // self.cached_heads
        grouped = into.reshaped(query, tokens, self.cached_heads, shared, self.size)
        grouped = into.reshaped(into.turned(grouped, 1, 0, 2, 3), self.cached_heads, tokens * shared, self.size)
        scores = into.contracted(grouped, keys, (2, 2), (0, 1))
        scores = into.reshaped(scores, self.cached_heads, tokens, shared, self.places)
        scores = into.scaled(scores, 1 / math.sqrt(self.size))
        seen = into.spread(mask, scores.shape, (1, 3))
        weights = softmax(into, into.select(seen, scores, into.constant(f"{LEAST:e}", scores.shape)))
        weights = into.reshaped(weights, self.cached_heads, tokens * shared, self.places)
        mixed = into.contracted(weights, values, (2, 0), (0, 1))
        mixed = into.turned(into.reshaped(mixed, self.cached_heads, tokens, shared, self.size), 1, 0, 2, 3)
        return into.reshaped(mixed, tokens, self.width)
