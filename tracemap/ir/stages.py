"""The operations of a stage of lowering as a tree: where each came from, and on which line of the text it stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracemap.errors import ModelInvalid
from tracemap.ir.parsing import MlirParser, Module, Operation, nested, string_attribute, walk
from tracemap.locations import FileRange, Location
from tracemap.units import UNKNOWN, Integer

_ELEMENTS_SHOWN = 16
"""Constants with more elements, and resources of more characters, are left out of the text of a stage."""
_INDEX = "index"


@dataclass(frozen=True, slots=True)
class StageOp:
    """An operation of a stage, and those in its regions.

    `function`: the innermost symbol around it that is no module, "" where there is none; `line`: in the stage's text;
    `computes_index`: all its results are indices.
    """

    name: str
    location: Location
    function: str
    line: Integer
    computes_index: bool
    children: tuple[StageOp, ...]

    def walk(self) -> Iterator[StageOp]:
        """The operation and all in it, in the order of the text."""
        yield self
        for child in self.children:
            yield from child.walk()


def stage_text(module: Module) -> str:
    """The module as text without locations; large constants are left out."""
    text: str = module.operation.get_asm(
        enable_debug_info=False, large_elements_limit=_ELEMENTS_SHOWN, large_resource_limit=_ELEMENTS_SHOWN
    )
    return text if text.endswith("\n") else text + "\n"


def lines_in(parser: MlirParser, module: Module, text: str) -> tuple[Integer, ...]:
    """The line of each operation, in pre-order, in the text of the module; none where the text shows others."""
    try:
        printed = list(walk(parser.parse(text).operation))
    except ModelInvalid:
        return ()
    if [operation.name for operation in printed] != [operation.name for operation in walk(module.operation)]:
        return ()
    return tuple(_line(parser.location(operation)) for operation in printed)


def _line(location: Location) -> Integer:
    return location.line if isinstance(location, FileRange) and location.line > 0 else UNKNOWN


def read_stage(parser: MlirParser, module: Module, lines: Sequence[Integer]) -> StageOp:
    """The operations of a module as a tree; `lines` in pre-order, empty where they are not known."""
    return _Reader(parser, lines).read(module.operation, "")


class _Reader:
    def __init__(self, parser: MlirParser, lines: Sequence[Integer]) -> None:
        self._parser = parser
        self._lines = iter(lines)

    def read(self, operation: Operation, function: str) -> StageOp:
        name = operation.name
        line = next(self._lines, UNKNOWN)
        if name != "builtin.module":
            function = string_attribute(operation, "sym_name") or function
        types = [str(result.type) for result in operation.results]
        return StageOp(
            name=name,
            location=self._parser.location(operation),
            function=function,
            line=line,
            computes_index=bool(types) and all(each == _INDEX for each in types),
            children=tuple(self.read(child, function) for child in nested(operation)),
        )
