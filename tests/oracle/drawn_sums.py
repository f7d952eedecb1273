"""Draws kernels with sums in them: reductions, norms, products, convolutions."""

from __future__ import annotations

from random import Random
from typing import Final

from tests.oracle.drawn import COSTLY, Asked, Case, drawing, shown
from tests.oracle.sketch import Shape, Sketch, Value

_ROWS: Final = ((128, 256), (256, 256), (64, 512), (256, 512), (512, 128), (100, 300))


def _sums(sketch: Sketch, value: Value, part: str, axis: int = 1, function: str = "add") -> Value:
    """The sums of rows or columns; where the part is left out, an argument."""
    if sketch.count(part):
        return sketch.reduce(value, axis, part, function)
    return sketch.argument((value.shape[1 - axis],), value.dtype)


@drawing("chain then sum")
def chain_then_sum(random: Random, dialect: str) -> Case:
    """Functions of a matrix whose rows or columns are summed up."""
    shape, (one, two), axis = random.choice(_ROWS), random.sample(COSTLY, 2), random.choice([0, 1, 1])

    def write(sketch: Sketch) -> Value:
        value = sketch.unary(one, sketch.argument(shape), "one")
        return sketch.reduce(sketch.unary(two, value, "two"), axis, "sum")

    asked = Asked(("one",), reads=True), Asked(("two",))
    name = f"sum of {('columns', 'rows')[axis]} of {one}, {two}, {shown(shape)}"
    return Case("chain then sum", name, dialect, write, asked)


@drawing("sum then chain")
def sum_then_chain(random: Random, dialect: str) -> Case:
    """Rows are divided by their sums; functions before and after."""
    shape, (one, two) = random.choice(_ROWS), random.sample(COSTLY, 2)

    def write(sketch: Sketch) -> Value:
        value = sketch.argument(shape)
        sums = _sums(sketch, sketch.unary(one, value, "one"), "sum")
        divided = sketch.pair("div", value, sketch.spread(sums, shape, 0), "division")
        return sketch.unary(two, divided, "two")

    asked = Asked(("one",), reads=True, mixed=True), Asked(("two",), stores=True, mixed=True)
    return Case("sum then chain", f"sum of {one}; division, {two}, {shown(shape)}", dialect, write, asked)


@drawing("softmax")
def softmax(random: Random, dialect: str) -> Case:
    """A softmax by hand, and functions of its result."""
    shape = random.choice(_ROWS)
    functions = dict(zip("ab", random.sample(COSTLY, random.choice([1, 2])), strict=False))

    def write(sketch: Sketch) -> Value:
        value = sketch.argument(shape)
        if sketch.count("softmax"):
            most = sketch.reduce(value, 1, "softmax", "max")
            less = sketch.pair("sub", value, sketch.spread(most, shape, 0, "softmax"), "softmax")
            raised = sketch.unary("exp", less, "softmax")
            sums = sketch.reduce(raised, 1, "softmax")
            value = sketch.pair("div", raised, sketch.spread(sums, shape, 0, "softmax"), "softmax")
        return _tail(sketch, value, functions)

    last = list(functions)[-1]
    functional = [Asked((part,), stores=part == last) for part in functions]
    asked = Asked(("softmax",), copies=False, reads=True), *functional
    return Case("softmax", f"softmax, {', '.join(functions.values())}, {shown(shape)}", dialect, write, tuple(asked))


def _tail(sketch: Sketch, value: Value, functions: dict[str, str]) -> Value:
    for part, function in functions.items():
        value = sketch.unary(function, value, part)
    return value


@drawing("rms norm")
def rms_norm(random: Random, dialect: str) -> Case:
    """Rows over the root of the mean of their squares; functions of the mean, and of the result."""
    shape, of_mean, after = random.choice(_ROWS), random.choice(["", "tanh", "exp"]), random.choice(["", *COSTLY])

    def write(sketch: Sketch) -> Value:
        value = sketch.argument(shape)
        squares = sketch.pair("mul", value, value, "squares") if sketch.count("squares") else value
        sums = _sums(sketch, squares, "squares")
        inner = sketch.unary(of_mean, sums, "mean") if of_mean else sums
        root = sketch.unary("rsqrt", inner, "root")
        scaled = sketch.pair("mul", value, sketch.spread(root, shape, 0), "scaled")
        gained = sketch.binary("mul", scaled, "gain", (shape[1],), 1)
        return sketch.unary(after, gained, "after") if after else gained

    asked = [Asked(("squares",), copies=False, reads=True, mixed=True)]
    if of_mean:
        asked.append(Asked(("mean",)))
    if after:
        asked.append(Asked(("after",), stores=True, mixed=True))
    name = f"rms norm, {of_mean or 'nothing'} of the mean, {after or 'nothing'} after, {shown(shape)}"
    return Case("rms norm", name, dialect, write, tuple(asked))


@drawing("layer norm")
def layer_norm(random: Random, dialect: str) -> Case:
    """Rows less their given mean over the root of their variance; functions in either pass, and of the deviations."""
    shape, (inner, after) = random.choice(_ROWS), random.sample(COSTLY, 2)

    def write(sketch: Sketch) -> Value:
        value, mean, less = sketch.argument(shape), sketch.argument(shape[:1]), sketch.argument(shape[:1])
        if sketch.count("variance"):
            deviation = sketch.pair("sub", value, sketch.spread(mean, shape, 0), "variance")
            squares = sketch.pair("mul", deviation, deviation, "variance")
            sums = sketch.reduce(sketch.unary(inner, squares, "inner"), 1, "variance")
        else:
            sums = mean
        root = sketch.unary("rsqrt", sums)
        # Written as a sum, so that the compiler computes it anew: a value that two passes take is a kernel of its own.
        again = sketch.pair("add", value, sketch.spread(less, shape, 0))
        scaled = sketch.pair("mul", again, sketch.spread(root, shape, 0))
        return sketch.unary(after, scaled, "after")

    first = Asked(("variance", "inner"), copies=False, reads=True, mixed=True)
    asked = first, Asked(("after",), stores=True, mixed=True)
    return Case("layer norm", f"variance of {inner}, layer norm, {after}, {shown(shape)}", dialect, write, asked)


@drawing("column sums")
def column_sums(random: Random, dialect: str) -> Case:
    """Functions of the sums of columns."""
    shape, (one, two) = random.choice(_ROWS), random.sample(COSTLY, 2)

    def write(sketch: Sketch) -> Value:
        value = sketch.unary(one, sketch.argument(shape), "one")
        return sketch.unary(two, sketch.reduce(value, 0, "sum"), "two")

    asked = Asked(("one",), reads=True), Asked(("two",))
    return Case("column sums", f"{two} of the column sums of {one}, {shown(shape)}", dialect, write, asked)


# ---- products


def _product(sketch: Sketch, sizes: tuple[int, int, int], dtype: str = "f32") -> Value:
    rows, inner, columns = sizes
    if not sketch.count("product"):
        return sketch.argument((rows, columns))
    one, two = sketch.argument((rows, inner), dtype), sketch.argument((inner, columns), dtype)
    return sketch.dot(one, two, "product")


@drawing("product")
def product(random: Random, dialect: str) -> Case:
    """A matrix product, then functions of it."""
    sizes = random.choice([(256, 16, 256), (256, 64, 256), (128, 128, 128), (128, 32, 512), (256, 256, 128)])
    functions = dict(zip("ab", random.sample(COSTLY, random.choice([1, 2])), strict=False))

    def write(sketch: Sketch) -> Value:
        return _tail(sketch, _product(sketch, sizes), functions)

    last = list(functions)[-1]
    asked = Asked(("product",), copies=False), *(Asked((part,), stores=part == last) for part in functions)
    return Case("product", f"product {shown(sizes)}, {', '.join(functions.values())}", dialect, write, tuple(asked))


@drawing("product with bias")
def product_bias(random: Random, dialect: str) -> Case:
    """A product of narrow or single precision, a bias, a function."""
    sizes = random.choice([(256, 32, 256), (128, 64, 256), (64, 256, 128), (256, 128, 128)])
    dtype, function = random.choice(["f32", "bf16", "f16"]), random.choice(COSTLY)

    def write(sketch: Sketch) -> Value:
        value = sketch.binary("add", _product(sketch, sizes, dtype), "bias", (sizes[2],), 1)
        return sketch.unary(function, value, "function")

    asked = Asked(("product",), copies=False), Asked(("function",), stores=True)
    return Case("product with bias", f"product {shown(sizes)} {dtype}, bias, {function}", dialect, write, asked)


@drawing("convolution")
def convolution(random: Random, dialect: str) -> Case:
    """A convolution of an image, then a function."""
    extent, (ins, outs), function = random.choice([18, 34]), random.choice([(8, 16), (16, 32)]), random.choice(COSTLY)
    image: Shape = (1, extent, extent, ins)

    def write(sketch: Sketch) -> Value:
        inner = extent - 2
        if sketch.count("convolution"):
            value = sketch.convolution(sketch.argument(image), sketch.argument((3, 3, ins, outs)), "convolution")
        else:
            value = sketch.argument((1, inner, inner, outs))
        return sketch.unary(function, value, "function")

    asked = Asked(("convolution",), copies=False), Asked(("function",), stores=True)
    return Case("convolution", f"convolution {shown(image)} to {outs}, {function}", dialect, write, asked)


@drawing("window")
def window(random: Random, dialect: str) -> Case:
    """Weighted sums of neighbouring columns, as slices that are added up, then a function."""
    shape, taps, function = random.choice(_ROWS), random.choice([3, 5]), random.choice(COSTLY)

    def write(sketch: Sketch) -> Value:
        source = sketch.argument((shape[0], shape[1] + taps))
        value = sketch.slice(source, (0, 0), shape, (1, 1))
        if sketch.count("window"):
            for tap in range(1, taps):
                moved = sketch.slice(source, (0, tap), shape, (1, 1), "window")
                value = sketch.pair("div", value, moved, "window")
        return sketch.unary(function, value, "function")

    asked = Asked(("window",), copies=False, reads=True), Asked(("function",), stores=True)
    return Case("window", f"{taps} neighbours, {function}, {shown(shape)}", dialect, write, asked)
