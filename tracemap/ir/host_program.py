"""The host program: its control flow, and the submissions to queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tracemap.core.locations import UNKNOWN_LOCATION, Location
from tracemap.core.units import UNKNOWN, Integer
from tracemap.ir.attributes import constant_of
from tracemap.ir.parsing import (
    MlirParser,
    Module,
    Operation,
    Value,
    nested,
    producer_of,
    reachable,
    string_attribute,
    symbol_path,
    walk,
)

# ---- host

INITIALIZER = "util.initializer"
"""Operation that runs once, when the module is loaded."""
CALL = "util.call"


def walk_hosts(module: Module) -> Iterator[tuple[str, Operation]]:
    """All operations of the host program, in order, with the symbol of their function ("" in initializers)."""
    for top in nested(module.operation):
        if top.name in ("util.func", INITIALIZER):
            function = string_attribute(top, "sym_name")  # initializers have none
            yield from ((function, operation) for operation in _walk_outside_dispatches(top))


def _walk_outside_dispatches(operation: Operation) -> Iterator[Operation]:
    yield operation
    if operation.name == "flow.dispatch.workgroups":
        return
    for child in nested(operation):
        yield from _walk_outside_dispatches(child)


def called_by_initializers(module: Module) -> frozenset[str]:
    """Functions that run only at load time: initializers call them, directly or not, and nothing else does."""
    tops = nested(module.operation)
    functions = {string_attribute(top, "sym_name"): top for top in tops if top.name == "util.func"}
    calls = defaultdict(tuple, {name: callees(function) for name, function in functions.items()})
    from_initializers = [callee for top in tops if top.name == INITIALIZER for callee in callees(top)]
    from_outside = [name for name, function in functions.items() if is_public(function)]
    called_on_demand = reachable(from_outside, calls.__getitem__)
    return frozenset(reachable(from_initializers, calls.__getitem__)) - called_on_demand


def callees(operation: Operation) -> tuple[str, ...]:
    """The functions that an operation and its nested operations call, in order."""
    return tuple(callee_of(op) for op in walk(operation) if op.name == CALL)


def callee_of(call: Operation) -> str:
    """Name of the called function."""
    return symbol_path(call.attributes["callee"])[0]


def global_of(access: Operation) -> str:
    """Name of the global that an operation loads, stores or takes the address of."""
    return symbol_path(access.attributes["global"])[-1]


def is_public(function: Operation) -> bool:
    """Whether a function can be called from outside the module."""
    return string_attribute(function, "sym_visibility") in ("", "public")


# ---- queues
#
# Queue submissions of the host program in the hal phase, and their possible orders.
#
# A function becomes a graph of points: a submission, a call, or an empty point where control flow splits or joins. The
# sequence of submissions in a run is a path through this graph.

_SUBMISSIONS = {
    "hal.device.queue.execute": "execute",
    "hal.device.queue.execute.indirect": "execute",
    "hal.device.queue.copy": "copy",
    "hal.device.queue.read": "copy",
    "hal.device.queue.write": "copy",
    "hal.device.queue.fill": "fill",
    "hal.device.queue.update": "update",
}
"""Submissions that do work. Allocations and releases of memory are omitted, since they do not help to find the path."""

_WAIT = "hal.fence.await"
_POINTS = frozenset({*_SUBMISSIONS, _WAIT, CALL})
"""Operations that become points."""

_BUFFER_TYPE = "!hal.command_buffer"
ENTRY, EXIT = 0, 1
"""The first two points of every function: its entry and its exit."""


@dataclass(frozen=True, slots=True)
class HalPoint:
    """A point of a function: `kind` is execute, copy, fill, update, call, or empty for a point without submission.

    `buffers`: ordinals of the command buffers that an execute may submit, sorted; `callee`: callee of a call; `length`:
    bytes of a transfer; `next`: possible successors; `waits`: the host waits for the device here. A point with several
    successors is a branch, and has the location of its operation.
    """

    kind: str = ""
    callee: str = ""
    buffers: tuple[int, ...] = ()
    length: Integer = UNKNOWN
    location: Location = UNKNOWN_LOCATION
    next: tuple[int, ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class HalFunction:
    """A function of the host program with its points."""

    name: str
    points: tuple[HalPoint, ...]


def read_queues(
    parser: MlirParser, module: Module, ordinal_of_create: Mapping[Operation, int]
) -> tuple[HalFunction, ...]:
    """The functions of the hal phase with a body; `ordinal_of_create`: ordinals of command buffer creations."""
    sources = _BufferSources(module, ordinal_of_create)
    tops = [top for top in nested(module.operation) if top.name == "util.func"]
    functions = [function for function in tops if any(len(region.blocks) for region in function.regions)]
    return tuple(_FunctionReader(parser, sources).read(function) for function in functions)


def _buffers_of(operation: Operation) -> list[Value]:
    """The operands that are command buffers."""
    return [value for value in operation.operands if str(value.type) == _BUFFER_TYPE]


class _FunctionReader:
    """Reader of a function. `_next`: successors by point, complete only after reading all operations."""

    def __init__(self, parser: MlirParser, sources: _BufferSources) -> None:
        self._parser = parser
        self._sources = sources
        self._points = [HalPoint(), HalPoint()]
        self._next: list[list[int]] = [[], []]

    def read(self, function: Operation) -> HalFunction:
        """Read a function: its blocks, connected by its branches."""
        self._regions(function, ENTRY, EXIT)
        points = zip(self._points, self._next, strict=True)
        linked = tuple(replace(point, next=tuple(dict.fromkeys(following))) for point, following in points)
        return HalFunction(string_attribute(function, "sym_name"), linked)

    def _regions(self, operation: Operation, entry: int, leave: int) -> None:
        for region in operation.regions:
            blocks = list(region.blocks)
            begins = {block: self._new(HalPoint()) for block in blocks}
            if blocks:
                self._next[entry].append(begins[blocks[0]])
            for block in blocks:
                end = begins[block]
                for child in block.operations:
                    end = self._operation(child.operation, end)
                # A block without successors ends the region with a return or yield.
                followers = list(dict.fromkeys(begins[follower] for follower in block.successors)) or [leave]
                if len(followers) > 1:
                    terminator = block.operations[len(block.operations) - 1].operation
                    end = self._after(end, HalPoint(location=self._parser.location(terminator)))
                self._next[end] += followers

    def _operation(self, operation: Operation, before: int) -> int:
        """Add an operation after the point `before`; returns the point after the operation."""
        if kind := _SUBMISSIONS.get(operation.name, ""):
            return self._after(before, self._submission(kind, operation))
        if operation.name == CALL:
            return self._after(before, HalPoint("call", callee_of(operation)))
        if operation.name == _WAIT:
            return self._after(before, HalPoint(waits=True))
        if not any(op.name in _POINTS for op in walk(operation)):
            return before
        # The regions may run in any order, any number of times, or not at all.
        hub = self._after(before, HalPoint(location=self._parser.location(operation)))
        self._regions(operation, hub, hub)
        return self._after(hub, HalPoint())

    def _submission(self, kind: str, operation: Operation) -> HalPoint:
        location = self._parser.location(operation)
        if kind == "execute":
            # Several if the program selects one at run time; sorted, so that equal programs have equal points.
            ordinals = sorted({ordinal for value in _buffers_of(operation) for ordinal in self._sources.of(value)})
            return HalPoint(kind, buffers=tuple(ordinals), location=location)
        lengths = [value for value in operation.operands if str(value.type) == "index"]
        return HalPoint(kind, length=constant(lengths[-1]) if lengths else UNKNOWN, location=location)

    def _after(self, before: int, point: HalPoint) -> int:
        number = self._new(point)
        self._next[before].append(number)
        return number

    def _new(self, point: HalPoint) -> int:
        self._points.append(point)
        self._next.append([])
        return len(self._points) - 1


class _BufferSources:
    """Traces a command buffer to its possible creations, through selects, branches, calls and globals."""

    def __init__(self, module: Module, ordinal_of_create: Mapping[Operation, int]) -> None:
        self._ordinals = ordinal_of_create
        self._stored: dict[str, list[Value]] = defaultdict(list)
        self._returned: dict[str, list[Value]] = defaultdict(list)
        for top in nested(module.operation):
            for operation in walk(top):
                if operation.name == "util.global.store":
                    self._stored[global_of(operation)] += _buffers_of(operation)
                elif operation.name == "util.return" and top.name == "util.func":
                    self._returned[string_attribute(top, "sym_name")] += _buffers_of(operation)

    def of(self, value: Value) -> set[int]:
        """The ordinals of all possible creations of a value."""
        producers = map(producer_of, reachable([value], self._sources))
        return {self._ordinals[producer] for producer in producers if producer in self._ordinals}

    def _sources(self, value: Value) -> Sequence[Value]:
        """The command buffers that a value may be: passed by branches to its block, or returned by its producer."""
        owner = producer_of(value)
        if owner is None:
            branches = [block.operations[len(block.operations) - 1] for block in value.owner.predecessors]
            return [buffer for branch in branches for buffer in _buffers_of(branch)]
        if owner in self._ordinals:
            return ()
        if owner.name == "util.global.load":
            return self._stored.get(global_of(owner), ())
        if owner.name == CALL:
            return self._returned.get(callee_of(owner), ())
        return _buffers_of(owner)


def constant(value: Value) -> Integer:
    """The number of a constant; unknown for other values."""
    owner = producer_of(value)
    return constant_of(owner) if owner is not None and owner.name == "arith.constant" else UNKNOWN
