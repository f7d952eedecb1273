"""The functions of a module, as the runtime's tools name and call them: a map keeps them, a recording calls one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracemap.codec import Record
from tracemap.errors import FunctionUnknown
from tracemap.units import listed


class Argument(Record, frozen=True):
    """An argument of an entry point: its declared type, and whether it decides how often a loop runs."""

    name: str
    type: str
    loop_bound: bool


class Function(Record, frozen=True):
    """An entry point of the module, as the runtime's tools name it."""

    name: str
    arguments: tuple[Argument, ...]


_MOST_NAMED: Final = 20


def function_named(functions: Sequence[Function], name: str) -> Function:
    """The function of a name; without a name ("") the only one.

    Raises:
        FunctionUnknown: there is none of that name, or several and none was named.
    """
    there = listed([function.name for function in functions], most=_MOST_NAMED) or "none"
    if not name and len(functions) != 1:
        raise FunctionUnknown(f"the module has {len(functions)} functions; name one with --function: {there}")
    found = [function for function in functions if function.name == (name or functions[0].name)]
    if not found:
        raise FunctionUnknown(f"the module has no function {name!r}; it has: {there}")
    return found[0]
