"""Ops that compute the same and are written in different ways, told by a form that they share.

A sum does not depend on the order of its operands, a constant can be written whole or as one number broadcast, a
product of torch takes a transposed matrix or transposes it itself, and nothing changes where one is multiplied with.
The compiler merges what is the same by then; so does whoever numbers values by these forms.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tracemap.ir.source import SourceModel, SourceOperation
from tracemap.mapping.model.kinds import is_repeatable, only_moves, only_renames

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
