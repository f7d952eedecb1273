"""A generated program: its text, and what is known of its ops before any compiler saw it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

Extents = tuple[int | None, ...]
"""A tensor's extents; None where dynamic."""


class Kind(enum.StrEnum):
    """What an op is, for the table."""

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    CONTRACTION = "matmul"
    CONVOLUTION = "convolution"
    SOFTMAX = "softmax"
    LAYER_NORM = "layer norm"
    CONVERT = "convert, iota"
    MOVE = "transpose, reshape, broadcast"
    DESTINATION = "empty, fill"
    CONSTANT = "constant"
    HOST = "call, loop, branch"
    STRUCTURE = "structure"


class Purpose(enum.StrEnum):
    """What an op was put into the program for, where that decides its outcome."""

    WORK = "work"
    DEAD = "dead"
    TWIN = "twin"
    COMPILE_TIME = "compile-time"
    NEUTRAL = "neutral"
    """Leaves its operand as it is (times one): the compiler may drop it or fold it into an idiom; nothing is asked."""


@dataclass(frozen=True, slots=True)
class Loops:
    """How often something runs: the products of the static extents of parallel and reducing loops, and how many
    loops have an extent that is not known.
    """

    parallel: int
    reducing: int
    dynamic: int

    @property
    def volume(self) -> tuple[int, int]:
        """All iterations: the product of what is known, and how many factors are not."""
        return self.parallel * self.reducing, self.dynamic


@dataclass(frozen=True, slots=True)
class Pattern:
    """The scalar operation that an op becomes in a kernel; `reducing`: it combines with what it made before."""

    scalar: str
    reducing: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """An op of the program as generated.

    `operands`: numbers of the values that it reads, constants left out; `result`: of the value that it makes (-1:
    none); `constant`: a number that no other op has; `hard`: reached by reasoning or in several sites;
    `idiom`: the idiom that it is a part of (-1: none); `twin`: the op of which it is a copy (-1: none).
    """

    number: int
    name: str
    kind: Kind
    operands: tuple[int, ...] = ()
    result: int = -1
    pattern: Pattern | None = None
    constant: float | None = None
    loops: Loops | None = None
    extents: Extents = ()
    purpose: Purpose = Purpose.WORK
    hard: bool = False
    idiom: int = -1
    twin: int = -1


@dataclass(frozen=True, slots=True)
class Idiom:
    """A softmax: what it reads, the op that makes its result, and all its ops."""

    number: int
    operand: int
    last: int
    ops: tuple[int, ...]
    loops: Loops


@dataclass(frozen=True)
class Program:
    """A program: text, ops, the line of each op, and which values stand for which.

    `aliases`: of a value that nothing computes (moved, renamed, handed to or out of functions and regions), the values
    that it may hold.
    """

    text: str
    ops: tuple[Op, ...]
    idioms: tuple[Idiom, ...]
    lines: Mapping[int, int]
    aliases: Mapping[int, tuple[int, ...]]
    features: frozenset[str]

    @cached_property
    def _maker(self) -> Mapping[int, Op]:
        return {op.result: op for op in self.ops if op.result >= 0}

    def first_twin(self, number: int) -> int:
        """The op that an op is a copy of; itself if of none."""
        twin = self.ops[number].twin
        return number if twin < 0 else twin

    def makers(self, value: int) -> frozenset[int]:
        """The ops that compute what a value holds, looked for behind moves, calls and control flow; copies as one."""
        return frozenset(self.first_twin(op.number) for op in self._computing(value, set()))

    def _computing(self, value: int, seen: set[int]) -> Iterator[Op]:
        if value in seen:
            return
        seen.add(value)
        if value in self.aliases:
            for other in self.aliases[value]:
                yield from self._computing(other, seen)
        elif value in self._maker:
            yield self._maker[value]
