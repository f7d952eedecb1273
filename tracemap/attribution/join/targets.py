"""The targets of a run's events: by site, command, position in a submission, kernel or transfer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tracemap.attribution.join.command_buffers import aligned
from tracemap.attribution.join.ways import Meanings, meanings_of, merged, narrowed
from tracemap.diagnostics import RECORDS_LOST
from tracemap.graph.model import Command, CommandBuffer, Schedule, TraceGraph, Transfer
from tracemap.measurements.model import RunHeader
from tracemap.units import UNKNOWN, Integer, Text

# Numbers of events that have no target; those of targets count from 0.
UNMATCHED, TRANSFER, MEMORY, EXECUTE, OUTSIDE_KERNELS = -1, -2, -3, -4, -5


@dataclass(frozen=True, slots=True)
class Target:
    """The places that an event may be of: sites, or transfers; one where the join is exact."""

    places: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether the place is known."""
        return len(self.places) == 1


@dataclass(frozen=True, slots=True)
class Targets:
    """All targets of the runs, each under its number."""

    _numbers: dict[Target, int] = field(default_factory=dict)

    def number_of(self, target: Target) -> int:
        """The number of a target; a new one gets the next."""
        return self._numbers.setdefault(target, len(self._numbers))

    def __iter__(self) -> Iterator[Target]:
        """The targets in the order of their numbers: a dict keeps the order in which they were added."""
        return iter(self._numbers)


UNMATCHED_GROUP = -1
"""The group of recorded buffers that are none of the map's."""

_LOSSES = frozenset({RECORDS_LOST, "run-truncated"})
"""Diagnostics of a run that lacks events: what a call submitted is then not all there."""


@dataclass
class Join:
    """The targets of a run's events.

    `group_of_buffer`: recorded buffer id -> group of what it may be; `by_command`: (group, index in the buffer, kernel)
    -> target of a dispatch whose buffer and index are known; `by_position`: (group, kernel, k) -> target of the k-th
    dispatch of a kernel in a submission, for drivers that report no index; `by_transfer`: group -> target of a
    transfer; `by_kernel`: of events that only name a kernel, or its code; `by_site`: of those that name their site.
    Groups are added as submissions are told apart.
    """

    graph: TraceGraph
    header: RunHeader
    site_choices: Sequence[tuple[str, tuple[str, ...]]] = ()
    by_kernel: Mapping[str, Target] = field(init=False)
    by_site: Mapping[str, Target] = field(init=False)
    group_of_buffer: dict[int, int] = field(default_factory=dict)
    by_command: dict[tuple[int, int, str], Target] = field(default_factory=dict)
    by_position: dict[tuple[int, str, int], Target] = field(default_factory=dict)
    by_transfer: dict[int, Target] = field(default_factory=dict)
    _groups: dict[tuple[Meanings, bool], int] = field(default_factory=dict)
    _meanings: list[Meanings] = field(default_factory=list)

    # Groups are numbered by what they may be, so that buffers and submissions that may be the same share their targets.

    def __post_init__(self) -> None:
        self._schedule = _schedule(self.graph, self.header.function)
        self._runnable = _runnable(self.graph, self.header.function, self._schedule)
        self.by_kernel = self._kernel_targets()
        choices = {name: Target(sites) for name, sites in self.site_choices}
        self.by_site = {**choices, **{site.id: Target((site.id,)) for site in self.graph.sites}}
        for buffer, ordinals in aligned(self.graph.command_buffers, self._runnable, self.header):
            self.group_of_buffer[buffer.id] = self._group(frozenset(ordinals), indexed=True)

    @property
    def has_indices(self) -> bool:
        """Whether the run has lists of commands, so that its events name command indices."""
        return any(command.kind == "dispatch" for program in self.header.programs for command in program)

    @property
    def trusts_buffers(self) -> bool:
        """Whether a recorded buffer that matches none of the map is surely another module's."""
        return self.has_indices and not self._lossy

    @property
    def has_one_shape(self) -> bool:
        """Whether all events of a target have the same counts of workgroups and lengths, whatever their rows tell.

        Each command has the counts that it was recorded with; two lists of commands that differ in nothing else may be
        of one target. Buffers that are not trusted leave events that name only a kernel.
        """
        plain = {tuple((each.kind, each.kernel) for each in commands) for commands in self.header.programs}
        lengths_known = all(transfer.bytes is not UNKNOWN for transfer in self._transfers)
        trusted = self.trusts_buffers and bool(self.by_command)
        return trusted and lengths_known and len(plain) == len(self.header.programs)

    @property
    def knows_ways(self) -> bool:
        """Whether the order of submissions can tell what they are."""
        return self._schedule is not None and not self._lossy

    @property
    def open_groups(self) -> bool:
        """Whether any recorded buffer may be several of the map's."""
        return any(len(self._meanings[group]) > 1 for group in self.group_of_buffer.values())

    @property
    def may_transfer(self) -> bool:
        """Whether calls submit transfers by themselves."""
        return bool(self._transfers)

    @property
    def surplus(self) -> bool:
        """Whether more memoized buffers with dispatches were recorded than the map has of their fingerprint."""
        memoized = [buffer.id for buffer in self.header.buffers if not buffer.one_shot]
        recorded = Counter(self.group_of_buffer[number] for number in memoized if number in self.group_of_buffer)
        return any(count > len(self._meanings[group]) for group, count in recorded.items())

    @property
    def untimed(self) -> dict[tuple[int, int], Command]:
        """The copies and fills, by buffer and index, of buffers that the run may have executed: no row is of one."""
        ran = {each for group in self.group_of_buffer.values() for each in self._meanings[group]}
        if not self.group_of_buffer:  # as of drivers that do not list what was recorded
            ran = {buffer.ordinal for buffer in self._runnable if not buffer.initializer}
        return {
            (buffer.ordinal, index): command
            for buffer in self.graph.command_buffers
            if buffer.ordinal in ran
            for index, command in enumerate(buffer.commands)
            if command.kind not in ("dispatch", "barrier")
        }

    @property
    def _lossy(self) -> bool:
        return any(diagnostic.slug in _LOSSES for diagnostic in self.header.diagnostics)

    def transfers_like(self, kind: str, length: Integer) -> Meanings:
        """The transfers that an event of a kind that moves so many bytes may be by itself."""
        alike = (each for each in self._transfers if each.kind == kind)
        return frozenset(each.id for each in alike if UNKNOWN in (each.bytes, length) or each.bytes == length)

    def buffers_like(self, kernels: Sequence[Sequence[str]]) -> Meanings:
        """The buffers that dispatch these kernels in this order, of those that can run; those of a part in any."""
        return frozenset(buffer.ordinal for buffer in self._runnable if _in_order(_dispatches(buffer), kernels))

    def meanings(self, group: int) -> Meanings:
        """What the submissions of a group may be."""
        return self._meanings[group] if group >= 0 else frozenset()

    def groups_of_call(self, seen: Sequence[Meanings], *, one_call: bool, indexed: bool, by_order: bool) -> list[int]:
        """The group of each submission of a call; `UNMATCHED_GROUP` for what is not the map's.

        `indexed`: the events of these submissions name command indices; `by_order`: the order may tell them apart.
        """
        # Another module's submissions may stand between ours; no state of the schedule is one of them.
        ours = [meanings for meanings in seen if meanings]
        if by_order and self._schedule is not None:
            ours = narrowed(self._schedule, ours, one_call=one_call)
        rest = iter(ours)
        return [self._group(next(rest), indexed=indexed) if meanings else UNMATCHED_GROUP for meanings in seen]

    def _group(self, meanings: Meanings, *, indexed: bool) -> int:
        key = (meanings, indexed)
        if key not in self._groups:
            self._groups[key] = len(self._meanings)
            self._meanings.append(meanings)
            self._add_targets(self._groups[key], meanings, indexed=indexed)
        return self._groups[key]

    def _add_targets(self, group: int, meanings: Meanings, *, indexed: bool) -> None:
        transfers = tuple(transfer.id for transfer in self.graph.transfers if transfer.id in meanings)
        if transfers:
            self.by_transfer[group] = Target(transfers)
        ordinals = sorted(each for each in meanings if isinstance(each, int))
        buffers = [self.graph.command_buffers[ordinal] for ordinal in ordinals]
        if buffers and indexed:
            self.by_command.update(_command_targets(group, buffers))
        elif buffers:
            self.by_position.update(_position_targets(group, buffers))

    @cached_property
    def _transfers(self) -> Sequence[Transfer]:
        """Those that calls of the function can submit by themselves."""
        if self._schedule is None:
            return self.graph.transfers
        own = {each.transfer for each in self._schedule.submissions}
        return [transfer for transfer in self.graph.transfers if transfer.id in own]

    def _kernel_targets(self) -> dict[str, Target]:
        """The sites of each kernel that can have run: the called function's where that is known, not load-time ones."""
        running = {
            site for buffer in self._runnable for command in buffer.commands for site in (command.site, *command.merged)
        }
        targets = {}
        for kernel in self.graph.kernels:
            per_call = [site for site in kernel.sites if not self.graph.site_by_id[site].initializer] or kernel.sites
            called = [site for site in per_call if site in running] or per_call
            if called:
                targets[kernel.name] = Target(tuple(called))
        entries = self.graph.kernel_of_entry.items()
        return targets | {entry: targets[kernel] for entry, kernel in entries if kernel in targets}


def _schedule(graph: TraceGraph, function: Text) -> Schedule | None:
    """The ways that the called function can take; of any entry point where that is not known."""
    if function is UNKNOWN:
        complete = len(graph.schedules) == len(graph.functions)
        return merged(graph.schedules) if graph.schedules and complete else None
    return next((schedule for schedule in graph.schedules if schedule.function == function), None)


def _runnable(graph: TraceGraph, function: Text, schedule: Schedule | None) -> list[CommandBuffer]:
    """The buffers that calls of a function execute; where it has no schedule those that stand in it, else all."""
    if schedule is not None:
        ordinals = {each for submission in schedule.submissions for each in meanings_of(submission)}
        return [buffer for buffer in graph.command_buffers if buffer.ordinal in ordinals]
    own = [buffer for buffer in graph.command_buffers if function is not UNKNOWN and buffer.function == function]
    return own or list(graph.command_buffers)


def _dispatches(buffer: CommandBuffer) -> list[Command]:
    return [command for command in buffer.commands if command.kind == "dispatch"]


def _command_targets(group: int, candidates: Sequence[CommandBuffer]) -> dict[tuple[int, int, str], Target]:
    """Targets of a group's dispatch commands; the candidates have the same fingerprint, so the same kernels."""
    targets = {
        (group, index, command.kernel): _target(candidate.commands[index] for candidate in candidates)
        for index, command in enumerate(candidates[0].commands)
        if command.kind == "dispatch" and command.kernel is not UNKNOWN
    }
    return {key: target for key, target in targets.items() if target.places}


def _in_order(commands: Sequence[Command], kernels: Sequence[Sequence[str]]) -> bool:
    """Whether commands are of these kernels, part by part."""
    if len(commands) != sum(map(len, kernels)):
        return False
    rest = iter(commands)
    return all(Counter(part) == Counter(str(next(rest).kernel) for _ in part) for part in kernels)


def _position_targets(group: int, candidates: Sequence[CommandBuffer]) -> dict[tuple[int, str, int], Target]:
    """Targets of the k-th dispatch of each kernel in a group's submissions; all candidates dispatch as many."""
    commands: dict[tuple[int, str, int], list[Command]] = defaultdict(list)
    for candidate in candidates:
        seen = Counter[str]()
        for command in _dispatches(candidate):
            kernel = str(command.kernel)
            commands[group, kernel, seen[kernel]].append(command)
            seen[kernel] += 1
    targets = {key: _target(found) for key, found in commands.items()}
    return {key: target for key, target in targets.items() if target.places}


def _target(commands: Iterable[Command]) -> Target:
    sites = [site for command in commands for site in (command.site, *command.merged) if site is not UNKNOWN]
    return Target(tuple(dict.fromkeys(sites)))
