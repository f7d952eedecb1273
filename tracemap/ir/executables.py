"""Executables of a module: kernels before code generation, dispatches, and replacement executables."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tracemap.core.locations import Location
from tracemap.core.units import UNKNOWN, Integer
from tracemap.ir.dispatch_bodies import users_of_index
from tracemap.ir.host_constants import Extent, HostValues, Number
from tracemap.ir.parsing import (
    MlirParser,
    Module,
    Operation,
    ir,
    is_file_location,
    nested,
    operand_segments,
    print_without_locations,
    string_attribute,
    symbol_path,
    symbols_in,
    walk,
)

# ---- bytecode


def rewrite_as_own_bytecode(text: str) -> bytes:
    """Convert a module to bytecode of this compiler.

    Bytecode of another build is misread if a dialect has changed since, because its attributes are stored by position.
    Text in generic form names all attributes, and keeps the locations of all operations, also in regions.

    Args:
        text: the module in generic form, with locations.

    Raises:
        ModelInvalid: the text does not parse.
    """
    bytecode = io.BytesIO()
    MlirParser().parse(text, printed=True).operation.write_bytecode(bytecode)
    return bytecode.getvalue()


# ---- configured
#
# Kernels before code generation: their text, with debug locations that are lines of this text.
#
# After the phase `executable-configurations`, later phases only tile, vectorize and lower a kernel, and preserve the
# locations of its operations. So these locations are replaced by lines of the kernel's printed text. The debug
# information of the machine code then maps instructions to operations of the text. The original locations are read
# first.

_MAX_CONSTANT_ELEMENTS = 16
"""Larger constants are elided in a kernel's text."""


@dataclass(frozen=True, slots=True)
class LocatedStep:
    """A line of kernel IR: the operation that begins there, with its original locations.

    Attributes:
        locations: of the operation and of others on its line, such as the hidden body of a matrix product. An index
            computation has the locations of the operations that use the index.
        parent: line of the enclosing operation; `UNKNOWN` at the top level of the kernel.
        takes: lines in the same region whose results it uses; empty at the top level of the kernel.
    """

    line: int
    op_name: str
    locations: tuple[Location, ...]
    parent: Integer
    takes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel's text, its file name in debug information, its steps in line order, and its executable's name."""

    kernel: str
    file: str
    text: str
    steps: tuple[LocatedStep, ...]
    executable: str


class KernelNames:
    """File names of kernels, made of safe characters and unique even if case is ignored."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def file_of(self, kernel: str) -> str:
        """A new, unique file name for a kernel."""
        letters = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in kernel)[:150]
        name, number = f"{letters.lstrip('.') or 'kernel'}.mlir", 1
        while name.lower() in self._taken:
            number += 1
            name = f"{letters.lstrip('.') or 'kernel'}.{number}.mlir"
        self._taken.add(name.lower())
        return name


def set_line_locations(parser: MlirParser, module: Module) -> tuple[KernelText, ...]:
    """Print the kernels of a configured module, and set the locations of their operations to lines of this text.

    For a kernel that is compiled for several targets, the text is that of the first target.

    Args:
        parser: reads the kernels' texts again; the module may have another context.
        module: the module, or its operation.

    Raises:
        ModelInvalid: the text of a kernel does not parse.
    """
    names = KernelNames()
    texts: dict[str, KernelText] = {}
    for inner, function in kernel_functions(module):
        kernel = string_attribute(function, "sym_name")
        if kernel not in texts:
            texts[kernel] = _line_kernel(parser, inner, function, kernel, names.file_of(kernel))
    return tuple(texts.values())


def kernel_functions(module: Module) -> Iterator[tuple[Operation, Operation]]:
    """The functions that executables export, with their enclosing modules (module first)."""
    for executable in nested(module.operation):
        if executable.name != "hal.executable":
            continue
        for variant in nested(executable):
            inside = nested(variant)
            exports = {string_attribute(op, "sym_name") for op in inside if op.name == "hal.executable.export"}
            for inner in inside:
                if inner.name == "builtin.module":
                    for function in nested(inner):
                        if string_attribute(function, "sym_name") in exports:
                            yield inner, function


def _line_kernel(parser: MlirParser, inner: Operation, function: Operation, kernel: str, file: str) -> KernelText:
    text = print_without_locations(function, max_elements=_MAX_CONSTANT_ELEMENTS)
    reread = parser.parse("\n".join((text, *_referenced_texts(text, inner, {kernel}))), printed=True)
    steps: dict[int, LocatedStep] = {}
    line_of: dict[Operation, int] = {}
    for operation, line, column, parent in _with_positions(function, nested(reread.operation)[0]):
        # In pre-order, so the first operation of a line is its outermost one.
        step = steps.get(line) or LocatedStep(line, operation.name, (), parent)
        locations = (parser.location(user) for user in users_of_index(parser, operation))
        inputs = set() if parent is UNKNOWN else {*_input_lines(operation, line_of)} - {line}
        takes = {*step.takes, *(input_line for input_line in inputs if steps[input_line].parent == parent)}
        steps[line] = replace(step, locations=(*step.locations, *locations), takes=tuple(sorted(takes)))
        operation.location = ir.Location.file(f"kernels/{file}", line, column, context=function.context)
        line_of[operation] = line  # last, because the hash of an operation changes with its location
    # The enclosing module's location decides the file in the debug information.
    inner.location = ir.Location.file(f"kernels/{file}", 1, 1, context=function.context)
    executable = string_attribute(inner.parent.parent, "sym_name")
    return KernelText(kernel, file, text.rstrip("\n") + "\n", tuple(steps[line] for line in sorted(steps)), executable)


def _referenced_texts(text: str, inner: Operation, known: set[str]) -> Iterator[str]:
    """The texts of functions that a function references, directly or not: code that the model itself brings.

    Without them the function's text is not valid. `known`: names that are present already; gets the new names.
    """
    missing = set(symbols_in(text)) - known
    known |= missing
    for other in nested(inner) if missing else ():
        if string_attribute(other, "sym_name") in missing:
            referenced = print_without_locations(other)
            yield referenced
            yield from _referenced_texts(referenced, inner, known)


def _input_lines(operation: Operation, line_of: Mapping[Operation, int]) -> Iterator[int]:
    """The lines of the operations that define an operation's operands."""
    for operand in operation.operands:
        owner = getattr(operand.owner, "operation", operand.owner)
        if owner in line_of:
            yield line_of[owner]


def _with_positions(function: Operation, printed: Operation) -> Iterator[tuple[Operation, int, int, Integer]]:
    """The operations of a function in pre-order, with line, column and the line of the enclosing operation.

    `printed` is the function parsed from its own text. Top-level operations have no enclosing line (`UNKNOWN`).
    """
    root = function.operation
    stack: list[tuple[Operation, Operation, int, int, Integer]] = [(root, printed, 1, 1, UNKNOWN)]
    while stack:
        operation, printed_operation, line, column, parent = stack.pop()
        location = printed_operation.location
        if is_file_location(location):
            line, column = location.start_line, location.start_col
        yield operation, line, column, parent
        # The text omits hidden bodies and terminators; these get the line of the enclosing operation.
        enclosing = UNKNOWN if operation is root else line
        pairs = zip(nested(operation), nested(printed_operation), strict=True)
        children = [(*pair, line, column, enclosing) for pair in pairs]
        stack.extend(reversed(children))


# ---- dispatches
#
# The dispatches of a bundle's configured module: kernels, workloads, push constants and bindings.
#
# The host program of this phase is in the stream dialect. Its k-th `stream.cmd.dispatch` becomes the k-th dispatch
# command of the hal phase, so dispatch sites are identified by order. Sizes that depend on the program's arguments are
# computed from their extents, if the host program computes them from nothing else.

_DISPATCH = "stream.cmd.dispatch"


@dataclass(frozen=True, slots=True)
class Binding:
    """A part of a buffer that a dispatch passes to its kernel: `length` bytes from `offset`."""

    offset: int
    length: int
    access: str
    """`ro`, `wo` or `rw`, as declared by the host program."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A dispatch of the host program, in program order.

    Attributes:
        target: symbol names of executable, variant and export.
        workload: workload numbers.
        constants: push constants.
        constant_types: types of the push constants (`i32`).
        stood_in: number of its numbers that are unknown without a run, such as loop counters and results of the device.
            They are replaced by the values of a first loop iteration, and by 0 or true.
    """

    target: tuple[str, ...]
    workload: tuple[int, ...]
    constants: tuple[int, ...]
    constant_types: tuple[str, ...]
    bindings: tuple[Binding, ...]
    stood_in: int

    @property
    def kernel(self) -> str:
        """The name of the export."""
        return self.target[-1]


def read_dispatches(module: Module, extent: Extent) -> tuple[Dispatch, ...]:
    """All dispatches of the host program, including initializers, in program order.

    Args:
        module: `Bundle.configured()`, parsed.
        extent: the extents of the entry points' arguments.
    """
    values = HostValues(module, extent)
    hosts = (top for top in nested(module.operation) if top.name != "hal.executable")
    return tuple(
        _dispatch(operation, values) for top in hosts for operation in walk(top) if operation.name == _DISPATCH
    )


def _dispatch(operation: Operation, values: HostValues) -> Dispatch:
    # The omitted segments are the buffers and their sizes.
    workload_operands, constant_operands, _, _, begins, sizes = operand_segments(operation)
    segments = (workload_operands, constant_operands, begins, sizes)
    workload, constants, offsets, lengths = ([values.of(operand) for operand in segment] for segment in segments)
    accesses = [_ACCESSES.get(int(attribute.value), "rw") for attribute in operation.attributes["resource_accesses"]]
    bindings = zip(_values(offsets), _values(lengths), accesses, strict=True)
    return Dispatch(
        symbol_path(operation.attributes["entry_points"][0]),
        _values(workload),
        _values(constants),
        tuple(str(operand.type) for operand in constant_operands),
        tuple(Binding(*binding) for binding in bindings),
        sum(not number.told for number in (*workload, *constants, *offsets, *lengths)),
    )


_ACCESSES = {1: "ro", 2: "wo"}
"""Access modes by `IREE::Stream::ResourceAccessBitfield`: bit 1 reads, bit 2 writes."""


def _values(numbers: Sequence[Number]) -> tuple[int, ...]:
    return tuple(number.value for number in numbers)


# ---- executables

_BACKEND = re.compile(r'#hal\.executable\.target<"([\w-]+)"')
_FORMAT = re.compile(r'#hal\.executable\.target<"[\w-]+", "([\w-]+)"')
_RESOURCE = "dense_resource<"
_DATA = "\n{-#"
"""Start of the resource data after a module. It cannot occur within the module, where newlines are escaped."""
_EXECUTABLES = ("hal.executable", "hal.executable.source")


@dataclass(frozen=True, slots=True)
class Executable:
    """An executable: its name, its exported entry points, and the stage of its code.

    `stage`: `source` (not tiled yet), `configuration` (with tile sizes) or `object` (in the LLVM dialect). `functions`:
    names of the functions that its code defines.
    """

    name: str
    exports: tuple[str, ...]
    functions: frozenset[str]
    stage: str
    operation: Operation


def executables_of(module: Module) -> Mapping[str, Executable]:
    """The executables of a module by name, in program order."""
    executables = (_executable(top) for top in nested(module.operation) if top.name in _EXECUTABLES)
    return {executable.name: executable for executable in executables}


def read_executables(parser: MlirParser, text: bytes) -> tuple[Module, Mapping[str, Executable]]:
    """The executables of a file in IREE's dump format, and the module that keeps them alive.

    Raises:
        ModelInvalid: the text does not parse.
    """
    module = parser.parse(text)
    return module, executables_of(module)


def _executable(operation: Operation) -> Executable:
    exports: dict[str, None] = {}
    functions, stage = set(), "source"
    for inner in walk(operation):
        if inner.name == "hal.executable.export":
            exports[string_attribute(inner, "sym_name")] = None
        elif inner.name in ("func.func", "llvm.func"):
            if any(list(region.blocks) for region in inner.regions):
                functions.add(string_attribute(inner, "sym_name"))
            if inner.name == "llvm.func":
                stage = "object"
            elif "translation_info" in inner.attributes and stage == "source":
                stage = "configuration"
    return Executable(string_attribute(operation, "sym_name"), tuple(exports), frozenset(functions), stage, operation)


def backend_of(operation: Operation) -> str:
    """The compiler's name of the backend of the code around an operation; "" if there is none."""
    outer = operation.parent
    while outer is not None and outer.name != "hal.executable.variant":
        outer = outer.parent
    match = None if outer is None else _BACKEND.match(str(outer.attributes["target"]))
    return match[1] if match else ""


def formats_of(executable: Executable) -> frozenset[str]:
    """The formats of an executable's machine code, with its architecture: `embedded-elf-x86_64`."""
    return frozenset(match[1] for target in _targets(executable.operation) if (match := _FORMAT.match(target)))


def _targets(executable: Operation) -> list[str]:
    return [str(inner.attributes["target"]) for inner in nested(executable) if inner.name == "hal.executable.variant"]


def backends_of(module: Module) -> frozenset[str]:
    """The backends of a module's executables, as the compiler names them: `llvm-cpu`, `rocm`, `vulkan-spirv`."""
    executables = executables_of(module).values()
    targets = [target for executable in executables for target in _targets(executable.operation)]
    return frozenset(match[1] for target in targets if (match := _BACKEND.match(target)))


def executable_text(executable: Executable) -> str:
    """The text of an executable with its locations, in the form that IREE accepts as a replacement."""
    text: str = executable.operation.get_asm(enable_debug_info=True, use_local_scope=True)
    return text.replace("hal.executable private @", "hal.executable public @", 1) + "\n" + _resources(executable, text)


def _resources(executable: Executable, text: str) -> str:
    """The data of resource constants that a text refers to; MLIR prints it only after a whole module."""
    if _RESOURCE not in text:
        return ""
    with executable.operation.context, executable.operation.location:
        module = ir.Module.create()
    module.body.append(executable.operation.clone())
    _, begin, data = module.operation.get_asm().rpartition(_DATA)
    return f"{begin}{data}".lstrip("\n") if begin else ""
