"""The result of pass pipelines, stage by stage: the loops, and the ops of the model that run in each.

Stage 0 is the model itself, stage 1 the result of the first pipeline, and so on. Links are many-to-many, between ops
and outermost loops. Inner loops are kept as a tree with their contents, but have no links of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from tracemap.core.codec import Count, Positive, Record
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown
from tracemap.map.model import Evidence, OpId, Reason

_Place = TypeVar("_Place")

LOOPS = frozenset({"affine.for", "affine.parallel", "scf.for", "scf.forall", "scf.parallel", "scf.while"})
"""The operations that are loops."""


@dataclass(frozen=True, slots=True)
class SourceOp:
    """An op of the model and its position in the text, 1-based. Its id is the one in a bundle.

    Functions, returns and globals are left out; `constant`: whether its kind is that of a constant.
    """

    id: OpId
    name: str
    function: Text
    line: Integer
    column: Integer
    constant: bool


class Link(Record, frozen=True):
    """An op that runs in a loop, or that an operation outside of loops came from, with the evidence.

    `lines`: the lines of the stage's text with an operation that carries the op's tag, whether evidence or not.
    """

    op: OpId
    evidence: Evidence
    lines: tuple[Positive, ...]


class Loop(Record, frozen=True):
    """A loop of a stage. `id` is `loop2` for outermost loops, in text order, and `loop2.0` for the first loop inside.

    `line`: its first line in the stage's text; `last_line`: the line of its last operation; `operations`: number
    of operations that can be evidence, including those of inner loops; `untraced`: number of these without an op's tag.
    """

    id: str
    name: str
    function: str
    line: Integer
    last_line: Integer
    operations: Count
    untraced: Count
    links: tuple[Link, ...]
    children: tuple[Loop, ...]

    @property
    def depth(self) -> int:
        """The depth of the loop nest: 1 for a loop without inner loops."""
        return 1 + max((child.depth for child in self.children), default=0)

    def walk(self) -> Iterator[Loop]:
        """The loop and all loops inside it, in text order."""
        yield self
        for child in self.children:
            yield from child.walk()


class OperationOutsideLoops(Record, frozen=True):
    """An operation outside of all loops that carries tags of ops: the current form of these ops."""

    name: str
    function: str
    line: Integer
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class OpPosition:
    """The position of an op in a stage: its outermost loops, and the operations outside of loops that came from it.

    `inlined`: it is a call, and the callee's body replaced it. If all are empty, the op is gone. `reason` then says
    why, if the model as written tells; such a reason is always inferred.
    """

    op: OpId
    loops: tuple[str, ...]
    remainders: tuple[int, ...]
    inlined: bool
    reason: Reason | Unknown

    @property
    def is_gone(self) -> bool:
        """Whether no operation that can be evidence carries the op's tag."""
        return not self.loops and not self.remainders and not self.inlined


@dataclass(frozen=True)
class Stage:
    """The text of the model after a pipeline (stage 0: "", the model itself), with the position of its ops.

    `loops`: the outermost ones, in order; `remainders`: the operations outside of loops; `inlined`: calls that the
    callee's body replaced; `reasons`: why ops are gone, if known.
    """

    pipeline: str
    text: str
    loops: tuple[Loop, ...]
    remainders: tuple[OperationOutsideLoops, ...]
    inlined: frozenset[OpId]
    reasons: Mapping[OpId, Reason]

    def place_of(self, op: OpId) -> OpPosition:
        """The position of an op in this stage."""
        loops, remainders = self._loops_of.get(op, ()), self._remainders_of.get(op, ())
        return OpPosition(op, loops, remainders, op in self.inlined, self.reasons.get(op, UNKNOWN))

    @cached_property
    def _loops_of(self) -> dict[OpId, tuple[str, ...]]:
        return _by_op((loop.id, loop.links) for loop in self.loops)

    @cached_property
    def _remainders_of(self) -> dict[OpId, tuple[int, ...]]:
        return _by_op((index, remainder.links) for index, remainder in enumerate(self.remainders))


def _by_op(places: Iterable[tuple[_Place, Iterable[Link]]]) -> dict[OpId, tuple[_Place, ...]]:
    places_by_op: dict[OpId, tuple[_Place, ...]] = {}
    for place, links in places:
        for link in links:
            places_by_op[link.op] = (*places_by_op.get(link.op, ()), place)
    return places_by_op


@dataclass(frozen=True)
class Lowering:
    """A lowered model: its file name, its ops in text order, and its stages, beginning with the model itself."""

    model: str
    compiler: str
    ops: tuple[SourceOp, ...]
    stages: tuple[Stage, ...]

    @cached_property
    def op_by_id(self) -> dict[str, SourceOp]:
        """Ops by id."""
        return {op.id: op for op in self.ops}

    def places_of(self, op: str) -> tuple[OpPosition, ...]:
        """The position of an op in each stage.

        Raises:
            KeyError: there is no such op.
        """
        return tuple(stage.place_of(self.op_by_id[op].id) for stage in self.stages)
