"""Kernels that read arrays in many orders, and the lines of memory that each reader touches.

The truth is arithmetic: a line of 64 bytes that is read for the first time is missed once, by the op that reads the
array. What is read again is still in the cache, or the simulation counts more misses than there are lines; such a
kernel proves nothing and is left out.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.oracle.judging import Recorder, Rule
from tests.oracle.sketch import BITS, Shape, Sketch, Value
from tests.oracle.timing import Unfused, compiled
from tests.support import Json

LINE: Final = 64
SIZES: Final = ((144, 272), (192, 400), (90, 368))
"""Rows and columns of results; rows fill lines, as two workgroups may read a line of two rows. The last has tails."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A kernel: how it is written, and how many lines of memory each of its parts reads."""

    name: str
    write: Callable[[Sketch, Shape], Value]
    lines: Callable[[Shape], Mapping[str, int]]


def lines_of(whole: Shape, dtype: str, *places: slice) -> int:
    """The lines that hold these elements of an array that begins at a line."""
    numbers = np.arange(int(np.prod(whole)), dtype=np.int64).reshape(whole)[places]
    return len(np.unique(numbers.ravel() * BITS[dtype] // 8 // LINE))


def patterns() -> list[Pattern]:
    """All that are tried."""
    return [
        _beside("in order", lambda sketch, shape: sketch.argument(shape), _whole),
        _beside("by columns", _by_columns, lambda shape: _whole(shape[::-1])),
        *(_strided(axis, step) for axis in (1, 0) for step in (2, 3, 4)),
        *(_sliced(f"every 2. row, {step}. column", (0, 0), (2, step)) for step in (2, 3)),
        *(_block(axis) for axis in (1, 0)),
        _sliced("a block in the middle", (32, 64), (1, 1)),
        *(_converted(dtype) for dtype in ("i8", "i1", "i4", "bf16", "f16", "i32", "f8E5M2")),
        *(_broadcast(axis) for axis in (1, 0)),
        *(_reversed(axis) for axis in (1, 0)),
        Pattern("gathered in order", _gathered, lambda shape: {"x": 2 * _whole(shape), "y": _whole(shape)}),
        Pattern("both layouts in one op", _both_layouts, lambda shape: {"x": 2 * _whole(shape), "y": _whole(shape)}),
        Pattern("f64", _wide, _both),
        Pattern("two halves of one array", _halves, lambda shape: {"x": 2 * _whole(shape), "y": _whole(shape)}),
        Pattern("sums of rows", lambda sketch, shape: _summed(sketch, shape, 1), _both),
        Pattern("sums of columns", lambda sketch, shape: _summed(sketch, shape, 0), _both),
        Pattern("row sums and again", _twice, _both),
        Pattern(
            "selected", _selected, lambda shape: {"x": 2 * _whole(shape) + lines_of(shape, "i1"), "y": _whole(shape)}
        ),
        Pattern("beside a product", _epilogue, _of_epilogue),
    ]


def _both(shape: Shape) -> Mapping[str, int]:
    """Two arrays, each read once."""
    return {"x": _whole(shape), "y": _whole(shape)}


def _whole(shape: Shape) -> int:
    return lines_of(shape, "f32")


def _of_selected(shape: Shape) -> Mapping[str, int]:
    return {"x": 2 * _whole(shape) + lines_of(shape, "i1"), "y": _whole(shape)}


def _of_epilogue(shape: Shape) -> Mapping[str, int]:
    return {"product": _whole((shape[0], 16)) + _whole((16, shape[1])), "y": _whole(shape)}


def _with_other(sketch: Sketch, value: Value) -> Value:
    """The function of another array added."""
    other = sketch.unary("exp", sketch.argument(value.shape), "y")
    return sketch.pair("add", value, other, "sum")


def _beside(name: str, read: Callable[[Sketch, Shape], Value], lines: Callable[[Shape], int]) -> Pattern:
    """An array read in this way by a function, beside another array read in order."""

    def write(sketch: Sketch, shape: Shape) -> Value:
        return _with_other(sketch, sketch.unary("tanh", read(sketch, shape), "x"))

    return Pattern(name, write, lambda shape: {"x": lines(shape), "y": _whole(shape)})


def _by_columns(sketch: Sketch, shape: Shape) -> Value:
    return sketch.transpose(sketch.argument(shape[::-1]), "x")


def _strided(axis: int, step: int) -> Pattern:
    return _sliced(f"every {step}. {('row', 'column')[axis]}", (0, 0), (step, 1) if axis == 0 else (1, step))


def _block(axis: int) -> Pattern:
    return _sliced(f"a block of {('rows', 'columns')[axis]}", (64, 0) if axis == 0 else (0, 64), (1, 1))


def _sliced(name: str, start: Shape, steps: Shape) -> Pattern:
    """Rows and columns from a start on, in steps, of an array that goes on behind them for as much."""

    def whole(shape: Shape) -> Shape:
        return shape[0] * steps[0] + 2 * start[0], shape[1] * steps[1] + 2 * start[1]

    def places(shape: Shape) -> tuple[slice, ...]:
        return tuple(
            slice(first, first + count * step, step) for first, count, step in zip(start, shape, steps, strict=True)
        )

    return _beside(
        name,
        lambda sketch, shape: sketch.slice(sketch.argument(whole(shape)), start, shape, steps, "x"),
        lambda shape: lines_of(whole(shape), "f32", *places(shape)),
    )


def _converted(dtype: str) -> Pattern:
    return _beside(
        dtype,
        lambda sketch, shape: sketch.convert(sketch.argument(shape, dtype), "f32", "x"),
        lambda shape: lines_of(shape, dtype),
    )


def _broadcast(axis: int) -> Pattern:
    return _beside(
        f"a broadcast {('column', 'row')[axis]}",
        lambda sketch, shape: sketch.spread(sketch.argument((shape[axis],)), shape, axis, "x"),
        lambda shape: lines_of((shape[axis],), "f32"),
    )


def _reversed(axis: int) -> Pattern:
    return _beside(
        f"{('rows', 'columns')[axis]} reversed",
        lambda sketch, shape: sketch.reverse(sketch.argument(shape), axis, "x"),
        lambda shape: lines_of(shape, "f32"),
    )


def _gathered(sketch: Sketch, shape: Shape) -> Value:
    count = shape[0] * shape[1]
    indices = sketch.argument(shape, "i32", below=count)
    gathered = sketch.gather(sketch.argument((count,)), indices, "x")
    return _with_other(sketch, sketch.unary("tanh", gathered, "x"))


def _both_layouts(sketch: Sketch, shape: Shape) -> Value:
    turned = sketch.transpose(sketch.argument(shape[::-1]), "x")
    return _with_other(sketch, sketch.pair("div", sketch.argument(shape), turned, "x"))


def _wide(sketch: Sketch, shape: Shape) -> Value:
    value = sketch.unary("tanh", sketch.argument(shape, "f64"), "x")
    other = sketch.unary("sqrt", sketch.argument(shape, "f64"), "y")
    return sketch.pair("add", value, other, "sum")


def _halves(sketch: Sketch, shape: Shape) -> Value:
    whole = sketch.argument((shape[0] * 2, shape[1]))
    one = sketch.slice(whole, (0, 0), shape, (1, 1), "x")
    two = sketch.slice(whole, (shape[0], 0), shape, (1, 1), "x")
    return _with_other(sketch, sketch.pair("div", one, two, "x"))


def _summed(sketch: Sketch, shape: Shape, axis: int) -> Value:
    value = sketch.unary("tanh", sketch.argument(shape), "x")
    return sketch.reduce(_with_other(sketch, value), axis, "sum")


def _twice(sketch: Sketch, shape: Shape) -> Value:
    value = sketch.argument(shape)
    sums = sketch.reduce(sketch.unary("tanh", value, "x"), 1, "x")
    divided = sketch.pair("div", value, sketch.spread(sums, shape, 0), "again")
    return _with_other(sketch, divided)


def _selected(sketch: Sketch, shape: Shape) -> Value:
    mask = sketch.argument(shape, "i1")
    chosen = sketch.select(mask, sketch.argument(shape), sketch.argument(shape), "x")
    return _with_other(sketch, chosen)


def _epilogue(sketch: Sketch, shape: Shape) -> Value:
    product = sketch.dot(sketch.argument((shape[0], 16)), sketch.argument((16, shape[1])), "product")
    return _with_other(sketch, product)


# ---- judging


_SIMULATED: Final = Rule("reads", (), 0.0)
_ERROR: Final = 0.02
_LINES: Final = 20
"""Arrays begin somewhere in a line, and the stack is read as well."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Misses of a kernel's parts and what they ought to be.

    `excess`: misses of the whole kernel beyond its lines, which may be of any part. `why`: the reason not to judge.
    """

    name: str
    found: Mapping[str, int]
    wanted: Mapping[str, int]
    excess: int = 0
    why: str = ""

    @property
    def wrong(self) -> list[str]:
        """The parts whose misses are others."""
        if self.why:
            return []
        return [
            f"{part}: {self.found[part]} misses, {lines} lines"
            for part, lines in self.wanted.items()
            if not _close(self.found[part], lines, self.excess)
        ]


def _close(found: int, wanted: int, excess: int = 0) -> bool:
    return abs(found - wanted) <= _ERROR * wanted + _LINES + excess


def counted(pattern: Pattern, shape: Shape, dialect: str, recorder: Recorder) -> Counted:
    """The misses that tracemap tells of a pattern."""
    sketch = Sketch(dialect)
    model = sketch.model(pattern.write(sketch, shape))
    name = f"{pattern.name}, {shape[0]}x{shape[1]}, {dialect}"
    wanted = pattern.lines(shape)
    try:
        compiled(model, recorder.place(model, ".vmfb"))
    except Unfused as error:
        return Counted(name, {}, wanted, why=str(error))
    result = recorder.attributed(model, _SIMULATED)
    found = {part: _misses(result, model.lines[part]) for part in wanted}
    measured = next(metric["measured"] for metric in result["metrics"] if metric["name"] == "D1mr")
    if not _close(measured, sum(wanted.values())):
        return Counted(name, found, wanted, why=f"{measured} misses of {sum(wanted.values())} lines")
    return Counted(name, found, wanted, max(0, measured - sum(wanted.values())))


def _misses(result: Json, lines: Sequence[int]) -> int:
    """The misses of reads of the ops on these lines."""
    return sum(op["metrics"]["D1mr"]["attributed"] for op in result["ops"] if op["line"] in lines)


def all_counted(recorder: Recorder, only: str, jobs: int) -> list[Counted]:
    """Every pattern with every size, whose name has `only` in it."""
    chosen = [
        (pattern, shape, ("stablehlo", "linalg")[number % 2])
        for (pattern, (number, shape)) in itertools.product(patterns(), enumerate(SIZES))
        if only in pattern.name
    ]

    def one(entry: tuple[Pattern, Shape, str]) -> Counted:
        pattern, shape, dialect = entry
        found = counted(pattern, shape, "stablehlo" if "reversed" in pattern.name else dialect, recorder)
        print(f"{found.name}: {found.why or '; '.join(found.wrong) or 'right'}", file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, chosen))
