"""Where a value of the model comes from, behind moves of elements and along the calls that led to its use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from tracemap.graph.model import OpId
from tracemap.ir.source import FUNCTIONS, Source, SourceModel, SourceOperation
from tracemap.mapping.model.dataflow import is_call


@dataclass(frozen=True, slots=True)
class Origin:
    """A value as it is made (or an argument that nothing more is known of), and the calls that lead to its making.

    `path`: the ids of the calls, outermost first, as in `Membership.path`.
    """

    source: Source
    path: tuple[OpId, ...]


class Origins:
    """Follows values back. `moves`: indices of the ops that only move or rename elements."""

    def __init__(self, model: SourceModel, moves: Set[int]) -> None:
        self._operations = model.operations
        self._moves = moves
        self._returns = {op.parent: op for op in model.operations if op.is_op and op.name.endswith(".return")}
        self._functions = {op.symbol: op for op in model.operations if op.name in FUNCTIONS}
        self._calls_of: Mapping[str, Sequence[SourceOperation]] = {
            symbol: [op for op in model.operations if is_call(op) and op.symbol == symbol] for symbol in model.private
        }

    def maker(self, origin: Origin) -> SourceOperation | None:
        """The op that makes a value; None for arguments."""
        return None if origin.source.argument else self._operations[self._operations[origin.source.maker].owner]

    def operands(self, operation: SourceOperation, path: tuple[OpId, ...]) -> list[Origin]:
        """Where each operand of an op comes from, when these calls led to the op."""
        return [self._behind(Origin(source, path)) for source in operation.operands]

    def _behind(self, origin: Origin) -> Origin:
        seen: set[Origin] = set()
        while origin not in seen:
            seen.add(origin)
            origin = self._before_argument(origin) if origin.source.argument else self._before_op(origin)
        return origin

    def _before_op(self, origin: Origin) -> Origin:
        maker = self._operations[origin.source.maker]
        if maker.index in self._moves and maker.operands:
            return Origin(maker.operands[0], origin.path)
        callee = self._functions.get(maker.symbol) if is_call(maker) else None
        returned = None if callee is None else self._returns.get(callee.index)
        if returned is None or origin.source.number >= len(returned.operands):
            return origin
        return Origin(returned.operands[origin.source.number], (*origin.path, OpId.of(maker.index)))

    def _before_argument(self, origin: Origin) -> Origin:
        """What the last call of the path hands over; without a path, what the only call does."""
        function = self._operations[origin.source.maker]
        calls = self._calls_of.get(function.symbol, ()) if function.name in FUNCTIONS else ()
        if origin.path:
            calls = [call for call in calls if OpId.of(call.index) == origin.path[-1]]
        if len(calls) != 1 or origin.source.number >= len(calls[0].operands):
            return origin
        return Origin(calls[0].operands[origin.source.number], origin.path[:-1])
