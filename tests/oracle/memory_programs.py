"""Programs of fused ops, each without one of its ops: the truth of peaks after edits that change fusion.

The programs and edits share nothing with tracemap. An edit is type-correct: the users of the op use its first operand
of the same type, and broadcasts of a removed reduction use the unreduced value.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.oracle.stock import Program

_ROWS: Final = 64
_WIDTHS: Final = (32, 64, 64, 96, 160)


@dataclass(frozen=True, slots=True)
class Edit:
    """A program, the line of an op in it, and the program without that op.

    `is_fused`: whether the op is an elementwise one or a reduction of such a program, which compilers fuse.
    """

    name: str
    before: Program
    after: Program
    line: int
    is_fused: bool = False


@dataclass(frozen=True, slots=True)
class _Op:
    """A line of text: `{0}` and so on are its operands.

    `reduced_type`: the type of a reduction's operand.
    """

    text: str
    operands: tuple[int, ...]
    kind: str
    type: str
    reduced_type: str = ""


@dataclass(slots=True)
class _Writer:
    """The ops of a program; value 0 is its first argument."""

    chance: random.Random
    ops: list[_Op] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def add(self, kind: str, text: str, operands: Sequence[int], type_: str, reduced: str = "") -> int:
        self.ops.append(_Op(text, tuple(operands), kind, type_, reduced))
        return len(self.ops) - 1

    def argument(self, *extents: int) -> int:
        type_ = _tensor(*extents)
        self.arguments.append(type_)
        return self.add("argument", f"%a{len(self.arguments) - 1}", (), type_)

    def type(self, value: int) -> str:
        return self.ops[value].type

    # -- ops

    def unary(self, value: int) -> int:
        name = self.chance.choice(("tanh", "exponential", "logistic", "negate", "abs"))
        return self.add("elementwise", f"stablehlo.{name} %0 : {self.type(value)}", (value,), self.type(value))

    def binary(self, name: str, left: int, right: int, kind: str = "elementwise") -> int:
        return self.add(kind, f"stablehlo.{name} %0, %1 : {self.type(left)}", (left, right), self.type(left))

    def product(self, value: int, width: int) -> int:
        columns = _extents(self.type(value))[1]
        weight, type_ = self.argument(columns, width), _tensor(_ROWS, width)
        text = (
            f"stablehlo.dot_general %0, %1, contracting_dims = [1] x [0] : "
            f"({self.type(value)}, {self.type(weight)}) -> {type_}"
        )
        return self.add("product", text, (value, weight), type_)

    def along(self, vector: int, type_: str, dimension: int) -> int:
        text = f"stablehlo.broadcast_in_dim %0, dims = [{dimension}] : ({self.type(vector)}) -> {type_}"
        return self.add("broadcast", text, (vector,), type_)

    def reduction(self, value: int, name: str) -> int:
        type_ = _tensor(_ROWS)
        text = (
            f"stablehlo.reduce(%0 init: %{'low' if name == 'maximum' else 'zero'}) applies stablehlo.{name} across "
            f"dimensions = [1] : ({self.type(value)}, tensor<f32>) -> {type_}"
        )
        return self.add("reduction", text, (value,), type_, self.type(value))

    # -- blocks

    def linear(self, value: int) -> int:
        columns = _extents(self.type(value))[1]
        width = columns if self.chance.random() < 0.6 else self.chance.choice(_WIDTHS)
        made = self.product(value, width)
        if self.chance.random() < 0.7:
            made = self.binary("add", made, self.along(self.argument(width), self.type(made), 1))
        return self.unary(made) if self.chance.random() < 0.7 else made

    def softmax(self, value: int) -> int:
        type_ = self.type(value)
        shifted = self.binary("subtract", value, self.along(self.reduction(value, "maximum"), type_, 0))
        powers = self.add("elementwise", f"stablehlo.exponential %0 : {type_}", (shifted,), type_)
        return self.binary("divide", powers, self.along(self.reduction(powers, "add"), type_, 0))

    def norm(self, value: int) -> int:
        type_ = self.type(value)
        centred = self.binary("subtract", value, self.along(self.reduction(value, "add"), type_, 0))
        spread = self.reduction(self.binary("multiply", centred, centred), "add")
        root = self.add("elementwise", f"stablehlo.rsqrt %0 : {self.type(spread)}", (spread,), self.type(spread))
        made = self.binary("multiply", centred, self.along(root, type_, 0))
        return self.binary("multiply", made, self.along(self.argument(_extents(type_)[1]), type_, 1))

    def gate(self, value: int) -> int:
        """An elementwise op with several users, and a reduction of it."""
        made = self.unary(value)
        low = self.along(self.reduction(made, "add"), self.type(value), 0)
        return self.binary("multiply", self.unary(made), low)

    def residual(self, value: int) -> int:
        made = self.linear(value)
        while self.type(made) != self.type(value):
            made = self.product(made, _extents(self.type(value))[1])
        pair = (value, made) if self.chance.random() < 0.5 else (made, value)
        return self.binary("add", *pair)

    def attention(self, value: int) -> int:
        """`a (aᵀ b)`, of two products."""
        columns = _extents(self.type(value))[1]
        other = self.unary(value) if self.chance.random() < 0.5 else value
        inner, type_ = _tensor(columns, columns), self.type(value)
        text = f"stablehlo.dot_general %0, %1, contracting_dims = [0] x [0] : ({type_}, {type_}) -> {inner}"
        weight = self.add("inner product", text, (value, other), inner)
        if self.chance.random() < 0.5:
            weight = self.unary(weight)
        text = f"stablehlo.dot_general %0, %1, contracting_dims = [1] x [0] : ({type_}, {inner}) -> {type_}"
        return self.add("product", text, (value, weight), type_)

    def convolution(self, value: int) -> int:
        columns = _extents(self.type(value))[1]
        image, weight = _tensor(1, 8, 8, columns), self.argument(3, 3, columns, columns)
        made = self.add("reshape", f"stablehlo.reshape %0 : ({self.type(value)}) -> {image}", (value,), image)
        text = (
            "stablehlo.convolution(%0, %1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = "
            f"[[1, 1], [1, 1]]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : "
            f"({image}, {self.type(weight)}) -> {image}"
        )
        made = self.unary(self.add("convolution", text, (made, weight), image))
        type_ = self.type(value)
        return self.add("reshape", f"stablehlo.reshape %0 : ({image}) -> {type_}", (made,), type_)

    def transposed(self, value: int) -> int:
        if _extents(self.type(value))[1] != _ROWS:
            value = self.product(value, _ROWS)
        type_ = self.type(value)
        made = self.add("transpose", f"stablehlo.transpose %0, dims = [1, 0] : ({type_}) -> {type_}", (value,), type_)
        return self.product(made, self.chance.choice(_WIDTHS))

    def loop(self, value: int) -> int:
        """A loop whose body has a product and an activation, or an attention."""
        type_ = self.type(value)
        columns = _extents(type_)[1]
        weight = self.argument(columns, columns)
        begin = self.add(
            "loop",
            f":2 = stablehlo.while(%i{len(self.ops)} = %none, %v{len(self.ops)} = %0) : tensor<i32>, {type_}",
            (value,),
            type_,
        )
        carried = self.add("carried", f"%v{begin}", (), type_)
        text = f"stablehlo.dot_general %0, %1, contracting_dims = [1] x [0] : ({type_}, {self.type(weight)}) -> {type_}"
        made = self.add("product", text, (carried, weight), type_)
        if self.chance.random() < 0.7:
            made = self.unary(made)
        if self.chance.random() < 0.5:
            made = self.add("product", text, (made, weight), type_)
        if self.chance.random() < 0.5:
            made = self.binary("add", made, carried)
        self.add("end", f"%i{begin}", (made,), type_)
        return begin


_BLOCKS: Final = {
    "linear": 4,
    "residual": 3,
    "softmax": 2,
    "norm": 2,
    "gate": 2,
    "attention": 2,
    "convolution": 1,
    "transposed": 1,
    "loop": 1,
}
_FUSED: Final = frozenset({"elementwise", "reduction"})
"""Ops that compilers fuse."""
_REMOVABLE: Final = _FUSED | {"product", "convolution", "transpose"}


def _tensor(*extents: int) -> str:
    return f"tensor<{''.join(f'{extent}x' for extent in extents)}f32>"


def _extents(type_: str) -> list[int]:
    return [int(part) for part in type_[len("tensor<") : -len("xf32>")].split("x")]


_FIRST_SEED: Final = 1000
"""The rules of the prediction were made with the seeds below it."""


def fused_edits(count: int) -> Iterator[Edit]:
    """Random programs without one of their ops each; at most three edits of a program, at least half of fused ops."""
    seed, found = _FIRST_SEED, 0
    while found < count:
        chance = random.Random(f"fused {seed}")
        writer = _Writer(chance)
        value = writer.argument(_ROWS, chance.choice(_WIDTHS))
        for block in chance.choices(list(_BLOCKS), list(_BLOCKS.values()), k=chance.randint(2, 5)):
            value = getattr(writer, block)(value)
        before, line = _program(f"fused{seed}", writer, value, None)
        numbers = [number for number in line if _replacement(writer.ops, number) is not None]
        fused = [number for number in numbers if writer.ops[number].kind in _FUSED]
        others = [number for number in numbers if writer.ops[number].kind in _REMOVABLE - _FUSED]
        chosen = chance.sample(fused, min(len(fused), 2)) + chance.sample(others, min(len(others), 1))
        for number in chosen[: count - found]:
            after, _ = _program(f"fused{seed}_{number}", writer, value, number)
            kind = writer.ops[number].kind
            name = f"fused {seed} without {kind} {number}"
            yield Edit(name, before, after, line[number], kind in _FUSED)
        found += len(chosen)
        seed += 1


def _replacement(ops: Sequence[_Op], number: int) -> int | None:
    """The operand that takes an op's place: the first of the same type, and that of a reduction that is broadcast."""
    op = ops[number]
    if op.reduced_type:
        users = [user for user in ops if number in user.operands]
        return op.operands[0] if all(user.kind == "broadcast" for user in users) else None
    return next((operand for operand in op.operands if ops[operand].type == op.type), None)


def _program(name: str, writer: _Writer, result: int, removed: int | None) -> tuple[Program, dict[int, int]]:
    """A program, and the lines of its ops."""
    ops, names, lines = writer.ops, dict[int, str](), dict[int, int]()
    arguments = ", ".join(f"%a{number}: {type_}" for number, type_ in enumerate(writer.arguments))
    body = [
        f"func.func @main({arguments}) -> {ops[result].type} {{",
        "%zero = stablehlo.constant dense<0.0> : tensor<f32>",
        "%low = stablehlo.constant dense<0xFF800000> : tensor<f32>",
        "%none = stablehlo.constant dense<0> : tensor<i32>",
        "%one = stablehlo.constant dense<1> : tensor<i32>",
        "%trips = stablehlo.constant dense<3> : tensor<i32>",
    ]
    begin = ""
    for number, op in enumerate(ops):
        operands = [names[operand] for operand in op.operands]
        if op.kind in ("argument", "carried"):
            names[number] = op.text
            continue
        is_unreduced = op.kind == "broadcast" and op.operands[0] == removed and bool(ops[removed].reduced_type)
        if number == removed or is_unreduced:
            replacement = _replacement(ops, number) if number == removed else op.operands[0]
            names[number] = names[-1 if replacement is None else replacement]
            continue
        names[number] = f"%o{number}"
        text = op.text
        for index, operand in reversed(list(enumerate(operands))):
            text = text.replace(f"%{index}", operand)
        if op.kind == "loop":
            begin = str(number)
            body += [
                f"%o{number}{text}",
                "cond {",
                f"%p{begin} = stablehlo.compare LT, %i{begin}, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>",
                f"stablehlo.return %p{begin} : tensor<i1>",
                "} do {",
            ]
            lines[number], names[number] = len(body) - 4, f"%o{number}#1"
        elif op.kind == "end":
            body += [
                f"%n{begin} = stablehlo.add %i{begin}, %one : tensor<i32>",
                f"stablehlo.return %n{begin}, {operands[0]} : tensor<i32>, {op.type}",
                "}",
            ]
        else:
            body.append(f"%o{number} = {text}")
            lines[number] = len(body)
    body += [f"return {names[result]} : {ops[result].type}", "}"]
    inputs = tuple(f"{type_[len('tensor<') : -1]}=0.01" for type_ in writer.arguments)
    return Program(name, "\n".join(body) + "\n", inputs), lines
