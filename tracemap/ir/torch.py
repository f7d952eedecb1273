"""Locations in a module that iree-turbine made of a program of torch: what each node of the program knows of itself.

The importer takes of a node its files and lines alone, and gives the loads of parameters the place of whichever node
comes first. So nodes are imported with places of their own (`place_of`), which give way here to what they know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from tracemap.ir.bindings import ir
from tracemap.ir.parsing import BoundLocation, Module, Operation, walk

_PLACE: Final = "tracemap: a node of torch"
_NUMBERED: Final = re.compile(rf'"{_PLACE}":(\d+):')
_LOAD: Final = "util.global.load"
_HANDS_ON: Final = "torch_c.from_builtin_tensor"
_WHOLE: Final = frozenset({"func.func", "func.return"})
"""What is of no node: the importer gives them the place of the first."""
_PREFIX: Final = "__auto."
"""What iree-turbine puts before the name of a parameter."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A call in Python; `function` is empty where it is not told."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Node:
    """What a node knows: the path of its modules with its own name behind it, and its frames, innermost first."""

    path: str
    frames: tuple[Frame, ...]


def place_of(number: int) -> str:
    """What stands for a node, counted from 0, where torch has its stack of calls."""
    return f'File "{_PLACE}", line {number + 1}, in node'


def set_locations(module: Module, nodes: Sequence[Node]) -> None:
    """Put what nodes know in the place of their numbers; loads of parameters are called as these, without a line."""
    with module.context:

        @cache
        def of_node(number: int) -> BoundLocation:
            return _location(nodes[number])

        for operation in walk(module.operation):
            number = _NUMBERED.search(str(operation.location))
            if parameter := _parameter(operation):
                operation.location = _location(Node(parameter, ()))
            elif number and operation.name in _WHOLE:
                operation.location = ir.Location.unknown()
            elif number:
                operation.location = of_node(int(number[1]) - 1)


def _parameter(operation: Operation) -> str:
    """The path of the parameter that an operation loads or hands on, "" for any other operation."""
    if operation.name == _HANDS_ON:
        owner = operation.operands[0].owner
        return _parameter(owner) if getattr(owner, "name", "") == _LOAD else ""
    if operation.name != _LOAD:
        return ""
    symbol: str = ir.FlatSymbolRefAttr(operation.attributes["global"]).value
    return symbol.removeprefix(_PREFIX).replace(".", "/")


def _location(node: Node) -> BoundLocation:
    """`"path"(callsite("f"("a.py":3:0) at …))`, as JAX writes it."""
    calls = [_frame(frame) for frame in node.frames]
    stack = calls[0] if len(calls) == 1 else ir.Location.callsite(calls[0], calls[1:]) if calls else None
    return ir.Location.name(node.path, childLoc=stack)


def _frame(frame: Frame) -> BoundLocation:
    place = ir.Location.file(frame.file, frame.line, 0)
    return ir.Location.name(frame.function, childLoc=place) if frame.function else place
