"""Where in a kernel it was: what rows of steps (samples, simulated counts) say of a site's members.

A step that is of ops gives them what was seen at it; where it is of several members of a site, to each the same. A step
of no op (index arithmetic, loop control, moves of registers) gives it to the ops of the innermost loop of the machine
code around it, in proportion to what was seen of them in that loop; what no loop has an op for stays a share of nobody.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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

Lines = Counter[int]
"""What was seen, by line of the kernel's text."""


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
        """A total split over members and nobody, exactly."""
        return split_by_largest_remainder(total, self.values)

    def interval(self, place: int, total: int) -> tuple[int, int]:
        """The 95 % interval of a member's part of a total (Wilson 1927, the score interval of a proportion)."""
        if not self.sampled or not self.seen:
            part = self.split(total)[place]
            return part, part
        low, high = wilson(self.values[place], self.seen)
        part = self.split(total)[place]
        return min(part, math.floor(total * low)), max(part, math.ceil(total * high))


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

    def members_at(self, line: int, site: Site) -> list[int]:
        """The places of the site's members that a line is of."""
        ops = self._ops_of.get(line, ())
        return [place for place, member in enumerate(site.members) if member.op in ops]


@dataclass
class StepCounts:
    """All rows of steps, brought to sites and members.

    Args:
        graph: the map.
        metrics: the names of the metrics that the rows have.
        rows: grouped by target, kernel, step and address.
        sites_of: a target's sites, and how much of what cannot be told apart is each one's.
        images: the machine code, asked for only where code of no op was seen.
    """

    graph: TraceGraph
    metrics: Sequence[str]
    rows: Sequence[StepRow]
    sites_of: Callable[[int], tuple[Sequence[str], Sequence[int]]]
    images: Callable[[], Sequence[Image]]
    totals: dict[str, dict[str, int]] = field(default_factory=dict)
    """By site and metric."""
    kernels: tuple[KernelResult, ...] = ()
    _members: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """By site and metric: what was seen of each member, and of nobody after them."""
    _of_kernel: dict[tuple[str, str], Lines] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_kernel: dict[str, list[StepRow]] = defaultdict(list)
        for row in self.rows:
            by_kernel[row.kernel].append(row)
        images = self._read_once()
        for kernel in self.graph.kernels:
            if kernel.name in by_kernel:
                self._add(kernel, KernelSteps(self.graph, kernel, images()), by_kernel[kernel.name])
        self.kernels = tuple(
            _result(kernel.name, self.metrics, by_kernel[kernel.name])
            for kernel in self.graph.kernels
            if kernel.name in by_kernel
        )

    def _read_once(self) -> Callable[[], Sequence[Image]]:
        known: list[Sequence[Image]] = []

        def read() -> Sequence[Image]:
            if not known:
                known.append(self.images())
            return known[0]

        return read

    def _add(self, kernel: Kernel, steps: KernelSteps, rows: Sequence[StepRow]) -> None:
        for number, metric in enumerate(self.metrics):
            seen: dict[int, Lines] = defaultdict(Counter)
            for target, lines in _by_line(steps, rows, number):
                seen[target].update(lines)
            for target in sorted(seen):
                self._of_kernel.setdefault((kernel.name, metric), Counter()).update(seen[target])
                self._spread(metric, steps, target, seen[target])

    def _spread(self, metric: str, steps: KernelSteps, target: int, lines: Lines) -> None:
        """Bring what was seen of a target to its sites and their members."""
        sites, weights = self.sites_of(target)
        for line in sorted(lines):
            for site, part in zip(sites, split_by_largest_remainder(lines[line], weights), strict=True):
                if part:
                    totals = self.totals.setdefault(site, dict.fromkeys(self.metrics, 0))
                    totals[metric] += part
                    members = self._members.setdefault((site, metric), self._nothing(site))
                    _give(members, part, steps.members_at(line, self.graph.site_by_id[site]))

    def _nothing(self, site: str) -> list[int]:
        return [0] * (len(self.graph.site_by_id[site].members) + 1)

    def seen_at(self, site: Site, metric: str) -> MemberWeights | None:
        """What of a metric was seen of a site's members; None where nothing was."""
        values = self._members.get((site.id, metric))
        return _weights(values, metric, site) if values is not None and any(values) else None

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
        for line in sorted(lines):
            _give(values, lines[line], steps.members_at(line, site))
        return _weights(values, metric, site) if any(values[:-1]) else None


def _give(values: list[int], part: int, places: Sequence[int]) -> None:
    """Add a part to members in equal shares; to nobody, who is last, where there are none."""
    for place, share in zip(places or [-1], split_by_largest_remainder(part, [1] * max(1, len(places))), strict=True):
        values[place] += share


def _weights(values: Sequence[int], metric: str, site: Site) -> MemberWeights:
    """A sole member has all of its site: what is of no op is there for its sake."""
    seen = sum(values)
    if len(site.members) == 1:
        return MemberWeights((seen, 0), seen, sampled=False)
    return MemberWeights(tuple(values), seen, sampled=metric == SAMPLES)


def _by_line(steps: KernelSteps, rows: Sequence[StepRow], number: int) -> Iterable[tuple[int, Lines]]:
    """For each target, what was seen of a metric, by lines that are of ops; of code that is of no op, by its loop."""
    direct: dict[int, Lines] = defaultdict(Counter)
    in_loop: dict[int, Lines] = defaultdict(Counter)
    homeless: dict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        value = row.values[number]
        if not value:
            continue
        line = row.step if row.step in steps.owned else NOBODY
        if line == NOBODY and row.address == NO_ADDRESS:
            line = steps.around(row.step)
        elif line == NOBODY:
            homeless[row.target][steps.loop_of(row.address)] += value
            continue
        direct[row.target][line] += value
        if row.address != NO_ADDRESS:
            in_loop[steps.loop_of(row.address)][line] += value
    for target in sorted(direct.keys() | homeless.keys()):
        found = direct[target]
        for loop in sorted(homeless[target]):
            found.update(_shared(steps, loop, homeless[target][loop], in_loop))
        yield target, found


def _shared(steps: KernelSteps, loop: int, value: int, in_loop: Mapping[int, Lines]) -> Lines:
    """What code of no op in a loop has seen, given to the lines of ops in it."""
    if loop == OUTSIDE:
        return Counter({NOBODY: value})
    inside = {number for number in range(len(steps.loops)) if _is_in(steps.loops, number, loop)}
    seen: Lines = Counter()
    for number in inside:
        seen.update(in_loop.get(number, Counter()))
    if not seen:  # no sample fell on any of them: by the number of their instructions
        seen = Counter({line: n for line, n in steps.loops[loop].lines.items() if line in steps.owned})
    lines = sorted(seen)
    return Counter(dict(zip(lines, split_by_largest_remainder(value, [seen[line] for line in lines]), strict=True)))


def _is_in(loops: Sequence[CodeLoop], number: int, outer: int) -> bool:
    while number not in (outer, OUTSIDE):
        number = loops[number].parent
    return number == outer


def _result(kernel: str, metrics: Sequence[str], rows: Sequence[StepRow]) -> KernelResult:
    lines: dict[int, dict[str, int]] = {}
    addresses: dict[int, dict[str, int]] = {}
    for row in sorted(rows, key=lambda row: (row.step, row.address)):
        for name, value in zip(metrics, row.values, strict=True):
            at_line = lines.setdefault(row.step, dict.fromkeys(metrics, 0))
            at_line[name] += value
            if row.address != NO_ADDRESS:
                at_address = addresses.setdefault(row.address, dict.fromkeys(metrics, 0))
                at_address[name] += value
    return KernelResult(kernel, lines, dict(sorted(addresses.items())))
