"""Models as data-flow graphs that can be compared: all are numbered together, so equal parts have equal numbers."""

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
from tracemap.mapping.model.kinds import REGION_TERMINATORS, is_call, is_return, word_of
from tracemap.mapping.model.scopes import scopes_of
from tracemap.units import UNKNOWN, Integer

_Numbering = Callable[[Hashable], int]
"""Maps equal contents to equal numbers."""
_NAME_ATTRIBUTES: Final = ("callee", "sym_name", "sym_visibility", "function_type", "arg_attrs", "res_attrs")
"""Attributes of functions and calls that hold names, or types that the arguments state as well."""


class Flows:
    """Builds flows of models; all flows of one instance are numbered together."""

    def __init__(self) -> None:
        self._parser = MlirParser()
        self._numbers: dict[Hashable, int] = {}

    def of(self, model: bytes) -> Flow:
        """The flow of a model (text or bytecode).

        Raises:
            ModelInvalid: it does not parse.
        """
        return _FlowBuilder(describe_bare(self._parser, model, self._attributes), self._number).flow()

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
        self._shapes: dict[str, tuple[Integer, ...]] = {}
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

    def _shape(self, operation: SourceOperation) -> tuple[Integer, ...]:
        if not operation.results:
            return ()
        text = operation.results[0]
        extents = self._shapes.get(text)
        if extents is None:
            extents = self._shapes[text] = tuple(shape_of(text).extents)
        return extents

    def _argument_count(self, operation: SourceOperation) -> int:
        """The number of an entry point's arguments; 0 for functions that only the model calls."""
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
        """The values behind an argument or result of a function of the model."""
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
