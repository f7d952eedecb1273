"""What the compiler made one operation of: those of the phase before, between what it reads and what it yields.

An operation that is raised (IREE, GlobalOptimization/RaiseSpecialOps.cpp) takes the place of the last operation of an
idiom, and has that one's location alone; the locations of the others are found on the way that it replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracemap.ir.host import walk_hosts
from tracemap.ir.parsing import MlirParser, Module, Operation, Value, walk
from tracemap.locations import Location

RAISED = frozenset({"linalg.softmax"})
"""Operations that stand for an idiom; their first operand is what the idiom reads."""

_MOST_BETWEEN = 64
"""How many operations an idiom may have, those that make its destinations included."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The location of an operation that was raised, and those of the operations that it was made of."""

    location: Location
    made_of: tuple[Location, ...]


def read_raised(parser: MlirParser, before: Module, after: Module) -> tuple[Raised, ...]:
    """What raised operations were made of, as far as the phase before shows it.

    Args:
        parser: of both modules.
        before: the phase before any was raised.
        after: the phase in which they stand.
    """
    found = [operation for _, operation in walk_hosts(after) if operation.name in RAISED]
    # By identity, as parsers hand out one object per distinct location.
    at: dict[int, list[Operation]] = {id(parser.location(operation)): [] for operation in found}
    for _, operation in walk_hosts(before) if found else ():
        ends = at.get(id(parser.location(operation)))
        if ends is not None:
            ends.append(operation)
    return tuple(_raised(parser, operation, at) for operation in found)


def _raised(parser: MlirParser, operation: Operation, at: dict[int, list[Operation]]) -> Raised:
    location = parser.location(operation)
    between = _between(parser, _made_at(parser, operation.operands[0]), at[id(location)])
    return Raised(location, tuple(dict.fromkeys(map(parser.location, between))))


def _between(parser: MlirParser, start: Location | None, ends: list[Operation]) -> list[Operation]:
    """The operations from a value to some that need no other, these included; none where they need others.

    `start`: where the value is made; None for an argument.
    """
    found = list(ends)
    starts: set[Value] = set()
    for operation in found:  # which grows meanwhile
        for value in _tensors_read(operation):
            maker = _maker(value)
            if maker is None or parser.location(maker) is start:
                starts.add(value)
            elif maker not in found:
                found.append(maker)
        if len(found) > _MOST_BETWEEN:
            return []
    return found if [_made_at(parser, value) for value in starts] == [start] else []


def _tensors_read(operation: Operation) -> Iterator[Value]:
    """The tensors that an operation, or what is in its regions, reads of what is made outside of it."""
    inside = set(walk(operation))
    for each in inside:
        for value in each.operands:
            if str(value.type).startswith("tensor<") and _maker(value) not in inside:
                yield value


def _maker(value: Value) -> Operation | None:
    """The operation that makes a value; None for an argument, which is of a block."""
    return getattr(value.owner, "operation", None)


def _made_at(parser: MlirParser, value: Value) -> Location | None:
    maker = _maker(value)
    return None if maker is None else parser.location(maker)
