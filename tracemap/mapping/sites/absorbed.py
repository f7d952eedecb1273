"""Members that no location in a body tells: ops that the compiler raised into another op.

JAX's softmax (maximum, subtract, exponential, sum, divide) becomes one op that carries the location of the divide
alone. That op in the body is the evidence; the idiom's shape in the model's def-use graph tells what it stands for.
Where the phase before it was raised shows the same ops on the way that it replaced, they are fused in it by the
compiler's own locations; else it is the shape alone that tells, and they are absorbed.
Where no such op stands in a body, an op that is found nowhere was simplified away, be its uses where they may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from tracemap.graph.ops import Evidence, OpId
from tracemap.graph.program import Site
from tracemap.ir.flow import DispatchRegion
from tracemap.ir.raising import RAISED, Raised
from tracemap.ir.source import SourceOperation
from tracemap.ir.types import product, shape_of
from tracemap.locations import Location
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import work_of
from tracemap.mapping.sites.amounts import elements, is_assumed
from tracemap.mapping.sites.cost import operations_of_source
from tracemap.mapping.sites.owners import Owners
from tracemap.mapping.sites.paths import absorbed_member
from tracemap.units import UNKNOWN, Integer


def add_absorbed(
    sites: Sequence[Site],
    bodies: Sequence[DispatchRegion | None],
    owners: Owners,
    facts: ModelFacts,
    raised: Sequence[Raised],
) -> tuple[Site, ...]:
    """The sites with the members that no location in their bodies tells, behind the others, in the order of the model.

    Args:
        sites: with the members that locations tell.
        bodies: of the sites, in order.
        owners: of what stands in the bodies.
        facts: of the model.
        raised: what operations of the bodies were made of, as far as it is known.
    """
    made_of = {each.location: {op for part in each.made_of for op in owners.of(part)} for each in raised}
    found = zip(sites, bodies, strict=True)
    return tuple(
        site if body is None else _with_absorbed(site, _raised(site, body, owners, facts, made_of), facts)
        for site, body in found
    )


_Parts = dict[OpId, Evidence]
"""Of ops that are members of a site as parts of what was raised: how that is known."""


def _raised(
    site: Site, body: DispatchRegion, owners: Owners, facts: ModelFacts, made_of: Mapping[Location, set[OpId]]
) -> _Parts:
    """The ops that are parts of an idiom which was raised in a site and ends in a member of it, in order."""
    members = {member.op for member in site.members}
    parts = {OpId.of(part) for found in _idioms(site, body, owners, facts).values() for part in found} - members
    told = {op for each in body.body if each.name in RAISED for op in made_of.get(each.location, ())}
    return {op: Evidence.FUSED if op in told else Evidence.ABSORBED for op in sorted(parts, key=lambda op: op.number)}


def _idioms(site: Site, body: DispatchRegion, owners: Owners, facts: ModelFacts) -> dict[OpId, frozenset[int]]:
    """Of each idiom that was raised in a site the last op, a member, and the indices of the others."""
    paths = {member.op: member.path for member in site.members}
    raised = [op for op in body.body if op.name in RAISED]
    lasts = dict.fromkeys(owner for op in raised for owner in owners.of(op.location) if owner in paths)
    return {last: facts.softmaxes.parts(last.number, paths[last]) for last in lasts}


Works = Mapping[OpId, Mapping[str, OpId]]
"""Of the last op of an idiom that was raised: by the name of each work in it (`kinds.work_of`) the op that does it."""


def works_of_raised(site: Site, body: DispatchRegion | None, owners: Owners, facts: ModelFacts) -> Works:
    """Which op of the model does which work of what was raised in a site; empty where nothing was.

    The compiler lowers a raised op to all of that work again, and gives it the location of the last op.
    """
    if body is None:
        return {}
    return {
        last: _works([*sorted(parts), last.number], facts)
        for last, parts in _idioms(site, body, owners, facts).items()
        if parts
    }


def _works(indices: Sequence[int], facts: ModelFacts) -> dict[str, OpId]:
    """By the name of each work the first op that does it, by itself or in a part."""
    found: dict[str, OpId] = {}
    for index in indices:
        parts = facts.parts_of.get(index) or [facts.operations[index]]
        for part in parts:
            found.setdefault(work_of(part.name), OpId.of(index))
    found.pop("", None)
    return found


def _with_absorbed(site: Site, parts: _Parts, facts: ModelFacts) -> Site:
    """What absorbed members cost is taken from the root's estimate, in which the raised op's work was counted.

    So the sum stays.
    """
    root = site.root
    if root is None or not parts:
        return site
    left = root.operations
    added = []
    for op, evidence in parts.items():
        operation = facts.operations[op.number]
        estimate = _estimate(operation, facts, assumed=is_assumed(site))
        cost: Integer = UNKNOWN
        if left is not UNKNOWN and estimate is not UNKNOWN:
            cost = min(estimate, left)
            left -= cost
        member = absorbed_member(operation, site, facts, operations=cost, traffic=0, root=False)
        added.append(structs.replace(member, evidence=evidence))
    members = [structs.replace(member, operations=left) if member.root else member for member in site.members]
    return structs.replace(site, members=(*members, *added))


def _estimate(operation: SourceOperation, facts: ModelFacts, *, assumed: bool) -> Integer:
    """Operations of an op as written: per element of its result, or of its first operand where that has more of them.

    A reduction does its work for each element that it reads. `assumed`: sizes that are not known before are.
    """
    count = elements if assumed else product
    shapes = [count(shape_of(result).extents) for result in operation.results[:1]]
    if not shapes:
        return 0
    read = [count(shape_of(facts.model.type_of(operand)).extents) for operand in operation.operands[:1]]
    sizes = [size for size in (*shapes, *read) if size is not UNKNOWN]
    most = max(sizes) if len(sizes) == len(shapes) + len(read) else UNKNOWN
    return product((most, operations_of_source(operation.name)))
