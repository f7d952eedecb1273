"""The graph of a map and its costs as GraphML, which Gephi, yEd and networkx read."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import networkx

_NOT_OF_XML: Final = re.compile("[\ud800-\udfff\ufffe\uffff]")


def graphml(network: networkx.DiGraph[str]) -> bytes:
    """The document; networkx writes it with the standard library's XML, whatever else is installed."""
    from networkx.readwrite.graphml import write_graphml_xml

    for attributes in (*(of for _, of in network.nodes.data()), *(of for *_, of in network.edges.data())):
        for name, value in attributes.items():
            if isinstance(value, str):
                attributes[name] = _NOT_OF_XML.sub("\ufffd", value)
    out = io.BytesIO()
    write_graphml_xml(network, out, prettyprint=True, named_key_ids=False)
    return out.getvalue()
