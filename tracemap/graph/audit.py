"""Where each op went: in which phase the compiler's output stops naming it, and what it became.

Each op is lost at most once: in the first phase after the last one that locates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracemap.codec import Count, Record
from tracemap.graph.model import PHASES, SOURCE, Op, OpId, TraceGraph
from tracemap.units import UNKNOWN


class PhaseCount(Record, frozen=True):
    """How many ops are still located after a phase, and how many it lost."""

    phase: str
    located: Count
    lost: Count


@dataclass(frozen=True, slots=True)
class Loss:
    """An op and the first phase that does not locate it any more."""

    op: Op
    phase: str


@dataclass(frozen=True, slots=True)
class Spot:
    """The pass that lost an op.

    `pass_name`, `argument`: the pass and how it is called on a command line; empty where no print shows the loss;
    `number`: its place among the passes that changed anything, from 1; `anchor`: the operation that it ran on;
    `before`, `after`: the lines around the op in the last text that has it, and the same place in the first without.
    """

    op: OpId
    phase: str
    pass_name: str
    argument: str
    number: int
    anchor: str
    before: str
    after: str


@dataclass(frozen=True)
class Audit:
    """The whole account: counts by phase, losses in the order of phases and ops, ops without a location of their own.

    `unknown` counts ops of which nobody looked how far they get.
    """

    ops: int
    phases: tuple[PhaseCount, ...]
    losses: tuple[Loss, ...]
    without_location: tuple[Op, ...]
    unknown: int
    spots: tuple[Spot, ...] = ()

    def share_located(self) -> float:
        """The share of the ops that have a location of their own, in percent; all of none is 100."""
        return 100.0 if not self.ops else 100 * (self.ops - len(self.without_location)) / self.ops


def lost_in(op: Op) -> str:
    """The first phase that does not locate an op; "" where the last one still does, or nobody looked."""
    if op.last_phase is UNKNOWN or op.last_phase == PHASES[-1]:
        return ""
    return PHASES[0] if op.last_phase == SOURCE else PHASES[PHASES.index(op.last_phase) + 1]


def audit(graph: TraceGraph, spots: Sequence[Spot] = ()) -> Audit:
    """Account for every op of a map."""
    losses = [Loss(op, lost_in(op)) for op in graph.ops if lost_in(op)]
    losses.sort(key=lambda loss: PHASES.index(loss.phase))
    unknown = sum(1 for op in graph.ops if op.last_phase is UNKNOWN)
    counts = []
    located = len(graph.ops) - unknown
    for phase in PHASES:
        lost = sum(1 for loss in losses if loss.phase == phase)
        located -= lost
        counts.append(PhaseCount(phase, located, lost))
    without = tuple(op for op in graph.ops if not op.own_location)
    return Audit(len(graph.ops), tuple(counts), tuple(losses), without, unknown, tuple(spots))
