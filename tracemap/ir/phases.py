"""Phase dumps of iree-compile (`--dump-compilation-phases-to`) as typed records.

Read are three phases: dispatch-creation, where each call site still has a body of its own; flow, where bodies are
outlined and equal ones merged, so that sites name kernels; and hal, where sites are commands of command buffers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tracemap.ir.bodies import BodyOp, read_body
from tracemap.ir.parsing import (
    Attribute,
    MlirParser,
    Module,
    Operation,
    nested,
    string_attribute,
    symbol_path,
    walk,
)
from tracemap.ir.queues import HalFunction, constant, read_queues
from tracemap.locations import Location
from tracemap.units import UNKNOWN, Integer, Text

INITIALIZER = "util.initializer"


@dataclass(frozen=True, slots=True)
class DispatchRegion:
    """A call site with its body, in the dispatch-creation phase. `function` is empty in initializers."""

    function: str
    location: Location
    body: tuple[BodyOp, ...]


@dataclass(frozen=True, slots=True)
class FlowDispatch:
    """A call site in the flow phase: the kernel that it calls. `function` is empty in initializers."""

    function: str
    location: Location
    kernel: str


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A function of the host program: whether it is public, whom it calls, and its declared arguments.

    `arguments` are printed types of tensors and scalars; empty and `declared` False where the function does not say.
    """

    name: str
    public: bool
    calls: tuple[str, ...]
    arguments: tuple[str, ...]
    declared: bool


@dataclass(frozen=True, slots=True)
class HostOp:
    """An operation of the host program in the flow phase that is no dispatch. `function` is empty in initializers."""

    function: str
    name: str
    location: Location


@dataclass(frozen=True, slots=True)
class FlowProgram:
    """The flow phase: kernels, call sites and other host operations in order, functions, and what initializers call."""

    kernels: tuple[str, ...]
    dispatches: tuple[FlowDispatch, ...]
    host_ops: tuple[HostOp, ...]
    functions: tuple[HostFunction, ...]
    called_by_initializers: frozenset[str]


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


def read_dispatch_creation(parser: MlirParser, module: Module) -> tuple[DispatchRegion, ...]:
    """Call sites of phase 5, in order."""
    return tuple(
        DispatchRegion(function, parser.location(operation), read_body(parser, operation))
        for function, operation in _walk_hosts(module)
        if operation.name == "flow.dispatch.workgroups"
    )


def read_flow(parser: MlirParser, module: Module) -> FlowProgram:
    """Kernels, call sites and functions of phase 6, in order."""
    kernels: list[str] = []
    for executable in nested(module.operation):
        if executable.name == "flow.executable":
            exports = (op for op in nested(executable) if op.name == "flow.executable.export")
            kernels += [string_attribute(export, "sym_name") for export in exports]
    # In the order of the text: the i-th dispatch here is the i-th region of the phase before (`sites.pair_bodies`).
    dispatches: list[FlowDispatch] = []
    host_ops: list[HostOp] = []
    for function, operation in _walk_hosts(module):
        location = parser.location(operation)
        if operation.name == "flow.dispatch":
            dispatches.append(FlowDispatch(function, location, symbol_path(_entry_points(operation))[-1]))
        else:
            host_ops.append(HostOp(function, operation.name, location))
    functions = [_host_function(op) for op in nested(module.operation) if op.name == "util.func"]
    return FlowProgram(
        tuple(kernels), tuple(dispatches), tuple(host_ops), tuple(functions), _called_by_initializers(module)
    )


def read_hal(parser: MlirParser, module: Module) -> HalProgram:
    """Command buffers of phase 11, in order of creation in the text."""
    buffers: list[HalBuffer] = []
    ordinals: dict[Operation, int] = {}
    for function, operation in _walk_hosts(module):
        if operation.name == "hal.command_buffer.create":
            one_shot = "OneShot" in str(operation.attributes["modes"])
            commands = _read_commands(parser, operation)
            ordinals[operation] = len(buffers)
            buffers.append(HalBuffer(function, one_shot, commands))
    return HalProgram(tuple(buffers), _called_by_initializers(module), read_queues(parser, module, ordinals))


def _walk_hosts(module: Module) -> Iterator[tuple[str, Operation]]:
    """All operations of the host program with the symbol of their function ("" in initializers), in order."""
    for top in nested(module.operation):
        if top.name == "util.func":
            function = string_attribute(top, "sym_name")
            yield from ((function, operation) for operation in _walk_outside_dispatches(top))
        elif top.name == INITIALIZER:
            yield from (("", operation) for operation in _walk_outside_dispatches(top))


def _walk_outside_dispatches(operation: Operation) -> Iterator[Operation]:
    yield operation
    if operation.name == "flow.dispatch.workgroups":
        return
    for child in nested(operation):
        yield from _walk_outside_dispatches(child)


def _called_by_initializers(module: Module) -> frozenset[str]:
    """Functions that only run at load: called from initializers, directly or not, and from nowhere else."""
    from_initializers: set[str] = set()
    calls: dict[str, set[str]] = {}
    for top in nested(module.operation):
        if top.name not in ("util.func", INITIALIZER):
            continue
        callees = {symbol_path(op.attributes["callee"])[0] for op in walk(top) if op.name == "util.call"}
        if top.name == INITIALIZER:
            from_initializers |= callees
        else:
            calls[string_attribute(top, "sym_name")] = callees
    return frozenset(_closure(from_initializers, calls) - _closure(_public(module), calls))


def _public(module: Module) -> set[str]:
    functions = (op for op in nested(module.operation) if op.name == "util.func")
    return {string_attribute(op, "sym_name") for op in functions if _is_public(op)}


def _is_public(function: Operation) -> bool:
    return string_attribute(function, "sym_visibility") in ("", "public")


def _closure(start: set[str], calls: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    stack = list(start)
    while stack:
        function = stack.pop()
        if function not in reached:
            reached.add(function)
            stack += calls.get(function, ())
    return reached


def _entry_points(dispatch: Operation) -> Attribute:
    """The symbol references of a `flow.dispatch`: one per variant, of the same export name."""
    return dispatch.attributes["entry_points"]


_DECLARED_ARGUMENT = re.compile(r"%\w+: ")


def _host_function(function: Operation) -> HostFunction:
    declaration = ""
    if "iree.reflection" in function.attributes:
        reflection = function.attributes["iree.reflection"]
        if "iree.abi.declaration" in reflection:
            declaration = reflection["iree.abi.declaration"].value
    arguments = _declared_arguments(declaration) if declaration else _imported_arguments(function)
    return HostFunction(
        name=string_attribute(function, "sym_name"),
        public=_is_public(function),
        calls=tuple(symbol_path(op.attributes["callee"])[0] for op in walk(function) if op.name == "util.call"),
        arguments=arguments,
        declared=bool(declaration) or bool(arguments),
    )


def _declared_arguments(declaration: str) -> tuple[str, ...]:
    """Argument types of `sync func @f(%input0: tensor<2xf32>, %input1: i32) -> (…)`."""
    begin = declaration.find("(")
    end = declaration.rfind(") -> ")
    inside = declaration[begin + 1 : end if end > 0 else declaration.rfind(")")]
    starts = list(_DECLARED_ARGUMENT.finditer(inside))
    ends = [*(match.start() for match in starts[1:]), len(inside)][: len(starts)]
    return tuple(
        inside[match.end() : stop].split(" {", 1)[0].rstrip(" ,") for match, stop in zip(starts, ends, strict=True)
    )


def _imported_arguments(function: Operation) -> tuple[str, ...]:
    """Argument types as the function imports its buffer views; fences (of asynchronous functions) are left out."""
    types: list[str] = []
    if not len(function.regions) or not len(function.regions[0].blocks):
        return ()
    for value in function.regions[0].blocks[0].arguments:
        if "hal.fence" in str(value.type):
            continue
        imports = [use.owner.operation for use in value.uses if use.owner.operation.name == "hal.tensor.import"]
        types.append(str(imports[0].results[0].type) if imports else str(value.type))
    return tuple(types)


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
    for operation in _enclosing_function_ops(create):
        if operation not in users:
            continue
        if previous is not None and _is_variant_of(previous, operation):
            continue  # the runtime records one of the variants only, so indices of commands count them once
        commands.append(_command(parser, operation))
        previous = operation
    return tuple(commands)


def _enclosing_function_ops(operation: Operation) -> Iterator[Operation]:
    top = operation
    while top.name not in ("util.func", INITIALIZER):
        top = top.parent.operation
    return walk(top)


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
