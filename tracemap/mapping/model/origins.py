"""Origins of values: through moves of elements, calls, and conversions of element types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from tracemap.graph.model import OpId
from tracemap.ir.attributes import is_conversion, shape_of
from tracemap.ir.source import FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.mapping.model.calls import Calls
from tracemap.mapping.model.kinds import is_return, only_renames
from tracemap.units import UNKNOWN, Integer

# ---- origins
#
# The origin of a value, through moves of elements and along the calls that led to its use.


@dataclass(frozen=True, slots=True)
class Origin:
    """The definition of a value (or an argument that cannot be followed), with the calls that lead to it.

    `path`: the ids of the calls, outermost first, as in `Membership.path`.
    """

    definition: Definition
    path: tuple[OpId, ...]


class Origins:
    """Follows values back to their origins. `moves`: indices of the ops that only move or rename elements."""

    def __init__(self, model: SourceModel, calls: Calls, moves: Set[int]) -> None:
        self._operations = model.operations
        self._private = model.private
        self._calls = calls
        self._moves = moves
        self._returns = {op.parent: op for op in model.operations if op.is_op and is_return(op)}

    def maker(self, origin: Origin) -> SourceOperation | None:
        """The op that makes a value; None for arguments."""
        definition = origin.definition
        return None if definition.argument else self._operations[self._operations[definition.maker].owner]

    def operands(self, operation: SourceOperation, path: tuple[OpId, ...]) -> list[Origin]:
        """The origin of each operand of an op that these calls led to."""
        return [self._source(Origin(definition, path)) for definition in operation.operands]

    def _source(self, origin: Origin) -> Origin:
        return self.trace(origin)[-1]

    def trace(self, origin: Origin) -> list[Origin]:
        """The value, then each value that it is a move or an argument of, up to its origin."""
        visited: dict[Origin, None] = {}
        while origin not in visited:  # a step without a source returns the same origin
            visited[origin] = None
            origin = self._operand_of_call(origin) if origin.definition.argument else self._operand_of_op(origin)
        return list(visited)

    def _operand_of_op(self, origin: Origin) -> Origin:
        """The operand that an op moves, or the value that its callee returns."""
        maker, number = self._operations[origin.definition.maker], origin.definition.number
        if maker.index in self._moves and maker.operands:
            # A renaming op has a result for each operand, for example a barrier of several.
            return Origin(maker.operands[number if only_renames(maker) else 0], origin.path)
        callee = self._calls.callee(maker)
        terminator = None if callee is None else self._returns.get(callee.index)
        if terminator is None or number >= len(terminator.operands):
            return origin
        return Origin(terminator.operands[number], (*origin.path, OpId.of(maker.index)))

    def _operand_of_call(self, origin: Origin) -> Origin:
        """The operand of the last call of the path; without a path, of the only call."""
        function, number = self._operations[origin.definition.maker], origin.definition.number
        # Arguments of regions are not followed, and a public function may have unknown callers.
        is_private = function.name in FUNCTIONS and function.symbol in self._private
        calls = self._calls.of(function.symbol) if is_private else ()
        if origin.path:
            calls = [call for call in calls if OpId.of(call.index) == origin.path[-1]]
        if len(calls) != 1 or number >= len(calls[0].operands):
            return origin
        return Origin(calls[0].operands[number], origin.path[:-1])


# ---- conversions
#
# Ops of the model that only change the element type, and the operands that they make for other ops.
#
# The compiler folds them into the ops that use them, without a location.


_CONVERSIONS = frozenset(
    """
    onnx.Cast onnx.CastLike stablehlo.convert torch.aten.to.dtype torch.aten.to.dtype_layout
    torch.prims.convert_element_type tosa.cast
    """.split()
)


@dataclass(frozen=True, slots=True)
class Conversion:
    """An op that converts elements: its id, and the bits of an element on both sides."""

    op: OpId
    bits_before: Integer
    bits_after: Integer

    def is_folded_into(self, bits_read: Integer) -> bool:
        """Whether a reader of such elements converts them itself; values that loops carry have no width."""
        return self.bits_before in (bits_read, UNKNOWN) and bits_read != self.bits_after


@dataclass(frozen=True, slots=True)
class Converted:
    """An operand that a conversion makes.

    `sources`: the values that the op reads if it does the conversion itself, as indices of ops (functions for their
    arguments): the converted value, and moves of it, which the compiler may do on either side of the conversion.
    """

    number: int
    conversion: Conversion
    sources: frozenset[int]


class Conversions:
    """The conversions of a model, looked up from the ops that read their results."""

    def __init__(self, model: SourceModel, parts_of: Mapping[int, Sequence[SourceOperation]], origins: Origins) -> None:
        self._model = model
        self._origins = origins
        self._conversions = {
            op.index: _conversion(model, op)
            for op in model.operations
            if op.is_op and op.operands and _converts(op, parts_of.get(op.index, ()))
        }

    @property
    def ops(self) -> frozenset[OpId]:
        """The ops that convert."""
        return frozenset(conversion.op for conversion in self._conversions.values())

    def read_by(self, op: OpId, path: tuple[OpId, ...]) -> tuple[Converted, ...]:
        """The operands of an op that conversions make, in order, if these calls led to the op."""
        if not self._conversions:
            return ()
        operands = self._model.operations[op.number].operands
        converted = (self._converted(number, definition, path) for number, definition in enumerate(operands))
        return tuple(operand for operand in converted if operand is not None)

    def _converted(self, number: int, definition: Definition, path: tuple[OpId, ...]) -> Converted | None:
        trace = self._origins.trace(Origin(definition, path))
        maker = self._origins.maker(trace[-1])
        if maker is None or maker.index not in self._conversions:
            return None
        source_trace = self._origins.trace(Origin(maker.operands[0], trace[-1].path))
        values = (origin.definition for origin in (*trace[:-1], *source_trace))
        sources = frozenset(self._model.operations[value.maker].owner for value in values)
        return Converted(number, self._conversions[maker.index], sources)


def _converts(operation: SourceOperation, parts: Sequence[SourceOperation]) -> bool:
    if operation.name == "linalg.generic":
        return len(parts) == 2 and is_conversion(parts[0].name)
    return operation.name in _CONVERSIONS


def _conversion(model: SourceModel, operation: SourceOperation) -> Conversion:
    before = shape_of(model.type_of(operation.operands[0])).element_bits
    return Conversion(OpId.of(operation.index), before, shape_of(operation.results[0]).element_bits)
