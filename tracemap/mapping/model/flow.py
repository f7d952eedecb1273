"""Models as graphs of values that can be compared: numbered together, so that what is equal has equal numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Final

from tracemap.graph.documents import Flow, FlowNode
from tracemap.graph.model import OpId
from tracemap.ir.attributes import shape_of
from tracemap.ir.parsing import MlirParser, Operation
from tracemap.ir.reading import describe_bare
from tracemap.ir.source import FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.mapping.model.calls import Calls
from tracemap.mapping.model.kinds import HANDS_BACK, is_call, is_return, word_of
from tracemap.mapping.model.scopes import scopes_of
from tracemap.units import UNKNOWN, Integer

_Numbering = Callable[[Hashable], int]
"""Gives equal things equal numbers."""
_OF_NAMES: Final = ("callee", "sym_name", "sym_visibility", "function_type", "arg_attrs", "res_attrs")
"""Attributes of functions and calls that say what they are called, and types that their arguments say again."""


class Flows:
    """Makes flows of models; all that one of these makes are numbered together."""

    def __init__(self) -> None:
        self._parser = MlirParser()
        self._numbers: dict[Hashable, int] = {}

    def of(self, model: bytes) -> Flow:
        """The flow of a model (text or bytecode).

        Raises:
            ModelInvalid: it does not parse.
        """
        return _Walk(describe_bare(self._parser, model, self._attributes), self._number).flow()

    def _attributes(self, operation: Operation) -> int:
        attributes = operation.attributes
        named = FUNCTIONS | {"func.call", "util.call", "ml_program.func"}
        left_out = _OF_NAMES if operation.name in named else ()
        try:
            # One context holds equal attributes once, whatever model they are of.
            content: Hashable = tuple([(name, attributes[name]) for name in attributes if name not in left_out])
        except TypeError:  # the bindings cannot hand out attributes that are locations
            content = ("locations", len(attributes))
        return self._number(content)

    def _number(self, content: Hashable) -> int:
        return self._numbers.setdefault(content, len(self._numbers))


class _Walk:
    """Makes the flow of one model, whose operations have the numbers of their attributes as signatures."""

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
        self._shapes: dict[str, tuple[Integer, ...]] = {}
        self._places: dict[int, int] = {}
        self._arguments: dict[tuple[int, int], int] = {}
        self._origins: dict[Definition, tuple[int, ...]] = {}

    def flow(self) -> Flow:
        """The nodes, in the order of the model."""
        shown = [each for each in self._operations if each.is_op]
        count = 0
        for operation in shown:
            self._places[operation.index] = count
            count += 1
            for argument in range(self._argument_count(operation)):
                self._arguments[operation.index, argument] = count
                count += 1
        return tuple(node for operation in shown for node in self._nodes(operation))

    def _shape(self, operation: SourceOperation) -> tuple[Integer, ...]:
        if not operation.results:
            return ()
        text = operation.results[0]
        known = self._shapes.get(text)
        if known is None:
            known = self._shapes[text] = tuple(shape_of(text).extents)
        return known

    def _argument_count(self, operation: SourceOperation) -> int:
        """How many arguments come from outside: of functions that only the model calls, none."""
        if operation.name not in FUNCTIONS or operation.symbol in self._model.private:
            return 0
        return len(self._model.arguments.get(operation.symbol, ()))

    def _nodes(self, operation: SourceOperation) -> Iterator[FlowNode]:
        parts = self._parts.get(operation.index, [])
        yield FlowNode(
            op=OpId.of(operation.index),
            name=operation.name,
            exact=self._exact(operation, parts),
            loose=self._loose(operation, parts),
            reads=tuple(self._reads(operation, parts)),
            holder=self._holder(operation),
            passes_on=self._passes_on(operation),
            where=self._scopes[operation.index],
            word=word_of(operation, parts),
            shape=self._shape(operation),
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
                tuple(self._inside(operation.index, each) for each in part.operands),
            )
            for part in parts
        )
        own = (operation.name, operation.signature, operation.results)
        return self._number((own, inside, operation.symbol if public else ""))

    def _inside(self, owner: int, definition: Definition) -> Hashable:
        """Where a part has an operand from: a place in its op, or anywhere outside."""
        if self._operations[definition.maker].owner != owner:
            return "outside"
        return (definition.maker - owner, definition.number, definition.argument)

    def _loose(self, operation: SourceOperation, parts: list[SourceOperation]) -> int:
        sizes = (len(operation.operands), len(operation.results))
        return self._number((operation.name, sizes, tuple(part.name for part in parts)))

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
        return self._places.get(operation.parent, -1) if operation.name.endswith(HANDS_BACK) else -1

    def _passes_on(self, operation: SourceOperation) -> bool:
        if is_return(operation):
            return self._operations[operation.parent].symbol in self._model.private
        return is_call(operation) and self._calls.callee(operation) is not None

    def _origin(self, definition: Definition) -> tuple[int, ...]:
        """The places of the nodes whose results a value may be."""
        known = self._origins.get(definition)
        if known is None:
            self._origins[definition] = ()  # of a function that calls itself, what it hands to itself is left out
            behind = [place for each in self._behind(definition) for place in self._origin(each)]
            known = tuple(dict.fromkeys(behind)) or self._made(definition)
            self._origins[definition] = known
        return known

    def _behind(self, definition: Definition) -> Iterator[Definition]:
        """What a value is that is only handed on: to a function of the model, or out of it."""
        maker, number = self._operations[definition.maker], definition.number
        if definition.argument:
            if maker.name in FUNCTIONS and maker.symbol in self._model.private:
                for call in self._calls.of(maker.symbol):
                    yield from call.operands[number : number + 1]
            return
        callee = self._calls.callee(maker)
        if callee is not None and callee.index in self._returns:
            yield from self._returns[callee.index].operands[number : number + 1]

    def _made(self, definition: Definition) -> tuple[int, ...]:
        maker = self._operations[definition.maker]
        if definition.argument and maker.name in FUNCTIONS:
            place = self._arguments.get((maker.index, definition.number))
        else:
            place = self._places.get(maker.owner)
        return () if place is None else (place,)
