"""Which memoized command buffer is which, by the order in which they were created.

All of them are created once, when the module is loaded, in the order of the text, and numbers rise in that order. But a
profile only lists those that ran, and hidden buffers take numbers as well. So the number alone tells nothing; that one
lies before another, and that all between two of them must have found a number between theirs, often leaves one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from tracemap.graph.program import CommandBuffer
from tracemap.measurements.header import RecordedBuffer


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
