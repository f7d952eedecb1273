"""Constant propagation over the model: known values, unreachable code and unused operands."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tracemap.core.units import UNKNOWN, Integer
from tracemap.ir.attributes import element_bits, shape_of
from tracemap.ir.parsing import reachable
from tracemap.ir.source_model import FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.map.build.model.kinds import queries_shape
from tracemap.map.build.model.scopes import Calls

# ---- known
#
# Integers and truth values of a model that do not depend on its inputs, as far as its text shows.

_FROM_ELEMENTS = "tensor.from_elements"
_FORWARDING = frozenset(
    f"""
    arith.extui arith.index_cast arith.index_castui stablehlo.broadcast_in_dim stablehlo.reshape
    tensor.collapse_shape tensor.expand_shape tensor.extract {_FROM_ELEMENTS} tensor.splat torch.aten.Bool.Tensor
    """.split()
)
"""Ops whose result has the value of the operand that they pass on. Barriers are not among them: the compiler does not
know their values, even of constants.
"""

_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}
_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
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
_NEGATIONS = frozenset({"stablehlo.not", "tosa.logical_not"})
_UNSIGNED = frozenset({"arith.extui", "arith.index_castui"})
_SIGNED = frozenset({"arith.cmpi", "arith.index_cast"})
_TRUTH = re.compile(r"(?:^|[<x,])i1>?$")
MAX_STEPS = 64
"""The longest chain of ops through which a value is followed."""

KnownValues = dict[Definition, Integer]
"""Values that are known at a point of the program, with those computed from them."""


@dataclass(frozen=True, slots=True)
class KnownNumbers:
    """Known values of a model, each one number in all elements. `duplicates`: op -> the earlier op that it repeats."""

    model: SourceModel
    duplicates: Mapping[int, int]
    calls: Calls
    _arguments: KnownValues = field(default_factory=dict)

    def of(self, definition: Definition, known: KnownValues, steps: int = 0) -> Integer:
        """The number in all elements of a value, given known values; computed values are added to these."""
        key = self.first(definition)
        if key in known or steps > MAX_STEPS:
            return known.get(key, UNKNOWN)
        if definition.argument:
            return self._argument(definition, steps)
        maker = self.model.operations[definition.maker]
        computable = maker.constant is UNKNOWN and _is_computable(maker)
        known[key] = self._result(maker, known, steps) if computable else maker.constant
        return known[key]

    def _argument(self, argument: Definition, steps: int) -> Integer:
        """The number that all calls of a function pass."""
        if argument not in self._arguments:
            self._arguments[argument] = UNKNOWN  # the result for recursive functions
            passed_values = [self.of(value, {}, steps + 1) for value in self._passed_values(argument)]
            self._arguments[argument] = passed_values[0] if len(set(passed_values)) == 1 else UNKNOWN
        return self._arguments[argument]

    def _passed_values(self, argument: Definition) -> Sequence[Definition]:
        """The values that calls pass; none for arguments of public functions and of blocks other than the first."""
        function = self.model.operations[argument.maker]
        if function.name not in FUNCTIONS or function.symbol not in self.model.private:
            return ()
        if argument.number >= len(self.model.arguments[function.symbol]):
            return ()
        calls = self.calls.of(function.symbol)
        # Nested modules may have functions of the same name.
        is_sole = all(self.calls.callee(call) is function for call in calls)
        return [call.operands[argument.number] for call in calls] if is_sole else ()

    def first(self, definition: Definition) -> Definition:
        """The same value as the result of the first op that computes it."""
        if definition.argument:
            return definition
        return Definition(self.duplicates.get(definition.maker, definition.maker), definition.number, argument=False)

    def operand_with_value(self, definition: Definition) -> Definition | None:
        """The operand that always has the same value as the result; None if there is none."""
        if definition.argument:
            return None
        maker = self.model.operations[definition.maker]
        forwarded = _forwarded_operands(maker) if maker.name in _FORWARDING else ()
        if len(forwarded) != 1 or not self._is_one_number(maker, forwarded[0]):
            return None
        return forwarded[0]

    def _is_one_number(self, maker: SourceOperation, value: Definition) -> bool:
        """Whether an op reads a single element; with an index, it may read one of several."""
        if len(maker.operands) == 1:
            return True
        type_text = self.model.type_of(value)
        return bool(type_text) and shape_of(type_text).elements == 1

    def _result(self, operation: SourceOperation, known: KnownValues, steps: int) -> Integer:
        """Compute an op's result from known operands; unknown if the result's type cannot hold it."""
        operands = _forwarded_operands(operation) if operation.name in _FORWARDING else operation.operands
        numbers = [self.of(operand, known, steps + 1) for operand in operands]
        values = [number for number in numbers if number is not UNKNOWN]
        if len(values) < len(numbers) or self._changes_sign(operation, values[0]):
            return UNKNOWN
        if operation.name in _FORWARDING and len(set(values)) > 1:
            return UNKNOWN
        result = values[0] if operation.name in _FORWARDING else _compute(operation, values)
        return result if _is_in_range(operation.results[0], result) else UNKNOWN

    def _changes_sign(self, operation: SourceOperation, number: int) -> bool:
        """Whether an op reinterprets a number's sign: -1 as the largest value of its type, `true` as -1."""
        if operation.name in _UNSIGNED:
            return number < 0
        if operation.name in _SIGNED and operation.direction not in ("EQ", "NE"):
            return _is_truth(self.model.type_of(operation.operands[0]))
        return False


def _compute(operation: SourceOperation, numbers: Sequence[int]) -> int:
    if operation.name in _NEGATIONS:
        return 1 - numbers[0] if _is_truth(operation.results[0]) else ~numbers[0]
    compare = _COMPARISONS.get(operation.direction)
    if compare is not None:
        return int(compare(*numbers))
    return _ARITHMETIC[_short_name(operation)](*numbers)


def _is_truth(type_text: str) -> bool:
    return _TRUTH.search(type_text) is not None


def _is_in_range(type_text: str, number: int) -> bool:
    """Whether a type holds a number; other numbers, such as the sum of two truth values, are truncated or wrap."""
    if _is_truth(type_text):
        return number in (0, 1)
    shaped = shape_of(type_text).element_bits
    bits = element_bits(type_text) if shaped is UNKNOWN else shaped
    return bits is UNKNOWN or -(1 << (bits - 1)) <= number < 1 << (bits - 1)


def _forwarded_operands(operation: SourceOperation) -> Sequence[Definition]:
    """The operands whose value is passed on.

    A tensor made from elements passes on all of them; other ops have further operands, such as an index or a size.
    """
    return operation.operands if operation.name == _FROM_ELEMENTS else operation.operands[:1]


def _is_computable(operation: SourceOperation) -> bool:
    """Whether the result of an op can be computed from known operands."""
    if operation.name in _FORWARDING | _NEGATIONS:
        return bool(operation.operands)
    return len(operation.operands) == 2 and (
        operation.direction in _COMPARISONS or _short_name(operation) in _ARITHMETIC
    )


def _short_name(operation: SourceOperation) -> str:
    return operation.name.rsplit(".", 1)[-1]


# ---- reachability
#
# Code that can never run and operands that never matter, whatever the inputs: decided by known branch conditions.
#
# These are arms of a branch with a known condition, loops whose first test fails, and operands that a `select` never
# chooses. Only integers and truth values are followed, as far as the text shows them; all else may run.

_BRANCHES = frozenset({"onnx.If", "scf.if", "stablehlo.if", "torch.prim.If", "tosa.cond_if"})
_ELSE_FIRST = frozenset({"onnx.If"})
"""Branches whose first arm runs if the condition is false: ONNX orders its arms alphabetically."""
_CASES, _SWITCH = "stablehlo.case", "scf.index_switch"
_TWO_WAYS = "cf.cond_br"
_WITH_BLOCKS = FUNCTIONS | {"scf.execute_region", "util.initializer"}
"""Operations whose region has branches between its blocks."""
_CHOOSING = _BRANCHES | {_CASES, _SWITCH}
_LOOPS = frozenset({"scf.while", "stablehlo.while", "tosa.while_loop"})
_SELECTS = frozenset({"arith.select", "stablehlo.select", "tosa.select", "torch.aten.where.self"})


@dataclass
class Reachability:
    """Blocks that never run, and operands that are never used. `duplicates`: op -> the earlier op that it repeats."""

    model: SourceModel
    duplicates: Mapping[int, int]
    calls: Calls
    _blocks_of: dict[int, list[int]] = field(default_factory=dict)
    _ends: dict[int, SourceOperation] = field(default_factory=dict)
    _numbers: KnownValues = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known = KnownNumbers(self.model, self.duplicates, self.calls)
        for operation in self.model.operations:
            blocks = self._blocks_of.setdefault(operation.parent, [])
            if operation.block not in blocks[-1:]:
                blocks.append(operation.block)
            self._ends[operation.block] = operation  # ops of nested blocks have other blocks, so the last one ends it

    def runs(self, operation: SourceOperation) -> bool:
        """Whether an operation may run."""
        return operation.block not in self._dead_blocks

    def uses(self, operation: SourceOperation, number: int) -> bool:
        """Whether the elements of an operand may matter."""
        if not self.runs(operation) or queries_shape(operation):
            return False
        if operation.name in _SELECTS and number > 0:
            condition = self._known.of(operation.operands[0], self._numbers)
            return condition is UNKNOWN or number == (1 if condition else 2)
        return True

    def is_decided(self, operation: SourceOperation) -> bool:
        """Whether an op only chooses between ops and the choice is known, for example with a single arm."""
        if operation.name == _TWO_WAYS:
            return len(self._possible_successors(operation)) == 1
        arms = self._blocks_of.get(operation.index, [])
        return self._chosen_arm(operation) is not UNKNOWN or (operation.name == _CASES and len(arms) == 1)

    @cached_property
    def _dead_blocks(self) -> frozenset[int]:
        dead: set[int] = set()
        block_of_parent = {operation.index: operation.block for operation in self.model.operations}
        for operation in self.model.operations:  # outer operations come first
            if block_of_parent.get(operation.parent, 0) in dead:
                dead.add(operation.block)
            dead.update(self._dead_within(operation))
        return frozenset(dead)

    def _dead_within(self, operation: SourceOperation) -> Iterator[int]:
        """The blocks of an operation that never run even if the operation does."""
        blocks = self._blocks_of.get(operation.index, [])
        chosen = self._chosen_arm(operation)
        if chosen is not UNKNOWN:
            yield from (block for index, block in enumerate(blocks) if index != chosen)
        elif operation.name in _LOOPS and len(blocks) > 1:
            initial_values = {
                Definition(operation.index, index, argument=True): self._known.of(value, self._numbers)
                for index, value in enumerate(operation.operands)
            }
            test = self._ends[blocks[0]]
            if test.operands and self._known.of(test.operands[0], initial_values) == 0:
                yield from blocks[1:]
        elif operation.name in _WITH_BLOCKS and len(blocks) > 1:
            reached = reachable([0], lambda index: self._possible_successors(self._ends[blocks[index]]))
            yield from (block for index, block in enumerate(blocks) if index not in reached)
        elif operation.name == "scf.for":
            low, high = (self._known.of(value, self._numbers) for value in operation.operands[:2])
            if low is not UNKNOWN and high is not UNKNOWN and low >= high:
                yield from blocks

    def _possible_successors(self, branch: SourceOperation) -> Sequence[int]:
        """The indices of the blocks that may follow a block's end."""
        if branch.name == _TWO_WAYS:
            condition = self._known.of(branch.operands[0], self._numbers)
            if condition is not UNKNOWN:
                return branch.successors[:1] if condition else branch.successors[1:]
        return branch.successors

    def _chosen_arm(self, operation: SourceOperation) -> Integer:
        """The index of the arm that runs, in the order of the text; the number of arms if none runs."""
        if operation.name not in _CHOOSING or not operation.operands:
            return UNKNOWN
        number = self._known.of(operation.operands[0], self._conditions_around(operation))
        if number is UNKNOWN:
            return UNKNOWN
        if operation.name == _SWITCH:
            return 1 + operation.cases.index(number) if number in operation.cases else 0
        if operation.name == _CASES:  # other numbers choose the last arm
            last_arm = len(self._blocks_of[operation.index]) - 1
            return number if 0 <= number <= last_arm else last_arm
        return int(bool(number) is (operation.name in _ELSE_FIRST))

    def _conditions_around(self, operation: SourceOperation) -> KnownValues:
        """The known conditions of the branches around an operation."""
        known: KnownValues = {}
        while operation.parent >= 0:
            parent = self.model.operations[operation.parent]
            if parent.name in _BRANCHES:
                arm = self._blocks_of[parent.index].index(operation.block)
                holds = arm if parent.name in _ELSE_FIRST else 1 - arm
                self._add_condition(parent.operands[0], holds, known)
            operation = parent
        return known

    def _add_condition(self, condition: Definition, holds: int, known: KnownValues) -> None:
        """Add the value of a condition and of its operands; like the compiler, not through negations."""
        value: Definition | None = condition
        for _ in range(MAX_STEPS):
            if value is None:
                return
            known.setdefault(self._known.first(value), holds)
            value = self._known.operand_with_value(value)
