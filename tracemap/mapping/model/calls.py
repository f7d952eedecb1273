"""Functions of the model, the calls that lead to them, and unused results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tracemap.ir.source import FUNCTIONS, SourceModel, SourceOperation
from tracemap.mapping.model.kinds import REGION_TERMINATORS, chooses, is_call

# ---- calls
#
# Functions of the model and the calls that lead to them.


class Calls:
    """The call graph of the model, by symbol."""

    def __init__(self, model: SourceModel) -> None:
        self._functions = {op.symbol: op for op in model.operations if op.name in FUNCTIONS}
        self._calls_of: dict[str, list[SourceOperation]] = {}
        for operation in model.operations:
            if is_call(operation):
                self._calls_of.setdefault(operation.symbol, []).append(operation)

    def function(self, symbol: str) -> SourceOperation:
        """The function with a symbol.

        Raises:
            KeyError: there is none.
        """
        return self._functions[symbol]

    def callee(self, operation: SourceOperation) -> SourceOperation | None:
        """The function that an op calls; None for other ops and for functions outside of the model."""
        return self._functions.get(operation.symbol) if is_call(operation) else None

    def of(self, symbol: str) -> Sequence[SourceOperation]:
        """The calls of a function, in order."""
        return self._calls_of.get(symbol, ())


# ---- unused
#
# Results of branches and functions that nobody uses.
#
# Branches and functions may have several results. The compiler removes the ops for unused ones, even if the branch or
# the call is needed for others.


Operand = tuple[int, int]
"""An operation's index, and the index of one of its operands."""


def unused_outside(model: SourceModel, calls: Calls) -> frozenset[Operand]:
    """The operands of terminators whose results are unused, or used only by other such operands."""
    users = _users_of_results(model)
    passed_values = list(_terminator_operands(model, calls))
    unused: set[Operand] = set()
    previous_count = -1
    while previous_count < len(unused):  # repeat, since another terminator may pass a result on
        previous_count = len(unused)
        unused |= {
            operand
            for operand, results in passed_values
            if all(users.get(result, set()) <= unused for result in results)
        }
    return frozenset(unused)


def _users_of_results(model: SourceModel) -> Mapping[Operand, set[Operand]]:
    """For each result of a call or a branch, the operands that use it."""
    users: dict[Operand, set[Operand]] = {}
    for operation in model.operations:
        for number, value in enumerate(operation.operands):
            maker = model.operations[value.maker]
            if not value.argument and (is_call(maker) or chooses(maker)):
                users.setdefault((maker.index, value.number), set()).add((operation.index, number))
    return users


def _terminator_operands(model: SourceModel, calls: Calls) -> Iterator[tuple[Operand, Sequence[Operand]]]:
    """The operands of terminators, each with its results: one for each call of the function."""
    for operation in model.operations:
        if not operation.is_op or not operation.name.endswith(REGION_TERMINATORS) or operation.parent < 0:
            continue
        parent = model.operations[operation.parent]
        for number in range(len(operation.operands)):
            results = [(holder.index, number) for holder in _holders(parent, model, calls)]
            if results:
                yield (operation.index, number), results


def _holders(parent: SourceOperation, model: SourceModel, calls: Calls) -> Sequence[SourceOperation]:
    """The operations whose results a region's terminator defines; none if there may be unknown callers."""
    if chooses(parent):
        return (parent,)
    is_known = parent.name in FUNCTIONS and parent.symbol in model.private
    return calls.of(parent.symbol) if is_known and calls.function(parent.symbol) is parent else ()
