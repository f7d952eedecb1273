"""Facts about the input model, each computed once when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

from tracemap.graph.model import OpId
from tracemap.ir.parsing import MlirParser
from tracemap.ir.reading import describe, parse_model
from tracemap.ir.source import SourceModel, SourceOperation
from tracemap.locations import is_informative
from tracemap.mapping.model.calls import Calls
from tracemap.mapping.model.constant_propagation import Unreached
from tracemap.mapping.model.dataflow import Dataflow, Node
from tracemap.mapping.model.idioms import RotationFinder, SoftmaxFinder
from tracemap.mapping.model.kinds import is_call, only_moves
from tracemap.mapping.model.origins import Conversions, Origins
from tracemap.mapping.model.scopes import scopes_of
from tracemap.mapping.model.value_numbering import find_twins
from tracemap.units import UNKNOWN

# ---- written kernels
#
# Dispatches that a model writes itself: which of its ops stand in their kernels, and not on the host.


_DISPATCHES: Final = ("flow.dispatch.region", "flow.dispatch.workgroups")
_END: Final = "flow.return"
"""Ends the kernel; the region behind it counts workgroups, on the host."""


def find_in_kernels(operations: Sequence[SourceOperation]) -> dict[int, int]:
    """By the indices of operations that stand in a dispatch's kernel the index of the dispatch."""
    found: dict[int, int] = {}
    ended: set[int] = set()
    for operation in operations:
        parent = operation.parent
        if parent in found:
            found[operation.index] = found[parent]
        elif parent >= 0 and operations[parent].name in _DISPATCHES and parent not in ended:
            found[operation.index] = parent
            if operation.name == _END:
                ended.add(parent)
    return found


# ---- facts
#
# All that is known of the input model by itself: each fact found once, when asked for.
#
# Whoever decides about ops (sites, fates, lowering) asks here; nobody else walks the model for such answers.


class ModelFacts:
    """The facts of one model. Ops go by their index among all of its operations."""

    def __init__(self, model: SourceModel) -> None:
        self.model = model
        self.operations = model.operations

    def work_out(self) -> None:
        """Find out now what takes long: who waits for the compiler has the time, and later there is less of it."""
        _ = self.conversions, self.twins, self.scopes, self.dataflow.constant, self.dataflow.live

    @cached_property
    def ops(self) -> tuple[SourceOperation, ...]:
        """The operations that are ops, in order; the module itself is the first."""
        return tuple(operation for operation in self.operations if operation.is_op)

    @cached_property
    def parts_of(self) -> Mapping[int, Sequence[SourceOperation]]:
        """The parts of each op that has any, in order."""
        parts: dict[int, list[SourceOperation]] = {}
        for operation in self.operations:
            if not operation.is_op:
                parts.setdefault(operation.owner, []).append(operation)
        return parts

    def owners(self, indices: Iterable[int]) -> frozenset[int]:
        """The ops that operations belong to: ops to themselves, parts to their op; what the model lacks to none."""
        return frozenset(self.operations[index].owner for index in indices if 0 <= index < len(self.operations))

    def place(self, index: int) -> str:
        """`line:column` of an op, its id where that is unknown."""
        operation = self.operations[index]
        known = operation.line is not UNKNOWN and operation.column is not UNKNOWN
        return f"{operation.line}:{operation.column}" if known else OpId.of(index)

    @cached_property
    def with_location(self) -> frozenset[int]:
        """The operations, ops and parts, to which the model gives a location: in its text, or by where they stand."""
        return frozenset(op.index for op in self.operations if is_informative(op.parsed_location))

    @cached_property
    def scopes(self) -> Mapping[int, tuple[str, ...]]:
        """The scope of every op; empty where nothing tells."""
        return scopes_of(self.model)

    @cached_property
    def moves(self) -> frozenset[int]:
        """The ops that only move or rename elements."""
        return frozenset(op.index for op in self.ops if only_moves(op, self.parts_of.get(op.index, ())))

    @cached_property
    def calls(self) -> Calls:
        """Functions, and who calls them."""
        return Calls(self.model)

    @cached_property
    def call_ops(self) -> frozenset[int]:
        """The ops that are calls."""
        return frozenset(op.index for op in self.ops if is_call(op))

    @cached_property
    def dataflow(self) -> Dataflow:
        """Who uses what; what is live, and what is constant."""
        return Dataflow(self.model, self.calls, self.unreached)

    @cached_property
    def unreached(self) -> Unreached:
        """What can never run, or never matters."""
        return Unreached(self.model, self.twins, self.calls)

    @cached_property
    def twins(self) -> Mapping[int, int]:
        """Of each op that computes what an earlier one has computed already, the earlier one."""
        return find_twins(self.model, self.calls)

    @cached_property
    def origins(self) -> Origins:
        """Where values come from, behind moves and calls."""
        return Origins(self.model, self.calls, self.moves)

    @cached_property
    def conversions(self) -> Conversions:
        """The ops that only change the type of elements."""
        return Conversions(self.model, self.parts_of, self.origins)

    @cached_property
    def in_kernels(self) -> Mapping[int, int]:
        """Of each operation in the kernel of a dispatch that the model writes itself, that dispatch."""
        return find_in_kernels(self.operations)

    @cached_property
    def rotations(self) -> RotationFinder:
        """What rotations by halves are made of."""
        return RotationFinder(self.operations, self.dataflow, self.moves)

    @cached_property
    def softmaxes(self) -> SoftmaxFinder:
        """What a softmax is made of."""
        return SoftmaxFinder(self.model, self.origins)


# ---- edges
#
# Data flow of a model as edges between its ops, for reports that draw it.


Edge = tuple[OpId, OpId]
"""An op, and an op that uses one of its results."""


def data_flow(model: bytes) -> tuple[Edge, ...]:
    """The edges of a model (text or bytecode), each once, in the order of the model.

    What is handed to a function flows on to the ops that use its argument.

    Raises:
        ModelInvalid: it does not parse.
    """
    parser = MlirParser()
    facts = ModelFacts(describe(parser, parse_model(parser, model)))
    pairs = ((op.index, user) for op in facts.ops for user in _ops_using(facts.dataflow, op.index))
    return tuple((OpId.of(maker), OpId.of(user)) for maker, user in pairs if maker != user)


def _ops_using(flow: Dataflow, index: int) -> list[int]:
    """The ops that use an op's results, be it as an argument of a function."""
    seen: set[Node] = set()
    found: set[int] = set()
    waiting = list(flow.using(index))
    while waiting:
        node = waiting.pop()
        if isinstance(node, int):
            found.add(node)
        elif node not in seen:
            seen.add(node)
            waiting += flow.using(node)
    return sorted(found)
