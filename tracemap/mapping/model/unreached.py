"""What of a model can never run or never matters, whatever its inputs: told by constants and by the branches around.

Arms under a condition that is known, loops whose first test fails, what a `select` never chooses. Only whole numbers
and truth values are followed, and only as far as the text says them; what is not told may run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tracemap.ir.source import Definition, SourceModel, SourceOperation
from tracemap.ir.types import shape_of
from tracemap.mapping.model.kinds import asks_for_shape
from tracemap.units import UNKNOWN, Integer

_BRANCHES = frozenset({"onnx.If", "scf.if", "stablehlo.if", "torch.prim.If", "tosa.cond_if"})
_ELSE_FIRST = frozenset({"onnx.If"})
"""Branches whose first arm runs where the condition does not hold: ONNX orders its arms by the alphabet."""
_CASES = frozenset({"stablehlo.case"})
_LOOPS = frozenset({"scf.while", "stablehlo.while", "tosa.while_loop"})
_SELECTS = frozenset({"arith.select", "stablehlo.select", "tosa.select", "torch.aten.where.self"})
_SAME = frozenset(
    """
    arith.extui arith.index_cast arith.index_castui stablehlo.broadcast_in_dim stablehlo.reshape
    stablehlo.optimization_barrier tensor.collapse_shape tensor.expand_shape tensor.extract tensor.from_elements
    tensor.splat torch.aten.Bool.Tensor
    """.split()
)
"""Ops whose result consists of the number that their first operand consists of."""

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
_MOST_STEPS = 64
"""How far a number is followed back."""

Given = dict[Definition, Integer]
"""Values that are known where something is looked at, and those that were worked out there."""


@dataclass
class Unreached:
    """Blocks that never run, and operands that are never used. `twins`: of an op the earlier one that it repeats."""

    model: SourceModel
    twins: Mapping[int, int]
    _blocks_of: dict[int, list[int]] = field(default_factory=dict)
    _ends: dict[int, SourceOperation] = field(default_factory=dict)
    _numbers: Given = field(default_factory=dict)

    def __post_init__(self) -> None:
        for operation in self.model.operations:
            blocks = self._blocks_of.setdefault(operation.parent, [])
            if operation.block not in blocks[-1:]:
                blocks.append(operation.block)
            self._ends[operation.block] = operation  # an op of a nested block has another block: the last is the end

    def runs(self, operation: SourceOperation) -> bool:
        """Whether an operation may run."""
        return operation.block not in self._dead_blocks

    def uses(self, operation: SourceOperation, number: int) -> bool:
        """Whether the elements of an operand may matter."""
        if not self.runs(operation) or asks_for_shape(operation):
            return False
        if operation.name in _SELECTS and number > 0:
            condition = self._number(operation.operands[0], self._numbers)
            return condition is UNKNOWN or number == (1 if condition else 2)
        return True

    def is_decided(self, operation: SourceOperation) -> bool:
        """Whether an op only chooses between ops of its own, and it is known which of them run: a single arm, say."""
        if operation.name in _CASES:
            return len(self._blocks_of.get(operation.index, ())) == 1
        if operation.name not in _BRANCHES or not operation.operands:
            return False
        return self._number(operation.operands[0], self._given_around(operation)) is not UNKNOWN

    @cached_property
    def _dead_blocks(self) -> frozenset[int]:
        found: set[int] = set()
        block_of_parent = {operation.index: operation.block for operation in self.model.operations}
        for operation in self.model.operations:  # what is around comes first
            if block_of_parent.get(operation.parent, 0) in found:
                found.add(operation.block)
            found.update(self._dead_within(operation))
        return frozenset(found)

    def _dead_within(self, operation: SourceOperation) -> Iterator[int]:
        """The blocks of an operation that never run if it does."""
        blocks = self._blocks_of.get(operation.index, [])
        if operation.name in _BRANCHES:
            chosen = self._number(operation.operands[0], self._given_around(operation))
            if chosen is not UNKNOWN:
                arms = blocks[::-1] if operation.name in _ELSE_FIRST else blocks
                yield from arms[1:] if chosen else arms[:1]
        elif operation.name in _LOOPS and len(blocks) > 1:
            first = {
                Definition(operation.index, number, argument=True): self._number(value, self._numbers)
                for number, value in enumerate(operation.operands)
            }
            test = self._ends[blocks[0]]
            if test.operands and self._number(test.operands[0], first) == 0:
                yield from blocks[1:]
        elif operation.name == "scf.for":
            low, high = (self._number(value, self._numbers) for value in operation.operands[:2])
            if low is not UNKNOWN and high is not UNKNOWN and low >= high:
                yield from blocks

    def _given_around(self, operation: SourceOperation) -> Given:
        """What the conditions of the branches around an operation are there."""
        given: Given = {}
        while operation.parent >= 0:
            around = self.model.operations[operation.parent]
            if around.name in _BRANCHES:
                arm = self._blocks_of[around.index].index(operation.block)
                holds = arm if around.name in _ELSE_FIRST else 1 - arm
                self._note(around.operands[0], holds, given)
            operation = around
        return given

    def _note(self, condition: Definition, holds: int, given: Given) -> None:
        """Note whether a condition holds, and what it was read from; the compiler does not look behind negations."""
        for _ in range(_MOST_STEPS):
            given.setdefault(self._first(condition), holds)
            maker = self.model.operations[condition.maker]
            if condition.argument or maker.name not in _SAME:
                return
            condition = maker.operands[0]

    def _first(self, definition: Definition) -> Definition:
        """The same value as the first op makes it that computes it."""
        if definition.argument:
            return definition
        return Definition(self.twins.get(definition.maker, definition.maker), definition.number, argument=False)

    def _number(self, definition: Definition, given: Given, steps: int = 0) -> Integer:
        """The number that a value consists of."""
        key = self._first(definition)
        if key in given or definition.argument or steps > _MOST_STEPS:
            return given.get(key, UNKNOWN)
        maker = self.model.operations[definition.maker]
        told = maker.constant is UNKNOWN and _can_be_told(maker)
        given[key] = self._result(maker, given, steps) if told else maker.constant
        return given[key]

    def _result(self, operation: SourceOperation, given: Given, steps: int) -> Integer:
        """What an op makes of the numbers that its operands consist of."""
        first = self._number(operation.operands[0], given, steps + 1)
        if first is UNKNOWN or operation.name in _SAME:
            return first
        if operation.name in _NEGATES:
            return 1 - first if first in (0, 1) else UNKNOWN
        second = self._number(operation.operands[1], given, steps + 1)
        if second is UNKNOWN:
            return UNKNOWN
        compare = _COMPARES.get(operation.direction)
        if compare is not None:
            return int(compare(first, second))
        result = _COMPUTES[_word(operation)](first, second)
        bits = shape_of(operation.results[0]).element_bits
        fits = bits is UNKNOWN or abs(result) < 2 ** max(1, bits - 1)
        return result if fits else UNKNOWN


def _can_be_told(operation: SourceOperation) -> bool:
    """Whether the result of an op may be known if its operands are."""
    if operation.name in _SAME | _NEGATES:
        return bool(operation.operands)
    return len(operation.operands) == 2 and (operation.direction in _COMPARES or _word(operation) in _COMPUTES)


def _word(operation: SourceOperation) -> str:
    return operation.name.rsplit(".", 1)[-1]
