"""The map with its costs as a graph: networkx, Graphviz and GraphML."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Final

from tracemap.graph.model import Op, TraceGraph
from tracemap.graph.query import python_frame, scope_text
from tracemap.reports.advice import shown_amount
from tracemap.reports.exports.charges import Charge, Ledger, op_label
from tracemap.sanitize import without_controls
from tracemap.units import UNKNOWN, Unknown

if TYPE_CHECKING:
    import networkx


# ---- network
#
# The map with its costs as a graph of networkx: ops, sites, transfers, kernels and residuals, and what links them.
#
# Costs stand, under the metrics' names, on ops and residuals, whose sums are what was measured; and again on the edges
# from ops to the sites that they work in, and from sites to their kernels, as what flows there.


Attributes = dict[str, str | int]
MEMBERSHIP: Final = "membership"
"""From an op to a site or transfer that it works in."""
CALL: Final = "call"
"""From a site to the kernel that it calls."""
DATA_FLOW: Final = "data-flow"
"""From an op to one that uses its result."""
_OF_OPS: Final = ("name", "file", "line", "column", "function", "scope", "python", "fate")
_OWN: Final = frozenset((*_OF_OPS, *"kind label calls kernel reason initializer shape style".split()))


def network_of(ledger: Ledger, data_flow: Iterable[tuple[str, str]]) -> networkx.DiGraph[str]:
    """The graph, in the order of the map; `data_flow` are edges between ops.

    Nodes go by ids that are safe anywhere: `op12`, `site3`, `transfer0`, `kernel2` (by its place in the map) and
    `residual:REASON`. Every node and edge has a `kind`.
    """
    import networkx

    found: networkx.DiGraph[str] = networkx.DiGraph()
    for node, attributes in _nodes(ledger):
        found.add_node(node, **attributes)
    for maker, user in data_flow:
        found.add_edge(maker, user, kind=DATA_FLOW)
    kernels = {kernel.name: f"kernel{number}" for number, kernel in enumerate(ledger.graph.kernels)}
    for site in ledger.graph.sites:
        found.add_edge(site.id, kernels[site.kernel], kind=CALL)
        for member in site.members:
            found.add_edge(member.op, site.id, kind=MEMBERSHIP)
    for transfer in ledger.graph.transfers:
        found.add_edges_from(((op, transfer.id) for op in transfer.ops), kind=MEMBERSHIP)
    names = metric_names(ledger)
    for charge in ledger.charges:
        for attributes in _charged(found, charge, kernels, ledger):
            for name, amount in zip(names, charge.amounts, strict=True):
                attributes[name] = int(attributes.get(name, 0)) + amount
    return found


def metric_names(ledger: Ledger) -> list[str]:
    """Names of the metrics as attributes, none of which is that of an attribute of another meaning."""
    return told_apart([without_controls(metric.name) for metric in ledger.metrics], _OWN)


def told_apart(names: Iterable[str], taken: Set[str] = frozenset()) -> list[str]:
    """The names, with `metric` before one that is taken or that another one has already."""
    apart: dict[str, None] = {}
    for name in names:
        free = name
        while free in taken or free in apart:
            free = f"metric {free}"
        apart[free] = None
    return list(apart)


def _charged(
    found: networkx.DiGraph[str], charge: Charge, kernels: Mapping[str, str], ledger: Ledger
) -> Iterable[Attributes]:
    """The node and the edges that a charge stands on."""
    if charge.op is None:
        yield found.nodes[f"residual:{charge.place.name.partition(' ')[2]}"]
        return
    yield found.nodes[charge.op.id]
    yield found.edges[charge.op.id, charge.work]
    site = ledger.graph.site_by_id.get(charge.work)
    if site is not None:
        yield found.edges[site.id, kernels[site.kernel]]


def _nodes(ledger: Ledger) -> Iterable[tuple[str, Attributes]]:
    graph, calls = ledger.graph, {site.site: site.calls for site in ledger.attribution.sites}
    for op in graph.ops:
        yield op.id, {"kind": "op", "label": op_label(op), **about_op(graph, op)}
    for site in graph.sites:
        called, at_load = without_controls(site.kernel), int(site.initializer)
        about: Attributes = {"kind": "site", "label": site.id, "kernel": called, "initializer": at_load}
        called_often = calls.get(site.id, 0)
        yield site.id, about if isinstance(called_often, Unknown) else {**about, "calls": called_often}
    for transfer in graph.transfers:
        yield transfer.id, {"kind": "transfer", "label": f"{transfer.id} {transfer.kind}"}
    for number, kernel in enumerate(graph.kernels):
        name = without_controls(kernel.name)
        yield f"kernel{number}", {"kind": "kernel", "label": name, "name": name}
    for row in ledger.attribution.residual:
        label = f"(residual) {row.reason.value}"
        yield f"residual:{row.reason.value}", {"kind": "residual", "label": label, "reason": row.reason.value}


def about_op(graph: TraceGraph, op: Op) -> Attributes:
    """What is known of an op, as texts that have no effect and numbers."""
    frame = python_frame(graph, op)
    python = f"{frame.file}:{frame.line}" if frame else UNKNOWN
    known = (op.name, op.file, op.line, op.column, op.function, scope_text(graph, op), python, op.fate.value)
    return {
        key: without_controls(value) if isinstance(value, str) else value
        for key, value in zip(_OF_OPS, known, strict=True)
        if not isinstance(value, Unknown)
    }


# ---- dot
#
# The graph of a map and its costs in the language of Graphviz.
#
# Written here: the libraries that write it leave quoting to their callers, and quoting is most of it.


_SHAPES: Final = {"op": "box", "site": "ellipse", "transfer": "ellipse", "kernel": "component", "residual": "note"}
_STYLES: Final = {MEMBERSHIP: "solid", CALL: "bold", DATA_FLOW: "dotted"}


def dot(network: networkx.DiGraph[str], ledger: Ledger) -> str:
    """The document: nodes and edges with all their attributes, and what they look like."""
    return "".join(f"{line}\n" for line in _lines(network, ledger))


def _lines(network: networkx.DiGraph[str], ledger: Ledger) -> Iterator[str]:
    yield f"digraph {quoted(without_controls(ledger.graph.module.name))} {{"
    yield '  node [fontname="monospace"];'
    names = _names_here(ledger)
    for node, attributes in network.nodes.data():
        look = {"label": _label(attributes, ledger), "shape": _SHAPES[str(attributes["kind"])]}
        yield f"  {quoted(str(node))} [{_listed({**attributes, **look}, names)}];"
    for tail, head, attributes in network.edges.data():
        look = {"style": _STYLES[attributes["kind"]]}
        yield f"  {quoted(tail)} -> {quoted(head)} [{_listed({**attributes, **look}, names)}];"
    yield "}"


def _names_here(ledger: Ledger) -> dict[str, str]:
    """What metrics are called here, by their names in the network: in a name that Graphviz acts on there is no space.

    It would draw a node as wide as the metric `width` is large.
    """
    plain = told_apart(without_controls(metric.name) for metric in ledger.metrics)
    return {name: f"metric {here}" for name, here in zip(metric_names(ledger), plain, strict=True)}


def _label(attributes: Mapping[str, str | int], ledger: Ledger) -> str:
    """What is read in a node: what it is, and its cost in the first metric."""
    metric = ledger.metrics[0]
    cost = attributes.get(metric_names(ledger)[0])
    shown = [str(attributes["label"])]
    if isinstance(cost, int) and cost:
        shown.append(f"{without_controls(metric.name)} {shown_amount(cost, metric)}")
    return "\n".join(shown)


def _listed(attributes: Attributes, names: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(names.get(name, name))}={quoted(str(value))}" for name, value in attributes.items())


def quoted(text: str) -> str:
    r"""A text in quotes; a line end is written as `\n`, and a backslash of the text stays one.

    >>> print(quoted('a "b" \\N'))
    "a \"b\" \\N"
    """
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


# ---- graphml
#
# The graph of a map and its costs as GraphML, which Gephi, yEd and networkx read.


_NOT_OF_XML: Final = re.compile("[\ud800-\udfff\ufffe\uffff]")


def graphml(network: networkx.DiGraph[str]) -> bytes:
    """The document; networkx writes it with the standard library's XML, whatever else is installed."""
    from networkx.readwrite.graphml import write_graphml_xml

    of_all = (*(of for _, of in network.nodes.data()), *(of for *_, of in network.edges.data()))
    names = list(dict.fromkeys(name for attributes in of_all for name in attributes))
    written = dict(zip(names, told_apart(map(_of_xml, names)), strict=True))
    for attributes in of_all:
        clean = {written[name]: _of_xml(of) if isinstance(of, str) else of for name, of in attributes.items()}
        attributes.clear()
        attributes.update(clean)
    out = io.BytesIO()
    write_graphml_xml(network, out, prettyprint=True, named_key_ids=False)
    return out.getvalue()


def _of_xml(text: str) -> str:
    """The text with a sign in the place of what XML does not have."""
    return _NOT_OF_XML.sub("\ufffd", text)
