"""Reading of models: bytes are parsed, and operations become records."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypedDict

from tracemap.errors import ModelInvalid
from tracemap.ir.attributes import cases_of, constant_of, direction_of, splat_of
from tracemap.ir.bodies import bounds_loop
from tracemap.ir.parsing import (
    BYTECODE_MAGIC,
    Attribute,
    MlirParser,
    Module,
    Operation,
    Region,
    Value,
    ir,
    own_name,
    printed_locations,
    string_attribute,
    walk,
)
from tracemap.ir.source import (
    BRANCHES,
    CONTROL_FLOW,
    FUNCTIONS,
    TEXT_FILE,
    Definition,
    Signatures,
    SourceArgument,
    SourceModel,
    SourceOperation,
)
from tracemap.locations import STRING, FileRange, Location
from tracemap.units import UNKNOWN, Integer, Text

# ---- blanking
#
# A model's text without its locations, every other character in its place.


# What matters when looking for `loc(`: strings and comments, in which it means nothing, and blobs at the end.
_LOC = re.compile(r'"(?:[^"\\\n]++|\\.)*+"|//[^\n]*|(?<![\w.$#@%!-])loc\s*\(')
_INSIDE_LOC = re.compile(STRING + r"|[()]", re.DOTALL)


def blank_locations(text: str) -> str:
    """The text with every trailing `loc(…)` replaced by spaces, so that all other characters keep their place.

    Locations that are values of something (`#loc = loc(…)`, `{attribute = loc(…)}`) stay: they give no operation its
    position, and without them the text would not parse.
    """
    if "loc" not in text:
        return text
    pieces: list[str] = []
    done = 0
    position = 0
    while (match := _LOC.search(text, position)) is not None:
        position = match.end()
        if not match.group().startswith("loc") or _is_value(text, match.start()):
            continue
        position = _closing(text, match.end())
        pieces += [text[done : match.start()], re.sub(r"[^\n]", " ", text[match.start() : position])]
        done = position
    return "".join([*pieces, text[done:]])


def _is_value(text: str, position: int) -> bool:
    while position > 0 and text[position - 1].isspace():
        position -= 1
    return position > 0 and text[position - 1] in "=,[<"


def _closing(text: str, position: int) -> int:
    """The position after the parenthesis that closes the one just before `position`."""
    depth = 1
    while depth and (match := _INSIDE_LOC.search(text, position)) is not None:
        depth += (match.group() == "(") - (match.group() == ")")
        position = match.end()
    return position if depth == 0 else len(text)


# ---- reading
#
# Reads a model: bytes are parsed, then its operations become records (`tracemap.ir.source`).
#
# Positions are found apart from locations: a text that carries explicit `loc(…)` is blanked of them, parsed again and
# walked in parallel, so that every op has the line and column of its name whatever its location says.


@dataclass(frozen=True, slots=True)
class ParsedModel:
    """A model as the parser gave it.

    `text`: what positions refer to, the model's own or for bytecode the canonical print (`is_bytecode`);
    `locations`: the location attributes of all operations in pre-order, whatever is done to the module later.
    """

    module: Module
    text: str
    is_bytecode: bool
    locations: tuple[Attribute, ...]


def parse_model(parser: MlirParser, data: bytes) -> ParsedModel:
    """Parse a model, text or bytecode.

    Raises:
        ModelInvalid: it does not parse, or is text in another encoding than UTF-8.
    """
    is_bytecode = data.startswith(BYTECODE_MAGIC)
    if is_bytecode:
        module = parser.parse(data)
        text = module.operation.get_asm(enable_debug_info=False)
        text = text if text.endswith("\n") else text + "\n"
    else:
        text = _decoded(data)
        module = parser.parse(text)
    return ParsedModel(module, text, is_bytecode, location_attributes(module))


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ModelInvalid(f"line {line}: not UTF-8 text, and not MLIR bytecode either") from error


def location_attributes(module: Module) -> tuple[Attribute, ...]:
    """The location attributes of all operations of a module, in pre-order; reading them can wait."""
    return tuple(operation.location.attr for operation in walk(module.operation))


def describe(parser: MlirParser, parsed: ParsedModel) -> SourceModel:
    """The records of a parsed model; its module may have got other locations since."""
    root = parsed.module.operation
    locations = [parser.location_of(attribute) for attribute in parsed.locations]
    blanked = blank_locations(parsed.text)
    # Without a `loc(…)` in the text the parser's own locations are positions already: one parse is enough.
    again = parsed.is_bytecode or blanked != parsed.text
    printed = printed_locations(parser, root, blanked) if again else locations
    places = [_place(location) for location in printed] or [_NO_PLACE] * len(locations)
    describer = _Describer(parser, parsed.text, places, locations)
    describer.describe(root, _OUTSIDE)
    return describer.model(root, parsed.text, positions_known=bool(printed))


def describe_bare(parser: MlirParser, data: bytes, number_of: Callable[[Operation], int]) -> SourceModel:
    """The records of a model of which nobody asks lines, constants or signatures: in a fourth of the time.

    Args:
        parser: parses it.
        data: text or bytecode.
        number_of: what each operation gets in the place of its signature.

    Raises:
        ModelInvalid: as `parse_model` does.
    """
    is_bytecode = data.startswith(BYTECODE_MAGIC)
    module = parser.parse(data if is_bytecode else _decoded(data))
    describer = _BareDescriber(parser, number_of)
    describer.describe(module.operation, _OUTSIDE)
    return describer.model(module.operation, "", positions_known=False)


_NO_PLACE = FileRange(TEXT_FILE, 0, 0, 0, 0)


def _place(location: Location) -> FileRange:
    return location if isinstance(location, FileRange) else _NO_PLACE


class _Around(NamedTuple):
    """What an operation stands in.

    `parent`: the operation in whose region it is; `owner`: the op whose part it is, -1 if it is an op itself;
    `function`: the symbol of the function; `block`: the number of the block.
    """

    parent: int
    owner: int
    function: Text
    block: int


_OUTSIDE = _Around(-1, -1, UNKNOWN, 0)


class _Computed(TypedDict):
    """What is said of what an operation computes: fields of `SourceOperation`."""

    signature: int
    constant: Integer
    splat: str
    direction: str
    cases: tuple[int, ...]


class _Describer:
    """Walks a module once, in pre-order, and records its operations."""

    def __init__(self, parser: MlirParser, text: str, places: list[FileRange], locations: list[Location]) -> None:
        self._parser = parser
        self._lines = text.encode().split(b"\n")
        self._places = places
        self._locations = locations
        self._index_of: dict[Operation, int] = {}
        self._signatures = Signatures(parser, self._index_of)
        self._blocks = 0
        self._first_argument: dict[ir.Block, int] = {}
        self._place: dict[ir.Block, int] = {}
        self.operations: list[SourceOperation] = []
        self.arguments: dict[str, tuple[SourceArgument, ...]] = {}
        self.private: set[str] = set()
        self.fixed: set[str] = set()

    def model(self, root: Operation, text: str, *, positions_known: bool) -> SourceModel:
        """All that was described."""
        return SourceModel(
            name=string_attribute(root, "sym_name") or "module",
            text=text,
            operations=tuple(self.operations),
            arguments=self.arguments,
            private=frozenset(self.private),
            fixed=frozenset(self.fixed),
            positions_known=positions_known,
        )

    def describe(self, operation: Operation, around: _Around) -> None:
        """Record an operation and all below it."""
        record = self._record(operation, around)
        self.operations.append(record)
        function, owner = record.function, around.owner
        if record.name in FUNCTIONS:
            self.arguments[record.symbol] = _arguments(operation)
            self.private |= {record.symbol} if string_attribute(operation, "sym_visibility") == "private" else set()
        elif record.is_op and record.name not in CONTROL_FLOW:
            owner = record.index
            self.fixed |= {record.symbol} if _is_fixed(operation) else set()
        for region in operation.regions:
            self._count(region)
            for block in region.blocks:
                self._blocks += 1
                inside = _Around(record.index, owner, function, self._blocks)
                for child in block.operations:
                    self.describe(child.operation, inside)

    def _count(self, region: Region) -> None:
        """Note the place of each block, and its arguments: those that branches lead to have some of their own."""
        before = 0
        for place, block in enumerate(region.blocks):
            self._place[block], self._first_argument[block] = place, before
            before += len(block.arguments)

    def _record(self, operation: Operation, around: _Around) -> SourceOperation:
        index, name, symbol = len(self.operations), operation.name, _symbol(operation)
        # Before its operands are looked up: in regions without order an operation may use its own result.
        self._index_of[operation] = index
        line, column = self._position(index, name)
        results = tuple([self._parser.text_of(result.type) for result in operation.results])
        return SourceOperation(
            index=index,
            owner=index if around.owner < 0 else around.owner,
            parent=around.parent,
            name=own_name(operation, name),
            function=symbol if name in FUNCTIONS else around.function,
            parsed_location=self._location(operation, index),
            made_up=self._is_made_up(index),
            line=line,
            column=column,
            operands=tuple([self._definition(operand) for operand in operation.operands]),
            results=results,
            symbol=symbol,
            block=around.block,
            successors=tuple([self._place[block] for block in operation.successors]) if name in BRANCHES else (),
            **self._computed(operation, name, results),
        )

    def _location(self, operation: Operation, index: int) -> Location:
        return self._locations[index]

    def _computed(self, operation: Operation, name: str, results: tuple[str, ...]) -> _Computed:
        return {
            "signature": self._signatures.of(operation, name, results),
            "constant": UNKNOWN if operation.operands else constant_of(operation),
            "splat": "" if operation.operands else splat_of(operation),
            "direction": direction_of(operation),
            "cases": cases_of(operation, name),
        }

    def _is_made_up(self, index: int) -> bool:
        """Whether the location is the place at which the parser is, or would be without locations in the text."""
        parsed = self._locations[index]
        if not isinstance(parsed, FileRange) or parsed.file != TEXT_FILE:
            return False
        return parsed.line == 0 or parsed == self._places[index]

    def _position(self, index: int, name: str) -> tuple[Integer, Integer]:
        """Line and column of the name; of short forms (`stablehlo.reduce(…)`) the parser gives what follows it."""
        place = self._places[index]
        if not 0 < place.line <= len(self._lines):
            return UNKNOWN, UNKNOWN
        # Columns count bytes, so the text is looked at as bytes.
        before = self._lines[place.line - 1][: place.column - 1].rstrip()
        if before.endswith(name.encode()):
            return place.line, len(before) - len(name.encode()) + 1
        return place.line, place.column

    def _definition(self, operand: Value) -> Definition:
        if hasattr(operand, "arg_number"):  # an argument, whose owner is a block; results are owned by an operation
            block = operand.owner
            number = self._first_argument.get(block, 0) + operand.arg_number
            return Definition(self._index_of[block.owner.operation], number, argument=True)
        return Definition(self._index(operand.owner.operation), operand.result_number, argument=False)

    def _index(self, operation: Operation) -> int:
        """The place of an operation in pre-order, which may be behind its use: blocks may stand in any order."""
        known = self._index_of.get(operation)
        return self._places_in_order[operation] if known is None else known

    @cached_property
    def _places_in_order(self) -> dict[Operation, int]:
        root = next(iter(self._index_of))
        return {operation: index for index, operation in enumerate(walk(root))}


class _BareDescriber(_Describer):
    """Leaves out what takes most of the time: see `describe_bare`."""

    def __init__(self, parser: MlirParser, number_of: Callable[[Operation], int]) -> None:
        super().__init__(parser, "", [], [])
        self._number_of = number_of

    def _location(self, operation: Operation, index: int) -> Location:
        return self._parser.location(operation)

    def _is_made_up(self, index: int) -> bool:
        return False

    def _position(self, index: int, name: str) -> tuple[Integer, Integer]:
        return UNKNOWN, UNKNOWN

    def _computed(self, operation: Operation, name: str, results: tuple[str, ...]) -> _Computed:
        return {"signature": self._number_of(operation), "constant": UNKNOWN, "splat": "", "direction": "", "cases": ()}


def _symbol(operation: Operation) -> str:
    for name in ("sym_name", "callee", "global", "decomposition"):
        if name in operation.attributes:
            return string_attribute(operation, name).removeprefix("@").strip('"')
    return ""


def _is_fixed(operation: Operation) -> bool:
    """Whether an operation is a global that always has the value written with it; a parameter's is elsewhere."""
    attributes = operation.attributes
    if operation.name not in _VALUE_OF_GLOBAL or "is_mutable" in attributes:
        return False
    value = _VALUE_OF_GLOBAL[operation.name]
    return value in attributes and isinstance(attributes[value], _WRITTEN)


_VALUE_OF_GLOBAL = {"util.global": "initial_value", "ml_program.global": "value"}
"""The attribute that has the first value of a global."""
_WRITTEN = (ir.DenseElementsAttr, ir.DenseResourceElementsAttr, ir.FloatAttr, ir.IntegerAttr)


def _arguments(function: Operation) -> tuple[SourceArgument, ...]:
    if not len(function.regions) or not len(function.regions[0].blocks):
        return ()
    values = list(function.regions[0].blocks[0].arguments)
    return tuple(SourceArgument(str(value.type), bounds_loop(value)) for value in values)
