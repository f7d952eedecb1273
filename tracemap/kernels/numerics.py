"""Numerics of a program: its dispatches compared with the reference, on the very data that they had.

Each dispatch of the unmodified program is evaluated in double precision on the inputs in its memory (*isolated* error).
With a shadow of the memory, it is also evaluated on the double-precision results of the dispatches before it
(*accumulated* error).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tracemap.core.process.limits import free_memory
from tracemap.core.units import format_bytes
from tracemap.ir.attributes import Blobs
from tracemap.ir.executables import backends_of
from tracemap.ir.parsing import MlirParser, Operation, Value, nested, string_attribute, walk
from tracemap.kernels.model import FirstBadNumber, NumericError, OutputStatistics, Verdict, WrongElement
from tracemap.kernels.numeric_faults import WrongResult, explain, first_difference
from tracemap.kernels.reference.elements import (
    EPSILON,
    SMALL_EPSILON,
    SURPRISES,
    Array,
    Memory,
    View,
    from_memory,
    not_computed,
    stored_type,
)
from tracemap.kernels.reference.kernel import EXACT, NOT_APPROXIMATED, Access, Computed, KernelFunction
from tracemap.kernels.reference.scalars import Watch
from tracemap.kernels.verification import (
    TOO_ROUGH,
    difference_in_view,
    is_too_rough,
    relative_errors,
    scale_of,
    tolerance,
)

if TYPE_CHECKING:
    from tracemap.capture.dispatches import ObservedDispatch, ProgramMemory

_LEAST_FREE: Final = 1 << 28
"""Bytes of memory that a comparison leaves free."""
_COPIES: Final = 12
"""Bytes that the reference takes per byte of data: double precision, temporary results, and both memories."""
_MOST_SAMPLES: Final = 1 << 16
"""Most elements of an output that are kept for a comparison with another program."""

Samples = npt.NDArray[np.float64]
"""Evenly spaced elements of an output, in row-major order."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Amount of checking: `calls` of a kernel on the same buffers to evaluate, and whether to keep a shadow."""

    calls: int
    accumulated: bool
    samples: bool = False


@dataclass(frozen=True, slots=True)
class CheckedDispatch:
    """A dispatch: statistics of its outputs, its verdict, and its errors.

    Attributes:
        suspects: lines of the kernel's text that explain a wrong result, and `explanation` says how.
        other_suspects: the same, of the reference's kernel.
        bad: its first NaN or infinity that its inputs do not have.
        samples: elements of each output, if they were requested.
    """

    kernel: str
    outputs: tuple[OutputStatistics, ...]
    verdict: Verdict
    reason: str
    isolated: NumericError | None = None
    accumulated: NumericError | None = None
    wrong: WrongElement | None = None
    bad: tuple[FirstBadNumber, ...] = ()
    suspects: tuple[int, ...] = ()
    other_suspects: tuple[int, ...] = ()
    explanation: str = ""
    samples: tuple[Samples, ...] = ()


# ---- statistics


def statistics_of(view: View, values: npt.NDArray[Any]) -> OutputStatistics:
    """Statistics of the elements of an output.

    Args:
        view: the output.
        values: its elements, in their type in memory.
    """
    is_coded = view.element in EPSILON and values.dtype.kind != "f"
    numbers = from_memory(values, view.element) if is_coded else values
    finite = np.isfinite(numbers)
    nans = int(np.count_nonzero(np.isnan(numbers)))
    count = int(np.count_nonzero(finite))
    if count < numbers.size:
        numbers = numbers[finite]
    sizes = np.abs(numbers)
    zeros = int(np.count_nonzero(sizes == 0))
    subnormals = int(np.count_nonzero(sizes < _SMALLEST_NORMAL.get(view.element, 0.0))) - zeros
    return OutputStatistics(
        binding=view.binding,
        type=view.type,
        elements=values.size,
        least=float(numbers.min()) if count else None,
        largest=float(numbers.max()) if count else None,
        mean=float(numbers.mean(dtype=np.float64)) if count else None,
        zeros=zeros,
        subnormals=max(subnormals, 0),
        nans=nans,
        infinities=values.size - count - nans,
    )


_SMALLEST_NORMAL: Final = {"f64": 2.0**-1022, "f32": 2.0**-126, "bf16": 2.0**-126, "f16": 2.0**-14}
"""Smallest normal number by type (IEEE 754-2019, table 3.5)."""


# ---- errors


def error_of(pairs: Iterable[tuple[View, Array, npt.NDArray[Any]]], allowed: float) -> NumericError | None:
    """The largest errors of a dispatch's floats; None if it writes none.

    Args:
        pairs: per output its view, the exact values, and the values of the program in their type in memory.
        allowed: the relative tolerance.
    """
    ulps = absolute = relative = squares = 0.0
    count, cancels = 0, False
    for view, exact, stored in pairs:
        if view.element not in EPSILON:
            continue
        right = np.broadcast_to(np.asarray(exact, np.float64), stored.shape)
        computed = from_memory(stored, view.element)
        is_rounded = np.isinf(computed) & (np.abs(right) >= _LARGEST.get(view.element, np.inf))
        right = np.where(is_rounded & (np.sign(right) == np.sign(computed)), computed, right)
        finite = np.isfinite(right)
        scale = scale_of(np.abs(right[finite]))
        cancels = cancels or (not scale and bool(np.any(computed[finite])))
        with np.errstate(all="ignore"):
            difference = np.abs(computed - right)
            is_same = (computed == right) | (np.isnan(computed) & np.isnan(right))
            difference = np.where(is_same, 0.0, np.where(np.isnan(difference), np.inf, difference))
            steps = difference / _ulp(np.maximum(np.abs(right), scale), view.element)
        errors = relative_errors(right, computed)
        errors = np.where(np.isnan(errors), np.inf, errors)
        ulps = max(ulps, float(np.max(steps, initial=0.0)))
        absolute = max(absolute, float(np.max(difference, initial=0.0)))
        relative = max(relative, float(np.max(errors, initial=0.0)))
        squares, count = squares + float(np.sum(np.square(errors))), count + errors.size
    if not count:
        return None
    return NumericError(
        max_ulps=None if cancels else _finite(ulps),
        max_abs=_finite(absolute),
        max_rel=None if cancels else _finite(relative),
        rms_rel=None if cancels else _finite((squares / count) ** 0.5),
        tolerance=allowed,
    )


def _finite(number: float) -> float:
    """JSON has no infinities: the largest number stands for them."""
    return min(number, float(np.finfo(np.float64).max))


def _ulp(values: npt.NDArray[np.float64], element: str) -> npt.NDArray[np.float64]:
    """Distance of a number to the next one of a type."""
    sizes = np.abs(np.nan_to_num(values))
    _, exponents = np.frexp(np.maximum(sizes, _SMALLEST_NORMAL.get(element, 2.0**-6)))
    scaled: npt.NDArray[np.float64] = np.ldexp(EPSILON[element], exponents - 1)
    return scaled


# ---- rounding
#
# How far rounding alone can move a result: the reference is evaluated again with errors as large as rounding may make
# them after each operation (D. S. Parker: Monte Carlo arithmetic, 1997). This finds what a tolerance relative to the
# result cannot know: cancellation, as in x - mean(x), and its amplification. Errors have random signs in one
# evaluation, and the same sign in the others: on regular data, such as a constant input, all terms of a sum are rounded
# in the same direction.


_SAFETY: Final = 4.0
_APPROXIMATED_ULPS: Final = 32.0
"""Error of a function that code generation approximates; see `verification`."""


class _Rounding(Watch):
    """Adds a rounding error to each result; `sign` is 0 for random signs."""

    def __init__(self, sign: int) -> None:
        self._random, self._sign = np.random.default_rng(0), sign

    def computed(self, operation: Operation, operands: Sequence[Array], results: Sequence[Array]) -> Sequence[Array]:
        """Add errors to the results of scalar operations; those of structured ones have them already."""
        del operands
        name = operation.name
        if not name.startswith(("arith.", "math.", "iree_linalg_ext.")) or name in EXACT:
            return results
        ulps = 1.0 if name.startswith("arith.") or name in NOT_APPROXIMATED else _APPROXIMATED_ULPS
        return [
            self._with_error(result, np.abs(result), ulps * EPSILON[element])
            if (element := _element(value)) in EPSILON
            else result
            for value, result in zip(operation.results, results, strict=True)
        ]

    def summed(self, total: Array, sizes: Callable[[], Array], terms: int, element: str) -> Array:
        """Add the rounding errors of all terms to a sum."""
        if element not in EPSILON:
            return total
        return self._with_error(total, sizes(), EPSILON[element] * max(1.0, terms / 2))

    def _with_error(self, values: Array, sizes: Array, error: float) -> Array:
        array = np.asarray(values, np.float64)
        signs: Any = self._sign or (2 * self._random.integers(0, 2, array.shape) - 1)
        with np.errstate(all="ignore"):
            return array + signs * error * np.asarray(sizes)


def _element(value: Value) -> str:
    """The element type of a number or tensor."""
    return str(getattr(value.type, "element_type", value.type))


def rounding_bounds(
    function: KernelFunction, memory: Callable[[], Memory], exact: Mapping[View, Array]
) -> dict[View, npt.NDArray[np.float64]]:
    """Bounds of what rounding may change in the elements of each output.

    Args:
        function: the kernel.
        memory: makes a memory with its inputs.
        exact: its exact results.
    """
    moved = {view: np.zeros(view.extents) for view in exact if view.element in EPSILON}
    for sign in (0, 1, -1):
        changed = function.run(memory(), watch=_Rounding(sign))
        for view, values in _last_stored(changed.stored, changed.exact):
            if view in moved:
                with np.errstate(all="ignore"):
                    moved[view] = np.fmax(moved[view], np.abs(np.asarray(values) - exact[view]))
    return {view: _SAFETY * (sizes + scale_of(sizes)) for view, sizes in moved.items()}


def verdict_of_bounds(
    outputs: Sequence[tuple[View, Array, npt.NDArray[Any]]], bounds: Mapping[View, npt.NDArray[np.float64]]
) -> Verdict:
    """Whether the program's results are within the bounds around the exact ones.

    Not verified if they are, but the bounds exclude nothing: rounding may be all of the result, as where sums cancel.
    """
    excludes = False
    for view, exact, stored in outputs:
        if view not in bounds:
            return Verdict.WRONG  # integers must be equal
        right = np.broadcast_to(np.asarray(exact, np.float64), view.extents)
        computed, bound = from_memory(stored, view.element), bounds[view] + EPSILON[view.element] * np.abs(right)
        with np.errstate(all="ignore"):
            is_near = (np.abs(computed - right) <= bound) | (computed == right)
        if not np.all(is_near | (np.isnan(computed) & np.isnan(right))):
            return Verdict.WRONG
        some = np.abs(right) > 0
        excludes = excludes or not some.any() or bool(np.any(np.abs(right[some]) > 2 * bound[some]))
    return Verdict.RIGHT if excludes else Verdict.NOT_VERIFIED


# ---- range
#
# Types of the program are narrower than double precision in range, too. Where an operation exceeds the largest number
# of its type, the program goes on with infinity; where it is below the smallest normal number, with 0, since IREE
# flushes subnormal numbers on CPUs. Both are the model's, no fault of a kernel.


_LARGEST: Final = {
    "f32": (2 - 2.0**-24) * 2.0**127,
    "bf16": (2 - 2.0**-8) * 2.0**127,
    "f16": (2 - 2.0**-11) * 2.0**15,
}
"""Numbers from this on are rounded to infinity, by type."""
_FLUSHED: Final = frozenset({"f64", "f32", "bf16"})
"""Types computed with instructions that flush subnormal numbers. f16 is computed in f32."""


class _Range(Watch):
    """Keeps the results of operations in the range of their type; `changes` counts the operations that exceed it."""

    def __init__(self) -> None:
        self.changes = 0

    def computed(self, operation: Operation, operands: Sequence[Array], results: Sequence[Array]) -> Sequence[Array]:
        """The results within the range."""
        del operands
        pairs = zip(operation.results, results, strict=True)
        return [self._limited(result, _element(value)) for value, result in pairs]

    def summed(self, total: Array, sizes: Callable[[], Array], terms: int, element: str) -> Array:
        """The sums within the range."""
        del sizes, terms
        limited: Array = self._limited(total, element)
        return limited

    def _limited(self, result: Any, element: str) -> Any:  # noqa: ANN401 - an array, or a view of memory
        values = _floats(result) if element in EPSILON else None
        if values is None:
            return result
        sizes = np.abs(values)
        is_large = np.isfinite(values) & (sizes >= _LARGEST.get(element, np.inf))
        is_small = (sizes > 0) & (sizes < (_SMALLEST_NORMAL[element] if element in _FLUSHED else 0.0))
        if not (is_large.any() or is_small.any()):
            return result
        self.changes += 1
        return np.where(is_large, np.copysign(np.inf, values), np.where(is_small, np.copysign(0.0, values), values))


def _in_range(function: KernelFunction, snapshot: _Snapshot) -> tuple[Memory, list[tuple[View, Array]]] | None:
    """The memory and the results if each operation keeps to its type's range; None if all do anyway."""
    watch, memory = _Range(), snapshot.memory()
    computed = function.run(memory, watch=watch)
    return (memory, _last_stored(computed.stored, computed.exact)) if watch.changes else None


# ---- shadow
#
# Double-precision values of the memory's elements. A shadow is valid where the element still has the bits that the
# dispatch wrote; elsewhere something else has written, a copy or a dispatch without a reference.


_REGION_BITS: Final = 28


class ShadowMemory:
    """Exact values by address."""

    def __init__(self) -> None:
        self._regions: dict[tuple[int, int], tuple[npt.NDArray[Any], npt.NDArray[np.float64]]] = {}

    def values(self, address: int, view: View, stored: npt.NDArray[Any]) -> Array:
        """The exact values of a view.

        Args:
            address: of its binding.
            view: the view; of floats.
            stored: its elements in memory.
        """
        result = from_memory(stored, view.element).reshape(-1)
        bits = _bits(stored)
        for chosen, places, (old_bits, exact) in self._parts(address, view):
            is_valid = old_bits[places] == bits[chosen]
            result[chosen] = np.where(is_valid, exact[places], result[chosen])
        return result.reshape(view.extents)

    def store(self, address: int, view: View, stored: npt.NDArray[Any], exact: Array) -> None:
        """Remember exact values for elements that were stored."""
        bits = _bits(stored)
        values = np.broadcast_to(np.asarray(exact, np.float64), view.extents).reshape(-1)
        for chosen, places, (old_bits, shadow) in self._parts(address, view):
            old_bits[places] = bits[chosen]
            shadow[places] = values[chosen]

    def _parts(
        self, address: int, view: View
    ) -> Iterator[
        tuple[npt.NDArray[np.bool_] | slice, npt.NDArray[np.int64], tuple[npt.NDArray[Any], npt.NDArray[np.float64]]]
    ]:
        size = stored_type(view.element).itemsize
        places = np.full((), (address + view.offset) // size, np.int64)
        for axis, (extent, stride) in enumerate(zip(view.extents, view.strides, strict=True)):
            shape = [-1 if number == axis else 1 for number in range(len(view.extents))]
            places = places + (np.arange(extent, dtype=np.int64) * stride).reshape(shape)
        flat = np.broadcast_to(places, view.extents).reshape(-1)
        per_region = (1 << _REGION_BITS) // size
        regions = flat // per_region
        for region in np.unique(regions):
            chosen = slice(None) if regions.min() == regions.max() else regions == region
            yield chosen, flat[chosen] - region * per_region, self._region(int(region), size)

    def _region(self, region: int, size: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        if (region, size) not in self._regions:
            count = (1 << _REGION_BITS) // size
            # Untouched pages take no memory.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
            bits = np.frombuffer(mmap.mmap(-1, count * size, flags=flags), np.dtype(f"u{size}"))
            exact = np.frombuffer(mmap.mmap(-1, count * 8, flags=flags), np.float64)
            self._regions[region, size] = bits, exact
        return self._regions[region, size]


def _bits(stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(stored).view(f"u{stored.dtype.itemsize}").reshape(-1)


# ---- dispatches


@dataclass(frozen=True)
class _Prepared:
    """A kernel with push constants; `obstacle`: why it cannot be evaluated, or ""."""

    function: KernelFunction | None
    accesses: tuple[Access, ...]
    obstacle: str


@dataclass
class _Snapshot:
    """The data of a dispatch before it runs: arrays per binding, zero where nothing is loaded."""

    prepared: _Prepared
    arrays: list[npt.NDArray[np.uint8]]
    nans: bool
    infinities: bool

    def memory(self) -> Memory:
        """A memory to evaluate the kernel on; bindings that it writes are copies."""
        written = {access.view.binding for access in self.prepared.accesses if access.stored}
        return [self._copy(binding) if binding in written else array for binding, array in enumerate(self.arrays)]

    def _copy(self, binding: int) -> npt.NDArray[np.uint8]:
        array = np.zeros(self.arrays[binding].size, np.uint8)  # unused pages are not touched
        for access in self.prepared.accesses:
            if access.view.binding == binding and access.loaded:
                span = slice(access.view.offset, access.view.end)
                array[span] = self.arrays[binding][span]
        return array


class KernelSet:
    """The kernels of a bundle as functions of the reference, by their exports' names; `backends` of their code."""

    def __init__(self, configured: bytes) -> None:
        module = MlirParser().parse(configured)
        self._module, self._blobs, self.backends = module, Blobs(module), backends_of(module)
        self._operations: dict[str, list[Operation]] = {}
        for executable in nested(module.operation):
            if executable.name == "hal.executable":
                self._add(executable)

    def _add(self, executable: Operation) -> None:
        exports = {
            string_attribute(operation, "sym_name") for operation in walk(executable) if operation.name == _EXPORT
        }
        for operation in walk(executable):
            if operation.name == "func.func" and (name := string_attribute(operation, "sym_name")) in exports:
                self._operations.setdefault(name, []).append(operation)

    def function(self, kernel: str, constants: Sequence[int]) -> KernelFunction | None:
        """A kernel with push constants; None if no kernel, or several ones, have the name."""
        operations = self._operations.get(kernel, [])
        return KernelFunction(operations[0], constants, self._blobs) if len(operations) == 1 else None


_EXPORT: Final = "hal.executable.export"


@dataclass
class DispatchChecks:
    """The observer of a program's dispatches.

    Attributes:
        kernels: the program's kernels.
        settings: what to compute.
        reference: kernels with the right results; None: the program's own.
    """

    kernels: KernelSet
    settings: CheckSettings
    reference: KernelSet | None = None
    checked: list[CheckedDispatch] = field(default_factory=list)
    _prepared: dict[tuple[str, tuple[int, ...]], _Prepared] = field(default_factory=dict)
    _calls: dict[object, int] = field(default_factory=dict)
    _snapshot: _Snapshot | None = None
    _shadow: ShadowMemory = field(default_factory=ShadowMemory)
    _unverified_reason: str = ""

    def begins(self, dispatch: ObservedDispatch, memory: ProgramMemory) -> None:
        """Copy what the dispatch loads, if it is to be evaluated."""
        prepared = self._prepare(dispatch)
        self._snapshot, self._unverified_reason = None, prepared.obstacle
        key = (dispatch.kernel, dispatch.constants, dispatch.bindings)
        self._calls[key] = self._calls.get(key, 0) + 1
        if not self._unverified_reason:
            self._unverified_reason = self._obstacle(dispatch, prepared, self._calls[key])
        if not self._unverified_reason:
            self._snapshot = _taken(prepared, dispatch, memory)

    def ends(self, dispatch: ObservedDispatch, memory: ProgramMemory) -> None:
        """Read the outputs, and compare them with the reference."""
        prepared = self._prepare(dispatch)
        views = list(dict.fromkeys(access.view for access in prepared.accesses if access.stored))
        arrays = _read(dispatch, memory, views)
        outputs = tuple(statistics_of(view, view.of(arrays)) for view in views if view.whole_bytes == view)
        samples = tuple(_samples(view, arrays) for view in views) if self.settings.samples else ()
        result = CheckedDispatch(
            dispatch.kernel, outputs, Verdict.NOT_VERIFIED, self._unverified_reason, samples=samples
        )
        if self._snapshot is not None:
            result = self._compared(result, self._snapshot, dispatch, arrays)
        self._snapshot = None
        self.checked.append(result)

    def _prepare(self, dispatch: ObservedDispatch) -> _Prepared:
        key = (dispatch.kernel, dispatch.constants)
        if key not in self._prepared:
            self._prepared[key] = self._new(dispatch)
        return self._prepared[key]

    def _new(self, dispatch: ObservedDispatch) -> _Prepared:
        own = self.kernels.function(dispatch.kernel, dispatch.constants)
        if own is None:
            return _Prepared(None, (), "the bundle does not have its code")
        try:
            accesses = own.accesses()
            for access in accesses:
                _ = access.view.whole_bytes
        except SURPRISES as error:
            return _Prepared(None, (), f"its memory accesses are unknown: {not_computed(error)}")
        function = own
        if self.reference is not None:
            other = self.reference.function(dispatch.kernel, dispatch.constants)
            if other is None:
                return _Prepared(None, accesses, "the other bundle has no kernel of this name")
            try:
                others = other.accesses()
            except SURPRISES as error:
                return _Prepared(None, accesses, not_computed(error))
            if _outputs(others) != _outputs(accesses) or max(map(_binding, others)) >= len(dispatch.bindings):
                return _Prepared(None, accesses, "the other bundle's kernel has other outputs")
            function, accesses = other, others  # a fault may have made inputs superfluous
        return _Prepared(function, accesses, "")

    def _obstacle(self, dispatch: ObservedDispatch, prepared: _Prepared, call: int) -> str:
        if not self.settings.calls:
            return "only statistics were requested"
        if call > self.settings.calls:
            return LATER_CALL
        used = 0
        for access in prepared.accesses:
            if access.view.end > dispatch.bindings[access.view.binding][1]:
                return "its data does not fit into its buffers"
            used += access.view.end - access.view.offset
        if _COPIES * used + _LEAST_FREE > (free := free_memory()):
            return (
                f"evaluating it takes {format_bytes(_COPIES * used)}, but only {format_bytes(free)} of memory are free"
            )
        return ""

    def _compared(
        self, result: CheckedDispatch, snapshot: _Snapshot, dispatch: ObservedDispatch, arrays: Memory
    ) -> CheckedDispatch:
        function = snapshot.prepared.function
        assert function is not None
        expected = snapshot.memory()
        try:
            computed = function.run(expected)
            exact = self._exact_values(function, snapshot, dispatch, computed) if self.settings.accumulated else ()
        except SURPRISES as error:
            return replace(result, reason=not_computed(error))
        allowed = tolerance(computed.precision)
        outputs = [(view, values, view.of(arrays)) for view, values in _last_stored(computed.stored, computed.exact)]
        accumulated = [(view, values, view.of(arrays)) for view, values in _last_stored(computed.stored, exact)]
        for view, values, stored in accumulated:
            if view.element in EPSILON and view.element not in SMALL_EPSILON:
                self._shadow.store(dispatch.bindings[view.binding][0], view, stored, values)
        bad = _bad_numbers(function, snapshot, result.outputs)
        result = replace(
            result,
            isolated=error_of(outputs, allowed),
            accumulated=error_of(accumulated, allowed) if accumulated else None,
            bad=bad,
        )
        difference = _first_difference(outputs, expected, arrays, allowed)
        if difference:
            if (in_range := _in_range(function, snapshot)) is not None:
                memory, limited = in_range
                limited_outputs = [(view, values, view.of(arrays)) for view, values in limited]
                if not _first_difference(limited_outputs, memory, arrays, allowed):
                    return replace(result, isolated=error_of(limited_outputs, allowed), verdict=Verdict.RIGHT)
            bounds = rounding_bounds(function, snapshot.memory, {view: values for view, values, _ in outputs})
            verdict = verdict_of_bounds(outputs, bounds)
            if verdict is not Verdict.WRONG:
                return replace(result, verdict=verdict, reason="" if verdict is Verdict.RIGHT else TOO_ROUGH)
            wrong = _wrong_element(outputs, expected, arrays, allowed)
            result = replace(result, verdict=Verdict.WRONG, reason=difference, wrong=wrong)
            return self._explained(result, snapshot, dispatch, outputs, allowed)
        if is_too_rough(expected, computed.stored, allowed):
            return replace(result, reason=TOO_ROUGH)
        return replace(result, verdict=Verdict.RIGHT, reason="")

    def _explained(
        self,
        result: CheckedDispatch,
        snapshot: _Snapshot,
        dispatch: ObservedDispatch,
        outputs: Sequence[tuple[View, Array, npt.NDArray[Any]]],
        allowed: float,
    ) -> CheckedDispatch:
        """Name the operation that is wrong: by trying changes of the reference, else by the other bundle's code."""
        function, own = snapshot.prepared.function, self.kernels.function(dispatch.kernel, dispatch.constants)
        assert function is not None
        wrong = WrongResult(function, snapshot.memory, [(view, stored) for view, _, stored in outputs], allowed)
        explanation = explain(wrong)
        if explanation is not None:
            suspects = _lines_of(explanation.operation)
            is_own = self.reference is None
            return replace(
                result,
                suspects=suspects if is_own else (),
                other_suspects=() if is_own else suspects,
                explanation=explanation.text,
            )
        ours, theirs = (None, None) if own is None or self.reference is None else first_difference(own, function)
        return replace(
            result,
            suspects=() if ours is None else _lines_of(ours),
            other_suspects=() if theirs is None else _lines_of(theirs),
            explanation=_difference_text(ours, theirs),
        )

    def _exact_values(
        self, function: KernelFunction, snapshot: _Snapshot, dispatch: ObservedDispatch, computed: Computed
    ) -> tuple[Array, ...]:
        """The results from exact inputs; those from the program's inputs if these are exact themselves."""
        addresses = [address for address, _ in dispatch.bindings]

        def replaced(view: View) -> Array | None:
            if view.element not in EPSILON or view.element in SMALL_EPSILON:
                return None
            stored = view.of(snapshot.arrays)
            values = self._shadow.values(addresses[view.binding], view, stored)
            if np.array_equal(values, from_memory(stored, view.element), equal_nan=True):
                return None
            return values

        views = [access.view for access in snapshot.prepared.accesses if access.loaded]
        if all(replaced(view) is None for view in views):
            return computed.exact
        return function.run(snapshot.memory(), replaced=replaced).exact


def _lines_of(operation: Operation) -> tuple[int, ...]:
    """The line of an operation; of a constant, which is no op's work, the lines of its users."""
    if operation.name != "arith.constant":
        return line_of(operation)
    users = [use.owner.operation for result in operation.results for use in result.uses]
    return tuple(dict.fromkeys(line for user in users for line in line_of(user))) or line_of(operation)


def _difference_text(ours: Operation | None, theirs: Operation | None) -> str:
    if ours is None:
        return f"{theirs.name} of the other bundle is missing" if theirs is not None else ""
    if theirs is None:
        return f"{ours.name} is not in the other bundle"
    return f"{ours.name} differs" if ours.name == theirs.name else f"{ours.name} in place of {theirs.name}"


def _outputs(accesses: Iterable[Access]) -> set[View]:
    return {access.view for access in accesses if access.stored}


def _binding(access: Access) -> int:
    return access.view.binding


LATER_CALL: Final = "a later call of a kernel on the same buffers"


def _taken(prepared: _Prepared, dispatch: ObservedDispatch, memory: ProgramMemory) -> _Snapshot:
    views = [access.view for access in prepared.accesses if access.loaded]
    arrays = _read(dispatch, memory, views)
    nans = infinities = False
    for view in views:
        if view.element in EPSILON and view.element not in SMALL_EPSILON:
            numbers = view.of(arrays)
            values = numbers if numbers.dtype.kind == "f" else from_memory(numbers, view.element)
            nans = nans or bool(np.isnan(values).any())
            infinities = infinities or bool(np.isinf(values).any())
    return _Snapshot(prepared, arrays, nans, infinities)


def _read(dispatch: ObservedDispatch, memory: ProgramMemory, views: Iterable[View]) -> list[npt.NDArray[np.uint8]]:
    """The bindings' memory where these views are, else zero."""
    arrays = [np.zeros(length, np.uint8) for _, length in dispatch.bindings]  # unused pages are not touched
    for binding, begin, end in sorted({(view.binding, view.offset, view.end) for view in views}):
        address, length = dispatch.bindings[binding]
        span = slice(max(0, begin), min(end, length))
        if span.start < span.stop:
            memory.read(address + span.start, arrays[binding][span])
    return arrays


def _samples(view: View, arrays: Memory) -> Samples:
    if view.whole_bytes != view:
        return np.zeros(0)
    return np.asarray(from_memory(evenly_spaced(view.of(arrays)), view.element), np.float64)


def evenly_spaced(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Evenly spaced elements of an array, at most 65,536."""
    flat = array.reshape(-1)
    return flat[:: -(-flat.size // _MOST_SAMPLES) or 1]


def _last_stored(views: Sequence[View], values: Sequence[Array]) -> list[tuple[View, Array]]:
    """Each stored view with the values that were stored last."""
    return list(dict(zip(views, values, strict=False)).items())


def _first_difference(
    outputs: Iterable[tuple[View, Array, npt.NDArray[Any]]], expected: Memory, actual: Memory, allowed: float
) -> str:
    """The first difference in the outputs; "" if there is none."""
    return next(filter(None, (difference_in_view(view, expected, actual, allowed) for view, _, _ in outputs)), "")


def _wrong_element(
    outputs: Iterable[tuple[View, Array, npt.NDArray[Any]]], expected: Memory, actual: Memory, allowed: float
) -> WrongElement | None:
    """The element with the largest error of the first output that differs."""
    for view, _, _ in outputs:
        if not difference_in_view(view, expected, actual, allowed):
            continue
        right, computed = (from_memory(view.of(memory), view.element) for memory in (expected, actual))
        errors = relative_errors(right, computed) if view.element in EPSILON else (right != computed).astype(float)
        worst = int(np.argmax(np.where(np.isnan(errors), np.inf, errors)))
        index = np.unravel_index(worst, errors.shape) if errors.shape else ()
        return WrongElement(
            binding=view.binding,
            index=tuple(int(place) for place in index),
            value=_number(computed.reshape(-1)[worst]),
            expected=_number(right.reshape(-1)[worst]),
        )
    return None


def _number(value: Any) -> str:  # noqa: ANN401 - a number of numpy
    """A number as text, since JSON has neither NaN nor infinity."""
    return f"{float(value):.9g}" if np.asarray(value).dtype.kind == "f" else str(int(value))


# ---- NaN and infinity


def _bad_numbers(
    function: KernelFunction, snapshot: _Snapshot, outputs: Sequence[OutputStatistics]
) -> tuple[FirstBadNumber, ...]:
    """The operations that make the first NaN and the first infinity of a dispatch.

    Without those that its inputs have already, and without infinities that the model itself contains, such as masks.
    """
    kinds = []
    if not snapshot.nans and any(output.nans for output in outputs):
        kinds.append(_Search("nan", np.isnan))
    if not (snapshot.infinities or snapshot.nans) and any(output.infinities or output.nans for output in outputs):
        kinds.append(_Search("infinity", np.isinf))
    for search in kinds:
        try:
            function.run(snapshot.memory(), watch=search)
        except SURPRISES:
            return ()
    return tuple(search.found for search in kinds if search.found is not None)


class _Search(_Range):
    """Search for the first operation that makes a NaN, or an infinity, of other numbers, within the range of types."""

    def __init__(self, kind: str, is_bad: Callable[[Any], Any]) -> None:
        super().__init__()
        self._kind, self._is_bad = kind, is_bad
        self._passed_on = False
        self.found: FirstBadNumber | None = None

    def computed(self, operation: Operation, operands: Sequence[Array], results: Sequence[Array]) -> Sequence[Array]:
        """Look at the results."""
        results = super().computed(operation, operands, results)
        is_structured = bool(len(operation.regions))
        if self.found is None and operation.name != "arith.constant" and not (is_structured and self._passed_on):
            self._look(operation, operands, results)
        if is_structured:
            self._passed_on = False
        return results

    def _look(self, operation: Operation, operands: Sequence[Array], results: Sequence[Array]) -> None:
        inputs = [array for operand in operands if (array := _floats(operand)) is not None]
        for result in results:
            values = _floats(result)
            if values is None or not (bad := self._is_bad(values)).any():
                continue
            if any(self._is_bad(array).any() for array in inputs):
                self._passed_on = True
                return
            place = int(np.argmax(bad))
            index = np.unravel_index(place, values.shape) if values.shape else ()
            self.found = FirstBadNumber(
                kind=self._kind,
                operation=operation.name,
                index=tuple(int(part) for part in index),
                operands=tuple(_element_at(array, values.shape, index) for array in inputs),
                lines=line_of(operation),
            )
            return


def _floats(value: object) -> npt.NDArray[Any] | None:
    if isinstance(value, View) or value is None:
        return None
    array = np.asarray(value)
    return array if array.dtype.kind == "f" else None


def _element_at(array: npt.NDArray[Any], shape: tuple[int, ...], index: Sequence[Any]) -> str:
    """The operand's element that belongs to a result's element; its extremes if shapes differ."""
    try:
        return _number(np.broadcast_to(array, shape)[tuple(index)])
    except ValueError:
        return f"{_number(array.min())} to {_number(array.max())}" if array.size else "none"


def line_of(operation: Operation) -> tuple[int, ...]:
    """The line of an operation in its kernel's text."""
    location = operation.location
    line = getattr(location, "start_line", None)
    return (int(line),) if isinstance(line, int) else ()
