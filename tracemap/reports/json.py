"""The JSON of `show` and of `attribute`, schema version 1: every key always present, unknown is null, integers exact.

The JSON Schemas lie in `tracemap/schemas`; `schema(name)` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from tracemap.attribution.model import Attribution, OpCost, PerCall, SiteCost
from tracemap.graph.encoding import coverage_to_json, kernel_to_json, module_to_json, op_to_json, site_to_json
from tracemap.graph.model import Kernel, TraceGraph
from tracemap.graph.query import Selection, everything
from tracemap.machine.code import OUTSIDE, Instruction
from tracemap.reports.kernels import KernelLoop, KernelView
from tracemap.units import to_json

Json = dict[str, Any]
"""A JSON object: what `json.dumps` takes."""

SCHEMA_VERSION = 1
"""Version of both forms. 1: first."""


def map_json(
    graph: TraceGraph, selection: Selection | None = None, views: Sequence[KernelView] = (), *, assembly: bool = False
) -> Json:
    """The map as `tracemap show --format json` prints it; with a selection only its ops, sites and kernels.

    The coverage is always the whole map's. Kernels of which there is a view have their loops and, where they are asked
    for, instructions; these are null in others.
    """
    chosen = selection or everything(graph)
    view_of = {view.kernel.name: view for view in views if not view.no_code}
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "map",
        "module": module_to_json(graph.module),
        "ops": [op_to_json(op, graph.sites_of_op.get(op.id, ())) for op in chosen.ops],
        "sites": [site_to_json(site) for site in chosen.sites],
        "kernels": [_kernel(kernel, view_of.get(kernel.name), assembly) for kernel in chosen.kernels],
        "coverage": coverage_to_json(graph),
    }


def _kernel(kernel: Kernel, view: KernelView | None, assembly: bool) -> Json:
    return {
        **kernel_to_json(kernel),
        "loops": None if view is None else [_loop(loop) for loop in view.loops],
        "instructions": None if view is None or not assembly else [_instruction(each) for each in view.instructions],
    }


def _loop(loop: KernelLoop) -> Json:
    return {
        "parent": None if loop.parent == OUTSIDE else loop.parent,
        "address": loop.address,
        "instructions": loop.instructions,
        "ops": list(loop.ops),
        "lines": list(loop.lines),
    }


def _instruction(each: Instruction) -> Json:
    line = each.line or None
    return {"address": each.address, "line": line, "text": f"{each.mnemonic} {each.operands}".strip()}


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
        "steps": [
            {"kernel": result.kernel, "line": line, "metrics": dict(seen)}
            for result in attribution.kernels
            for line, seen in result.lines.items()
        ],
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


def _op_cost(cost: OpCost) -> Json:
    return {
        "inclusive": cost.inclusive,
        "attributed": cost.attributed,
        "low": cost.low,
        "high": cost.high,
        "sampled_low": to_json(cost.sampled_low),
        "sampled_high": to_json(cost.sampled_high),
        "per_call": _per_call(cost.per_call),
    }


def _site_cost(cost: SiteCost) -> Json:
    return {"total": cost.total, "per_call": _per_call(cost.per_call)}


def _per_call(per_call: PerCall | None) -> Json | None:
    return None if per_call is None else {"median": per_call.median, "p10": per_call.p10, "p90": per_call.p90}
