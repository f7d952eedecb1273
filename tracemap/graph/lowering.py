"""What pass pipelines make of a model, stage by stage: its loops, and which ops of the model work in each.

Stage 0 is the model itself, stage 1 what the first pipeline made of it, and so on. Links are between ops and outermost
loops, many to many; loops within loops are kept as a tree, each with what is in it, but link to nothing themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from tracemap.codec import Count, Positive, Record
from tracemap.graph.model import Evidence, OpId, Reason
from tracemap.units import UNKNOWN, Integer, Text, Unknown

_Place = TypeVar("_Place")

LOOPS = frozenset({"affine.for", "affine.parallel", "scf.for", "scf.forall", "scf.parallel", "scf.while"})
"""The operations that are loops."""


@dataclass(frozen=True, slots=True)
class SourceOp:
    """An op of the model: a place in its text, 1-based. Its id is the one that it has in a bundle.

    Functions, returns and globals are not among them; `constant`: it is one by its kind.
    """

    id: OpId
    name: str
    function: Text
    line: Integer
    column: Integer
    constant: bool


class Link(Record, frozen=True):
    """An op that works in a loop (or is what an operation outside of loops became), and how that is known.

    `lines`: of the stage's text, those with an operation that carries the op's tag, whether evidence or not.
    """

    op: OpId
    evidence: Evidence
    lines: tuple[Positive, ...]


class Loop(Record, frozen=True):
    """A loop of a stage. `id` is `loop2` of outermost ones, in the order of the text, and `loop2.0` of the first in it.

    `line`, `last_line`: where it begins, and its last operation, in the stage's text; `operations`: how many operations
    that can be evidence are in it, loops within included, and `untraced`: how many of them carry no tag of an op.
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
        """How many loops deep the nest is: 1 for a loop without others in it."""
        return 1 + max((child.depth for child in self.children), default=0)

    def walk(self) -> Iterator[Loop]:
        """The loop and all in it, in the order of the text."""
        yield self
        for child in self.children:
            yield from child.walk()


class Remainder(Record, frozen=True):
    """An operation outside of all loops that carries tags of ops: what they are as yet, or became."""

    name: str
    function: str
    line: Integer
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class OpPlace:
    """Where an op is in a stage: the outermost loops that it works in, and what it is outside of loops.

    `inlined`: it is a call, and what it called stands in its place. All empty: the op is gone, and `reason` says why
    where the model as written tells; that is always inferred.
    """

    op: OpId
    loops: tuple[str, ...]
    remainders: tuple[int, ...]
    inlined: bool
    reason: Reason | Unknown

    @property
    def is_gone(self) -> bool:
        """Whether no operation that could be evidence carries the op's tag."""
        return not self.loops and not self.remainders and not self.inlined


@dataclass(frozen=True)
class Stage:
    """The model after a pipeline (stage 0: "", the model as it is), as text, and what became of its ops.

    `loops`: the outermost ones, in order; `remainders`: what stands outside of them; `inlined`: calls whose callees'
    bodies stand in their place; `reasons`: why ops are gone, where that is known.
    """

    pipeline: str
    text: str
    loops: tuple[Loop, ...]
    remainders: tuple[Remainder, ...]
    inlined: frozenset[OpId]
    reasons: Mapping[OpId, Reason]

    def place_of(self, op: OpId) -> OpPlace:
        """Where an op is in this stage."""
        loops, remainders = self._loops_of.get(op, ()), self._remainders_of.get(op, ())
        return OpPlace(op, loops, remainders, op in self.inlined, self.reasons.get(op, UNKNOWN))

    @cached_property
    def _loops_of(self) -> dict[OpId, tuple[str, ...]]:
        return _by_op((loop.id, loop.links) for loop in self.loops)

    @cached_property
    def _remainders_of(self) -> dict[OpId, tuple[int, ...]]:
        return _by_op((number, remainder.links) for number, remainder in enumerate(self.remainders))


def _by_op(places: Iterable[tuple[_Place, Iterable[Link]]]) -> dict[OpId, tuple[_Place, ...]]:
    found: dict[OpId, tuple[_Place, ...]] = {}
    for place, links in places:
        for link in links:
            found[link.op] = (*found.get(link.op, ()), place)
    return found


@dataclass(frozen=True)
class Lowering:
    """A model, by its file's name, its ops in the order of the text, and its stages, the model itself first."""

    model: str
    compiler: str
    ops: tuple[SourceOp, ...]
    stages: tuple[Stage, ...]

    @cached_property
    def op_by_id(self) -> dict[str, SourceOp]:
        """Ops by id."""
        return {op.id: op for op in self.ops}

    def places_of(self, op: str) -> tuple[OpPlace, ...]:
        """Where an op is, stage by stage.

        Raises:
            KeyError: there is no such op.
        """
        return tuple(stage.place_of(self.op_by_id[op].id) for stage in self.stages)
