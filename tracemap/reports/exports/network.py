"""The map with its costs as a graph of networkx: ops, sites, transfers, kernels and residuals, and what links them.

Costs stand, under the metrics' names, on ops and residuals, whose sums are what was measured; and again on the edges
from ops to the sites that they work in, and from sites to their kernels, as what flows there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Final

from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import Op
from tracemap.graph.query import python_frame, scope_text
from tracemap.inert import without_controls
from tracemap.reports.exports.charges import Charge, Ledger, op_label
from tracemap.units import UNKNOWN, Unknown

if TYPE_CHECKING:
    import networkx

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
