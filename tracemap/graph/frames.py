"""Which lines of a kernel's text do an op's work, and which are the frame around such lines.

A loop nest of several fused ops is one operation with a region: loads, stores and loop control stand on its own line,
with the location of one of the ops. The lines inside tell whose the work is; the frame tells nothing more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import OpId
from tracemap.graph.program import Kernel, Site, Step
from tracemap.machine.lines import NO_LINE, LineOp, OpLines
from tracemap.units import UNKNOWN

NOBODY = NO_LINE
"""The line of what belongs to no op."""

_HANDS_ON = frozenset({"linalg.yield", "iree_codegen.load_from_buffer", "iree_codegen.store_to_buffer"})
"""Steps that only hand on what others compute."""


@dataclass(frozen=True)
class Frames:
    """The steps of a kernel; `members` are the ops of all its sites."""

    kernel: Kernel
    members: frozenset[OpId]

    @cached_property
    def _step_at(self) -> dict[int, Step]:
        return {step.line: step for step in self.kernel.steps}

    @cached_property
    def _of_ops(self) -> Sequence[Step]:
        return [step for step in self.kernel.steps if not self.members.isdisjoint(step.ops)]

    @cached_property
    def _lines_inside(self) -> Mapping[int, Sequence[int]]:
        """The lines of ops inside of each step that holds any."""
        found: dict[int, list[int]] = defaultdict(list)
        for step in self._of_ops:
            if step.op_name not in _HANDS_ON:
                for outer in self._outer(step):
                    found[outer].append(step.line)
        return found

    def _outer(self, step: Step) -> Sequence[int]:
        """The lines of the steps around one, from inside out."""
        lines: list[int] = []
        while step.parent is not UNKNOWN and step.parent in self._step_at and step.parent not in lines:
            lines.append(step.parent)
            step = self._step_at[step.parent]
        return lines

    @cached_property
    def owned(self) -> frozenset[int]:
        """The lines that are of ops, and tell whose the work is that stands on them."""
        lines = {step.line for step in self._of_ops if step.line not in self._lines_inside}
        working = {step.line for step in self._of_ops if step.op_name not in _HANDS_ON}
        return frozenset((lines & working or lines) | self._unlocated.keys())

    @cached_property
    def _unlocated(self) -> Mapping[int, int]:
        """The lines of no op in a region without any that is of one, and the line of the op whose region it is.

        Passes that make a region anew, as of a convolution, leave its operations without locations: what is computed
        there is the op's.
        """
        whole = {step.line for step in self._of_ops} - self._lines_inside.keys()
        found = {}
        for step in self.kernel.steps:
            if self.members.isdisjoint(step.ops) and step.op_name not in _HANDS_ON:
                for outer in whole.intersection(self._outer(step)):  # at most one: what holds another is not whole
                    found[step.line] = outer
        return found

    @cached_property
    def op_lines(self) -> OpLines:
        """What machine code is told of them."""
        told = sorted((step for step in self.kernel.steps if step.line in self.owned), key=lambda step: step.line)
        return OpLines(self.owned, tuple(LineOp(step.line, step.op_name, step.parent, step.takes) for step in told))

    def around(self, line: int) -> int:
        """A line that is of ops: this one, or the innermost step around it; `NOBODY` where there is none."""
        step = self._step_at.get(line)
        if step is None:
            return NOBODY
        lines = (line, *self._outer(step))
        return next((each for each in lines if not self.members.isdisjoint(self._step_at[each].ops)), NOBODY)

    def inside(self, line: int) -> Collection[int]:
        """The lines that do the work in the frame that a line stands for; of what hands on, those around it."""
        step = self._step_at.get(line)
        if step is None or step.op_name not in _HANDS_ON:
            return self._lines_inside.get(line, ())
        return self.owned if step.parent is UNKNOWN else self._lines_inside.get(step.parent, ())

    def members_at(self, line: int, site: Site) -> tuple[int, ...]:
        """The numbers of the site's members that a line is of."""
        ops = self.ops_at(line)
        return tuple(number for number, member in enumerate(site.members) if member.op in ops)

    def ops_at(self, line: int) -> Sequence[OpId]:
        """The ops that a line is of."""
        step = self._step_at.get(self._unlocated.get(line, line))
        return () if step is None else step.ops


def frames_of(graph: TraceGraph, kernel: Kernel) -> Frames:
    """The frames of a kernel of the map."""
    return Frames(kernel, frozenset(member.op for site in kernel.sites for member in graph.site_by_id[site].members))
