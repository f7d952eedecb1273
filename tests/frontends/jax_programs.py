"""Programs as users of JAX write them; what they cost is looked for on these lines."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Tree = Any
"""A tree of arrays."""


def linear(layer: Tree, x: jax.Array) -> jax.Array:
    return x @ layer["w"] + layer["b"]


def perceptron(layers: Tree, x: jax.Array) -> jax.Array:
    for number, layer in enumerate(layers[:-1]):
        with jax.named_scope(f"layer{number}"):
            x = jax.nn.relu(linear(layer, x))
    with jax.named_scope("head"):
        return jax.nn.log_softmax(linear(layers[-1], x))


def loss(layers: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.sum(perceptron(layers, x) * y, axis=-1))


@partial(jax.jit, static_argnames="rate", donate_argnums=0)
def train_step(layers: Tree, x: jax.Array, y: jax.Array, step: jax.Array, rate: float) -> tuple[jax.Array, Tree]:  # noqa: ARG001
    """One step of a perceptron's training; the number of the step is not used."""
    value, slopes = jax.value_and_grad(loss)(layers, x, y)
    with jax.named_scope("descend"):
        layers = jax.tree.map(lambda weight, slope: weight - rate * slope, layers, slopes)
    return value, layers


def train_arguments() -> tuple[Any, ...]:
    sizes = [(96, 128), (128, 128), (128, 10)]
    keys = jax.random.split(jax.random.key(3), len(sizes) + 2)
    layers = [
        {"w": jax.random.normal(key, size) * 0.1, "b": jnp.full(size[1], 0.01)}
        for key, size in zip(keys, sizes, strict=False)
    ]
    y = jax.nn.one_hot(jax.random.randint(keys[-1], 32, 0, 10), 10)
    return layers, jax.random.normal(keys[-2], (32, 96)), y, jnp.int32(7)


def attention(block: Tree, x: jax.Array, heads: int) -> jax.Array:
    tokens, width = x.shape
    q, k, v = jnp.split(linear(block["qkv"], x), 3, axis=-1)
    q, k, v = (each.reshape(tokens, heads, width // heads).transpose(1, 0, 2) for each in (q, k, v))
    scores = jax.nn.softmax(q @ k.transpose(0, 2, 1) / jnp.sqrt(width // heads), axis=-1)
    return linear(block["out"], (scores @ v).transpose(1, 0, 2).reshape(tokens, width))


def norm(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def gpt_block(x: jax.Array, block: Tree) -> tuple[jax.Array, None]:
    with jax.named_scope("attn"):
        x = x + attention(block, norm(x), heads=4)
    with jax.named_scope("ffn"):
        x = x + linear(block["down"], jax.nn.gelu(linear(block["up"], norm(x))))
    return x, None


@jax.jit
def gpt(blocks: Tree, x: jax.Array) -> jax.Array:
    """Equal blocks, one after the other."""
    with jax.named_scope("blocks"):
        return lax.scan(jax.checkpoint(gpt_block), x, blocks)[0]


def gpt_arguments(layers: int = 3, width: int = 64) -> tuple[Any, ...]:
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    keys = jax.random.split(jax.random.key(5), len(shapes) + 1)
    blocks = {
        name: {"w": jax.random.normal(key, (layers, *shape)) * 0.05, "b": jnp.zeros((layers, shape[1]))}
        for (name, shape), key in zip(shapes.items(), keys, strict=False)
    }
    return blocks, jax.random.normal(keys[-1], (32, width))


def picture_class(filters: Tree, picture: jax.Array) -> jax.Array:
    """The class of one picture, `[height, width, colours]`."""
    x = picture[None]
    for number, weights in enumerate(filters["convolutions"]):
        with jax.named_scope(f"conv{number}"):
            x = lax.conv_general_dilated(x, weights, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x)
    with jax.named_scope("head"):
        return x.mean((0, 1, 2)) @ filters["head"]


classify = jax.jit(jax.vmap(picture_class, in_axes=(None, 0)))


def classify_arguments() -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(8), 4)
    convolutions = [jax.random.normal(keys[0], (3, 3, 3, 16)) * 0.2, jax.random.normal(keys[1], (3, 3, 16, 16)) * 0.1]
    filters = {"convolutions": convolutions, "head": jax.random.normal(keys[2], (16, 10))}
    return filters, jax.random.normal(keys[3], (8, 24, 24, 3))
