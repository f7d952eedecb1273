"""Draws kernels by class, and names the parts of each whose share of the time is asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.oracle.sketch import Model, Shape, Sketch, Value

COSTLY: Final = ("tanh", "exp", "log", "log1p", "sine", "expm1", "cosine")
_SMALL: Final = ((16, 128), (8, 256), (32, 64), (64, 48))
_MIDDLE: Final = ((128, 256), (256, 256), (96, 512), (512, 128), (384, 256))
_LARGE: Final = ((1024, 1024), (768, 1536), (2048, 640))
_TAILS: Final = ((61, 101), (127, 257), (250, 130), (33, 1001), (333, 77), (19, 515))


@dataclass(frozen=True, slots=True)
class Asked:
    """A claim about the share of one part, or of several together.

    `copies`: the parts can be written several times. `reads` and `stores`: the op that takes the part's place when it
    is left out reads the main array, or stores the result, instead of it. `mixed`: what is left without any part does
    more than load and store, or loads what another pass has loaded before. `judged`: False for parts that only complete
    the sum of all costs.
    """

    parts: tuple[str, ...]
    copies: bool = True
    reads: bool = False
    stores: bool = False
    judged: bool = True
    mixed: bool = False

    @property
    def name(self) -> str:
        """The parts in one word."""
        return "+".join(self.parts)


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel of a class: how it is written, what is asked about its parts, which parts cost the same."""

    kind: str
    name: str
    dialect: str
    write: Callable[[Sketch], Value]
    asked: tuple[Asked, ...] = ()
    equal: tuple[str, ...] = ()

    def model(self, counts: Mapping[str, int] | None = None) -> Model:
        """The model with each part written as often as `counts` says."""
        sketch = Sketch(self.dialect, counts or {})
        return sketch.model(self.write(sketch))


Drawing = Callable[[Random, str], Case]
CLASSES: Final[dict[str, Drawing]] = {}
"""Drawing functions by the name of the class."""


def drawing(name: str) -> Callable[[Drawing], Drawing]:
    """Enter a function into CLASSES."""

    def entered(function: Drawing) -> Drawing:
        CLASSES[name] = function
        return function

    return entered


def draw(kind: str, seed: int, number: int) -> Case:
    """One case of a class; every second one is in linalg."""
    random = Random(f"{seed} {kind} {number}")
    return CLASSES[kind](random, ("stablehlo", "linalg")[number % 2])


def shown(shape: Shape) -> str:
    """A shape in words."""
    return "x".join(map(str, shape))


def _chain(sketch: Sketch, value: Value, functions: Mapping[str, str]) -> Value:
    for part, function in functions.items():
        value = sketch.unary(function, value, part)
    return value


def _chained(kind: str, dialect: str, shape: Shape, functions: list[str], dtype: str = "f32") -> Case:
    parts = dict(zip("abcd", functions, strict=False))
    last = list(parts)[-1]

    def write(sketch: Sketch) -> Value:
        return _chain(sketch, sketch.argument(shape, dtype), parts)

    asked = tuple(Asked((part,), reads=part == "a", stores=part == last) for part in parts)
    return Case(kind, f"{', '.join(functions)}, {shown(shape)} {dtype}", dialect, write, asked)


# ---- functions of single elements


@drawing("chain")
def chain(random: Random, dialect: str) -> Case:
    """Functions one after the other."""
    return _chained("chain", dialect, random.choice(_MIDDLE), random.sample(COSTLY, random.choice([2, 3])))


@drawing("small")
def small(random: Random, dialect: str) -> Case:
    """Arrays that fit the first-level cache."""
    return _chained("small", dialect, random.choice(_SMALL), random.sample(COSTLY, 3))


@drawing("large")
def large(random: Random, dialect: str) -> Case:
    """Arrays that fit no second-level cache."""
    return _chained("large", dialect, random.choice(_LARGE), random.sample(COSTLY, random.choice([2, 3])))


@drawing("tails")
def tails(random: Random, dialect: str) -> Case:
    """Extents that are no multiples of a vector's."""
    return _chained("tails", dialect, random.choice(_TAILS), random.sample(COSTLY, 2))


@drawing("f64")
def wide(random: Random, dialect: str) -> Case:
    """Double precision, which a plain build computes in single precision."""
    functions = random.sample(("sqrt", "exp", "tanh", "log", "sine"), 2)
    return _chained("f64", dialect, random.choice(_MIDDLE[:3]), functions, "f64")


@drawing("half")
def half(random: Random, dialect: str) -> Case:
    """Half precision, which is computed in single precision."""
    functions = random.sample(("tanh", "exp", "log1p", "sine", "sqrt"), 2)
    return _chained("half", dialect, random.choice(_MIDDLE), functions, random.choice(["f16", "bf16"]))


@drawing("conversion")
def conversion(random: Random, dialect: str) -> Case:
    """Narrow arrays that are converted and added to the result of a function."""
    shape, function, number = random.choice(_MIDDLE), random.choice(COSTLY), random.choice([2, 3, 4])
    dtype = random.choice(["f16", "bf16", "i8", "i4", "f8E4M3FN", "f8E5M2", "i32", "i1"])

    def write(sketch: Sketch) -> Value:
        value = sketch.unary(function, sketch.argument(shape), "function")
        for _ in range(number * sketch.count("conversion")):
            other = sketch.convert(sketch.argument(shape, dtype), "f32", "conversion")
            value = sketch.pair("add", value, other, "conversion")
        return value

    asked = Asked(("function",), reads=True), Asked(("conversion",), stores=True)
    return Case("conversion", f"{function} + {number} of {dtype}, {shown(shape)}", dialect, write, asked)


@drawing("integers")
def integers(random: Random, dialect: str) -> Case:
    """Integer arithmetic; each op reads an array of its own."""
    shape, (one, two) = random.choice(_MIDDLE[:3]), random.sample(["div", "rem", "mul", "xor", "shl"], 2)
    if not {one, two} & {"div", "rem"}:
        one = random.choice(["div", "rem"])

    def write(sketch: Sketch) -> Value:
        value = sketch.binary(one, sketch.argument(shape, "i32"), "a")
        return sketch.binary(two, value, "b")

    asked = Asked(("a",), reads=True), Asked(("b",), stores=True)
    return Case("integers", f"{one}, {two}, {shown(shape)} i32", dialect, write, asked)


@drawing("division")
def division(random: Random, dialect: str) -> Case:
    """Equal divisions by one array; the first and the last also load and store."""
    number, shape = random.choice([4, 5]), random.choice([*_MIDDLE, *_TAILS])
    dtype = random.choice(["f32", "f32", "f64"])
    parts = tuple(f"d{each}" for each in range(number))

    def write(sketch: Sketch) -> Value:
        value, other = sketch.argument(shape, dtype), sketch.argument(shape, dtype)
        for part in parts:
            for _ in range(sketch.count(part)):
                value = sketch.pair("div", value, other, part)
        return value

    asked = Asked((parts[1],)), Asked((parts[0], *parts[2:]), reads=True, stores=True, judged=False)
    return Case("division", f"{number} divisions, {shown(shape)} {dtype}", dialect, write, asked, parts[1:-1])


@drawing("square root")
def square_root(random: Random, dialect: str) -> Case:
    """Equal square roots between functions, or alone."""
    number, shape = random.choice([3, 4]), random.choice([*_MIDDLE, *_TAILS])
    root, function = random.choice(["sqrt", "sqrt", "rsqrt"]), random.choice(["", *COSTLY])
    roots = tuple(f"r{each}" for each in range(number))
    parts = dict.fromkeys(roots, root) | ({"function": function} if function else {})

    def write(sketch: Sketch) -> Value:
        return _chain(sketch, sketch.argument(shape), parts)

    if function:
        asked = Asked(roots, reads=True), Asked(("function",), stores=True)
    else:
        asked = Asked(roots[1:2]), Asked((roots[0], *roots[2:]), reads=True, stores=True, judged=False)
    name = f"{number} {root}, {function or 'nothing'}, {shown(shape)}"
    return Case("square root", name, dialect, write, asked, roots[1:] if function else roots[1:-1])


@drawing("overlap")
def overlap(random: Random, dialect: str) -> Case:
    """Divisions, which keep one unit busy, and a polynomial, which keeps the others busy."""
    shape, number, function = random.choice(_MIDDLE), random.choice([1, 2, 3]), random.choice(COSTLY)

    def write(sketch: Sketch) -> Value:
        value, other = sketch.argument(shape), sketch.argument(shape)
        for _ in range(number):
            for _ in range(sketch.count("division")):
                value = sketch.pair("div", value, other, "division")
        return sketch.unary(function, value, "function")

    asked = Asked(("division",), reads=True), Asked(("function",), stores=True)
    return Case("overlap", f"{number} divisions, {function}, {shown(shape)}", dialect, write, asked)


# ---- masks


@drawing("mask")
def mask(random: Random, dialect: str) -> Case:
    """Masks of i1 select elements; functions are on either side."""
    shape, (one, two) = random.choice([*_MIDDLE, (76, 256)]), random.sample(COSTLY, 2)

    def write(sketch: Sketch) -> Value:
        value = sketch.unary(one, sketch.argument(shape), "one")
        zero = sketch.constant("0.0", shape, "f32")
        for _ in range(sketch.count("mask")):
            value = sketch.select(sketch.argument(shape, "i1"), value, zero, "mask")
        for _ in range(sketch.count("two")):
            other = sketch.unary(two, sketch.argument(shape))
            value = sketch.pair("add", value, other, "two")
        return value

    asked = Asked(("one",), reads=True), Asked(("mask",)), Asked(("two",), judged=False)
    return Case("mask", f"{one}, mask, + {two}, {shown(shape)}", dialect, write, asked)


@drawing("compare")
def compare(random: Random, dialect: str) -> Case:
    """Comparisons and selections between functions of two arrays."""
    shape, (one, two) = random.choice(_MIDDLE), random.sample(COSTLY, 2)
    direction = random.choice(["GT", "LT", "GE", "NE"])

    def write(sketch: Sketch) -> Value:
        value, other = sketch.argument(shape), sketch.argument(shape)
        first, second = sketch.unary(one, value, "one"), sketch.unary(two, other, "two")
        if not sketch.count("choice"):
            return sketch.pair("add", first, second)
        chosen = sketch.compare(direction, value, other, "choice")
        return sketch.select(chosen, first, second, "choice")

    asked = Asked(("one",), reads=True), Asked(("two",), reads=True), Asked(("choice",), judged=False, copies=False)
    return Case("compare", f"{one}, {two}, compare {direction}, {shown(shape)}", dialect, write, asked)


@drawing("iota")
def iota(random: Random, dialect: str) -> Case:
    """A triangular mask of row and column numbers; functions on either side of it."""
    shape, (one, two) = random.choice(_MIDDLE), random.sample(COSTLY, 2)

    def write(sketch: Sketch) -> Value:
        value = sketch.unary(one, sketch.argument(shape), "one")
        zero = sketch.constant("0.0", shape, "f32")
        if sketch.count("mask"):
            rows, columns = (sketch.iota(shape, axis, "i32", "mask") for axis in (0, 1))
            chosen = sketch.compare("GE", rows, columns, "mask")
            value = sketch.select(chosen, value, zero, "mask")
        return sketch.unary(two, value, "two")

    asked = Asked(("one",), reads=True), Asked(("mask",), copies=False), Asked(("two",), stores=True)
    return Case("iota", f"{one}, triangle, {two}, {shown(shape)}", dialect, write, asked)


# ---- reads in other orders


def _read_aside(
    kind: str, name: str, dialect: str, shape: Shape, function: str, read: Callable[[Sketch], Value]
) -> Case:
    """A function of one array; others, read in an order of their own, are divided by and added."""

    def write(sketch: Sketch) -> Value:
        value = sketch.unary(function, sketch.argument(shape), "function")
        for _ in range(sketch.count("read")):
            value = sketch.pair("div", value, read(sketch), "read")
        return value

    asked = Asked(("function",), reads=True), Asked(("read",), stores=True)
    return Case(kind, f"{function} / {name}, {shown(shape)}", dialect, write, asked)


@drawing("strided slice")
def strided_slice(random: Random, dialect: str) -> Case:
    """Every second, third or fourth column or row of an array."""
    shape, step, axis = random.choice(_MIDDLE), random.choice([2, 3, 4]), random.choice([0, 1, 1])
    steps = (step, 1) if axis == 0 else (1, step)
    whole = shape[0] * steps[0], shape[1] * steps[1]

    def read(sketch: Sketch) -> Value:
        return sketch.slice(sketch.argument(whole), (0, 0), shape, steps, "read")

    name = f"every {step}. {('row', 'column')[axis]}"
    return _read_aside("strided slice", name, dialect, shape, random.choice(COSTLY), read)


@drawing("transpose")
def transpose(random: Random, dialect: str) -> Case:
    """An array read by columns."""
    shape = random.choice([*_MIDDLE, (512, 512), (1024, 512)])

    def read(sketch: Sketch) -> Value:
        return sketch.transpose(sketch.argument(shape[::-1]), "read")

    return _read_aside("transpose", "transposed", dialect, shape, random.choice(COSTLY), read)


@drawing("gather")
def gather(random: Random, dialect: str) -> Case:
    """Elements of a table, by indices in order or in any order."""
    shape, table = random.choice(_MIDDLE[1:]), random.choice([4_000, 100_000, 1_000_000])
    shuffled = random.choice([True, False])

    def read(sketch: Sketch) -> Value:
        indices = sketch.argument(shape, "i32", below=table, shuffled=shuffled)
        return sketch.gather(sketch.argument((table,)), indices, "read")

    name = f"gathered {'in any order' if shuffled else 'in order'} of {table}"
    return _read_aside("gather", name, dialect, shape, random.choice(COSTLY), read)


@drawing("memory")
def memory(random: Random, dialect: str) -> Case:
    """Arrays beyond the caches, one of them read by columns or all alike."""
    shape, number = random.choice([(1024, 1024), (1024, 2048)]), random.choice([3, 4])
    parts = tuple(f"a{each}" for each in range(number))

    def write(sketch: Sketch) -> Value:
        value = sketch.unary("sqrt", sketch.argument(shape))
        for part in parts:
            value = sketch.binary("add", value, part)
        return value

    asked = Asked(parts[:2]), Asked(parts[2:], judged=False)
    return Case("memory", f"{number} arrays added, {shown(shape)}", dialect, write, asked, parts[:-1])


# ---- vectors that are broadcast


def _vector_chain(kind: str, random: Random, dialect: str, axis: int) -> Case:
    shape, functions = random.choice([*_MIDDLE, (512, 512)]), random.sample(COSTLY, random.choice([2, 3]))
    function = random.choice(["exp", "tanh", ""])
    parts = dict(zip("abc", functions, strict=False))

    def write(sketch: Sketch) -> Value:
        value = _chain(sketch, sketch.argument((shape[axis],)), parts)
        spread = sketch.spread(value, shape, axis)
        result = sketch.pair("mul", sketch.argument(shape), spread, "product")
        return sketch.unary(function, result, "function") if function else result

    asked = [Asked(tuple(parts))]
    if function:
        asked.append(Asked(("function",), stores=True))
    name = f"{', '.join(functions)} of a {('column', 'row')[axis]}, times a matrix, {function}".rstrip(", ")
    return Case(kind, f"{name}, {shown(shape)}", dialect, write, tuple(asked))


@drawing("row broadcast")
def row_broadcast(random: Random, dialect: str) -> Case:
    """Functions of a row that all rows of a matrix are multiplied by."""
    return _vector_chain("row broadcast", random, dialect, 1)


@drawing("column broadcast")
def column_broadcast(random: Random, dialect: str) -> Case:
    """Functions of a column that all columns of a matrix are multiplied by."""
    return _vector_chain("column broadcast", random, dialect, 0)
