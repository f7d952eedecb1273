"""Functions of a module, with the names that the runtime's tools use. Maps store them, recordings call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracemap.core.codec import Record
from tracemap.core.errors import FunctionUnknown
from tracemap.core.units import join_names


class Argument(Record, frozen=True):
    """An argument of an entry point: its declared type, and whether it bounds a loop."""

    name: str
    type: str
    loop_bound: bool


class Function(Record, frozen=True):
    """An entry point of the module, with the name that the runtime's tools use.

    `results`: types of the results, for native code; IREE's modules state their own.
    """

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[str, ...] = ()


_MOST_NAMED: Final = 20


def function_named(functions: Sequence[Function], name: str) -> Function:
    """Find a function by name; "" means the only function.

    Raises:
        FunctionUnknown: no function has this name, or the name is empty and there is not exactly one function.
    """
    names = join_names([function.name for function in functions], most=_MOST_NAMED) or "none"
    if not name and len(functions) != 1:
        raise FunctionUnknown(f"the module has {len(functions)} functions; select one with --function: {names}")
    matches = [function for function in functions if function.name == (name or functions[0].name)]
    if not matches:
        raise FunctionUnknown(f"the module has no function {name!r}; its functions are: {names}")
    return matches[0]
