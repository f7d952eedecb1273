"""The JSON of `tracemap lower`: the loops of every stage, the ops that work in them, and the text of every stage."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from tracemap.codec import Count, Document, Record, view
from tracemap.graph.lowering import Loop, Lowering, OpPlace, Remainder
from tracemap.graph.ops import OpId, Reason
from tracemap.units import UNKNOWN, Integer, Text, Unknown


class ShownPlace(Record, frozen=True):
    """Where an op is in a stage: outermost loops, places among the remainders, or gone, and why if that is told."""

    loops: tuple[str, ...]
    remainders: tuple[Count, ...]
    inlined: bool
    gone: bool
    reason: Reason | None


class LoweredOp(Record, frozen=True):
    """An op of the model, and where it is in each stage."""

    id: OpId
    name: str
    function: Text
    line: Integer
    column: Integer
    constant: bool
    stages: tuple[ShownPlace, ...]


class ShownStage(Record, frozen=True):
    """The model after a pipeline; the pipeline is null for the model as it is."""

    pipeline: Text
    loops: tuple[Loop, ...]
    remainders: tuple[Remainder, ...]
    text: str


class ShownLowering(Document, frozen=True, kw_only=True):
    """The loops that pass pipelines made of a model, stage by stage, and the ops that work in them."""

    schema_version: Literal[1] = 1
    kind: Literal["lowering"] = "lowering"
    model: Annotated[str, Meta(description="The name of the model's file.")]
    iree_compiler: str
    ops: Annotated[
        tuple[LoweredOp, ...], Meta(description="Without functions, returns and globals; in the order of the text.")
    ]
    stages: Annotated[
        tuple[ShownStage, ...],
        Meta(min_length=2, description="The model itself, then what each pipeline made of the stage before it."),
    ]


def shown_lowering(lowering: Lowering) -> ShownLowering:
    """The lowering as `tracemap lower --format json` prints it."""
    return ShownLowering(
        model=lowering.model,
        iree_compiler=lowering.compiler,
        ops=tuple(view(LoweredOp, op, stages=tuple(map(_place, lowering.places_of(op.id)))) for op in lowering.ops),
        stages=tuple(view(ShownStage, stage, pipeline=stage.pipeline or UNKNOWN) for stage in lowering.stages),
    )


def _place(place: OpPlace) -> ShownPlace:
    reason = None if isinstance(place.reason, Unknown) else place.reason
    return view(ShownPlace, place, gone=place.is_gone, reason=reason)
