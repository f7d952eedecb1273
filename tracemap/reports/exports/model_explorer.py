"""Model Explorer's graphs and node data: ops in layers by scope, and costs per metric to colour them.

The format follows the data classes of `ai-edge-model-explorer` (`graph_builder`, `node_data_builder`), as there is no
schema. Graphs have no costs, so node data of several runs fit the same graph.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tracemap.attribution.model import ResidualReason
from tracemap.codec import pretty
from tracemap.graph.model import Op, TraceGraph
from tracemap.graph.query import scopes_of
from tracemap.reports.advice import counted_in
from tracemap.reports.exports.charges import Ledger, residual_name
from tracemap.reports.exports.network import about_op
from tracemap.sanitize import without_controls
from tracemap.units import Unknown

_RESIDUAL: Final = "(residual)"
_GRADIENT: Final = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#f28e2b"}]


def graph_id(graph: TraceGraph) -> str:
    """The id of a map's graph, which node data refer to."""
    return without_controls(graph.module.name) or "model"


def collection(graph: TraceGraph, data_flow: Iterable[tuple[str, str]], notes: Mapping[str, str]) -> dict[str, Any]:
    """A collection of one graph, with nodes for ops and for reasons of unattributed costs.

    Args:
        graph: the map.
        data_flow: pairs of an op and a user of its result.
        notes: attributes of the whole graph.
    """
    incoming: dict[str, list[dict[str, str]]] = defaultdict(list)
    for maker, user in data_flow:
        incoming[user].append({"sourceNodeId": maker, "sourceNodeOutputId": "0", "targetNodeInputId": "0"})
    nodes = [_node(graph, op, incoming.get(op.id, [])) for op in graph.ops]
    nodes += [
        {"id": _residual_id(reason), "label": residual_name(reason), "namespace": _RESIDUAL, "subgraphIds": []}
        | {"attrs": [], "incomingEdges": []}
        for reason in ResidualReason
    ]
    label = without_controls(graph.sources[0].name) if graph.sources else graph_id(graph)
    about = {without_controls(key): without_controls(value) for key, value in notes.items()}
    return {"label": label, "graphs": [{"id": graph_id(graph), "nodes": nodes, "groupNodeAttributes": {"": about}}]}


def collection_json(graph: TraceGraph, data_flow: Iterable[tuple[str, str]], notes: Mapping[str, str]) -> str:
    """`collection` as a file for Model Explorer."""
    return pretty(collection(graph, data_flow, notes))


def node_data_json(ledger: Ledger, number: int) -> str:
    """A file of node data: the costs of ops, and unattributed costs, in the metric with index `number`."""
    costs = Counter[str]()
    for charge in ledger.charges:
        node = charge.op.id if charge.op else f"residual:{charge.frame.name.removeprefix(f'{_RESIDUAL} ')}"
        costs[node] += charge.amounts[number]
    metric = ledger.metrics[number]
    calls = counted_in(metric, ledger.metrics)
    data = {
        "name": f"{without_controls(metric.name)} ({metric.unit}{calls and f', {calls}'})",
        "results": {node: {"value": cost} for node, cost in costs.items() if cost},
        "gradient": _GRADIENT,
    }
    return pretty({graph_id(ledger.graph): data})


def _residual_id(reason: ResidualReason) -> str:
    return f"residual:{reason.value}"


def _node(graph: TraceGraph, op: Op, incoming: list[dict[str, str]]) -> dict[str, Any]:
    scopes = scopes_of(graph, op)
    # A node represents all calls of its function. If the scopes of the calls differ, use only the op's own scope.
    scope = scopes[0] if len(scopes) == 1 else op.scope
    layers = [*([] if isinstance(op.function, Unknown) else [op.function]), *scope]
    sites = graph.sites_of_op.get(op.id, ())
    kernels = dict.fromkeys(graph.site_by_id[site].kernel for site in sites)
    attributes = {
        **{key: str(value) for key, value in about_op(graph, op).items()},
        "op": op.id,
        "reason": op.reason.text,
        "sites": " ".join(sites),
        "kernels": " ".join(kernels),
    }
    return {
        "id": op.id,
        "label": without_controls(op.name),
        # A slash in the name of a layer would start another layer.
        "namespace": "/".join(without_controls(part).replace("/", "\u2215") for part in layers),
        "subgraphIds": [],
        "attrs": [{"key": key, "value": without_controls(value)} for key, value in attributes.items() if value],
        "incomingEdges": incoming,
    }
