"""Idioms of several ops: those that the compiler raises to one op, and rotations by halves."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import chain, permutations

from tracemap.graph.model import OpId
from tracemap.ir.source import Definition, SourceModel, SourceOperation
from tracemap.mapping.model.dataflow import Dataflow
from tracemap.mapping.model.kinds import is_constant_like, is_destination, joins, lists
from tracemap.mapping.model.origins import Origin, Origins

# ---- raised
#
# Idioms that the compiler raises to one op of its own: which ops of the model it stands for.
#
# A raised op carries the location of the idiom's last op alone. The others are found by the idiom's shape in the
# def-use graph, whatever the dialect calls them, and also where they have other uses that the compiler computes
# elsewhere.


_MAX_STEPS = 4
"""How many ops in a row an idiom may have where one would do: conversions, a maximum with minus infinity."""


class SoftmaxFinder:
    """Finds what a softmax is made of: q = p / sum(p), where p is made of x and something made of x alone."""

    def __init__(self, model: SourceModel, origins: Origins) -> None:
        self._operations = model.operations
        self._origins = origins

    def parts(self, last: int, path: tuple[OpId, ...]) -> frozenset[int]:
        """The ops of the softmax that ends in an op (which is left out); none where it is no such idiom.

        The compiler's own match has room for nothing else: what stands between them and works on each element with a
        constant (JAX's maximum with minus infinity) was simplified away before.
        """
        inputs = self.inputs(self._operations[last], path)
        if len(inputs) != 2:
            return frozenset()
        # Names of ops are not looked at, so it is tried both ways which of the two inputs is the sum.
        for powers, total in permutations(inputs):
            summed = self._chain(total, powers)
            below = self._powers(powers)
            if summed and below:
                return summed | below
        return frozenset()

    def _powers(self, powers: Origin) -> frozenset[int]:
        """The ops from x to p: steps with one input up to the one that has two, x and what is made of x."""
        found: set[int] = set()
        for _ in range(_MAX_STEPS):
            maker = self._origins.maker(powers)
            if maker is None:
                break
            found |= self._working(maker, powers.path)
            inputs = self.inputs(maker, powers.path)
            if len(inputs) == 2:
                chains = [self._chain(highest, value) for value, highest in permutations(inputs)]
                return next((chain | found for chain in chains if chain), frozenset())
            if len(inputs) != 1:
                break
            powers = inputs[0]
        return frozenset()

    def _chain(self, end: Origin, start: Origin) -> frozenset[int]:
        """The ops that make `end` of `start` alone; none where others are needed."""
        found: set[int] = set()
        for _ in range(_MAX_STEPS):
            maker = self._origins.maker(end)
            inputs = [] if maker is None else self.inputs(maker, end.path)
            if maker is None or len(inputs) != 1:
                break
            found |= self._working(maker, end.path)
            if inputs[0] == start:
                return frozenset(found)
            end = inputs[0]
        return frozenset()

    def inputs(self, operation: SourceOperation, path: tuple[OpId, ...]) -> list[Origin]:
        """The different values that an op computes with: no constants, no destinations."""
        return [
            origin for origin in dict.fromkeys(self._origins.operands(operation, path)) if not self._is_given(origin)
        ]

    def _is_given(self, origin: Origin) -> bool:
        maker = self._origins.maker(origin)
        return maker is not None and (is_destination(maker) or _is_constant(maker))

    def _working(self, operation: SourceOperation, path: tuple[OpId, ...]) -> frozenset[int]:
        """An op, unless it works on each element with a constant."""
        inputs = [value for value in operation.operands if not self._is_made_beforehand(value)]
        elementwise = any(self._type(value) == operation.results[0] for value in inputs)
        makers = map(self._origins.maker, self._origins.operands(operation, path))
        with_constant = any(maker is not None and _is_constant(maker) for maker in makers)
        neutral = elementwise and (with_constant or self._holds_constant(operation))
        return frozenset() if neutral else frozenset({operation.index})

    def _holds_constant(self, operation: SourceOperation) -> bool:
        """Whether a part of an op uses a constant."""
        for part in self._operations[operation.index + 1 :]:
            if part.owner != operation.index:
                return False
            if any(_is_constant(self._operations[value.maker]) for value in part.operands if not value.argument):
                return True
        return False

    def _is_made_beforehand(self, value: Definition) -> bool:
        """Whether a value is a destination or a constant, such as what the sum of a row begins with."""
        maker = self._operations[value.maker]
        return not value.argument and (is_destination(maker) or _is_constant(maker))

    def _type(self, value: Definition) -> str:
        """The printed type of a value; empty for arguments."""
        return "" if value.argument else self._operations[value.maker].results[value.number]


def _is_constant(operation: SourceOperation) -> bool:
    return not operation.operands and is_constant_like(operation) and not is_destination(operation)


# ---- rotated
#
# Rotations by halves: `concatenate(negate(second half), first half)`, which rotary position embeddings are made of.
#
# The compiler makes of it a loop that reads the halves the other way round and negates one of them (IREE's
# RaiseSpecialOps), inside of the op that uses it. That loop's operations have no location of their own: the idiom's
# shape in the model's def-use graph tells what they are of.


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
