"""The memory of a program: a bundle's `memory.json`, and what is allocated at each step.

It is a file of its own because only `tracemap memory` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from tracemap.core.codec import Count, Document, Record
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.map.model import OpId, TraceGraph

# ---- records

MEMORY_VERSION: Final = 3
"""Version of `memory.json`.

1: first; 2: `called` and `reading_ops`, constants in packed resources are values; 3: the ops with what they read.
"""


class MemoryValue(Record, frozen=True):
    """A value in memory: a slice of an allocation, or the whole.

    `size`: its bytes, or an expression of the program's arguments, such as `(* (dim 0 1) 4)`. `ops`: the ops whose
    results it holds. `written_by` and `read_by`: dispatch sites, in the order of the program. `reading_ops`: the ops in
    the latter that use it. `first` and `last`: the steps that need it, counted from the step at which its allocation is
    made, as the compiler numbers them.
    """

    size: Text
    ops: tuple[OpId, ...]
    written_by: tuple[str, ...]
    read_by: tuple[str, ...]
    reading_ops: tuple[OpId, ...]
    first: Count
    last: Count


class StepRange(Record, frozen=True):
    """The first and the last of some steps."""

    first: Count
    last: Count


class MemoryAllocation(Record, frozen=True):
    """Memory that a function holds; `alive`: the steps of each time that it is held.

    `resource`: transient, external (a result), variable, constant or staging; `is_packed`: its values are slices that
    share it; `is_carried`: it is the one of the previous trip of a loop; `is_kept`: a global of the module holds it.
    """

    resource: str
    values: tuple[MemoryValue, ...]
    alive: tuple[StepRange, ...]
    is_packed: bool = False
    is_carried: bool = False
    is_kept: bool = False


class MemoryStep(Record, frozen=True):
    """Commands that may run at the same time: dispatch sites, and the ops of copies and fills."""

    sites: tuple[str, ...]
    ops: tuple[OpId, ...] = ()


class FunctionMemory(Record, frozen=True):
    """The memory of a function, and its steps in the order of the text: a loop's body is there once.

    `called`: the function that has this memory, if it is not inlined and is called several times, or by a function with
    memory of its own; "" otherwise. The peak is then unknown.
    """

    function: str
    allocations: tuple[MemoryAllocation, ...]
    steps: tuple[MemoryStep, ...]
    called: str = ""


class MemoryOp(Record, frozen=True):
    """An op that a result needs, for the peak without other ops.

    `reads`: the ops whose results it uses, also through functions; `bytes`: the size of its first result. `instead`:
    the op whose result takes its place if it is removed, which its first operand of the same type is; "" for one of no
    op, such as an argument; unknown if there is none.
    """

    op: OpId
    reads: tuple[OpId, ...]
    bytes: Integer = UNKNOWN
    instead: Text = UNKNOWN


class MemoryPlan(Document, frozen=True, kw_only=True):
    """The memory of all functions, and of the initializers that run when the module is loaded, in order.

    `ops`: the ops on which results depend.
    """

    schema_version: Literal[3] = MEMORY_VERSION
    kind: Literal["memory-plan"] = "memory-plan"
    ops: tuple[MemoryOp, ...] = ()
    functions: tuple[FunctionMemory, ...] = ()
    initializers: tuple[FunctionMemory, ...] = ()


def check_memory(plan: MemoryPlan, graph: TraceGraph) -> None:
    """Reject a plan that names ops or sites that the map lacks, or steps that its function lacks.

    Raises:
        ValueError: it does.
    """
    for own in plan.ops:
        instead = (OpId.from_json(own.instead),) if isinstance(own.instead, str) and own.instead else ()
        _check_names((own.op, *own.reads, *instead), (), graph)
    functions = (*plan.functions, *plan.initializers)
    for function in functions:
        for step in function.steps:
            _check_names(step.ops, step.sites, graph)
        for steps in (steps for own in function.allocations for steps in own.alive):
            if not steps.first <= steps.last < len(function.steps):
                raise ValueError(f"{function.function} has no steps {steps.first} to {steps.last}")
    for allocation in (own for function in functions for own in function.allocations):
        for value in allocation.values:
            _check_names((*value.ops, *value.reading_ops), (*value.written_by, *value.read_by), graph)
            evaluate(value.size, lambda _argument, _index: 1)


def _check_names(ops: Sequence[OpId], sites: Sequence[str], graph: TraceGraph) -> None:
    for name in (*ops, *sites):
        if name not in graph.op_by_id and name not in graph.site_by_id:
            raise ValueError(f"it names {name}, which the map lacks")


# ---- lifetimes

RESULT: Final = "external"
"""The resource of results, which the caller gets."""


def needing_steps(allocation: MemoryAllocation, value: MemoryValue) -> Sequence[StepRange]:
    """The steps that need a value: all at which its allocation is held, or those of its slice."""
    if not allocation.is_packed or not allocation.alive:
        return allocation.alive
    begin, end = first_step(allocation), max(steps.last for steps in allocation.alive)
    first, last = begin + value.first, min(begin + value.last, end)
    return (StepRange(first, last),) if first <= last else ()


def first_step(allocation: MemoryAllocation) -> int:
    """The step at which an allocation is made, from which the lifetimes of its values are counted."""
    return allocation.alive[0].first if allocation.alive else 0


# ---- sizes


def evaluate(size: Text, dimension: Callable[[int, int], Integer]) -> Integer:
    """The number of bytes of an expression; `dimension(argument, index)` is a dimension, index -1 the value itself.

    `(dim A I)` is dimension I of argument A, `(arg A)` the value of argument A. Unknown if one of them is, or if no
    array can have this size.

    Raises:
        ValueError: it is no expression.
    """
    if not isinstance(size, str):
        return UNKNOWN
    tokens = size.replace("(", " ( ").replace(")", " ) ").split()
    try:
        value, end = _parsed(tokens, 0, dimension)
    except (ValueError, IndexError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{size!r} is no size") from error
    if end < len(tokens):
        raise ValueError(f"{size!r} is no size")
    return value if isinstance(value, int) and 0 <= value <= _MOST_BYTES else UNKNOWN


def _parsed(tokens: Sequence[str], at: int, dimension: Callable[[int, int], Integer]) -> tuple[Integer, int]:
    if tokens[at] != "(":
        return int(tokens[at]), at + 1
    operator, at = tokens[at + 1], at + 2
    parts: list[Integer] = []
    while tokens[at] != ")":
        part, at = _parsed(tokens, at, dimension)
        parts.append(part)
    known = [part for part in parts if isinstance(part, int)]
    if len(known) < len(parts):
        return UNKNOWN, at + 1
    if operator == "dim":
        return dimension(known[0], known[1]), at + 1
    if operator == "arg":
        return dimension(known[0], -1), at + 1
    try:
        return _OPERATORS[operator](*known), at + 1
    except ZeroDivisionError:
        return UNKNOWN, at + 1


_MOST_BYTES: Final = 1 << 56
"""Bytes that an address can have, on present processors."""
_OPERATORS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left // right,
    "ceildiv": lambda left, right: -(-left // right),
    "max": max,
    "min": min,
    "align": lambda value, alignment: -(-value // alignment) * alignment,
}

# ---- layout
#
# The layout of slices in an allocation, as IREE's LayoutSlices.cpp makes it: static slices by greedy strip packing,
# each in the smallest gap among those whose lifetimes it meets; then dynamic slices, which only share a place with
# others of the same size.

ALIGNMENT: Final = 64
"""The alignment of slices, in bytes, on all of IREE's host devices."""


def packed_bytes(values: Sequence[MemoryValue], sizes: Sequence[int]) -> int:
    """The size of an allocation that holds these values; `sizes`: the size of each."""
    static: list[tuple[MemoryValue, int]] = []
    dynamic: dict[str, list[tuple[MemoryValue, int]]] = {}
    for value, size in zip(values, sizes, strict=True):
        is_static = str(value.size).isdigit()
        (static if is_static else dynamic.setdefault(str(value.size), [])).append((value, size))
    end = _packed_static(static)
    for bucket in dynamic.values():
        end += _packed_equal(bucket)
    return end


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _packed_static(values: Sequence[tuple[MemoryValue, int]]) -> int:
    import numpy as np

    count = len(values)
    # Of the values that have a place, in the order of their places: begin and end there, first and last step.
    begin, end, first, last = (np.zeros(count, dtype=np.int64) for _ in range(4))
    for placed, (value, size) in enumerate(values):
        needed = _aligned(size)
        meets = (first[:placed] <= value.last) & (last[:placed] >= value.first)
        begins, ends = begin[:placed][meets], end[:placed][meets]
        free = np.concatenate(([0], np.maximum.accumulate(ends)))
        gaps = begins - free[:-1]
        fitting = np.flatnonzero(gaps >= needed)
        place = free[fitting[gaps[fitting].argmin()]] if len(fitting) else free[-1]
        index = int(np.searchsorted(begin[:placed], place))
        for column, own in zip(
            (begin, end, first, last), (place, place + needed, value.first, value.last), strict=True
        ):
            column[index + 1 : placed + 1] = column[index:placed].copy()
            column[index] = own
    return int(end.max(initial=0))


def _packed_equal(values: Sequence[tuple[MemoryValue, int]]) -> int:
    """The size of the places for values of one size."""
    places: list[list[MemoryValue]] = []
    for value, _ in sorted(values, key=lambda pair: (pair[0].first, pair[0].last)):
        place = next((place for place in places if not any(_meet(value, other) for other in place)), None)
        if place is None:
            places.append([value])
        else:
            place.append(value)
    return len(places) * _aligned(values[0][1])


def _meet(first: MemoryValue, second: MemoryValue) -> bool:
    return first.first <= second.last and second.first <= first.last
