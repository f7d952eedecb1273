"""The model as the user wrote it: its operations, which of them are ops and which parts, and where they stand.

Positions are found apart from locations: a text that carries explicit `loc(…)` is blanked of them, parsed again and
walked in parallel, so that every op has the line and column of its name whatever its location says.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from iree.compiler import ir

from tracemap.errors import ModelInvalid
from tracemap.ir.parsing import (
    BYTECODE_MAGIC,
    Attribute,
    MlirParser,
    Module,
    Operation,
    Value,
    is_scalar_like,
    nested,
    string_attribute,
)
from tracemap.locations import FileRange, Location, Tags, UnknownLocation, parse_location
from tracemap.units import UNKNOWN, Integer, Text

CONTROL_FLOW = frozenset(
    {
        "affine.for",
        "affine.if",
        "affine.parallel",
        "builtin.module",
        "scf.execute_region",
        "scf.for",
        "scf.forall",
        "scf.if",
        "scf.index_switch",
        "scf.parallel",
        "scf.while",
        "stablehlo.case",
        "stablehlo.if",
        "stablehlo.while",
        "torch.prim.If",
        "torch.prim.Loop",
        "tosa.cond_if",
        "tosa.while_loop",
        "util.initializer",
    }
)
"""Operations whose regions hold ops of their own right; in any other operation's region stand its parts."""

FUNCTIONS = frozenset({"func.func", "util.func", "ml_program.func"})

TEXT_FILE = "-"
"""The file name in locations that the parser makes for text that it is handed without a name."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from: result `number` of the operation `maker`, or argument `number` of its region.

    Arguments of functions are arguments of the function operation.
    """

    maker: int
    number: int
    argument: bool


@dataclass(frozen=True, slots=True)
class SourceOperation:
    """One operation of the parsed module, op or part.

    `index`: its pre-order place over all operations; `owner`: the index of the op whose part it is (its own index for
    ops); `function`: the symbol of the enclosing function; `line`, `column`: of its name in the text;
    `operands`: where each operand comes from; `results`: the printed types of its results;
    `symbol`: the name it defines, or the one it refers to: the callee of a call, the global of a load;
    `signature`: equal for operations that compute the same from equal operands; `block`: the number of the block that
    it stands in, unique in the model.
    """

    index: int
    owner: int
    parent: int
    name: str
    function: Text
    location: Location
    line: Integer
    column: Integer
    operands: tuple[Source, ...]
    results: tuple[str, ...]
    symbol: str
    signature: int
    block: int

    @property
    def is_op(self) -> bool:
        """Whether it is an op, not a part."""
        return self.owner == self.index


@dataclass(frozen=True, slots=True)
class SourceArgument:
    """An argument of a function: whether its value decides how often a loop runs."""

    type: str
    loop_bound: bool


@dataclass(frozen=True, slots=True)
class SourceModel:
    """The model: its name, text, operations in pre-order, and its functions' arguments by symbol.

    `private`: the functions that only the module itself can call.
    """

    name: str
    text: str
    operations: tuple[SourceOperation, ...]
    arguments: dict[str, tuple[SourceArgument, ...]]
    private: frozenset[str]
    positions_known: bool


def is_bytecode(data: bytes) -> bool:
    """Whether the data is MLIR bytecode rather than text."""
    return data.startswith(BYTECODE_MAGIC)


def read_model(parser: MlirParser, data: bytes) -> tuple[Module, str]:
    """Parse a model; the text that positions refer to is the model's own, or for bytecode the canonical print.

    Raises:
        ModelInvalid: it does not parse, or is text in another encoding than UTF-8.
    """
    if is_bytecode(data):
        module = parser.parse(data)
        text = module.operation.get_asm(enable_debug_info=False)
        return module, text if text.endswith("\n") else text + "\n"
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ModelInvalid(f"line {line}: not UTF-8 text, and not MLIR bytecode either") from error
    return parser.parse(text), text


def describe(
    parser: MlirParser, module: Module, text: str, written: Sequence[Attribute], *, is_text: bool
) -> SourceModel:
    """The records of a parsed module.

    `written`: the location attributes of all operations in pre-order before tags were put in;
    `is_text`: the module was parsed from `text` (not from bytecode).
    """
    root = module.operation
    blanked = blank_locations(text)
    locations = [parser.location_of(attribute) for attribute in written]
    positions = [_place(location) for location in locations]
    known = True
    if not is_text or blanked != text:
        positions, known = _positions_in(parser, root, blanked)
    describer = _Describer(text, positions, locations)
    describer.describe(root)
    return SourceModel(
        name=string_attribute(root, "sym_name") or "module",
        text=text,
        operations=tuple(describer.operations),
        arguments=describer.arguments,
        private=frozenset(describer.private),
        positions_known=known,
    )


def _positions_in(parser: MlirParser, root: Operation, text: str) -> tuple[list[FileRange], bool]:
    """The place of all operations in pre-order from a second parse, and whether that one shows the same operations."""
    names = [operation.name for operation in _walk_all(root)]
    try:
        again = _walk_all(parser.parse(text).operation)
    except ModelInvalid:
        again = []
    if names != [operation.name for operation in again]:
        return [_NO_PLACE] * len(names), False
    return [_place(parser.location(operation)) for operation in again], True


def _walk_all(operation: Operation) -> list[Operation]:
    found = [operation]
    for child in nested(operation):
        found.extend(_walk_all(child))
    return found


_NO_PLACE = FileRange(TEXT_FILE, 0, 0, 0, 0)


def _place(location: Location) -> FileRange:
    return location if isinstance(location, FileRange) else _NO_PLACE


class _Describer:
    """Walks a module once, numbering operations, and follows loop bounds back to arguments."""

    def __init__(self, text: str, positions: Sequence[FileRange], written: Sequence[Location]) -> None:
        self._lines = text.encode().split(b"\n")
        self._positions = positions
        self._written = written
        self.operations: list[SourceOperation] = []
        self.arguments: dict[str, tuple[SourceArgument, ...]] = {}
        self.private: set[str] = set()
        self._index_of: dict[Operation, int] = {}
        self._signatures: dict[Hashable, int] = {}
        self._blocks = 0

    def describe(
        self,
        operation: Operation,
        parent: int = -1,
        owner: int = -1,
        function: Text = UNKNOWN,
        block: int = 0,
    ) -> None:
        """Record an operation and all below it.

        `owner`: the op it is a part of, -1 if it is an op itself; `block`: the number of the block that it is in.
        """
        index = len(self.operations)
        self._index_of[operation] = index
        name = operation.name
        symbol = _symbol(operation)
        if name in FUNCTIONS:
            function = symbol
        location = self._written[index]
        line, column = self._position(index, name)
        operands = tuple(self._source(operand) for operand in operation.operands)
        results = tuple(str(result.type) for result in operation.results)
        self.operations.append(
            SourceOperation(
                index=index,
                owner=index if owner < 0 else owner,
                parent=parent,
                name=_operator_name(operation, name),
                function=function,
                location=UnknownLocation() if self._is_made_up(location, line, column) else location,
                line=line,
                column=column,
                operands=operands,
                results=results,
                symbol=symbol,
                signature=self._signature(operation, name, results),
                block=block,
            )
        )
        if name in FUNCTIONS:
            self.arguments[symbol] = _arguments(operation)
            if string_attribute(operation, "sym_visibility") == "private":
                self.private.add(symbol)
        child_owner = owner
        if owner < 0 and name not in CONTROL_FLOW and name not in FUNCTIONS:
            child_owner = index
        for region in operation.regions:
            for inside in region.blocks:
                self._blocks += 1
                number = self._blocks
                for child in inside.operations:
                    self.describe(child.operation, index, child_owner, function, number)

    def _position(self, index: int, name: str) -> tuple[Integer, Integer]:
        """Line and column of the name; of short forms (`stablehlo.reduce(…)`) the parser gives what follows it."""
        place = self._positions[index]
        if not 0 < place.line <= len(self._lines):
            return UNKNOWN, UNKNOWN
        before = self._lines[place.line - 1][: place.column - 1].rstrip()
        if before.endswith(name.encode()):
            return place.line, len(before) - len(name.encode()) + 1
        return place.line, place.column

    @staticmethod
    def _is_made_up(location: Location, line: Integer, column: Integer) -> bool:
        """Whether the parser made the location up, for want of one in the text."""
        if not isinstance(location, FileRange) or location.file != TEXT_FILE:
            return False
        return (location.line, location.column) == (line, column) or location.line == 0

    def _source(self, operand: Value) -> Source:
        if hasattr(operand, "arg_number"):
            return Source(self._index_of[operand.owner.owner.operation], operand.arg_number, argument=True)
        return Source(self._index_of[operand.owner.operation], operand.result_number, argument=False)

    def _signature(self, operation: Operation, name: str, results: tuple[str, ...]) -> int:
        """A number for what the operation computes from its operands; see `SourceOperation.signature`."""
        content = (name, self._attributes(operation), results, self._regions(operation))
        return self._signatures.setdefault(content, len(self._signatures))

    def _attributes(self, operation: Operation) -> Hashable:
        attributes = operation.attributes
        try:
            return tuple((name, attributes[name]) for name in attributes)
        except TypeError:  # the bindings cannot hand out attributes that are locations: like no other
            return len(self.operations)

    def _regions(self, operation: Operation) -> Hashable:
        """What stands in an operation's regions: names, attributes, types, and where values come from within it."""
        if not len(operation.regions):
            return ()
        inside = _walk_all(operation)[1:]
        place = {each: number for number, each in enumerate(inside)}

        def source(value: Value) -> Hashable:
            if hasattr(value, "arg_number"):
                return ("argument", value.arg_number, place.get(value.owner.owner.operation, -1))
            owner = value.owner.operation
            outside = ("outside", self._index_of.get(owner, -1), value.result_number)
            return (place[owner], value.result_number) if owner in place else outside

        return tuple(
            (
                each.name,
                self._attributes(each),
                tuple(map(source, each.operands)),
                tuple(str(r.type) for r in each.results),
            )
            for each in inside
        )


def _symbol(operation: Operation) -> str:
    for name in ("sym_name", "callee", "global"):
        if name in operation.attributes:
            return string_attribute(operation, name).removeprefix("@").strip('"')
    return ""


def _operator_name(operation: Operation, name: str) -> str:
    """The op's name; ONNX ops come as `torch.operator "onnx.Add"` and are called by their own name."""
    if name == "torch.operator":
        return string_attribute(operation, "name") or name
    return name


def _arguments(function: Operation) -> tuple[SourceArgument, ...]:
    if not len(function.regions) or not len(function.regions[0].blocks):
        return ()
    values = list(function.regions[0].blocks[0].arguments)
    return tuple(
        SourceArgument(str(value.type), is_scalar_like(value) and _bounds_loop(value, set())) for value in values
    )


_LOOP_BOUND_OPERANDS = {"scf.for": slice(0, 3), "scf.parallel": slice(0, None), "scf.forall": slice(0, None)}


def _bounds_loop(value: Operation, seen: set[object]) -> bool:
    """Whether a scalar's value reaches the bounds of a counted loop or the condition of a while loop."""
    if value in seen:
        return False
    seen.add(value)
    return any(_use_bounds_loop(use.owner.operation, use.operand_number, seen) for use in value.uses)


def _use_bounds_loop(user: Operation, number: int, seen: set[object]) -> bool:
    if user.name in _LOOP_BOUND_OPERANDS:
        bounds = range(len(user.operands))[_LOOP_BOUND_OPERANDS[user.name]]
        return number in bounds
    if user.name in ("scf.while", "stablehlo.while"):
        return _bounds_loop(user.regions[0].blocks[0].arguments[number], seen)
    if user.name == "scf.condition":
        return number == 0
    if user.name == "stablehlo.return" and user.parent.operation.name == "stablehlo.while":
        return _is_first_region(user)
    return any(_bounds_loop(result, seen) for result in user.results if is_scalar_like(result))


def _is_first_region(terminator: Operation) -> bool:
    first = terminator.parent.operation.regions[0].blocks[0]
    return any(operation.operation == terminator for operation in first.operations)


# What matters when looking for `loc(`: strings and comments, in which it means nothing, and blobs at the end.
_LOC = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|(?<![\w.$#@%!-])loc\s*\(')
_INSIDE_LOC = re.compile(r'"(?:[^"\\]|\\.)*"|[()]', re.DOTALL)


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


def written_locations(module: Module) -> list[Attribute]:
    """The location attributes of all operations of a module, in pre-order; reading them can wait."""
    return [operation.location.attr for operation in _walk_all(module.operation)]


def tag_operations(module: Module, tags: Tags, file_name: str = TEXT_FILE) -> None:
    """Set every operation's location to `fused[old, tag]`; tags count operations in pre-order from 0.

    The module's own keeps its location (IREE names libraries after it); one that the parser made up gets the file's
    name, as iree-compile would have given it.
    """
    root, *operations = _walk_all(module.operation)
    with module.context:
        made_up = parse_location(str(root.location))
        if isinstance(made_up, FileRange) and made_up.file == TEXT_FILE:
            root.location = ir.Location.file(file_name, made_up.line, made_up.column)
        for index, operation in enumerate(operations, start=1):
            operation.location = ir.Location.fused([operation.location, ir.Location.name(tags.name(index))])
