"""The phases stream and hal as records: command buffers and their commands."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from tracemap.core.locations import Location
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown
from tracemap.ir.dispatch_bodies import BodyOp, read_body
from tracemap.ir.flow import DispatchRegion, FlowDispatch
from tracemap.ir.host_program import (
    INITIALIZER,
    HalFunction,
    called_by_initializers,
    constant,
    global_of,
    read_queues,
    walk_hosts,
)
from tracemap.ir.parsing import (
    SYMBOL,
    MlirParser,
    Module,
    Operation,
    nested,
    producer_of,
    string_attribute,
    symbol_path,
    symbols_in,
    walk,
)

# ---- stream
#
# The phase stream of iree-compile as typed records: the kernels that it adds to those of the flow phase, and their
# dispatches.
#
# These kernels convert operands to the layout of a tiled product (`_encoding_0_encode_…`), or fill buffers with values
# that the device's fill command does not support (`__builtin_splat_i64`).

_EXPORT = re.compile(rf"\bstream\.executable\.export (?:public |private )?{SYMBOL}")
_FUNCTION = re.compile(rf"^ *util\.func (?:public |private )?{SYMBOL}", re.MULTILINE)


def stream_kernels(text: str, known: Collection[str]) -> tuple[str, ...]:
    """The kernels in the text of a stream phase, in order, except the known ones."""
    return tuple(dict.fromkeys(name for name in symbols_in(text, _EXPORT) if name not in known))


def functions_of(text: str) -> frozenset[str]:
    """The host program's functions in a phase's text; empty if the text is in generic form."""
    return frozenset(symbols_in(text, _FUNCTION))


def read_stream_dispatches(
    parser: MlirParser, module: Module, kernels: Collection[str]
) -> tuple[tuple[FlowDispatch, DispatchRegion], ...]:
    """All dispatches of these kernels in phase 7, in order, with the kernel's body.

    The operations in a body get the location of the dispatch. Their own location is that of the compiler's template, or
    of the first dispatch that shares the kernel.
    """
    bodies = _bodies(parser, module, kernels)
    added = []
    for function, operation in walk_hosts(module):
        if operation.name == "stream.cmd.dispatch":
            kernel = symbol_path(operation.attributes["entry_points"])[-1]
            if kernel in kernels:
                location = parser.location(operation)
                body = tuple(replace(op, location=location) for op in bodies.get(kernel, ()))
                dispatch = FlowDispatch(function, location, kernel)
                added.append((dispatch, DispatchRegion(function, location, body, added=True)))
    return tuple(added)


def _bodies(parser: MlirParser, module: Module, kernels: Collection[str]) -> dict[str, tuple[BodyOp, ...]]:
    executables = [op for op in nested(module.operation) if op.name == "stream.executable"]
    functions = (op for executable in executables for op in walk(executable) if op.name == "func.func")
    named = ((string_attribute(function, "sym_name"), function) for function in functions)
    return {name: read_body(parser, function) for name, function in named if name in kernels}


# ---- hal


@dataclass(frozen=True, slots=True)
class HalCommand:
    """A command in a command buffer: its kind (dispatch, barrier, copy, fill, update), kernel, location and workgroups.

    `workgroups`: workgroup counts; unknown if they differ between variants for several backends. `export`: executable
    and ordinal, for a dispatch without a kernel name (before IREE 3.12). `length`: bytes of a copy, fill or update.
    """

    kind: str
    kernel: Text
    location: Location
    workgroups: tuple[Integer, ...]
    export: tuple[str, int] | Unknown = UNKNOWN
    length: Integer = UNKNOWN


@dataclass(frozen=True, slots=True)
class HalBuffer:
    """A command buffer creation of the hal phase, in program order.

    `function`: symbol of the enclosing function, empty in an initializer; `one_shot`: for a single submission.
    """

    function: str
    one_shot: bool
    commands: tuple[HalCommand, ...]


@dataclass(frozen=True, slots=True)
class HalProgram:
    """The hal phase: command buffers in order, functions that run only at load time, and queue submissions."""

    buffers: tuple[HalBuffer, ...]
    called_by_initializers: frozenset[str]
    functions: tuple[HalFunction, ...] = ()


def read_hal(parser: MlirParser, module: Module) -> HalProgram:
    """The command buffers of phase 11, in program order of their creation."""
    buffers: list[HalBuffer] = []
    ordinals: dict[Operation, int] = {}
    for function, operation in walk_hosts(module):
        if operation.name == "hal.command_buffer.create":
            ordinals[operation] = len(buffers)
            one_shot = "OneShot" in str(operation.attributes["modes"])
            buffers.append(HalBuffer(function, one_shot, _read_commands(parser, operation)))
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
    """The commands of a command buffer, in program order.

    A module for several backends has a dispatch per variant, in separate branches; they count as a single command.
    """
    # The users of a value are unordered; the traversal below yields them in program order, which is recording order.
    users = {use.owner.operation for use in create.results[0].uses if use.owner.operation.name in _COMMANDS}
    commands: list[HalCommand] = []
    previous: Operation = None
    function = create
    while function.name not in ("util.func", INITIALIZER):
        function = function.parent.operation
    for operation in walk(function):
        if operation not in users:
            continue
        command = _command(parser, operation)
        if previous is not None and _is_variant_of(previous, operation):
            # The runtime records only one variant, so they count once; counts that differ between backends are unknown.
            counts = zip(commands[-1].workgroups, command.workgroups, strict=True)
            workgroups = tuple(left if left == right else UNKNOWN for left, right in counts)
            commands[-1] = replace(commands[-1], workgroups=workgroups)
        else:
            commands.append(command)
            previous = operation
    return tuple(commands)


def _is_variant_of(first: Operation, second: Operation) -> bool:
    """Whether two dispatches are the same command for two backends: same location and export, but another branch."""
    if first.name != second.name or not first.name.startswith("hal.command_buffer.dispatch"):
        return False
    if first.location.attr != second.location.attr or first.block == second.block:
        return False
    first_symbol, second_symbol = _function_symbol(first), _function_symbol(second)
    return first_symbol[-1:] == second_symbol[-1:] and first_symbol != second_symbol


def _function_symbol(dispatch: Operation) -> tuple[str, ...]:
    lookup = producer_of(dispatch.operands[2])
    if lookup is None or lookup.name != "hal.executable.lookup.function":
        return ()
    paths = (symbol_path(lookup.attributes[name]) for name in lookup.attributes)
    return next(filter(None, paths), ())


def _command(parser: MlirParser, operation: Operation) -> HalCommand:
    kind, location = _COMMANDS[operation.name], parser.location(operation)
    if kind != "dispatch":
        sizes = [operand for operand in operation.operands if str(operand.type) == "index"]
        length = constant(sizes[-1]) if sizes and kind != "barrier" else UNKNOWN
        return HalCommand(kind, UNKNOWN, location, (), length=length)
    workgroups: tuple[Integer, ...] = (UNKNOWN, UNKNOWN, UNKNOWN)
    if operation.name == "hal.command_buffer.dispatch":
        workgroups = tuple(constant(operand) for operand in list(operation.operands)[3:6])
    if symbol := _function_symbol(operation):
        return HalCommand(kind, symbol[-1], location, workgroups)
    return HalCommand(kind, UNKNOWN, location, workgroups, _export(operation))


def _export(dispatch: Operation) -> tuple[str, int] | Unknown:
    """The global with a dispatch's executable, and the ordinal of the export in it."""
    executable, ordinal = list(dispatch.operands)[1:3]
    load, number = producer_of(executable), constant(ordinal)
    if load is None or load.name != "util.global.load" or number is UNKNOWN:
        return UNKNOWN
    return global_of(load), number
