"""How a lowering is put into words, in the terminal and on the page."""

from __future__ import annotations

from tracemap.graph.lowering import OpPlace, Stage
from tracemap.reports.labels import or_question_mark
from tracemap.units import Unknown

_PARTS_NAMED = 4
"""Loops and operations of an op that are named; the JSON names all."""
_GONE = "gone"
_INLINED = "inlined"


def whereabouts(found: OpPlace, stage: Stage) -> str:
    """Where an op is in a stage: `loop2`, `loop2, linalg.fill at 7`, `inlined` or `gone (dead)`; of many the first."""
    if found.is_gone:
        return _GONE if isinstance(found.reason, Unknown) else f"{_GONE} ({found.reason.slug})"
    outside = [stage.remainders[number] for number in found.remainders]
    parts = [*found.loops, *(f"{item.name} at {or_question_mark(item.line)}" for item in outside)]
    if len(parts) > _PARTS_NAMED:
        parts = [*parts[:_PARTS_NAMED], f"{len(parts) - _PARTS_NAMED} more"]
    return ", ".join([*parts, _INLINED] if found.inlined else parts)


def heading(stage: Stage, number: int) -> str:
    """What a stage is called."""
    return f"stage {number}: " + (stage.pipeline or "the model")
