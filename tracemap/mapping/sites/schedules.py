"""Schedules: what a call of an entry point submits, as all ways through the host program of the hal phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.graph.model import Schedule, Submission, Transfer
from tracemap.ir.hal import HalProgram
from tracemap.ir.queues import ENTRY, EXIT, HalFunction, HalPoint
from tracemap.mapping.sites.owners import Owners
from tracemap.units import UNKNOWN, Text

MOVES = ("copy", "fill", "update")
"""The kinds of what moves elements without a kernel: commands of buffers, and what functions submit by themselves."""
_MOST_POINTS = 50_000
"""Called functions are copied into their callers; beyond this a schedule is given up."""

_PointId = tuple[str, int]
"""A point: its function and its index in it."""


def find_transfers(
    hal: HalProgram, owners: Owners, callers: Mapping[str, str]
) -> tuple[tuple[Transfer, ...], Mapping[_PointId, str]]:
    """The transfers that functions submit by themselves, and the id of each one's point."""
    transfers: list[Transfer] = []
    ids: dict[_PointId, str] = {}
    for function in hal.functions:
        if function.name in hal.called_by_initializers:
            continue
        for index, point in enumerate(function.points):
            if point.kind in MOVES:
                transfer = _transfer(len(transfers), function.name, point, owners, callers)
                ids[function.name, index] = transfer.id
                transfers.append(transfer)
    return tuple(transfers), ids


def moves_untold(hal: HalProgram, anyone: Owners) -> bool:
    """Whether a copy, a fill or an update is located at nothing of the model, so that it may be of any op.

    One of an argument is located at its function: the host copies the number by which a loop decides. It is of no op.
    """
    in_buffers = (each.location for buffer in hal.buffers for each in buffer.commands if each.kind in MOVES)
    called = (function for function in hal.functions if function.name not in hal.called_by_initializers)
    alone = (point.location for function in called for point in function.points if point.kind in MOVES)
    return not all(anyone.of(location) for location in (*in_buffers, *alone))


def _transfer(number: int, function: str, point: HalPoint, owners: Owners, callers: Mapping[str, str]) -> Transfer:
    return Transfer(
        id=f"transfer{number}",
        kind=point.kind,
        function=callers.get(function, function),
        ops=owners.of(point.location),
        bytes=point.length,
    )


def find_schedules(hal: HalProgram, names: Sequence[str], transfers: Mapping[_PointId, str]) -> tuple[Schedule, ...]:
    """The schedules of the named entry points; those that recurse, or grow without measure, have none."""
    functions = {function.name: function for function in hal.functions}
    found = []
    for name in names:
        if name in functions:
            try:
                found.append(_Ways(functions, transfers).schedule(name))
            except _TooMany:
                continue
    return tuple(found)


class _TooMany(Exception):
    """The ways through a function cannot be written down."""


@dataclass
class _Ways:
    """The points of a function with the functions that it calls copied in."""

    functions: Mapping[str, HalFunction]
    transfers: Mapping[_PointId, str]
    points: list[tuple[HalPoint, Text]] = field(default_factory=list)
    next: list[list[int]] = field(default_factory=list)

    def schedule(self, name: str) -> Schedule:
        """The schedule of a function."""
        entry, leave = self._copy(name, ())
        kept = [number for number, (point, _) in enumerate(self.points) if point.kind and point.kind != "call"]
        submission_of = {number: submission for submission, number in enumerate(kept)}
        submissions = []
        for number in kept:
            point, transfer = self.points[number]
            reached, ends = self._reached(number, submission_of, leave)
            submissions.append(Submission(point.buffers, transfer, reached, ends))
        first, _ = self._reached(entry, submission_of, leave)
        return Schedule(name, first, tuple(submissions))

    def _copy(self, name: str, calling: tuple[str, ...]) -> tuple[int, int]:
        """Copy a function's points; returns the numbers of its entry and exit."""
        if name in calling:
            raise _TooMany
        function = self.functions[name]
        base = len(self.points)
        if base + len(function.points) > _MOST_POINTS:
            raise _TooMany
        for index, point in enumerate(function.points):
            self.points.append((point, self.transfers.get((name, index), UNKNOWN)))
            self.next.append([base + follower for follower in point.next])
        for number, point in enumerate(function.points, start=base):
            if point.kind == "call" and point.callee in self.functions:
                # A copy of its own for each call: what follows the call then follows only this copy's exit.
                entry, leave = self._copy(point.callee, (*calling, name))
                self.next[leave] = self.next[number]
                self.next[number] = [entry]
        return base + ENTRY, base + EXIT

    def _reached(self, start: int, submission_of: Mapping[int, int], leave: int) -> tuple[tuple[int, ...], bool]:
        """The submissions that may come next after a point, and whether the function may return before any."""
        reached: set[int] = set()
        seen: set[int] = set()
        waiting = list(self.next[start])
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            if number in submission_of:
                reached.add(submission_of[number])
            else:
                waiting += self.next[number]
        return tuple(sorted(reached)), leave in seen
