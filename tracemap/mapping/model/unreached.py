"""What of a model can never run or never matters, whatever its inputs: told by constants and by the branches around.

Arms under a condition that is known, loops whose first test fails, what a `select` never chooses. Only whole numbers
and truth values are followed, and only as far as the text says them; what is not told may run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tracemap.ir.source import FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.mapping.model.calls import Calls
from tracemap.mapping.model.kinds import asks_for_shape
from tracemap.mapping.model.known import MOST_STEPS, Given, KnownNumbers
from tracemap.units import UNKNOWN, Integer

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
