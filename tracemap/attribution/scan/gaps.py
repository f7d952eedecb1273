"""Gaps of a run: the time between kernels and transfers, with the targets before and after it.

A gap is a time within an invocation in which no dispatch and no transfer of its own ran. Rows of submissions and of
memory management split it: allocation, launch (a submission ran, but none of its dispatches), queue (submitted, but not
started), and host (nothing submitted). Gaps between the same two targets are summed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracemap.attribution.join.targets import EXECUTE, MEMORY, TRANSFER
from tracemap.attribution.scan.outliers import FEWEST, threshold_of_values
from tracemap.attribution.scan.sums import OutlierScope

if TYPE_CHECKING:
    import numpy.typing as npt

    Column = npt.NDArray[Any]

EDGE: Final = -9
"""The target before the first, and after the last activity of an invocation."""


class Gap(msgspec.Struct, frozen=True):
    """The sum of all gaps from one target to another (`EDGE`: the begin or the end of an invocation).

    `same_submission`: both are of one submission. `parts_ns`: allocation, launch, queue and host. `tail_ns` and
    `head_ns`: the parts of launch after the last dispatch of a submission, and before the first one of the next.
    `outliers_ns`: time of gaps above their outlier threshold, by the four parts; these are without it.
    """

    before: int
    after: int
    same_submission: bool
    count: int
    parts_ns: tuple[int, ...]
    tail_ns: int
    head_ns: int
    outliers_ns: tuple[int, ...]


class Gaps(msgspec.Struct, frozen=True):
    """The gaps of a run, and the time of transfers by target.

    `invocations`: number of invocations that were read, a sample of those of a long run.
    """

    gaps: tuple[Gap, ...]
    transfers_ns: Mapping[int, int]
    invocations: int


def gaps_of(timed: Mapping[str, Column], transfers: Collection[int], outliers: OutlierScope) -> Gaps:
    """The gaps of a run.

    Args:
        timed: the run's rows in the order of invocations and starts, as `TimedRows.rows` has them.
        transfers: targets that are transfers.
        outliers: how to treat gaps above their outlier threshold.
    """
    import numpy as np

    rows = {
        **timed,
        "end": timed["start"] + timed["duration"],
        "submitted": np.where(timed["unknown"] != 0, timed["start"], np.minimum(timed["start"], timed["submitted"])),
    }
    is_active = (rows["target"] != MEMORY) & (rows["target"] != EXECUTE)
    active = {name: column[is_active] for name, column in rows.items()}
    # The latest end of all activities up to each one, and the activity that has it.
    ends = np.maximum.accumulate(active["end"])
    leaders = np.maximum.accumulate(np.where(active["end"] == ends, np.arange(len(ends)), 0))
    added = np.maximum(0, active["end"] - np.maximum(active["start"], np.concatenate(([_EARLIEST], ends[:-1]))))
    moves = np.isin(active["target"], [*transfers, TRANSFER])
    pairs = _pairs(rows, active, ends, leaders)
    is_gap = pairs["end"] > pairs["begin"]
    pairs = {name: column[is_gap] for name, column in pairs.items()}
    invocations = _count_distinct(rows["invocation"])
    return Gaps(tuple(_gaps(rows, active, pairs, outliers)), _sums(active["target"][moves], added[moves]), invocations)


_EARLIEST: Final = -(1 << 62)


def _count_distinct(values: Column) -> int:
    """The number of different values. `np.unique` alone would import masked arrays, as long as a short scan takes."""
    import numpy as np

    return int(np.count_nonzero(np.diff(np.sort(values)))) + bool(len(values))


def _sums(keys: Column, values: Column) -> dict[int, int]:
    import numpy as np

    unique, positions = np.unique(keys, return_inverse=True)
    # Sums of whole numbers below 2^53 are exact in doubles.
    sums = np.bincount(positions, weights=values, minlength=len(unique))
    return {int(key): int(total) for key, total in zip(unique, sums, strict=True)}


def _pairs(
    rows: Mapping[str, Column], active: Mapping[str, Column], ends: Column, leaders: Column
) -> dict[str, Column]:
    """The times between consecutive activities of an invocation, and from its first row and to its last one.

    `before` and `after`: the positions of the activities, -1 at an edge of the invocation.
    """
    import numpy as np

    numbers, firsts = np.unique(rows["invocation"], return_index=True)
    begins = np.minimum.reduceat(rows["submitted"], firsts) if len(firsts) else firsts
    stops = np.maximum.reduceat(rows["end"], firsts) if len(firsts) else firsts
    is_first = np.diff(active["invocation"], prepend=active["invocation"][:1] - 1) != 0
    starts = np.flatnonzero(is_first)
    lasts = np.concatenate((starts[1:], [len(ends)]))[: len(starts)] - 1
    at = np.searchsorted(numbers, active["invocation"][starts])
    inner = np.flatnonzero(~is_first)
    count = len(starts)
    # Invocations of asynchronous functions overlap.
    earliest = np.concatenate(([_EARLIEST], ends[starts[1:] - 1]))[:count]
    latest = np.concatenate((active["start"][starts[1:]], [-_EARLIEST]))[:count]
    return {
        "before": np.concatenate((leaders[inner - 1], np.full(count, -1), leaders[lasts])),
        "after": np.concatenate((inner, starts, np.full(count, -1))),
        "begin": np.concatenate((ends[inner - 1], np.maximum(begins[at], earliest), ends[lasts])),
        "end": np.concatenate((active["start"][inner], active["start"][starts], np.minimum(stops[at], latest))),
    }


def _gaps(
    rows: Mapping[str, Column],
    active: Mapping[str, Column],
    pairs: Mapping[str, Column],
    outliers: OutlierScope,
) -> list[Gap]:
    import numpy as np

    before, after, begin, end = (pairs[name] for name in ("before", "after", "begin", "end"))
    memory, executes = rows["target"] == MEMORY, rows["target"] == EXECUTE
    running = memory | executes
    allocation = _measure(begin, end, rows["start"][memory], rows["end"][memory])
    busy = _measure(begin, end, rows["start"][running], rows["end"][running])
    submitted = _measure(begin, end, rows["submitted"], rows["end"])
    launch, queue, host = busy - allocation, submitted - busy, end - begin - submitted
    submission_before, submission_after = (np.where(at < 0, -1, active["submission"][at]) for at in (before, after))
    is_same = (submission_before == submission_after) & (submission_before >= 0)
    # Where the submission before ends, and where the one after begins.
    order = np.argsort(rows["submission"][executes], kind="stable")
    submissions = rows["submission"][executes][order]
    last = _value_at(submissions, rows["end"][executes][order], submission_before, begin)
    start = _value_at(submissions, rows["start"][executes][order], submission_after, end)
    target_before, target_after = (np.where(at < 0, EDGE, active["target"][at]) for at in (before, after))
    width = int(active["target"].max(initial=0)) + 1 - EDGE
    keys = ((target_before - EDGE) * width + (target_after - EDGE)) * 2 + is_same
    unique, positions = np.unique(keys, return_inverse=True)
    numbers = active["invocation"][np.where(after < 0, before, after)]
    excess = _excess(end - begin, positions, numbers, outliers)
    whole = np.stack((allocation, launch, queue, host))
    parts = _without(excess, whole)
    launch = parts[1]
    tail = np.where(is_same, 0, np.clip(np.minimum(last, end) - begin, 0, launch))
    head = np.where(is_same, 0, np.clip(end - np.maximum(start, begin), 0, launch - tail))
    totals = [
        np.bincount(positions, weights=column, minlength=len(unique))
        for column in (np.ones(len(keys)), *parts, tail, head, *(whole - parts))
    ]
    gaps = []
    for key, *sums in zip(unique.tolist(), *(total.astype(np.int64).tolist() for total in totals), strict=True):
        places, same = divmod(key, 2)
        first, second = divmod(places, width)
        count, *own, tail_ns, head_ns = sums[:7]
        gap = Gap(first + EDGE, second + EDGE, bool(same), count, tuple(own), tail_ns, head_ns, tuple(sums[7:]))
        gaps.append(gap)
    return gaps


def _excess(lengths: Column, groups: Column, invocations: Column, outliers: OutlierScope) -> Column:
    """The time of each gap above the outlier threshold of gaps of its group (see `outliers`)."""
    import numpy as np

    excess = np.zeros(len(lengths), dtype=np.int64)
    if not outliers.enabled:
        return excess
    order = np.argsort(groups, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if len(members) >= FEWEST:
            threshold = _threshold(lengths[members], invocations[members], noisy=outliers.noisy)
            excess[members] = np.maximum(0, lengths[members] - threshold)
    return excess


def _threshold(lengths: Column, invocations: Column, *, noisy: bool) -> int:
    import numpy as np

    threshold = threshold_of_values(lengths, noisy=noisy)
    above = lengths > threshold
    calls = _count_distinct(invocations)
    recurs = len(lengths) > calls and 10 * _count_distinct(invocations[above]) >= 9 * calls
    if recurs and np.count_nonzero(above) >= FEWEST:  # such as the first trip of a loop: no noise
        return threshold_of_values(lengths[above], noisy=noisy)
    return threshold


def _without(excess: Column, parts: Column) -> Column:
    """Parts of gaps without their time above the threshold, which was spent in the largest parts first."""
    import numpy as np

    order = np.argsort(-parts, axis=0, kind="stable")
    ranked = np.take_along_axis(parts, order, axis=0)
    reached = np.cumsum(ranked, axis=0)
    left = np.maximum(0, reached - excess) - np.maximum(0, reached - ranked - excess)
    without = np.empty_like(parts)
    np.put_along_axis(without, order, left, axis=0)
    return without


def _value_at(keys: Column, values: Column, wanted: Column, default: Column) -> Column:
    """The value of each wanted key among sorted keys; the default where it is not there."""
    import numpy as np

    if not len(keys):
        return default
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], default)


def _measure(begin: Column, end: Column, starts: Column, stops: Column) -> Column:
    """For each gap, the time that the union of some intervals covers."""
    import numpy as np

    if not len(starts):
        return np.zeros(len(begin), dtype=np.int64)
    order = np.argsort(starts, kind="stable")
    starts, latest = starts[order], np.maximum.accumulate(stops[order])
    is_new = np.concatenate(([True], starts[1:] > latest[:-1]))
    first = np.flatnonzero(is_new)
    block_begin, block_end = starts[first], latest[np.concatenate((first[1:], [len(starts)])) - 1]
    before = np.concatenate(([0], np.cumsum(block_end - block_begin)))

    def covered(times: Column) -> Column:
        at = np.searchsorted(block_begin, times, side="right")
        block = np.maximum(at - 1, 0)
        within = np.minimum(times, block_end[block]) - block_begin[block]
        return np.where(at > 0, before[block] + within, 0)

    return np.asarray(covered(end) - covered(begin))
