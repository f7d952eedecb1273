"""Data flow between the ops of a bundle: its model is parsed for it, as the map does not keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracemap.errors import ToolMissing, UsageInvalid
from tracemap.session.damage import damage_named

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle
    from tracemap.mapping.model.edges import Edge

_OR_WITHOUT = "or leave edges of data flow out with --no-data-flow"


def data_flow_of(bundle: Bundle) -> tuple[Edge, ...]:
    """The edges between ops of the bundle's map.

    Raises:
        ToolMissing: the compiler, which parses models, is not installed.
        UsageInvalid: the bundle does not keep its model.
        ModelInvalid: the installed compiler does not parse it.
        BundleInvalid: it cannot be read.
    """
    model = bundle.model()
    if not model:
        raise UsageInvalid(f"{bundle.path}: does not keep its model; build it without --no-sources, {_OR_WITHOUT}")
    try:
        from tracemap.mapping.model.edges import data_flow
    except ImportError as error:
        raise ToolMissing(
            f"the model is parsed by IREE's compiler, which is not installed: pip install iree-base-compiler, "
            f"{_OR_WITHOUT}"
        ) from error
    known = bundle.graph.op_by_id
    with damage_named(bundle):
        edges = data_flow(model)
    return tuple(edge for edge in edges if edge[0] in known and edge[1] in known)
