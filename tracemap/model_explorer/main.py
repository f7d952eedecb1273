"""Reads a bundle for Model Explorer, which this module needs (`pip install ai-edge-model-explorer`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_explorer import Adapter, AdapterMetadata, ModelExplorerGraphs, graph_builder

from tracemap.errors import ToolMissing, UsageInvalid
from tracemap.graph.bundle import Bundle, load
from tracemap.reports.exports.model_explorer import collection
from tracemap.session.diff import data_flow_of


class TracemapAdapter(Adapter):  # type: ignore[misc]  # Model Explorer has no types
    """Shows the ops of a bundle in layers by scope; `tracemap export --to model-explorer` has costs as node data."""

    metadata = AdapterMetadata(
        id="tracemap",
        name="tracemap bundle",
        description="Ops of a model with what became of them: scopes, sites and kernels.",
        fileExts=["tracemap"],
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> ModelExplorerGraphs:
        """The graph of the bundle at a path.

        Raises:
            tracemap.errors.TracemapError: it is no bundle, or damaged.
        """
        bundle = load(Path(model_path))
        edges, notes = _data_flow(bundle)
        made = collection(bundle.graph, edges, notes)
        return {"graphCollections": [graph_builder.GraphCollection(made["label"], [_graph(made["graphs"][0])])]}


def _data_flow(bundle: Bundle) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
    """The edges; without them where the model cannot be parsed here, and then why."""
    try:
        return data_flow_of(bundle), {}
    except (ToolMissing, UsageInvalid) as error:
        return (), {"data flow": f"left out: {error}"}


def _graph(made: dict[str, Any]) -> graph_builder.Graph:
    """A graph in Model Explorer's own classes."""
    nodes = [
        graph_builder.GraphNode(
            id=node["id"],
            label=node["label"],
            namespace=node["namespace"],
            attrs=[graph_builder.KeyValue(**each) for each in node["attrs"]],
            incomingEdges=[graph_builder.IncomingEdge(**each) for each in node["incomingEdges"]],
        )
        for node in made["nodes"]
    ]
    return graph_builder.Graph(id=made["id"], nodes=nodes, groupNodeAttributes=made["groupNodeAttributes"])
