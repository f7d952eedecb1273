"""Data flow between ops of the model, through calls and regions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Set
from functools import cached_property
from typing import Final

from tracemap.core.units import UNKNOWN
from tracemap.ir.attributes import shape_of
from tracemap.ir.model_reader import create_records_without_positions
from tracemap.ir.parsing import MlirParser, Operation, reachable
from tracemap.ir.source_model import CONTROL_FLOW, FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.map.build.model.constant_propagation import Reachability
from tracemap.map.build.model.kinds import (
    REGION_TERMINATORS,
    is_barrier,
    is_call,
    is_constant_like,
    is_return,
    loads_global,
    op_alias,
)
from tracemap.map.build.model.scopes import Calls, scopes_of, unused_outside
from tracemap.map.bundle_documents import Flow, FlowNode
from tracemap.map.model import OpId

# ---- flow
#
# Models as data-flow graphs that can be compared: all are numbered together, so equal parts have equal numbers.

_Numbering = Callable[[Hashable], int]
"""Maps equal contents to equal numbers."""
_NAME_ATTRIBUTES: Final = ("callee", "sym_name", "sym_visibility", "function_type", "arg_attrs", "res_attrs")
"""Attributes of functions and calls that hold names, or types that the arguments state as well."""


class FlowBuilder:
    """Builds flows of models; all flows of one instance are numbered together."""

    def __init__(self) -> None:
        self._parser = MlirParser()
        self._numbers: dict[Hashable, int] = {}

    def of(self, model: bytes) -> Flow:
        """The flow of a model (text or bytecode).

        Raises:
            ModelInvalid: it does not parse.
        """
        return _FlowBuilder(
            create_records_without_positions(self._parser, model, self._attributes), self._number
        ).flow()

    def _attributes(self, operation: Operation) -> int:
        attributes = operation.attributes
        named_ops = FUNCTIONS | {"func.call", "util.call", "ml_program.func"}
        ignored = _NAME_ATTRIBUTES if operation.name in named_ops else ()
        try:
            # A context stores equal attributes only once, even for several models.
            content: Hashable = tuple([(name, attributes[name]) for name in attributes if name not in ignored])
        except TypeError:  # the bindings cannot return attributes that are locations
            content = ("locations", len(attributes))
        return self._number(content)

    def _number(self, content: Hashable) -> int:
        return self._numbers.setdefault(content, len(self._numbers))


class _FlowBuilder:
    """Builds the flow of one model; the signature of an operation is the number of its attributes."""

    def __init__(self, model: SourceModel, number: _Numbering) -> None:
        self._model, self._operations, self._number = model, model.operations, number
        self._calls, self._scopes = Calls(model), scopes_of(model)
        self._parts: dict[int, list[SourceOperation]] = {}
        self._returns: dict[int, SourceOperation] = {}
        for operation in model.operations:
            if not operation.is_op:
                self._parts.setdefault(operation.owner, []).append(operation)
            elif is_return(operation):
                self._returns[operation.parent] = operation
        self._places: dict[int, int] = {}
        self._arguments: dict[tuple[int, int], int] = {}
        self._origins: dict[Definition, tuple[int, ...]] = {}

    def flow(self) -> Flow:
        """The nodes, in the order of the model."""
        ops = [operation for operation in self._operations if operation.is_op]
        count = 0
        for operation in ops:
            self._places[operation.index] = count
            count += 1
            for argument in range(self._argument_count(operation)):
                self._arguments[operation.index, argument] = count
                count += 1
        return tuple(node for operation in ops for node in self._nodes(operation))

    def _argument_count(self, operation: SourceOperation) -> int:
        """The number of an entry point's arguments; 0 for functions that only the model calls."""
        if operation.name not in FUNCTIONS or operation.symbol in self._model.private:
            return 0
        return len(self._model.arguments.get(operation.symbol, ()))

    def _nodes(self, operation: SourceOperation) -> Iterator[FlowNode]:
        parts = self._parts.get(operation.index, [])
        sizes = (len(operation.operands), len(operation.results))
        yield FlowNode(
            op=OpId.of(operation.index),
            name=operation.name,
            exact=self._exact(operation, parts),
            loose=self._number((operation.name, sizes, tuple(part.name for part in parts))),
            reads=tuple(self._reads(operation, parts)),
            holder=self._holder(operation),
            passes_on=self._passes_on(operation),
            where=self._scopes[operation.index],
            word=op_alias(operation, parts),
            shape=shape_of(operation.results[0]).extents if operation.results else (),
            location=operation.parsed_location,
        )
        for argument in range(self._argument_count(operation)):
            exact = self._number(("argument", self._model.arguments[operation.symbol][argument].type))
            yield FlowNode(UNKNOWN, "argument", exact, self._number("argument"), ())

    def _exact(self, operation: SourceOperation, parts: list[SourceOperation]) -> int:
        public = operation.name in FUNCTIONS and operation.symbol not in self._model.private
        inside = tuple(
            (
                part.name,
                part.signature,
                part.results,
                tuple(self._relative_origin(operation.index, operand) for operand in part.operands),
            )
            for part in parts
        )
        own = (operation.name, operation.signature, operation.results)
        return self._number((own, inside, operation.symbol if public else ""))

    def _relative_origin(self, owner: int, definition: Definition) -> Hashable:
        """The origin of a part's operand: a position within its op, or anywhere outside."""
        if self._operations[definition.maker].owner != owner:
            return "outside"
        return (definition.maker - owner, definition.number, definition.argument)

    def _reads(self, operation: SourceOperation, parts: list[SourceOperation]) -> Iterator[tuple[int, ...]]:
        yield from map(self._origin, operation.operands)
        for part in parts:
            for definition in part.operands:
                if self._operations[definition.maker].owner != operation.index:
                    yield self._origin(definition)

    def _holder(self, operation: SourceOperation) -> int:
        callee = self._calls.callee(operation)
        if callee is not None:
            return self._places.get(callee.index, -1)
        return self._places.get(operation.parent, -1) if operation.name.endswith(REGION_TERMINATORS) else -1

    def _passes_on(self, operation: SourceOperation) -> bool:
        if is_return(operation):
            return self._operations[operation.parent].symbol in self._model.private
        return is_call(operation) and self._calls.callee(operation) is not None

    def _origin(self, definition: Definition) -> tuple[int, ...]:
        """The indices of the nodes whose result a value may be."""
        places = self._origins.get(definition)
        if places is None:
            self._origins[definition] = ()  # the result for a value that a recursive function passes to itself
            source_places = [place for source in self._passed_values(definition) for place in self._origin(source)]
            places = tuple(dict.fromkeys(source_places)) or self._producer(definition)
            self._origins[definition] = places
        return places

    def _passed_values(self, definition: Definition) -> Iterator[Definition]:
        """The values that calls pass to an argument of a function, or that the function returns as a result."""
        maker, number = self._operations[definition.maker], definition.number
        if definition.argument:
            if maker.name in FUNCTIONS and maker.symbol in self._model.private:
                for call in self._calls.of(maker.symbol):
                    yield from call.operands[number : number + 1]
            return
        callee = self._calls.callee(maker)
        if callee is not None and callee.index in self._returns:
            yield from self._returns[callee.index].operands[number : number + 1]

    def _producer(self, definition: Definition) -> tuple[int, ...]:
        maker = self._operations[definition.maker]
        if definition.argument and maker.name in FUNCTIONS:
            place = self._arguments.get((maker.index, definition.number))
        else:
            place = self._places.get(maker.owner)
        return () if place is None else (place,)


# ---- dataflow
#
# Def-use graph of the model's ops, through calls and control flow.
#
# Nodes are the indices of ops; parts stand for their op. Edges lead from an op to the users of its results. Arguments
# of functions are nodes of their own, so a value passed to a call flows to its uses in the callee. The callee's result
# flows to the uses of the call. Operations with regions (loops, branches) stand for all values that enter or leave
# their regions. Ops that never run use nothing, nor do terminators whose value nobody uses.

Node = int | tuple[int, int]
"""An op's index, or (function's index, number) for an argument."""

_RETURNS = ("func.return", "util.return", "ml_program.return")


class Dataflow:
    """The graph and its queries."""

    def __init__(self, model: SourceModel, calls: Calls, reachability: Reachability) -> None:
        self._model = model
        self._operations = model.operations
        self._calls = calls
        self._reachability = reachability
        self._unused = unused_outside(model, calls)
        # Dicts keep the order. networkx would do, but its import takes longer than filling the graph.
        self._users: dict[Node, dict[Node, None]] = {}
        self._makers: dict[Node, dict[Node, None]] = {}
        for operation in model.operations:
            for maker, user in self._edges(operation):
                self._users.setdefault(maker, {})[user] = None
                self._makers.setdefault(user, {})[maker] = None

    def users(self, index: int) -> list[Node]:
        """The users of an op's results, in order, including arguments of functions."""
        return sorted(self.unordered_users(index), key=_order)

    def unordered_users(self, node: Node) -> Collection[Node]:
        """The users of a node, in no particular order."""
        return self._users.get(node, ())

    def unordered_makers(self, node: Node) -> Collection[Node]:
        """The nodes that a node uses, in no particular order."""
        return self._makers.get(node, ())

    @property
    def arguments(self) -> list[Node]:
        """The arguments of functions that some op passes."""
        return [node for node in self._makers if isinstance(node, tuple)]

    def makers(self, index: int) -> list[int]:
        """The ops whose results an op uses, in order, also through arguments of functions."""
        makers: dict[int, None] = {}
        worklist: list[Node] = [index]
        for node in worklist:  # grows in the loop
            for maker in sorted(self._makers.get(node, ()), key=_order):
                if isinstance(maker, int):
                    makers[maker] = None
                elif maker not in worklist:
                    worklist.append(maker)
        return list(makers)

    def upstream(self, index: int, through: Callable[[int], bool], limit: int) -> Iterator[int]:
        """The ops upstream of an op that are reached only through ops of a kind, nearest first; fewer than `limit`."""
        return _nearest_first(index, self.makers, through, limit)

    def downstream(self, index: int, through: Callable[[int], bool], limit: int) -> Iterator[int]:
        """The ops downstream of an op, likewise."""
        return _nearest_first(index, self.users, through, limit)

    def nearest(self, start: int, targets: Set[int], *, downwards: bool) -> int | None:
        """The target op with the shortest path from `start`, the earliest of several; None if none can be reached."""
        neighbours = self._users if downwards else self._makers
        level: set[Node] = {start}
        visited: set[Node] = {start}
        while level:
            level = {node for current in level for node in neighbours.get(current, ())} - visited
            visited |= level
            reached = [node for node in level if isinstance(node, int) and node in targets]
            if reached:
                return min(reached)
        return None

    def all_nearest(self, targets: Set[int], *, downwards: bool, past_control: bool) -> Mapping[Node, int]:
        """`nearest` for all nodes that are not targets and from which a target can be reached.

        One backward search from all targets, since a search from each node would be quadratic in the length of chains.
        `past_control`: continue through loops and branches, which stand for all of their values.
        """
        neighbours = self._makers if downwards else self._users
        nearest: dict[Node, int] = {}
        level: dict[Node, int] = {op: op for op in targets}
        while level:
            next_level: dict[Node, int] = {}
            for node, op in level.items():
                is_control = isinstance(node, int) and self._operations[node].name in CONTROL_FLOW
                if past_control or node in targets or not is_control:
                    for neighbour in neighbours.get(node, ()):
                        if neighbour not in nearest and neighbour not in targets:
                            next_level[neighbour] = min(op, next_level.get(neighbour, op))
            nearest |= next_level
            level = next_level
        return nearest

    @cached_property
    def live(self) -> frozenset[Node]:
        """The nodes on which an externally visible effect depends."""
        effects: list[Node] = [op.index for op in self._operations if op.is_op and self._is_effect(op)]
        return frozenset(reachable(effects, self.unordered_makers))

    @cached_property
    def constant(self) -> frozenset[int]:
        """Ops that depend on constants only, so that the compiler can compute them; without the constants themselves.

        Ops with regions are never constant, since the values that enter them are not followed. Nor are barriers and
        ops that depend on them. An argument is constant if every call passes a constant.
        """
        constants: set[Node] = set()
        previous_count = -1
        while previous_count < len(constants):  # repeat for functions that come ahead of their calls
            previous_count = len(constants)
            for operation in self._operations:
                constants |= self._arguments_from(operation, constants)
                if operation.is_op and operation.name not in CONTROL_FLOW | FUNCTIONS and not is_barrier(operation):
                    makers = self._makers.get(operation.index, ())
                    if self._is_source(operation) or (makers and all(maker in constants for maker in makers)):
                        constants.add(operation.index)
        return frozenset(node for node in constants if isinstance(node, int))

    def _is_source(self, operation: SourceOperation) -> bool:
        """Whether an op is a constant, or reads a global that is one."""
        if operation.operands or self._makers.get(operation.index):
            return False
        return is_constant_like(operation) or (loads_global(operation) and operation.symbol in self._model.fixed)

    def _arguments_from(self, operation: SourceOperation, constants: Set[Node]) -> set[Node]:
        """The arguments of a function that are constant if these nodes are."""
        if operation.name not in FUNCTIONS or operation.symbol not in self._model.private:
            return set()
        arguments = [
            (operation.index, number) for number in range(len(self._model.arguments.get(operation.symbol, ())))
        ]
        makers = {node: self._makers.get(node, ()) for node in arguments}
        return {node for node, sources in makers.items() if sources and all(maker in constants for maker in sources)}

    def _edges(self, operation: SourceOperation) -> Iterator[tuple[Node, Node]]:
        user = operation.owner
        callee = self._calls.callee(operation)
        for number, definition in enumerate(operation.operands):
            if (operation.index, number) in self._unused or not self._reachability.uses(operation, number):
                continue
            maker = self._maker(definition)
            target: Node = user if callee is None else (callee.index, number)
            if maker is not None and maker != target:  # values between an op and its parts stay inside
                yield maker, target
        if operation.is_op and operation.name.endswith(REGION_TERMINATORS) and self._reachability.runs(operation):
            yield from self._leaving(operation)

    def _leaving(self, terminator: SourceOperation) -> Iterator[tuple[Node, Node]]:
        """The edges from a terminator to the op around it, or to the calls of its function."""
        if terminator.name not in _RETURNS:
            yield terminator.index, terminator.parent
            return
        function = self._operations[terminator.parent]
        for call in self._calls.of(function.symbol):
            # Nested modules may have functions of the same name; `Calls` knows only the last one.
            if self._calls.callee(call) is function:
                yield terminator.index, call.index

    def _maker(self, definition: Definition) -> Node | None:
        """The node that makes a value; None for arguments of a region of parts."""
        maker = self._operations[definition.maker]
        if not definition.argument:
            return maker.owner
        if maker.name in FUNCTIONS:
            return (maker.index, definition.number)
        return maker.index if maker.name in CONTROL_FLOW else None

    def _is_effect(self, operation: SourceOperation) -> bool:
        """Whether an op is visible from outside: a public function's return, a store, or any op without results."""
        if operation.name in FUNCTIONS or operation.name == "builtin.module" or not self._reachability.runs(operation):
            return False
        if operation.name in _RETURNS:
            return self._operations[operation.parent].symbol not in self._model.private
        if operation.name.endswith(REGION_TERMINATORS):
            return False
        return not operation.results and not is_call(operation)


def _nearest_first(
    index: int, neighbours: Callable[[int], Iterable[Node]], through: Callable[[int], bool], limit: int
) -> Iterator[int]:
    worklist = [index]
    for current in worklist:  # grows in the loop
        for node in neighbours(current):
            if isinstance(node, int) and node not in worklist and len(worklist) < limit and through(node):
                worklist.append(node)
                yield node


def _order(node: Node) -> tuple[int, int]:
    return node if isinstance(node, tuple) else (node, -1)
