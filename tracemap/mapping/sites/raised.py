"""Ops in a site that the compiler raised into others, so that no location names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from tracemap.graph.model import CallPath, Evidence, Membership, OpId, Site
from tracemap.ir.attributes import product, shape_of
from tracemap.ir.bodies import BodyOp
from tracemap.ir.flow import DispatchRegion
from tracemap.ir.raising import RAISED, Raised
from tracemap.ir.source import SourceOperation
from tracemap.locations import Location
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import work_of
from tracemap.mapping.sites.cost import LOAD, operations_of_source
from tracemap.mapping.sites.members import assumed, elements, is_assumed
from tracemap.mapping.sites.owners import Owners
from tracemap.units import UNKNOWN, Integer, split_by_largest_remainder

# ---- paths
#
# The calls that lead to ops which no location places.


def untold_member(
    operation: SourceOperation, site: Site, facts: ModelFacts, *, operations: Integer, traffic: Integer, root: bool
) -> Membership:
    """A member of a site that no location in its body names, with what it is estimated to cost there: absorbed."""
    path, *others = paths_to(operation, site, facts)
    member = Membership(OpId.of(operation.index), Evidence.ABSORBED, root, operations, traffic, path, tuple(others))
    return assumed(member) if is_assumed(site) else member


def paths_to(operation: SourceOperation, site: Site, facts: ModelFacts) -> tuple[CallPath, ...]:
    """The calls that lead to an op in a site, one way or several.

    They are those of a member of the same function in the site, else the only chain of calls that there is.
    """
    for member in site.members:
        if facts.operations[member.op.number].function == operation.function:
            return member.paths
    chain: list[OpId] = []
    while isinstance(operation.function, str) and len(facts.calls.of(operation.function)) == 1:
        operation = facts.calls.of(operation.function)[0]
        if OpId.of(operation.index) in chain:
            break
        chain.append(OpId.of(operation.index))
    return (tuple(reversed(chain)),)


# ---- raised
#
# Members that no location in a body tells: ops that the compiler raised into another op.
#
# JAX's softmax (maximum, subtract, exponential, sum, divide) becomes one op that carries the location of the divide
# alone. That op in the body is the evidence; the idiom's shape in the model's def-use graph tells what it stands for.
# Where the phase before it was raised shows the same ops on the way that it replaced, they are fused in it by the
# compiler's own locations; else it is the shape alone that tells, and they are absorbed. Where the shape tells nothing
# (the input is a constant, say), what stands on the way does. Where no such op stands in a body, an op that is found
# nowhere was simplified away, be its uses where they may.


class Idioms:
    """What was raised in the bodies of sites.

    `owners`: of what stands in the bodies; `raised`: what operations were made of, as far as it is known.
    """

    def __init__(self, owners: Owners, facts: ModelFacts, raised: Sequence[Raised]) -> None:
        self._owners = owners
        self._facts = facts
        self._made_of = {each.location: {op for part in each.made_of for op in owners.of(part)} for each in raised}

    def of(self, site: Site, body: DispatchRegion | None) -> dict[OpId, Parts]:
        """Of each idiom that was raised in a site the last op, which is a member, and the others."""
        raised = [] if body is None else [operation.location for operation in body.body if operation.name in RAISED]
        paths = {member.op: member.path for member in site.members} if raised else {}
        found: dict[OpId, Parts] = {}
        for location in raised:
            lasts = [op for op in self._owners.of(location) if op in paths and op not in found]
            found |= {last: self._parts(last, paths[last], location) for last in lasts}
        return found

    def _parts(self, last: OpId, path: CallPath, location: Location) -> Parts:
        told = self._made_of.get(location, set()) - {last}
        shaped = {OpId.of(part) for part in self._facts.softmaxes.parts(last.number, path)}
        parts = shaped or {op for op in told if op.number not in self._facts.moves}
        return {op: Evidence.FUSED if op in told else Evidence.ABSORBED for op in sorted(parts, key=_number)}


Parts = Mapping[OpId, Evidence]
"""The ops of an idiom, in order, without the last: how each is known to be one."""


def _number(op: OpId) -> int:
    return op.number


def add_raised(
    sites: Sequence[Site], bodies: Sequence[DispatchRegion | None], idioms: Idioms, facts: ModelFacts
) -> tuple[Site, ...]:
    """The sites with the ops that were raised in them, behind the members that locations tell.

    Args:
        sites: with the members that locations tell.
        bodies: of the sites, in order.
        idioms: what was raised.
        facts: of the model.
    """
    pairs = zip(sites, bodies, strict=True)
    return tuple(_with_parts(site, body, idioms.of(site, body), facts) for site, body in pairs)


Works = Mapping[OpId, Mapping[str, OpId]]
"""Of the last op of an idiom that was raised: by the name of each work in it (`kinds.work_of`) the op that does it."""


def works_of_raised(site: Site, body: DispatchRegion | None, idioms: Idioms, facts: ModelFacts) -> Works:
    """Which op of the model does which work of what was raised in a site; empty where nothing was.

    The compiler lowers a raised op to all of that work again, and gives it the location of the last op.
    """
    return {
        last: _works([*(part.number for part in parts), last.number], facts)
        for last, parts in idioms.of(site, body).items()
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


def _with_parts(site: Site, body: DispatchRegion | None, idioms: Mapping[OpId, Parts], facts: ModelFacts) -> Site:
    """What such members cost is taken from the estimates of the root and the last, where the raised op was counted.

    So the sums stay.
    """
    members = {member.op for member in site.members}
    parts = {op: evidence for parts in idioms.values() for op, evidence in parts.items() if op not in members}
    root = site.root
    if root is None or body is None or not parts:
        return site
    moved = _bytes_of_readers(site, body, idioms, facts)
    left = root.operations
    added = []
    operations = {op: facts.operations[op.number] for op in sorted(parts, key=_number)}
    widest = _widest(operations.values(), facts, assumed=is_assumed(site))
    for op, operation in operations.items():
        estimate = product((widest, operations_of_source(operation.name)))
        cost: Integer = UNKNOWN
        if left is not UNKNOWN and estimate is not UNKNOWN:
            cost = min(estimate, left)
            left -= cost
        member = untold_member(operation, site, facts, operations=cost, traffic=moved.get(op, 0), root=False)
        added.append(structs.replace(member, evidence=parts[op]))
    before = (
        structs.replace(each, operations=left if each.root else each.operations, bytes=moved.get(each.op, each.bytes))
        for each in site.members
    )
    return structs.replace(site, members=(*before, *added))


def _bytes_of_readers(
    site: Site, body: DispatchRegion, idioms: Mapping[OpId, Parts], facts: ModelFacts
) -> dict[OpId, int]:
    """What an idiom reads is the reading of the parts that use it, in even parts: theirs, and what is left to the last.

    Nothing where that is not known, or where others in the kernel read it, too.
    """
    last = next((member for member in site.members if member.op in idioms), None)
    read = _bytes_read(body.body)
    if last is None or is_assumed(site) or last.bytes is UNKNOWN or read is UNKNOWN or read > last.bytes:
        return {}
    members = {member.op for member in site.members}  # whose bytes are known already
    readers = [op for op in _readers(last, idioms[last.op], facts) if op not in members]
    if not readers:
        return {}
    shares = split_by_largest_remainder(read, [1] * len(readers))
    return {last.op: last.bytes - read, **dict(zip(readers, shares, strict=True))}


def _bytes_read(body: Sequence[BodyOp]) -> Integer:
    """What the only raised op of a body reads from memory; unknown where there are several, or others read it, too."""
    raised = [op for op in body if op.name in RAISED]
    producer = raised[0].operands[0].producer if len(raised) == 1 else -1
    users = [op for op in body if any(operand.producer == producer for operand in op.operands)]
    is_loaded = producer >= 0 and body[producer].name == LOAD
    return raised[0].operands[0].shape.bytes if is_loaded and users == raised else UNKNOWN


def _readers(last: Membership, parts: Parts, facts: ModelFacts) -> list[OpId]:
    """Of the parts of an idiom those that use what it reads."""
    inside = {last.op.number, *(part.number for part in parts)}

    def reads(part: OpId) -> bool:
        inputs = facts.softmaxes.inputs(facts.operations[part.number], last.path)
        return any(maker is None or maker.index not in inside for maker in map(facts.origins.maker, inputs))

    return [part for part in parts if reads(part)]


def _widest(operations: Iterable[SourceOperation], facts: ModelFacts, *, assumed: bool) -> Integer:
    """The elements of the largest tensor that the ops of idioms make or read: each works on all of these.

    `assumed`: sizes that are not known before are. What an argument of a region is like nobody tells.
    """
    types = {facts.model.type_of(value) for operation in operations for value in operation.operands[:1]}
    types |= {result for operation in operations for result in operation.results[:1]}
    count = elements if assumed else product
    sizes = [count(shape_of(each).extents) for each in types if each]
    return UNKNOWN if UNKNOWN in sizes else max((size for size in sizes if size is not UNKNOWN), default=UNKNOWN)
