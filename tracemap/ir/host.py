"""The host program in a phase dump: its functions and initializers, and their operations outside dispatches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tracemap.ir.parsing import Module, Operation, nested, string_attribute, symbol_path, walk

INITIALIZER = "util.initializer"
"""Operation that runs once, when the module is loaded."""
CALL = "util.call"


def walk_hosts(module: Module) -> Iterator[tuple[str, Operation]]:
    """All operations of the host program, in order, with the symbol of their function ("" in initializers)."""
    for top in nested(module.operation):
        if top.name in ("util.func", INITIALIZER):
            function = string_attribute(top, "sym_name")  # initializers have none
            yield from ((function, operation) for operation in _walk_outside_dispatches(top))


def _walk_outside_dispatches(operation: Operation) -> Iterator[Operation]:
    yield operation
    if operation.name == "flow.dispatch.workgroups":
        return
    for child in nested(operation):
        yield from _walk_outside_dispatches(child)


def called_by_initializers(module: Module) -> frozenset[str]:
    """Functions that run only at load time: initializers call them, directly or not, and nothing else does."""
    tops = nested(module.operation)
    functions = {string_attribute(top, "sym_name"): top for top in tops if top.name == "util.func"}
    calls = {name: callees(function) for name, function in functions.items()}
    from_initializers = [callee for top in tops if top.name == INITIALIZER for callee in callees(top)]
    from_outside = [name for name, function in functions.items() if is_public(function)]
    return frozenset(_closure(from_initializers, calls) - _closure(from_outside, calls))


def callees(operation: Operation) -> tuple[str, ...]:
    """The functions that an operation and its nested operations call, in order."""
    return tuple(callee_of(op) for op in walk(operation) if op.name == CALL)


def callee_of(call: Operation) -> str:
    """Name of the called function."""
    return symbol_path(call.attributes["callee"])[0]


def global_of(access: Operation) -> str:
    """Name of the global that an operation loads, stores or takes the address of."""
    return symbol_path(access.attributes["global"])[-1]


def is_public(function: Operation) -> bool:
    """Whether a function can be called from outside the module."""
    return string_attribute(function, "sym_visibility") in ("", "public")


def _closure(start: Iterable[str], calls: Mapping[str, Iterable[str]]) -> set[str]:
    """The given functions and all functions that they call, directly or not."""
    reached: set[str] = set()
    stack = list(start)
    while stack:
        function = stack.pop()
        if function not in reached:
            reached.add(function)
            stack += calls.get(function, ())
    return reached
