"""Read MLIR in its generic form, as `mlir-opt --mlir-print-op-generic --mlir-print-local-scope` prints it.

The form is the same for all dialects and versions of MLIR, so this reader needs no bindings. The text must come from a
tool's printer: each operation begins a line, and regions begin and end lines (`AsmPrinter.cpp`,
`OperationPrinter::printGenericOp`; MLIR language reference, "Operations").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Final

from tracemap.core.errors import LocationInvalid, ModelInvalid
from tracemap.core.locations import STRING, UNKNOWN_LOCATION, FileRange, Location, Name, read_location, unescape
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.ir.dumps import StageOp
from tracemap.ir.source_model import (
    BRANCHES,
    CONTROL_FLOW,
    FUNCTIONS,
    Definition,
    SourceArgument,
    SourceModel,
    SourceOperation,
)

# ---- operations


@dataclass(slots=True)
class Block:
    """A block: its label, and the names, types and locations of its arguments."""

    label: str
    arguments: list[tuple[str, str, str]]
    operations: list[GenericOperation] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class GenericOperation:
    """An operation of the text; values are known by name, attributes by their text.

    `location`: begin and end of the text of its location; empty if it has none. `results`: names, with the number of
    values of each (`%0:2`). `types`: of the results.
    """

    name: str
    index: int
    parent: GenericOperation | None
    results: list[tuple[str, int]]
    operands: list[str]
    successors: list[str]
    attributes: dict[str, str]
    regions: list[list[Block]] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    location: tuple[int, int] = (0, 0)
    end: tuple[int, bool] = (0, False)
    """Where its attributes stand in the text, or would, after operands and regions; and whether it has some there."""

    def walk(self) -> Iterator[GenericOperation]:
        """The operation and all nested ones, in pre-order."""
        stack = [self]
        while stack:
            operation = stack.pop()
            yield operation
            stack.extend(
                reversed([child for region in operation.regions for block in region for child in block.operations])
            )

    @property
    def children(self) -> list[GenericOperation]:
        """The operations directly in its regions, in order."""
        return [child for region in self.regions for block in region for child in block.operations]


_HEAD: Final = re.compile(rf"\s*(?:((?:%[\w.$-]+(?::\d+)?(?:, )?)+) = )?({STRING})\(")
_RESULT: Final = re.compile(r"(%[\w.$-]+)(?::(\d+))?")
_VALUE: Final = re.compile(r"%[\w.$-]+(?:#\d+)?")
_BLOCK: Final = re.compile(r"\s*(\^[\w.$-]+)(\(|:)")
_ARGUMENT: Final = re.compile(r"\s*(%[\w.$-]+): ")
# The arrow of a function type, and comparisons in integer sets, are no brackets.
_BRACKET: Final = re.compile(rf"{STRING}|->|[<>]=|([(\[{{<])|([)\]}}>])|(,)")
_LOCATION: Final = " loc("
_END_OF_REGION: Final = re.compile(r"\s*\}(\)|, \{$)")
_RESOURCES: Final = "{-#"
_DEEPEST: Final = 400
"""Readers of the operations as a tree call themselves for each level."""


class _Reader:
    """Reads a text line by line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._open: list[GenericOperation] = []
        self._count = 0
        self.roots: list[GenericOperation] = []

    def read(self) -> None:
        position = 0
        for line in self._text.split("\n"):
            if line.startswith(_RESOURCES):
                break
            if line.strip():
                self._read_line(line, position)
            position += len(line) + 1
        if self._open:
            raise ModelInvalid("the text ends inside an operation")

    def _read_line(self, line: str, start: int) -> None:
        if match := _END_OF_REGION.match(line):
            if not self._open:
                raise ModelInvalid(f"{line.strip()[:60]!r} ends no region")
            if match[1] == ")":
                self._finish(self._open.pop(), line, match.end(), start)
            else:
                self._open[-1].regions.append([])
        elif match := _HEAD.match(line):
            self._begin(match, line, start)
        elif match := _BLOCK.match(line):
            self._add_block(match, line)
        else:
            raise ModelInvalid(f"{line.strip()[:60]!r} is no operation in generic form")

    def _begin(self, match: re.Match[str], line: str, start: int) -> None:
        parent = self._open[-1] if self._open else None
        end = _closing(line, match.end())
        successors: list[str] = []
        if line.startswith("[^", end):
            close = line.find("]", end)
            successors, end = line[end + 1 : close].split(", "), close + 1
        operation = GenericOperation(
            name=unescape(match[2]),
            index=self._count,
            parent=parent,
            results=[(name, int(count or 1)) for name, count in _RESULT.findall(match[1] or "")],
            operands=_VALUE.findall(line[match.end() : end]),
            successors=successors,
            attributes={},
        )
        self._count += 1
        if len(self._open) > _DEEPEST:
            raise ModelInvalid(f"operations are nested more than {_DEEPEST} deep")
        self._add(operation, parent)
        if line.startswith(" <{", end):
            close = _closing(line, end + 2)
            operation.attributes.update(dictionary(line[end + 2 : close - 1]))
            end = close
        if line.endswith("({"):
            operation.regions.append([])
            self._open.append(operation)
        else:
            self._finish(operation, line, end, start)

    def _add(self, operation: GenericOperation, parent: GenericOperation | None) -> None:
        if parent is None:
            self.roots.append(operation)
            return
        region = parent.regions[-1]
        if not region:
            region.append(Block("", []))
        region[-1].operations.append(operation)

    def _finish(self, operation: GenericOperation, line: str, end: int, start: int) -> None:
        """Read what follows an operation's operands or regions: attributes, type and location."""
        operation.end = (start + end, line.startswith(" {", end))
        if operation.end[1]:
            close = _closing(line, end + 2)
            operation.attributes.update(dictionary(line[end + 1 : close]))
            end = close
        place = _location_start(line, end)
        kind = line[end + len(" : ") : place]
        operation.types = list(split_function_type(kind)[1])
        if place < len(line):
            operation.location = (start + place + len(_LOCATION), start + len(line.rstrip()) - 1)

    def _add_block(self, match: re.Match[str], line: str) -> None:
        if not self._open:
            raise ModelInvalid(f"{line.strip()[:60]!r} is a block outside of regions")
        arguments = []
        if match[2] == "(":
            inside = line[match.end() : _closing(line, match.end()) - 1]
            for argument in split_list(inside):
                if named := _ARGUMENT.match(argument):
                    place = _location_start(argument, named.end())
                    location = argument[place + len(_LOCATION) : -1] if place < len(argument) else ""
                    arguments.append((named[1], argument[named.end() : place], location))
        self._open[-1].regions[-1].append(Block(match[1], arguments))


def _closing(text: str, position: int) -> int:
    """The position after the bracket that closes the one directly before `position`."""
    depth = 1
    while match := _BRACKET.search(text, position):
        position = match.end()
        depth += (match[1] is not None) - (match[2] is not None)
        if not depth:
            return position
    raise ModelInvalid(f"{text.strip()[:60]!r} has a bracket that is not closed")


def _location_start(text: str, position: int) -> int:
    """Where ` loc(…)` begins at the end of a text; the length of the text if it has none."""
    depth = 0
    start = len(text)
    for match in _BRACKET.finditer(text, position):
        if match[1] is not None:
            if not depth and text.endswith(_LOCATION, position, match.end()):
                start = match.end() - len(_LOCATION)
            depth += 1
        elif match[2] is not None:
            depth -= 1
    return start


def split_list(text: str) -> list[str]:
    """Split a list at its commas, but not at those in brackets or strings."""
    pieces, depth, start = [], 0, 0
    for match in _BRACKET.finditer(text):
        if match[3] is not None:
            if not depth:
                pieces.append(text[start : match.start()].strip())
                start = match.end()
        else:
            depth += (match[1] is not None) - (match[2] is not None)
    return [*pieces, text[start:].strip()]


def split_function_type(kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The types of arguments and results of a function's type.

    >>> split_function_type("(f32, memref<4xf32, strided<[1]>>) -> (i1, i2)")
    (('f32', 'memref<4xf32, strided<[1]>>'), ('i1', 'i2'))
    """
    end = _closing(kind, 1) if kind.startswith("(") else 0
    results = kind[end:].removeprefix(" -> ")
    return _types(kind[1 : end - 1] if end else ""), _types(results[1:-1] if results.startswith("(") else results)


def _types(text: str) -> tuple[str, ...]:
    return tuple(split_list(text)) if text.strip() else ()


def dictionary(text: str) -> dict[str, str]:
    """The attributes in `{…}`, by name; a unit attribute has the text `unit`."""
    attributes = {}
    for item in split_list(text.strip().removeprefix("{").removesuffix("}")):
        match = re.match(rf"({STRING}|[\w.$-]+)(?: = )?", item)
        if match:
            attributes[unescape(match[1]) if match[1].startswith('"') else match[1]] = item[match.end() :] or "unit"
    return attributes


@dataclass(frozen=True)
class GenericModule:
    """A module in generic form: its text and its outermost operation."""

    text: str
    root: GenericOperation

    @cached_property
    def operations(self) -> tuple[GenericOperation, ...]:
        """All operations, in pre-order."""
        return tuple(self.root.walk())

    @cached_property
    def locations(self) -> tuple[Location, ...]:
        """The locations of all operations, in pre-order; equal texts give the identical object."""
        known: dict[str, Location] = {}
        return tuple(_location_of(self.text[slice(*operation.location)], known) for operation in self.operations)

    def with_locations(self, texts: Sequence[str]) -> str:
        """The text with other locations, given without `loc(…)`, in pre-order."""
        spans = sorted(
            (operation.location, text) for operation, text in zip(self.operations, texts, strict=True) if text
        )
        pieces, done = [], 0
        for (begin, end), text in spans:
            if begin:
                pieces += [self.text[done:begin], text]
                done = end
        return "".join([*pieces, self.text[done:]])

    def with_attribute_on_public_functions(self, attribute: str) -> str:
        """The text with a unit attribute on all functions with a body that are not private."""
        ends = [
            operation.end
            for operation in self.operations
            if operation.name == "func.func"
            and operation.children
            and operation.attributes.get("sym_visibility") != '"private"'
        ]
        pieces, done = [], 0
        for end, has_attributes in sorted(ends):
            begin = end + len(" {") if has_attributes else end
            pieces += [self.text[done:begin], f"{attribute}, " if has_attributes else f" {{{attribute}}}"]
            done = begin
        return "".join([*pieces, self.text[done:]])

    def location_texts(self) -> list[str]:
        """The texts of the locations of all operations, in pre-order; "" for one without."""
        return [self.text[slice(*operation.location)] for operation in self.operations]


def _location_of(text: str, known: dict[str, Location]) -> Location:
    location = known.get(text)
    if location is None:
        try:
            location, _ = read_location(f"loc({text})") if text else (UNKNOWN_LOCATION, False)
        except LocationInvalid:
            location = UNKNOWN_LOCATION
        known[text] = location
    return location


def read_generic(text: str) -> GenericModule:
    """Read a module.

    Raises:
        ModelInvalid: the text is not the generic form, or holds no operation or several.
    """
    reader = _Reader(text)
    reader.read()
    if len(reader.roots) != 1:
        raise ModelInvalid(f"the text holds {len(reader.roots)} modules, not one")
    return GenericModule(text, reader.roots[0])


# ---- values


class _Values:
    """The definitions of named values. A name is known in the region that defines it and inside that region."""

    def __init__(self, root: GenericOperation) -> None:
        self._scopes: dict[int, dict[str, Definition]] = {}
        self._scope_of: dict[int, tuple[int, ...]] = {}
        self._count = 0
        self._enter(root)

    def _enter(self, root: GenericOperation) -> None:
        stack: list[tuple[GenericOperation, tuple[int, ...]]] = [(root, ())]
        while stack:
            operation, scopes = stack.pop()
            self._scope_of[operation.index] = scopes
            if scopes:
                self._scopes[scopes[-1]].update(_results_of(operation))
            for region in operation.regions:
                self._count += 1
                inner = (*scopes, self._count)
                names = self._scopes[self._count] = {}
                arguments = (argument for block in region for argument, _, _ in block.arguments)
                for number, argument in enumerate(arguments):
                    names[argument] = Definition(operation.index, number, argument=True)
                stack += [(child, inner) for block in region for child in block.operations]

    def of(self, operation: GenericOperation) -> tuple[Definition, ...]:
        """The definitions of an operation's operands.

        Raises:
            ModelInvalid: a value is not defined.
        """
        return tuple(self._find(name, self._scope_of[operation.index]) for name in operation.operands)

    def _find(self, name: str, scopes: tuple[int, ...]) -> Definition:
        for scope in reversed(scopes):
            if (definition := self._scopes[scope].get(name)) is not None:
                return definition
        raise ModelInvalid(f"the value {name[:60]} is not defined")


def _results_of(operation: GenericOperation) -> Iterator[tuple[str, Definition]]:
    starts = accumulate((count for _, count in operation.results), initial=0)
    for (name, count), start in zip(operation.results, starts, strict=False):
        yield name, Definition(operation.index, start, argument=False)
        for number in range(count):
            yield f"{name}#{number}", Definition(operation.index, start + number, argument=False)


# ---- the model


class _Describer:
    """Makes the records of a model, as `tracemap.ir.model_reader` does with IREE's bindings."""

    def __init__(self, module: GenericModule, positions: Sequence[Location], text: str, file: str) -> None:
        self._module = module
        self._positions = positions
        self._lines = text.encode().split(b"\n")
        self._file = file
        self._values = _Values(module.root)
        self._signature_of: dict[Hashable, int] = {}
        self._number_of: dict[int, int] = {}
        self._block = 0
        self.operations: list[SourceOperation] = []
        self.arguments: dict[str, tuple[SourceArgument, ...]] = {}
        self.private: set[str] = set()

    def describe(self) -> None:
        """Record all operations."""
        stack: list[tuple[GenericOperation, int, Text, int, tuple[int, ...]]] = [
            (self._module.root, -1, UNKNOWN, 0, ())
        ]
        while stack:
            operation, owner, function, block, successors = stack.pop()
            record = self._record(operation, owner, function, block, successors)
            self.operations.append(record)
            function = record.function
            if record.name in FUNCTIONS:
                self._add_function(operation, record.symbol)
            elif record.is_op and record.name not in CONTROL_FLOW:
                owner = record.index
            children: list[tuple[GenericOperation, int, Text, int, tuple[int, ...]]] = []
            for region in operation.regions:
                labels = {inner.label: number for number, inner in enumerate(region)}
                for inner in region:
                    self._block += 1
                    children += [
                        (child, owner, function, self._block, tuple(labels.get(label, 0) for label in child.successors))
                        for child in inner.operations
                    ]
            stack.extend(reversed(children))

    def _add_function(self, operation: GenericOperation, symbol: str) -> None:
        blocks = [block for region in operation.regions for block in region]
        arguments = blocks[0].arguments if blocks else []
        self.arguments[symbol] = tuple(
            SourceArgument(kind, loop_bound=False, name=self._argument_name(location))
            for _, kind, location in arguments
        )
        if operation.attributes.get("sym_visibility") == '"private"':
            self.private.add(symbol)

    def _argument_name(self, text: str) -> str:
        """The name in an argument's location, else in the model's text; "" if it has none."""
        location = _location_of(text, {})
        if isinstance(location, Name):
            return location.name
        if isinstance(location, FileRange) and location.file == self._file and 0 < location.line <= len(self._lines):
            match = _NAMED_ARGUMENT.match(self._lines[location.line - 1], location.column - 1)
            return match[1].decode() if match and not _PRINTED_NAME.fullmatch(match[1]) else ""
        return ""

    def _record(
        self, operation: GenericOperation, owner: int, function: Text, block: int, successors: tuple[int, ...]
    ) -> SourceOperation:
        index, name = operation.index, _unwrapped_name(operation)
        symbol = next((symbol_of(operation, key) for key in _SYMBOLS if key in operation.attributes), "")
        line, column = self._position(index, name)
        location = self._module.locations[index]
        constant = "" if operation.operands else operation.attributes.get("value", "")
        return SourceOperation(
            index=index,
            owner=index if owner < 0 else owner,
            parent=-1 if operation.parent is None else operation.parent.index,
            name=name,
            function=symbol if name in FUNCTIONS else function,
            parsed_location=location,
            made_up=isinstance(location, FileRange)
            and location.file == self._file
            and (location.line == 0 or location == self._positions[index]),
            line=line,
            column=column,
            operands=self._values.of(operation),
            results=tuple(operation.types),
            symbol=symbol,
            signature=self._signature(operation),
            block=block,
            constant=integer_of(constant),
            splat=splat_of(constant),
            direction=_direction_of(operation),
            successors=successors if name in BRANCHES else (),
        )

    def _position(self, index: int, name: str) -> tuple[Integer, Integer]:
        """Line and column of the name; in short forms the position follows the name. Columns count bytes."""
        position = self._positions[index]
        if not isinstance(position, FileRange) or not 0 < position.line <= len(self._lines):
            return UNKNOWN, UNKNOWN
        before = self._lines[position.line - 1][: position.column - 1].rstrip()
        if before.endswith(name.encode()):
            return position.line, len(before) - len(name.encode()) + 1
        return position.line, position.column

    def _signature(self, operation: GenericOperation) -> int:
        """A number that is equal for operations that compute the same from equal operands."""
        _, *inside = operation.walk()
        number_of = {inner.index: number for number, inner in enumerate(inside)}

        def definition(value: Definition) -> Hashable:
            if value.argument:
                return ("argument", value.number, number_of.get(value.maker, -1))
            if value.maker in number_of:
                return (number_of[value.maker], value.number)
            return ("outside", value.maker, value.number)

        content = (
            operation.name,
            _attributes_of(operation),
            tuple(operation.types),
            tuple(
                (inner.name, _attributes_of(inner), tuple(map(definition, self._values.of(inner))), tuple(inner.types))
                for inner in inside
            )
            if operation.name not in CONTROL_FLOW | FUNCTIONS
            else operation.index,
        )
        return self._signature_of.setdefault(content, len(self._signature_of))


_SYMBOLS: Final = ("sym_name", "callee", "global", "global_name", "decomposition")
_NAMED_ARGUMENT: Final = re.compile(rb"%([\w.$-]+)\s*:", re.ASCII)
_PRINTED_NAME: Final = re.compile(rb"arg\d+|\d+")
"""Names that MLIR's printer gives to arguments."""
_DIRECTIONS: Final = {"0": "EQ", "1": "NE", "2": "LT", "3": "LE", "4": "GT", "5": "GE"}
"""Predicates of `arith.cmpi` on signed numbers."""
_DIRECTION: Final = re.compile(r"\b(EQ|NE|LT|LE|GT|GE)>$")
_INTEGER: Final = re.compile(r"(-?\d+)(?: : (?:i\d+|index))?")
_SPLAT: Final = re.compile(r"dense<([^\[\]<>\"]+)> : (?:tensor|vector)<(?:[\d?]+x)*([^<>]+)>")


def symbol_of(operation: GenericOperation, name: str) -> str:
    """The symbol in an attribute, without `@` and quotes; "" if there is none."""
    text = operation.attributes.get(name, "").removeprefix("@")
    return unescape(text) if text.startswith('"') else text


def _unwrapped_name(operation: GenericOperation) -> str:
    """The name of an operation; for ONNX ops, wrapped as `torch.operator "onnx.Add"`, the inner name."""
    return (symbol_of(operation, "name") if operation.name == "torch.operator" else "") or operation.name


def _direction_of(operation: GenericOperation) -> str:
    if operation.name == "arith.cmpi":
        return _DIRECTIONS.get(operation.attributes.get("predicate", "").partition(" ")[0], "")
    match = _DIRECTION.search(operation.attributes.get("comparison_direction", ""))
    return match[1] if match else ""


def _attributes_of(operation: GenericOperation) -> Hashable:
    return tuple(sorted(operation.attributes.items()))


def integer_of(text: str) -> Integer:
    """The value of an integer, boolean or splat attribute; otherwise unknown.

    >>> integer_of("4 : index"), integer_of("dense<true> : tensor<4xi1>"), integer_of("1.0 : f32")
    (4, 1, UNKNOWN)
    """
    if match := _SPLAT.fullmatch(text):
        text = match[1]
    if text in ("true", "false"):
        return int(text == "true")
    match = _INTEGER.fullmatch(text)
    return int(match[1]) if match and len(match[1]) < _MOST_DIGITS else UNKNOWN


_MOST_DIGITS: Final = 19
"""Numbers with fewer digits fit 64 bits."""


def splat_of(text: str) -> str:
    """The common value of all elements of a constant, with its type; "" if there is none.

    >>> splat_of("dense<0.000000e+00> : tensor<2x4xf32>")
    '0.000000e+00 : f32'
    """
    match = _SPLAT.fullmatch(text)
    if match is None:
        return ""
    return match[1] if match[1] in ("true", "false") else f"{match[1]} : {match[2]}"


def source_model(module: GenericModule, positions: Sequence[Location], text: str, file: str) -> SourceModel:
    """The records of a model.

    Args:
        module: the model in generic form.
        positions: the places of its operations in `text`, in pre-order; empty if they are not known.
        text: the model as written.
        file: its name in the locations that the parser made up.

    Raises:
        ModelInvalid: an operand has no definition.
    """
    describer = _Describer(module, positions or [UNKNOWN_LOCATION] * len(module.operations), text, file)
    describer.describe()
    return SourceModel(
        name=symbol_of(module.root, "sym_name") or "module",
        text=text,
        operations=tuple(describer.operations),
        arguments=describer.arguments,
        private=frozenset(describer.private),
        fixed=frozenset(),
        positions_known=bool(positions),
    )


# ---- stages


def stage_tree(
    module: GenericModule, lines: Sequence[Integer], location_of: Callable[[int], Location] | None = None
) -> StageOp:
    """The operations of a stage as a tree; `lines`: of all operations in the stage's text, in pre-order."""

    def read(operation: GenericOperation, function: str) -> StageOp:
        name = symbol_of(operation, "sym_name")
        inside = name if name and operation.name != "builtin.module" else function
        index = operation.index
        return StageOp(
            name=operation.name,
            location=location_of(index) if location_of else module.locations[index],
            function=inside,
            line=lines[index] if lines else UNKNOWN,
            computes_index=bool(operation.types) and all(kind == "index" for kind in operation.types),
            children=tuple(read(child, inside) for child in operation.children),
        )

    return read(module.root, "")
