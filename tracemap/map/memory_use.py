"""The memory that a function holds at each step, the ops that hold it at the peak, and the peak without an op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from tracemap.core.codec import Count, Record
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN, Integer
from tracemap.map.memory import FunctionMemory, MemoryAllocation, MemoryPlan, MemoryValue, evaluate, packed_bytes
from tracemap.map.model import OpId, sort_ops

Dimension = Callable[[int, int], Integer]
"""Returns a dimension of an argument, both by number; the argument's own value for the dimension -1."""

RESULT = "external"
"""The resource of results, which the caller gets."""


class HeldValue(Record, frozen=True):
    """A value that is in memory at the peak.

    `ops`: the ops whose result it is, none for memory of the compiler; `peak_without`: the peak if these ops are
    removed, so that their users read what they read.
    """

    ops: tuple[OpId, ...]
    bytes: Count
    resource: str
    written_by: tuple[str, ...]
    read_by: tuple[str, ...]
    is_carried: bool
    peak_without: Integer = UNKNOWN


class MemoryUse(Record, frozen=True):
    """The memory that a function allocates, at its peak and at each step.

    `step`: the step with the most memory, and of several the one that needs most of it. `held`: the values there, the
    largest first. `unused_bytes`: what their allocations have beyond them: gaps of the layout, and values that are not
    needed at that step. `curve`: bytes at each step. `kept_bytes`: constants and variables that the module always
    holds, apart from the rest. `load_peak_bytes`: the most memory while the module is loaded.
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


def memory_use(
    plan: MemoryPlan,
    function: FunctionMemory,
    dimension: Dimension,
    without: frozenset[OpId] = frozenset(),
    top: int = 0,
) -> MemoryUse:
    """The memory of a function.

    Args:
        plan: the memory of the whole program.
        function: one of its functions.
        dimension: the dimensions of the function's arguments.
        without: ops that are removed: their users read what they read.
        top: for how many of the largest values at the peak to find the peak without their ops.

    Raises:
        UsageInvalid: a size depends on a dimension that is unknown.
    """
    sized = _Sized.of(_without(function, without) if without else function, dimension)
    curve = sized.curve()
    peak = max(curve, default=0)
    step = sized.fullest([step for step, size in enumerate(curve) if size == peak])
    held = sorted(sized.held_at(step), key=lambda value: (-value.bytes, value.written_by, value.ops))
    by_resource: dict[str, int] = {}
    for allocation, size in sized.alive_at(step):
        by_resource[allocation.resource] = by_resource.get(allocation.resource, 0) + size
    withouts: dict[tuple[OpId, ...], int] = {}
    for value in held:
        if value.ops and len(withouts) < top:
            removed = without | set(value.ops)
            withouts.setdefault(value.ops, max(_Sized.of(_without(function, removed), dimension).curve(), default=0))
    return MemoryUse(
        function.function,
        peak,
        step,
        by_resource,
        tuple(structs.replace(value, peak_without=withouts.get(value.ops, UNKNOWN)) for value in held),
        peak - sum(value.bytes for value in held),
        tuple(curve),
        *_loaded(plan),
    )


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
        held = [0] * (len(self.function.steps) + 1)
        for allocation, size in zip(self.function.allocations, self.sizes, strict=True):
            for steps in allocation.alive:
                held[steps.first] += size
                held[steps.last + 1] -= size
        for step in range(1, len(held)):
            held[step] += held[step - 1]
        return held[:-1]

    def fullest(self, steps: Sequence[int]) -> int:
        """The first of some steps at which most bytes are needed."""
        needed = {step: sum(value.bytes for value in self.held_at(step)) for step in steps}
        return max(steps, key=lambda step: (needed[step], -step), default=0)

    def alive_at(self, step: int) -> Iterator[tuple[MemoryAllocation, int]]:
        """The allocations that are held at a step, with their sizes."""
        for allocation, size in zip(self.function.allocations, self.sizes, strict=True):
            if _is_alive(allocation, step):
                yield allocation, size

    def held_at(self, step: int) -> Iterator[HeldValue]:
        """The values that are needed at a step."""
        for allocation, sizes in zip(self.function.allocations, self.values, strict=True):
            if not _is_alive(allocation, step):
                continue
            begin = _begin(allocation)
            for value, size in zip(allocation.values, sizes, strict=True):
                if size and (not allocation.is_packed or begin + value.first <= step <= begin + value.last):
                    yield HeldValue(
                        value.ops, size, allocation.resource, value.written_by, value.read_by, allocation.is_carried
                    )


def _is_alive(allocation: MemoryAllocation, step: int) -> bool:
    return any(steps.first <= step <= steps.last for steps in allocation.alive)


def _begin(allocation: MemoryAllocation) -> int:
    return allocation.alive[0].first if allocation.alive else 0


def _end(allocation: MemoryAllocation) -> int:
    return max((steps.last for steps in allocation.alive), default=0)


def _sizes_of(allocation: MemoryAllocation, dimension: Dimension, function: str) -> tuple[int, ...]:
    sizes = [evaluate(value.size, dimension) for value in allocation.values]
    known = tuple(size for size in sizes if isinstance(size, int))
    if len(known) < len(sizes):
        raise UsageInvalid(
            f"{function}: sizes depend on its arguments; give all of them with --input, such as --input 8x16xf32, or "
            "every dynamic dimension with --dim"
        )
    return known


def _allocated(allocation: MemoryAllocation, sizes: Sequence[int]) -> int:
    return packed_bytes(allocation.values, sizes) if allocation.is_packed else sum(sizes)


# ---- without ops


def _without(function: FunctionMemory, removed: frozenset[OpId]) -> FunctionMemory:
    """A function without the values of some ops; what their sites read is needed as long as the values were.

    A result stays, since something must be returned: what it was made from becomes the result.
    """
    gone: dict[str, int] = {}
    returned: set[str] = set()
    for allocation in function.allocations:
        begin = _begin(allocation)
        for value in allocation.values:
            if _is_removed(value, removed):
                last = begin + value.last if allocation.is_packed else _end(allocation)
                for site in value.written_by:
                    gone[site] = max(gone.get(site, 0), last)
                    if allocation.resource == RESULT:
                        returned.add(site)
    return structs.replace(
        function, allocations=tuple(_allocation_without(own, removed, gone, returned) for own in function.allocations)
    )


def _is_removed(value: MemoryValue, removed: frozenset[OpId]) -> bool:
    return bool(value.ops) and set(value.ops) <= removed


def _allocation_without(
    allocation: MemoryAllocation, removed: frozenset[OpId], gone: Mapping[str, int], returned: set[str]
) -> MemoryAllocation:
    if allocation.resource == RESULT or not allocation.alive:
        return allocation
    begin = _begin(allocation)
    values = []
    for value in allocation.values:
        if _is_removed(value, removed) or (value.read_by and set(value.read_by) <= returned):
            continue
        last = max((gone[site] - begin for site in value.read_by if site in gone), default=value.last)
        values.append(structs.replace(value, last=max(value.last, last)))
    last = max((gone[site] for value in values for site in value.read_by if site in gone), default=0)
    if not allocation.is_packed and last > _end(allocation):
        alive = (*allocation.alive[:-1], structs.replace(allocation.alive[-1], last=last))
        return structs.replace(allocation, values=tuple(values), alive=alive)
    return structs.replace(allocation, values=tuple(values))


def ops_at_peak(use: MemoryUse) -> dict[OpId, int]:
    """The bytes of each op at the peak; ops that made a value together have equal parts."""
    found: dict[OpId, int] = {}
    for value in use.held:
        for op, size in zip(value.ops, _equal_parts(value.bytes, len(value.ops)), strict=True):
            found[op] = found.get(op, 0) + size
    return {op: found[op] for op in sort_ops(found)}


def _equal_parts(total: int, count: int) -> list[int]:
    return [total // count + (index < total % count) for index in range(count)] if count else []
