"""Reference of a whole kernel, from its IR before code generation: its memory accesses and its results.

A kernel's function loads tensors from its bindings, computes with structured operations, and stores tensors. The
reference evaluates it operation by operation, on whole tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tracemap.ir.attributes import Blobs
from tracemap.ir.parsing import Operation, Value, nested, symbol_path, walk
from tracemap.kernels.reference.elements import (
    EPSILON,
    OWN_CODE,
    Array,
    Memory,
    NotEvaluated,
    View,
)
from tracemap.kernels.reference.linalg_ext import EXTENSIONS
from tracemap.kernels.reference.scalars import Watch, evaluate
from tracemap.kernels.reference.structured import evaluate_structured
from tracemap.kernels.reference.tensors import (
    ADDRESSES,
    HANDLERS,
    OF_ADDRESSES,
    PACKING,
    STORE,
    SUBSPAN,
    Replacement,
    State,
    not_replaced,
)


@dataclass(frozen=True, slots=True)
class Access:
    """Elements of a binding that a kernel loads, stores, or both."""

    view: View
    loaded: bool
    stored: bool


@dataclass(frozen=True, slots=True)
class Precision:
    """Accuracy of a kernel's floats; without floats both numbers are 0.

    Attributes:
        epsilon: distance of 1 to the next number, of the coarsest type that the kernel computes with or stores.
        sums: the largest product of an accumulator's epsilon and the square root of the number of its terms.
        approximated: the kernel contains functions that code generation approximates.
    """

    epsilon: float
    sums: float
    approximated: bool = False


@dataclass(frozen=True, slots=True)
class Computed:
    """Views that a reference stored, in order, and the accuracy of the results.

    `exact`: the values of each view before they were rounded to its type.
    """

    stored: tuple[View, ...]
    precision: Precision
    exact: tuple[Array, ...]


NOT_APPROXIMATED: Final = {
    *("math.absf", "math.absi", "math.ceil", "math.floor", "math.trunc", "math.round", "math.roundeven"),
    *("math.sqrt", "math.copysign", "math.fma", "math.isnan", "math.isinf", "math.isfinite"),
}
"""Functions that processors compute exactly, or with a single rounding."""
EXACT: Final = {"arith.constant", "arith.extf", "arith.select"}
"""Operations on floats without rounding."""
_SEGMENTS: Final = "operandSegmentSizes"
_CALL: Final = "func.call"
_METADATA: Final = "iree_codegen.extract_strided_metadata"
"""Operation that returns the offset and strides of a view."""


@dataclass(frozen=True, eq=False)
class KernelFunction:
    """A kernel's function, called with some push constants. `blobs`: data of constants outside the operations."""

    operation: Operation
    constants: Sequence[int]
    blobs: Blobs

    def accesses(self) -> tuple[Access, ...]:
        """All possible memory accesses of the kernel, in program order.

        Raises:
            NotEvaluated: the kernel contains an unsupported operation.
        """
        known = self._without_memory().known.items()
        views = [(value, view) for value, view in known if isinstance(view, View)]
        return tuple(_access(value, view) for value, view in views if value.owner.name == SUBSPAN)

    def numbers(self) -> Callable[[Value], Any]:
        """A function that maps a value of the kernel to its number or its view of memory.

        Raises:
            NotEvaluated: the kernel contains an unsupported operation. The returned function raises it for values that
                are neither numbers nor views.
        """
        return self._without_memory().of

    def _without_memory(self) -> State:
        """Evaluate all operations that need no memory: addresses and scalars."""
        state = State(self.constants, self.blobs)
        for operation in nested(self.operation):
            is_scalar = not any(hasattr(result.type, "element_type") for result in operation.results)
            if operation.name in ADDRESSES or (operation.name.startswith(OF_ADDRESSES) and is_scalar):
                _evaluate(state, operation)
        return state

    def run(self, memory: Memory, watch: Watch | None = None, replaced: Replacement = not_replaced) -> Computed:
        """Apply the kernel to a memory.

        Args:
            memory: the bindings, which are changed.
            watch: sees every operation, and may change its results.
            replaced: returns values to use in place of those that the memory has for a view; None: those.

        Raises:
            NotEvaluated: the kernel contains an unsupported operation.
        """
        state = State(self.constants, self.blobs, memory, watch=watch, replaced=replaced)
        callees = [symbol_path(op.attributes["callee"])[0] for op in walk(self.operation) if op.name == _CALL]
        if callees:
            raise NotEvaluated(f"{OWN_CODE}{', '.join(dict.fromkeys(callees))}")
        for operation in nested(self.operation):
            _evaluate(state, operation)
        return Computed(tuple(state.stored), self._precision(state), tuple(state.exact))

    def _precision(self, state: State) -> Precision:
        elements = {view.element for view in state.stored}
        for operation in walk(self.operation):
            if operation.name.startswith(("arith.", "math.")) and operation.name not in EXACT:
                elements |= {str(result.type) for result in operation.results}
        sums = [EPSILON.get(reduction.element, 0.0) * math.sqrt(reduction.length) for reduction in state.reductions]
        epsilon = max((EPSILON[element] for element in elements if element in EPSILON), default=0.0)
        approximated = any(name.startswith("math.") and name not in NOT_APPROXIMATED for name in self.names())
        return Precision(epsilon, max(sums, default=0.0), approximated)

    def names(self) -> frozenset[str]:
        """The names of the kernel's operations."""
        return frozenset(operation.name for operation in walk(self.operation))

    @property
    def has_truth_values(self) -> bool:
        """Whether the kernel loads bytes as booleans."""
        narrowed = (op for op in walk(self.operation) if op.name == "arith.trunci")
        return any(str(op.results[0].type) == "i1" for op in narrowed)


def _access(value: Value, view: View) -> Access:
    """Whether a view of a binding is loaded or stored, directly or through views derived from it."""
    loaded = stored = False
    worklist = [value]
    while worklist:
        for use in worklist.pop().uses:
            owner = use.owner.operation
            if owner.name in ADDRESSES or owner.name == _METADATA:
                worklist += list(owner.results)
            elif owner.name == _CALL:  # the callee may load and store
                loaded = stored = True
            elif owner.name in (STORE, "iree_linalg_ext.map_store") and use.operand_number == 1:
                stored = True
            else:
                stored |= _is_output(owner, use.operand_number)
                loaded |= not _is_overwritten(owner, use.operand_number)
    return Access(view, loaded, stored)


def _is_output(operation: Operation, number: int) -> bool:
    if not operation.name.startswith("linalg.") or operation.results:
        return False
    # Operations without operand segments, such as `linalg.unpack`, have the output as second operand.
    inputs = int(operation.attributes[_SEGMENTS][0]) if _SEGMENTS in operation.attributes else 1
    return number >= inputs


def _is_overwritten(operation: Operation, number: int) -> bool:
    """Whether a structured operation on memory writes to an operand without reading it."""
    if not _is_output(operation, number):
        return False
    if not len(operation.regions):
        return operation.name in PACKING
    block = operation.regions[0].blocks[0]
    return not list(block.arguments[number].uses)


def _evaluate(state: State, operation: Operation) -> None:
    name = operation.name
    handle = HANDLERS.get(name) or PACKING.get(name) or EXTENSIONS.get(name)
    if handle is not None:
        results = handle(state, operation)
    elif name.startswith("linalg."):
        results = _evaluate_structured(state, operation)
    else:
        result = evaluate(operation, [state.of(operand) for operand in operation.operands])
        results = list(result) if isinstance(result, tuple) else [result]
    if state.watch is not None and operation.name not in ADDRESSES:
        operands = [state.known.get(operand) for operand in operation.operands]
        results = state.watch.computed(operation, operands, results)
    state.known.update(zip(operation.results, results, strict=True))


def _evaluate_structured(state: State, operation: Operation) -> list[Array]:
    if _SEGMENTS not in operation.attributes:
        raise NotEvaluated(f"{operation.name} has no reference")
    inputs = int(operation.attributes[_SEGMENTS][0])
    operands = [state.of(operand) for operand in operation.operands]
    values = [state.loaded(operand) for operand in operands]
    results, reductions = evaluate_structured(operation, values[:inputs], values[inputs:], state.of, state.watch)
    state.reductions += reductions
    for result, target in zip(results, operands[inputs:], strict=True):
        if isinstance(target, View):  # an operation on memory has no results
            state.store(result, target)
    return results[: len(operation.results)]
