"""Which whole numbers and truth values of a model are the same whatever its inputs are, as far as its text tells."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.ir.source import FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.ir.types import element_bits, shape_of
from tracemap.mapping.model.calls import Calls
from tracemap.units import UNKNOWN, Integer

_ALL_TOGETHER = "tensor.from_elements"
_SAME = frozenset(
    f"""
    arith.extui arith.index_cast arith.index_castui stablehlo.broadcast_in_dim stablehlo.reshape
    tensor.collapse_shape tensor.expand_shape tensor.extract {_ALL_TOGETHER} tensor.splat torch.aten.Bool.Tensor
    """.split()
)
"""Ops whose result consists of the number that what they hand on consists of. No barrier: what it holds back the
compiler does not know, be it a constant.
"""

_COMPARES: Mapping[str, Callable[[int, int], bool]] = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}
_COMPUTES: Mapping[str, Callable[[int, int], int]] = {
    "addi": operator.add,
    "add": operator.add,
    "subi": operator.sub,
    "subtract": operator.sub,
    "muli": operator.mul,
    "multiply": operator.mul,
    "andi": operator.and_,
    "and": operator.and_,
    "ori": operator.or_,
    "or": operator.or_,
}
_NEGATES = frozenset({"stablehlo.not", "tosa.logical_not"})
_UNSIGNED = frozenset({"arith.extui", "arith.index_castui"})
_SIGNED = frozenset({"arith.cmpi", "arith.index_cast"})
_TRUTH = re.compile(r"(?:^|[<x,])i1>?$")
MOST_STEPS = 64
"""How far a number is followed back."""

Given = dict[Definition, Integer]
"""Values that are known where something is looked at, and those that were worked out there."""


@dataclass(frozen=True, slots=True)
class KnownNumbers:
    """The numbers that values of a model consist of. `twins`: of an op the earlier one that it repeats."""

    model: SourceModel
    twins: Mapping[int, int]
    calls: Calls
    _arguments: Given = field(default_factory=dict)

    def of(self, definition: Definition, given: Given, steps: int = 0) -> Integer:
        """The number that a value consists of, where these are given; what is worked out is added to them."""
        key = self.first(definition)
        if key in given or steps > MOST_STEPS:
            return given.get(key, UNKNOWN)
        if definition.argument:
            return self._argument(definition, steps)
        maker = self.model.operations[definition.maker]
        told = maker.constant is UNKNOWN and _can_be_told(maker)
        given[key] = self._result(maker, given, steps) if told else maker.constant
        return given[key]

    def _argument(self, argument: Definition, steps: int) -> Integer:
        """The number that all calls of a function hand over."""
        if argument not in self._arguments:
            self._arguments[argument] = UNKNOWN  # of a function that calls itself nothing is told
            handed_over = [self.of(value, {}, steps + 1) for value in self._handed_over(argument)]
            self._arguments[argument] = handed_over[0] if len(set(handed_over)) == 1 else UNKNOWN
        return self._arguments[argument]

    def _handed_over(self, argument: Definition) -> Sequence[Definition]:
        """What the calls of a function hand over; nothing where others may call it, and of blocks behind its first."""
        function = self.model.operations[argument.maker]
        if function.name not in FUNCTIONS or function.symbol not in self.model.private:
            return ()
        if argument.number >= len(self.model.arguments[function.symbol]):
            return ()
        calls = self.calls.of(function.symbol)
        # Nested modules may have functions of one name.
        is_sole = all(self.calls.callee(call) is function for call in calls)
        return [call.operands[argument.number] for call in calls] if is_sole else ()

    def first(self, definition: Definition) -> Definition:
        """The same value as the first op makes it that computes it."""
        if definition.argument:
            return definition
        return Definition(self.twins.get(definition.maker, definition.maker), definition.number, argument=False)

    def read_from(self, definition: Definition) -> Definition | None:
        """The value that consists of the same number and nothing else, one step before; None where there is none."""
        if definition.argument:
            return None
        maker = self.model.operations[definition.maker]
        handed_on = _handed_on(maker) if maker.name in _SAME else ()
        if len(handed_on) != 1 or not self._is_one_number(maker, handed_on[0]):
            return None
        return handed_on[0]

    def _is_one_number(self, maker: SourceOperation, value: Definition) -> bool:
        """Whether what an op reads is a single number; what is taken at an index may be one of several."""
        if len(maker.operands) == 1:
            return True
        type_text = self.model.type_of(value)
        return bool(type_text) and shape_of(type_text).elements == 1

    def _result(self, operation: SourceOperation, given: Given, steps: int) -> Integer:
        """What an op makes of the numbers that its operands consist of; unknown where its type does not hold that."""
        operands = _handed_on(operation) if operation.name in _SAME else operation.operands
        numbers = [self.of(each, given, steps + 1) for each in operands]
        known = [number for number in numbers if number is not UNKNOWN]
        if len(known) < len(numbers) or self._has_another_sign(operation, known[0]):
            return UNKNOWN
        if operation.name in _SAME and len(set(known)) > 1:
            return UNKNOWN
        result = known[0] if operation.name in _SAME else _computed(operation, known)
        return result if _holds(operation.results[0], result) else UNKNOWN

    def _has_another_sign(self, operation: SourceOperation, number: int) -> bool:
        """Whether an op takes a number for one of another sign: -1 for the largest of its type, `true` for -1."""
        if operation.name in _UNSIGNED:
            return number < 0
        if operation.name in _SIGNED and operation.direction not in ("EQ", "NE"):
            return _is_truth(self.model.type_of(operation.operands[0]))
        return False


def _computed(operation: SourceOperation, numbers: Sequence[int]) -> int:
    if operation.name in _NEGATES:
        return 1 - numbers[0] if _is_truth(operation.results[0]) else ~numbers[0]
    compare = _COMPARES.get(operation.direction)
    if compare is not None:
        return int(compare(*numbers))
    return _COMPUTES[_word(operation)](*numbers)


def _is_truth(type_text: str) -> bool:
    return _TRUTH.search(type_text) is not None


def _holds(type_text: str, number: int) -> bool:
    """Whether a type holds a number; what does not fit, as the sum of two truth values, is cut or becomes another."""
    if _is_truth(type_text):
        return number in (0, 1)
    shaped = shape_of(type_text).element_bits
    bits = element_bits(type_text) if shaped is UNKNOWN else shaped
    return bits is UNKNOWN or -(1 << (bits - 1)) <= number < 1 << (bits - 1)


def _handed_on(operation: SourceOperation) -> Sequence[Definition]:
    """The operands that one of the ops that hand numbers on makes its result of.

    A tensor of several elements is all of these; others take an index, or a size, behind what they read.
    """
    return operation.operands if operation.name == _ALL_TOGETHER else operation.operands[:1]


def _can_be_told(operation: SourceOperation) -> bool:
    """Whether the result of an op may be known if its operands are."""
    if operation.name in _SAME | _NEGATES:
        return bool(operation.operands)
    return len(operation.operands) == 2 and (operation.direction in _COMPARES or _word(operation) in _COMPUTES)


def _word(operation: SourceOperation) -> str:
    return operation.name.rsplit(".", 1)[-1]
