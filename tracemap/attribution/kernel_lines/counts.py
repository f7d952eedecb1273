"""Costs of `step` rows per dispatch site and op, and the weights that they give for a site's other costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import structs

from tracemap.attribution.kernel_lines.lines import (
    NO_METRIC,
    KernelSteps,
    Lines,
    Spot,
    in_loops,
    kernel_steps,
    lines_of_ops,
    member_costs,
    spread_evenly,
)
from tracemap.attribution.model import KernelResult
from tracemap.attribution.scan.rows import NO_ADDRESS, StepRow
from tracemap.attribution.weights import Weights
from tracemap.core.units import UNKNOWN, split_by_largest_remainder
from tracemap.machine.caches import DEFAULT_CACHES, LINE_BYTES
from tracemap.machine.images import Image
from tracemap.map.model import Kernel, Site, TraceGraph
from tracemap.runs.model import CORE_CYCLES, INSTRUCTIONS, READ_MISSES, SAMPLES, STAND_INS

_ENOUGH_SAMPLES = 100
"""Samples from which a site uses only its own; with fewer, it uses those of all sites of its kernel, if enough."""

_NEAR_MISS, _FAR_MISS = 300, 1000
"""Hundredths of a cycle to fetch a cache line from the next cache, and from memory, in a stream of many."""
_LAST_CACHE = DEFAULT_CACHES[-1].bytes
"""Bytes of the last-level cache of a present-day server."""
_BUSY = "\0busy"
"""An internal metric, with a name that no run can have: how long the counted instructions keep the core busy."""

Sums = dict[int, dict[str, int]]
"""Sums of metrics, by line or address."""


@dataclass
class StepCounts:
    """Costs of all `step` rows, per dispatch site and op.

    Args:
        graph: the map.
        metrics: the names of the rows' metrics.
        rows: rows of the map's targets, grouped by target, kernel, step and address.
        sites_of: the sites of a target, and the weights for splitting a metric over them.
        images: reads the machine code; called only if rows have addresses or count instructions.
    """

    graph: TraceGraph
    metrics: Sequence[str]
    rows: Sequence[StepRow]
    sites_of: Callable[[int, str], tuple[Sequence[str], Sequence[int]]]
    images: Callable[[], Sequence[Image]]
    totals: dict[str, dict[str, int]] = field(default_factory=dict)
    """Costs by site and metric."""
    kernels: tuple[KernelResult, ...] = ()
    spread: Counter[str] = field(default_factory=Counter)
    """Cost that may belong to several sites and was split over them, by metric."""
    _members: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """Cost of each op, then the unattributed cost, by site and metric."""
    _lines: dict[tuple[str, str], Lines] = field(default_factory=lambda: defaultdict(Counter))
    """Costs of lines over all sites of a kernel, by kernel and metric."""
    _shared: dict[tuple[str, str], Mapping[int, Sequence[int]]] = field(default_factory=dict)
    """Results of `KernelSteps.shared_lines`, by kernel and metric."""
    _steps: dict[str, KernelSteps] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_kernel: dict[str, list[StepRow]] = defaultdict(list)
        for row in self.rows:
            by_kernel[row.kernel].append(row)
        # Machine code is disassembled only if rows have addresses or count instructions.
        needs_code = INSTRUCTIONS in self.metrics or any(row.address != NO_ADDRESS for row in self.rows)
        images = self.images if needs_code else tuple
        kernels = [kernel for kernel in self.graph.kernels if kernel.name in by_kernel]
        self._steps = {kernel.name: kernel_steps(self.graph, kernel, images) for kernel in kernels}
        self.kernels = tuple(self._add(kernel, by_kernel[kernel.name]) for kernel in kernels)

    def _add(self, kernel: Kernel, rows: Sequence[StepRow]) -> KernelResult:
        steps = self._steps[kernel.name]
        by_site: dict[str, Sums] = {}
        if INSTRUCTIONS in self.metrics and kernel.name not in self.stood_in:
            self._assign(steps, self._busy(steps, rows), 0, _BUSY)
        for number, metric in enumerate(self.metrics):
            for site, (spots, by_line) in self._assign(steps, rows, number, metric).items():
                self.totals.setdefault(site, dict.fromkeys(self.metrics, 0))[metric] = by_line.total()
                for spot, value in spots.items():
                    _sums_at(by_site.setdefault(site, {}), spot.line, self.metrics)[metric] += value
        lines: Sums = {}
        addresses: Sums = {}
        for row in rows:
            for metric, value in zip(self.metrics, row.values, strict=True):
                _sums_at(lines, row.step, self.metrics)[metric] += value
                if row.address != NO_ADDRESS:
                    _sums_at(addresses, row.address, self.metrics)[metric] += value
        sites = {site: dict(sorted(by_site[site].items())) for site in kernel.sites if site in by_site}
        return KernelResult(kernel.name, dict(sorted(lines.items())), dict(sorted(addresses.items())), sites)

    @cached_property
    def stood_in(self) -> frozenset[str]:
        """Kernels whose simulated instructions mostly stand in for others, so that the code differs from the timed one.

        If the compiler calls functions for instructions that the simulated build lacks, it does not vectorize either.
        """
        sums: dict[str, Counter[str]] = defaultdict(Counter)
        for row in self.rows if STAND_INS in self.metrics else ():
            sums[row.kernel].update(dict(zip(self.metrics, row.values, strict=True)))
        return frozenset(
            kernel for kernel, kernel_sums in sums.items() if 2 * kernel_sums[STAND_INS] > kernel_sums[INSTRUCTIONS]
        )

    def _busy(self, steps: KernelSteps, rows: Sequence[StepRow]) -> list[StepRow]:
        """The rows with a single metric: core time plus the memory stalls beyond it, in hundredths of a cycle."""
        core = self._core_time(steps, rows)
        waits = [self._memory_time(row, exceeds_cache=steps.kernel.name in self._exceeding_cache) for row in rows]
        excess = max(0, sum(waits) - sum(core))
        stalls = split_by_largest_remainder(excess, waits) if excess else [0] * len(rows)
        return [structs.replace(row, values=(own + stall,)) for row, own, stall in zip(rows, core, stalls, strict=True)]

    def _memory_time(self, row: StepRow, *, exceeds_cache: bool) -> int:
        """Time to fetch the missed cache lines; `exceeds_cache`: the kernel's arrays exceed the last-level cache.

        Only one call is simulated, and finds in the last-level cache the arrays that were written just before. Between
        real calls of a kernel that exceeds the cache, no array stays there.
        """
        counts = dict(zip(self.metrics, row.values, strict=True))
        misses = {name: counts.get(name, 0) for name in ("D1mr", "DLmr", "D1mw", "DLmw")}
        missed = misses["D1mr"] + misses["D1mw"]
        far = missed if exceeds_cache else 0 if self._fits else misses["DLmr"] + misses["DLmw"]
        return _NEAR_MISS * max(0, missed - far) + _FAR_MISS * far

    @cached_property
    def _exceeding_cache(self) -> frozenset[str]:
        """The kernels whose arrays are larger than the last-level cache, at any site."""
        traffic = ((site, [member.bytes for member in site.members]) for site in self.graph.sites)
        return frozenset(
            site.kernel for site, sizes in traffic if sum(size for size in sizes if size is not UNKNOWN) > _LAST_CACHE
        )

    @cached_property
    def _fits(self) -> bool:
        """Whether all lines that the simulated call fetched fit into the last-level cache, ready for the next call."""
        missed = [index for index, name in enumerate(self.metrics) if name in ("DLmr", "DLmw")]
        return sum(row.values[index] for row in self.rows for index in missed) <= _LAST_CACHE // LINE_BYTES

    def _core_time(self, steps: KernelSteps, rows: Sequence[StepRow]) -> list[int]:
        """Core time of instructions, without those that stand in for others.

        Runs of earlier versions have only instruction counts: all instructions of a line count as its mean.
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

    def _assign(
        self, steps: KernelSteps, rows: Sequence[StepRow], number: int, metric: str
    ) -> dict[str, tuple[Counter[Spot], Lines]]:
        """Assign a metric (at index `number`) to the ops of sites; return its costs by spot and by line, per site."""
        misses = self.metrics.index(READ_MISSES) if READ_MISSES in self.metrics else NO_METRIC
        waits = steps.waits_in_loops(rows, number, misses) if metric == SAMPLES else {}
        by_loop = in_loops(steps, rows, number, metric, waits)
        shared = self._shared[steps.kernel.name, metric] = steps.shared_lines(
            self._with_code(steps, rows, number, metric)
        )
        costs = {}
        for site, spots in self._by_site(steps, rows, number, metric).items():
            lines = lines_of_ops(steps, spots, by_loop, waits)
            self._lines[steps.kernel.name, metric].update(lines)
            self._members[site, metric] = member_costs(steps, lines, self.graph.site_by_id[site], shared)
            costs[site] = spots, lines
        return costs

    def _with_code(self, steps: KernelSteps, rows: Sequence[StepRow], number: int, metric: str) -> Collection[int]:
        """The lines with machine code in the build where a metric was measured; all lines if unknown.

        The simulated build differs from the timed one: there, lines with executed instructions have code.
        """
        if any(row.address != NO_ADDRESS and row.values[number] for row in rows):
            return steps.code.lines or steps.frames.owned
        if INSTRUCTIONS not in self.metrics:
            return steps.frames.owned
        instructions = number if metric == _BUSY else self.metrics.index(INSTRUCTIONS)
        return {row.step for row in rows if row.address == NO_ADDRESS and row.values[instructions]}

    def _by_site(
        self, steps: KernelSteps, rows: Sequence[StepRow], number: int, metric: str
    ) -> dict[str, Counter[Spot]]:
        by_target: dict[int, Counter[Spot]] = defaultdict(Counter)
        for row in rows:
            if row.values[number]:
                by_target[row.target][steps.spot_of(row, metric)] += row.values[number]
        by_site: dict[str, Counter[Spot]] = {}
        for target, spots in sorted(by_target.items()):
            sites, weights = self.sites_of(target, INSTRUCTIONS if metric == _BUSY else metric)
            if len(sites) > 1 and metric != _BUSY:
                self.spread[metric] += spots.total()
            for site, part in zip(sites, spread_evenly(spots, weights), strict=True):
                if part:
                    by_site.setdefault(site, Counter()).update(part)
        return by_site

    def seen_at(self, site: Site, metric: str) -> Weights | None:
        """The weights of a site's ops by a metric; None without measurements, or if no line belongs to an op."""
        values = self._members.get((site.id, metric))
        members = {member.op for member in site.members}
        if not values or not any(values):
            return None
        # A single op needs no lines of its own.
        steps = self.graph.kernel_by_name[site.kernel].steps
        has_lines = len(members) == 1 or any(not members.isdisjoint(step.ops) for step in steps)
        return _weights(values, metric, site) if has_lines else None

    def basis(self, site: Site) -> Weights | None:
        """The weights for a site's other costs: its samples, else its simulated instructions, or those of its kernel.

        Too few samples are used only without simulated instructions. An instruction is weighted by how long it keeps
        the core busy.
        """
        return self.sampled(site) or self.simulated(site) or self._pooled(site, SAMPLES)

    def sampled(self, site: Site) -> Weights | None:
        """The weights of a site's ops by its samples, or those of its kernel; None if there are too few."""
        return self._if_enough(site, SAMPLES, _ENOUGH_SAMPLES)

    def simulated(self, site: Site) -> Weights | None:
        """The weights of a site's ops by simulated instructions; None without any."""
        return self._if_enough(site, _BUSY, 1)

    def _if_enough(self, site: Site, metric: str, least: int) -> Weights | None:
        for weights in (self.seen_at(site, metric), self._pooled(site, metric)):
            if weights is not None and weights.seen >= least:
                return weights
        return None

    def _pooled(self, site: Site, metric: str) -> Weights | None:
        """The weights of a site's ops by the measurements of all sites of its kernel, which run the same code."""
        lines = self._lines.get((site.kernel, metric))
        if not lines:
            return None
        values = member_costs(self._steps[site.kernel], lines, site, self._shared[site.kernel, metric])
        return _weights(values, metric, site) if any(values[:-1]) else None


def _weights(values: Sequence[int], metric: str, site: Site) -> Weights:
    """Weights from costs; the only op of a site also gets the cost of lines that belong to no op."""
    total = sum(values)
    if len(site.members) == 1:
        return Weights((total, 0), total)
    return Weights(tuple(values), total, sampled=metric == SAMPLES)


def _sums_at(sums: Sums, key: int, metrics: Sequence[str]) -> dict[str, int]:
    return sums.setdefault(key, dict.fromkeys(metrics, 0))
