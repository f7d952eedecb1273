"""The graph of a map and its costs as GraphML, which Gephi, yEd and networkx read."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Final

from tracemap.reports.exports.network import told_apart

if TYPE_CHECKING:
    import networkx

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
