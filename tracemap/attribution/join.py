"""Which site an event belongs to: recorded command buffers are aligned with those that the compiler made.

The key of an event is its command buffer and the index of its command in it. The numbers that a run gives to buffers
are its own business: hidden buffers take some, so they are never predicted. A recorded buffer is identified by its
fingerprint: the sequence of its commands, the kernels' names and the workgroup counts that are known at compile time.
Buffers that are made anew for each call can look alike; then the order of a call's submissions decides (see `ways`).
Marking such buffers in the compiled program (say, by extra barriers) would tell more, but the program measured would
not be the one that is deployed; nor would it tell apart what the compiler has made one, like equal arms of a branch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.attribution.creation import by_creation
from tracemap.attribution.ways import Meanings, meanings_of, merged, told_apart
from tracemap.graph.model import Command, CommandBuffer, Schedule, TraceGraph, Transfer
from tracemap.measurements.header import RecordedBuffer, RecordedCommand, RunHeader
from tracemap.units import UNKNOWN, Integer, Text

UNMATCHED_GROUP = -1
"""The group of recorded buffers that are none of the map's."""

_LOSSES = frozenset({"records-lost", "run-truncated"})
"""Diagnostics of a run that lacks events: what a call submitted is then not all there."""


@dataclass(frozen=True, slots=True)
class Target:
    """What an event can be joined to: the sites, or the transfers, that it may be; one where the join is exact."""

    sites: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether the site is known."""
        return len(self.sites) == 1


@dataclass(frozen=True, slots=True)
class CommandKey:
    """A dispatch command as events name it: `group` of command buffers, index in the buffer, kernel."""

    group: int
    command_index: int
    kernel: str


@dataclass(frozen=True, slots=True)
class Transfers:
    """What a copy, fill or update may be by itself: its kind and, where known, how many bytes it moves."""

    kind: str
    bytes: Integer


@dataclass
class Join:
    """The targets of a run's events.

    `group_of_buffer`: recorded buffer id -> group of what it may be; `by_command`: targets of dispatches whose buffer
    and index are known; `by_place`: group -> target of the k-th dispatch of a submission, for drivers that report no
    index; `by_transfer`: group -> target of a transfer; `by_kernel`: of events that only name a kernel; `by_site`: of
    those that name their site. Groups are added as submissions are told apart.
    """

    graph: TraceGraph
    header: RunHeader
    by_kernel: Mapping[str, Target] = field(init=False)
    by_site: Mapping[str, Target] = field(init=False)
    group_of_buffer: dict[int, int] = field(default_factory=dict)
    by_command: dict[CommandKey, Target] = field(default_factory=dict)
    by_place: dict[tuple[int, int], Target] = field(default_factory=dict)
    by_transfer: dict[int, Target] = field(default_factory=dict)
    _groups: dict[tuple[Meanings, bool], int] = field(default_factory=dict)
    _meanings: list[Meanings] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._schedule = _schedule(self.graph, self.header.function)
        self._runnable = _runnable(self.graph, self.header.function, self._schedule)
        self.by_kernel = self._kernel_targets()
        self.by_site = {site.id: Target((site.id,)) for site in self.graph.sites}
        for buffer, ordinals in self._aligned():
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
    def open_groups(self) -> bool:
        """Whether any recorded buffer may be several of the map's."""
        return any(len(self._meanings[group]) > 1 for group in self.group_of_buffer.values())

    @property
    def surplus(self) -> bool:
        """Whether more memoized buffers with dispatches were recorded than the map has of their fingerprint."""
        recorded: dict[int, int] = defaultdict(int)
        for buffer in self.header.buffers:
            if buffer.id in self.group_of_buffer and not buffer.one_shot:
                recorded[self.group_of_buffer[buffer.id]] += 1
        return any(count > len(self._meanings[group]) for group, count in recorded.items())

    @property
    def _lossy(self) -> bool:
        return any(diagnostic.slug in _LOSSES for diagnostic in self.header.diagnostics)

    @property
    def tells_apart(self) -> bool:
        """Whether the order of submissions can tell what they are."""
        return self._schedule is not None and not self._lossy

    def transfers_like(self, seen: Transfers) -> Meanings:
        """The transfers that an event may be by itself."""
        able = self._runnable_transfers()
        return frozenset(
            transfer.id
            for transfer in able
            if transfer.kind == seen.kind and (UNKNOWN in (transfer.bytes, seen.bytes) or transfer.bytes == seen.bytes)
        )

    def buffers_like(self, kernels: Sequence[str]) -> Meanings:
        """The buffers that dispatch these kernels in this order, of those that can run."""
        return frozenset(
            buffer.ordinal
            for buffer in self._runnable
            if [command.kernel for command in buffer.commands if command.kind == "dispatch"] == list(kernels)
        )

    def meanings(self, group: int) -> Meanings:
        """What the submissions of a group may be."""
        return self._meanings[group] if group >= 0 else frozenset()

    @property
    def may_transfer(self) -> bool:
        """Whether calls submit transfers by themselves."""
        return bool(self._runnable_transfers())

    def resolved(self, seen: Sequence[Meanings], *, one_call: bool, indexed: bool, by_order: bool) -> list[int]:
        """The group of each submission of a call; `UNMATCHED_GROUP` for what is not the map's.

        `indexed`: the events of these submissions name command indices; `by_order`: the order may tell them apart.
        """
        ours = [meanings for meanings in seen if meanings]
        if by_order and self._schedule is not None:
            ours = told_apart(self._schedule, ours, one_call=one_call)
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
        transfers = sorted((each for each in meanings if isinstance(each, str)), key=_number)
        if transfers:
            self.by_transfer[group] = Target(tuple(transfers))
        buffers = [
            self.graph.command_buffers[each] for each in sorted(each for each in meanings if isinstance(each, int))
        ]
        if not buffers:
            return
        if indexed:
            self.by_command.update(_command_targets(group, buffers))
        else:
            self.by_place.update(_place_targets(group, buffers))

    def _aligned(self) -> Iterable[tuple[RecordedBuffer, tuple[int, ...]]]:
        """Each recorded buffer with the ordinals of the static ones that it may be."""
        matches = [
            [buffer for buffer in self.graph.command_buffers if _same(buffer.commands, program)]
            for program in self.header.programs
        ]
        runnable = {buffer.ordinal for buffer in self._runnable}
        memoized = by_creation(self.graph.command_buffers, matches, self.header.buffers)
        for buffer in self.header.buffers:
            able = [candidate for candidate in matches[buffer.program] if candidate.ordinal in runnable]
            if buffer.id in memoized:
                found = [ordinal for ordinal in memoized[buffer.id] if ordinal in runnable]
                yield buffer, tuple(found or memoized[buffer.id])
            elif able:
                yield buffer, tuple(candidate.ordinal for candidate in _likeliest(able, buffer.one_shot))

    def _runnable_transfers(self) -> Sequence[Transfer]:
        if self._schedule is None:
            return self.graph.transfers
        own = {each.transfer for each in self._schedule.submissions}
        return [transfer for transfer in self.graph.transfers if transfer.id in own]

    def _kernel_targets(self) -> dict[str, Target]:
        """The sites of each kernel that can have run: the called function's where that is known, not load-time ones."""
        running = {
            site
            for buffer in self._runnable
            for command in buffer.commands
            for site in (command.site, *command.merged)
            if site is not UNKNOWN
        }
        targets = {}
        for kernel in self.graph.kernels:
            sites = [self.graph.site_by_id[site] for site in kernel.sites]
            per_call = [site for site in sites if not site.initializer] or sites
            called = [site for site in per_call if site.id in running] or per_call
            if called:
                targets[kernel.name] = Target(tuple(site.id for site in called))
        return targets


def join_run(graph: TraceGraph, header: RunHeader) -> Join:
    """Align a run's command buffers with the map's."""
    return Join(graph, header)


def _number(identifier: str) -> int:
    return int("0" + "".join(character for character in identifier if character.isdecimal()))


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


def _likeliest(found: Sequence[CommandBuffer], one_shot: bool) -> list[CommandBuffer]:
    """Of static buffers with the right fingerprint those that live as the recorded one does; all if none does."""
    alike = [buffer for buffer in found if buffer.memoized != one_shot]
    running = [buffer for buffer in alike or found if not buffer.initializer]
    return running or alike or list(found)


def _same(static: Sequence[Command], recorded: Sequence[RecordedCommand]) -> bool:
    if len(static) != len(recorded):
        return False
    return all(_same_command(one, other) for one, other in zip(static, recorded, strict=True))


def _same_command(static: Command, recorded: RecordedCommand) -> bool:
    if static.kind != recorded.kind:
        return False
    if static.kind != "dispatch":
        return True
    if static.kernel != recorded.kernel:
        return False
    return all(
        known is UNKNOWN or known == count for known, count in zip(static.workgroups, recorded.workgroups, strict=False)
    )


def _command_targets(group: int, candidates: Sequence[CommandBuffer]) -> dict[CommandKey, Target]:
    """Targets of a group's dispatch commands; the candidates have the same fingerprint, so the same kernels."""
    targets = {}
    for index, command in enumerate(candidates[0].commands):
        if command.kind == "dispatch" and command.kernel is not UNKNOWN:
            target = _target(candidate.commands[index] for candidate in candidates)
            if target.sites:
                targets[CommandKey(group, index, command.kernel)] = target
    return targets


def _place_targets(group: int, candidates: Sequence[CommandBuffer]) -> dict[tuple[int, int], Target]:
    """Targets of the k-th dispatch of a group's submissions; the candidates dispatch the same kernels."""
    dispatches = [[command for command in candidate.commands if command.kind == "dispatch"] for candidate in candidates]
    targets = {(group, place): _target(same_place) for place, same_place in enumerate(zip(*dispatches, strict=True))}
    return {key: target for key, target in targets.items() if target.sites}


def _target(commands: Iterable[Command]) -> Target:
    sites = [site for command in commands for site in (command.site, *command.merged) if site is not UNKNOWN]
    return Target(tuple(dict.fromkeys(sites)))
