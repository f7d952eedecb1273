"""Where a value of the model comes from, behind moves of elements and along the calls that led to its use."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from tracemap.graph.ops import OpId
from tracemap.ir.source import FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.mapping.model.calls import Calls
from tracemap.mapping.model.kinds import is_return, only_renames


@dataclass(frozen=True, slots=True)
class Origin:
    """A value as it is made (or an argument that nothing more is known of), and the calls that lead to its making.

    `path`: the ids of the calls, outermost first, as in `Membership.path`.
    """

    definition: Definition
    path: tuple[OpId, ...]


class Origins:
    """Follows values back. `moves`: indices of the ops that only move or rename elements."""

    def __init__(self, model: SourceModel, calls: Calls, moves: Set[int]) -> None:
        self._operations = model.operations
        self._private = model.private
        self._calls = calls
        self._moves = moves
        self._returns = {op.parent: op for op in model.operations if op.is_op and is_return(op)}

    def maker(self, origin: Origin) -> SourceOperation | None:
        """The op that makes a value; None for arguments."""
        definition = origin.definition
        return None if definition.argument else self._operations[self._operations[definition.maker].owner]

    def operands(self, operation: SourceOperation, path: tuple[OpId, ...]) -> list[Origin]:
        """Where each operand of an op comes from, when these calls led to the op."""
        return [self._behind(Origin(definition, path)) for definition in operation.operands]

    def _behind(self, origin: Origin) -> Origin:
        return self.way(origin)[-1]

    def way(self, origin: Origin) -> list[Origin]:
        """A value and those that it is a move, or an argument, of, to where it comes from."""
        seen: dict[Origin, None] = {}
        while origin not in seen:  # a step that leads nowhere gives the same again
            seen[origin] = None
            origin = self._before_argument(origin) if origin.definition.argument else self._before_op(origin)
        return list(seen)

    def _before_op(self, origin: Origin) -> Origin:
        """What an op moves, or what the function that it calls returns."""
        maker, number = self._operations[origin.definition.maker], origin.definition.number
        if maker.index in self._moves and maker.operands:
            # What only renames has a result for each operand: a barrier of several, too.
            return Origin(maker.operands[number if only_renames(maker) else 0], origin.path)
        callee = self._calls.callee(maker)
        returned = None if callee is None else self._returns.get(callee.index)
        if returned is None or number >= len(returned.operands):
            return origin
        return Origin(returned.operands[number], (*origin.path, OpId.of(maker.index)))

    def _before_argument(self, origin: Origin) -> Origin:
        """What the last call of the path hands over; without a path, what the only call does."""
        function, number = self._operations[origin.definition.maker], origin.definition.number
        # Of arguments of regions nothing is followed, and who else calls a public function is not known.
        known = function.name in FUNCTIONS and function.symbol in self._private
        calls = self._calls.of(function.symbol) if known else ()
        if origin.path:
            calls = [call for call in calls if OpId.of(call.index) == origin.path[-1]]
        if len(calls) != 1 or number >= len(calls[0].operands):
            return origin
        return Origin(calls[0].operands[number], origin.path[:-1])
