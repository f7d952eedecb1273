"""Operations that the compiler combined into a single one (raising), such as softmax.

A raised operation (IREE, GlobalOptimization/RaiseSpecialOps.cpp) replaces an idiom, and has only the location of the
idiom's last operation. The locations of the other operations are found in the previous phase, on the path between the
idiom's input and its result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracemap.ir.host import walk_hosts
from tracemap.ir.parsing import MlirParser, Module, Operation, Value, producer_of, walk
from tracemap.locations import Location

RAISED = frozenset({"linalg.softmax"})
"""Raised operations; their first operand is the input of the idiom."""

_DESTINATIONS = frozenset({"tensor.empty", "linalg.fill"})
"""Initial values of outputs. The compiler shares them between users of the same shape, so their place is arbitrary."""
_CONSTANT = "arith.constant"
_MAX_IDIOM_OPS = 32
"""Maximum of operations in an idiom."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The location of a raised operation, and the locations of the operations that it replaces."""

    location: Location
    made_of: tuple[Location, ...]


def read_raised(parser: MlirParser, before: Module, after: Module) -> tuple[Raised, ...]:
    """The raised operations and the locations that they replace, as far as the previous phase shows them.

    Raised operations that share a location are left out, because the operations of their idioms cannot be assigned.

    Args:
        parser: the parser of both modules.
        before: the phase before raising.
        after: the phase after raising.
    """
    # Keyed by identity, since the parser returns one object per distinct location.
    raised_at: dict[int, list[Operation]] = {}
    for _, operation in walk_hosts(after):
        if operation.name in RAISED:
            raised_at.setdefault(id(parser.location(operation)), []).append(operation)
    ends_at: dict[int, list[Operation]] = {key: [] for key, raised in raised_at.items() if len(raised) == 1}
    for _, operation in walk_hosts(before) if ends_at else ():
        ends = ends_at.get(id(parser.location(operation)))
        if ends is not None and _computes_tensors(operation):
            ends.append(operation)
    return tuple(_raised(parser, raised_at[key][0], ends) for key, ends in ends_at.items())


def _computes_tensors(operation: Operation) -> bool:
    name = operation.name
    return name not in _DESTINATIONS and name != _CONSTANT and any(map(_is_tensor, operation.results))


def _raised(parser: MlirParser, operation: Operation, ends: list[Operation]) -> Raised:
    idiom = _operations_between(parser, _producer_location(parser, operation.operands[0]), ends)
    return Raised(parser.location(operation), tuple(dict.fromkeys(map(parser.location, idiom))))


def _operations_between(parser: MlirParser, start: Location | None, ends: list[Operation]) -> list[Operation]:
    """The operations on all paths from a single value to `ends`; empty if they depend on other values, too.

    `start`: location of the value's producer; None for an argument.
    """
    worklist = list(ends)
    starts: set[Value] = set()
    for operation in worklist:  # grows during the loop
        inputs = [value for value in _outer_tensors(operation) if _producer_name(value) not in _DESTINATIONS]
        for value in inputs:
            producer = producer_of(value)
            if producer is None or parser.location(producer) is start:
                starts.add(value)
            elif producer.name != _CONSTANT and producer not in worklist:
                worklist.append(producer)
        if not inputs or len(worklist) > _MAX_IDIOM_OPS:
            return []  # an operation without inputs is a further value that the idiom depends on
    return worklist if [_producer_location(parser, value) for value in starts] == [start] else []


def _outer_tensors(operation: Operation) -> Iterator[Value]:
    """The tensors from outside an operation that it and its nested operations read."""
    operations = list(walk(operation))
    inside = set(operations)
    for inner in operations:
        for value in inner.operands:
            if _is_tensor(value) and _definer(value) not in inside:
                yield value


def _is_tensor(value: Value) -> bool:
    return str(value.type).startswith("tensor<")


def _definer(value: Value) -> Operation:
    """The operation that produces a value, or whose region has it as argument."""
    return producer_of(value) or value.owner.owner.operation


def _producer_name(value: Value) -> str:
    producer = producer_of(value)
    return "" if producer is None else str(producer.name)


def _producer_location(parser: MlirParser, value: Value) -> Location | None:
    producer = producer_of(value)
    return None if producer is None else parser.location(producer)
