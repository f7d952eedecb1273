"""Value numbering over the model: ops that compute the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.ir.source import FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.mapping.model.calls import Calls
from tracemap.mapping.model.kinds import is_repeatable, is_return, only_moves, only_renames

# ---- normal forms
#
# Ops that compute the same and are written in different ways, told by a form that they share.
#
# A sum does not depend on the order of its operands, a constant can be written whole or as one number broadcast, a
# product of torch takes a transposed matrix or transposes it itself, and nothing changes where one is multiplied with.
# The compiler merges what is the same by then; so does whoever numbers values by these forms.


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
"""Ops whose first two operands may change places."""

_NEUTRAL = {
    **dict.fromkeys(("arith.addf", "arith.addi", "stablehlo.add", "onnx.Add"), (0.0, (0, 1))),
    **dict.fromkeys(("arith.mulf", "arith.muli", "stablehlo.multiply", "onnx.Mul"), (1.0, (0, 1))),
    **dict.fromkeys(("arith.subf", "arith.subi", "stablehlo.subtract", "onnx.Sub"), (0.0, (1,))),
    **dict.fromkeys(("arith.divf", "stablehlo.divide", "onnx.Div"), (1.0, (1,))),
}
"""Of ops the number that changes nothing, and as which of their two operands."""

_TRANSPOSE = "torch.aten.t"
_LINEAR, _MULTIPLY = "torch.aten.linear", "torch.aten.mul.Tensor"
_PRODUCTS = ("torch.aten.mm", "torch.aten.matmul")
_SQUARE = "torch.aten.square"
_NOTHING = "torch.constant.none"


class NormalForms:
    """Tells what the ops of a model have in common with others; knows of values what was told of them by `learn`."""

    def __init__(self, model: SourceModel) -> None:
        self._model = model
        self._splats: dict[int, str] = {}
        self._transposed: dict[int, int] = {}
        self._nothing: set[int] = set()

    def learn(self, operation: SourceOperation, operands: Sequence[int], number: int) -> None:
        """Note how the value of this number was made: by an op from values of these numbers."""
        splat = self._splat(operation, operands)
        if splat:
            self._splats[number] = splat
        elif operation.name == _TRANSPOSE:
            self._transposed[number] = operands[0]
        elif operation.name == _NOTHING:
            self._nothing.add(number)

    def handed_on(self, operation: SourceOperation, operands: Sequence[int]) -> int:
        """Which of its operands an op hands on as it is; -1 where it changes something."""
        if len(operation.results) != 1 or not operands:
            return -1
        if only_renames(operation) and is_repeatable(operation):
            return 0 if self._model.type_of(operation.operands[0]) == operation.results[0] else -1
        neutral, places = _NEUTRAL.get(operation.name, (0.0, ()))
        for place in places:
            if self._value(operands[place]) == neutral:
                other = 1 - place
                return other if self._model.type_of(operation.operands[other]) == operation.results[0] else -1
        return -1

    def key(self, operation: SourceOperation, operands: Sequence[int]) -> Hashable:
        """What an op has in common with those that compute the same, when its operands have these numbers."""
        splat = self._splat(operation, operands)
        if splat:
            return ("splat", splat, operation.results)
        if operation.name == _SQUARE:
            return (_MULTIPLY, operation.results, (operands[0], operands[0]))
        if operation.name == _MULTIPLY:
            return (_MULTIPLY, operation.results, tuple(sorted(operands)))
        if operation.name == _LINEAR and operands[-1] in self._nothing:
            return (_LINEAR, operation.results, tuple(operands[:2]))
        if operation.name in _PRODUCTS and operands[1] in self._transposed:
            return (_LINEAR, operation.results, (operands[0], self._transposed[operands[1]]))
        if operation.name in _COMMUTATIVE:
            return (operation.signature, (*sorted(operands[:2]), *operands[2:]))
        return (operation.signature, tuple(operands))

    def _splat(self, operation: SourceOperation, operands: Sequence[int]) -> str:
        """The number that all elements of an op's result are: of a constant, or of what moves such elements alone."""
        if len(operation.results) != 1 or "?" in operation.results[0]:
            return ""
        if not operands:
            return operation.splat
        # A generic op may compute in its region, and what reads bits anew makes other numbers of them.
        if operation.name == "linalg.generic" or "bitcast" in operation.name or not only_moves(operation, ()):
            return ""
        found = {self._splats.get(number, "") for number in operands}
        return found.pop() if len(found) == 1 and is_repeatable(operation) else ""

    def _value(self, number: int) -> float | None:
        """The number that a value consists of, where that is told and is no bit pattern."""
        text = self._splats.get(number, "").partition(" ")[0]
        try:
            return float(text)
        except ValueError:
            return None


# ---- twins
#
# Ops that compute what an earlier op has computed already, through calls: value numbering over the model.
#
# The compiler inlines calls and merges equal computations, so the mean inside of a called function can be the very
# mean that its caller took before. Every op gets a value number for every chain of calls that leads to it, as if its
# function were inlined there; an op whose number was there before, on every chain, has a twin (Click and Cooper 1995
# call the general form congruence; this is the plain one-pass kind).


_MAX_EVALUATIONS = 200_000
"""Ops times chains of calls that are looked at; beyond it (calls nested exponentially) no twins are told."""

_MOST_NESTED = 128
"""Calls within one another that are followed; each takes some of Python's stack. A deeper one is like no other op."""


@dataclass(frozen=True, slots=True)
class _First:
    """The first op with a value number, and the blocks around it: it stands for others only below them."""

    index: int
    blocks: tuple[int, ...]


def find_twins(model: SourceModel, calls: Calls) -> Mapping[int, int]:
    """Op index -> index of an earlier op that computes the very same wherever the later one does."""
    numbering = _Numbering(model, calls)
    for operation in model.operations:
        if operation.name in FUNCTIONS and operation.symbol not in model.private:
            arguments = [numbering.fresh() for _ in range(len(model.arguments.get(operation.symbol, ())))]
            numbering.evaluate(operation, arguments, (operation.index,))
    return numbering.twins()


@dataclass
class _Numbering:
    """Value numbers of all ops, chain of calls by chain of calls."""

    model: SourceModel
    calls: Calls
    _numbers: dict[object, int] = field(default_factory=dict)
    _firsts: dict[int, list[_First]] = field(default_factory=dict)
    _twin_of: dict[int, int] = field(default_factory=dict)
    _alone: set[int] = field(default_factory=set)
    _inside: list[int] = field(default_factory=list)
    """The functions whose calls are being followed: a recursive call is like no other op."""
    _evaluations: int = 0
    _fresh: int = 0

    def __post_init__(self) -> None:
        self._forms = NormalForms(self.model)
        self._body: dict[int, list[SourceOperation]] = {}
        for operation in self.model.operations:
            if operation.is_op and isinstance(operation.function, str) and operation.name not in FUNCTIONS:
                self._body.setdefault(self.calls.function(operation.function).index, []).append(operation)

    def twins(self) -> Mapping[int, int]:
        """What was found; nothing where the limit was hit."""
        if self._evaluations > _MAX_EVALUATIONS:
            return {}
        return {index: twin for index, twin in self._twin_of.items() if index not in self._alone}

    def fresh(self) -> int:
        """A number that nothing else has."""
        self._fresh += 1
        return self._number(("fresh", self._fresh))

    def evaluate(self, function: SourceOperation, arguments: list[int], chain: tuple[int, ...]) -> list[int]:
        """Number a function's ops with these numbers for its arguments; returns the numbers of its results.

        `chain`: the blocks around the call, or the entry point itself.
        """
        values: dict[tuple[int, int, bool], int] = {
            (function.index, argument, True): number for argument, number in enumerate(arguments)
        }
        results: list[int] = []
        blocks: dict[int, tuple[int, ...]] = {}
        body = self._body.get(function.index, ())
        first = body[0].block if body else -1
        for operation in body:
            self._evaluations += 1
            if self._evaluations > _MAX_EVALUATIONS:
                break
            # The first block of a function, inlined, is part of the block that the call stands in.
            inner = blocks.get(operation.parent, chain)
            around = chain if operation.block == first else (*inner, operation.block)
            blocks[operation.index] = around
            operands = [self._value(values, definition) for definition in operation.operands]
            if operation.parent == function.index and is_return(operation):
                results = operands
            for result, number in enumerate(self._results(operation, operands, around)):
                values[operation.index, result, False] = number
        return results

    def _results(self, operation: SourceOperation, operands: list[int], blocks: tuple[int, ...]) -> Iterator[int]:
        callee = self.calls.callee(operation)
        if callee is not None and callee.index not in self._inside and len(self._inside) < _MOST_NESTED:
            self._inside.append(callee.index)
            found = self.evaluate(callee, operands, blocks)
            self._inside.pop()
            yield from found if found else (self.fresh() for _ in operation.results)
            return
        handed_on = self._forms.handed_on(operation, operands)
        if handed_on >= 0:  # the compiler leaves such an op out, and takes its operand for its result
            yield operands[handed_on]
            return
        number = self._number_of(operation, operands)
        self._note(operation, number, blocks)
        for result in range(len(operation.results)):
            value = self._number(("result", number, result))
            self._forms.learn(operation, operands, value)
            yield value

    def _number_of(self, operation: SourceOperation, operands: list[int]) -> int:
        if not is_repeatable(operation) or not operation.results or self._holds_ops(operation):
            return self.fresh()
        return self._number(self._forms.key(operation, operands))

    def _holds_ops(self, operation: SourceOperation) -> bool:
        """Whether an op has ops in its regions (control flow): it is like no other."""
        following = self.model.operations[operation.index + 1 : operation.index + 2]
        return any(child.parent == operation.index and child.is_op for child in following)

    def _note(self, operation: SourceOperation, number: int, blocks: tuple[int, ...]) -> None:
        """Remember who had a number first; an op that meets it again from another op below has a twin."""
        for first in self._firsts.setdefault(number, []):
            # The first stands in a block around this one (or the same), so it has run whenever this one runs.
            if first.index != operation.index and blocks[: len(first.blocks)] == first.blocks:
                self._twin_of.setdefault(operation.index, first.index)
                return
        # On this chain of calls it is the first: it has to run, whatever holds on other chains.
        self._alone.add(operation.index)
        self._firsts[number].append(_First(operation.index, blocks))

    def _value(self, values: dict[tuple[int, int, bool], int], definition: Definition) -> int:
        key = (definition.maker, definition.number, definition.argument)
        if key not in values:
            values[key] = self.fresh()
        return values[key]

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))
