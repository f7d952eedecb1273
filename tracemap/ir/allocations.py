"""The memory that the host program allocates, and the commands that read and write it.

A function is read as it is ahead of IREE's pass `iree-stream-layout-slices`: there the slices of an allocation still
have sizes and lifetimes of their own. Afterwards they are constants among the arguments of dispatches.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracemap.core.locations import Location
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.ir.attributes import constant_of
from tracemap.ir.host_program import CALL, INITIALIZER
from tracemap.ir.parsing import (
    SYMBOL,
    MlirParser,
    Module,
    Operation,
    Value,
    entry_arguments,
    ir,
    nested,
    operand_segments,
    producer_of,
    string_attribute,
    symbol_path,
)

# ---- sizes

Size = Integer | Text
"""A number of bytes: an integer, or an expression of the dimensions of arguments in prefix form.

`(* (dim 0 1) 4)` is four times dimension 1 of argument 0, `(arg 2)` the value of argument 2. Unknown if it depends on
something else.
"""

_ARITHMETIC = {
    "arith.addi": "+",
    "arith.subi": "-",
    "arith.muli": "*",
    "arith.divsi": "/",
    "arith.divui": "/",
    "arith.floordivsi": "/",
    "arith.ceildivsi": "ceildiv",
    "arith.ceildivui": "ceildiv",
    "arith.maxsi": "max",
    "arith.maxui": "max",
    "arith.minsi": "min",
    "arith.minui": "min",
    "util.align": "align",
}
_CASTS = frozenset({"arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci"})
_ASSUMPTIONS = frozenset({"util.assume.int", "util.optimization_barrier"})
_DEEPEST = 40
"""Operations in an expression, one in the other, at most."""


def size_of(value: Value, arguments: Mapping[Value, int], depth: int = 0) -> Size:
    """The size that a value of the host program is; `arguments`: the numbers of the function's arguments."""
    if value in arguments:
        return f"(arg {arguments[value]})"
    owner = producer_of(value)
    if owner is None or depth > _DEEPEST:
        return UNKNOWN
    if owner.name == "arith.constant":
        return constant_of(owner)
    if owner.name in _CASTS:
        return size_of(owner.operands[0], arguments, depth + 1)
    if owner.name in _ASSUMPTIONS:
        number = next(index for index, result in enumerate(owner.results) if result == value)
        return size_of(owner.operands[number], arguments, depth + 1)
    if owner.name == "hal.buffer_view.dim" and owner.operands[0] in arguments:
        dimension = owner.attributes["index"]
        return f"(dim {arguments[owner.operands[0]]} {int(dimension.value)})"
    if owner.name in _ARITHMETIC:
        parts = [size_of(operand, arguments, depth + 1) for operand in owner.operands]
        if UNKNOWN not in parts:
            return f"({_ARITHMETIC[owner.name]} {' '.join(map(str, parts))})"
    return UNKNOWN


# ---- records


@dataclass(frozen=True, slots=True)
class Slice:
    """A value in an allocation: its size, and the first and last step that need it, as the compiler numbers them."""

    size: Size
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an allocation without slices that a global holds, such as a constant in a packed resource."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory that the program holds for some steps.

    `resource`: transient, external, variable, constant or staging; `size`: its size, or unknown if it has slices;
    `alive`: first and last steps of each time in which it is held; `parts`: those that globals hold, if it has several
    and no slices; `carried_from`: the index of an allocation if it is that of the previous trip of a loop, which the
    trip still reads, else -1; `is_kept`: a global of the module holds it from then on.
    """

    resource: str
    size: Size
    location: Location
    alive: tuple[tuple[int, int], ...]
    slices: tuple[Slice, ...] = ()
    parts: tuple[Part, ...] = ()
    carried_from: int = -1
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """A command's access to an allocation; `slice`: the index of its slice or part, -1 for the whole."""

    allocation: int
    slice: int
    reads: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class MemoryCommand:
    """A dispatch, copy or fill in a step, with the globals that it reads; `kernel`: unknown for the latter two."""

    kind: str
    kernel: Text
    location: Location
    accesses: tuple[Access, ...]
    globals_read: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GlobalStore:
    """A store of an allocation, or of its slice or part (index `slice`, -1 for the whole), into a global."""

    name: str
    allocation: int
    slice: int
    location: Location


@dataclass(frozen=True, slots=True)
class FunctionAllocations:
    """The allocations of a function, and its steps in the order of the text; commands of a step may run together.

    `calls`: the functions that it calls, one entry for each call that is not inlined, and two for a call in a loop.
    `stores`: what it stores into globals.
    """

    function: str
    allocations: tuple[Allocation, ...]
    steps: tuple[tuple[MemoryCommand, ...], ...]
    calls: tuple[str, ...] = ()
    stores: tuple[GlobalStore, ...] = ()


BEFORE_LAYOUT = "--mlir-print-ir-before=iree-stream-layout-slices"
"""The flag that prints all functions ahead of the layout to the standard error."""
_TREE = "--mlir-print-ir-tree-dir"
"""The flag that makes these prints files of their own. The standard error has no buffer, so it costs ten times more."""
_PRINTS_IR = ("--mlir-print-ir-", "-mlir-print-ir-")
_INITIALIZER_START = re.compile(r"^\s*util\.initializer\b", re.MULTILINE)
_DUMP = re.compile(
    r"^// -----// IR Dump Before LayoutSlicesPass: iree-stream-layout-slices //----- //$\n", re.MULTILINE
)
_FUNCTION = re.compile(rf"^util\.func (?:public |private )?{SYMBOL}")
_FUNCTION_OF_MODULE = re.compile(rf"^ +util\.func (?:public |private )?{SYMBOL}(?=.*\{{$)", re.MULTILINE)
"""With a body: declarations have no layout."""
_GLOBAL = re.compile(rf"util\.global\.(?:load|store)(?: %[\w#]+,)?(?P<immutable> immutable)? {SYMBOL} : (?P<type>\S+)")


def without_dumps(output: str) -> str:
    """The compiler's output without the dumps that `BEFORE_LAYOUT` prints."""
    before, *dumps = _DUMP.split(output)
    return "".join([before, *(after for _, after in map(_split_off_function, dumps))]).strip()


_PARENT_FOLDER = re.compile(rb"(?:\.|\\2[Ee]){2}(?:/|\\2[Ff])|(?:/|\\2[Ff])(?:\.|\\2[Ee]){2}")
"""A step up in a path, also with the escapes of MLIR's strings."""


def layout_flags(folder: Path, model: bytes, flags: Iterable[str]) -> tuple[str, ...]:
    """The flags that print all functions ahead of the layout to files in a folder; none if that is impossible.

    The compiler makes folders of the functions' names, so a name with `../` could lead out of the folder. And if other
    `flags` print the IR, their output would be in the folder, too.
    """
    prints = any(flag.startswith(_PRINTS_IR) for flag in flags)
    return () if prints or _PARENT_FOLDER.search(model) else (BEFORE_LAYOUT, f"{_TREE}={folder}")


def read_dump_files(folder: Path, after: str) -> str:
    """The dumps that `layout_flags` had written to files; "" if some are missing.

    Args:
        folder: the folder.
        after: the phase `stream` as text. Its functions are expected, and no more than one initializer: several have
            the same file.
    """
    files = sorted(folder.rglob("*.mlir"), key=_number_of_dump)
    dumps = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    texts = [_split_off_function(dump)[0] for dump in _DUMP.split(dumps)[1:]]
    written = {found[0] for text in texts if (found := _FUNCTION.match(text))}
    expected = {found[0].strip() for found in _FUNCTION_OF_MODULE.finditer(after)}
    return dumps if written >= expected and len(_INITIALIZER_START.findall(after)) <= 1 else ""


def _number_of_dump(file: Path) -> tuple[str, list[int]]:
    """Orders the files of a function: their names begin with the numbers of its module and of its dump."""
    return str(file.parent), [int(part) for part in file.name.split("_") if part.isdecimal()]


def dumped_functions(output: str) -> str:
    """The dumps that `BEFORE_LAYOUT` prints, as a module's text; "" if there are none.

    The pass runs twice on each function; the last dump counts. Globals are declared, since functions are printed alone.
    Functions are sorted, since the compiler's threads print them in any order.
    """
    functions: dict[str, str] = {}
    for number, dump in enumerate(_DUMP.split(output)[1:]):
        text, _ = _split_off_function(dump)
        if found := _FUNCTION.match(text):
            functions[found[0]] = text
        elif "stream.cmd." in text or "stream.resource.alloc" in text:
            functions[str(number)] = text  # an initializer, which has no name
    joined = "\n".join(sorted(functions.values()))
    globals_found = [(found[2] or found[3], found["type"], found["immutable"]) for found in _GLOBAL.finditer(joined)]
    immutable = {name for name, _, is_immutable in globals_found if is_immutable}
    declared = [
        f"util.global private {'' if name in immutable else 'mutable '}@{name} : {kind}"
        for name, kind in {name: kind for name, kind, _ in globals_found}.items()
    ]
    return "\n".join([*declared, joined])


def _split_off_function(dump: str) -> tuple[str, str]:
    """The text of a function, up to the end of its last line, and what follows."""
    body, _, rest = dump.partition("\n}")
    end, _, after = rest.partition("\n")
    return f"{body}\n}}{end}", after


def read_allocations(parser: MlirParser, module: Module) -> tuple[FunctionAllocations, ...]:
    """The allocations of the functions of a module, and of its initializers as functions without a name."""
    tops = [top for top in nested(module.operation) if top.name in ("util.func", INITIALIZER)]
    return tuple(
        _FunctionReader(parser, top).read() for top in tops if any(len(region.blocks) for region in top.regions)
    )


# ---- reading

_RESOURCE = "!stream.resource<"
_EXECUTE = "stream.cmd.execute"
_GROUPS = frozenset({"stream.cmd.concurrent", "stream.cmd.serial"})
_COMMANDS = {"stream.cmd.copy": "copy", "stream.cmd.fill": "fill", "stream.cmd.dispatch": "dispatch"}
_ALLOCATIONS = frozenset(
    {
        "stream.resource.alloca",
        "stream.resource.alloc",
        "stream.resource.constants",
        "stream.cmd.parameter.load",
    }
)
_VIEW, _AWAIT = "stream.resource.subview", "stream.timepoint.await"
_LOAD, _STORE = "util.global.load", "util.global.store"
_READS, _WRITES = 1, 2


@dataclass(slots=True, eq=False)
class _Held:
    """A class of values that are the same memory: an allocation, or memory of someone else if it has no size."""

    size: Size = 0
    resource: str = ""
    location: Location | None = None
    slices: tuple[Slice, ...] = ()
    pack: Operation | None = None
    carried_from: list[_Held] = field(default_factory=list)
    parts: tuple[Part, ...] = ()
    spans: list[tuple[int, int]] = field(default_factory=list)
    freed: int = 0
    is_kept: bool = False
    merged_into: _Held | None = None

    @property
    def is_allocation(self) -> bool:
        return self.location is not None


def _root(held: _Held) -> _Held:
    """The class that a class was merged into, directly or through others."""
    while held.merged_into is not None:
        held = held.merged_into
    return held


def _is_resource(value: Value) -> bool:
    return str(value.type).startswith(_RESOURCE)


class _FunctionReader:
    """Reads a function. Times count its operations in the order of the text."""

    def __init__(self, parser: MlirParser, function: Operation) -> None:
        self._parser = parser
        self._function = function
        self._arguments = {value: number for number, value in enumerate(entry_arguments(function))}
        self._time = 0
        self._held: dict[Value, _Held] = {}
        self._defined: dict[Value, int] = {}
        self._last: dict[Value, int] = {}
        self._loops: list[tuple[int, int]] = []
        self._steps: list[tuple[tuple[Operation, Mapping[Value, Value]], ...]] = []
        self._step_times: list[int] = []
        self._classes: list[_Held] = []
        self._calls: list[str] = []
        self._stores: list[Operation] = []
        self._depth = 0

    def read(self) -> FunctionAllocations:
        """Read the whole function."""
        for value in self._arguments:
            if _is_resource(value):
                self._define(value, self._new())
        self._blocks(self._function)
        allocations = self._allocations()
        numbers = {held: number for number, held in enumerate(allocations)}
        if self._function.name == INITIALIZER:
            for held in allocations:
                held.parts = self._parts(held)
        steps = tuple(
            tuple(self._command(operation, outer, numbers) for operation, outer in commands) for commands in self._steps
        )
        name = string_attribute(self._function, "sym_name") if self._function.name == "util.func" else ""
        records = tuple(self._record(held, numbers) for held in allocations)
        stores = tuple(
            self._store(operation, numbers) for operation in self._stores if self._is_stored(operation, numbers)
        )
        return FunctionAllocations(name, records, steps, tuple(self._calls), stores)

    # -- classes

    def _new(self, **fields: object) -> _Held:
        held = _Held(**fields)  # type: ignore[arg-type]  # only passes on what a caller below writes
        self._classes.append(held)
        return held

    def _define(self, value: Value, held: _Held) -> None:
        self._held[value] = held
        self._defined[value] = self._last[value] = self._time

    def _of(self, value: Value) -> _Held:
        held = self._held.get(value)
        if held is None:
            self._define(value, held := self._new())
        return _root(held)

    def _merge(self, value: Value, other: Value) -> None:
        """Two values are the same memory, at least on one of the ways through the program."""
        first, second = self._of(value), self._of(other)
        if first is second:
            return
        if not first.is_allocation and second.is_allocation:
            first, second = second, first
        second.merged_into = first
        first.carried_from += second.carried_from
        first.freed = max(first.freed, second.freed)
        first.is_kept |= second.is_kept
        if second.is_allocation and _as_number(second.size) > _as_number(first.size):
            first.size = second.size

    # -- operations

    def _blocks(self, operation: Operation) -> None:
        """Read the blocks of regions that branches connect."""
        for region in operation.regions:
            blocks = list(region.blocks)
            order = {block: index for index, block in enumerate(blocks)}
            begins: dict[int, int] = {}
            headers = {
                order[follower]
                for index, block in enumerate(blocks)
                for follower in block.successors
                if order[follower] <= index
            }
            for index, block in enumerate(blocks):
                self._time += 1
                begins[index] = self._time
                if index in headers:
                    for argument in filter(_is_resource, block.arguments):
                        self._define(argument, self._new())
                for child in block.operations:
                    self._operation(child.operation)
                terminator = block.operations[len(block.operations) - 1].operation
                for follower, passed in _passed(terminator):
                    is_back = order[follower] <= index
                    for argument, value in zip(follower.arguments, passed, strict=False):
                        if _is_resource(argument):
                            self._pass_on(value, argument, is_carried=is_back, into_header=order[follower] in headers)
                    if is_back:
                        self._loops.append((begins[order[follower]], self._time))

    def _pass_on(self, value: Value, argument: Value, *, is_carried: bool, into_header: bool) -> None:
        if is_carried:
            self._of(argument).carried_from.append(self._of(value))
        elif not into_header:
            if argument not in self._held:
                self._define(argument, self._of(value))
            else:
                self._merge(argument, value)

    def _operation(self, operation: Operation) -> None:
        self._time += 1
        for operand in operation.operands:
            if _is_resource(operand):
                self._of(operand)
                self._last[operand] = self._time
        name = operation.name
        if name in _ALLOCATIONS:
            self._allocate(operation)
        elif name == "stream.resource.dealloca":
            held = self._of(operation.operands[0])
            held.freed = self._time
        elif name == _EXECUTE:
            self._execute(operation)
        elif name in ("scf.for", "scf.while"):
            self._depth += 1
            self._loop(operation)
            self._depth -= 1
        elif any(len(region.blocks) for region in operation.regions):
            self._branch(operation)
        else:
            if name == CALL:
                self._calls += [symbol_path(operation.attributes["callee"])[-1]] * (2 if self._depth else 1)
            self._results(operation)

    def _allocate(self, operation: Operation) -> None:
        results = [result for result in operation.results if _is_resource(result)]
        sizes = _sizes_in(operation)
        for result, size in zip(results, sizes, strict=False):
            owner = producer_of(size)
            pack = owner if owner is not None and owner.name == "stream.resource.pack" else None
            resource = str(result.type).removeprefix(_RESOURCE).rstrip(">")
            held = self._new(
                size=UNKNOWN if pack is not None else size_of(size, self._arguments),
                resource=resource,
                location=self._parser.location(operation),
                slices=self._slices(pack) if pack is not None else (),
                pack=pack,
            )
            self._define(result, held)

    def _slices(self, pack: Operation) -> tuple[Slice, ...]:
        numbers = [int(number.value) for number in pack.attributes["lifetime_intervals"]]
        sizes = operand_segments(pack)[-1]
        pairs = zip(numbers[::2], numbers[1::2], sizes, strict=True)
        return tuple(Slice(size_of(size, self._arguments), first, last) for first, last, size in pairs)

    def _execute(self, operation: Operation) -> None:
        """Read the commands; each entry of the region is a step, and those of a group run together."""
        body = operation.regions[0].blocks[0]
        resources = [operand for operand in operation.operands if _is_resource(operand)]
        outer = dict(zip(body.arguments, resources, strict=True))
        for entry in body.operations:
            commands = tuple((command, outer) for command in _commands_in(entry.operation))
            if commands:
                self._time += 1
                self._steps.append(commands)
                self._step_times.append(self._time)
        for resource in resources:
            self._last[resource] = self._time

    def _loop(self, operation: Operation) -> None:
        """A counted loop, or one with a condition: what a trip yields is carried to the next one."""
        begin = self._time
        blocks = [region.blocks[0] for region in operation.regions]
        carried = [argument for argument in blocks[0].arguments if _is_resource(argument)]
        for argument in carried:
            self._define(argument, self._new())
        yields: list[list[Value]] = []
        for number, block in enumerate(blocks):
            if number:
                for argument, value in zip(filter(_is_resource, block.arguments), yields[-1], strict=True):
                    self._define(argument, self._of(value))
            for child in block.operations:
                self._operation(child.operation)
            yields.append(
                [value for value in block.operations[len(block.operations) - 1].operands if _is_resource(value)]
            )
        end = self._time
        self._loops.append((begin, end))
        for argument, value in zip(carried, yields[-1], strict=True):
            self._of(argument).carried_from.append(self._of(value))
        self._time += 1
        # A loop with a condition returns what its condition passes on.
        for result, value in zip(filter(_is_resource, operation.results), yields[0], strict=True):
            self._define(result, self._of(value))

    def _branch(self, operation: Operation) -> None:
        """A conditional: its result is what the arm that ran yields."""
        results = [result for result in operation.results if _is_resource(result)]
        for region in operation.regions:
            for block in region.blocks:
                for child in block.operations:
                    self._operation(child.operation)
                ends = list(block.operations)
                yielded = [value for value in ends[-1].operands if _is_resource(value)] if ends else []
                for result, value in zip(results, yielded, strict=False):
                    if result in self._held:
                        self._merge(result, value)
                    else:
                        self._define(result, self._of(value))
        self._time += 1
        for result in results:
            self._of(result)
            self._defined[result] = self._last[result] = self._time

    def _results(self, operation: Operation) -> None:
        """Results of other operations: the memory of their operands, or memory of someone else."""
        results = [result for result in operation.results if _is_resource(result)]
        operands = [operand for operand in operation.operands if _is_resource(operand)]
        for index, result in enumerate(results):
            if index < len(operands):
                self._define(result, self._of(operands[index]))
            else:
                self._define(result, self._new())
        if operation.name in ("stream.tensor.export", _STORE) and operands:
            # The caller, or the module, holds it from here on.
            self._last[operands[0]] = _FOREVER
            if operation.name == _STORE:
                self._of(operands[0]).is_kept = True
                self._stores.append(operation)

    # -- lifetimes

    def _allocations(self) -> list[_Held]:
        """The classes that are allocated, also as carried from the trip before, with the times that they are held."""
        for value, defined in self._defined.items():
            end = last = self._last[value]
            for loop_begin, loop_end in self._loops:
                if defined < loop_begin < last <= loop_end:
                    end = max(end, loop_end)
            self._of(value).spans.append((defined, end))
        roots = dict.fromkeys(_root(held) for held in self._classes)
        allocated = []
        for held in roots:
            sources = [_root(source) for source in held.carried_from]
            if held.is_allocation or any(source.is_allocation for source in sources if source is not held):
                allocated.append(held)
        return allocated

    def _record(self, held: _Held, numbers: Mapping[_Held, int]) -> Allocation:
        source = held
        if not held.is_allocation:
            sources = (_root(source) for source in held.carried_from)
            source = max((source for source in sources if source.is_allocation), key=lambda one: _as_number(one.size))
        assert source.location is not None
        spans = [(begin, min(end, held.freed) if held.freed else end) for begin, end in held.spans]
        alive = self._as_steps(spans)
        carried_from = -1 if source is held else numbers[source]
        return Allocation(
            source.resource, source.size, source.location, alive, source.slices, held.parts, carried_from, held.is_kept
        )

    def _as_steps(self, spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Times as first and last steps, merged where they overlap."""
        found: list[tuple[int, int]] = []
        for begin, end in sorted(spans):
            first, last = bisect_left(self._step_times, begin), bisect_right(self._step_times, end) - 1
            if first > last:
                continue
            if found and first <= found[-1][1] + 1:
                found[-1] = (found[-1][0], max(found[-1][1], last))
            else:
                found.append((first, last))
        return tuple(found)

    # -- globals

    def _parts(self, held: _Held) -> tuple[Part, ...]:
        """The parts of an allocation that globals hold, by offset; none if they overlap, or only one takes all."""
        if held.pack is not None or not isinstance(held.size, int):
            return ()
        stored = (store.operands[0] for store in self._stores if self._of(store.operands[0]) is held)
        views = {self._viewed_part(value) for value in stored}
        if not views or None in views:
            return ()
        parts = sorted((view for view in views if view is not None), key=lambda part: (part.offset, part.size))
        begins = [*(part.offset for part in parts[1:]), held.size]
        if any(part.offset + part.size > begin for part, begin in zip(parts, begins, strict=True)):
            return ()
        return () if parts == [Part(0, held.size)] else tuple(parts)

    def _viewed_part(self, value: Value) -> Part | None:
        """The part of an allocation that a view shows; None if it is the whole or unknown."""
        view = _view_of(value)
        if view is None:
            return None
        offset, size = (size_of(view.operands[number], self._arguments) for number in (2, 3))
        return Part(offset, size) if isinstance(offset, int) and isinstance(size, int) else None

    def _slice_of(self, value: Value, held: _Held) -> int:
        """The index of the slice or part of an allocation that a view shows, else -1."""
        part = self._viewed_part(value)
        return held.parts.index(part) if part in held.parts else _viewed_slice(value, held.pack)

    def _store(self, operation: Operation, numbers: Mapping[_Held, int]) -> GlobalStore:
        value = operation.operands[0]
        held = self._of(value)
        name = symbol_path(operation.attributes["global"])[-1]
        return GlobalStore(name, numbers[held], self._slice_of(value, held), self._parser.location(operation))

    def _is_stored(self, operation: Operation, numbers: Mapping[_Held, int]) -> bool:
        return self._of(operation.operands[0]) in numbers

    # -- commands

    def _command(
        self, operation: Operation, outer: Mapping[Value, Value], numbers: Mapping[_Held, int]
    ) -> MemoryCommand:
        kind = _COMMANDS[operation.name]
        accesses, globals_read = [], []
        for resource, offset, access in _accessed(operation):
            held = self._of(outer[resource]) if resource in outer else None
            if held is not None and (number := numbers.get(held, -1)) >= 0:
                slice_number = _slice_number(offset, held.pack)
                if slice_number < 0:
                    slice_number = self._slice_of(outer[resource], held)
                accesses.append(Access(number, slice_number, bool(access & _READS), bool(access & _WRITES)))
            elif held is not None and access & _READS and (name := _loaded_global(outer[resource])):
                globals_read.append(name)
        kernel = symbol_path(operation.attributes["entry_points"][0])[-1] if kind == "dispatch" else UNKNOWN
        location = self._parser.location(operation)
        return MemoryCommand(kind, kernel, location, tuple(accesses), tuple(dict.fromkeys(globals_read)))


_FOREVER = 1 << 60


def _as_number(size: Size) -> int:
    return size if isinstance(size, int) else 0


def _passed(terminator: Operation) -> Iterator[tuple[Any, list[Value]]]:
    """The blocks that a terminator may go to, and the values that it passes to each."""
    followers = list(terminator.successors)
    if terminator.name == "cf.br":
        yield followers[0], list(terminator.operands)
    elif terminator.name == "cf.cond_br":
        segments = operand_segments(terminator)
        yield from zip(followers, segments[1:], strict=True)


def _sizes_in(operation: Operation) -> list[Value]:
    """The sizes of the results of an allocation."""
    if operation.name == "stream.cmd.parameter.load":
        return operand_segments(operation)[-2]
    return list(operation.operands)


def _commands_in(operation: Operation) -> Iterator[Operation]:
    if operation.name in _COMMANDS:
        yield operation
    elif operation.name in _GROUPS:
        for region in operation.regions:
            for block in region.blocks:
                for child in block.operations:
                    yield from _commands_in(child.operation)


def _accessed(operation: Operation) -> Iterator[tuple[Value, Value, int]]:
    """The resources of a command with their offsets and accesses."""
    operands = list(operation.operands)
    if operation.name == "stream.cmd.copy":
        yield operands[0], operands[2], _READS
        yield operands[3], operands[5], _WRITES
    elif operation.name == "stream.cmd.fill":
        yield operands[0], operands[2], _WRITES
    else:
        *_, resources, _sizes, offsets, _lengths = operand_segments(operation)
        accesses = [int(access.value) for access in operation.attributes["resource_accesses"]]
        yield from zip(resources, offsets, accesses, strict=True)


def _slice_number(offset: Value, pack: Operation | None) -> int:
    """The index of the slice that begins at an offset, or that holds it."""
    if pack is None:
        return -1
    for _ in range(_DEEPEST):
        owner = producer_of(offset)
        if owner is None:
            return -1
        if owner == pack:
            return int(ir.OpResult(offset).result_number) - 1
        if owner.name != "arith.addi":
            return -1
        offset = next((value for value in owner.operands if producer_of(value) is not None), offset)
    return -1


def _viewed_slice(value: Value, pack: Operation | None) -> int:
    """The index of the slice that a view of an allocation shows."""
    for owner in _passing(value):
        if owner.name == _VIEW:
            slice_number = _slice_number(owner.operands[2], pack)
            if slice_number >= 0:
                return slice_number
    return -1


def _view_of(value: Value) -> Operation | None:
    """The view that a value is, if it is no view of another one."""
    views = [owner for owner in _passing(value) if owner.name == _VIEW]
    return views[0] if len(views) == 1 else None


def _loaded_global(value: Value) -> str:
    """The name of the global that a value, or what it shows a part of, is loaded from; "" if it is none."""
    *_, last = (None, *_passing(value))
    return symbol_path(last.attributes["global"])[-1] if last is not None and last.name == _LOAD else ""


def _passing(value: Value) -> Iterator[Operation]:
    """The operations that made a value: those that only pass memory on, and the first other one."""
    for _ in range(_DEEPEST):
        owner = producer_of(value)
        if owner is None:
            return
        yield owner
        if owner.name == _VIEW:
            value = owner.operands[0]
        elif owner.name == _AWAIT:
            value = owner.operands[next(index for index, result in enumerate(owner.results) if result == value)]
        else:
            return
