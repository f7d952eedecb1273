"""The audit as JSON, schema version 1."""

from __future__ import annotations

from typing import Any

from tracemap.graph.audit import Audit, Spot
from tracemap.graph.encoding import module_to_json
from tracemap.graph.model import Op, TraceGraph
from tracemap.units import to_json

Json = dict[str, Any]

SCHEMA_VERSION = 1
"""Version of the JSON. 1: first."""


def audit_json(graph: TraceGraph, audit: Audit) -> Json:
    """The whole audit; every key is always present, unknown is null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "audit",
        "module": module_to_json(graph.module),
        "locations": {
            "ops": audit.ops,
            "own": audit.ops - len(audit.without_location),
            "without": [_op_json(op) for op in audit.without_location],
        },
        "phases": [{"phase": count.phase, "located": count.located, "lost": count.lost} for count in audit.phases],
        "not_followed": audit.unknown,
        "losses": [
            {
                **_op_json(loss.op),
                "phase": loss.phase,
                "fate": loss.op.fate.value,
                "reason": {"slug": loss.op.reason.slug, "text": loss.op.reason.text},
            }
            for loss in audit.losses
        ],
        "spots": [_spot_json(spot) for spot in audit.spots],
    }


def _op_json(op: Op) -> Json:
    return {
        "op": op.id,
        "name": op.name,
        "file": to_json(op.file),
        "line": to_json(op.line),
        "column": to_json(op.column),
    }


def _spot_json(spot: Spot) -> Json:
    found = bool(spot.pass_name)
    return {
        "op": spot.op,
        "phase": spot.phase,
        "pass": spot.pass_name if found else None,
        "argument": spot.argument or None,
        "number": spot.number if found else None,
        "anchor": spot.anchor or None,
        "before": spot.before,
        "after": spot.after if found else None,
    }
