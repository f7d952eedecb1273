"""The hal phase of iree-compile as typed records: command buffers and their commands, and what functions submit.

A function becomes a graph of points: a submission to the device's queue, a call, or nothing (where control flow parts
and meets). What a run then shows, one submission after the other, is a way through this graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracemap.ir.host import INITIALIZER, called_by_initializers, walk_hosts
from tracemap.ir.parsing import MlirParser, Module, Operation, Value, nested, string_attribute, symbol_path, walk
from tracemap.locations import UNKNOWN_LOCATION, Location
from tracemap.units import UNKNOWN, Integer, Text


@dataclass(frozen=True, slots=True)
class HalCommand:
    """A command in a command buffer: kind (dispatch, barrier, copy, fill, update), its kernel, location, workgroups."""

    kind: str
    kernel: Text
    location: Location
    workgroups: tuple[Integer, ...]


@dataclass(frozen=True, slots=True)
class HalBuffer:
    """A command buffer creation of the hal phase, in the order of the text.

    `function`: the symbol of the enclosing function, empty in an initializer; `one_shot`: made for one submission.
    """

    function: str
    one_shot: bool
    commands: tuple[HalCommand, ...]


@dataclass(frozen=True, slots=True)
class HalProgram:
    """The hal phase: command buffers in order, the functions that initializers call, and what functions submit."""

    buffers: tuple[HalBuffer, ...]
    called_by_initializers: frozenset[str]
    functions: tuple[HalFunction, ...] = ()


def read_hal(parser: MlirParser, module: Module) -> HalProgram:
    """Command buffers of phase 11, in order of creation in the text."""
    buffers: list[HalBuffer] = []
    ordinals: dict[Operation, int] = {}
    for function, operation in walk_hosts(module):
        if operation.name == "hal.command_buffer.create":
            one_shot = "OneShot" in str(operation.attributes["modes"])
            commands = _read_commands(parser, operation)
            ordinals[operation] = len(buffers)
            buffers.append(HalBuffer(function, one_shot, commands))
    return HalProgram(tuple(buffers), called_by_initializers(module), read_queues(parser, module, ordinals))


_COMMANDS = {
    "hal.command_buffer.dispatch": "dispatch",
    "hal.command_buffer.dispatch.indirect": "dispatch",
    "hal.command_buffer.execution_barrier": "barrier",
    "hal.command_buffer.fill_buffer": "fill",
    "hal.command_buffer.copy_buffer": "copy",
    "hal.command_buffer.update_buffer": "update",
}


def _read_commands(parser: MlirParser, create: Operation) -> tuple[HalCommand, ...]:
    """The commands recorded into a buffer, in the order of the text.

    A module for several backends has one dispatch per variant, each in a branch of its own: one command.
    """
    # A buffer's users come in no order; the walk below gives them that of the text, in which they are recorded.
    users = {use.owner.operation for use in create.results[0].uses if use.owner.operation.name in _COMMANDS}
    commands: list[HalCommand] = []
    previous: Operation = None
    top = create
    while top.name not in ("util.func", INITIALIZER):
        top = top.parent.operation
    for operation in walk(top):
        if operation not in users:
            continue
        if previous is not None and _is_variant_of(previous, operation):
            continue  # the runtime records one of the variants only, so indices of commands count them once
        commands.append(_command(parser, operation))
        previous = operation
    return tuple(commands)


def _is_variant_of(first: Operation, second: Operation) -> bool:
    """Whether two dispatches are the same command for two backends: same place, same export, another branch."""
    if first.name != second.name or not first.name.startswith("hal.command_buffer.dispatch"):
        return False
    if first.location.attr != second.location.attr or first.block == second.block:
        return False
    one, other = _function_symbol(first), _function_symbol(second)
    return one[-1:] == other[-1:] and one != other


def _function_symbol(dispatch: Operation) -> tuple[str, ...]:
    lookup = getattr(dispatch.operands[2].owner, "operation", dispatch.operands[2].owner)
    if getattr(lookup, "name", "") != "hal.executable.lookup.function":
        return ()
    for attribute in lookup.attributes:
        value = lookup.attributes[attribute] if isinstance(attribute, str) else attribute.attr
        path = symbol_path(value)
        if path:
            return path
    return ()


def _command(parser: MlirParser, operation: Operation) -> HalCommand:
    kind = _COMMANDS[operation.name]
    if kind != "dispatch":
        return HalCommand(kind, UNKNOWN, parser.location(operation), ())
    symbol = _function_symbol(operation)
    workgroups: tuple[Integer, ...] = (UNKNOWN, UNKNOWN, UNKNOWN)
    if operation.name == "hal.command_buffer.dispatch":
        workgroups = tuple(constant(operand) for operand in list(operation.operands)[3:6])
    return HalCommand(kind, symbol[-1] if symbol else UNKNOWN, parser.location(operation), workgroups)


_SUBMISSIONS = {
    "hal.device.queue.execute": "execute",
    "hal.device.queue.execute.indirect": "execute",
    "hal.device.queue.copy": "copy",
    "hal.device.queue.read": "copy",
    "hal.device.queue.write": "copy",
    "hal.device.queue.fill": "fill",
    "hal.device.queue.update": "update",
}
"""Submissions that do work; those that allocate and release memory tell no more about the way than these."""

_BUFFER_TYPE = "!hal.command_buffer"
ENTRY, EXIT = 0, 1
"""The first points of every function: where it begins, and where it returns."""


@dataclass(frozen=True, slots=True)
class HalPoint:
    """A point of a function: `kind` is execute, copy, fill, update, call, or empty where nothing is submitted.

    `buffers`: ordinals of the command buffers that an execute may be given, in order; `callee`: of a call; `length`:
    bytes of a transfer; `next`: the points that may follow.
    """

    kind: str = ""
    callee: str = ""
    buffers: tuple[int, ...] = ()
    length: Integer = UNKNOWN
    location: Location = UNKNOWN_LOCATION
    next: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HalFunction:
    """A function of the host program with its points."""

    name: str
    points: tuple[HalPoint, ...]


def read_queues(
    parser: MlirParser, module: Module, ordinal_of_create: Mapping[Operation, int]
) -> tuple[HalFunction, ...]:
    """The functions of the hal phase that have a body; `ordinal_of_create` numbers the command buffers' creations."""
    sources = _BufferSources(module, ordinal_of_create)
    functions = [op for op in nested(module.operation) if op.name == "util.func" and nested(op)]
    return tuple(_FunctionReader(parser, sources).read(function) for function in functions)


class _FunctionReader:
    """Reads one function. `_next`: of each point those that may follow, which are not known before all are read."""

    def __init__(self, parser: MlirParser, sources: _BufferSources) -> None:
        self._parser = parser
        self._sources = sources
        self._points = [HalPoint(), HalPoint()]
        self._next: list[list[int]] = [[], []]

    def read(self, function: Operation) -> HalFunction:
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
                # A block that branches nowhere ends the region, by a return or a yield.
                followers = [begins[follower] for follower in block.successors]
                self._next[end] += followers or [leave]

    def _operation(self, operation: Operation, before: int) -> int:
        """The point after an operation that is reached from the point `before`."""
        kind = _SUBMISSIONS.get(operation.name, "")
        if kind:
            return self._after(before, self._submission(kind, operation))
        if operation.name == "util.call":
            callee = symbol_path(operation.attributes["callee"])[0]
            return self._after(before, HalPoint("call", callee))
        if any(each.name in _SUBMISSIONS or each.name == "util.call" for each in walk(operation)):
            return self._structured(operation, before)
        return before

    def _structured(self, operation: Operation, before: int) -> int:
        """An operation with regions: they may run in any order, any number of times, or not at all."""
        hub = self._after(before, HalPoint())
        self._regions(operation, hub, hub)
        return self._after(hub, HalPoint())

    def _submission(self, kind: str, operation: Operation) -> HalPoint:
        location = self._parser.location(operation)
        if kind == "execute":
            # Several where the program chooses one at run time; in order, so that equal programs have equal points.
            ordinals = sorted({ordinal for value in _buffers_in(operation) for ordinal in self._sources.of(value)})
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
    """Which creations a command buffer's value may come from: through selects, branches, calls and globals."""

    def __init__(self, module: Module, ordinal_of_create: Mapping[Operation, int]) -> None:
        self._ordinals = ordinal_of_create
        self._stored: dict[str, list[Value]] = {}
        self._returned: dict[str, list[Value]] = {}
        for top in nested(module.operation):
            for operation in walk(top):
                if operation.name == "util.global.store":
                    name = symbol_path(operation.attributes["global"])[0]
                    self._stored.setdefault(name, []).extend(_buffers_in(operation))
                elif operation.name == "util.return" and top.name == "util.func":
                    name = string_attribute(top, "sym_name")
                    self._returned.setdefault(name, []).extend(_buffers_in(operation))

    def of(self, value: Value) -> set[int]:
        found: set[int] = set()
        seen: set[Value] = set()
        waiting = [value]
        while waiting:
            current = waiting.pop()
            if current in seen:
                continue
            seen.add(current)
            owner = getattr(current.owner, "operation", None)
            if owner is not None and owner in self._ordinals:
                found.add(self._ordinals[owner])
            else:
                waiting += self._before(current) if owner is None else self._behind(owner)
        return found

    @staticmethod
    def _before(argument: Value) -> Sequence[Value]:
        """What the branches to an argument's block hand over."""
        branches = [block.operations[len(block.operations) - 1] for block in argument.owner.predecessors]
        return [value for branch in branches for value in _buffers_in(branch)]

    def _behind(self, owner: Operation) -> Sequence[Value]:
        """What an operation's result is one of."""
        if owner.name == "util.global.load":
            return self._stored.get(symbol_path(owner.attributes["global"])[0], [])
        if owner.name == "util.call":
            return self._returned.get(symbol_path(owner.attributes["callee"])[0], [])
        return _buffers_in(owner)


def _buffers_in(operation: Operation) -> list[Value]:
    return [value for value in operation.operands if str(value.type) == _BUFFER_TYPE]


def constant(value: Value) -> Integer:
    """The number that a value is, if it is a constant."""
    owner = getattr(value.owner, "operation", value.owner)
    if getattr(owner, "name", "") != "arith.constant":
        return UNKNOWN
    return int(owner.attributes["value"].value)
