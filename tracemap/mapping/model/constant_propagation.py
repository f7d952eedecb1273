"""Constant propagation over the model: known values, and what never runs or never matters."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tracemap.ir.attributes import element_bits, shape_of
from tracemap.ir.source import FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.mapping.model.calls import Calls
from tracemap.mapping.model.kinds import asks_for_shape
from tracemap.units import UNKNOWN, Integer

# ---- known
#
# Which whole numbers and truth values of a model are the same whatever its inputs are, as far as its text tells.


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


# ---- unreached
#
# What of a model can never run or never matters, whatever its inputs: told by constants and by the branches around.
#
# Arms under a condition that is known, loops whose first test fails, what a `select` never chooses. Only whole numbers
# and truth values are followed, and only as far as the text says them; what is not told may run.


_BRANCHES = frozenset({"onnx.If", "scf.if", "stablehlo.if", "torch.prim.If", "tosa.cond_if"})
_ELSE_FIRST = frozenset({"onnx.If"})
"""Branches whose first arm runs where the condition does not hold: ONNX orders its arms by the alphabet."""
_CASES, _SWITCH = "stablehlo.case", "scf.index_switch"
_TWO_WAYS = "cf.cond_br"
_WITH_BLOCKS = FUNCTIONS | {"scf.execute_region", "util.initializer"}
"""Operations in whose region branches lead from block to block."""
_CHOOSING = _BRANCHES | {_CASES, _SWITCH}
_LOOPS = frozenset({"scf.while", "stablehlo.while", "tosa.while_loop"})
_SELECTS = frozenset({"arith.select", "stablehlo.select", "tosa.select", "torch.aten.where.self"})


@dataclass
class Unreached:
    """Blocks that never run, and operands that are never used. `twins`: of an op the earlier one that it repeats."""

    model: SourceModel
    twins: Mapping[int, int]
    calls: Calls
    _blocks_of: dict[int, list[int]] = field(default_factory=dict)
    _ends: dict[int, SourceOperation] = field(default_factory=dict)
    _numbers: Given = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known = KnownNumbers(self.model, self.twins, self.calls)
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
            condition = self._known.of(operation.operands[0], self._numbers)
            return condition is UNKNOWN or number == (1 if condition else 2)
        return True

    def is_decided(self, operation: SourceOperation) -> bool:
        """Whether an op only chooses between ops, and it is known which of them run: those of a single arm, say."""
        if operation.name == _TWO_WAYS:
            return len(self._taken(operation)) == 1
        arms = self._blocks_of.get(operation.index, [])
        return self._chosen(operation) is not UNKNOWN or (operation.name == _CASES and len(arms) == 1)

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
        chosen = self._chosen(operation)
        if chosen is not UNKNOWN:
            yield from (block for place, block in enumerate(blocks) if place != chosen)
        elif operation.name in _LOOPS and len(blocks) > 1:
            first = {
                Definition(operation.index, number, argument=True): self._known.of(value, self._numbers)
                for number, value in enumerate(operation.operands)
            }
            test = self._ends[blocks[0]]
            if test.operands and self._known.of(test.operands[0], first) == 0:
                yield from blocks[1:]
        elif operation.name in _WITH_BLOCKS and len(blocks) > 1:
            yield from self._behind_branches(blocks)
        elif operation.name == "scf.for":
            low, high = (self._known.of(value, self._numbers) for value in operation.operands[:2])
            if low is not UNKNOWN and high is not UNKNOWN and low >= high:
                yield from blocks

    def _behind_branches(self, blocks: Sequence[int]) -> Iterator[int]:
        """Of the blocks of a region those that no branch leads to, from the first on."""
        reached: set[int] = set()
        waiting = [0]
        while waiting:
            place = waiting.pop()
            if place not in reached:
                reached.add(place)
                waiting += self._taken(self._ends[blocks[place]])
        yield from (block for place, block in enumerate(blocks) if place not in reached)

    def _taken(self, branch: SourceOperation) -> Sequence[int]:
        """The places of the blocks in which it may go on behind the end of a block."""
        if branch.name == _TWO_WAYS:
            condition = self._known.of(branch.operands[0], self._numbers)
            if condition is not UNKNOWN:
                return branch.successors[:1] if condition else branch.successors[1:]
        return branch.successors

    def _chosen(self, operation: SourceOperation) -> Integer:
        """The arm of a branch that runs, counted from 0 as they stand there, or one more where none does."""
        if operation.name not in _CHOOSING or not operation.operands:
            return UNKNOWN
        number = self._known.of(operation.operands[0], self._given_around(operation))
        if number is UNKNOWN:
            return UNKNOWN
        if operation.name == _SWITCH:
            return 1 + operation.cases.index(number) if number in operation.cases else 0
        if operation.name == _CASES:  # what is no arm's number is the last one's
            last = len(self._blocks_of[operation.index]) - 1
            return number if 0 <= number <= last else last
        return int(bool(number) is (operation.name in _ELSE_FIRST))

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
        value: Definition | None = condition
        for _ in range(MOST_STEPS):
            if value is None:
                return
            given.setdefault(self._known.first(value), holds)
            value = self._known.read_from(value)
