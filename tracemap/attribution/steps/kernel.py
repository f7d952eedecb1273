"""What a kernel's text and machine code say of its steps: which lines are of ops, and which loop stands around."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tracemap.attribution.scan.step_rows import NO_ADDRESS, StepRow
from tracemap.errors import ModuleInvalid
from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import OpId
from tracemap.graph.program import Kernel, Site, Step
from tracemap.machine.code import OUTSIDE, CodeLoop, innermost, instructions_of, loops_of
from tracemap.machine.images import Image, kernel_images
from tracemap.units import UNKNOWN

NOBODY = 0
"""The line of what belongs to no op; lines count from 1."""
UNKNOWN_LOOP = -2
"""The loop of what has no address."""

Spot = tuple[int, int]
"""A line of the kernel's text, and the loop of the machine code around, where the line alone does not decide."""


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
