"""The graph of a map and its costs in the language of Graphviz.

Written here: the libraries that write it leave quoting to their callers, and quoting is most of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tracemap.inert import without_controls
from tracemap.reports.basis import shown_amount
from tracemap.reports.exports.charges import Ledger
from tracemap.reports.exports.network import CALL, DATA_FLOW, MEMBERSHIP, Attributes, metric_names, told_apart

if TYPE_CHECKING:
    import networkx

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
