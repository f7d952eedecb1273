"""Kernels that only move elements, of ops that move elements and lost their place in the program.

The compiler moves elementwise work to where there is less of it: the logarithm of a broadcast is taken before the
broadcast. What is left behind it, a kernel that writes each element that it reads to other places, then carries the
location of the logarithm, which has a kernel of its own. In the model the op that moved the elements stands before.
Transposes are moved the other way, too, in front of reshapes, and then carry the location of what they move: there the
op stands behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from msgspec import structs

from tracemap.graph.program import Membership, Site
from tracemap.ir.bodies import BodyOp
from tracemap.ir.flow import DispatchRegion
from tracemap.ir.source import SourceOperation
from tracemap.ir.types import Shape, add, shape_of
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import only_renames
from tracemap.mapping.sites.cost import LOAD, STORE
from tracemap.mapping.sites.evidence import only_moves_elements
from tracemap.mapping.sites.paths import untold_member
from tracemap.units import UNKNOWN, Integer

_MOST_STEPS = 32
"""How many ops before or behind a member are looked at for the one that moves."""


def give_to_moves(
    sites: Sequence[Site], bodies: Sequence[DispatchRegion | None], facts: ModelFacts
) -> tuple[Site, ...]:
    """The sites, of which those that only move elements have the op as member that moves them in the model.

    Args:
        sites: with the members that locations tell.
        bodies: of the sites, in order.
        facts: of the model.
    """
    # What has a kernel of its own has not lost its place.
    placed = frozenset(member.op.number for site in sites for member in site.members)
    return tuple(
        site if body is None or not only_moves_elements(body.body) else _given(site, body.body, placed, facts)
        for site, body in zip(sites, bodies, strict=True)
    )


def _given(site: Site, body: Sequence[BodyOp], placed: Set[int], facts: ModelFacts) -> Site:
    """A site that only moves elements; as it was where its members do so, or nothing before them does."""
    if any(member.op.number in facts.moves for member in site.members):
        return site
    loaded = {op.results[0].elements for op in body if op.name == LOAD}
    stored = {op.operands[0].shape.elements for op in body if op.name == STORE}
    if len(stored) != 1 or UNKNOWN in loaded | stored:
        return site
    elements = stored.pop()
    for member in site.members:
        for move in _moves_around(facts.operations[member.op.number], elements, facts):
            if move.index not in placed and _type_before(move, facts).elements in loaded:
                return structs.replace(site, members=(_sole_member(move, site, facts),))
    return site


def _moves_around(operation: SourceOperation, elements: Integer, facts: ModelFacts) -> Iterator[SourceOperation]:
    """The ops that move elements between which and an op there is work on each element of so many alone.

    Those before it, nearest first, then those behind it.
    """

    def makes_as_many(index: int) -> bool:
        return any(shape_of(result).elements == elements for result in facts.operations[index].results)

    for along in (facts.dataflow.behind, facts.dataflow.ahead):
        for index in along(operation.index, makes_as_many, _MOST_STEPS):
            found = facts.operations[index]
            if index in facts.moves and _rearranges(found, facts):
                yield found


def _rearranges(operation: SourceOperation, facts: ModelFacts) -> bool:
    """Whether an op puts elements elsewhere: reshapes, which leave them in their order, have other extents."""
    if only_renames(operation):
        return False
    before, after = _type_before(operation, facts), shape_of(operation.results[0])
    return before.elements != after.elements or _extents(before) == _extents(after)


def _extents(shape: Shape) -> list[str]:
    return sorted(str(extent) for extent in shape.extents if extent != 1)


def _type_before(operation: SourceOperation, facts: ModelFacts) -> Shape:
    return shape_of(facts.model.type_of(operation.operands[0])) if operation.operands else Shape((UNKNOWN,), UNKNOWN)


def _sole_member(operation: SourceOperation, site: Site, facts: ModelFacts) -> Membership:
    """The member that has what all members were estimated to cost."""
    operations: Integer = 0
    traffic: Integer = 0
    for member in site.members:
        operations, traffic = add(operations, member.operations), add(traffic, member.bytes)
    return untold_member(operation, site, facts, operations=operations, traffic=traffic, root=True)
