"""Which site an event belongs to: recorded command buffers are aligned with those that the compiler made.

The key of an event is its command buffer and the index of its command in it. The numbers that a run gives to buffers
are its own business: hidden buffers take some, so they are never predicted. A recorded buffer is identified by its
fingerprint: the sequence of its commands, the kernels' names and the workgroup counts that are known at compile time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tracemap.graph.model import Command, CommandBuffer, TraceGraph
from tracemap.measurements.model import RecordedBuffer, RecordedCommand, RunHeader
from tracemap.units import UNKNOWN, Text


@dataclass(frozen=True, slots=True)
class Target:
    """What an event can be joined to: the sites that it may be, one where the join is exact."""

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
class Join:
    """The targets of a run's events.

    `group_of_buffer`: recorded buffer id -> group of buffers that are the same static one; `by_command`: targets of
    dispatches whose buffer and index are known; `by_sequence`: targets of the dispatches of a submission, by the
    sequence of its kernels, for drivers that report no index; `by_kernel`: of those that only name a kernel;
    `by_site`: of those that name their site.
    """

    group_of_buffer: Mapping[int, int]
    by_command: Mapping[CommandKey, Target]
    by_sequence: Mapping[tuple[str, ...], tuple[Target, ...]]
    by_kernel: Mapping[str, Target]
    by_site: Mapping[str, Target]


def join_run(graph: TraceGraph, header: RunHeader) -> Join:
    """Align a run's command buffers with the map's."""
    groups: dict[tuple[int, tuple[int, ...]], int] = {}
    group_of_buffer: dict[int, int] = {}
    by_command: dict[CommandKey, Target] = {}
    for buffer, ordinals in _aligned(graph, header):
        key = (buffer.program, ordinals)
        if key not in groups:
            groups[key] = len(groups)
            candidates = [graph.command_buffers[ordinal] for ordinal in ordinals]
            by_command.update(_command_targets(groups[key], candidates))
        group_of_buffer[buffer.id] = groups[key]
    return Join(
        group_of_buffer=group_of_buffer,
        by_command=by_command,
        by_sequence=_sequence_targets(_called(graph.command_buffers, header.function)),
        by_kernel=_kernel_targets(graph, header.function),
        by_site={site.id: Target((site.id,)) for site in graph.sites},
    )


def _called(buffers: Sequence[CommandBuffer], function: Text) -> list[CommandBuffer]:
    """The buffers that belong to a function, or all where that is not known or none does."""
    own = [buffer for buffer in buffers if function is not UNKNOWN and buffer.function == function]
    return own or list(buffers)


def _aligned(graph: TraceGraph, header: RunHeader) -> Iterable[tuple[RecordedBuffer, tuple[int, ...]]]:
    """Each recorded buffer with the ordinals of the static ones that it may be.

    Memoized buffers are all created at load, in the order of the text: where as many were recorded as the map has with
    the same fingerprint, they pair in order.
    """
    matches = [
        [buffer for buffer in graph.command_buffers if _same(buffer.commands, program)] for program in header.programs
    ]
    memoized = _in_creation_order(matches, header)
    for buffer in header.buffers:
        found = matches[buffer.program]
        if buffer.id in memoized:
            yield buffer, (memoized[buffer.id],)
        elif found:
            likeliest = _called(_likeliest(found, buffer.one_shot), header.function)
            yield buffer, tuple(candidate.ordinal for candidate in likeliest)


def _in_creation_order(matches: Sequence[Sequence[CommandBuffer]], header: RunHeader) -> dict[int, int]:
    recorded: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for buffer in sorted(header.buffers, key=lambda each: each.id):
        if not buffer.one_shot:
            memoized = tuple(found.ordinal for found in matches[buffer.program] if found.memoized)
            recorded[memoized].append(buffer.id)
    paired: dict[int, int] = {}
    for ordinals, ids in recorded.items():
        if len(ordinals) == len(ids):
            paired.update(zip(ids, ordinals, strict=True))
    return paired


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
            sites = tuple(
                dict.fromkeys(
                    site for candidate in candidates if (site := candidate.commands[index].site) is not UNKNOWN
                )
            )
            if sites:
                targets[CommandKey(group, index, command.kernel)] = Target(sites)
    return targets


def _sequence_targets(static: Sequence[CommandBuffer]) -> dict[tuple[str, ...], tuple[Target, ...]]:
    """For each sequence of kernels that a buffer dispatches: the target of the k-th dispatch."""
    found: dict[tuple[str, ...], list[list[str]]] = {}
    for buffer in static:
        dispatches = [command for command in buffer.commands if command.kind == "dispatch"]
        if buffer.initializer or any(command.kernel is UNKNOWN or command.site is UNKNOWN for command in dispatches):
            continue
        sequence = tuple(str(command.kernel) for command in dispatches)
        places = found.setdefault(sequence, [[] for _ in dispatches])
        for place, command in zip(places, dispatches, strict=True):
            place.append(str(command.site))
    return {sequence: tuple(Target(tuple(place)) for place in places) for sequence, places in found.items() if sequence}


def _kernel_targets(graph: TraceGraph, function: Text) -> dict[str, Target]:
    """The sites of each kernel that can have run: of the called function where that is known, not load-time ones."""
    targets = {}
    for kernel in graph.kernels:
        sites = [graph.site_by_id[site] for site in kernel.sites]
        per_call = [site for site in sites if not site.initializer] or sites
        called = [site for site in per_call if function is not UNKNOWN and site.function == function] or per_call
        if called:
            targets[kernel.name] = Target(tuple(site.id for site in called))
    return targets
