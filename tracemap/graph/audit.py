"""The phase in which each op loses its location, and the outcome of the op.

Each op loses its location at most once: in the first phase after the last one that locates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracemap.codec import Count, Record
from tracemap.graph.model import PHASES, SOURCE, Op, OpId, TraceGraph
from tracemap.units import UNKNOWN


class PhaseCount(Record, frozen=True):
    """How many ops are still located after a phase, and how many lost their location in it."""

    phase: str
    located: Count
    lost: Count


@dataclass(frozen=True, slots=True)
class Loss:
    """An op, and the first phase that no longer locates it."""

    op: Op
    phase: str


@dataclass(frozen=True, slots=True)
class Spot:
    """The pass in which an op lost its location.

    `pass_name`, `argument`: the pass and its command-line name, empty if no printed text shows the loss;
    `number`: its index among the passes that changed anything, from 1; `anchor`: the operation that it ran on;
    `before`, `after`: the lines around the op in the last text with it, and the same lines in the first text without.
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
    """The audit of a map: counts by phase, losses by phase and op, and ops without a location of their own.

    `unknown`: the number of ops that no phase dump covers.
    """

    ops: int
    phases: tuple[PhaseCount, ...]
    losses: tuple[Loss, ...]
    without_location: tuple[Op, ...]
    unknown: int
    spots: tuple[Spot, ...] = ()

    def share_located(self) -> float:
        """The percentage of ops that have a location of their own; 100 if there are no ops."""
        return 100.0 if not self.ops else 100 * (self.ops - len(self.without_location)) / self.ops


def lost_in(op: Op) -> str:
    """The first phase that does not locate an op; "" if the last one still does, or nothing was examined."""
    if op.last_phase is UNKNOWN or op.last_phase == PHASES[-1]:
        return ""
    return PHASES[0] if op.last_phase == SOURCE else PHASES[PHASES.index(op.last_phase) + 1]


def audit(graph: TraceGraph, spots: Sequence[Spot] = ()) -> Audit:
    """Count the ops of a map with and without a location after each phase."""
    losses = [Loss(op, lost_in(op)) for op in graph.ops if lost_in(op)]
    losses.sort(key=lambda loss: PHASES.index(loss.phase))
    unknown = sum(1 for op in graph.ops if op.last_phase is UNKNOWN)
    counts = []
    located = len(graph.ops) - unknown
    for phase in PHASES:
        lost = sum(1 for loss in losses if loss.phase == phase)
        located -= lost
        counts.append(PhaseCount(phase, located, lost))
    unlocated_ops = tuple(op for op in graph.ops if not op.own_location)
    return Audit(len(graph.ops), tuple(counts), tuple(losses), unlocated_ops, unknown, tuple(spots))
