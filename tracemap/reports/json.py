"""The JSON of `show` and of `attribute`, schema version 1: every key always present, unknown is null, integers exact.

The JSON Schemas lie in `tracemap/schemas`; `schema(name)` reads them.
"""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources
from typing import Any

from tracemap.attribution.model import Attribution, OpCost, PerCall, SiteCost
from tracemap.graph.model import Fate, Frame, Kernel, Membership, Op, Site, TraceGraph
from tracemap.units import to_json

Json = dict[str, Any]
"""A JSON object: what `json.dumps` takes."""

SCHEMA_VERSION = 1
"""Version of both forms. 1: first."""


def map_json(graph: TraceGraph) -> Json:
    """The map as `tracemap show --format json` prints it."""
    module = graph.module
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "map",
        "module": {
            "name": module.name,
            "sha256": module.sha256,
            "iree_compiler": module.iree_compiler,
            "flags": list(module.flags),
        },
        "ops": [_op(op, graph) for op in graph.ops],
        "sites": [_site(site) for site in graph.sites],
        "kernels": [_kernel(kernel) for kernel in graph.kernels],
        "coverage": _coverage(graph),
    }


def attribution_json(attribution: Attribution) -> Json:
    """The attribution as `tracemap attribute --format json` prints it."""
    run = attribution.run
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "attribution",
        "map_sha256": attribution.map_sha256,
        "rule": attribution.rule.value,
        "run": {
            "elapsed_ns": to_json(run.elapsed_ns),
            "iterations": to_json(run.iterations),
            "workers": to_json(run.workers),
            "device": to_json(run.device),
        },
        "metrics": [
            {
                "name": metric.name,
                "unit": metric.unit,
                "aggregation": metric.aggregation,
                "measured": metric.measured,
                "attributed": metric.attributed,
                "residual": metric.residual,
            }
            for metric in attribution.metrics
        ],
        "ops": [
            {"op": result.op, "calls": result.calls, "metrics": {n: _op_cost(c) for n, c in result.metrics.items()}}
            for result in attribution.ops
        ],
        "sites": [
            {
                "site": result.site,
                "calls": result.calls,
                "metrics": {n: _site_cost(c) for n, c in result.metrics.items()},
            }
            for result in attribution.sites
        ],
        "residual": [{"reason": row.reason.value, "metrics": dict(row.metrics)} for row in attribution.residual],
        "diagnostics": [{"slug": found.slug, "message": found.message} for found in attribution.diagnostics],
    }


def json_text(value: Json) -> str:
    """JSON for standard output: one line per key that people look for, the same bytes for the same value."""
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def schema(name: str) -> Json:
    """The JSON Schema `show` or `attribution`."""
    text = resources.files("tracemap").joinpath("schemas", f"{name}.schema.json").read_text(encoding="utf-8")
    parsed = json.loads(text)
    assert isinstance(parsed, dict)
    return parsed


def _op(op: Op, graph: TraceGraph) -> Json:
    return {
        "id": op.id,
        "name": op.name,
        "function": to_json(op.function),
        "file": to_json(op.file),
        "line": to_json(op.line),
        "column": to_json(op.column),
        "scope": list(op.scope),
        "frames": [_frame(frame) for frame in op.frames],
        "fate": op.fate.value,
        "reason": {"slug": op.reason.slug, "text": op.reason.text},
        "sites": list(graph.sites_of_op.get(op.id, ())),
    }


def _frame(frame: Frame) -> Json:
    return {
        "file": frame.file,
        "line": frame.line,
        "column": to_json(frame.column),
        "function": to_json(frame.function),
    }


def _site(site: Site) -> Json:
    return {
        "id": site.id,
        "ordinal": site.ordinal,
        "function": to_json(site.function),
        "path": list(site.path),
        "kernel": site.kernel,
        "initializer": site.initializer,
        "command_buffer": to_json(site.command_buffer),
        "command_index": to_json(site.command_index),
        "members": [_member(member) for member in site.members],
    }


def _member(member: Membership) -> Json:
    return {
        "op": member.op,
        "evidence": member.evidence.value,
        "root": member.root,
        "operations": to_json(member.operations),
        "bytes": to_json(member.bytes),
    }


def _kernel(kernel: Kernel) -> Json:
    steps = [{"line": step.line, "op_name": step.op_name, "ops": list(step.ops)} for step in kernel.steps]
    return {"name": kernel.name, "sites": list(kernel.sites), "steps": steps}


def _coverage(graph: TraceGraph) -> Json:
    fates = Counter(op.fate for op in graph.ops)
    return {
        "ops": len(graph.ops),
        "by_fate": {fate.value: fates[fate] for fate in Fate},
        "sites": len(graph.sites),
        "sites_with_members": sum(bool(site.members) for site in graph.sites),
    }


def _op_cost(cost: OpCost) -> Json:
    return {
        "inclusive": cost.inclusive,
        "attributed": cost.attributed,
        "low": cost.low,
        "high": cost.high,
        "per_call": _per_call(cost.per_call),
    }


def _site_cost(cost: SiteCost) -> Json:
    return {"total": cost.total, "per_call": _per_call(cost.per_call)}


def _per_call(per_call: PerCall | None) -> Json | None:
    return None if per_call is None else {"median": per_call.median, "p10": per_call.p10, "p90": per_call.p90}
