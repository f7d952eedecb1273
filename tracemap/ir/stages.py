"""The operations of a stage of lowering as a tree: where each came from, and on which line of the text it stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracemap.ir.parsing import MlirParser, Module, Operation, nested, printed_locations, string_attribute
from tracemap.ir.positions import computes_index
from tracemap.locations import FileRange, Location
from tracemap.units import UNKNOWN, Integer

_ELEMENTS_SHOWN = 16
"""Constants with more elements, and resources of more characters, are left out of the text of a stage."""


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
    return tuple(map(_line, printed_locations(parser, module.operation, text)))


def _line(location: Location) -> Integer:
    return location.line if isinstance(location, FileRange) and location.line > 0 else UNKNOWN


def read_stage(parser: MlirParser, module: Module, lines: Sequence[Integer]) -> StageOp:
    """The operations of a module as a tree; `lines` in pre-order, empty where they are not known."""
    return _read(parser, module.operation, "", iter(lines))


def _read(parser: MlirParser, operation: Operation, function: str, lines: Iterator[Integer]) -> StageOp:
    line = next(lines, UNKNOWN)
    if operation.name != "builtin.module":
        function = string_attribute(operation, "sym_name") or function
    return StageOp(
        name=operation.name,
        location=parser.location(operation),
        function=function,
        line=line,
        computes_index=computes_index(parser, operation),
        children=tuple(_read(parser, child, function, lines) for child in nested(operation)),
    )
