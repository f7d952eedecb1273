"""The JSON of `tracemap audit`: where each op went, and which phase or pass lost its location."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from tracemap.codec import Count, Document, Record, view
from tracemap.graph.audit import Audit, Loss, PhaseCount, Spot
from tracemap.graph.model import ModuleInfo, TraceGraph
from tracemap.graph.ops import Fate, OpId
from tracemap.reports.json.show import ShownReason
from tracemap.units import UNKNOWN, Integer, Text


class AuditedOp(Record, frozen=True):
    """An op of the model, and where it stands."""

    op: OpId
    name: str
    file: Text
    line: Integer
    column: Integer


class Locations(Record, frozen=True):
    """Which ops the model itself gives a location: how many there are, how many have one, and those that have none."""

    ops: Count
    own: Count
    without: tuple[AuditedOp, ...]


class ShownLoss(AuditedOp, frozen=True):
    """An op, the first phase that does not locate it any more, and what became of it."""

    phase: str
    fate: Fate
    reason: ShownReason


class ShownSpot(Record, frozen=True):
    """The pass that lost an op, the operation that it ran on, and the lines around the op before and after.

    What belongs to the pass is null where no print shows the loss.
    """

    op: OpId
    phase: str
    pass_name: Text = field(name="pass")
    argument: Text
    number: Annotated[Integer, Meta(description="Its place among the passes that changed anything, from 1.")]
    anchor: Text
    before: str
    after: Text


class ShownAudit(Document, frozen=True, kw_only=True):
    """Where each op of a model went, and which phase of the compiler lost its location."""

    schema_version: Literal[1] = 1
    kind: Literal["audit"] = "audit"
    module: ModuleInfo
    locations: Locations
    phases: Annotated[tuple[PhaseCount, ...], Meta(description="In the order in which the compiler runs them.")]
    not_followed: Annotated[Count, Meta(description="Ops of which the bundle does not say how far they get.")]
    losses: Annotated[tuple[ShownLoss, ...], Meta(description="Each lost op once, in the order of phases.")]
    spots: Annotated[tuple[ShownSpot, ...], Meta(description="Of the ops asked for with --pass.")]


def shown_audit(graph: TraceGraph, audit: Audit) -> ShownAudit:
    """The audit as `tracemap audit --format json` prints it."""
    without = tuple(view(AuditedOp, op, op=op.id) for op in audit.without_location)
    return ShownAudit(
        module=graph.module,
        locations=Locations(audit.ops, audit.ops - len(without), without),
        phases=audit.phases,
        not_followed=audit.unknown,
        losses=tuple(map(_loss, audit.losses)),
        spots=tuple(map(_spot, audit.spots)),
    )


def _loss(loss: Loss) -> ShownLoss:
    return view(ShownLoss, loss.op, op=loss.op.id, phase=loss.phase, reason=view(ShownReason, loss.op.reason))


def _spot(spot: Spot) -> ShownSpot:
    found = bool(spot.pass_name)
    return view(
        ShownSpot,
        spot,
        pass_name=spot.pass_name or UNKNOWN,
        argument=spot.argument or UNKNOWN,
        number=spot.number if found else UNKNOWN,
        anchor=spot.anchor or UNKNOWN,
        after=spot.after if found else UNKNOWN,
    )
