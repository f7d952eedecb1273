"""Def-use over the model as written: who uses what, through calls and control flow, as a graph of ops.

Nodes are the indices of ops; parts stand for their op. Edges lead from an op to the ops that use its results. Arguments
of functions are nodes of their own, so that a value handed to a call flows to its uses in the callee, and what the
callee returns to the uses of the call. Operations that hold regions (loops, branches) stand for all values that enter
or leave their regions. What can never run uses nothing, nor does what hands a value out that nobody takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from functools import cached_property

from tracemap.ir.source import CONTROL_FLOW, FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.mapping.model.calls import Calls, unused_outside
from tracemap.mapping.model.constant_propagation import Unreached
from tracemap.mapping.model.kinds import HANDS_BACK, is_call, is_constant_like, is_held_back, loads_global

Node = int | tuple[int, int]
"""An op's index, or (function's index, number) of an argument."""

_RETURNS = ("func.return", "util.return", "ml_program.return")


class Dataflow:
    """The graph, and what can be read off it."""

    def __init__(self, model: SourceModel, calls: Calls, unreached: Unreached) -> None:
        self._model = model
        self._operations = model.operations
        self._calls = calls
        self._unreached = unreached
        self._unused = unused_outside(model, calls)
        # Dicts for their order. A graph of networkx would do, but takes longer to import than to fill.
        self._users: dict[Node, dict[Node, None]] = {}
        self._makers: dict[Node, dict[Node, None]] = {}
        for operation in model.operations:
            for maker, user in self._edges(operation):
                self._users.setdefault(maker, {})[user] = None
                self._makers.setdefault(user, {})[maker] = None

    def users(self, index: int) -> list[Node]:
        """What uses the results of an op, in order; arguments of functions among it."""
        return sorted(self.using(index), key=_order)

    def using(self, node: Node) -> Collection[Node]:
        """What uses a node, in no order that means anything."""
        return self._users.get(node, ())

    def making(self, node: Node) -> Collection[Node]:
        """What a node is made of, in no order that means anything."""
        return self._makers.get(node, ())

    @property
    def arguments(self) -> list[Node]:
        """The arguments of functions that are handed over by some op."""
        return [node for node in self._makers if isinstance(node, tuple)]

    def makers(self, index: int) -> list[int]:
        """The ops whose results an op uses, in order, behind arguments of functions."""
        found: dict[int, None] = {}
        waiting: list[Node] = [index]
        for node in waiting:  # which grows meanwhile
            for maker in sorted(self._makers.get(node, ()), key=_order):
                if isinstance(maker, int):
                    found[maker] = None
                elif maker not in waiting:
                    waiting.append(maker)
        return list(found)

    def behind(self, index: int, through: Callable[[int], bool], most: int) -> Iterator[int]:
        """The ops from which an op is made through ops of one kind alone, nearest first; less than `most` of them."""
        return _nearest_first(index, self.makers, through, most)

    def ahead(self, index: int, through: Callable[[int], bool], most: int) -> Iterator[int]:
        """The ops that are made of an op in the same way."""
        return _nearest_first(index, self.users, through, most)

    def nearest(self, start: int, wanted: Set[int], *, downwards: bool) -> int | None:
        """The wanted op that is fewest steps away from `start`, ties to the earlier; None if none can be reached."""
        steps = self._users if downwards else self._makers
        level: set[Node] = {start}
        seen: set[Node] = {start}
        while level:
            level = {node for each in level for node in steps.get(each, ())} - seen
            seen |= level
            hits = [node for node in level if isinstance(node, int) and node in wanted]
            if hits:
                return min(hits)
        return None

    def all_nearest(self, wanted: Set[int], *, downwards: bool, past_control: bool) -> Mapping[Node, int]:
        """What `nearest` tells, of all nodes at once that are not wanted themselves and from which one can be reached.

        All wanted ops are gone back from together: to ask for each node alone takes the square of a chain's length.
        `past_control`: also behind loops and branches, which stand for all of their values, whichever of them it is.
        """
        back = self._makers if downwards else self._users
        found: dict[Node, int] = {}
        level: dict[Node, int] = {op: op for op in wanted}
        while level:
            following: dict[Node, int] = {}
            for node, op in level.items():
                if past_control or node in wanted or not self._is_control(node):
                    for before in back.get(node, ()):
                        if before not in found and before not in wanted:
                            following[before] = min(op, following.get(before, op))
            found |= following
            level = following
        return found

    def _is_control(self, node: Node) -> bool:
        return isinstance(node, int) and self._operations[node].name in CONTROL_FLOW

    @cached_property
    def live(self) -> frozenset[Node]:
        """The nodes that something seen from outside depends on."""
        reached: set[Node] = set()
        stack: list[Node] = [op.index for op in self._operations if op.is_op and self._is_effect(op)]
        while stack:
            node = stack.pop()
            if node not in reached:
                reached.add(node)
                stack += self._makers.get(node, ())
        return frozenset(reached)

    @cached_property
    def constant(self) -> frozenset[int]:
        """Ops that depend on constants only, and so can be computed by the compiler; those without operands excepted.

        Region holders are never constant: what enters them is not followed. Nor is what a barrier holds back, and
        what is computed from it. An argument is where every call hands over a constant.
        """
        found: set[Node] = set()
        before = -1
        while before < len(found):  # once more for functions that stand before their calls
            before = len(found)
            for operation in self._operations:
                found |= self._arguments_from(operation, found)
                if operation.is_op and operation.name not in CONTROL_FLOW | FUNCTIONS and not is_held_back(operation):
                    makers = self._makers.get(operation.index, ())
                    if self._is_source(operation) or (makers and all(maker in found for maker in makers)):
                        found.add(operation.index)
        return frozenset(node for node in found if isinstance(node, int))

    def _is_source(self, operation: SourceOperation) -> bool:
        """Whether an op makes a constant from nothing, or reads a global that is one."""
        if operation.operands or self._makers.get(operation.index):
            return False
        return is_constant_like(operation) or (loads_global(operation) and operation.symbol in self._model.fixed)

    def _arguments_from(self, operation: SourceOperation, found: Set[Node]) -> set[Node]:
        """The arguments of a function that are constant, where these nodes are."""
        if operation.name not in FUNCTIONS or operation.symbol not in self._model.private:
            return set()
        arguments = [
            (operation.index, number) for number in range(len(self._model.arguments.get(operation.symbol, ())))
        ]
        makers = {node: self._makers.get(node, ()) for node in arguments}
        return {node for node, before in makers.items() if before and all(maker in found for maker in before)}

    def _edges(self, operation: SourceOperation) -> Iterator[tuple[Node, Node]]:
        user = operation.owner
        callee = self._calls.callee(operation)
        for number, definition in enumerate(operation.operands):
            if (operation.index, number) in self._unused or not self._unreached.uses(operation, number):
                continue
            maker = self._maker(definition)
            target: Node = user if callee is None else (callee.index, number)
            if maker is not None and maker != target:  # what passes between an op and its parts stays inside
                yield maker, target
        if operation.is_op and operation.name.endswith(HANDS_BACK) and self._unreached.runs(operation):
            yield from self._leaving(operation)

    def _leaving(self, terminator: SourceOperation) -> Iterator[tuple[Node, Node]]:
        """What a terminator hands on: to the op around it, or to the calls of its function."""
        if terminator.name not in _RETURNS:
            yield terminator.index, terminator.parent
            return
        function = self._operations[terminator.parent]
        for call in self._calls.of(function.symbol):
            # Nested modules may have functions of one name, of which `Calls` knows the last.
            if self._calls.callee(call) is function:
                yield terminator.index, call.index

    def _maker(self, definition: Definition) -> Node | None:
        """The node that a value comes from; None for arguments of an op's own region of parts."""
        maker = self._operations[definition.maker]
        if not definition.argument:
            return maker.owner
        if maker.name in FUNCTIONS:
            return (maker.index, definition.number)
        return maker.index if maker.name in CONTROL_FLOW else None

    def _is_effect(self, operation: SourceOperation) -> bool:
        """Whether an op can be seen from outside: a public function's return, a store, or anything without results."""
        if operation.name in FUNCTIONS or operation.name == "builtin.module" or not self._unreached.runs(operation):
            return False
        if operation.name in _RETURNS:
            return self._operations[operation.parent].symbol not in self._model.private
        if operation.name.endswith(HANDS_BACK):
            return False
        return not operation.results and not is_call(operation)


def _nearest_first(
    index: int, next_to: Callable[[int], Iterable[Node]], through: Callable[[int], bool], most: int
) -> Iterator[int]:
    waiting = [index]
    for each in waiting:  # which grows meanwhile
        for node in next_to(each):
            if isinstance(node, int) and node not in waiting and len(waiting) < most and through(node):
                waiting.append(node)
                yield node


def _order(node: Node) -> tuple[int, int]:
    return node if isinstance(node, tuple) else (node, -1)
