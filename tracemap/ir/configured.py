"""Kernels before code generation: their text, and debug lines that are lines of that text.

After the phase `executable-configurations` a kernel is final in what it computes; what follows tiles, vectorises and
lowers it, and hands on the locations of its operations. So these are replaced here by places in the kernel's printed
text: the machine code's debug information then names one operation of the text for each instruction. What the
operations came from is read before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tracemap.ir.bindings import ir
from tracemap.ir.parsing import MlirParser, Module, Operation, is_file_place, nested, string_attribute, symbols_in
from tracemap.ir.positions import served
from tracemap.locations import Location
from tracemap.units import UNKNOWN, Integer

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
