"""Which command buffers of the map recorded ones are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from tracemap.graph.model import Command, CommandBuffer
from tracemap.measurements.model import RecordedBuffer, RecordedCommand, RunHeader
from tracemap.units import UNKNOWN


def by_creation(
    static: Sequence[CommandBuffer], matches: Sequence[Sequence[CommandBuffer]], recorded: Sequence[RecordedBuffer]
) -> Mapping[int, Sequence[int]]:
    """The ordinals that each recorded memoized buffer may be, by its id; those of which none fits are left out.

    Args:
        static: the map's command buffers, in the order of the text.
        matches: for each recorded program the static buffers with its fingerprint.
        recorded: the run's buffers.
    """
    at_load = [buffer.ordinal for buffer in static if buffer.memoized or buffer.initializer]
    rank_of = {ordinal: rank for rank, ordinal in enumerate(at_load)}
    ids: list[int] = []
    candidates: list[list[int]] = []
    for buffer in sorted(recorded, key=lambda each: each.id):
        ranks = [rank_of[found.ordinal] for found in matches[buffer.program] if found.memoized]
        if ranks and not buffer.one_shot:
            ids.append(buffer.id)
            candidates.append(sorted(ranks))
    # Where the numbers leave no room for what was created between, their order alone decides.
    fitting = _fitting(ids, candidates) or _fitting(
        [len(at_load) * (number + 1) for number in range(len(ids))], candidates
    )
    return {number: [at_load[rank] for rank in ranks] for number, ranks in zip(ids, fitting, strict=False)}


def _fitting(ids: Sequence[int], candidates: Sequence[Sequence[int]]) -> list[list[int]]:
    """The ranks of each that belong to any way to number all of them; empty if there is none.

    Ranks rise with ids, and no faster than these: what is created between two has an id between theirs.
    """
    kept: list[list[int]] = []
    for number, ranks in enumerate(candidates):
        if number == 0:
            kept.append([rank for rank in ranks if rank < ids[0]])
        else:
            gap = ids[number] - ids[number - 1]
            kept.append([rank for rank in ranks if _any_between(kept[-1], rank - gap, rank)])
    for number in range(len(kept) - 2, -1, -1):
        gap = ids[number + 1] - ids[number]
        after = kept[number + 1]
        kept[number] = [rank for rank in kept[number] if _any_between(after, rank + 1, rank + gap + 1)]
    return kept if all(kept) else []


def _any_between(ranks: Sequence[int], begin: int, end: int) -> bool:
    """Whether a sorted list has a value from `begin` up to but not including `end`."""
    found = bisect_left(ranks, begin)
    return found < len(ranks) and ranks[found] < end


def aligned(
    static: Sequence[CommandBuffer], runnable: Sequence[CommandBuffer], header: RunHeader
) -> Iterator[tuple[RecordedBuffer, tuple[int, ...]]]:
    """Each recorded buffer that may be any of the map's, with the ordinals of those that it may be.

    Args:
        static: the map's command buffers.
        runnable: those that the function that was called can execute.
        header: the run's.
    """
    matches = [[buffer for buffer in static if _same(buffer.commands, program)] for program in header.programs]
    able = {buffer.ordinal for buffer in runnable}
    memoized = by_creation(static, matches, header.buffers)
    for buffer in header.buffers:
        if buffer.id in memoized:
            # The order of creation is surer than what is known of the function: it is never left with nothing.
            found = [ordinal for ordinal in memoized[buffer.id] if ordinal in able]
            yield buffer, tuple(found or memoized[buffer.id])
        elif fitting := [candidate for candidate in matches[buffer.program] if candidate.ordinal in able]:
            yield buffer, tuple(candidate.ordinal for candidate in _likeliest(fitting, buffer.one_shot))


def _likeliest(found: Sequence[CommandBuffer], one_shot: bool) -> list[CommandBuffer]:
    """Of static buffers with the right fingerprint those that live as the recorded one does; all if none does."""
    alike = [buffer for buffer in found if buffer.memoized != one_shot]
    running = [buffer for buffer in alike or found if not buffer.initializer]
    return running or alike or list(found)


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
