"""Alignment of recorded command buffers with those of the map."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from tracemap.graph.model import Command, CommandBuffer
from tracemap.measurements.model import RecordedBuffer, RecordedCommand, RunHeader
from tracemap.units import UNKNOWN


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
    feasible: list[list[int]] = []
    for index, ranks in enumerate(candidates):
        if index == 0:
            feasible.append([rank for rank in ranks if rank < ids[0]])
        else:
            gap = ids[index] - ids[index - 1]
            feasible.append([rank for rank in ranks if _any_between(feasible[-1], rank - gap, rank)])
    for index in range(len(feasible) - 2, -1, -1):
        gap = ids[index + 1] - ids[index]
        after = feasible[index + 1]
        feasible[index] = [rank for rank in feasible[index] if _any_between(after, rank + 1, rank + gap + 1)]
    return feasible if all(feasible) else []


def _any_between(ranks: Sequence[int], begin: int, end: int) -> bool:
    """Whether a sorted list has a value from `begin` up to but not including `end`."""
    index = bisect_left(ranks, begin)
    return index < len(ranks) and ranks[index] < end


def align_buffers(
    static: Sequence[CommandBuffer], runnable: Sequence[CommandBuffer], header: RunHeader
) -> Iterator[tuple[RecordedBuffer, tuple[int, ...]]]:
    """The recorded buffers that match some buffer of the map, with the ordinals of their candidates.

    Args:
        static: the map's command buffers.
        runnable: the command buffers that the called function can execute.
        header: the run's header.
    """
    matches = [[buffer for buffer in static if _same(buffer.commands, program)] for program in header.programs]
    able = {buffer.ordinal for buffer in runnable}
    memoized = by_creation(static, matches, header.buffers)
    for buffer in header.buffers:
        if buffer.id in memoized:
            # The order of creation is more reliable than the function: it never leaves a buffer without candidates.
            narrowed = [ordinal for ordinal in memoized[buffer.id] if ordinal in able]
            yield buffer, tuple(narrowed or memoized[buffer.id])
        elif fitting := [candidate for candidate in matches[buffer.program] if candidate.ordinal in able]:
            yield buffer, tuple(candidate.ordinal for candidate in _likeliest(fitting, buffer.one_shot))


def _likeliest(candidates: Sequence[CommandBuffer], one_shot: bool) -> list[CommandBuffer]:
    """The candidates with the same lifetime as the recorded buffer, preferably not of initializers; else all."""
    same_lifetime = [buffer for buffer in candidates if buffer.memoized != one_shot]
    running = [buffer for buffer in same_lifetime or candidates if not buffer.initializer]
    return running or same_lifetime or list(candidates)


def _same(static: Sequence[Command], recorded: Sequence[RecordedCommand]) -> bool:
    return len(static) == len(recorded) and all(map(_same_command, static, recorded))


def _same_command(static: Command, recorded: RecordedCommand) -> bool:
    if static.kind != "dispatch" or recorded.kind != "dispatch":
        return static.kind == recorded.kind
    if static.kernel != recorded.kernel:
        return False
    return all(
        known is UNKNOWN or known == count for known, count in zip(static.workgroups, recorded.workgroups, strict=False)
    )
