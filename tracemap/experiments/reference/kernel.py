"""A kernel as its IR before code generation has it: what it reads, what it writes, and what it computes.

The function of a kernel loads tensors from its bindings, works on them with structured operations, and stores tensors.
It is followed operation by operation, on whole tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracemap.experiments.reference.elements import EPSILON, OWN_CODE, Array, NotEvaluated, from_memory, to_memory
from tracemap.experiments.reference.extensions import EXTENSIONS
from tracemap.experiments.reference.memory import Memory, View
from tracemap.experiments.reference.scalars import evaluate
from tracemap.experiments.reference.structured import Reduction, evaluate_structured
from tracemap.experiments.reference.tensors import ADDRESSES, HANDLERS, OF_ADDRESSES, PACKING, STORE
from tracemap.ir.attributes import Blobs
from tracemap.ir.parsing import Operation, Value, nested, symbol_path, walk

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Access:
    """Elements of a binding that a kernel loads, stores, or both."""

    view: View
    loaded: bool
    stored: bool


@dataclass(frozen=True, slots=True)
class Precision:
    """How exact a kernel's floats can be.

    `epsilon`: the distance of 1 to the next number of the coarsest type that it computes with or stores; `sums`: that
    of what sums are kept in, times the root of how many numbers go into one, the largest of them. Without floats both
    are 0. `approximated`: it has functions that code generation approximates.
    """

    epsilon: float
    sums: float
    approximated: bool = False


@dataclass(frozen=True, slots=True)
class Computed:
    """What a reference stored, in order, and how exact it is."""

    stored: tuple[View, ...]
    precision: Precision


_NOT_APPROXIMATED: Final = {
    *("math.absf", "math.absi", "math.ceil", "math.floor", "math.trunc", "math.round", "math.roundeven"),
    *("math.sqrt", "math.copysign", "math.fma", "math.isnan", "math.isinf", "math.isfinite"),
}
"""Functions that processors compute exactly, or rounded once."""
_EXACT: Final = {"arith.constant", "arith.extf", "arith.select"}
"""Operations on floats that round nothing."""
_SEGMENTS: Final = "operandSegmentSizes"
_CALL: Final = "func.call"
_METADATA: Final = "iree_codegen.extract_strided_metadata"
"""What tells of a view where it begins and how it lies."""


class KernelFunction:
    """A kernel's function, called with some push constants."""

    def __init__(self, function: Operation, constants: Sequence[int], blobs: Blobs) -> None:
        self._function = self.operation = function
        self._constants = tuple(constants)
        self._blobs = blobs

    def accesses(self) -> tuple[Access, ...]:
        """What the kernel may load and store, in the order of its text; needs no memory.

        Raises:
            NotEvaluated: it does something that is not known here.
        """
        return tuple(_access(value, view) for value, view in self._without_memory().views())

    def numbers(self) -> Callable[[Value], Any]:
        """What tells of a value in the kernel which number it is, or which view of memory.

        Raises:
            NotEvaluated: it does something that is not known here; so does what is returned, of another value.
        """
        return self._without_memory().of

    def _without_memory(self) -> _State:
        """The function followed as far as it needs no memory."""
        state = _State(self._constants, None, self._blobs)
        for operation in nested(self._function):
            if operation.name in ADDRESSES or (operation.name.startswith(OF_ADDRESSES) and _of_numbers(operation)):
                state.step(operation)
        return state

    def run(self, memory: Memory) -> Computed:
        """Change a memory as the kernel should.

        Raises:
            NotEvaluated: it does something that has no reference.
        """
        state = _State(self._constants, memory, self._blobs)
        called = [symbol_path(each.attributes["callee"])[0] for each in walk(self._function) if each.name == _CALL]
        if called:
            raise NotEvaluated(f"{OWN_CODE}{', '.join(dict.fromkeys(called))}")
        for operation in nested(self._function):
            state.step(operation)
        return Computed(tuple(state.stored), self._precision(state))

    def _precision(self, state: _State) -> Precision:
        """How exact the results can be."""
        elements = {view.element for view in state.stored}
        for operation in walk(self._function):
            if operation.name.startswith(("arith.", "math.")) and operation.name not in _EXACT:
                elements |= {str(result.type) for result in operation.results}
        sums = [(EPSILON.get(each.element, 0.0) * math.sqrt(each.length)) for each in state.reductions]
        epsilon = max((EPSILON[each] for each in elements if each in EPSILON), default=0.0)
        approximated = any(name.startswith("math.") and name not in _NOT_APPROXIMATED for name in self.names())
        return Precision(epsilon, max(sums, default=0.0), approximated)

    def names(self) -> frozenset[str]:
        """The names of its operations."""
        return frozenset(operation.name for operation in walk(self._function))

    @property
    def has_truth_values(self) -> bool:
        """Whether bytes that it loads are truth values."""
        narrowed = (each for each in walk(self._function) if each.name == "arith.trunci")
        return any(str(each.results[0].type) == "i1" for each in narrowed)


def _of_numbers(operation: Operation) -> bool:
    return not any(hasattr(result.type, "element_type") for result in operation.results)


def _access(value: Value, view: View) -> Access:
    """How a view of a binding is used, through views of it as well."""
    loaded = stored = False
    waiting = [value]
    while waiting:
        for use in waiting.pop().uses:
            owner = use.owner.operation
            if owner.name in ADDRESSES or owner.name == _METADATA:
                waiting += list(owner.results)
            elif owner.name == _CALL:  # what is called may do anything with it
                loaded = stored = True
            elif owner.name in (STORE, "iree_linalg_ext.map_store") and use.operand_number == 1:
                stored = True
            else:
                stored |= _is_output(owner, use.operand_number)
                loaded |= not _is_overwritten(owner, use.operand_number)
    return Access(view, loaded, stored)


def _is_output(operation: Operation, number: int) -> bool:
    """Whether a structured operation on memory writes to an operand."""
    if not operation.name.startswith("linalg.") or operation.results:
        return False
    # Of what does not say where its outputs begin, such as an unpacking, the second operand is the output.
    inputs = int(operation.attributes[_SEGMENTS][0]) if _SEGMENTS in operation.attributes else 1
    return number >= inputs


def _is_overwritten(operation: Operation, number: int) -> bool:
    """Whether it writes to an operand without a look at what is there."""
    if not _is_output(operation, number):
        return False
    if not len(operation.regions):
        return operation.name in PACKING
    block = operation.regions[0].blocks[0]
    return not list(block.arguments[number].uses)


class _State:
    """What the values of a function are, as far as it has been followed."""

    def __init__(self, constants: Sequence[int], memory: Memory | None, blobs: Blobs) -> None:
        self._constants = constants
        self._blobs = blobs
        self.reductions: list[Reduction] = []
        self._memory = memory
        self._known: dict[Value, Any] = {}
        self.stored: list[View] = []

    def views(self) -> list[tuple[Value, View]]:
        """The views of bindings that were made, in order."""
        made = (each for each in self._known.items() if isinstance(each[1], View))
        return [(value, view) for value, view in made if value.owner.name == "hal.interface.binding.subspan"]

    def of(self, value: Value) -> Any:  # noqa: ANN401 - a view, a tensor or a number
        """What a value is."""
        if value not in self._known:
            raise NotEvaluated("a value from outside of the kernel has no reference")
        return self._known[value]

    def step(self, operation: Operation) -> None:
        """Follow one operation."""
        name = operation.name
        handle = HANDLERS.get(name) or PACKING.get(name) or EXTENSIONS.get(name)
        if handle is not None:
            results = handle(self, operation)
        elif name.startswith("linalg."):
            results = self._structured(operation)
        else:
            made = evaluate(operation, [self.of(each) for each in operation.operands])
            results = list(made) if isinstance(made, tuple) else [made]
        self._known.update(zip(operation.results, results, strict=True))

    def _structured(self, operation: Operation) -> list[Array]:
        if _SEGMENTS not in operation.attributes:
            raise NotEvaluated(f"{operation.name} has no reference")
        sizes = [int(size) for size in operation.attributes[_SEGMENTS]]
        operands = [self.of(each) for each in operation.operands]
        values = [self.loaded(each) for each in operands]
        results, reductions = evaluate_structured(operation, values[: sizes[0]], values[sizes[0] :], self.of)
        self.reductions += reductions
        for result, target in zip(results, operands[sizes[0] :], strict=True):
            if isinstance(target, View):  # it works on memory, and has no results
                self.store(result, target)
        return results[: len(operation.results)]

    # What the handlers need.

    def blob(self, attribute: object) -> bytes:
        """The data of a constant that is kept beside the operations."""
        return self._blobs.of(attribute)

    def constant(self, ordinal: int) -> int:
        """A push constant."""
        return self._constants[ordinal]

    def load(self, view: View) -> npt.NDArray[Any]:
        """A copy of elements in memory, to compute with."""
        assert self._memory is not None
        return from_memory(view.of(self._memory), view.element)

    def loaded(self, value: Any) -> Array:  # noqa: ANN401 - a view, a tensor or a number
        """A tensor or a number, of a view the elements."""
        return self.load(value) if isinstance(value, View) else value

    def store(self, values: Array, view: View) -> None:
        """Write elements to memory."""
        assert self._memory is not None
        view.of(self._memory)[...] = to_memory(values, view.element)
        self.stored.append(view)
