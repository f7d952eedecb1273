"""Executables of a module: kernels before code generation, their dispatches, and replacements."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tracemap.ir.bodies import served
from tracemap.ir.numbers import Extent, HostValues, Number
from tracemap.ir.parsing import (
    Attribute,
    MlirParser,
    Module,
    Operation,
    ir,
    is_file_place,
    nested,
    operand_parts,
    string_attribute,
    symbol_path,
    symbols_in,
    walk,
)
from tracemap.locations import Location
from tracemap.units import UNKNOWN, Integer

# ---- rewriting
#
# Modules of another build of MLIR as bytecode of this compiler.


def own_bytecode(text: str) -> bytes:
    """The bytecode that this compiler writes for a module.

    Bytecode of another build is read wrongly where a dialect has changed since: attributes have other places in it. The
    text in generic form names each attribute, and keeps the locations of all operations, those in regions included.

    Args:
        text: the module in generic form, with locations.

    Raises:
        ModelInvalid: it does not parse.
    """
    written = io.BytesIO()
    MlirParser().parse(text, printed=True).operation.write_bytecode(written)
    return written.getvalue()


# ---- configured
#
# Kernels before code generation: their text, and debug lines that are lines of that text.
#
# After the phase `executable-configurations` a kernel is final in what it computes; what follows tiles, vectorises and
# lowers it, and hands on the locations of its operations. So these are replaced here by places in the kernel's printed
# text: the machine code's debug information then names one operation of the text for each instruction. What the
# operations came from is read before.


_LONGEST_CONSTANT = 16
"""Elements of a constant up to which a kernel's text shows them all."""


@dataclass(frozen=True, slots=True)
class LocatedStep:
    """A step of a kernel: the operation that begins on a line of its text, with where it came from.

    `locations` are those of the operation and of others on its line (the hidden body of a matrix product), as they
    were; of a position they are those of what it is worked out for. `parent` is the line of the operation in whose
    region it stands, `UNKNOWN` for those of the kernel itself; `takes` the lines there whose results it computes with,
    none for those of the kernel itself.
    """

    line: int
    op_name: str
    locations: tuple[Location, ...]
    parent: Integer
    takes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel's text, the file that debug information calls it by, and its steps in the order of their lines."""

    kernel: str
    file: str
    text: str
    steps: tuple[LocatedStep, ...]


class KernelNames:
    """Names of kernels' files: of the kernel's own letters, and no two alike even where case does not count."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def file_of(self, kernel: str) -> str:
        """A file name that no kernel has got yet."""
        letters = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in kernel)[:150]
        name, number = f"{letters.lstrip('.') or 'kernel'}.mlir", 1
        while name.lower() in self._taken:
            number += 1
            name = f"{letters.lstrip('.') or 'kernel'}.{number}.mlir"
        self._taken.add(name.lower())
        return name


def line_kernels(parser: MlirParser, module: Module) -> tuple[KernelText, ...]:
    """Print the kernels of a configured module, and change the locations of their operations to lines of that text.

    A kernel that is compiled for several targets has its text for the first one.

    Raises:
        ModelInvalid: a kernel's text does not parse again.
    """
    names = KernelNames()
    found: dict[str, KernelText] = {}
    for inner, function in _kernel_functions(module):
        kernel = string_attribute(function, "sym_name")
        if kernel not in found:
            found[kernel] = _line(parser, inner, function, kernel, names.file_of(kernel))
    return tuple(found.values())


def _kernel_functions(module: Module) -> Iterator[tuple[Operation, Operation]]:
    """The functions that executables export, each with the module that it stands in."""
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


def _line(parser: MlirParser, inner: Operation, function: Operation, kernel: str, file: str) -> KernelText:
    text = function.get_asm(use_local_scope=True, enable_debug_info=False, large_elements_limit=_LONGEST_CONSTANT)
    reread = parser.parse("\n".join((text, *_named_in(text, inner, {kernel}))), printed=True)
    steps: dict[int, LocatedStep] = {}
    line_of: dict[Operation, int] = {}
    for operation, line, column, parent in _placed(function, nested(reread.operation)[0]):
        # In pre-order, so that the first operation of a line is its outermost one.
        step = steps.get(line) or LocatedStep(line, operation.name, (), parent)
        locations = (parser.location(each) for each in served(parser, operation))
        taken = set() if parent is UNKNOWN else {*_taken(operation, line_of)} - {line}
        takes = {*step.takes, *(each for each in taken if steps[each].parent == parent)}
        steps[line] = replace(step, locations=(*step.locations, *locations), takes=tuple(sorted(takes)))
        operation.location = ir.Location.file(f"kernels/{file}", line, column, context=parser.context)
        line_of[operation] = line  # not before: the hash of an operation changes with its location
    # The file of the debug information is that of the module around.
    inner.location = ir.Location.file(f"kernels/{file}", 1, 1, context=parser.context)
    return KernelText(kernel, file, text.rstrip("\n") + "\n", tuple(steps[line] for line in sorted(steps)))


def _named_in(text: str, inner: Operation, known: set[str]) -> Iterator[str]:
    """The texts of what a function names besides itself: code of the model's own that it calls, with what that names.

    Without them its text is not valid. `known`: the names of those that are there already, to which these are added.
    """
    wanted = set(symbols_in(text)) - known
    known |= wanted
    for other in nested(inner) if wanted else ():
        if string_attribute(other, "sym_name") in wanted:
            more = other.get_asm(use_local_scope=True, enable_debug_info=False)
            yield more
            yield from _named_in(more, inner, known)


def _taken(operation: Operation, line_of: Mapping[Operation, int]) -> Iterator[int]:
    """The lines of what an operation computes with."""
    for operand in operation.operands:
        owner = getattr(operand.owner, "operation", operand.owner)
        if owner in line_of:
            yield line_of[owner]


def _placed(function: Operation, printed: Operation) -> Iterator[tuple[Operation, int, int, Integer]]:
    """The operations of a function in pre-order, each with line, column and the line of the one around it.

    `printed` is the function as its text was read again. What stands in the function itself has nothing around it.
    """
    root = function.operation
    waiting: list[tuple[Operation, Operation, int, int, Integer]] = [(root, printed, 1, 1, UNKNOWN)]
    while waiting:
        operation, again, line, column, parent = waiting.pop()
        place = again.location
        if is_file_place(place):
            line, column = place.start_line, place.start_col
        yield operation, line, column, parent
        # The text shows no hidden bodies, and leaves terminators out: these are on the line of what is around them.
        around = UNKNOWN if operation is root else line
        children = [(*pair, line, column, around) for pair in zip(nested(operation), nested(again), strict=True)]
        waiting.extend(reversed(children))


# ---- dispatches
#
# The dispatches of a bundle's configured module: which kernel each calls, and with which numbers.
#
# The host program of this phase is in the stream dialect. Its k-th `stream.cmd.dispatch` becomes the k-th dispatch
# command of the hal phase, so that sites are told by order. Sizes that depend on the program's arguments are computed
# from the extents of these, as far as the host program itself would compute them from nothing else.


_DISPATCH = "stream.cmd.dispatch"


@dataclass(frozen=True, slots=True)
class Binding:
    """A part of a buffer that a dispatch hands to its kernel: `length` bytes from `offset` on."""

    offset: int
    length: int
    access: str
    """`ro`, `wo` or `rw`, as the host program says."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A dispatch of the host program, in the order of the text.

    `target` are the names of the executable, of its variant and of the export, as symbols; `workload` and `constants`
    the numbers that it is given; `constant_types` how wide each is (`i32`). `stood_in`: how many of its numbers only a
    run tells, such as counters of loops and what was computed on the device; they are those of a first trip and of
    values that are 0 or true.
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
    """All dispatches of the host program, initializers included, in the order of the text.

    Args:
        module: `Bundle.configured()`, parsed.
        extent: what the extents of the entry points' arguments are.
    """
    values = HostValues(module, extent)
    hosts = (top for top in nested(module.operation) if top.name != "hal.executable")
    return tuple(
        _dispatch(operation, values) for top in hosts for operation in walk(top) if operation.name == _DISPATCH
    )


def _dispatch(operation: Operation, values: HostValues) -> Dispatch:
    # Between them stand the buffers and their sizes, which are no numbers of its own.
    given, constant, _, _, begins, sizes = operand_parts(operation)
    told = (given, constant, begins, sizes)
    workload, constants, offsets, lengths = ([values.of(each) for each in part] for part in told)
    accesses = [_access(each) for each in operation.attributes["resource_accesses"]]
    bindings = zip(_values(offsets), _values(lengths), accesses, strict=True)
    return Dispatch(
        symbol_path(operation.attributes["entry_points"][0]),
        _values(workload),
        _values(constants),
        tuple(str(each.type) for each in constant),
        tuple(Binding(*each) for each in bindings),
        sum(not number.told for number in (*workload, *constants, *offsets, *lengths)),
    )


def _values(numbers: Sequence[Number]) -> tuple[int, ...]:
    return tuple(number.value for number in numbers)


def _access(attribute: Attribute) -> str:
    """How a resource is accessed: bits of `IREE::Stream::ResourceAccessBitfield`, 1 reads and 2 writes."""
    return {1: "ro", 2: "wo"}.get(int(attribute.value), "rw")


# ---- executables
#
# Executables of a module, and of files that are to take their place: names, exports, stage.


_BACKEND = re.compile(r'#hal\.executable\.target<"([\w-]+)"')
_FORMAT = re.compile(r'#hal\.executable\.target<"[\w-]+", "([\w-]+)"')
_RESOURCE = "dense_resource<"
_DATA = "\n{-#"
"""What begins the data behind a module; in texts of a module line ends are written as escapes."""
_EXECUTABLES = ("hal.executable", "hal.executable.source")


@dataclass(frozen=True, slots=True)
class Executable:
    """An executable: its name, the exports by which it is called, the stage that its code is at.

    `stage` is `source` (loops have no tiles yet), `configuration` (they have) or `object` (they are in LLVM's dialect).
    `functions` are those that its code defines.
    """

    name: str
    exports: tuple[str, ...]
    functions: frozenset[str]
    stage: str
    operation: Operation


def executables_of(module: Module) -> Mapping[str, Executable]:
    """The executables of a module by name, in the order of the text."""
    found = (_executable(top) for top in nested(module.operation) if top.name in _EXECUTABLES)
    return {each.name: each for each in found}


def read_executables(parser: MlirParser, text: bytes) -> tuple[Module, Mapping[str, Executable]]:
    """The executables of a file as IREE dumps them, and the module that they live in.

    Raises:
        ModelInvalid: it does not parse.
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
    """What the code that an operation lies in is for, as the compiler names it; "" where nothing says it."""
    outer = operation.parent
    while outer is not None and outer.name != "hal.executable.variant":
        outer = outer.parent
    found = None if outer is None else _BACKEND.match(str(outer.attributes["target"]))
    return found[1] if found else ""


def formats_of(executable: Executable) -> frozenset[str]:
    """The formats of an executable's machine code, which name its architecture: `embedded-elf-x86_64`."""
    return frozenset(found[1] for target in _targets(executable.operation) if (found := _FORMAT.match(target)))


def _targets(executable: Operation) -> list[str]:
    return [str(inner.attributes["target"]) for inner in nested(executable) if inner.name == "hal.executable.variant"]


def backends_of(module: Module) -> frozenset[str]:
    """What the code of a module's executables is for, as the compiler names it: `llvm-cpu`, `rocm`, `vulkan-spirv`."""
    targets = [target for each in executables_of(module).values() for target in _targets(each.operation)]
    return frozenset(found[1] for target in targets if (found := _BACKEND.match(target)))


def executable_text(executable: Executable) -> str:
    """The text of an executable with its locations, as IREE takes it in place of the one of its name."""
    text: str = executable.operation.get_asm(enable_debug_info=True, use_local_scope=True)
    return text.replace("hal.executable private @", "hal.executable public @", 1) + "\n" + _resources(executable, text)


def _resources(executable: Executable, text: str) -> str:
    """The data of constants that a text refers to by name; it is printed behind a module that has no local scope."""
    if _RESOURCE not in text:
        return ""
    with executable.operation.context, executable.operation.location:
        module = ir.Module.create()
    module.body.append(executable.operation.clone())
    _, begin, data = module.operation.get_asm().rpartition(_DATA)
    return f"{begin}{data}".lstrip("\n") if begin else ""
