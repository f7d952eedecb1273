"""The memory that a function holds at each step, the ops that hold it at the peak, and the peak without an op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

from msgspec import structs

from tracemap.core.codec import Count, Record
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN, Integer
from tracemap.map.memory import (
    RESULT,
    FunctionMemory,
    MemoryAllocation,
    MemoryPlan,
    MemoryValue,
    StepRange,
    evaluate,
    needing_steps,
    packed_bytes,
)
from tracemap.map.memory_without import SiteWork, without_ops
from tracemap.map.model import OpId

Dimension = Callable[[int, int], Integer]
"""Returns a dimension of an argument, both by number; the argument's own value for the dimension -1."""


class HeldValue(Record, frozen=True):
    """A value in memory: at the peak, or as long as the module is loaded.

    `ops`: the ops whose result it is, none for memory of the compiler; `written_by` and `read_by`: dispatch sites;
    `reading_ops`: the ops in the latter that use it; `peak_without`: the peak if the value's ops are removed, so that
    their users use their first operand of the same type. `is_estimate`: the compiler may then fuse other ops, so that
    this peak is another one.
    """

    ops: tuple[OpId, ...]
    bytes: Count
    resource: str
    written_by: tuple[str, ...]
    read_by: tuple[str, ...]
    reading_ops: tuple[OpId, ...]
    is_carried: bool
    peak_without: Integer = UNKNOWN
    is_estimate: bool = False


class MemoryUse(Record, frozen=True):
    """The memory that a function allocates, at its peak and at each step.

    `step`: the step with the most memory, and of several the one that needs most of it. `held`: the values there, the
    largest first. `unused_bytes`: what their allocations have beyond them: gaps of the layout, and values that are not
    needed at that step. `curve`: bytes at each step; `needed`: those of values that a later step or the caller needs.
    `kept_bytes`: constants and variables that the module always holds, apart from the rest. `load_peak_bytes`: the most
    memory while the module is loaded. `lasting_bytes`: results, and variables that the module keeps: an invocation
    allocates them, but does not release them. `is_estimate`: without some ops, the compiler may fuse others, so that
    the peak is another one.
    """

    function: str
    peak_bytes: Count
    step: Count
    by_resource: Mapping[str, int]
    held: tuple[HeldValue, ...]
    unused_bytes: Count
    curve: tuple[Count, ...]
    kept_bytes: Count
    load_peak_bytes: Count
    lasting_bytes: Count
    needed: tuple[Count, ...]
    is_estimate: bool = False


def memory_use(
    plan: MemoryPlan,
    function: FunctionMemory,
    dimension: Dimension,
    without: frozenset[OpId] = frozenset(),
    top: int = 0,
    computing: SiteWork = MappingProxyType({}),
) -> MemoryUse:
    """The memory of a function.

    Args:
        plan: the memory of the whole program.
        function: one of its functions.
        dimension: the dimensions of the function's arguments.
        without: ops that are removed, see `memory_without`.
        top: for how many of the largest values at the peak to find the peak without their ops.
        computing: the ops that compute in each dispatch site, see `memory_without.computing_ops`.

    Raises:
        UsageInvalid: a size depends on a dimension that is unknown.
    """
    left, is_estimate = without_ops(plan, function, without, computing) if without else (function, False)
    sized = _Sized.of(left, dimension)
    curve = sized.curve()
    peak = max(curve, default=0)
    needed = sized.needed()
    step = max(range(len(curve)), key=lambda step: (curve[step], needed[step], -step), default=0)
    held = sorted(sized.held_at(step), key=lambda value: (-value.bytes, value.written_by, value.ops))
    by_resource: dict[str, int] = {}
    for allocation, size in sized.alive_at(step):
        by_resource[allocation.resource] = by_resource.get(allocation.resource, 0) + size
    withouts: dict[tuple[OpId, ...], tuple[int, bool]] = {}
    for value in held:
        if value.ops and value.ops not in withouts and len(withouts) < top:
            left, is_rough = without_ops(plan, function, without | set(value.ops), computing)
            withouts[value.ops] = max(_Sized.of(left, dimension).curve(), default=0), is_rough
    return MemoryUse(
        function.function,
        peak,
        step,
        by_resource,
        tuple(_with_peak(value, *withouts.get(value.ops, (UNKNOWN, False))) for value in held),
        peak - sum(value.bytes for value in held),
        tuple(curve),
        *_loaded(plan),
        sum(size for own, size in zip(sized.function.allocations, sized.sizes, strict=True) if _is_lasting(own)),
        tuple(needed),
        is_estimate,
    )


def _with_peak(value: HeldValue, peak: Integer, is_estimate: bool) -> HeldValue:
    return structs.replace(value, peak_without=peak, is_estimate=is_estimate)


def kept_values(plan: MemoryPlan) -> tuple[HeldValue, ...]:
    """The constants and variables that the module holds once it is loaded, the largest first.

    What `MemoryUse.kept_bytes` has beyond them holds no value.
    """
    found = []
    for function in plan.initializers:
        sized = _Sized.of(function, lambda _argument, _index: UNKNOWN)
        for allocation, sizes in zip(function.allocations, sized.values, strict=True):
            pairs = zip(allocation.values, sizes, strict=True)
            found += [_held(allocation, value, size) for value, size in pairs if size and allocation.is_kept]
    return tuple(sorted(found, key=lambda value: (-value.bytes, [op.number for op in value.ops])))


def _held(allocation: MemoryAllocation, value: MemoryValue, size: int) -> HeldValue:
    names = value.written_by, value.read_by, value.reading_ops
    return HeldValue(value.ops, size, allocation.resource, *names, allocation.is_carried)


def _is_lasting(allocation: MemoryAllocation) -> bool:
    return (allocation.resource == RESULT or allocation.is_kept) and not allocation.is_carried


def _loaded(plan: MemoryPlan) -> tuple[int, int]:
    """The bytes that the module keeps once it is loaded, and the most that it has until then."""
    kept = peak = 0
    for function in plan.initializers:
        sized = _Sized.of(function, lambda _argument, _index: UNKNOWN)
        peak = max(peak, kept + max(sized.curve(), default=0))
        kept += sum(size for own, size in zip(function.allocations, sized.sizes, strict=True) if own.is_kept)
    return kept, max(peak, kept)


@dataclass(frozen=True, slots=True)
class _Sized:
    """A function with the sizes of its values and allocations."""

    function: FunctionMemory
    values: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, function: FunctionMemory, dimension: Dimension) -> _Sized:
        values = [_sizes_of(allocation, dimension, function.function) for allocation in function.allocations]
        sizes = [_allocated(allocation, own) for allocation, own in zip(function.allocations, values, strict=True)]
        return cls(function, tuple(values), tuple(sizes))

    def curve(self) -> list[int]:
        """The bytes that are held at each step."""
        sized = zip(self.function.allocations, self.sizes, strict=True)
        return self._sums((steps, size) for allocation, size in sized for steps in allocation.alive)

    def needed(self) -> list[int]:
        """The bytes of the values that are needed at each step."""
        sized = zip(self.function.allocations, self.values, strict=True)
        return self._sums(
            (steps, size)
            for allocation, sizes in sized
            for value, size in zip(allocation.values, sizes, strict=True)
            for steps in needing_steps(allocation, value)
        )

    def _sums(self, sizes: Iterable[tuple[StepRange, int]]) -> list[int]:
        """The sum of sizes at each step, from the steps of each."""
        changes = [0] * (len(self.function.steps) + 1)
        for steps, size in sizes:
            changes[steps.first] += size
            changes[steps.last + 1] -= size
        return list(accumulate(changes))[:-1]

    def alive_at(self, step: int) -> Iterator[tuple[MemoryAllocation, int]]:
        """The allocations that are held at a step, with their sizes."""
        for allocation, size in zip(self.function.allocations, self.sizes, strict=True):
            if _has(allocation.alive, step):
                yield allocation, size

    def held_at(self, step: int) -> Iterator[HeldValue]:
        """The values that are needed at a step."""
        for allocation, sizes in zip(self.function.allocations, self.values, strict=True):
            for value, size in zip(allocation.values, sizes, strict=True):
                if size and _has(needing_steps(allocation, value), step):
                    yield _held(allocation, value, size)


def _has(ranges: Iterable[StepRange], step: int) -> bool:
    return any(steps.first <= step <= steps.last for steps in ranges)


def _sizes_of(allocation: MemoryAllocation, dimension: Dimension, function: str) -> tuple[int, ...]:
    sizes = [evaluate(value.size, dimension) for value in allocation.values]
    known = tuple(size for size in sizes if isinstance(size, int))
    if len(known) < len(sizes):
        raise UsageInvalid(f"{function}: {_why_unknown(allocation, dimension)}")
    return known


def _why_unknown(allocation: MemoryAllocation, dimension: Dimension) -> str:
    """Why a size of an allocation is unknown, and what to do."""
    if not all(isinstance(value.size, str) for value in allocation.values):
        return "its memory is unknown, because sizes depend on values that it computes; make them static in the model"
    asked: list[Integer] = []

    def asking(argument: int, index: int) -> Integer:
        asked.append(dimension(argument, index))
        return asked[-1]

    for value in allocation.values:
        evaluate(value.size, asking)
    if UNKNOWN in asked:
        return (
            "sizes depend on its arguments; give all of them with --input, such as --input 8x16xf32, or every dynamic "
            "dimension with --dim"
        )
    return "with these arguments, an array is larger than any memory; give smaller sizes with --input or --dim"


def _allocated(allocation: MemoryAllocation, sizes: Sequence[int]) -> int:
    return packed_bytes(allocation.values, sizes) if allocation.is_packed else sum(sizes)
