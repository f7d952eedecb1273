"""What networks have in common: norms, products with weights, activations, attention."""

from __future__ import annotations

import math
from typing import Final

from benchmarks.models.program import Function, Value

LEAST: Final = -1.0e9
"""What masked scores are, before softmax."""


def linear(into: Function, value: Value, width: int, *, bias: bool = True) -> Value:
    """A product of rows with weights [inputs, outputs], plus a bias."""
    weights = into.parameter("weight", (value.shape[-1], width), deviation=value.shape[-1] ** -0.5)
    made = into.contracted(value, weights, (len(value.shape) - 1, 0))
    return into.binary("add", made, into.parameter("bias", (width,))) if bias else made


def layer_norm(into: Function, value: Value, epsilon: float) -> Value:
    """Rows to mean 0 and deviation 1, times a weight of each column, plus a bias."""
    mean = _mean(into, value)
    centred = into.binary("subtract", value, over_rows(into, mean, value))
    variance = _mean(into, into.binary("multiply", centred, centred))
    least = into.constant(f"{epsilon:e}", variance.shape)
    scale = into.unary("rsqrt", into.binary("add", variance, least))
    scaled = into.binary("multiply", centred, over_rows(into, scale, value))
    weighed = into.binary("multiply", scaled, _norm_weight(into, value))
    return into.binary("add", weighed, into.parameter("bias", value.shape[-1:]))


def rms_norm(into: Function, value: Value, epsilon: float) -> Value:
    """Rows to a mean square of 1, times a weight of each column."""
    squares = _mean(into, into.binary("multiply", value, value))
    scale = into.unary("rsqrt", into.binary("add", squares, into.constant(f"{epsilon:e}", squares.shape)))
    scaled = into.binary("multiply", value, over_rows(into, scale, value))
    return into.binary("multiply", scaled, _norm_weight(into, value))


def over_rows(into: Function, value: Value, like: Value) -> Value:
    """A value of each row, at every column."""
    return into.spread(value, like.shape, range(len(value.shape)))


def gelu(into: Function, value: Value) -> Value:
    """The activation of GPT-2, with tanh."""
    cube = into.binary("multiply", value, into.binary("multiply", value, value))
    inner = into.scaled(into.binary("add", value, into.scaled(cube, 0.044715)), math.sqrt(2 / math.pi))
    opened = into.binary("add", into.unary("tanh", inner), into.constant("1.0", value.shape))
    return into.binary("multiply", into.scaled(value, 0.5), opened)


def softmax(into: Function, value: Value) -> Value:
    """Along the last axis."""
    most = over_rows(into, into.reduced("maximum", value), value)
    powers = into.unary("exponential", into.binary("subtract", value, most))
    return into.binary("divide", powers, over_rows(into, into.reduced("add", powers), value))


def attention(into: Function, query: Value, key: Value, value: Value, heads: int, mask: Value | None) -> Value:
    """Each [tokens, width]; `mask`: [tokens, tokens], true where a token is seen."""
    tokens, width = query.shape
    size = width // heads
    q, k, v = (into.turned(into.reshaped(each, tokens, heads, size), 1, 0, 2) for each in (query, key, value))
    scores = into.scaled(into.contracted(q, k, (2, 2), (0, 0)), 1 / math.sqrt(size))
    if mask is not None:
        seen = into.spread(mask, scores.shape, (1, 2))
        scores = into.select(seen, scores, into.constant(f"{LEAST:e}", scores.shape))
    mixed = into.contracted(softmax(into, scores), v, (2, 1), (0, 0))
    return into.reshaped(into.turned(mixed, 1, 0, 2), tokens, width)


def _mean(into: Function, value: Value) -> Value:
    total = into.reduced("add", value)
    return into.scaled(total, 1 / value.shape[-1])


def _norm_weight(into: Function, value: Value) -> Value:
    return into.parameter("weight", value.shape[-1:], mean=1.0, deviation=0.1)
