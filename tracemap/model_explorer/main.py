"""The adapter that reads a bundle for Model Explorer; needs `pip install ai-edge-model-explorer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_explorer import Adapter, AdapterMetadata, ModelExplorerGraphs, graph_builder

from tracemap.commands.runs import data_flow_of
from tracemap.core.errors import ToolMissing, UsageInvalid
from tracemap.map.bundle import Bundle, load
from tracemap.reports.exports.graphs import collection


class TracemapAdapter(Adapter):  # type: ignore[misc]  # Model Explorer has no types
    """Shows the ops of a bundle in layers by scope; `tracemap export --to model-explorer` has costs as node data."""

    metadata = AdapterMetadata(
        id="tracemap",
        name="tracemap bundle",
        description="Ops of a model with their outcomes, scopes, dispatches and kernels.",
        fileExts=["tracemap"],
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> ModelExplorerGraphs:
        """Read the graph of a bundle.

        Raises:
            tracemap.core.errors.TracemapError: the path is not a bundle, or the bundle is damaged.
        """
        bundle = load(Path(model_path))
        edges, notes = _data_flow(bundle)
        graphs = collection(bundle.graph, edges, notes)
        return {"graphCollections": [graph_builder.GraphCollection(graphs["label"], [_graph(graphs["graphs"][0])])]}


def _data_flow(bundle: Bundle) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
    """The edges between ops; if the model cannot be parsed here, a note with the reason instead."""
    try:
        return data_flow_of(bundle), {}
    except (ToolMissing, UsageInvalid) as error:
        return (), {"data flow": f"left out: {error}"}


def _graph(graph: dict[str, Any]) -> graph_builder.Graph:
    """Convert a graph to Model Explorer's classes."""
    nodes = [
        graph_builder.GraphNode(
            id=node["id"],
            label=node["label"],
            namespace=node["namespace"],
            attrs=[graph_builder.KeyValue(**attribute) for attribute in node["attrs"]],
            incomingEdges=[graph_builder.IncomingEdge(**edge) for edge in node["incomingEdges"]],
        )
        for node in graph["nodes"]
    ]
    return graph_builder.Graph(id=graph["id"], nodes=nodes, groupNodeAttributes=graph["groupNodeAttributes"])
