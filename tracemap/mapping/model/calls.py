"""Functions of the model, the calls that lead to them, and results that nobody uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tracemap.ir.source import FUNCTIONS, SourceModel, SourceOperation
from tracemap.mapping.model.kinds import HANDS_BACK, chooses, is_call

# ---- calls
#
# Functions of the model and the calls that lead to them.


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


# ---- unused
#
# Values that are handed out of an arm of a branch or of a function, and that nobody uses there.
#
# A branch has several results, and a function too; the compiler takes out what makes those that nothing uses, whatever
# else the branch or the call is needed for.


Operand = tuple[int, int]
"""An operation's index, and the number of one of its operands."""


def unused_outside(model: SourceModel, calls: Calls) -> frozenset[Operand]:
    """The operands of terminators that become results which nothing uses, or only what is itself found so."""
    users = _users_of_results(model)
    waiting = list(_handed_out(model, calls))
    unused: set[Operand] = set()
    before = -1
    while before < len(unused):  # once more for results that were handed on by another terminator
        before = len(unused)
        unused |= {operand for operand, results in waiting if all(users.get(each, set()) <= unused for each in results)}
    return frozenset(unused)


def _users_of_results(model: SourceModel) -> Mapping[Operand, set[Operand]]:
    """Of each result of a call or a branch, which operands it is."""
    found: dict[Operand, set[Operand]] = {}
    for operation in model.operations:
        for number, value in enumerate(operation.operands):
            maker = model.operations[value.maker]
            if not value.argument and (is_call(maker) or chooses(maker)):
                found.setdefault((maker.index, value.number), set()).add((operation.index, number))
    return found


def _handed_out(model: SourceModel, calls: Calls) -> Iterator[tuple[Operand, Sequence[Operand]]]:
    """The operands of terminators, each with the results that it becomes: one for each call of the function."""
    for operation in model.operations:
        if not operation.is_op or not operation.name.endswith(HANDS_BACK) or operation.parent < 0:
            continue
        around = model.operations[operation.parent]
        for number in range(len(operation.operands)):
            results = [(holder.index, number) for holder in _holders(around, model, calls)]
            if results:
                yield (operation.index, number), results


def _holders(around: SourceOperation, model: SourceModel, calls: Calls) -> Sequence[SourceOperation]:
    """The operations that have as results what an operation's region hands out; none where others may use it too."""
    if chooses(around):
        return (around,)
    is_known = around.name in FUNCTIONS and around.symbol in model.private
    return calls.of(around.symbol) if is_known and calls.function(around.symbol) is around else ()
