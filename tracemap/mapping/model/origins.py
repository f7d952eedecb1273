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
# Where a value of the model comes from, behind moves of elements and along the calls that led to its use.


@dataclass(frozen=True, slots=True)
class Origin:
    """A value as it is made (or an argument that nothing more is known of), and the calls that lead to its making.

    `path`: the ids of the calls, outermost first, as in `Membership.path`.
    """

    definition: Definition
    path: tuple[OpId, ...]


class Origins:
    """Follows values back. `moves`: indices of the ops that only move or rename elements."""

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
        """Where each operand of an op comes from, when these calls led to the op."""
        return [self._behind(Origin(definition, path)) for definition in operation.operands]

    def _behind(self, origin: Origin) -> Origin:
        return self.way(origin)[-1]

    def way(self, origin: Origin) -> list[Origin]:
        """A value and those that it is a move, or an argument, of, to where it comes from."""
        seen: dict[Origin, None] = {}
        while origin not in seen:  # a step that leads nowhere gives the same again
            seen[origin] = None
            origin = self._before_argument(origin) if origin.definition.argument else self._before_op(origin)
        return list(seen)

    def _before_op(self, origin: Origin) -> Origin:
        """What an op moves, or what the function that it calls returns."""
        maker, number = self._operations[origin.definition.maker], origin.definition.number
        if maker.index in self._moves and maker.operands:
            # What only renames has a result for each operand: a barrier of several, too.
            return Origin(maker.operands[number if only_renames(maker) else 0], origin.path)
        callee = self._calls.callee(maker)
        returned = None if callee is None else self._returns.get(callee.index)
        if returned is None or number >= len(returned.operands):
            return origin
        return Origin(returned.operands[number], (*origin.path, OpId.of(maker.index)))

    def _before_argument(self, origin: Origin) -> Origin:
        """What the last call of the path hands over; without a path, what the only call does."""
        function, number = self._operations[origin.definition.maker], origin.definition.number
        # Of arguments of regions nothing is followed, and who else calls a public function is not known.
        known = function.name in FUNCTIONS and function.symbol in self._private
        calls = self._calls.of(function.symbol) if known else ()
        if origin.path:
            calls = [call for call in calls if OpId.of(call.index) == origin.path[-1]]
        if len(calls) != 1 or number >= len(calls[0].operands):
            return origin
        return Origin(calls[0].operands[number], origin.path[:-1])


# ---- conversions
#
# Ops of the model that only change the element type, and what they make for other ops.
#
# The compiler folds them into the products that use them, where no location is left of them.


_CONVERSIONS = frozenset(
    """
    onnx.Cast onnx.CastLike stablehlo.convert torch.aten.to.dtype torch.aten.to.dtype_layout
    torch.prims.convert_element_type tosa.cast
    """.split()
)


@dataclass(frozen=True, slots=True)
class Conversion:
    """An op that converts elements: its id, and the bits of an element before and after."""

    op: OpId
    bits_before: Integer
    bits_after: Integer

    def is_folded_into(self, bits_read: Integer) -> bool:
        """Whether what reads elements of this width does the conversion itself; what a loop carries has no width."""
        return self.bits_before in (bits_read, UNKNOWN) and bits_read != self.bits_after


@dataclass(frozen=True, slots=True)
class Converted:
    """An operand of an op that a conversion makes.

    `sources`: what the op reads where it does the conversion itself, as indices, functions for their arguments: what is
    converted, and moves of it, as the compiler may do those in front of the conversion and behind it first.
    """

    number: int
    conversion: Conversion
    sources: frozenset[int]


class Conversions:
    """The conversions of a model, found from the ops that read what they make."""

    def __init__(self, model: SourceModel, parts_of: Mapping[int, Sequence[SourceOperation]], origins: Origins) -> None:
        self._model = model
        self._origins = origins
        self._found = {
            op.index: _conversion(model, op)
            for op in model.operations
            if op.is_op and op.operands and _converts(op, parts_of.get(op.index, ()))
        }

    @property
    def ops(self) -> frozenset[OpId]:
        """The ops that convert."""
        return frozenset(each.op for each in self._found.values())

    def read_by(self, op: OpId, path: tuple[OpId, ...]) -> tuple[Converted, ...]:
        """The operands of an op that conversions make, when these calls led to it, in order."""
        if not self._found:
            return ()
        operands = self._model.operations[op.number].operands
        read = (self._converted(number, definition, path) for number, definition in enumerate(operands))
        return tuple(each for each in read if each is not None)

    def _converted(self, number: int, definition: Definition, path: tuple[OpId, ...]) -> Converted | None:
        behind = self._origins.way(Origin(definition, path))
        maker = self._origins.maker(behind[-1])
        if maker is None or maker.index not in self._found:
            return None
        before = self._origins.way(Origin(maker.operands[0], behind[-1].path))
        values = (origin.definition for origin in (*behind[:-1], *before))
        sources = frozenset(self._model.operations[value.maker].owner for value in values)
        return Converted(number, self._found[maker.index], sources)


def _converts(operation: SourceOperation, parts: Sequence[SourceOperation]) -> bool:
    if operation.name == "linalg.generic":
        return len(parts) == 2 and is_conversion(parts[0].name)
    return operation.name in _CONVERSIONS


def _conversion(model: SourceModel, operation: SourceOperation) -> Conversion:
    before = shape_of(model.type_of(operation.operands[0])).element_bits
    return Conversion(OpId.of(operation.index), before, shape_of(operation.results[0]).element_bits)
