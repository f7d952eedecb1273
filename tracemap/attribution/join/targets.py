"""Targets of a run's events: by command buffer, position in a submission, kernel or transfer."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import msgspec

from tracemap.attribution.join.schedule_nfa import Meanings, meanings_of, merged, narrowed
from tracemap.core.diagnostics import RECORDS_LOST
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.map.model import Command, CommandBuffer, Schedule, TraceGraph, Transfer
from tracemap.runs.model import RecordedBuffer, RecordedCommand, RunHeader

# ---- command buffers


def by_creation(
    static: Sequence[CommandBuffer], matches: Sequence[Sequence[CommandBuffer]], recorded: Sequence[RecordedBuffer]
) -> Mapping[int, Sequence[int]]:
    """The candidate ordinals of each recorded memoized buffer, by buffer id, from the order of creation.

    Buffers without a candidate are left out.

    Args:
        static: the map's command buffers, in the order of the text.
        matches: for each recorded program, the static buffers with its fingerprint.
        recorded: the run's buffers.
    """
    at_load = [buffer.ordinal for buffer in static if buffer.memoized or buffer.initializer]
    rank_of = {ordinal: rank for rank, ordinal in enumerate(at_load)}
    ids: list[int] = []
    candidates: list[list[int]] = []
    for buffer in sorted(recorded, key=lambda buffer: buffer.id):
        ranks = [rank_of[match.ordinal] for match in matches[buffer.program] if match.memoized]
        if ranks and not buffer.one_shot:
            ids.append(buffer.id)
            candidates.append(sorted(ranks))
    # If the ids leave no room for the buffers created in between, only their order decides.
    fitting = _fitting(ids, candidates) or _fitting(
        [len(at_load) * (number + 1) for number in range(len(ids))], candidates
    )
    return {number: [at_load[rank] for rank in ranks] for number, ranks in zip(ids, fitting, strict=False)}


def _fitting(ids: Sequence[int], candidates: Sequence[Sequence[int]]) -> list[list[int]]:
    """The ranks of each buffer that occur in some consistent assignment of all buffers; empty if there is none.

    Ranks increase with ids, and by at most as much, because a buffer created between two others has an id between
    theirs.
    """
    feasible = [[rank for rank in ranks if rank < ids[0]] for ranks in candidates[:1]]
    gaps = [after - before for before, after in pairwise(ids)]
    for gap, ranks in zip(gaps, candidates[1:], strict=True):
        feasible.append([rank for rank in ranks if _any_between(feasible[-1], rank - gap, rank)])
    for index, gap in reversed([*enumerate(gaps)]):
        after = feasible[index + 1]
        feasible[index] = [rank for rank in feasible[index] if _any_between(after, rank + 1, rank + gap + 1)]
    return feasible if all(feasible) else []


def _any_between(ranks: Sequence[int], begin: int, end: int) -> bool:
    """Whether a sorted list has a value from `begin` up to but not including `end`."""
    index = bisect_left(ranks, begin)
    return index < len(ranks) and ranks[index] < end


def _align_buffers(
    static: Sequence[CommandBuffer], runnable: Sequence[CommandBuffer], header: RunHeader
) -> Iterator[tuple[RecordedBuffer, tuple[int, ...]]]:
    """The recorded buffers that match some of the map (`static`), with the ordinals of their candidates."""
    matches = [
        [
            buffer
            for buffer in static
            if len(buffer.commands) == len(program) and all(map(_same_command, buffer.commands, program))
        ]
        for program in header.programs
    ]
    able = {buffer.ordinal for buffer in runnable}
    memoized = by_creation(static, matches, header.buffers)
    for buffer in header.buffers:
        if buffer.id in memoized:
            # The order of creation is more reliable than the function: it never leaves a buffer without candidates.
            narrowed = [ordinal for ordinal in memoized[buffer.id] if ordinal in able]
            yield buffer, tuple(narrowed or memoized[buffer.id])
        elif fitting := [candidate for candidate in matches[buffer.program] if candidate.ordinal in able]:
            # Those with the same lifetime as the recorded buffer, preferably not of initializers; else all.
            fitting = [candidate for candidate in fitting if candidate.memoized != buffer.one_shot] or fitting
            fitting = [candidate for candidate in fitting if not candidate.initializer] or fitting
            yield buffer, tuple(candidate.ordinal for candidate in fitting)


def _same_command(static: Command, recorded: RecordedCommand) -> bool:
    if static.kind != "dispatch" or recorded.kind != "dispatch":
        return static.kind == recorded.kind
    counts = zip(static.workgroups, recorded.workgroups, strict=False)
    return static.kernel == recorded.kernel and all(known in (UNKNOWN, count) for known, count in counts)


# ---- targets


# Numbers for events without a target; numbers of targets start at 0.
UNMATCHED, TRANSFER, MEMORY, EXECUTE, OUTSIDE_KERNELS, MIGRATED = -1, -2, -3, -4, -5, -6


class Target(msgspec.Struct, frozen=True):
    """The candidate places of an event: dispatch sites, or transfers; a single one if the join is exact."""

    places: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether the place is known."""
        return len(self.places) == 1


@dataclass(frozen=True, slots=True)
class Targets:
    """All targets of the runs, with an index for each."""

    _index_of: dict[Target, int] = field(default_factory=dict)

    def index_of(self, target: Target) -> int:
        """The index of a target; a new target gets the next index."""
        return self._index_of.setdefault(target, len(self._index_of))

    def __iter__(self) -> Iterator[Target]:
        """The targets in the order of their indices, which is the insertion order of the dict."""
        return iter(self._index_of)


UNMATCHED_GROUP = -1
"""The group of recorded buffers that match no buffer of the map."""

_LOSSES = frozenset({RECORDS_LOST, "run-truncated"})
"""Diagnostics of runs that lack events, so that the submissions of a call are incomplete."""


@dataclass
class Join:
    """The targets of a run's events.

    A *group* is a set of candidate identities; buffers and submissions with the same candidates share a group and its
    targets. Groups are added as submissions are distinguished.

    Attributes:
        group_of_buffer: recorded buffer id -> its group.
        by_command: (group, index in the buffer, kernel) -> target of a dispatch with known buffer and index.
        by_position: (group, kernel, k) -> target of the k-th dispatch of a kernel in a submission, for drivers that
            report no index.
        by_transfer: group -> target of a transfer.
        by_kernel: kernel, or entry point of its code -> target of an event that only names it.
        by_site: site or transfer -> target of an event that names it.
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

    def __post_init__(self) -> None:
        self._schedule = called_schedule(self.graph, self.header.function)
        self._runnable = _runnable(self.graph, self.header.function, self._schedule)
        self.by_kernel = self._kernel_targets()
        choices = {name: Target(sites) for name, sites in self.site_choices}
        places = (*self.graph.site_by_id, *self.graph.transfer_by_id)
        self.by_site = {**choices, **{place: Target((place,)) for place in places}}
        for buffer, ordinals in _align_buffers(self.graph.command_buffers, self._runnable, self.header):
            self.group_of_buffer[buffer.id] = self._group(frozenset(ordinals), indexed=True)

    @property
    def has_indices(self) -> bool:
        """Whether the run has command lists, so that its events have command indices."""
        return any(command.kind == "dispatch" for program in self.header.programs for command in program)

    @property
    def trusts_buffers(self) -> bool:
        """Whether a recorded buffer that matches no buffer of the map certainly belongs to another module."""
        return self.has_indices and not self._lossy

    @property
    def has_one_shape(self) -> bool:
        """Whether all events of a target certainly have the same workgroup counts and lengths.

        A command has the counts that it was recorded with. Two command lists that differ only in counts may share a
        target. Without trusted buffers, some events name only a kernel.
        """
        plain = {tuple((command.kind, command.kernel) for command in commands) for commands in self.header.programs}
        lengths_known = all(transfer.bytes is not UNKNOWN for transfer in self._transfers)
        trusted = self.trusts_buffers and bool(self.by_command)
        return trusted and lengths_known and len(plain) == len(self.header.programs)

    @property
    def knows_ways(self) -> bool:
        """Whether the order of submissions can identify them."""
        return self._schedule is not None and not self._lossy

    @property
    def open_groups(self) -> bool:
        """Whether any recorded buffer has several candidates in the map."""
        return any(len(self._meanings[group]) > 1 for group in self.group_of_buffer.values())

    @property
    def may_transfer(self) -> bool:
        """Whether calls submit transfers outside command buffers."""
        return bool(self._transfers)

    @property
    def surplus(self) -> bool:
        """Whether more memoized buffers with dispatches were recorded than the map has of their fingerprint."""
        memoized = [buffer.id for buffer in self.header.buffers if not buffer.one_shot]
        recorded = Counter(self.group_of_buffer[number] for number in memoized if number in self.group_of_buffer)
        return any(count > len(self._meanings[group]) for group, count in recorded.items())

    @property
    def untimed(self) -> dict[tuple[int, int], Command]:
        """The copies and fills, by buffer and index, in buffers that the run may have executed; they have no rows."""
        ran = {meaning for group in self.group_of_buffer.values() for meaning in self._meanings[group]}
        if not self.group_of_buffer:  # drivers that do not list recorded buffers
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
        """The candidate transfers of an event of this kind that moves `length` bytes."""
        same_kind = (transfer for transfer in self._transfers if transfer.kind == kind)
        return frozenset(
            transfer.id for transfer in same_kind if UNKNOWN in (transfer.bytes, length) or transfer.bytes == length
        )

    def buffers_like(self, kernels: Sequence[Sequence[str]]) -> Meanings:
        """The runnable buffers that dispatch these kernels in this order; kernels within a part may be in any order."""
        return frozenset(buffer.ordinal for buffer in self._runnable if _in_order(_dispatches(buffer), kernels))

    def meanings(self, group: int) -> Meanings:
        """The candidate identities of a group."""
        return self._meanings[group] if group >= 0 else frozenset()

    def groups_of_call(self, seen: Sequence[Meanings], *, one_call: bool, indexed: bool, by_order: bool) -> list[int]:
        """The group of each submission of a call; `UNMATCHED_GROUP` for submissions of other modules.

        `indexed`: the events of these submissions have command indices; `by_order`: narrow candidates by the order.
        """
        # Submissions of other modules may be interleaved; the schedule has no states for them.
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
        ordinals = sorted(meaning for meaning in meanings if isinstance(meaning, int))
        buffers = [self.graph.command_buffers[ordinal] for ordinal in ordinals]
        if buffers and indexed:
            self.by_command.update(_command_targets(group, buffers))
        elif buffers:
            self.by_position.update(_position_targets(group, buffers))

    @cached_property
    def _transfers(self) -> Sequence[Transfer]:
        """The transfers that an invocation can submit outside command buffers."""
        if self._schedule is None:
            return self.graph.transfers
        submitted = {submission.transfer for submission in self._schedule.submissions}
        return [transfer for transfer in self.graph.transfers if transfer.id in submitted]

    def _kernel_targets(self) -> dict[str, Target]:
        """The sites of each kernel that may have run: those of the called function if known, preferably not at load."""
        running = {
            site for buffer in self._runnable for command in buffer.commands for site in (command.site, *command.merged)
        }
        targets = {}
        for kernel in self.graph.kernels:
            per_call = [site for site in kernel.sites if not self.graph.site_by_id[site].initializer] or kernel.sites
            called = [site for site in per_call if site in running] or self._of_function(per_call)
            if called:
                targets[kernel.name] = Target(tuple(called))
        entries = self.graph.kernel_of_entry.items()
        return targets | {entry: targets[kernel] for entry, kernel in entries if kernel in targets}

    def _of_function(self, sites: Sequence[str]) -> Sequence[str]:
        """The sites that the called function of native code runs, if it is known; such code has no command buffers."""
        if not self.graph.module.is_native:
            return sites
        return [site for site in sites if self.graph.site_by_id[site].function == self.header.function] or sites


def called_schedule(graph: TraceGraph, function: Text) -> Schedule | None:
    """The schedule of the called function, or of all entry points if the function is unknown; None without one."""
    if function is UNKNOWN:
        complete = len(graph.schedules) == len(graph.functions)
        return merged(graph.schedules) if graph.schedules and complete else None
    return next((schedule for schedule in graph.schedules if schedule.function == function), None)


def _runnable(graph: TraceGraph, function: Text, schedule: Schedule | None) -> list[CommandBuffer]:
    """The buffers that calls of a function may execute: by its schedule, else those in its body, else all."""
    if schedule is not None:
        ordinals = {meaning for submission in schedule.submissions for meaning in meanings_of(submission)}
        return [buffer for buffer in graph.command_buffers if buffer.ordinal in ordinals]
    own = [buffer for buffer in graph.command_buffers if function is not UNKNOWN and buffer.function == function]
    return own or list(graph.command_buffers)


def _dispatches(buffer: CommandBuffer) -> list[Command]:
    return [command for command in buffer.commands if command.kind == "dispatch"]


def _command_targets(group: int, candidates: Sequence[CommandBuffer]) -> dict[tuple[int, int, str], Target]:
    """Targets of a group's dispatch commands. The candidates have the same fingerprint, and so the same kernels."""
    return {
        (group, index, command.kernel): target
        for index, command in enumerate(candidates[0].commands)
        if command.kind == "dispatch" and command.kernel is not UNKNOWN
        if (target := _target(candidate.commands[index] for candidate in candidates)).places
    }


def _in_order(commands: Sequence[Command], kernels: Sequence[Sequence[str]]) -> bool:
    """Whether commands have these kernels, part by part; order within a part does not matter."""
    if len(commands) != sum(map(len, kernels)):
        return False
    rest = iter(commands)
    return all(Counter(part) == Counter(str(next(rest).kernel) for _ in part) for part in kernels)


def _position_targets(group: int, candidates: Sequence[CommandBuffer]) -> dict[tuple[int, str, int], Target]:
    """Targets of the k-th dispatch of each kernel in a group's submissions; all candidates have as many dispatches."""
    commands: dict[tuple[int, str, int], list[Command]] = defaultdict(list)
    for candidate in candidates:
        count_of_kernel = Counter[str]()
        for command in _dispatches(candidate):
            kernel = str(command.kernel)
            commands[group, kernel, count_of_kernel[kernel]].append(command)
            count_of_kernel[kernel] += 1
    targets = {key: _target(same_position) for key, same_position in commands.items()}
    return {key: target for key, target in targets.items() if target.places}


def _target(commands: Iterable[Command]) -> Target:
    sites = [site for command in commands for site in (command.site, *command.merged) if site is not UNKNOWN]
    return Target(tuple(dict.fromkeys(sites)))
