"""A lowering as JSON, schema version 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracemap.graph.lowering import Link, Loop, Lowering, OpPlace, SourceOp, Stage
from tracemap.graph.model import Reason
from tracemap.units import Unknown, to_json

Json = dict[str, Any]

SCHEMA_VERSION = 1
"""Version of the JSON. 1: first."""


def lowering_json(lowering: Lowering) -> Json:
    """The whole lowering with the text of every stage; every key is always present, unknown is null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "lowering",
        "model": lowering.model,
        "iree_compiler": lowering.compiler,
        "ops": [_op_json(op, lowering.places_of(op.id)) for op in lowering.ops],
        "stages": [_stage_json(stage) for stage in lowering.stages],
    }


def _op_json(op: SourceOp, places: Sequence[OpPlace]) -> Json:
    return {
        "id": op.id,
        "name": op.name,
        "function": to_json(op.function),
        "line": to_json(op.line),
        "column": to_json(op.column),
        "constant": op.constant,
        "stages": [
            {
                "loops": list(place.loops),
                "remainders": list(place.remainders),
                "inlined": place.inlined,
                "gone": place.is_gone,
                "reason": None if isinstance(place.reason, Unknown) else _reason_json(place.reason),
            }
            for place in places
        ],
    }


def _reason_json(reason: Reason) -> Json:
    return {"slug": reason.slug, "text": reason.text, "inferred": reason.inferred}


def _stage_json(stage: Stage) -> Json:
    return {
        "pipeline": stage.pipeline or None,
        "loops": [_loop_json(loop) for loop in stage.loops],
        "remainders": [
            {
                "name": remainder.name,
                "function": remainder.function,
                "line": to_json(remainder.line),
                "links": [_link_json(link) for link in remainder.links],
            }
            for remainder in stage.remainders
        ],
        "text": stage.text,
    }


def _loop_json(loop: Loop) -> Json:
    return {
        "id": loop.id,
        "name": loop.name,
        "function": loop.function,
        "line": to_json(loop.line),
        "last_line": to_json(loop.last_line),
        "operations": loop.operations,
        "untraced": loop.untraced,
        "links": [_link_json(link) for link in loop.links],
        "children": [_loop_json(child) for child in loop.children],
    }


def _link_json(link: Link) -> Json:
    return {"op": link.op, "evidence": link.evidence.value, "lines": list(link.lines)}
