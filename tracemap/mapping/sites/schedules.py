"""Schedules: the possible submissions of a call of an entry point, from the control flow of the hal phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.graph.model import Schedule, Submission, Transfer
from tracemap.ir.hal import HalProgram
from tracemap.ir.queues import ENTRY, EXIT, HalFunction, HalPoint
from tracemap.mapping.sites.owners import Owners
from tracemap.units import UNKNOWN, Text

MOVES = ("copy", "fill", "update")
"""Kinds of operations that move elements without a kernel, in command buffers or submitted by functions themselves."""
_MOST_POINTS = 50_000
"""The most points of a schedule, since called functions are copied into their callers; larger ones are dropped."""

_PointId = tuple[str, int]
"""A point: its function, and its index in the function."""


def find_transfers(
    hal: HalProgram, owners: Owners, callers: Mapping[str, str]
) -> tuple[tuple[Transfer, ...], Mapping[_PointId, str]]:
    """The transfers that functions submit themselves, and the id of each by its point."""
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


def has_unknown_moves(hal: HalProgram, all_owners: Owners) -> bool:
    """Whether a copy, fill or update has no location in the model, so that it may belong to any op.

    A transfer of an argument has the function's location: the host copies a scalar that decides a loop. It has no op.
    """
    buffer_locations = (
        command.location for buffer in hal.buffers for command in buffer.commands if command.kind in MOVES
    )
    executed_functions = (function for function in hal.functions if function.name not in hal.called_by_initializers)
    own_locations = (
        point.location for function in executed_functions for point in function.points if point.kind in MOVES
    )
    return not all(all_owners.of(location) for location in (*buffer_locations, *own_locations))


def _transfer(index: int, function: str, point: HalPoint, owners: Owners, callers: Mapping[str, str]) -> Transfer:
    return Transfer(
        id=f"transfer{index}",
        kind=point.kind,
        function=callers.get(function, function),
        ops=owners.of(point.location),
        bytes=point.length,
    )


def find_schedules(hal: HalProgram, names: Sequence[str], transfers: Mapping[_PointId, str]) -> tuple[Schedule, ...]:
    """The schedules of the named entry points; recursive and too large ones are left out."""
    functions = {function.name: function for function in hal.functions}
    schedules = []
    for name in names:
        if name in functions:
            try:
                schedules.append(_ScheduleBuilder(functions, transfers).schedule(name))
            except _TooMany:
                continue
    return tuple(schedules)


class _TooMany(Exception):
    """The schedule is recursive or too large."""


@dataclass
class _ScheduleBuilder:
    """Builds a schedule: the points of a function, with the functions that it calls copied in."""

    functions: Mapping[str, HalFunction]
    transfers: Mapping[_PointId, str]
    points: list[tuple[HalPoint, Text]] = field(default_factory=list)
    next: list[list[int]] = field(default_factory=list)

    def schedule(self, name: str) -> Schedule:
        """The schedule of a function."""
        entry, leave = self._copy(name, ())
        submission_points = [
            index for index, (point, _) in enumerate(self.points) if point.kind and point.kind != "call"
        ]
        submission_of = {index: submission for submission, index in enumerate(submission_points)}
        submissions = []
        for index in submission_points:
            point, transfer = self.points[index]
            next_submissions, ends = self._next_submissions(index, submission_of, leave)
            submissions.append(Submission(point.buffers, transfer, next_submissions, ends))
        first, _ = self._next_submissions(entry, submission_of, leave)
        return Schedule(name, first, tuple(submissions))

    def _copy(self, name: str, callers: tuple[str, ...]) -> tuple[int, int]:
        """Copy a function's points; returns the indices of its entry and exit."""
        if name in callers:
            raise _TooMany
        function = self.functions[name]
        first_index = len(self.points)
        if first_index + len(function.points) > _MOST_POINTS:
            raise _TooMany
        for index, point in enumerate(function.points):
            self.points.append((point, self.transfers.get((name, index), UNKNOWN)))
            self.next.append([first_index + follower for follower in point.next])
        for index, point in enumerate(function.points, start=first_index):
            if point.kind == "call" and point.callee in self.functions:
                # Each call has its own copy, so that the code after the call follows only this copy's exit.
                entry, leave = self._copy(point.callee, (*callers, name))
                self.next[leave] = self.next[index]
                self.next[index] = [entry]
        return first_index + ENTRY, first_index + EXIT

    def _next_submissions(
        self, start: int, submission_of: Mapping[int, int], leave: int
    ) -> tuple[tuple[int, ...], bool]:
        """The submissions that may follow a point, and whether the function may return without any."""
        reached: set[int] = set()
        visited: set[int] = set()
        worklist = list(self.next[start])
        while worklist:
            index = worklist.pop()
            if index in visited:
                continue
            visited.add(index)
            if index in submission_of:
                reached.add(submission_of[index])
            else:
                worklist += self.next[index]
        return tuple(sorted(reached)), leave in visited
