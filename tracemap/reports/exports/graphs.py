"""Exports as graphs: GraphML, DOT and Model Explorer."""

from __future__ import annotations

import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, Final

from tracemap._version import __version__
from tracemap.attribution.model import UnattributedReason
from tracemap.core.codec import pretty_json
from tracemap.core.sanitize import without_controls
from tracemap.core.units import UNKNOWN, Unknown
from tracemap.map.model import Op, TraceGraph, Transfer
from tracemap.map.query import python_frame, scope_text, scopes_of
from tracemap.reports.advice import format_amount, invocations_note
from tracemap.reports.exports.charges import Charge, Ledger, op_label, unattributed_name

if TYPE_CHECKING:
    import networkx


# ---- network
#
# A networkx graph of ops, dispatch sites, transfers, kernels and unattributed costs. Attributes with the names of
# metrics have the costs. Those of ops and unattributed costs add up to the measurement. The same costs are on the edges
# from ops to their sites, and from sites to their kernels.


Attributes = dict[str, str | int]
MEMBERSHIP: Final = "membership"
"""Edge from an op to its dispatch site or transfer."""
CALL: Final = "call"
"""Edge from a dispatch site to its kernel."""
DATA_FLOW: Final = "data-flow"
"""Edge from an op to a user of its result."""
_OP_ATTRIBUTES: Final = ("name", "file", "line", "column", "function", "scope", "python", "outcome")
_OWN: Final = frozenset((*_OP_ATTRIBUTES, *"kind label calls kernel reason initializer shape style".split()))


def network_of(ledger: Ledger, data_flow: Iterable[tuple[str, str]]) -> networkx.DiGraph[str]:
    """Make the graph, in the order of the map; `data_flow` are edges between ops.

    Ids of nodes are safe in all formats: `op12`, `site3`, `transfer0`, `kernel2` (index in the map) and
    `unattributed:REASON`. Every node and edge has a `kind`.
    """
    import networkx

    network: networkx.DiGraph[str] = networkx.DiGraph()
    for node, attributes in _nodes(ledger):
        network.add_node(node, **attributes)
    for maker, user in data_flow:
        network.add_edge(maker, user, kind=DATA_FLOW)
    kernels = {kernel.name: f"kernel{index}" for index, kernel in enumerate(ledger.graph.kernels)}
    for site in ledger.graph.sites:
        network.add_edge(site.id, kernels[site.kernel], kind=CALL)
        for member in site.members:
            network.add_edge(member.op, site.id, kind=MEMBERSHIP)
    for transfer in _transfers(ledger):
        network.add_edges_from(((op, transfer.id) for op in transfer.ops), kind=MEMBERSHIP)
    names = metric_names(ledger)
    for charge in ledger.charges:
        for attributes in _attributes_of_charge(network, charge, kernels, ledger):
            for name, amount in zip(names, charge.amounts, strict=True):
                attributes[name] = int(attributes.get(name, 0)) + amount
    return network


def metric_names(ledger: Ledger) -> list[str]:
    """Attribute names of metrics, different from the names of other attributes."""
    return unique_names([without_controls(metric.name) for metric in ledger.metrics], _OWN)


def unique_names(names: Iterable[str], reserved: Set[str] = frozenset()) -> list[str]:
    """The names, with the prefix `metric` if a name is reserved or repeated."""
    unique: dict[str, None] = {}
    for name in names:
        candidate = name
        while candidate in reserved or candidate in unique:
            candidate = f"metric {candidate}"
        unique[candidate] = None
    return list(unique)


def _attributes_of_charge(
    network: networkx.DiGraph[str], charge: Charge, kernels: Mapping[str, str], ledger: Ledger
) -> Iterable[Attributes]:
    """The attributes of the node and the edges that get a charge."""
    if charge.op is None:
        yield network.nodes[f"unattributed:{charge.frame.name.partition(' ')[2]}"]
        return
    yield network.nodes[charge.op.id]
    yield network.edges[charge.op.id, charge.work]
    site = ledger.graph.site_by_id.get(charge.work)
    if site is not None:
        yield network.edges[site.id, kernels[site.kernel]]


def _nodes(ledger: Ledger) -> Iterable[tuple[str, Attributes]]:
    graph, calls = ledger.graph, {site.site: site.calls for site in ledger.attribution.sites}
    for op in graph.ops:
        yield op.id, {"kind": "op", "label": op_label(op), **op_attributes(graph, op)}
    for site in graph.sites:
        kernel_name, at_load = without_controls(site.kernel), int(site.initializer)
        attributes: Attributes = {"kind": "site", "label": site.id, "kernel": kernel_name, "initializer": at_load}
        site_calls = calls.get(site.id, 0)
        yield site.id, attributes if isinstance(site_calls, Unknown) else {**attributes, "calls": site_calls}
    for transfer in _transfers(ledger):
        yield transfer.id, {"kind": "transfer", "label": f"{transfer.id} {transfer.kind}"}
    for number, kernel in enumerate(graph.kernels):
        name = without_controls(kernel.name)
        yield f"kernel{number}", {"kind": "kernel", "label": name, "name": name}
    for row in ledger.attribution.unattributed:
        label = f"(unattributed) {row.reason.value}"
        yield f"unattributed:{row.reason.value}", {"kind": "unattributed", "label": label, "reason": row.reason.value}


def _transfers(ledger: Ledger) -> list[Transfer]:
    """The transfers of the host program, and those in command buffers that the device timed."""
    timed = {result.transfer for result in ledger.attribution.transfers}
    return [*ledger.graph.transfers, *(own for own in ledger.graph.buffer_transfers.values() if own.id in timed)]


def op_attributes(graph: TraceGraph, op: Op) -> Attributes:
    """The known attributes of an op, with control characters escaped."""
    frame = python_frame(graph, op)
    python = f"{frame.file}:{frame.line}" if frame else UNKNOWN
    values = (op.name, op.file, op.line, op.column, op.function, scope_text(graph, op), python, op.outcome.value)
    return {
        key: without_controls(value) if isinstance(value, str) else value
        for key, value in zip(_OP_ATTRIBUTES, values, strict=True)
        if not isinstance(value, Unknown)
    }


# ---- dot (Graphviz)
#
# Not by a library, since existing ones leave quoting, which is most of the work, to their callers.


_SHAPES: Final = {"op": "box", "site": "ellipse", "transfer": "ellipse", "kernel": "component", "unattributed": "note"}
_STYLES: Final = {MEMBERSHIP: "solid", CALL: "bold", DATA_FLOW: "dotted"}


def graphviz_document(network: networkx.DiGraph[str], ledger: Ledger) -> str:
    """The document: nodes and edges with their attributes and styles."""
    return "".join(f"{line}\n" for line in _lines(network, ledger))


def _lines(network: networkx.DiGraph[str], ledger: Ledger) -> Iterator[str]:
    yield f"// creator: tracemap {__version__}"
    yield f"digraph {quoted(without_controls(ledger.graph.module.name))} {{"
    yield '  node [fontname="monospace"];'
    names = _dot_names(ledger)
    for node, attributes in network.nodes.data():
        look = {"label": _label(attributes, ledger), "shape": _SHAPES[str(attributes["kind"])]}
        yield f"  {quoted(str(node))} [{_listed({**attributes, **look}, names)}];"
    for tail, head, attributes in network.edges.data():
        look = {"style": _STYLES[attributes["kind"]]}
        yield f"  {quoted(tail)} -> {quoted(head)} [{_listed({**attributes, **look}, names)}];"
    yield "}"


def _dot_names(ledger: Ledger) -> dict[str, str]:
    """Attribute names of metrics in the document, by their names in the network.

    The prefix `metric ` avoids names with a meaning in Graphviz, such as `width`, since those have no spaces.
    """
    plain = unique_names(without_controls(metric.name) for metric in ledger.metrics)
    return {name: f"metric {dot_name}" for name, dot_name in zip(metric_names(ledger), plain, strict=True)}


def _label(attributes: Mapping[str, str | int], ledger: Ledger) -> str:
    """The label of a node, with its cost in the first metric."""
    metric = ledger.metrics[0]
    cost = attributes.get(metric_names(ledger)[0])
    lines = [str(attributes["label"])]
    if isinstance(cost, int) and cost:
        lines.append(f"{without_controls(metric.name)} {format_amount(cost, metric)}")
    return "\n".join(lines)


def _listed(attributes: Attributes, names: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(names.get(name, name))}={quoted(str(value))}" for name, value in attributes.items())


def quoted(text: str) -> str:
    r"""Quote a text for Graphviz; line ends become `\n`, backslashes stay literal.

    >>> print(quoted('a "b" \\N'))
    "a \"b\" \\N"
    """
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


# ---- graphml, for Gephi, yEd and networkx


_FORBIDDEN_IN_XML: Final = re.compile("[\ud800-\udfff\ufffe\uffff]")


def graphml(network: networkx.DiGraph[str]) -> bytes:
    """The document; always written with the standard library's XML, also if lxml is installed."""
    from networkx.readwrite.graphml import write_graphml_xml

    nodes, edges = network.nodes.data(), network.edges.data()
    all_attributes = (*(attributes for _, attributes in nodes), *(attributes for *_, attributes in edges))
    names = list(dict.fromkeys(name for attributes in all_attributes for name in attributes))
    xml_names = dict(zip(names, unique_names(map(_xml_text, names)), strict=True))
    for attributes in all_attributes:
        clean = {
            xml_names[name]: _xml_text(value) if isinstance(value, str) else value for name, value in attributes.items()
        }
        attributes.clear()
        attributes.update(clean)
    out = io.BytesIO()
    write_graphml_xml(network, out, prettyprint=True, named_key_ids=False)
    declaration, line_end, document = out.getvalue().partition(b"\n")
    return declaration + line_end + f"<!-- creator: tracemap {__version__} -->\n".encode() + document


def _xml_text(text: str) -> str:
    """The text with U+FFFD in place of characters that XML forbids."""
    return _FORBIDDEN_IN_XML.sub("\ufffd", text)


# ---- model explorer
#
# Model Explorer's graphs and node data: ops in layers by scope, and costs per metric to colour them.
#
# The format follows the data classes of `ai-edge-model-explorer` (`graph_builder`, `node_data_builder`), as there is
# no schema. Graphs have no costs, so node data of several runs fit the same graph.


_UNATTRIBUTED: Final = "(unattributed)"
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
        {
            "id": _unattributed_id(reason),
            "label": unattributed_name(reason),
            "namespace": _UNATTRIBUTED,
            "subgraphIds": [],
        }
        | {"attrs": [], "incomingEdges": []}
        for reason in UnattributedReason
    ]
    label = without_controls(graph.sources[0].name) if graph.sources else graph_id(graph)
    about = {without_controls(key): without_controls(value) for key, value in notes.items()}
    attributes = {"": {"exporter": f"tracemap {__version__}", **about}}
    return {"label": label, "graphs": [{"id": graph_id(graph), "groupNodeAttributes": attributes, "nodes": nodes}]}


def collection_json(graph: TraceGraph, data_flow: Iterable[tuple[str, str]], notes: Mapping[str, str]) -> str:
    """`collection` as a file for Model Explorer."""
    return pretty_json(collection(graph, data_flow, notes))


def node_data_json(ledger: Ledger, number: int) -> str:
    """A file of node data: the costs of ops, and unattributed costs, in the metric with index `number`."""
    costs = Counter[str]()
    for charge in ledger.charges:
        node = charge.op.id if charge.op else f"unattributed:{charge.frame.name.removeprefix(f'{_UNATTRIBUTED} ')}"
        costs[node] += charge.amounts[number]
    metric = ledger.metrics[number]
    calls = invocations_note(metric, ledger.metrics)
    data = {
        "exporter": f"tracemap {__version__}",
        "name": f"{without_controls(metric.name)} ({metric.unit}{calls and f', {calls}'})",
        "results": {node: {"value": cost} for node, cost in costs.items() if cost},
        "gradient": _GRADIENT,
    }
    return pretty_json({graph_id(ledger.graph): data})


def _unattributed_id(reason: UnattributedReason) -> str:
    return f"unattributed:{reason.value}"


def _node(graph: TraceGraph, op: Op, incoming: list[dict[str, str]]) -> dict[str, Any]:
    scopes = scopes_of(graph, op)
    # A node stands for its op in all calls. If the scopes of the calls differ, use only the op's own scope.
    scope = scopes[0] if len(scopes) == 1 else op.scope
    layers = [*([] if isinstance(op.function, Unknown) else [op.function]), *scope]
    sites = graph.sites_of_op.get(op.id, ())
    kernels = dict.fromkeys(graph.site_by_id[site].kernel for site in sites)
    attributes = {
        **{key: str(value) for key, value in op_attributes(graph, op).items()},
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
