"""Where in a kernel it was: what rows of steps (samples, simulated counts) say of a site's members.

A step that is of ops gives them what was seen at it; where it is of several members of a site, to each the same. A step
of no op (index arithmetic, loop control, moves of registers) gives it to the ops of the innermost loop of the machine
code around it, in proportion to what was seen of them in that loop; what no loop has an op for stays a share of nobody.
Sites of one kernel run the same code: where little was seen at one, what was seen at all of them decides.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.attribution.model import KernelResult
from tracemap.errors import ModuleInvalid
from tracemap.graph.model import Kernel, Site, TraceGraph
from tracemap.machine.code import OUTSIDE, CodeLoop, innermost, instructions_of, loops_of
from tracemap.machine.images import Image, kernel_images
from tracemap.measurements.model import INSTRUCTIONS, SAMPLES
from tracemap.units import UNKNOWN, split_by_largest_remainder

NOBODY = 0
"""The line of what belongs to no op; lines count from 1."""
NO_ADDRESS = -1

_ENOUGH = 100
"""Samples from which a site is judged by its own alone; with fewer, by those of all sites of its kernel."""
_Z = 1.959963984540054
"""Of the normal distribution, for 95 %."""

UNTOLD = -2
"""The loop of what has no address."""

Lines = Counter[int]
"""What was seen, by line of the kernel's text."""
Place = tuple[int, int]
"""A line of the kernel's text, and the loop of the machine code around, where the line alone does not decide."""
Sums = dict[int, dict[str, int]]
"""Sums of metrics, by line or address."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """What was seen at one place of a kernel, of one target: a value per metric."""

    target: int
    kernel: str
    step: int
    address: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemberWeights:
    """Weights of a site's members, and of nobody after them, as they were seen.

    `seen` is how much they rest on; `sampled` says whether that is subject to chance.
    """

    values: tuple[int, ...]
    seen: int
    sampled: bool

    def split(self, total: int) -> list[int]:
        """A total split over members and nobody, exactly; without any weight evenly over members."""
        if not any(self.values):
            return [*split_by_largest_remainder(total, self.values[:-1]), 0]
        return split_by_largest_remainder(total, self.values)

    def intervals(self, total: int) -> list[tuple[int, int]]:
        """The 95 % intervals of the parts of a total, if these rest on samples."""
        bounds = [wilson(value, self.seen) for value in self.values]
        return [
            (min(part, math.floor(total * low)), max(part, math.ceil(total * high)))
            for part, (low, high) in zip(self.split(total), bounds, strict=True)
        ]


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson, JASA 22, 1927); within 0 and 1."""
    share, square = successes / trials, _Z * _Z / trials
    middle = share + square / 2
    half = _Z * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    low = (middle - half) / (1 + square) if successes else 0.0
    return low, (middle + half) / (1 + square) if successes < trials else 1.0


class KernelSteps:
    """Which lines of a kernel are of ops, and which lines stand for the code that is of none."""

    def __init__(self, graph: TraceGraph, kernel: Kernel, images: Sequence[Image]) -> None:
        members = {m.op for site in kernel.sites for m in graph.site_by_id[site].members}
        self.owned = {step.line for step in kernel.steps if members & set(step.ops)}
        self._ops_of = {step.line: step.ops for step in kernel.steps}
        self._parent_of = {step.line: step.parent for step in kernel.steps}
        self._kernel = kernel
        self._images = images
        self._loops: tuple[CodeLoop, ...] | None = None
        self._loop_of: dict[int, int] = {}

    @property
    def loops(self) -> tuple[CodeLoop, ...]:
        """The loops of its machine code; none where that cannot be read."""
        if self._loops is None:
            found = kernel_images(self._images, self._kernel.name)
            try:
                self._loops = loops_of(instructions_of(*found[0])) if found else ()
            except ModuleInvalid:
                self._loops = ()
        return self._loops

    def loop_of(self, address: int) -> int:
        """The innermost loop around an address that has code of ops, `OUTSIDE` where there is none."""
        if address not in self._loop_of:
            number = innermost(self.loops, address)
            while number != OUTSIDE and not self.owned & set(self.loops[number].lines):
                number = self.loops[number].parent
            self._loop_of[address] = number
        return self._loop_of[address]

    def around(self, line: int) -> int:
        """The innermost step around a line that is of ops, `NOBODY` where there is none."""
        parent = self._parent_of.get(line, UNKNOWN)
        while parent is not UNKNOWN and parent not in self.owned:
            parent = self._parent_of.get(parent, UNKNOWN)
        return NOBODY if parent is UNKNOWN else parent

    def members_at(self, line: int, site: Site) -> tuple[int, ...]:
        """The places of the site's members that a line is of."""
        ops = self._ops_of.get(line, ())
        return tuple(place for place, member in enumerate(site.members) if member.op in ops)

    def place_of(self, row: StepRow) -> Place:
        """Where a row is, as far as it decides whose it is: its line, and the loop if the line is of no op."""
        if row.step in self.owned:
            return row.step, OUTSIDE
        return row.step, UNTOLD if row.address == NO_ADDRESS else self.loop_of(row.address)


@dataclass
class StepCounts:
    """All rows of steps, brought to sites and members.

    Args:
        graph: the map.
        metrics: the names of the metrics that the rows have.
        rows: grouped by target, kernel, step and address.
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
    _of_kernel: dict[tuple[str, str], Lines] = field(default_factory=lambda: defaultdict(Counter))
    _told: dict[str, bool] = field(default_factory=dict)
    """By site: whether its kernel's steps tell its members."""

    def __post_init__(self) -> None:
        by_kernel: dict[str, list[StepRow]] = defaultdict(list)
        for row in self.rows:
            by_kernel[row.kernel].append(row)
        images = self.images() if any(row.address != NO_ADDRESS for row in self.rows) else ()
        self.kernels = tuple(
            self._add(kernel, KernelSteps(self.graph, kernel, images), by_kernel[kernel.name])
            for kernel in self.graph.kernels
            if kernel.name in by_kernel
        )

    def _add(self, kernel: Kernel, steps: KernelSteps, rows: Sequence[StepRow]) -> KernelResult:
        """Bring what was seen of a kernel to its sites and their members."""
        by_site: dict[str, Sums] = {}
        for number, metric in enumerate(self.metrics):
            in_loop = _in_loops(steps, rows, number)
            for site, seen in self._by_site(steps, rows, number).items():
                lines = _owned(steps, seen, in_loop)
                self._of_kernel[kernel.name, metric].update(lines)
                self._give_members(site, metric, steps, lines)
                for (line, _), value in seen.items():
                    _sums_at(by_site.setdefault(site, {}), line, self.metrics)[metric] += value
        return _kernel_result(kernel, self.metrics, rows, by_site)

    def _by_site(self, steps: KernelSteps, rows: Sequence[StepRow], number: int) -> dict[str, Counter[Place]]:
        """What was seen of a metric at the places of a kernel, by site."""
        of_target: dict[int, Counter[Place]] = defaultdict(Counter)
        for row in rows:
            if row.values[number]:
                of_target[row.target][steps.place_of(row)] += row.values[number]
        found: dict[str, Counter[Place]] = {}
        for target, seen in sorted(of_target.items()):
            sites, weights = self.sites_of(target, self.metrics[number])
            if len(sites) > 1:
                self.spread[self.metrics[number]] += seen.total()
            for site, part in zip(sites, spread_evenly(seen, weights), strict=True):
                if part:
                    found.setdefault(site, Counter()).update(part)
        return found

    def _give_members(self, site: str, metric: str, steps: KernelSteps, lines: Lines) -> None:
        self.totals.setdefault(site, dict.fromkeys(self.metrics, 0))[metric] += lines.total()
        members = self._members.setdefault((site, metric), self._nothing(site))
        _give(members, lines, steps, self.graph.site_by_id[site])

    def _nothing(self, site: str) -> list[int]:
        return [0] * (len(self.graph.site_by_id[site].members) + 1)

    def seen_at(self, site: Site, metric: str) -> MemberWeights | None:
        """What of a metric was seen of a site's members; None where nothing was, or none of them has a step."""
        if not self._has_steps(site):
            return None
        values = self._members.get((site.id, metric))
        return _weights(values, metric, site) if values is not None and any(values) else None

    def _has_steps(self, site: Site) -> bool:
        """Whether its kernel's text tells its members; a sole member needs no telling."""
        if site.id not in self._told:
            members = {member.op for member in site.members}
            steps = self.graph.kernel_by_name[site.kernel].steps
            self._told[site.id] = len(members) == 1 or any(not members.isdisjoint(step.ops) for step in steps)
        return self._told[site.id]

    def basis(self, site: Site) -> MemberWeights | None:
        """What other costs of a site are split by: its samples, or its instructions, or those of its kernel."""
        for metric in (SAMPLES, INSTRUCTIONS):
            own = self.seen_at(site, metric)
            if own is not None and (metric != SAMPLES or own.seen >= _ENOUGH):
                return own
            pooled = self._pooled(site, metric)
            if pooled is not None:
                return pooled
        return None

    def _pooled(self, site: Site, metric: str) -> MemberWeights | None:
        """What all sites of a kernel have seen, as it is at one of them: they run the same code."""
        lines = self._of_kernel.get((site.kernel, metric))
        if not lines:
            return None
        steps = KernelSteps(self.graph, self.graph.kernel_by_name[site.kernel], ())
        values = self._nothing(site.id)
        _give(values, lines, steps, site)
        return _weights(values, metric, site) if any(values[:-1]) else None


def _give(values: list[int], lines: Lines, steps: KernelSteps, site: Site) -> None:
    """Add what was seen at lines to a site's members, in equal shares at a line of several; nobody is last."""
    together: Counter[tuple[int, ...]] = Counter()
    for line, part in lines.items():
        together[steps.members_at(line, site)] += part
    for places, part in sorted(together.items()):
        owners = places or (-1,)
        for place, share in zip(owners, split_by_largest_remainder(part, [1] * len(owners)), strict=True):
            values[place] += share


def _weights(values: Sequence[int], metric: str, site: Site) -> MemberWeights:
    """A sole member has all of its site: what is of no op is there for its sake."""
    seen = sum(values)
    if len(site.members) == 1:
        return MemberWeights((seen, 0), seen, sampled=False)
    return MemberWeights(tuple(values), seen, sampled=metric == SAMPLES)


def _in_loops(steps: KernelSteps, rows: Sequence[StepRow], number: int) -> Mapping[int, Lines]:
    """What was seen of a metric at lines of ops, by their innermost loop; of all sites, which run the same code."""
    found: dict[int, Lines] = defaultdict(Counter)
    for row in rows:
        if row.step in steps.owned and row.address != NO_ADDRESS:
            found[steps.loop_of(row.address)][row.step] += row.values[number]
    return found


def _owned(steps: KernelSteps, seen: Counter[Place], in_loop: Mapping[int, Lines]) -> Lines:
    """What was seen at one site, by lines that are of ops; code of none goes to the lines around it."""
    lines: Lines = Counter()
    homeless: Counter[int] = Counter()
    for (line, loop), value in seen.items():
        if line in steps.owned:
            lines[line] += value
        elif loop == UNTOLD:
            lines[steps.around(line)] += value
        else:
            homeless[loop] += value
    for loop, value in sorted(homeless.items()):
        lines.update(_shared(steps, loop, value, in_loop))
    return lines


def _shared(steps: KernelSteps, loop: int, value: int, in_loop: Mapping[int, Lines]) -> Lines:
    """What code of no op in a loop has seen, given to the lines of ops in it."""
    if loop == OUTSIDE:
        return Counter({NOBODY: value})
    seen: Lines = Counter()
    for number, inside in in_loop.items():
        if _is_in(steps.loops, number, loop):
            seen.update(inside)
    if not seen.total():  # nothing was seen of any of them: by the number of their instructions
        seen = Counter({line: n for line, n in steps.loops[loop].lines.items() if line in steps.owned})
    lines = sorted(seen)
    return Counter(dict(zip(lines, split_by_largest_remainder(value, [seen[line] for line in lines]), strict=True)))


def spread_evenly(seen: Counter[Place], weights: Sequence[int]) -> list[Counter[Place]]:
    """Split what was seen at places over sites, so that each site has its part of the sum, and of each place.

    Both are exact. Splitting each place by itself would not do: where one sample was seen at each of many places, all
    would go to the first site.
    """
    left = split_by_largest_remainder(seen.total(), weights)
    parts: list[Counter[Place]] = [Counter() for _ in weights]
    for place in sorted(seen):
        shares = split_by_largest_remainder(seen[place], left)
        for number, share in enumerate(shares):
            if share:
                parts[number][place] = share
                left[number] -= share
    return parts


def _is_in(loops: Sequence[CodeLoop], number: int, outer: int) -> bool:
    while number not in (outer, OUTSIDE):
        number = loops[number].parent
    return number == outer


def _sums_at(sums: Sums, place: int, metrics: Sequence[str]) -> dict[str, int]:
    return sums.setdefault(place, dict.fromkeys(metrics, 0))


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
