"""What the compiler made one operation of: those of the phase before, between what it reads and what it yields.

An operation that is raised (IREE, GlobalOptimization/RaiseSpecialOps.cpp) takes the place of the last operation of an
idiom, and has that one's location alone; the locations of the others are found on the way that it replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracemap.ir.host import walk_hosts
from tracemap.ir.parsing import MlirParser, Module, Operation, Value, maker_of, walk
from tracemap.locations import Location

RAISED = frozenset({"linalg.softmax"})
"""Operations that stand for an idiom; their first operand is what the idiom reads."""

_DESTINATIONS = frozenset({"tensor.empty", "linalg.fill"})
"""They hold nothing of their own, so the compiler makes one for all that need its shape, wherever the first stands."""
_CONSTANT = "arith.constant"
_MOST_BETWEEN = 32
"""How many operations an idiom may have."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The location of an operation that was raised, and those of the operations that it was made of."""

    location: Location
    made_of: tuple[Location, ...]


def read_raised(parser: MlirParser, before: Module, after: Module) -> tuple[Raised, ...]:
    """What raised operations were made of, as far as the phase before shows it; each location once.

    Of several at one location nothing is told: the operations before them could be of any.

    Args:
        parser: of both modules.
        before: the phase before any was raised.
        after: the phase in which they stand.
    """
    # By identity, as parsers hand out one object per distinct location.
    found: dict[int, list[Operation]] = {}
    for _, operation in walk_hosts(after):
        if operation.name in RAISED:
            found.setdefault(id(parser.location(operation)), []).append(operation)
    at: dict[int, list[Operation]] = {place: [] for place, raised in found.items() if len(raised) == 1}
    for _, operation in walk_hosts(before) if at else ():
        ends = at.get(id(parser.location(operation)))
        if ends is not None and _computes_tensors(operation):
            ends.append(operation)
    return tuple(_raised(parser, found[place][0], ends) for place, ends in at.items())


def _computes_tensors(operation: Operation) -> bool:
    name = operation.name
    return name not in _DESTINATIONS and name != _CONSTANT and any(map(_is_tensor, operation.results))


def _raised(parser: MlirParser, operation: Operation, ends: list[Operation]) -> Raised:
    between = _between(parser, _made_at(parser, operation.operands[0]), ends)
    return Raised(parser.location(operation), tuple(dict.fromkeys(map(parser.location, between))))


def _between(parser: MlirParser, start: Location | None, ends: list[Operation]) -> list[Operation]:
    """The operations from a value to some that need no other, these included; none where they need others.

    `start`: where the value is made; None for an argument.
    """
    found = list(ends)
    starts: set[Value] = set()
    for operation in found:  # which grows meanwhile
        read = [value for value in _tensors_read(operation) if _name_of_maker(value) not in _DESTINATIONS]
        for value in read:
            maker = maker_of(value)
            if maker is None or parser.location(maker) is start:
                starts.add(value)
            elif maker.name != _CONSTANT and maker not in found:
                found.append(maker)
        if not read or len(found) > _MOST_BETWEEN:
            return []  # a value that is made of none is one that the others need
    return found if [_made_at(parser, value) for value in starts] == [start] else []


def _tensors_read(operation: Operation) -> Iterator[Value]:
    """The tensors that an operation, or what is in its regions, reads of what is made outside of it."""
    within = list(walk(operation))
    inside = set(within)
    for each in within:
        for value in each.operands:
            if _is_tensor(value) and _holder(value) not in inside:
                yield value


def _is_tensor(value: Value) -> bool:
    return str(value.type).startswith("tensor<")


def _holder(value: Value) -> Operation:
    """The operation that makes a value, or in whose region it is an argument."""
    return maker_of(value) or value.owner.owner.operation


def _name_of_maker(value: Value) -> str:
    maker = maker_of(value)
    return "" if maker is None else str(maker.name)


def _made_at(parser: MlirParser, value: Value) -> Location | None:
    maker = maker_of(value)
    return None if maker is None else parser.location(maker)
