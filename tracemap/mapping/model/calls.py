"""Functions of the model and the calls that lead to them."""

from __future__ import annotations

from collections.abc import Sequence

from tracemap.ir.source import FUNCTIONS, SourceModel, SourceOperation
from tracemap.mapping.model.kinds import is_call


class Calls:
    """Who calls whom, by symbol."""

    def __init__(self, model: SourceModel) -> None:
        self._functions = {op.symbol: op for op in model.operations if op.name in FUNCTIONS}
        self._calls_of: dict[str, list[SourceOperation]] = {}
        for operation in model.operations:
            if is_call(operation):
                self._calls_of.setdefault(operation.symbol, []).append(operation)

    def function(self, symbol: str) -> SourceOperation:
        """The function of a symbol.

        Raises:
            KeyError: there is none.
        """
        return self._functions[symbol]

    def callee(self, operation: SourceOperation) -> SourceOperation | None:
        """The function that an op calls; None if it is no call, or of a function that the model does not have."""
        return self._functions.get(operation.symbol) if is_call(operation) else None

    def of(self, symbol: str) -> Sequence[SourceOperation]:
        """The calls of a function, in order."""
        return self._calls_of.get(symbol, ())
