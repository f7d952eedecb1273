"""Rotations by halves: `concatenate(negate(second half), first half)`, which rotary position embeddings are made of.

The compiler makes of it a loop that reads the halves the other way round and negates one of them (IREE's
RaiseSpecialOps), inside of the op that uses it. That loop's operations have no location of their own: the idiom's shape
in the model's def-use graph tells what they are of.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import chain

from tracemap.graph.ops import OpId
from tracemap.ir.source import SourceOperation
from tracemap.mapping.model.dataflow import Dataflow
from tracemap.mapping.model.kinds import joins, lists

_MOST_STEPS = 16
"""How many ops before a use are looked at for a rotation."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """The op that puts the halves together, and the one that negates."""

    join: OpId
    negate: OpId


class RotationFinder:
    """Finds rotations. `moves`: indices of the ops that only move or rename elements."""

    def __init__(self, operations: Sequence[SourceOperation], dataflow: Dataflow, moves: Set[int]) -> None:
        self._operations = operations
        self._dataflow = dataflow
        self._moves = moves

    def before(self, index: int) -> Rotation | None:
        """The rotation whose result an op uses, moves between them left out; None where there is none."""
        moves = self._dataflow.behind(index, self._moves.__contains__, _MOST_STEPS)
        makers = chain.from_iterable(map(self._dataflow.makers, chain([index], moves)))
        return next(filter(None, map(self._rotation, makers)), None)

    def _rotation(self, join: int) -> Rotation | None:
        if not joins(self._operations[join]):
            return None
        for part in self._parts(join):
            if self._operations[part].name.rsplit(".", 1)[-1].lower().startswith("neg"):
                return Rotation(OpId.of(join), OpId.of(part))
        return None

    def _parts(self, join: int) -> list[int]:
        """What is put together: behind the list that some dialects make of it."""
        parts: list[int] = []
        for maker in self._dataflow.makers(join):
            parts += self._dataflow.makers(maker) if lists(self._operations[maker]) else [maker]
        return parts
