"""Writes a program op by op, and notes what each op is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import isfinite, prod
from random import Random

from tests.oracle.dialects import INITIAL, RESULT_ELEMENT, SCALAR, Dialect, Line, Tensor, tensor_type
from tests.oracle.program import Extents, Idiom, Kind, Loops, Op, Pattern, Program, Purpose

Buffer = list[tuple[str, int]]
"""Lines and the number of the op on each (-1: none)."""


class Numbers:
    """Constants and extents, none of them given out twice, but that equal layers repeat those of the first.

    With `equal` false no layer repeats anything: the twin program, in which no two kernels are the same.
    """

    def __init__(self, random: Random, *, equal: bool) -> None:
        self._equal = equal
        self._constants = (0.5 + (2 * step + 1) / 4096 for step in count(random.randrange(64)))
        self._extents = self._draw_extents(random)
        self._recorded: dict[str, list[float]] = {}
        self._replayed: Iterator[float] | None = None
        self._recording: list[float] | None = None

    def constant(self) -> float:
        """A float that f32 holds exactly and that no arithmetic simplification knows."""
        return self._next(self._constants)

    def extent(self) -> int:
        """An extent of a dimension."""
        return int(self._next(self._extents))

    @contextmanager
    def layer(self, group: str) -> Iterator[None]:
        """What is drawn inside is one layer of a group of equal ones."""
        known = self._recorded.get(group)
        if known is None:
            self._recording = self._recorded[group] = []
        elif self._equal:
            self._replayed = iter(known)
        yield
        self._recording = self._replayed = None

    def _next(self, source: Iterator[float]) -> float:
        value = next(source if self._replayed is None else self._replayed)
        if self._recording is not None:
            self._recording.append(value)
        return value

    @staticmethod
    def _draw_extents(random: Random) -> Iterator[float]:
        extents = list(range(5, 64))
        while True:
            random.shuffle(extents)
            yield from extents


@dataclass
class Settings:
    """What the ops being written have in common."""

    kind: Kind | None = None
    purpose: Purpose = Purpose.WORK
    hard: bool = False
    idiom: int = -1
    repeated: int = 0
    """How many ops back the ops stand of which these are copies; 0: they are none."""


@dataclass
class Builder:
    """The program so far. Methods that write an op return its result."""

    dialect: Dialect
    random: Random
    numbers: Numbers
    ops: list[Op] = field(default_factory=list)
    idioms: list[Idiom] = field(default_factory=list)
    aliases: dict[int, tuple[int, ...]] = field(default_factory=dict)
    features: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.buffer: Buffer = []
        self.settings = Settings()
        self._values = count()
        self._names = count()
        self._arguments: list[Tensor] = []
        self._functions: list[Buffer] = []

    # What stands around ops.

    @contextmanager
    def marked(
        self,
        *,
        kind: Kind | None = None,
        purpose: Purpose | None = None,
        hard: bool | None = None,
        idiom: int | None = None,
        repeated: int | None = None,
    ) -> Iterator[None]:
        """Ops written inside are of this kind, purpose, idiom."""
        old = self.settings
        self.settings = Settings(
            old.kind if kind is None else kind,
            old.purpose if purpose is None else purpose,
            old.hard if hard is None else hard,
            old.idiom if idiom is None else idiom,
            old.repeated if repeated is None else repeated,
        )
        yield
        self.settings = old

    def value(self, extents: Extents, element: str = "f32") -> Tensor:
        """A new value; nothing makes it yet."""
        number = next(self._values)
        return Tensor(number, f"%v{number}", extents, element)

    def argument(self, extents: Extents, element: str = "f32") -> Tensor:
        """A new argument of the main function."""
        self._arguments.append(self.value(extents, element))
        return self._arguments[-1]

    def alias(self, value: Tensor, *others: Tensor) -> Tensor:
        """Note that a value may be any of these."""
        self.aliases[value.number] = (*self.aliases.get(value.number, ()), *(other.number for other in others))
        return value

    def line(self, text: str, name: str = "", kind: Kind = Kind.STRUCTURE) -> int:
        """Write a line as it is; with a name, it holds an op."""
        self.buffer.append((text, len(self.ops) if name else -1))
        if name:
            self.ops.append(Op(len(self.ops), name, kind, hard=False, purpose=self.settings.purpose))
        return len(self.ops) - 1

    def fresh(self, prefix: str = "c") -> str:
        """A name for a value that is not followed."""
        return f"%{prefix}{next(self._names)}"

    @contextmanager
    def function(self, arguments: Sequence[Tensor], result: Extents) -> Iterator[str]:
        """A private function; yields its name. What is inside must end with `give_back`."""
        outer, self.buffer = self.buffer, []
        name = f"f{len(self._functions)}"
        declared = ", ".join(f"{argument.name}: {argument.type}" for argument in arguments)
        self.line(f"func.func private @{name}({declared}) -> {tensor_type(result)} {{", "func.func")
        yield name
        self.line("}")
        self._functions.append(self.buffer)
        self.buffer = outer

    def give_back(self, values: Sequence[Tensor]) -> None:
        """A return."""
        names = ", ".join(value.name for value in values)
        self.line(f"return {names} : {', '.join(value.type for value in values)}", "func.return")

    def finish(self, results: Sequence[Tensor]) -> Program:
        """Return these from the main function, and put everything together."""
        self.give_back(results)
        declared = ", ".join(f"{argument.name}: {argument.type}" for argument in self._arguments)
        types = ", ".join(result.type for result in results)
        self.ops.append(Op(len(self.ops), "func.func", Kind.STRUCTURE))
        main = [(f"func.func @main({declared}) -> ({types}) {{", len(self.ops) - 1), *self.buffer, ("}", -1)]
        every = [("module @oracle {", -1), *(line for body in (*self._functions, main) for line in body), ("}", -1)]
        lines = {number: place for place, (_, number) in enumerate(every, start=1) if number >= 0}
        text = "\n".join(text for text, _ in every) + "\n"
        features = frozenset({self.dialect.name, *self.features})
        return Program(text, tuple(self.ops), tuple(self.idioms), lines, self.aliases, features)

    # Ops.

    def scaled(self, word: str, operand: Tensor) -> Tensor:
        """An op with a constant of its own."""
        return self.with_number(word, operand, self.numbers.constant())

    def with_number(self, word: str, operand: Tensor, value: float, *, own: bool = True) -> Tensor:
        """An op with this constant; `own`: it is its fingerprint."""
        text = repr(value) if isfinite(value) else "0xFF800000"
        name = self._constant(text, operand.extents)
        line_operands = (operand, Tensor(-1, name, ()))
        return self._elementwise(word, line_operands, operand.extents, value if own else None)

    def elementwise(self, word: str, *operands: Tensor, twin: int = -1) -> Tensor:
        """An op on each element of equally shaped tensors."""
        return self._elementwise(word, operands, operands[0].extents, None, twin)

    def constant(self, extents: Extents, values: Sequence[float]) -> Tensor:
        """A constant of several values along the first dimension."""
        tensor = self.value(extents)
        dense = f"[{', '.join(f'{value!r}' for value in values)}]"
        text = self.dialect.number(dense, extents)
        with self.marked(kind=Kind.CONSTANT):
            self._write(text, tensor, Op(0, text.op, Kind.CONSTANT))
        return tensor

    def reduce(self, word: str, operand: Tensor, over: Sequence[int]) -> Tensor:
        """A reduction over some dimensions."""
        kept = tuple(extent for place, extent in enumerate(operand.extents) if place not in over)
        gone = tuple(operand.extents[place] for place in over)
        into = self._destination(kept, operand, INITIAL[word])
        line = self.dialect.reduce(word, operand, over, kept, into)
        op = self._op(line, Kind.REDUCTION, (operand,), Pattern(SCALAR[word], True), _loops(kept, gone))
        return self._write(line, self.value(kept), op)

    def matmul(self, left: Tensor, right: Tensor) -> Tensor:
        """A matrix product, of batches where the operands have three dimensions."""
        result = (*left.extents[:-1], right.extents[-1])
        into = self._destination(result, left, "0.0")
        line = self.dialect.matmul(left, right, result, into)
        loops = _loops(result, left.extents[-1:])
        op = self._op(line, Kind.CONTRACTION, (left, right), Pattern("arith.addf", True), loops)
        return self._write(line, self.value(result), op)

    def convolution(self, image: Tensor, kernel: Tensor) -> Tensor:
        """A convolution, nhwc by hwcf."""
        sides = [_less(one, other) for one, other in zip(image.extents[1:3], kernel.extents[:2], strict=True)]
        result = (image.extents[0], *sides, kernel.extents[3])
        into = self._destination(result, image, "0.0")
        line = self.dialect.convolution(image, kernel, result, into)
        loops = _loops(result, kernel.extents[:3])
        op = self._op(line, Kind.CONVOLUTION, (image, kernel), Pattern("arith.addf", True), loops)
        return self._write(line, self.value(result), op)

    def transpose(self, operand: Tensor, order: Sequence[int]) -> Tensor:
        """A permutation of dimensions."""
        result = tuple(operand.extents[place] for place in order)
        line = self.dialect.transpose(operand, order, result, self._destination(result, operand, ""))
        return self._move(line, operand, result)

    def broadcast(self, operand: Tensor, kept: Sequence[int], result: Extents, like: Tensor) -> Tensor:
        """A repetition along the dimensions that are not kept; `like` has the extents of the result."""
        line = self.dialect.broadcast(operand, kept, result, self._destination(result, like, ""))
        return self._move(line, operand, result)

    def merge(self, operand: Tensor) -> Tensor:
        """A reshape to one dimension."""
        result = (prod(extent for extent in operand.extents if extent is not None),)
        return self._move(self.dialect.merge(operand, result), operand, result)

    def cut(self, operand: Tensor, last: int) -> Tensor:
        """The first elements along the last dimension."""
        result = (*operand.extents[:-1], last)
        with self.marked(purpose=Purpose.NEUTRAL):
            return self._move(self.dialect.cut(operand, result), operand, result)

    def _move(self, line: Line, operand: Tensor, result: Extents) -> Tensor:
        value = self.alias(self.value(result), operand)
        purpose = self.settings.purpose
        op = Op(0, line.op, Kind.MOVE, (operand.number,), loops=_loops(result, ()), extents=result, purpose=purpose)
        return self._write(line, value, op)

    def _elementwise(
        self, word: str, operands: Sequence[Tensor], result: Extents, constant: float | None, twin: int = -1
    ) -> Tensor:
        like = next(operand for operand in operands if operand.number >= 0)
        element = RESULT_ELEMENT.get(word, "f32")
        line = self.dialect.elementwise(word, operands, result, self._destination(result, like, "", element))
        op = self._op(line, Kind.ELEMENTWISE, operands, Pattern(SCALAR[word]), _loops(result, ()), constant, twin)
        value = self.value(result, element)
        if op.purpose is Purpose.NEUTRAL:
            self.alias(value, like)
        return self._write(line, value, op)

    def _op(
        self,
        line: Line,
        kind: Kind,
        operands: Sequence[Tensor],
        pattern: Pattern,
        loops: Loops,
        constant: float | None = None,
        twin: int = -1,
    ) -> Op:
        now = self.settings
        if now.repeated and now.purpose is Purpose.WORK:
            twin = len(self.ops) - now.repeated
        return Op(
            number=0,
            name=line.op,
            kind=kind if now.kind is None else now.kind,
            operands=tuple(operand.number for operand in operands if operand.number >= 0),
            pattern=pattern,
            constant=constant,
            loops=loops,
            purpose=now.purpose if twin < 0 else Purpose.TWIN,
            hard=now.hard or twin >= 0 or now.kind in (Kind.SOFTMAX, Kind.LAYER_NORM),
            idiom=now.idiom,
            twin=twin,
        )

    def _write(self, line: Line, result: Tensor, op: Op) -> Tensor:
        number = len(self.ops)
        numbered = {name: getattr(op, name) for name in op.__slots__} | {"number": number, "result": result.number}
        self.ops.append(Op(**numbered))
        self.buffer.append((f"{result.name} = {line.text}", number))
        return result

    def _named(self, line: Line, kind: Kind) -> str:
        name = self.fresh()
        self.line(f"{name} = {line.text}", line.op, kind)
        return name

    def _constant(self, value: str, extents: Extents) -> str:
        """The name of a constant: a scalar, or of a tensor's shape, as one line or as JAX writes it."""
        if self.dialect.scalars_in_line:
            return self._named(self.dialect.number(value, ()), Kind.CONSTANT)
        is_whole = self.random.random() < 0.7
        if self.settings.idiom >= 0:  # it may be written out again, which is to have as many ops
            is_whole = (extents[0] or 0) % 10 < 7
        if is_whole:
            return self._named(self.dialect.number(value, extents), Kind.CONSTANT)
        scalar = Tensor(-1, self._named(self.dialect.number(value, ()), Kind.CONSTANT), ())
        return self._named(self.dialect.broadcast(scalar, (), extents, ""), Kind.CONSTANT)

    def _destination(self, extents: Extents, like: Tensor, initial: str, element: str = "f32") -> str:
        """What an op writes into, or starts from."""
        if not self.dialect.needs_destination:
            return self._named(self.dialect.number(initial, ()), Kind.CONSTANT) if initial else ""
        empty = self.fresh("e")
        sizes = "".join(self._size(like, extent) for extent in extents if extent is None)
        self.line(
            f"{empty} = tensor.empty({sizes}) : {tensor_type(extents, element)}", "tensor.empty", Kind.DESTINATION
        )
        if not initial:
            return empty
        number = self._named(self.dialect.number(initial, ()), Kind.CONSTANT)
        filled = self.fresh("e")
        types = f"outs({empty} : {tensor_type(extents)}) -> {tensor_type(extents)}"
        self.line(f"{filled} = linalg.fill ins({number} : f32) {types}", "linalg.fill", Kind.DESTINATION)
        return filled

    def _size(self, like: Tensor, extent: int | None) -> str:
        """The name of a dynamic extent: dynamic tensors have it in front."""
        place = self.fresh("i")
        self.line(f"{place} = arith.constant 0 : index", "arith.constant", Kind.CONSTANT)
        size = self.fresh("i")
        self.line(f"{size} = tensor.dim {like.name}, {place} : {like.type}", "tensor.dim", Kind.HOST)
        return size


def _less(one: int | None, other: int | None) -> int:
    assert one is not None
    assert other is not None
    return one - other + 1


def _loops(parallel: Extents, reducing: Extents) -> Loops:
    known = prod(extent for extent in parallel if extent is not None)
    dynamic = sum(extent is None for extent in (*parallel, *reducing))
    return Loops(known, prod(extent for extent in reducing if extent is not None), dynamic)
