"""Gains of the program if work gets faster: a model of an invocation, from when its work ran.

Dispatches without a barrier between them share the workers. Such a group takes at least as long as its longest
dispatch, and as all its work divided by the workers; how close it comes to that is measured, and assumed to stay.
Groups of a submission follow each other. A submission starts when the one before it has ended and the host has
submitted it. So a faster kernel gains nothing where the device then waits for the host.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from tracemap.attribution.join.schedule_nfa import meanings_of
from tracemap.attribution.join.targets import called_schedule
from tracemap.attribution.model import Attribution, MemberShare, OpResult, OverheadPlace, PlaceResult, TimedWork
from tracemap.attribution.overhead import overhead_by_op
from tracemap.core.codec import Record
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.map.model import OpId, Site, TraceGraph
from tracemap.runs.model import Peaks, RunHeader

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


class Gain(Record, frozen=True):
    """Mean time of an invocation before and after a change, with the interval of the time after it.

    `reason`: why there is no gain; "" if there is one.
    """

    before_ns: int
    after_ns: int
    low_ns: int
    high_ns: int
    reason: str = ""

    @property
    def saved_ns(self) -> int:
        """Time that an invocation saves; negative if it takes longer."""
        return self.before_ns - self.after_ns

    def percent(self, time_ns: int) -> float:
        """The saving of a time after the change, in percent of the time before, with one decimal."""
        return round(100 * (self.before_ns - time_ns) / self.before_ns, 1) + 0.0 if self.before_ns else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """Work that takes another time.

    Attributes:
        parts: the ops that change, by dispatch site or transfer.
        factor: how many times as fast they get; infinite: they are removed; 0: as fast as the roofline allows.
        workers: the number of workers; unknown: it stays.
    """

    parts: Mapping[str, frozenset[OpId]]
    factor: float
    workers: Integer = UNKNOWN

    @property
    def is_removal(self) -> bool:
        """Whether the work is removed."""
        return math.isinf(self.factor)


ROOFLINE: Final = 0.0
"""The factor of work that gets as fast as the machine's peaks allow."""
REMOVED: Final = math.inf
"""The factor of work that is removed."""
UNCHANGED: Final = 1.0
"""The factor of work that does not change."""


def factor_name(factor: float) -> str:
    """The name of a factor: `2x`, `roofline` or `removed`.

    >>> factor_name(1.5), factor_name(ROOFLINE)
    ('1.5x', 'roofline')
    """
    return {ROOFLINE: "roofline", REMOVED: "removed"}.get(factor, f"{factor:g}x")


# ---- what the model needs


def check_modelled(attribution: Attribution) -> TimedWork:
    """The timed work of an attribution whose invocations have a mean time.

    Raises:
        UsageInvalid: the runs lack work, times or invocations, or called different functions.
    """
    if len(attribution.functions) > 1:
        raise UsageInvalid(
            "the runs called different functions, which have no common time of an invocation; name runs of one function"
        )
    if attribution.timed is None:
        work = [*attribution.sites, *attribution.transfers]
        if not any(isinstance(result.calls, int) and result.calls for result in work):
            raise UsageInvalid(
                "the run has no time of a kernel, copy or fill, so that no gain is known: the function has none, or "
                "only copies and fills within a submission, which the runtime does not time; record another function"
            )
        raise UsageInvalid(
            "the run does not say when its work ran, and in which invocation (start_ns, duration_ns, invocation); "
            "record it with `tracemap record`"
        )
    if not attribution.timed.period_ns and _elapsed_ns(attribution.run) is UNKNOWN:
        raise UsageInvalid("the run does not say how long its invocations took; record it with `tracemap record`")
    return attribution.timed


def _elapsed_ns(run: RunHeader) -> Integer:
    """Mean elapsed time of an invocation."""
    if not isinstance(run.elapsed_ns, int) or not isinstance(run.iterations, int):
        return UNKNOWN
    return run.elapsed_ns // run.iterations if run.iterations and run.elapsed_ns else UNKNOWN


def program_ns(attribution: Attribution) -> int:
    """Mean time of an invocation, without outlier time, the profiler's own work, and its slowdown if that is known.

    Raises:
        UsageInvalid: see `check_modelled`.
    """
    timed, run = check_modelled(attribution), attribution.run
    mean_ns = _elapsed_ns(run)
    typical_ns = timed.period_ns or (mean_ns if isinstance(mean_ns, int) else 0)
    profiler_ns = sum(row.total_ns for row in attribution.overhead if row.place is OverheadPlace.PROFILER)
    if not isinstance(run.elapsed_ns, int) or not run.elapsed_ns:
        return round(typical_ns)
    written_ns = run.elapsed.profiler_ns if isinstance(run.elapsed.profiler_ns, int) else 0
    # What the profiler writes is a part of each invocation; its slowdown is a difference of medians, as it is.
    slowdown_ns = max(0, profiler_ns - written_ns) / _invocations(attribution)
    return round(typical_ns * (1 - written_ns / run.elapsed_ns) - min(slowdown_ns, typical_ns / 2))


def _invocations(attribution: Attribution) -> float:
    """Number of invocations of the runs, with those that had no events."""
    timed, iterations = check_modelled(attribution), attribution.run.iterations
    return float(iterations) if isinstance(iterations, int) and iterations else len(timed.tail_ns) * timed.scale


def overhead_ns(attribution: Attribution) -> float:
    """Mean time of an invocation in which no kernel ran, without outlier time and the profiler's own work.

    Raises:
        UsageInvalid: see `check_modelled`.
    """
    timed = check_modelled(attribution)
    kernels_ns = float(timed.wall_ns.sum()) * timed.scale / _invocations(attribution)
    return max(0.0, program_ns(attribution) - kernels_ns)


# ---- shares
#
# The part of a place's time that remains after a change. Shares within a kernel show where the time passed. Ops of the
# same loop nest may overlap: then a faster op saves nothing while another one still takes as long.


class _Ratios(msgspec.Struct, frozen=True):
    """The time of each target after a change over that before it: with the largest gain, the likely one, the least."""

    least: Array
    likely: Array
    most: Array


def _ratios(
    graph: TraceGraph,
    attribution: Attribution,
    results: Mapping[str, PlaceResult],
    timed: TimedWork,
    change: Change,
) -> _Ratios:
    import numpy as np

    metric = _time_metric(attribution)
    of_place = {
        place: _ratios_of_place(graph, attribution.run.peaks, results[place], place, ops, metric, change)
        for place, ops in change.parts.items()
        if place in results
    }
    # The last element is for events without a target, whose index is negative.
    ratios = np.ones((3, len(timed.places) + 1))
    for target, places in enumerate(timed.places):
        if not of_place.keys().isdisjoint(places):
            ratios[:, target] = np.mean([of_place.get(place, (1.0, 1.0, 1.0)) for place in places], axis=0)
    return _Ratios(*ratios)


def _time_metric(attribution: Attribution) -> str:
    names = [metric.name for metric in attribution.metrics]
    return next((name for name in ("cpu_ns", "duration_ns") if name in names), "")


def _ratios_of_place(
    graph: TraceGraph,
    peaks: Peaks,
    result: PlaceResult,
    place: str,
    ops: frozenset[OpId],
    metric: str,
    change: Change,
) -> tuple[float, float, float]:
    """The ratios of a place's time after and before a change: with the largest gain, the likely one, the least."""
    weights = {share.op: float(share.weight.get(metric, 0)) for share in result.shares}
    total = result.metrics[metric].total
    if ops >= weights.keys():
        shares = (1.0, 1.0, 1.0)
        others = 0.0
    else:
        share = sum(weight for op, weight in weights.items() if op in ops)
        low, high = _likely(result, ops, metric, share, total)
        shares = (high, share, low)
        others = _overlapping(graph, place, ops, weights)
    factor = change.factor
    if factor == ROOFLINE:
        factor = _roofline_factor(graph.site_by_id.get(place), result, ops, shares[1] * total, peaks)
    serial = [1 - share * (1 - 1 / factor) for share in shares]
    all_ratios = [*serial, *(_overlapped(share, min(others, 1 - share), factor) for share in shares)]
    return min(all_ratios), serial[1], max(all_ratios)


def _likely(result: PlaceResult, ops: frozenset[OpId], metric: str, share: float, total: int) -> tuple[float, float]:
    """The likely range of the share of ops: the tighter of their own ranges and of what the others leave."""
    if not total or not any(metric in own.likely for own in result.shares):
        return share, share
    own = [bound for other in result.shares if other.op in ops for bound in [_range(other, metric)]]
    rest = [bound for other in result.shares if other.op not in ops for bound in [_range(other, metric)]]
    low = max(sum(low for low, _ in own), total - sum(high for _, high in rest))
    high = min(sum(high for _, high in own), total - sum(low for low, _ in rest))
    return min(share, max(0.0, low / total)), max(share, min(1.0, high / total))


def _range(share: MemberShare, metric: str) -> tuple[int, int]:
    return share.likely.get(metric) or (share.attributed[metric], share.attributed[metric])


def _overlapped(share: float, others: float, factor: float) -> float:
    """The ratio if the ops and others of the same loop nest overlap fully: the slower of the two decides.

    >>> _overlapped(0.4, 0.6, 2), _overlapped(0.75, 0.25, 2)
    (1.0, 0.5)
    """
    if not share or not others:
        return 1 - share * (1 - 1 / factor)
    return 1 - (share + others) * (1 - max(share / factor, others) / max(share, others))


def _overlapping(graph: TraceGraph, place: str, ops: frozenset[OpId], weights: Mapping[OpId, float]) -> float:
    """The share of other ops of a dispatch whose work is in the same loop nest as that of these ops.

    Work of another loop nest never overlaps with theirs. Without the kernel's text, all ops may.
    """
    site = graph.site_by_id.get(place)
    kernel = graph.kernel_by_name.get(site.kernel) if site else None
    if kernel is None or not kernel.steps:
        return sum(weight for op, weight in weights.items() if op not in ops)
    parents = {step.line: step.parent for step in kernel.steps}
    nests: dict[int, set[OpId]] = defaultdict(set)
    for step in kernel.steps:
        line = step.line
        while (parent := parents.get(line, UNKNOWN)) is not UNKNOWN:
            line = parent
        nests[line].update(op for op in step.ops if op in weights)
    together = {op for nest in nests.values() if not nest.isdisjoint(ops) for op in nest}
    return sum(weights[op] for op in together if op not in ops)


def _roofline_factor(
    site: Site | None, result: PlaceResult, ops: frozenset[OpId], time_ns: float, peaks: Peaks
) -> float:
    """How many times as fast ops of a dispatch would be at the machine's peaks; 1 if their work is unknown."""
    members = [member for member in site.members if member.op in ops] if site else []
    known = [member for member in members if member.operations is not UNKNOWN and member.bytes is not UNKNOWN]
    if not members or len(known) < len(members) or result.calls is UNKNOWN or not result.calls:
        return 1.0
    operations = sum(member.operations for member in known if isinstance(member.operations, int))
    moved = sum(member.bytes for member in known if isinstance(member.bytes, int))
    least_ns = 1e9 * max(operations / peaks.operations_per_second, moved / peaks.bytes_per_second) * result.calls
    return max(1.0, time_ns / least_ns) if least_ns else 1.0


# ---- the model of an invocation


class _Range(msgspec.Struct, frozen=True):
    """Savings in ns, of stages or in all: at least, likely, at most."""

    least: Any
    likely: Any
    most: Any


class _Groups(msgspec.Struct, frozen=True):
    """Groups of the timed work with all their events, for a model of their times."""

    timed: TimedWork
    numbers: Array
    events: Array
    begins: Array
    counts: Array
    wall_ns: Array

    @classmethod
    def of(cls, timed: TimedWork, numbers: Array) -> _Groups:
        """Groups by their numbers, which are in order."""
        import numpy as np

        first = np.searchsorted(timed.group, numbers)
        counts = np.searchsorted(timed.group, numbers, side="right") - first
        begins = np.concatenate(([0], np.cumsum(counts)[:-1]))
        events = np.repeat(first - begins, counts) + np.arange(counts.sum())
        return cls(timed, numbers, events, begins, counts, timed.wall_ns[numbers])

    def times(self, cpu_ns: Array, workers: Integer, late_ns: Array) -> _GroupTimes:
        """The times of groups whose events take this time of all workers.

        `late_ns`: time after which all workers but the first begin.
        """
        import numpy as np

        tiles = self.timed.tiles[self.events]
        if not isinstance(workers, int):
            # As parallel as it was; a dispatch that took more than the whole group had several workers.
            before = self.timed.cpu_ns[self.events]
            parallel = np.maximum(1, np.add.reduceat(before, self.begins) / np.maximum(self.wall_ns, 1))
            own_wall, own_parallel = (np.repeat(own, self.counts) for own in (self.wall_ns, parallel))
            alone = np.where(before > 1.01 * own_wall, cpu_ns / own_parallel, cpu_ns)
            longest, work = np.maximum.reduceat(alone, self.begins), np.add.reduceat(cpu_ns, self.begins)
            least = np.maximum(longest, work / parallel)
            return _GroupTimes(least, least, np.add.reduceat(alone, self.begins))
        rounds = np.where(tiles > 0, -(-tiles // workers) / np.maximum(tiles, 1), 1 / workers)
        alone = cpu_ns * rounds
        longest, work = np.maximum.reduceat(alone, self.begins), np.add.reduceat(cpu_ns, self.begins)
        least = np.maximum(longest, work / workers)
        # A single dispatch: one worker alone, or all together from when they have begun.
        shared = np.minimum(work, least + late_ns * (workers - 1) / workers)
        scheduled = np.where(tiles[self.begins] == 1, work, shared)
        several = np.flatnonzero(self.counts > 1)
        if len(several) and workers > 1:
            scheduled[several] = _scheduled(
                cpu_ns,
                np.where(tiles > 0, tiles, workers),
                *(self.begins[several], self.counts[several], workers, late_ns[several]),
            )
        elif len(several):
            scheduled[several] = work[several]
        return _GroupTimes(least, np.maximum(scheduled, least), np.add.reduceat(alone, self.begins))

    def late_ns(self, workers: Integer) -> Array:
        """The time after which all workers but the first began, so that the model takes the measured time."""
        import numpy as np

        late = np.zeros(len(self.numbers))
        if not isinstance(workers, int) or workers == 1:
            return late
        cpu_ns = self.timed.cpu_ns[self.events]
        low, high = late, self.wall_ns.copy()
        for _ in range(_BISECTIONS):
            late = (low + high) / 2
            is_short = self.times(cpu_ns, workers, late).scheduled < self.wall_ns
            low, high = np.where(is_short, late, low), np.where(is_short, high, late)
        return low

    def _has_order(self, workers: Integer) -> Array:
        """Whether the times of groups depend on which worker takes which dispatch."""
        import numpy as np

        tiles = np.minimum.reduceat(self.timed.tiles[self.events], self.begins)
        is_shared = tiles >= _MANY_TILES * workers if isinstance(workers, int) else np.zeros(len(tiles), dtype=bool)
        return np.asarray((self.counts > 1) & ~is_shared)

    def savings(self, before: _GroupTimes, after: _GroupTimes, workers: Integer) -> list[Array]:
        """Savings by the times before and after a change: at least, likely, at most.

        Time in which workers were idle may shrink with the work, or stay.
        """
        import numpy as np

        wall = self.wall_ns
        busy = np.minimum(1, before.least / np.maximum(wall, _TINY))
        likely = wall * (1 - after.scheduled / np.maximum(before.scheduled, _TINY))
        whole = wall * (1 - after.least / np.maximum(before.least, _TINY))
        # Workers may take dispatches of few workgroups in another order; how far, the time without work shows.
        unsure = np.where(self._has_order(workers), np.maximum(0, wall - before.least), 0)
        critical = before.serial - after.serial
        moved = np.clip(critical - likely, -unsure, unsure)
        extremes = [likely, whole, whole * busy, likely + moved, likely - np.clip(likely, -unsure, unsure)]
        return [np.minimum.reduce(extremes), likely, np.maximum.reduce(extremes)]


_BISECTIONS: Final = 12
_MANY_TILES: Final = 2
"""Workgroups per worker from which on a dispatch is spread evenly."""


class _GroupTimes(msgspec.Struct, frozen=True):
    """The time of groups: at least, if workers take the next work as they get free, and if nothing overlaps."""

    least: Array
    scheduled: Array
    serial: Array


def _scheduled(cpu_ns: Array, tiles: Array, begins: Array, counts: Array, workers: int, late_ns: Array) -> Array:
    """The time of groups if each dispatch in turn goes to the workers that get free first.

    A dispatch with several tiles goes to several workers, so that they end together.
    """
    import numpy as np

    # A group uses no more workers than it has tiles.
    workers = min(workers, int(np.add.reduceat(np.minimum(tiles, workers), begins).max()))
    free = np.repeat(late_ns[:, None], workers, axis=1)
    free[:, 0] = 0
    ended = np.zeros(len(begins))
    for position in range(min(int(counts.max()), _MOST_SCHEDULED)):
        active = np.flatnonzero(counts > position)
        events = begins[active] + position
        times = np.sort(free[active], axis=1)
        # The time at which the first n workers end together, for each n; n workers if no further one is free by then.
        ends = (cpu_ns[events][:, None] + np.cumsum(times, axis=1)) / np.arange(1, workers + 1)
        enough = np.concatenate((ends[:, :-1] <= times[:, 1:], np.ones((len(active), 1), dtype=bool)), axis=1)
        used = np.minimum(enough.argmax(axis=1) + 1, np.minimum(tiles[events], workers))
        end = np.take_along_axis(ends, used[:, None] - 1, axis=1)
        free[active] = np.where(np.arange(workers) < used[:, None], end, times)
        ended[active] = np.maximum(ended[active], end[:, 0])
    return ended


_MOST_SCHEDULED: Final = 1000
"""Most dispatches of a group that are scheduled one after another."""


def _groups_of(timed: TimedWork, ratio: Array) -> Array:
    """The groups with events whose time changes."""
    import numpy as np

    groups = timed.group[ratio[timed.target] != 1]
    return np.asarray(groups[np.diff(groups, prepend=-1) != 0])


_TINY: Final = 1e-9


def _stage_savings(
    timed: TimedWork, ratio: Array, workers: Integer, change: Change, floors: Array, late_ns: Array
) -> _Range:
    """The savings of stages by their own work, if the time of each target changes by a ratio.

    `floors`: least time of a call of each target on more workers, in the worst case. `late_ns`: see `_Groups.times`.
    """
    import numpy as np

    new_workers = change.workers if isinstance(change.workers, int) else workers
    sums = [np.zeros(len(timed.idle_ns)) for _ in range(3)]
    affected = np.arange(len(timed.wall_ns)) if new_workers != workers else _groups_of(timed, ratio)
    if len(affected):
        groups = _Groups.of(timed, affected)
        cpu, targets = timed.cpu_ns[groups.events], timed.target[groups.events]
        after = cpu * ratio[targets]
        late = late_ns[affected]
        savings = groups.savings(groups.times(cpu, workers, late), groups.times(after, new_workers, late), workers)
        if new_workers != workers:
            least_time = np.add.reduceat(floors[targets], groups.begins)
            worst = groups.wall_ns - np.maximum(groups.wall_ns - savings[0], np.minimum(least_time, groups.wall_ns))
            savings = [worst * _SPREAD_LEAST, savings[1] * _SPREAD_LIKELY, savings[2]]
        if change.is_removal:
            gone = np.maximum.reduceat(after, groups.begins) == 0
            savings = [
                saved + extra * gone * timed.gap_ns[affected] for saved, extra in zip(savings, (0, 1, 1), strict=True)
            ]
        for total, saved in zip(sums, savings, strict=True):
            np.add.at(total, timed.stage[affected], saved)
    return _Range(*sums)


_SPREAD_LEAST, _SPREAD_LIKELY = 0.5, 0.9
"""Fraction of the time that other numbers of workers would save if they never waited: at least, and likely."""
_OTHER_OVERHEAD: Final = 0.3
"""Fraction by which the time without a kernel may differ for another number of workers."""


def _waits(graph: TraceGraph, timed: TimedWork, run: RunHeader) -> _Range:
    """Whether the host waits for the device before each stage: if that gains least, likely, and if it gains most.

    The map knows it of most submissions. Of the others, one that came while the device still worked shows that the host
    did not wait. If it came later, the host may have waited, or been slow.
    """
    import numpy as np

    follows = np.concatenate(([False], timed.invocation[1:] == timed.invocation[:-1]))
    if run.device == "local-sync":
        return _Range(follows, follows, follows)
    # The first event of each stage, if it has any: 1 if the host waits before it, 0 if not, else unknown.
    stages, first = np.unique(timed.stage[timed.group], return_index=True)
    known = np.full(len(follows), _UNKNOWN_WAIT)
    known[stages] = _waits_of_targets(graph, timed, run.function)[timed.target[first]]
    is_late = follows & ((timed.slack_ns < 0) | (not timed.is_slack_known))
    runs_ahead = timed.is_slack_known and np.count_nonzero(follows & ~is_late) > _AHEAD * np.count_nonzero(follows)
    least, most = is_late & (known == 1), is_late & (known != 0)
    return _Range(least, least if runs_ahead else most, most)


_UNKNOWN_WAIT: Final = 2


def _waits_of_targets(graph: TraceGraph, timed: TimedWork, function: Text) -> Array:
    """Whether the host waits ahead of the submission of each target, 1 or 0, or `_UNKNOWN_WAIT`; the last of none."""
    import numpy as np

    schedule = called_schedule(graph, function)
    waits: dict[int | str, set[bool]] = defaultdict(set)
    for submission in schedule.submissions if schedule else ():
        for meaning in meanings_of(submission):
            waits[meaning].add(submission.waits)
    of_target = np.full(len(timed.places) + 1, _UNKNOWN_WAIT)
    for target, places in enumerate(timed.places):
        sites = [graph.site_by_id.get(place) for place in places]
        meanings = [site.command_buffer if site else place for site, place in zip(sites, places, strict=True)]
        found = {wait for meaning in meanings if isinstance(meaning, int | str) for wait in waits[meaning]}
        if len(found) == 1:
            of_target[target] = int(found.pop())
    return of_target


_AHEAD: Final = 0.1
"""Fraction of submissions ahead of the device from which on the host is taken not to wait for it."""


def _passed_on(timed: TimedWork, savings: Array, waits: Array) -> float:
    """The time that all invocations save if their stages save this time.

    A stage begins when the stage before it has ended and the host has submitted it. Where the host does not wait, the
    stage begins earlier by `min(saved + max(0, -slack), max(0, slack))`, if the device has saved that much since the
    host last waited. So savings add up below a running minimum, from one wait to the next.
    """
    import numpy as np

    if not np.any(savings):
        return 0.0
    own = np.rint(savings).astype(np.int64)
    is_first = np.concatenate(([True], timed.invocation[1:] != timed.invocation[:-1]))
    begins = is_first | waits
    late, early = np.maximum(0, -timed.slack_ns), np.maximum(0, timed.slack_ns)
    sums = np.cumsum(np.where(begins, 0, late) + own)
    limits = np.where(begins, own - sums, early + own - sums)
    stretch = np.cumsum(begins) * (int(limits.max() - limits.min()) + 1)
    saved = sums + np.minimum.accumulate(limits - stretch) + stretch
    ends = np.concatenate((is_first[1:], [True]))
    # The host returns after its last submission.
    tail = np.full(len(saved), np.iinfo(np.int64).max)
    tail[ends] = np.where(timed.tail_ns > 0, timed.tail_ns, tail[ends])
    return float(np.minimum(saved, tail)[np.concatenate((begins[1:], [True]))].sum())


# ---- gains


def what_if(graph: TraceGraph, attribution: Attribution, change: Change) -> Gain:
    """Gain of the mean time of an invocation by a change.

    Raises:
        UsageInvalid: see `check_modelled`; or the workers of the run are unknown, or cannot change.
    """
    return ProgramModel(graph, attribution).gain(change)


def program_model(graph: TraceGraph, attribution: Attribution) -> ProgramModel | None:
    """The model of an invocation; None if the runs lack times or invocations."""
    try:
        check_modelled(attribution)
    except UsageInvalid:
        return None
    return ProgramModel(graph, attribution)


@dataclass(frozen=True)
class ProgramModel:
    """The model of an invocation, with what all changes have in common."""

    graph: TraceGraph
    attribution: Attribution

    @cached_property
    def timed(self) -> TimedWork:
        """The timed work of the attribution."""
        return check_modelled(self.attribution)

    @cached_property
    def _waits(self) -> _Range:
        return _waits(self.graph, self.timed, self.attribution.run)

    @cached_property
    def _late_ns(self) -> Array:
        import numpy as np

        return _Groups.of(self.timed, np.arange(len(self.timed.wall_ns))).late_ns(self.attribution.run.workers)

    @cached_property
    def _floors(self) -> Array:
        return _bandwidth_times(self.graph, self.timed, self.attribution.run.peaks)

    @cached_property
    def _results(self) -> dict[str, PlaceResult]:
        sites = {site.site: site for site in self.attribution.sites}
        return {**sites, **{transfer.transfer: transfer for transfer in self.attribution.transfers}}

    def gain(self, change: Change) -> Gain:
        """The gain by a change."""
        timed, run, waits = self.timed, self.attribution.run, self._waits
        _check_workers(run, change)
        ratios = _ratios(self.graph, self.attribution, self._results, timed, change)
        least, likely, most = (
            _stage_savings(timed, ratio, run.workers, change, self._floors, self._late_ns)
            for ratio in (ratios.most, ratios.likely, ratios.least)
        )
        saved = _Range(
            _passed_on(timed, least.least, waits.least),
            _passed_on(timed, likely.likely, waits.likely),
            _passed_on(timed, most.most, waits.most),
        )
        # How long submissions and waits take depends on the number of workers.
        unsure_ns = 0.0 if change.workers is UNKNOWN else _OTHER_OVERHEAD * overhead_ns(self.attribution)
        if change.is_removal:
            unsure_ns = _REMOVAL * abs(saved.likely) * timed.scale / _invocations(self.attribution)
        gain = _gain(self.attribution, saved, timed.scale, unsure_ns)
        if abs(gain.saved_ns) * _NOTHING >= gain.before_ns:
            return gain
        sums = abs(float(likely.likely.sum())), abs(saved.likely)
        reason = _reason(self.graph, timed, change, ratios.likely, *sums)
        return structs.replace(gain, reason=reason)


_REMOVAL: Final = 0.1
"""Relative error of the gain of removed work: its slices, allocations and traffic through caches vanish, too."""
_NOTHING: Final = 2000
"""A change by less than 1 part in this many is none."""


def _reason(graph: TraceGraph, timed: TimedWork, change: Change, ratio: Array, saved: float, passed_on: float) -> str:
    """Why a change saves nothing, though its stages save `saved`, of which they pass on `passed_on`."""
    import numpy as np

    if isinstance(change.workers, int):
        return "its kernels have too little work, or too few workgroups, for another number of workers"
    changed = np.flatnonzero(ratio[timed.target] != 1)
    if not len(changed):
        if change.factor == ROOFLINE and change.parts:
            sites = [graph.site_by_id.get(place) for place in change.parts]
            members = [member for site in sites if site for member in site.members]
            is_known = any(member.operations is not UNKNOWN and member.bytes is not UNKNOWN for member in members)
            return "as fast as the roofline allows already" if is_known else "its operations or bytes are unknown"
        return "takes no time in any measured dispatch, copy or fill"
    own = abs(float((timed.cpu_ns[changed] * (1 - ratio[timed.target[changed]])).sum()))
    if saved < own * _HIDDEN:
        return f"hidden: {_others(graph, timed, ratio)} at the same time, and takes longer"
    if passed_on < saved * _HIDDEN:
        return "host-bound: the device waits there for the host to submit the next work"
    return "takes too little time"


def _others(graph: TraceGraph, timed: TimedWork, ratio: Array) -> str:
    """The most expensive kernel of the groups of changed events that does not change itself, in words."""
    import numpy as np

    groups = _Groups.of(timed, _groups_of(timed, ratio))
    others = groups.events[(ratio[timed.target[groups.events]] == 1) & (timed.target[groups.events] >= 0)]
    times = np.bincount(timed.target[others], timed.cpu_ns[others], len(timed.places))
    sites = [graph.site_by_id.get(place) for place in timed.places[int(times.argmax())]] if len(others) else []
    kernel = next((site.kernel for site in sites if site), "other work")
    return f"{kernel} runs"


_HIDDEN: Final = 0.1
"""A change that saves less than this fraction of its own time is hidden."""


def _check_workers(run: RunHeader, change: Change) -> None:
    if isinstance(change.workers, int) and (run.device == "local-sync" or not isinstance(run.workers, int)):
        device = "this device" if run.device is UNKNOWN else run.device
        raise UsageInvalid(
            f"{device} has no workers to change; record the program with --device=local-task, with or without --serial"
        )


def _bandwidth_times(graph: TraceGraph, timed: TimedWork, peaks: Peaks) -> Array:
    """Time of a call of each target if more workers have no faster memory; 0 if unknown. The last is of no target."""
    import numpy as np

    times = np.zeros(len(timed.places) + 1)
    for target, places in enumerate(timed.places):
        site = graph.site_by_id.get(places[0])
        moved = sum(member.bytes for member in site.members if isinstance(member.bytes, int)) if site else 0
        times[target] = 1e9 * moved / peaks.bytes_per_second
    return times


def _gain(attribution: Attribution, saved: _Range, scale: float, unsure_ns: float = 0.0) -> Gain:
    """The gain by savings of all invocations, which are multiplied by `scale`; `unsure_ns`: a further error."""
    run, before = attribution.run, program_ns(attribution)
    least, likely, most = (scale * part / _invocations(attribution) for part in (saved.least, saved.likely, saved.most))
    size = abs(likely)
    noise = math.hypot(_noise(run) * size, min(_LEAST_NOISE * before, _MOST_NOISE * size))
    low = before - likely - math.hypot(max(0.0, most - likely), noise, unsure_ns)
    high = before - likely + math.hypot(max(0.0, likely - least), noise, unsure_ns)
    return Gain(before, *(max(0, round(time)) for time in (before - likely, low, high)))


_UNKNOWN_NOISE: Final = 0.05
_MODEL: Final = 0.15
"""Relative error of a gain by what the model leaves out: caches, and the clocks of processors."""
_LEAST_NOISE, _MOST_NOISE = 0.005, 0.3
"""Error of a gain as a part of the time of an invocation, but at most this part of the gain."""
_LAYOUT: Final = 0.15
"""Relative difference of a kernel's time between processes, whose memory layouts differ."""


def _noise(run: RunHeader) -> float:
    """The relative error of a gain by noise and by the memory layout of the launches."""
    invocation = run.invocation
    if invocation.median_ns is UNKNOWN or invocation.low_ns is UNKNOWN or invocation.high_ns is UNKNOWN:
        spread = _UNKNOWN_NOISE
    else:
        spread = (invocation.high_ns - invocation.low_ns) / 2 / max(1, invocation.median_ns)
    return math.hypot(spread, _LAYOUT / math.sqrt(max(1, run.launches)), _MODEL)


# ---- overhead


def what_if_overhead(attribution: Attribution, ops: Sequence[OpId] | None, factor: float) -> Gain:
    """Gain of the mean time of an invocation if time without a kernel gets shorter.

    Args:
        attribution: the costs, with their overhead.
        ops: only the overhead of these ops; None: all but outliers, the profiler's, and what is not explained.
        factor: how many times as fast it gets.

    Raises:
        UsageInvalid: see `check_modelled`; or the run does not say what happened between kernels.
    """
    check_modelled(attribution)
    if not attribution.overhead:
        raise UsageInvalid("the run does not say what happened between its kernels; record it with `tracemap record`")
    rows = [row for row in attribution.overhead if row.place not in _NOT_GAINED]
    by_op = overhead_by_op(rows)
    total = sum(row.total_ns for row in rows)
    chosen = total if ops is None else sum(by_op.get(op, 0) for op in set(ops))
    typical = overhead_ns(attribution) * _invocations(attribution)
    saved = chosen * min(1.0, typical / max(total, 1)) * (1 - 1 / factor)
    gain = _gain(attribution, _Range(saved * _OVERHEAD_LEAST, saved, saved * _OVERHEAD_MOST), scale=1.0)
    return gain if chosen else structs.replace(gain, reason="no time without a kernel belongs to it")


_NOT_GAINED: Final = (OverheadPlace.OUTLIERS, OverheadPlace.PROFILER, OverheadPlace.UNEXPLAINED)
_OVERHEAD_LEAST, _OVERHEAD_MOST = 0.8, 1.1
"""Parts of overhead that are saved at least and at most: its division over ops is not exact."""


# ---- the ranked list


class TargetGain(Record, frozen=True):
    """Gain of a program by one change.

    `target`: what changes; `ops`: its ops; `factor`: how many times as fast it gets, see `Change`.
    """

    target: str
    ops: tuple[OpId, ...]
    factor: float
    gain: Gain


class ProgramGains(Record, frozen=True):
    """Gains of a program, the largest first; `before_ns`: mean time of an invocation."""

    before_ns: int
    changes: tuple[TargetGain, ...]


def program_gains(attribution: Attribution, changes: Sequence[TargetGain]) -> ProgramGains:
    """The gains with the time before them.

    Raises:
        UsageInvalid: see `check_modelled`.
    """
    return ProgramGains(program_ns(attribution), tuple(changes))


TWICE: Final = 2.0
"""The factor of the ranked list."""
_MOST_RANKED: Final = 200
"""Most ops of the ranked list: those with the highest costs, since an op gains no more than that."""


def costly_ops(attribution: Attribution) -> list[OpResult]:
    """The ops of the ranked list, the highest costs first."""
    metric = _time_metric(attribution)
    costly = [result for result in attribution.ops if result.metrics[metric].attributed > 0] if metric else []
    return sorted(costly, key=lambda result: -result.metrics[metric].attributed)[:_MOST_RANKED]


def ranked_gains(graph: TraceGraph, attribution: Attribution, factor: float = TWICE) -> tuple[TargetGain, ...]:
    """The gain of each op, the largest first; empty if the runs lack times or invocations."""
    model = program_model(graph, attribution)
    if model is None:
        return ()
    places: dict[OpId, dict[str, frozenset[OpId]]] = defaultdict(dict)
    for result in attribution.sites:
        for share in result.shares:
            places[share.op][result.site] = frozenset({share.op})
    for transfer in attribution.transfers:
        for share in transfer.shares:
            places[share.op][transfer.transfer] = frozenset({share.op})
    gains = [
        TargetGain(result.op, (result.op,), factor, model.gain(Change(places[result.op], factor)))
        for result in costly_ops(attribution)
    ]
    return tuple(sorted(gains, key=lambda own: (own.gain.after_ns, own.ops[0].number)))
