"""What was seen in a kernel, brought to lines of ops by its text and machine code, and from these to members."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tracemap.attribution.scan.rows import NO_ADDRESS, StepRow
from tracemap.errors import ModuleInvalid
from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import OpId
from tracemap.graph.program import Kernel, Site, Step
from tracemap.machine.code import OUTSIDE, CodeLoop, innermost, instructions_of, loops_of
from tracemap.machine.images import Image, kernel_images
from tracemap.units import UNKNOWN, split_by_largest_remainder

NOBODY = 0
"""The line of what belongs to no op; lines count from 1."""
UNKNOWN_LOOP = -2
"""The loop of what has no address."""

Spot = tuple[int, int]
"""A line of the kernel's text, and the loop of the machine code around, where the line alone does not decide."""

Lines = Counter[int]
"""What was seen, by line of the kernel's text."""


@dataclass(frozen=True)
class KernelSteps:
    """The steps of a kernel; `members` are the ops of all its sites."""

    kernel: Kernel
    members: frozenset[OpId]
    images: Sequence[Image]
    _loop_of: dict[int, int] = field(default_factory=dict)

    @cached_property
    def owned(self) -> frozenset[int]:
        """The lines that are of ops."""
        return frozenset(step.line for step in self.kernel.steps if not self.members.isdisjoint(step.ops))

    @cached_property
    def _step_at(self) -> dict[int, Step]:
        return {step.line: step for step in self.kernel.steps}

    @cached_property
    def loops(self) -> tuple[CodeLoop, ...]:
        """The loops of its machine code; none where that cannot be read."""
        found = kernel_images(self.images, self.kernel.name)
        try:
            return loops_of(instructions_of(*found[0])) if found else ()
        except ModuleInvalid:
            return ()

    def loop_of(self, address: int) -> int:
        """The innermost loop around an address that has code of ops, `OUTSIDE` where there is none."""
        if address not in self._loop_of:
            number = innermost(self.loops, address)
            while number != OUTSIDE and self.owned.isdisjoint(self.loops[number].lines):
                number = self.loops[number].parent
            self._loop_of[address] = number
        return self._loop_of[address]

    def is_inside(self, loop: int, outer: int) -> bool:
        """Whether a loop is another, or stands in it."""
        while loop not in (outer, OUTSIDE):
            loop = self.loops[loop].parent
        return loop == outer

    def around(self, line: int) -> int:
        """The innermost step around a line that is of ops, `NOBODY` where there is none."""
        while (step := self._step_at.get(line)) is not None and step.parent is not UNKNOWN:
            line = step.parent
            if line in self.owned:
                return line
        return NOBODY

    def members_at(self, line: int, site: Site) -> tuple[int, ...]:
        """The numbers of the site's members that a line is of."""
        step = self._step_at.get(line)
        ops = () if step is None else step.ops
        return tuple(number for number, member in enumerate(site.members) if member.op in ops)

    def spot_of(self, row: StepRow) -> Spot:
        """Where a row is, as far as it decides whose it is: its line, and the loop if the line is of no op."""
        if row.step in self.owned:
            return row.step, OUTSIDE
        return row.step, UNKNOWN_LOOP if row.address == NO_ADDRESS else self.loop_of(row.address)


def kernel_steps(graph: TraceGraph, kernel: Kernel, images: Sequence[Image]) -> KernelSteps:
    """The steps of a kernel of the map; without images it has no loops."""
    members = frozenset(member.op for site in kernel.sites for member in graph.site_by_id[site].members)
    return KernelSteps(kernel, members, images)


def in_loops(steps: KernelSteps, rows: Sequence[StepRow], metric: int) -> Mapping[int, Lines]:
    """What was seen of a metric at lines of ops, by their innermost loop; of all sites, which run the same code."""
    found: dict[int, Lines] = defaultdict(Counter)
    for row in rows:
        if row.step in steps.owned and row.address != NO_ADDRESS:
            found[steps.loop_of(row.address)][row.step] += row.values[metric]
    return found


def lines_of_ops(steps: KernelSteps, seen: Counter[Spot], by_loop: Mapping[int, Lines]) -> Lines:
    """What was seen at one site, by lines that are of ops; code of none goes to the lines around it."""
    lines: Lines = Counter()
    homeless: Counter[int] = Counter()
    for (line, loop), value in seen.items():
        if line in steps.owned:
            lines[line] += value
        elif loop == UNKNOWN_LOOP:
            lines[steps.around(line)] += value
        else:
            homeless[loop] += value
    for loop, value in sorted(homeless.items()):
        lines.update(_shared(steps, loop, value, by_loop))
    return lines


def _shared(steps: KernelSteps, loop: int, value: int, by_loop: Mapping[int, Lines]) -> Lines:
    """What code of no op in a loop has seen, given to the lines of ops in it."""
    if loop == OUTSIDE:
        return Counter({NOBODY: value})
    seen: Lines = Counter()
    for inner, inside in by_loop.items():
        if steps.is_inside(inner, loop):
            seen.update(inside)
    if not seen.total():  # nothing was seen of any of them: by the number of their instructions
        seen = Counter({line: count for line, count in steps.loops[loop].lines.items() if line in steps.owned})
    lines = sorted(seen)
    return Counter(dict(zip(lines, split_by_largest_remainder(value, [seen[line] for line in lines]), strict=True)))


def spread_evenly(seen: Counter[Spot], weights: Sequence[int]) -> list[Counter[Spot]]:
    """Split what was seen at spots over sites, so that each site has its part of the sum, and of each spot.

    Both are exact. Splitting each spot by itself would not do: where one sample was seen at each of many spots, all
    would go to the first site.
    """
    left = split_by_largest_remainder(seen.total(), weights)
    parts: list[Counter[Spot]] = [Counter() for _ in weights]
    for spot in sorted(seen):
        shares = split_by_largest_remainder(seen[spot], left)
        for number, share in enumerate(shares):
            if share:
                parts[number][spot] = share
                left[number] -= share
    return parts


def of_members(steps: KernelSteps, lines: Lines, site: Site) -> list[int]:
    """What was seen of each member of a site, and of nobody after them; a line of several gives each the same."""
    together: Counter[tuple[int, ...]] = Counter()
    for line, part in lines.items():
        together[steps.members_at(line, site)] += part
    # Lines of the same members are split as one: split one by one, all that is left over would go to the first member.
    values = [0] * (len(site.members) + 1)
    for members, part in sorted(together.items()):
        owners = members or (-1,)
        for owner, share in zip(owners, split_by_largest_remainder(part, [1] * len(owners)), strict=True):
            values[owner] += share
    return values
