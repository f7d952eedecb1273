"""The order in which the host program calls dispatch sites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from tracemap.core.locations import CallSite, Location
from tracemap.core.units import UNKNOWN, Text
from tracemap.ir.flow import DispatchRegion, FlowDispatch, FlowProgram, HostCall
from tracemap.ir.hal import HalProgram
from tracemap.ir.host_program import ENTRY, EXIT, HalFunction, HalPoint
from tracemap.ir.parsing import reachable
from tracemap.map.build.sites.owners import Owners
from tracemap.map.model import Schedule, Submission, Transfer

# ---- callers

ASYNC_SUFFIX = "$async"
"""For each public function `f` the compiler makes a function `f$async`, and `f` waits for it."""


def public_callers(flow: FlowProgram) -> dict[str, str]:
    """For each function the public function that users call to reach it.

    The asynchronous form `f$async` is reached through its wrapper `f`. A private function that several public ones
    reach is its own entry.
    """
    callers: dict[str, set[str]] = defaultdict(set)
    for function in flow.functions:
        for callee in function.calls:
            callers[callee].add(function.name)
    public = {function.name for function in flow.functions if function.public}
    public_caller: dict[str, str] = {}
    for name in (function.name for function in flow.functions):
        if name in public:
            public_caller[name] = _wrapper(name, public)
        else:
            # f and f$async both reach the callees of f$async: they are one public function.
            calling = reachable([name], lambda function: callers.get(function, ()))
            entry_points = {_wrapper(caller, public) for caller in calling if caller in public}
            public_caller[name] = entry_points.pop() if len(entry_points) == 1 else name
    return public_caller


def _wrapper(name: str, public: Set[str]) -> str:
    base_name = name.removesuffix(ASYNC_SUFFIX)
    return base_name if base_name in public else name


# ---- inlined
#
# Dispatches of functions that the compiler inlines after the flow phase, copied to each call.
#
# The model's own functions are inlined earlier. But a preprocessing pass may replace ops by a call of a function that
# it adds (`transform.util.cast_and_call`), and that is inlined later. Its dispatch becomes a command for each call,
# with the location of the dispatch in the function, called from the location of the call.

DispatchWithBody = tuple[FlowDispatch, DispatchRegion | None]
"""A dispatch with its body."""


def inlined_later(flow: FlowProgram) -> frozenset[str]:
    """Private functions with dispatches, directly or through calls, that may be inlined after the flow phase."""
    private = {function.name for function in flow.functions if not function.public}
    names = {dispatch.function for dispatch in flow.dispatches} & private
    while new_names := {call.function for call in flow.calls if call.callee in names} & private - names:
        names |= new_names
    return frozenset(names)


def with_inlined(
    flow: FlowProgram, bodies: Collection[DispatchRegion | None], inlined: Collection[str]
) -> tuple[FlowProgram, list[DispatchRegion | None]]:
    """The flow phase with the dispatches of inlined functions at each of their calls, in order, and their bodies.

    `inlined`: the names of functions that the next phase no longer has. A recursive call is not followed twice, since
    nothing of it runs.
    """
    pairs = _Inliner(
        flow, tuple(zip(flow.dispatches, bodies, strict=True)), frozenset(inlined)
    ).dispatches_with_bodies()
    return replace(flow, dispatches=tuple(dispatch for dispatch, _ in pairs)), [body for _, body in pairs]


@dataclass(frozen=True, slots=True)
class _Inliner:
    flow: FlowProgram
    dispatches: tuple[DispatchWithBody, ...]
    inlined: frozenset[str]

    def dispatches_with_bodies(self) -> list[DispatchWithBody]:
        return [*self._dispatches_of(lambda function: function not in self.inlined, frozenset())]

    def _dispatches_of(self, is_selected: Callable[[str], bool], within: frozenset[str]) -> Iterator[DispatchWithBody]:
        """The dispatches of functions and of the functions that they call, in the order of the text.

        `within`: the functions that are being inlined.
        """
        position = 0
        for call in self.flow.calls:
            if call.callee in self.inlined - within and is_selected(call.function):
                yield from self._selected(position, call.dispatches_before, is_selected)
                yield from self._inlined_call(call, within | {call.callee})
                position = call.dispatches_before
        yield from self._selected(position, len(self.dispatches), is_selected)

    def _selected(self, first: int, end: int, is_selected: Callable[[str], bool]) -> Iterator[DispatchWithBody]:
        return (pair for pair in self.dispatches[first:end] if is_selected(pair[0].function))

    def _inlined_call(self, call: HostCall, within: frozenset[str]) -> Iterator[DispatchWithBody]:
        cache: dict[int, Location] = {}

        def relocate(location: Location) -> Location:
            # One object for each location, since other code identifies locations by id().
            return cache.setdefault(id(location), CallSite(location, call.location))

        def body_at(body: DispatchRegion) -> DispatchRegion:
            operations = tuple(replace(op, location=relocate(op.location)) for op in body.body)
            return replace(body, function=call.function, location=relocate(body.location), body=operations)

        for dispatch, body in self._dispatches_of(lambda function: function == call.callee, within):
            inlined_dispatch = FlowDispatch(
                call.function, relocate(dispatch.location), dispatch.kernel, call.around + dispatch.around
            )
            yield inlined_dispatch, None if body is None else body_at(body)


# ---- schedules

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
                transfer_id = f"transfer{len(transfers)}"
                ids[function.name, index] = transfer_id
                caller = callers.get(function.name, function.name)
                transfers.append(Transfer(transfer_id, point.kind, caller, owners.of(point.location), point.length))
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


def find_schedules(
    hal: HalProgram, names: Sequence[str], transfers: Mapping[_PointId, str], branches: Owners
) -> tuple[Schedule, ...]:
    """The schedules of the named entry points; recursive and too large ones are left out.

    `branches`: the owners of locations among the model's loops and conditionals.
    """
    functions = {function.name: function for function in hal.functions}
    schedules = []
    for name in names:
        if name in functions:
            try:
                schedules.append(_ScheduleBuilder(functions, transfers, branches).schedule(name))
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
    branches: Owners
    points: list[tuple[HalPoint, Text]] = field(default_factory=list)
    next: list[list[int]] = field(default_factory=list)

    def schedule(self, name: str) -> Schedule:
        """The schedule of a function."""
        entry, leave = self._copy(name, ())
        submission_points = [
            index for index, (point, _) in enumerate(self.points) if point.kind and point.kind != "call"
        ]
        submission_of = {index: submission for submission, index in enumerate(submission_points)}
        without_wait = self._without_wait(entry, submission_points)
        control = _ControlFlow(self.next, leave)
        submissions = []
        for index in submission_points:
            point, transfer = self.points[index]
            next_submissions, ends = self._next_submissions(index, submission_of, leave)
            owners = [self.branches.of(self.points[branch][0].location) for branch in control.branches_of(index)]
            ops = tuple(dict.fromkeys(op for branch_ops in owners for op in branch_ops))
            waits = index not in without_wait
            submissions.append(Submission(point.buffers, transfer, next_submissions, ends, ops, waits))
        first, _ = self._next_submissions(entry, submission_of, leave)
        return Schedule(name, first, tuple(submissions))

    def _without_wait(self, entry: int, submission_points: Sequence[int]) -> Set[int]:
        """The submissions that the host may reach from the entry or another submission without a wait in between."""
        stops = {*submission_points, *(index for index, (point, _) in enumerate(self.points) if point.waits)}
        starts = [follower for start in (entry, *submission_points) for follower in self.next[start]]
        return reachable(starts, lambda index: () if index in stops else self.next[index])

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
        reached = reachable(self.next[start], lambda index: () if index in submission_of else self.next[index])
        submissions = sorted(submission_of[index] for index in reached if index in submission_of)
        return tuple(submissions), leave in reached


class _ControlFlow:
    """The branches that decide whether a point runs: control dependence (Ferrante, Ottenstein, Warren 1987)."""

    def __init__(self, successors: Sequence[Sequence[int]], leave: int) -> None:
        """Read a graph of points with one exit; points that never reach the exit depend on no branch."""
        self._deciding: dict[int, set[int]] = defaultdict(set)
        self._all: dict[int, frozenset[int]] = {}
        branches = [index for index, followers in enumerate(successors) if len(followers) > 1]
        if not branches:
            return
        import networkx as nx  # only programs with branches need it

        edges = ((follower, index) for index, followers in enumerate(successors) for follower in followers)
        after = nx.immediate_dominators(nx.DiGraph(edges), leave)
        for branch in branches:
            for follower in successors[branch]:
                runner = follower
                # Each point runs after the branch only if it takes this way, up to where all ways join again.
                while runner in after and runner != after.get(branch) and runner != leave:
                    self._deciding[runner].add(branch)
                    runner = after[runner]

    def branches_of(self, index: int) -> list[int]:
        """The branches that decide whether a point runs, directly or through other branches, outermost first."""
        return sorted(self._closure(index), key=lambda branch: (len(self._closure(branch)), branch))

    def _closure(self, index: int) -> frozenset[int]:
        if index not in self._all:
            self._all[index] = frozenset(
                reachable(self._deciding.get(index, ()), lambda at: self._deciding.get(at, ()))
            )
        return self._all[index]
