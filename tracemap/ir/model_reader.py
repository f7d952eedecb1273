"""Read models: parse bytes, and turn operations into records."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypedDict

from tracemap.core.errors import ModelInvalid
from tracemap.core.locations import STRING, FileRange, Fused, Location, Name
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.ir.attributes import constant_of, direction_of, splat_of
from tracemap.ir.dispatch_bodies import bounds_loop
from tracemap.ir.parsing import (
    BYTECODE_MAGIC,
    Attribute,
    MlirParser,
    Module,
    Operation,
    Region,
    Value,
    entry_arguments,
    ir,
    printed_locations,
    string_attribute,
    unwrapped_name,
    walk,
)
from tracemap.ir.source_model import (
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

# ---- blanking

# Strings and comments are matched as well, since a `loc(` in them is no location.
_LOC = re.compile(r'"(?:[^"\\\n]++|\\.)*+"|//[^\n]*|(?<![\w.$#@%!-])loc\s*\(')
_INSIDE_LOC = re.compile(STRING + r"|[()]", re.DOTALL)


def blank_locations(text: str) -> str:
    """Replace every trailing `loc(…)` by spaces, so that all other characters keep their positions.

    Locations used as values (`#loc = loc(…)`, `{attribute = loc(…)}`) stay, since the text would not parse without
    them. They do not affect the positions of operations.
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
    """The position after the parenthesis that closes the one directly before `position`."""
    depth = 1
    while depth and (match := _INSIDE_LOC.search(text, position)) is not None:
        depth += (match.group() == "(") - (match.group() == ")")
        position = match.end()
    return position if depth == 0 else len(text)


# ---- reading
#
# Positions are independent of locations. If a text contains `loc(…)`, they are blanked, and the text is parsed again
# and traversed in parallel. So every op has the line and column of its name, whatever its location is.


@dataclass(frozen=True, slots=True)
class ParsedModel:
    """A parsed model.

    `text`: the text that positions refer to, which for bytecode (`is_bytecode`) is the printed module; `locations`:
    original location attributes of all operations in pre-order, even if the module is changed later.
    """

    module: Module
    text: str
    is_bytecode: bool
    locations: tuple[Attribute, ...]


def parse_model(parser: MlirParser, data: bytes) -> ParsedModel:
    """Parse a model from text or bytecode.

    Raises:
        ModelInvalid: the model does not parse, or is text in another encoding than UTF-8.
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
        raise ModelInvalid(f"line {line}: neither UTF-8 text nor MLIR bytecode") from error


def location_attributes(module: Module) -> tuple[Attribute, ...]:
    """The location attributes of all operations of a module, in pre-order, not yet read."""
    return tuple(operation.location.attr for operation in walk(module.operation))


def create_records(parser: MlirParser, parsed: ParsedModel) -> SourceModel:
    """Create the records of a parsed model; the locations of its module may have been replaced since."""
    root = parsed.module.operation
    locations = [parser.location_of(attribute) for attribute in parsed.locations]
    blanked = blank_locations(parsed.text)
    # Without `loc(…)` in the text, the parser's locations are the positions, and no second parse is needed.
    parse_again = parsed.is_bytecode or blanked != parsed.text
    printed = printed_locations(parser, root, blanked) if parse_again else locations
    positions = [place if isinstance(place, FileRange) else _NO_POSITION for place in printed]
    positions = positions or [_NO_POSITION] * len(locations)
    describer = _Describer(parser, parsed.text, positions, locations)
    describer.describe(root, _OUTSIDE)
    return describer.model(root, parsed.text, positions_known=bool(printed))


def create_records_without_positions(
    parser: MlirParser, data: bytes, number_of: Callable[[Operation], int]
) -> SourceModel:
    """Create records without lines and constants, in a quarter of the time.

    Args:
        parser: the parser for the model.
        data: text or bytecode.
        number_of: computes the number to use as signature of an operation.

    Raises:
        ModelInvalid: as `parse_model`.
    """
    is_bytecode = data.startswith(BYTECODE_MAGIC)
    module = parser.parse(data if is_bytecode else _decoded(data))
    describer = _BareDescriber(parser, number_of)
    describer.describe(module.operation, _OUTSIDE)
    return describer.model(module.operation, "", positions_known=False)


_NO_POSITION = FileRange(TEXT_FILE, 0, 0, 0, 0)


class _Context(NamedTuple):
    """The surroundings of an operation.

    `parent`: the enclosing operation; `owner`: the op that it is a part of, -1 for ops; `function`: symbol of the
    enclosing function; `block`: number of the enclosing block.
    """

    parent: int
    owner: int
    function: Text
    block: int


_OUTSIDE = _Context(-1, -1, UNKNOWN, 0)


class _Computation(TypedDict):
    """The fields of `SourceOperation` on its computation."""

    signature: int
    constant: Integer
    splat: str
    direction: str
    cases: tuple[int, ...]


_ARGUMENT: Final = re.compile(rb"%([\w.$-]+)\s*:", re.ASCII)
_PRINTED_NAME: Final = re.compile(rb"arg\d+|\d+")
"""Names that MLIR's printer gives to arguments."""


class _Describer:
    """Traverses a module in pre-order and records its operations."""

    def __init__(self, parser: MlirParser, text: str, positions: list[FileRange], locations: list[Location]) -> None:
        self._parser = parser
        self._lines = text.encode().split(b"\n")
        self._positions = positions
        self._locations = locations
        self._index_of: dict[Operation, int] = {}
        self._signatures = Signatures(parser, self._index_of)
        self._blocks = 0
        self._first_argument: dict[ir.Block, int] = {}
        self._index_of_block: dict[ir.Block, int] = {}
        self.operations: list[SourceOperation] = []
        self.arguments: dict[str, tuple[SourceArgument, ...]] = {}
        self.private: set[str] = set()
        self.fixed: set[str] = set()

    def model(self, root: Operation, text: str, *, positions_known: bool) -> SourceModel:
        """The model of all recorded operations."""
        return SourceModel(
            name=string_attribute(root, "sym_name") or "module",
            text=text,
            operations=tuple(self.operations),
            arguments=self.arguments,
            private=frozenset(self.private),
            fixed=frozenset(self.fixed),
            positions_known=positions_known,
        )

    def describe(self, operation: Operation, context: _Context) -> None:
        """Record an operation and all operations nested in it."""
        record = self._record(operation, context)
        self.operations.append(record)
        function, owner = record.function, context.owner
        if record.name in FUNCTIONS:
            arguments = entry_arguments(operation)
            self.arguments[record.symbol] = tuple(
                SourceArgument(str(value.type), bounds_loop(value), self._argument_name(value)) for value in arguments
            )
            self.private |= {record.symbol} if string_attribute(operation, "sym_visibility") == "private" else set()
        elif record.is_op and record.name not in CONTROL_FLOW:
            owner = record.index
            self.fixed |= {record.symbol} if _is_fixed(operation) else set()
        for region in operation.regions:
            self._number_blocks(region)
            for block in region.blocks:
                self._blocks += 1
                inside = _Context(record.index, owner, function, self._blocks)
                for child in block.operations:
                    self.describe(child.operation, inside)

    def _number_blocks(self, region: Region) -> None:
        """Number the blocks of a region, and their arguments continuously."""
        first = 0
        for index, block in enumerate(region.blocks):
            self._index_of_block[block], self._first_argument[block] = index, first
            first += len(block.arguments)

    def _record(self, operation: Operation, context: _Context) -> SourceOperation:
        index, name, symbol = len(self.operations), operation.name, _symbol(operation)
        # First, since in regions without order an operation may use its own result.
        self._index_of[operation] = index
        line, column = self._position(index, name)
        results = tuple([self._parser.text_of(result.type) for result in operation.results])
        return SourceOperation(
            index=index,
            owner=index if context.owner < 0 else context.owner,
            parent=context.parent,
            name=unwrapped_name(operation, name),
            function=symbol if name in FUNCTIONS else context.function,
            parsed_location=self._location(operation, index),
            made_up=self._is_made_up(index),
            line=line,
            column=column,
            operands=tuple([self._definition(operand) for operand in operation.operands]),
            results=results,
            symbol=symbol,
            block=context.block,
            successors=tuple([self._index_of_block[block] for block in operation.successors])
            if name in BRANCHES
            else (),
            **self._computation(operation, name, results),
        )

    def _location(self, operation: Operation, index: int) -> Location:
        return self._locations[index]

    def _argument_name(self, argument: Value) -> str:
        """The name in an argument's location, as frontends write it, else in the text; "" if it has none."""
        location = self._parser.location_of(argument.location.attr)
        if isinstance(location, Fused):
            location = next((inner for inner in location.locations if isinstance(inner, Name)), location)
        if isinstance(location, Name):
            return location.name
        if isinstance(location, FileRange) and location.file == TEXT_FILE and 0 < location.line <= len(self._lines):
            line = self._lines[location.line - 1]
            match = _ARGUMENT.match(line, location.column - 1)
            return match[1].decode() if match and not _PRINTED_NAME.fullmatch(match[1]) else ""
        return ""

    def _computation(self, operation: Operation, name: str, results: tuple[str, ...]) -> _Computation:
        return {
            "signature": self._signatures.of(operation, name, results),
            "constant": UNKNOWN if operation.operands else constant_of(operation),
            "splat": "" if operation.operands else splat_of(operation),
            "direction": direction_of(operation),
            "cases": tuple(operation.attributes["cases"]) if name == "scf.index_switch" else (),
        }

    def _is_made_up(self, index: int) -> bool:
        """Whether the location is the parser's own position, in the text with or without its locations."""
        parsed = self._locations[index]
        if not isinstance(parsed, FileRange) or parsed.file != TEXT_FILE:
            return False
        return parsed.line == 0 or parsed == self._positions[index]

    def _position(self, index: int, name: str) -> tuple[Integer, Integer]:
        """Line and column of the name. In short forms (`stablehlo.reduce(…)`) the position follows the name."""
        position = self._positions[index]
        if not 0 < position.line <= len(self._lines):
            return UNKNOWN, UNKNOWN
        # Columns count bytes.
        before = self._lines[position.line - 1][: position.column - 1].rstrip()
        if before.endswith(name.encode()):
            return position.line, len(before) - len(name.encode()) + 1
        return position.line, position.column

    def _definition(self, operand: Value) -> Definition:
        if hasattr(operand, "arg_number"):  # a block argument; its owner is a block
            block = operand.owner
            number = self._first_argument.get(block, 0) + operand.arg_number
            return Definition(self._index_of[block.owner.operation], number, argument=True)
        return Definition(self._index(operand.owner.operation), operand.result_number, argument=False)

    def _index(self, operation: Operation) -> int:
        """The pre-order index of an operation, which may come after its use, since blocks may be in any order."""
        index = self._index_of.get(operation)
        return self._all_indices[operation] if index is None else index

    @cached_property
    def _all_indices(self) -> dict[Operation, int]:
        root = next(iter(self._index_of))
        return {operation: index for index, operation in enumerate(walk(root))}


class _BareDescriber(_Describer):
    """Describer without the expensive fields; see `create_records_without_positions`."""

    def __init__(self, parser: MlirParser, number_of: Callable[[Operation], int]) -> None:
        super().__init__(parser, "", [], [])
        self._number_of = number_of

    def _location(self, operation: Operation, index: int) -> Location:
        return self._parser.location(operation)

    def _is_made_up(self, index: int) -> bool:
        return False

    def _position(self, index: int, name: str) -> tuple[Integer, Integer]:
        return UNKNOWN, UNKNOWN

    def _computation(self, operation: Operation, name: str, results: tuple[str, ...]) -> _Computation:
        return {"signature": self._number_of(operation), "constant": UNKNOWN, "splat": "", "direction": "", "cases": ()}


def _symbol(operation: Operation) -> str:
    for name in ("sym_name", "callee", "global", "decomposition"):
        if name in operation.attributes:
            return string_attribute(operation, name).removeprefix("@").strip('"')
    return ""


def _is_fixed(operation: Operation) -> bool:
    """Whether an operation is a global that never changes from the initial value in the text (unlike a parameter)."""
    attributes = operation.attributes
    if operation.name not in _VALUE_OF_GLOBAL or "is_mutable" in attributes:
        return False
    value = _VALUE_OF_GLOBAL[operation.name]
    literals = (ir.DenseElementsAttr, ir.DenseResourceElementsAttr, ir.FloatAttr, ir.IntegerAttr)
    return value in attributes and isinstance(attributes[value], literals)


_VALUE_OF_GLOBAL = {"util.global": "initial_value", "ml_program.global": "value"}
"""The attribute with the initial value of a global."""
