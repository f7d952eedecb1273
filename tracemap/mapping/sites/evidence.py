"""What the operations of a site's body prove: by whose location alone or with others, and by which kind of operation.

An operation that does work (an arithmetic operation in a region, a product, a sort) was made for the op that its
location names. What only frames such work (loads, stores, reshapes, the structured operation around a region that tells
of itself) gets the locations of whatever was folded into its shape or its indexing, beside its own: a reshape that
passes a `linalg.generic` leaves it the location of the op on the other side, which has a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from tracemap.graph.ops import Evidence, OpId
from tracemap.ir.bodies import BodyOp
from tracemap.ir.flow import DispatchRegion
from tracemap.locations import Location
from tracemap.mapping.sites.owners import Owners

_SILENT = frozenset(
    """
    arith.constant flow.return iree_tensor_ext.dispatch.workload.ordinal tensor.dim tensor.empty
    """.split()
)
"""Body ops whose locations say nothing: values shared by CSE between sites, shapes, and the end of the body."""

_FRAMING = frozenset(
    """
    iree_linalg_ext.yield iree_tensor_ext.dispatch.tensor.load iree_tensor_ext.dispatch.tensor.store
    linalg.index linalg.yield tensor.cast tensor.collapse_shape tensor.expand_shape tensor.extract_slice
    """.split()
)
"""Body ops that hand values on, for the work that stands between them."""

_INDEXING = ("affine.", "arith.index_cast")
"""What a body does with sizes before it works; in regions the same makes elements of positions."""
FILL = "linalg.fill"
SHOWS_ITS_WORK = ("linalg.generic", "linalg.map", "linalg.reduce")
"""Structured ops of which all work stands in their region; of others (products, sorts) the op itself says more."""


_MOVING = frozenset({*SHOWS_ITS_WORK, "linalg.broadcast", "linalg.copy", "linalg.transpose"}) - {"linalg.reduce"}
"""Structured ops that do nothing but move elements where their region, if they have one, holds no work."""


def find_evidence(region: DispatchRegion, owners: Owners, moves: Set[int]) -> dict[OpId, Evidence]:
    """The ops that a site's body names, in the order in which it first shows them, and by what evidence.

    `moves`: the indices of the ops that only move elements. What the compiler adds for several ops in a row is the
    first one's that computes: the others mostly read what those before them made.
    """
    found = _evidence(region, owners, moves)
    if not region.added or not found:
        return found
    first = min(found, key=lambda op: (op.number in moves, op.number))
    return {first: found[first]}


def _evidence(region: DispatchRegion, owners: Owners, moves: Set[int]) -> dict[OpId, Evidence]:
    """The ops that a site's body names, in the order in which it first shows them.

    `moves`: the indices of the ops that only move elements: they have no operation that does work, so a framing one
    that is theirs alone is all that there can be of them. Of other ops a framing operation tells only where nothing
    that works does, a fill only where nothing else does, and the site's own location only where nothing in it does.
    """
    body = telling(region.body)
    framing = [op.location for op in body if op.name != FILL]
    found = _named([op.location for op in working(body, owners)], owners)
    if found:
        alone = _named(framing, owners)
        moved = {op for op, kind in alone.items() if kind is Evidence.LOCATED and op.number in moves}
        return {op: found.get(op, kind) for op, kind in alone.items() if op in found or op in moved}
    fills = [op.location for op in body if op.name == FILL]
    # The weaker only where the stronger tell nothing: a fill beside other work is a part of that work.
    for locations in (framing, fills, [region.location]):
        found = found or _named(locations, owners)
    return found


def telling(body: Sequence[BodyOp]) -> list[BodyOp]:
    """The operations whose locations say something, fills last."""
    told = [op for op in body if op.name not in _SILENT]
    return sorted(told, key=lambda op: op.name == FILL)


def working(body: Sequence[BodyOp], owners: Owners) -> list[BodyOp]:
    """Of a body the operations that do work."""
    body = telling(body)
    untold = {op.parent for op in body if _is_work(op) and not owners.of(op.location)}
    holding = {op.parent for op in body if _is_work(op)}
    return [
        op
        for op in body
        if _is_work(op) and (op.name not in SHOWS_ITS_WORK or op.index not in holding or op.index in untold)
    ]


def only_moves_elements(body: Sequence[BodyOp]) -> bool:
    """Whether all that a body does is to write what it reads to other places."""
    work = [op for op in body if op.name not in _SILENT and _is_work(op)]
    return bool(work) and all(op.parent < 0 and op.name in _MOVING for op in work)


def _is_work(op: BodyOp) -> bool:
    if op.parent < 0 and op.name.startswith(_INDEXING):
        return False
    return op.name != FILL and op.name not in _FRAMING


def _named(locations: Sequence[Location], owners: Owners) -> dict[OpId, Evidence]:
    """The ops that the locations name: alone on one of them is stronger than one of several."""
    found: dict[OpId, Evidence] = {}
    for location in locations:
        ops = owners.of(location)
        for op in ops:
            if len(ops) == 1:
                found[op] = Evidence.LOCATED
            else:
                found.setdefault(op, Evidence.FUSED)
    return found
