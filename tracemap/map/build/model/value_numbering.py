"""Value numbering over the model: ops that compute the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.ir.source_model import FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.map.build.model.kinds import is_repeatable, is_return, only_moves, only_renames
from tracemap.map.build.model.scopes import Calls

# ---- normal forms
#
# Normal forms, which are equal for ops that compute the same but are written differently.
#
# A sum does not depend on the order of its operands. A constant can be written in full or as a broadcast scalar. A
# product in torch takes a transposed matrix or transposes it itself. Multiplication by one changes nothing. The
# compiler normalises and merges such ops, and so do these forms.

_COMMUTATIVE = frozenset(
    """
    arith.addf arith.addi arith.andi arith.maximumf arith.maxnumf arith.maxsi arith.maxui arith.minimumf arith.minnumf
    arith.minsi arith.minui arith.mulf arith.muli arith.ori arith.xori
    onnx.Add onnx.And onnx.Mul onnx.Or onnx.Xor
    stablehlo.add stablehlo.and stablehlo.maximum stablehlo.minimum stablehlo.multiply stablehlo.or stablehlo.xor
    torch.aten.maximum torch.aten.minimum torch.aten.mul.Tensor
    tosa.add tosa.maximum tosa.minimum tosa.mul
    """.split()
)
"""Ops whose first two operands may be swapped."""

_NEUTRAL = {
    **dict.fromkeys(("arith.addf", "arith.addi", "stablehlo.add", "onnx.Add"), (0.0, (0, 1))),
    **dict.fromkeys(("arith.mulf", "arith.muli", "stablehlo.multiply", "onnx.Mul"), (1.0, (0, 1))),
    **dict.fromkeys(("arith.subf", "arith.subi", "stablehlo.subtract", "onnx.Sub"), (0.0, (1,))),
    **dict.fromkeys(("arith.divf", "stablehlo.divide", "onnx.Div"), (1.0, (1,))),
}
"""The neutral number of ops, and the operands for which it is neutral."""

_TRANSPOSE = "torch.aten.t"
_LINEAR, _MULTIPLY = "torch.aten.linear", "torch.aten.mul.Tensor"
_PRODUCTS = ("torch.aten.mm", "torch.aten.matmul")
_SQUARE = "torch.aten.square"
_NONE = "torch.constant.none"


class NormalForms:
    """Normal forms of the ops of a model, using facts about values that `learn` records."""

    def __init__(self, model: SourceModel) -> None:
        self._model = model
        self._splats: dict[int, str] = {}
        self._transposed: dict[int, int] = {}
        self._none_values: set[int] = set()

    def learn(self, operation: SourceOperation, operands: Sequence[int], number: int) -> None:
        """Record how the value with this number is computed from operands with these numbers."""
        splat = self._splat(operation, operands)
        if splat:
            self._splats[number] = splat
        elif operation.name == _TRANSPOSE:
            self._transposed[number] = operands[0]
        elif operation.name == _NONE:
            self._none_values.add(number)

    def unchanged_operand(self, operation: SourceOperation, operands: Sequence[int]) -> int:
        """The index of the operand that an op returns unchanged; -1 if it changes something."""
        if len(operation.results) != 1 or not operands:
            return -1
        if only_renames(operation) and is_repeatable(operation):
            return 0 if self._model.type_of(operation.operands[0]) == operation.results[0] else -1
        neutral, operand_indices = _NEUTRAL.get(operation.name, (0.0, ()))
        for index in operand_indices:
            if self._value(operands[index]) == neutral:
                other = 1 - index
                return other if self._model.type_of(operation.operands[other]) == operation.results[0] else -1
        return -1

    def key(self, operation: SourceOperation, operands: Sequence[int]) -> Hashable:
        """The normal form of an op whose operands have these numbers."""
        splat = self._splat(operation, operands)
        if splat:
            return ("splat", splat, operation.results)
        if operation.name == _SQUARE:
            return (_MULTIPLY, operation.results, (operands[0], operands[0]))
        if operation.name == _MULTIPLY:
            return (_MULTIPLY, operation.results, tuple(sorted(operands)))
        if operation.name == _LINEAR and operands[-1] in self._none_values:
            return (_LINEAR, operation.results, tuple(operands[:2]))
        if operation.name in _PRODUCTS and operands[1] in self._transposed:
            return (_LINEAR, operation.results, (operands[0], self._transposed[operands[1]]))
        if operation.name in _COMMUTATIVE:
            return (operation.signature, (*sorted(operands[:2]), *operands[2:]))
        return (operation.signature, tuple(operands))

    def _splat(self, operation: SourceOperation, operands: Sequence[int]) -> str:
        """The number in all elements of an op's result, for constants and ops that only move such elements."""
        if len(operation.results) != 1 or "?" in operation.results[0]:
            return ""
        if not operands:
            return operation.splat
        # A generic op may compute in its region, and bit casts change the numbers.
        if operation.name == "linalg.generic" or "bitcast" in operation.name or not only_moves(operation, ()):
            return ""
        splats = {self._splats.get(number, "") for number in operands}
        return splats.pop() if len(splats) == 1 and is_repeatable(operation) else ""

    def _value(self, number: int) -> float | None:
        """The number in all elements of a value, if it is known and not a bit pattern."""
        text = self._splats.get(number, "").partition(" ")[0]
        try:
            return float(text)
        except ValueError:
            return None


# ---- twins
#
# Duplicates: ops that repeat the computation of an earlier op, also through calls, found by value numbering.
#
# The compiler inlines calls and merges equal computations, so the mean in a called function can be the mean that its
# caller computed already. Every op gets a value number for every chain of calls that leads to it, as if its function
# were inlined. An op whose number existed earlier, on every chain, is a duplicate. (Click and Cooper 1995 call the
# general form congruence; this is the simple one-pass kind.)

_MAX_EVALUATIONS = 200_000
"""The most ops times chains of calls; beyond that (exponentially nested calls) no duplicates are reported."""

_MAX_CALL_DEPTH = 128
"""The deepest nesting of calls that is followed, since each takes Python stack. Deeper calls have no duplicates."""


_BARRIER = ".optimization_barrier"
"""The end of the names of ops that return their operands, but that the compiler must not look through."""


@dataclass(frozen=True, slots=True)
class _First:
    """The first op with a value number, and the blocks around it: duplicates must be inside these blocks."""

    index: int
    blocks: tuple[int, ...]


def find_duplicates(model: SourceModel, calls: Calls, *, through_barriers: bool = False) -> Mapping[int, int]:
    """Op index -> index of an earlier op that always computes the same.

    `through_barriers`: also duplicates that optimization barriers keep apart from the earlier op. The compiler does not
    merge these.
    """
    numbering = _ValueNumbering(model, calls, through_barriers)
    for operation in model.operations:
        if operation.name in FUNCTIONS and operation.symbol not in model.private:
            arguments = [numbering.fresh() for _ in range(len(model.arguments.get(operation.symbol, ())))]
            numbering.evaluate(operation, arguments, (operation.index,))
    return numbering.duplicates()


@dataclass
class _ValueNumbering:
    """Value numbers of all ops, for each chain of calls."""

    model: SourceModel
    calls: Calls
    through_barriers: bool
    _numbers: dict[object, int] = field(default_factory=dict)
    _firsts: dict[int, list[_First]] = field(default_factory=dict)
    _duplicate_of: dict[int, int] = field(default_factory=dict)
    _required: set[int] = field(default_factory=set)
    _inside: list[int] = field(default_factory=list)
    """The functions whose calls are being followed; a recursive call has no duplicates."""
    _evaluations: int = 0
    _fresh: int = 0

    def __post_init__(self) -> None:
        self._forms = NormalForms(self.model)
        self._body: dict[int, list[SourceOperation]] = {}
        for operation in self.model.operations:
            if operation.is_op and isinstance(operation.function, str) and operation.name not in FUNCTIONS:
                self._body.setdefault(self.calls.function(operation.function).index, []).append(operation)

    def duplicates(self) -> Mapping[int, int]:
        """The duplicates found; none if the limit was exceeded."""
        if self._evaluations > _MAX_EVALUATIONS:
            return {}
        return {index: twin for index, twin in self._duplicate_of.items() if index not in self._required}

    def fresh(self) -> int:
        """A number that nothing else has."""
        self._fresh += 1
        return self._number(("fresh", self._fresh))

    def evaluate(self, function: SourceOperation, arguments: list[int], chain: tuple[int, ...]) -> list[int]:
        """Number a function's ops, given the numbers of its arguments; returns the numbers of its results.

        `chain`: the blocks around the call, or the entry point itself.
        """
        values: dict[tuple[int, int, bool], int] = {
            (function.index, argument, True): number for argument, number in enumerate(arguments)
        }
        results: list[int] = []
        blocks: dict[int, tuple[int, ...]] = {}
        body = self._body.get(function.index, ())
        first_block = body[0].block if body else -1
        for operation in body:
            self._evaluations += 1
            if self._evaluations > _MAX_EVALUATIONS:
                break
            # The first block of an inlined function is part of the block that contains the call.
            inner = blocks.get(operation.parent, chain)
            around = chain if operation.block == first_block else (*inner, operation.block)
            blocks[operation.index] = around
            operands = [self._value(values, definition) for definition in operation.operands]
            if operation.parent == function.index and is_return(operation):
                results = operands
            for result, number in enumerate(self._results(operation, operands, around)):
                values[operation.index, result, False] = number
        return results

    def _results(self, operation: SourceOperation, operands: list[int], blocks: tuple[int, ...]) -> Iterator[int]:
        callee = self.calls.callee(operation)
        if callee is not None and callee.index not in self._inside and len(self._inside) < _MAX_CALL_DEPTH:
            self._inside.append(callee.index)
            results = self.evaluate(callee, operands, blocks)
            self._inside.pop()
            yield from results if results else (self.fresh() for _ in operation.results)
            return
        if self.through_barriers and operation.name.endswith(_BARRIER) and len(operands) == len(operation.results):
            yield from operands
            return
        operand = self._forms.unchanged_operand(operation, operands)
        if operand >= 0:  # the compiler replaces such an op by its operand
            yield operands[operand]
            return
        number = self._number_of(operation, operands)
        self._record(operation, number, blocks)
        for result in range(len(operation.results)):
            value = self._number(("result", number, result))
            self._forms.learn(operation, operands, value)
            yield value

    def _number_of(self, operation: SourceOperation, operands: list[int]) -> int:
        # An op with ops in its regions (control flow) has no duplicates.
        following = self.model.operations[operation.index + 1 : operation.index + 2]
        holds_ops = any(child.parent == operation.index and child.is_op for child in following)
        if holds_ops or not is_repeatable(operation) or not operation.results:
            return self.fresh()
        return self._number(self._forms.key(operation, operands))

    def _record(self, operation: SourceOperation, number: int, blocks: tuple[int, ...]) -> None:
        """Record the first op with a number; any later op that it dominates is a duplicate."""
        for first in self._firsts.setdefault(number, []):
            # The first op is in a block around this one (or the same block), so it has run whenever this one runs.
            if first.index != operation.index and blocks[: len(first.blocks)] == first.blocks:
                self._duplicate_of.setdefault(operation.index, first.index)
                return
        # On this chain of calls it is the first, so it must run, whatever other chains do.
        self._required.add(operation.index)
        self._firsts[number].append(_First(operation.index, blocks))

    def _value(self, values: dict[tuple[int, int, bool], int], definition: Definition) -> int:
        key = (definition.maker, definition.number, definition.argument)
        if key not in values:
            values[key] = self.fresh()
        return values[key]

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))
