"""Facts about the input model, computed once and on demand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Final

from tracemap.core.locations import is_informative
from tracemap.core.units import UNKNOWN
from tracemap.ir.model_reader import create_records, parse_model
from tracemap.ir.parsing import MlirParser, reachable
from tracemap.ir.source_model import CONTROL_FLOW, FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.map.build.model.constant_propagation import Reachability
from tracemap.map.build.model.dataflow import Dataflow
from tracemap.map.build.model.idioms import RotationFinder, SoftmaxFinder
from tracemap.map.build.model.kinds import is_call, only_moves
from tracemap.map.build.model.scopes import Calls, Conversions, Origins, scopes_of
from tracemap.map.build.model.value_numbering import find_duplicates
from tracemap.map.model import OpId

# ---- written kernels
#
# Dispatches that the model itself writes, and the ops in their kernels, which do not run on the host.

_DISPATCHES: Final = ("flow.dispatch.region", "flow.dispatch.workgroups")
_END: Final = "flow.return"
"""Ends the kernel; the region after it counts workgroups, on the host."""


def find_in_kernels(operations: Sequence[SourceOperation]) -> dict[int, int]:
    """Map the operations inside kernels of dispatches to the dispatch, by index."""
    dispatch_of: dict[int, int] = {}
    ended: set[int] = set()
    for operation in operations:
        parent = operation.parent
        if parent in dispatch_of:
            dispatch_of[operation.index] = dispatch_of[parent]
        elif parent >= 0 and operations[parent].name in _DISPATCHES and parent not in ended:
            dispatch_of[operation.index] = parent
            if operation.name == _END:
                ended.add(parent)
    return dispatch_of


# ---- facts
#
# All code that decides about ops (sites, outcomes, lowering) takes such facts from here and never walks the model.


class ModelFacts:
    """The facts of one model. Ops are identified by their index among all operations."""

    def __init__(self, model: SourceModel) -> None:
        self.model = model
        self.operations = model.operations

    def precompute(self) -> None:
        """Compute the slow facts now, while the compiler runs anyway."""
        _ = self.conversions, self.duplicates, self.scopes, self.dataflow.constant, self.dataflow.live

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
        """The ops of operations: ops themselves, parts to their op; indices outside of the model are ignored."""
        return frozenset(self.operations[index].owner for index in indices if 0 <= index < len(self.operations))

    def place(self, index: int) -> str:
        """`line:column` of an op, or its id if that is unknown."""
        operation = self.operations[index]
        has_position = operation.line is not UNKNOWN and operation.column is not UNKNOWN
        return f"{operation.line}:{operation.column}" if has_position else OpId.of(index)

    @cached_property
    def with_location(self) -> frozenset[int]:
        """The operations (ops and parts) with a location in the model, stated or by position in its text."""
        return frozenset(op.index for op in self.operations if is_informative(op.parsed_location))

    @cached_property
    def scopes(self) -> Mapping[int, tuple[str, ...]]:
        """The scope of every op; empty if unknown."""
        return scopes_of(self.model)

    @cached_property
    def moves(self) -> frozenset[int]:
        """The ops that only move or rename elements."""
        return frozenset(op.index for op in self.ops if only_moves(op, self.parts_of.get(op.index, ())))

    @cached_property
    def calls(self) -> Calls:
        """Functions and their calls."""
        return Calls(self.model)

    @cached_property
    def call_ops(self) -> frozenset[int]:
        """The ops that are calls."""
        return frozenset(op.index for op in self.ops if is_call(op))

    @cached_property
    def dataflow(self) -> Dataflow:
        """The def-use graph, with live and constant ops."""
        return Dataflow(self.model, self.calls, self.reachability)

    @cached_property
    def reachability(self) -> Reachability:
        """Unreachable operations and unused operands."""
        return Reachability(self.model, self.duplicates, self.calls)

    @cached_property
    def duplicates(self) -> Mapping[int, int]:
        """Duplicate op -> the earlier op that computes the same."""
        return find_duplicates(self.model, self.calls)

    @cached_property
    def origins(self) -> Origins:
        """Origins of values, through moves and calls."""
        return Origins(self.model, self.calls, self.moves)

    @cached_property
    def conversions(self) -> Conversions:
        """The ops that only change the type of elements."""
        return Conversions(self.model, self.parts_of, self.origins)

    @cached_property
    def in_kernels(self) -> Mapping[int, int]:
        """Operation in a kernel that the model itself writes -> the dispatch."""
        return find_in_kernels(self.operations)

    @cached_property
    def rotations(self) -> RotationFinder:
        """Finder of rotations by halves."""
        return RotationFinder(self.operations, self.dataflow, self.moves)

    @cached_property
    def softmaxes(self) -> SoftmaxFinder:
        """Finder of softmaxes."""
        return SoftmaxFinder(self.model, self.origins)


# ---- edges
#
# Data flow of a model as edges between its ops, for reports that draw it.

Edge = tuple[OpId, OpId]
"""An op, and a user of one of its results."""


def data_flow(model: bytes) -> tuple[Edge, ...]:
    """The edges of a model (text or bytecode), without duplicates, in the order of the model.

    Values passed to a function flow to the ops that use the argument.

    Raises:
        ModelInvalid: it does not parse.
    """
    parser = MlirParser()
    facts = ModelFacts(create_records(parser, parse_model(parser, model)))
    pairs = ((op.index, user) for op in facts.ops for user in _ops_using(facts.dataflow, op.index))
    return tuple((OpId.of(maker), OpId.of(user)) for maker, user in pairs if maker != user)


def _ops_using(flow: Dataflow, index: int) -> list[int]:
    """The ops that use an op's results, also as arguments of functions."""
    nodes = reachable(
        flow.unordered_users(index), lambda node: () if isinstance(node, int) else flow.unordered_users(node)
    )
    return sorted(node for node in nodes if isinstance(node, int))


def repeated_ops(model: bytes) -> dict[OpId, OpId]:
    """The ops of a model (text or bytecode) that compute what an earlier op computes, with that op.

    Optimization barriers, which keep the compiler from merging them, count as moves.

    Raises:
        ModelInvalid: it does not parse.
    """
    parser = MlirParser()
    facts = ModelFacts(create_records(parser, parse_model(parser, model)))
    repeated = find_duplicates(facts.model, facts.calls, through_barriers=True)
    return {OpId.of(index): OpId.of(first) for index, first in repeated.items()}


# ---- loop invariants
#
# Ops in loops that compute the same in each iteration. The compiler moves few of them out of loops that become control
# flow on the host.

_CARRIED: Final[Mapping[str, tuple[int, int]]] = {
    "scf.for": (3, 1),
    "stablehlo.while": (0, 0),
    "tosa.while_loop": (0, 0),
}
"""Loops whose regions pass on carried values in order: their number of other operands, and of other arguments."""
_LOOPS: Final = frozenset({*_CARRIED, "affine.for", "onnx.Loop", "onnx.Scan", "scf.while", "torch.prim.Loop"})
_NOT_PURE: Final = re.compile(
    r"bernoulli|custom_call|dropout|feed|load|operator|rand|recv|rng|send|store|uniform", re.IGNORECASE
)
"""Parts of the names of ops whose result may be another one each time."""


def loop_invariant_ops(model: bytes) -> dict[OpId, OpId]:
    """The ops of a model (text or bytecode) that compute the same in all iterations, with the outermost such loop.

    Raises:
        ModelInvalid: it does not parse.
    """
    parser = MlirParser()
    facts = ModelFacts(create_records(parser, parse_model(parser, model)))
    ends = {
        operation.parent: operation for operation in facts.ops if operation.name.endswith((".yield", ".return"))
    }  # a loop's last region is its body
    around: dict[int, tuple[int, ...]] = {}
    varies: dict[int, frozenset[int]] = {}

    def only_call(operation: SourceOperation) -> SourceOperation | None:
        """The call of a function that is called in one place."""
        is_private = operation.name in FUNCTIONS and operation.symbol in facts.model.private
        calls = facts.calls.of(operation.symbol) if is_private else ()
        return calls[0] if len(calls) == 1 else None

    def varying(value: Definition) -> frozenset[int]:
        """The loops in which a value is not always the same."""
        maker = facts.operations[value.maker]
        if value.argument and around.get(maker.index) and (call := only_call(maker)):
            return varying(call.operands[value.number])
        if not value.argument or maker.name not in _LOOPS:
            return varies.get(maker.owner, frozenset())
        operands, arguments = _CARRIED.get(maker.name, (0, -1))
        carried, end = value.number - arguments, ends.get(maker.index)
        if arguments < 0 or carried < 0 or end is None or carried >= len(end.operands):
            return frozenset({maker.index})
        is_passed_on = end.operands[carried] == value and carried + operands < len(maker.operands)
        return varying(maker.operands[carried + operands]) if is_passed_on else frozenset({maker.index})

    invariant: dict[OpId, OpId] = {}
    for operation in facts.ops:
        call = only_call(operation)
        chain = around.get(call.index if call else operation.parent, ())
        around[operation.index] = (*chain, operation.index) if operation.name in _LOOPS else chain
        if not chain or operation.name in FUNCTIONS:
            continue
        if operation.name in CONTROL_FLOW or is_call(operation) or _NOT_PURE.search(operation.name):
            varies[operation.index] = frozenset(chain)
            continue
        parts = facts.parts_of.get(operation.index, ())
        values = (value for part in (operation, *parts) for value in part.operands)
        outside = (value for value in values if facts.operations[value.maker].owner != operation.index)
        own = varies[operation.index] = frozenset().union(*map(varying, outside))
        same = takewhile(frozenset(chain).difference(own).__contains__, reversed(chain))
        if loops := tuple(same):
            invariant[OpId.of(operation.index)] = OpId.of(loops[-1])
    return invariant
