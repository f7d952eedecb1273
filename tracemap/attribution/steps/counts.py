"""All rows of steps, brought to sites and members; and what a site's other costs are split by."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tracemap.attribution.model import KernelResult
from tracemap.attribution.scan.rows import NO_ADDRESS, StepRow
from tracemap.attribution.steps.estimates import DEFAULT_CACHES
from tracemap.attribution.steps.lines import (
    NO_METRIC,
    KernelSteps,
    Lines,
    Spot,
    in_loops,
    kernel_steps,
    lines_of_ops,
    of_members,
    spread_evenly,
)
from tracemap.attribution.weights import Weights
from tracemap.graph.model import Kernel, Site, TraceGraph
from tracemap.machine.images import Image
from tracemap.machine.traffic import LINE_BYTES
from tracemap.measurements.model import CORE_CYCLES, INSTRUCTIONS, READ_MISSES, SAMPLES, STAND_INS
from tracemap.units import UNKNOWN, split_by_largest_remainder

_ENOUGH = 100
"""Samples from which a site is judged by its own alone; with fewer, by those of all sites of its kernel, if enough."""

_NEAR_MISS, _FAR_MISS = 300, 1000
"""Hundredths of a cycle a line of memory takes that lies in the next cache, and one in memory, where many are brought
one after the other."""
_LAST_CACHE = DEFAULT_CACHES[-1].bytes
"""Bytes of the last cache of a present-day server."""
_BUSY = "\0busy"
"""A metric of ours, which no run can have: for how long the counted instructions keep the core busy."""

Sums = dict[int, dict[str, int]]
"""Sums of metrics, by line or address."""


@dataclass
class StepCounts:
    """All rows of steps, brought to sites and members.

    Args:
        graph: the map.
        metrics: the names of the metrics that the rows have.
        rows: of targets of the map, grouped by target, kernel, step and address.
        sites_of: the sites of a target, and how much of a metric that cannot be told apart is each one's.
        images: the machine code, asked for only where rows have addresses.
    """

    graph: TraceGraph
    metrics: Sequence[str]
    rows: Sequence[StepRow]
    sites_of: Callable[[int, str], tuple[Sequence[str], Sequence[int]]]
    images: Callable[[], Sequence[Image]]
    totals: dict[str, dict[str, int]] = field(default_factory=dict)
    """By site and metric."""
    kernels: tuple[KernelResult, ...] = ()
    spread: Counter[str] = field(default_factory=Counter)
    """By metric: how much could have been of several sites, and was spread over them."""
    _members: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """By site and metric: what was seen of each member, and of nobody after them."""
    _lines: dict[tuple[str, str], Lines] = field(default_factory=lambda: defaultdict(Counter))
    """By kernel and metric: what was seen at all its sites."""
    _shared: dict[tuple[str, str], Mapping[int, Sequence[int]]] = field(default_factory=dict)
    """By kernel and metric: the lines whose work is done on others, by these."""
    _steps: dict[str, KernelSteps] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_kernel: dict[str, list[StepRow]] = defaultdict(list)
        for row in self.rows:
            by_kernel[row.kernel].append(row)
        # Machine code is read and taken apart only if something was seen at its addresses, or its instructions count.
        of_code = INSTRUCTIONS in self.metrics or any(row.address != NO_ADDRESS for row in self.rows)
        images = self.images if of_code else tuple
        seen = [kernel for kernel in self.graph.kernels if kernel.name in by_kernel]
        self._steps = {kernel.name: kernel_steps(self.graph, kernel, images) for kernel in seen}
        self.kernels = tuple(self._add(kernel, by_kernel[kernel.name]) for kernel in seen)

    def _add(self, kernel: Kernel, rows: Sequence[StepRow]) -> KernelResult:
        """Bring what was seen of a kernel to its sites and their members."""
        steps = self._steps[kernel.name]
        by_site: dict[str, Sums] = {}
        if INSTRUCTIONS in self.metrics and kernel.name not in self.stood_in:
            self._bring(steps, self._busy(steps, rows), 0, _BUSY)
        for number, metric in enumerate(self.metrics):
            for site, (seen, lines) in self._bring(steps, rows, number, metric).items():
                self.totals.setdefault(site, dict.fromkeys(self.metrics, 0))[metric] = lines.total()
                for spot, value in seen.items():
                    _sums_at(by_site.setdefault(site, {}), spot.line, self.metrics)[metric] += value
        return _kernel_result(kernel, self.metrics, rows, by_site)

    @cached_property
    def stood_in(self) -> frozenset[str]:
        """Kernels of which most simulated instructions stand in for others: theirs is not the code that is timed.

        Where the compiler calls functions for what the simulated build lacks, it does not make vectors either.
        """
        sums: dict[str, Counter[str]] = defaultdict(Counter)
        for row in self.rows if STAND_INS in self.metrics else ():
            sums[row.kernel].update(dict(zip(self.metrics, row.values, strict=True)))
        return frozenset(kernel for kernel, of in sums.items() if 2 * of[STAND_INS] > of[INSTRUCTIONS])

    def _busy(self, steps: KernelSteps, rows: Sequence[StepRow]) -> list[StepRow]:
        """For how long instructions keep the core busy, and wait for memory beyond that, in hundredths of a cycle."""
        core = self._core(steps, rows)
        waits = [self._waits(row, is_larger=steps.kernel.name in self._larger) for row in rows]
        beyond = max(0, sum(waits) - sum(core))
        stalls = split_by_largest_remainder(beyond, waits) if beyond else [0] * len(rows)
        return [replace(row, values=(own + stall,)) for row, own, stall in zip(rows, core, stalls, strict=True)]

    def _waits(self, row: StepRow, *, is_larger: bool) -> int:
        """How long it takes to bring in what instructions miss; `is_larger`: than the last cache, by its kernel alone.

        One call is simulated: what of its arrays is in the last cache then is what was written last before, but
        between calls of a kernel that brings in more than that none stays there.
        """
        counts = dict(zip(self.metrics, row.values, strict=True))
        found = {name: counts.get(name, 0) for name in ("D1mr", "DLmr", "D1mw", "DLmw")}
        missed = found["D1mr"] + found["D1mw"]
        far = missed if is_larger else 0 if self._fits else found["DLmr"] + found["DLmw"]
        return _NEAR_MISS * max(0, missed - far) + _FAR_MISS * far

    @cached_property
    def _larger(self) -> frozenset[str]:
        """The kernels whose arrays are larger than the last cache, at any site."""
        moved = ((site, [member.bytes for member in site.members]) for site in self.graph.sites)
        return frozenset(
            site.kernel for site, each in moved if sum(some for some in each if some is not UNKNOWN) > _LAST_CACHE
        )

    @cached_property
    def _fits(self) -> bool:
        """Whether the last cache holds all that the simulated call brought in: it is there in the next call."""
        missed = [place for place, name in enumerate(self.metrics) if name in ("DLmr", "DLmw")]
        return sum(row.values[place] for row in self.rows for place in missed) <= _LAST_CACHE // LINE_BYTES

    def _core(self, steps: KernelSteps, rows: Sequence[StepRow]) -> list[int]:
        """For how long instructions keep the core busy; what stands in for others does not run on it.

        Runs of earlier versions have counts of instructions alone: of a line each is like all of them.
        """
        if CORE_CYCLES in self.metrics:
            cycles = self.metrics.index(CORE_CYCLES)
            return [100 * row.values[cycles] for row in rows]
        number = self.metrics.index(INSTRUCTIONS)
        counts = [row.values[number] for row in rows]
        if STAND_INS in self.metrics:
            number = self.metrics.index(STAND_INS)
            counts = [max(0, count - row.values[number]) for count, row in zip(counts, rows, strict=True)]
        return [steps.code.busy(row.address, row.step, count) for count, row in zip(counts, rows, strict=True)]

    def _bring(
        self, steps: KernelSteps, rows: Sequence[StepRow], number: int, metric: str
    ) -> dict[str, tuple[Counter[Spot], Lines]]:
        """Bring a metric, the one of this number, to the members of sites; returns what was seen at spots and lines."""
        waits = steps.waits_in_loops(rows, number, self._misses) if metric == SAMPLES else {}
        by_loop = in_loops(steps, rows, number, metric, waits)
        shared = self._shared[steps.kernel.name, metric] = steps.shared_lines(
            self._with_code(steps, rows, number, metric)
        )
        found = {}
        for site, seen in self._by_site(steps, rows, number, metric).items():
            lines = lines_of_ops(steps, seen, by_loop, waits)
            self._lines[steps.kernel.name, metric].update(lines)
            self._members[site, metric] = of_members(steps, lines, self.graph.site_by_id[site], shared)
            found[site] = seen, lines
        return found

    def _with_code(self, steps: KernelSteps, rows: Sequence[StepRow], number: int, metric: str) -> Collection[int]:
        """The lines that have code in what a metric, the one of this number, was seen in; all where that is unknown.

        What is simulated runs other code than what is timed: there the lines have code at which instructions ran.
        """
        if any(row.address != NO_ADDRESS and row.values[number] for row in rows):
            return steps.code.lines or steps.owned
        if INSTRUCTIONS not in self.metrics:
            return steps.owned
        instructions = number if metric == _BUSY else self.metrics.index(INSTRUCTIONS)
        return {row.step for row in rows if row.address == NO_ADDRESS and row.values[instructions]}

    @property
    def _misses(self) -> int:
        """The number of the metric that counts misses of reads."""
        return self.metrics.index(READ_MISSES) if READ_MISSES in self.metrics else NO_METRIC

    def _by_site(
        self, steps: KernelSteps, rows: Sequence[StepRow], number: int, metric: str
    ) -> dict[str, Counter[Spot]]:
        """What was seen of a metric at the spots of a kernel, by site."""
        of_target: dict[int, Counter[Spot]] = defaultdict(Counter)
        for row in rows:
            if row.values[number]:
                of_target[row.target][steps.spot_of(row, metric)] += row.values[number]
        found: dict[str, Counter[Spot]] = {}
        for target, seen in sorted(of_target.items()):
            sites, weights = self.sites_of(target, INSTRUCTIONS if metric == _BUSY else metric)
            if len(sites) > 1 and metric != _BUSY:
                self.spread[metric] += seen.total()
            for site, part in zip(sites, spread_evenly(seen, weights), strict=True):
                if part:
                    found.setdefault(site, Counter()).update(part)
        return found

    def seen_at(self, site: Site, metric: str) -> Weights | None:
        """What of a metric was seen of a site's members; None where nothing was, or none of them has a step."""
        values = self._members.get((site.id, metric))
        return _weights(values, metric, site) if values and any(values) and self._tells_members(site) else None

    def _tells_members(self, site: Site) -> bool:
        """Whether the text of a site's kernel tells its members; a sole member needs no telling."""
        members = {member.op for member in site.members}
        steps = self.graph.kernel_by_name[site.kernel].steps
        return len(members) == 1 or any(not members.isdisjoint(step.ops) for step in steps)

    def basis(self, site: Site) -> Weights | None:
        """What other costs of a site are split by: its samples, else its instructions, or those of its kernel.

        Samples that are few decide where nothing was counted. An instruction counts for as long as it keeps the core
        busy.
        """
        return self.sampled(site) or self.simulated(site) or self._pooled(site, SAMPLES)

    def sampled(self, site: Site) -> Weights | None:
        """The weights of a site's members by its samples, or those of its kernel; None where these are too few."""
        return self._enough(site, SAMPLES, _ENOUGH)

    def simulated(self, site: Site) -> Weights | None:
        """The same by simulated instructions."""
        return self._enough(site, _BUSY, 1)

    def _enough(self, site: Site, metric: str, enough: int) -> Weights | None:
        for found in (self.seen_at(site, metric), self._pooled(site, metric)):
            if found is not None and found.seen >= enough:
                return found
        return None

    def _pooled(self, site: Site, metric: str) -> Weights | None:
        """What all sites of a kernel have seen, as it is at one of them: they run the same code."""
        lines = self._lines.get((site.kernel, metric))
        if not lines:
            return None
        values = of_members(self._steps[site.kernel], lines, site, self._shared[site.kernel, metric])
        return _weights(values, metric, site) if any(values[:-1]) else None


def _weights(values: Sequence[int], metric: str, site: Site) -> Weights:
    """A sole member has all of its site: what is of no op is there for its sake."""
    seen = sum(values)
    if len(site.members) == 1:
        return Weights((seen, 0), seen)
    return Weights(tuple(values), seen, sampled=metric == SAMPLES)


def _sums_at(sums: Sums, key: int, metrics: Sequence[str]) -> dict[str, int]:
    return sums.setdefault(key, dict.fromkeys(metrics, 0))


def _kernel_result(
    kernel: Kernel, metrics: Sequence[str], rows: Sequence[StepRow], by_site: Mapping[str, Sums]
) -> KernelResult:
    lines: Sums = {}
    addresses: Sums = {}
    for row in rows:
        for name, value in zip(metrics, row.values, strict=True):
            _sums_at(lines, row.step, metrics)[name] += value
            if row.address != NO_ADDRESS:
                _sums_at(addresses, row.address, metrics)[name] += value
    sites = {site: dict(sorted(by_site[site].items())) for site in kernel.sites if site in by_site}
    return KernelResult(kernel.name, dict(sorted(lines.items())), dict(sorted(addresses.items())), sites)
