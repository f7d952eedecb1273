"""The operation of a kernel that explains its wrong result.

The reference is evaluated with one operation changed at a time: lost, with swapped operands, with another constant, or
with a narrower accumulator. If the result is then that of the program, the change explains it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracemap.ir.parsing import Operation, walk
from tracemap.kernels.reference.elements import EPSILON, SURPRISES, Array, Memory, View, from_memory, rounded
from tracemap.kernels.reference.kernel import KernelFunction
from tracemap.kernels.reference.scalars import Watch, evaluate
from tracemap.kernels.verification import relative_errors

_MOST_EVALUATIONS: Final = 80
_STEPS: Final = 6
"""Newton steps to find a constant."""
_NARROWER: Final = {"f64": ("f32",), "f32": ("bf16", "f16"), "f16": ("bf16",)}


@dataclass(frozen=True, slots=True)
class Explanation:
    """A changed operation whose result is the program's, and the change in words."""

    operation: Operation
    text: str


_Results = Callable[[Sequence[Array], Sequence[Array]], Sequence[Array]]
"""Makes new results of an operation's operands and results."""


class _Changed(Watch):
    """Replaces the results of one operation."""

    def __init__(self, operation: Operation, results: _Results) -> None:
        self._operation, self._results = operation, results

    def computed(self, operation: Operation, operands: Sequence[Array], results: Sequence[Array]) -> Sequence[Array]:
        """Replace the results if it is the operation."""
        return self._results(operands, results) if operation == self._operation else results


@dataclass(frozen=True)
class WrongResult:
    """A kernel with the data of a call, and what the program computed.

    `memory`: makes a memory with the inputs. `allowed`: the relative tolerance.
    """

    function: KernelFunction
    memory: Callable[[], Memory]
    outputs: Sequence[tuple[View, npt.NDArray[Any]]]
    allowed: float

    def results(self, watch: Watch | None = None) -> Mapping[View, Array]:
        """The exact results with a change."""
        computed = self.function.run(self.memory(), watch=watch)
        return dict(zip(computed.stored, computed.exact, strict=True))

    def distance(self, results: Mapping[View, Array]) -> float:
        """The largest relative error of the program against changed results, over the tolerance."""
        worst = 0.0
        for view, stored in self.outputs:
            computed = from_memory(stored, view.element)
            right = np.broadcast_to(np.asarray(results[view]), view.extents)
            if view.element not in EPSILON:
                worst = max(worst, float("inf") if np.any(right != computed) else 0.0)
                continue
            errors = relative_errors(rounded(np.asarray(right, np.float64), view.element), computed)
            worst = max(worst, float(np.max(np.where(np.isnan(errors), np.inf, errors), initial=0.0)) / self.allowed)
        return worst


def explain(wrong: WrongResult) -> Explanation | None:
    """The first change of an operation that explains the result; None if no tried one does."""
    left = _MOST_EVALUATIONS
    for operation, text, watch in _changes(wrong):
        if not left:
            break
        left -= 1
        try:
            if wrong.distance(wrong.results(watch)) <= 1:
                return Explanation(operation, text)
        except SURPRISES:
            continue
    return _other_constant(wrong)


def _operations(function: KernelFunction) -> list[Operation]:
    """Operations on floats, the last first: the likeliest to be fused into the kernel."""
    operations = [
        operation
        for operation in walk(function.operation)
        if operation.name.startswith(("arith.", "math.")) and len(operation.results) == 1 and len(operation.operands)
    ]
    return operations[::-1]


def _changes(wrong: WrongResult) -> Iterator[tuple[Operation, str, Watch]]:
    for operation in _operations(wrong.function):
        kind = str(operation.results[0].type)
        for number, operand in enumerate(operation.operands):
            if str(operand.type) == kind and kind in EPSILON and operation.name != "arith.select":
                text = (
                    f"{operation.name} is lost"
                    if len(operation.operands) == 1
                    else f"{operation.name} loses an operand"
                )
                yield operation, text, _Changed(operation, _operand(number))
        if len(operation.operands) == 2 and kind in EPSILON | {"i1": 0.0} and operation.name not in _COMMUTATIVE:
            yield operation, f"the operands of {operation.name} are swapped", _Changed(operation, _swapped(operation))
        if operation.name == "arith.select":
            yield operation, "the values of arith.select are swapped", _Changed(operation, _other_choice)
            for number in (1, 2):
                yield operation, "arith.select always takes the same value", _Changed(operation, _operand(number))


_COMMUTATIVE: Final = frozenset(
    f"arith.{name}" for name in "addf mulf maximumf minimumf maxnumf minnumf andi ori xori".split()
)


def _operand(number: int) -> _Results:
    return lambda operands, _: [operands[number]]


def _swapped(operation: Operation) -> _Results:
    return lambda operands, _: [evaluate(operation, [operands[1], operands[0]])]


def _other_choice(operands: Sequence[Array], _: Sequence[Array]) -> Sequence[Array]:
    condition, first, second = operands
    return [np.where(condition, second, first)]


# ---- constants


def _other_constant(wrong: WrongResult) -> Explanation | None:
    """Find a constant whose other value explains the result, by Newton's method on the outputs' elements."""
    for constant in walk(wrong.function.operation):
        if constant.name != "arith.constant" or str(constant.results[0].type) not in EPSILON:
            continue
        try:
            value = _solve(wrong, constant)
        except SURPRISES:
            continue
        if value is not None:
            users = [use.owner.operation for use in constant.results[0].uses]
            is_user = bool(users) and users[0].name.startswith(("arith.", "math."))
            before = float(constant.attributes["value"].value)
            return Explanation(users[0] if is_user else constant, f"the constant {before:.6g} is {value:.6g}")
    return None


def _solve(wrong: WrongResult, constant: Operation) -> float | None:
    value = float(constant.attributes["value"].value)
    actual = _flat({view: from_memory(stored, view.element) for view, stored in wrong.outputs}, wrong)
    for _ in range(_STEPS):
        step = max(abs(value), 1e-3) * 1e-4
        here, moved = (wrong.results(_Changed(constant, partial(_fixed, number))) for number in (value, value + step))
        if wrong.distance(here) <= 1:
            return value
        slope = (_flat(moved, wrong) - _flat(here, wrong)) / step
        error = actual - _flat(here, wrong)
        is_usable = np.isfinite(slope) & np.isfinite(error)
        slope, error = slope[is_usable], error[is_usable]
        if not (size := float(slope @ slope)):
            return None
        value += float(slope @ error) / size
        if not np.isfinite(value):
            return None
    return None


def _fixed(number: float, _: Sequence[Array], __: Sequence[Array]) -> Sequence[Array]:
    return [np.float64(number)]


def _flat(results: Mapping[View, Array], wrong: WrongResult) -> npt.NDArray[np.float64]:
    parts = [
        np.broadcast_to(np.asarray(results[view], np.float64), view.extents).reshape(-1)
        for view, _ in wrong.outputs
        if view.element in EPSILON
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


# ---- differing kernels


def first_difference(one: KernelFunction, other: KernelFunction) -> tuple[Operation | None, Operation | None]:
    """The first operation of each of two kernels that the other one lacks, in program order; None if there is none."""
    sides = [list(walk(function.operation)) for function in (one, other)]
    texts = [[_text(operation) for operation in operations] for operations in sides]
    matcher = difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False)
    for tag, begin, end, other_begin, other_end in matcher.get_opcodes():
        if tag != "equal":
            return (
                sides[0][begin] if begin < end else None,
                sides[1][other_begin] if other_begin < other_end else None,
            )
    return None, None


def _text(operation: Operation) -> str:
    """An operation without its regions and location, with its operands by their producers."""
    producers = [
        f"{getattr(operand.owner, 'name', 'argument')}#{_number_of(operand)}" for operand in operation.operands
    ]
    attributes = sorted(f"{name}={operation.attributes[name]}" for name in operation.attributes)
    types = [str(result.type) for result in operation.results]
    return f"{operation.name}({producers}) {attributes} {types}"


def _number_of(value: Any) -> int:  # noqa: ANN401 - a result or an argument
    return int(getattr(value, "arg_number", getattr(value, "result_number", 0)))
