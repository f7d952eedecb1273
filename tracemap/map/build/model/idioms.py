"""Idioms of several ops: those that the compiler raises to one op, and rotations by halves."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import chain, permutations

from tracemap.ir.source_model import SourceModel, SourceOperation
from tracemap.map.build.model.dataflow import Dataflow
from tracemap.map.build.model.kinds import concatenates, is_constant_like, is_destination, makes_list
from tracemap.map.build.model.scopes import Origin, Origins
from tracemap.map.model import OpId

# ---- raised
#
# The ops of idioms that the compiler raises to a single op.
#
# A raised op has only the location of the idiom's last op. The other ops are found by the idiom's shape in the def-use
# graph, in any dialect, even if they have other uses that the compiler computes elsewhere.

_MAX_CHAIN = 4
"""The longest chain of ops in place of one: conversions, or a maximum with minus infinity."""


class SoftmaxFinder:
    """Finds the ops of a softmax: q = p / sum(p), where p is computed from x and a value computed from x alone."""

    def __init__(self, model: SourceModel, origins: Origins) -> None:
        self._operations = model.operations
        self._origins = origins

    def parts(self, last: int, path: tuple[OpId, ...]) -> frozenset[int]:
        """The ops of the softmax that ends in an op, without that op; empty if there is no softmax.

        The compiler's own match allows nothing else: ops in between that combine each element with a constant (JAX's
        maximum with minus infinity) were simplified away earlier.
        """
        inputs = self.inputs(self._operations[last], path)
        if len(inputs) != 2:
            return frozenset()
        # Names of ops are ignored, so both inputs are tried as the sum.
        for powers, total in permutations(inputs):
            sum_ops = self._chain(total, powers)
            power_ops = self._powers(powers)
            if sum_ops and power_ops:
                return sum_ops | power_ops
        return frozenset()

    def _powers(self, powers: Origin) -> frozenset[int]:
        """The ops from x to p: a chain of ops with one input, up to the op with two: x and a value computed from x."""
        ops: set[int] = set()
        for _ in range(_MAX_CHAIN):
            maker = self._origins.maker(powers)
            if maker is None:
                break
            ops |= self._working(maker, powers.path)
            inputs = self.inputs(maker, powers.path)
            if len(inputs) == 2:
                chains = [self._chain(highest, value) for value, highest in permutations(inputs)]
                return next((chain | ops for chain in chains if chain), frozenset())
            if len(inputs) != 1:
                break
            powers = inputs[0]
        return frozenset()

    def _chain(self, end: Origin, start: Origin) -> frozenset[int]:
        """The ops that compute `end` from `start` alone; empty if other values are needed."""
        ops: set[int] = set()
        for _ in range(_MAX_CHAIN):
            maker = self._origins.maker(end)
            inputs = [] if maker is None else self.inputs(maker, end.path)
            if maker is None or len(inputs) != 1:
                break
            ops |= self._working(maker, end.path)
            if inputs[0] == start:
                return frozenset(ops)
            end = inputs[0]
        return frozenset()

    def inputs(self, operation: SourceOperation, path: tuple[OpId, ...]) -> list[Origin]:
        """The distinct inputs of an op, without constants and destinations."""
        makers = {origin: self._origins.maker(origin) for origin in self._origins.operands(operation, path)}
        return [origin for origin, maker in makers.items() if maker is None or not _is_given(maker)]

    def _working(self, operation: SourceOperation, path: tuple[OpId, ...]) -> frozenset[int]:
        """The op, unless it combines each element with a constant."""
        inputs = [
            value for value in operation.operands if value.argument or not _is_given(self._operations[value.maker])
        ]
        elementwise = any(
            not value.argument and self._operations[value.maker].results[value.number] == operation.results[0]
            for value in inputs
        )
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


def _is_constant(operation: SourceOperation) -> bool:
    return not operation.operands and is_constant_like(operation) and not is_destination(operation)


def _is_given(operation: SourceOperation) -> bool:
    """Whether an op only makes a destination or a constant, such as the initial value of a sum."""
    return is_destination(operation) or _is_constant(operation)


# ---- rotated
#
# Rotations by halves, `concatenate(negate(second half), first half)`, as in rotary position embeddings.
#
# The compiler turns them into a loop that swaps the halves and negates one of them (IREE's RaiseSpecialOps), inside the
# op that uses the result. The operations of that loop have no location, so the ops are found by the idiom's shape in
# the model's def-use graph.

_MAX_MOVES = 16
"""The longest chain of ops that is searched for a rotation."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """The op that concatenates the halves, and the one that negates."""

    join: OpId
    negate: OpId


class RotationFinder:
    """Finds rotations. `moves`: indices of the ops that only move or rename elements."""

    def __init__(self, operations: Sequence[SourceOperation], dataflow: Dataflow, moves: Set[int]) -> None:
        self._operations = operations
        self._dataflow = dataflow
        self._moves = moves

    def before(self, index: int) -> Rotation | None:
        """The rotation whose result an op uses, possibly through moves; None if there is none."""
        moves = self._dataflow.upstream(index, self._moves.__contains__, _MAX_MOVES)
        makers = chain.from_iterable(map(self._dataflow.makers, chain([index], moves)))
        return next(filter(None, map(self._rotation, makers)), None)

    def _rotation(self, join: int) -> Rotation | None:
        if not concatenates(self._operations[join]):
            return None
        for part in self._parts(join):
            if self._operations[part].name.rsplit(".", 1)[-1].lower().startswith("neg"):
                return Rotation(OpId.of(join), OpId.of(part))
        return None

    def _parts(self, join: int) -> list[int]:
        """The concatenated operands, also if the dialect puts them into a list first."""
        parts: list[int] = []
        for maker in self._dataflow.makers(join):
            parts += self._dataflow.makers(maker) if makes_list(self._operations[maker]) else [maker]
        return parts
