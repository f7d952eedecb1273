"""Ops of a dispatch that the compiler raised into another op, so that no location names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from tracemap.core.locations import Location
from tracemap.core.units import UNKNOWN, Integer, split_by_largest_remainder
from tracemap.ir.attributes import product, shape_of
from tracemap.ir.dispatch_bodies import RAISED_OPS, BodyOp, Raised
from tracemap.ir.flow import DispatchRegion
from tracemap.ir.source_model import SourceOperation
from tracemap.map.build.model.kinds import arithmetic_kind
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.build.sites.cost import LOAD, operations_of_source
from tracemap.map.build.sites.members import elements, is_assumed, with_assumed_costs
from tracemap.map.build.sites.owners import Owners
from tracemap.map.model import CallPath, Evidence, Membership, OpId, Site, sort_ops

# ---- paths


def unlocated_member(
    operation: SourceOperation,
    site: Site,
    facts: ModelFacts,
    *,
    operations: Integer,
    traffic: tuple[Integer, Integer],
    root: bool,
) -> Membership:
    """A fused op that no location in a site's body names (evidence: absorbed), with its estimated cost.

    `traffic`: the bytes that it reads and writes.
    """
    path, *others = paths_to(operation, site, facts)
    member = Membership(OpId.of(operation.index), Evidence.ABSORBED, root, operations, *traffic, path, tuple(others))
    return with_assumed_costs(member) if is_assumed(site) else member


def paths_to(operation: SourceOperation, site: Site, facts: ModelFacts) -> tuple[CallPath, ...]:
    """The call paths to an op in a site.

    They are those of a fused op in the same function, else the only chain of calls, if there is only one.
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
# Ops that no location in a body names because the compiler raised them into another op.
#
# JAX's softmax (maximum, subtract, exponential, sum, divide) becomes one op with the location of the divide. That op in
# the body is the evidence; the idiom's shape in the model's def-use graph gives the other ops. If the phase ahead of
# the raising also has them among the operations that were raised, the compiler's own locations show that they are
# fused; otherwise they are absorbed. If the shape does not match (the input is a constant, for example), the raised
# operations decide. Without such an op in a body, an op that is nowhere was simplified away, wherever its users are.


class Idioms:
    """The raised ops in the bodies of sites.

    `owners`: the ops of locations in the bodies; `raised`: the sources of raised operations, as far as known.
    """

    def __init__(self, owners: Owners, facts: ModelFacts, raised: Sequence[Raised]) -> None:
        self._owners = owners
        self._facts = facts
        self._sources = {idiom.location: {op for part in idiom.made_of for op in owners.of(part)} for idiom in raised}

    def of(self, site: Site, body: DispatchRegion | None) -> dict[OpId, Parts]:
        """The idioms that were raised in a site: the last op, which is in the dispatch -> the other ops."""
        locations = (
            [] if body is None else [operation.location for operation in body.body if operation.name in RAISED_OPS]
        )
        paths = {member.op: member.path for member in site.members} if locations else {}
        parts_of: dict[OpId, Parts] = {}
        for location in locations:
            last_ops = [op for op in self._owners.of(location) if op in paths and op not in parts_of]
            parts_of |= {last: self._parts(last, paths[last], location) for last in last_ops}
        return parts_of

    def _parts(self, last: OpId, path: CallPath, location: Location) -> Parts:
        located = self._sources.get(location, set()) - {last}
        matched = {OpId.of(part) for part in self._facts.softmaxes.parts(last.number, path)}
        parts = matched or {op for op in located if op.number not in self._facts.moves}
        return {op: Evidence.FUSED if op in located else Evidence.ABSORBED for op in sort_ops(parts)}


Parts = Mapping[OpId, Evidence]
"""The ops of an idiom except for the last, in order, with the evidence for each."""


def add_raised(
    sites: Sequence[Site], bodies: Sequence[DispatchRegion | None], idioms: Idioms, facts: ModelFacts
) -> tuple[Site, ...]:
    """Add the ops that were raised in sites, after the ops that locations name; `bodies`: those of the sites."""
    pairs = zip(sites, bodies, strict=True)
    return tuple(_with_parts(site, body, idioms.of(site, body), facts) for site, body in pairs)


Works = Mapping[OpId, Mapping[str, OpId]]
"""The last op of a raised idiom -> kind of work in the idiom (`kinds.arithmetic_kind`) -> the op that does it."""


def raised_ops_by_work(site: Site, body: DispatchRegion | None, idioms: Idioms, facts: ModelFacts) -> Works:
    """The ops for each kind of work in the raised ops of a site; empty if there are none.

    The compiler lowers a raised op to all of that work again, with the location of the last op.
    """
    return {
        last: _op_of_work([*(part.number for part in parts), last.number], facts)
        for last, parts in idioms.of(site, body).items()
        if parts
    }


def _op_of_work(indices: Sequence[int], facts: ModelFacts) -> dict[str, OpId]:
    """Kind of work -> the first op that does it, itself or in a part."""
    op_of_work: dict[str, OpId] = {}
    for index in indices:
        parts = facts.parts_of.get(index) or [facts.operations[index]]
        for part in parts:
            op_of_work.setdefault(arithmetic_kind(part.name), OpId.of(index))
    op_of_work.pop("", None)
    return op_of_work


def _with_parts(site: Site, body: DispatchRegion | None, idioms: Mapping[OpId, Parts], facts: ModelFacts) -> Site:
    """Add a raised idiom's ops, with costs taken from those of the root and the last op, which include the raised op.

    So the totals stay the same.
    """
    members = {member.op for member in site.members}
    parts = {op: evidence for parts in idioms.values() for op, evidence in parts.items() if op not in members}
    root = site.root
    if root is None or body is None or not parts:
        return site
    bytes_read = _bytes_of_readers(site, body, idioms, facts)
    remaining = root.operations
    new_members = []
    operations = {op: facts.operations[op.number] for op in sort_ops(parts)}
    widest = _widest(operations.values(), facts, with_assumed_sizes=is_assumed(site))
    for op, operation in operations.items():
        estimate = product((widest, operations_of_source(operation.name)))
        cost: Integer = UNKNOWN
        if remaining is not UNKNOWN and estimate is not UNKNOWN:
            cost = min(estimate, remaining)
            remaining -= cost
        traffic = bytes_read.get(op, 0), 0
        member = unlocated_member(operation, site, facts, operations=cost, traffic=traffic, root=False)
        new_members.append(structs.replace(member, evidence=parts[op]))
    members_before = (
        structs.replace(
            member,
            operations=remaining if member.root else member.operations,
            bytes_read=bytes_read.get(member.op, member.bytes_read),
        )
        for member in site.members
    )
    return structs.replace(site, members=(*members_before, *new_members))


def _bytes_of_readers(
    site: Site, body: DispatchRegion, idioms: Mapping[OpId, Parts], facts: ModelFacts
) -> dict[OpId, int]:
    """Split the bytes that an idiom reads evenly over the parts that use its input; the last op keeps the rest.

    Empty if the bytes are unknown, or if other operations in the kernel read the input, too.
    """
    last = next((member for member in site.members if member.op in idioms), None)
    bytes_read = _bytes_read(body.body)
    if last is None or is_assumed(site) or last.bytes_read is UNKNOWN:
        return {}
    if bytes_read is UNKNOWN or bytes_read > last.bytes_read:
        return {}
    members = {member.op for member in site.members}  # their bytes are known already
    readers = [op for op in _readers(last, idioms[last.op], facts) if op not in members]
    if not readers:
        return {}
    shares = split_by_largest_remainder(bytes_read, [1] * len(readers))
    return {last.op: last.bytes_read - bytes_read, **dict(zip(readers, shares, strict=True))}


def _bytes_read(body: Sequence[BodyOp]) -> Integer:
    """Bytes that a body's only raised op reads; unknown if there are several, or other operations read them, too."""
    raised = [op for op in body if op.name in RAISED_OPS]
    producer = raised[0].operands[0].producer if len(raised) == 1 else -1
    users = [op for op in body if any(operand.producer == producer for operand in op.operands)]
    is_loaded = producer >= 0 and body[producer].name == LOAD
    return raised[0].operands[0].shape.bytes if is_loaded and users == raised else UNKNOWN


def _readers(last: Membership, parts: Parts, facts: ModelFacts) -> list[OpId]:
    """The parts of an idiom that use its input."""
    idiom_ops = {last.op.number, *(part.number for part in parts)}

    def reads(part: OpId) -> bool:
        inputs = facts.softmaxes.inputs(facts.operations[part.number], last.path)
        return any(maker is None or maker.index not in idiom_ops for maker in map(facts.origins.maker, inputs))

    return [part for part in parts if reads(part)]


def _widest(operations: Iterable[SourceOperation], facts: ModelFacts, *, with_assumed_sizes: bool) -> Integer:
    """The number of elements of the largest tensor that an idiom's ops make or read; each op works on all of them.

    `with_assumed_sizes`: use assumed sizes for dynamic ones. Types of arguments of regions are unknown.
    """
    types = {facts.model.type_of(value) for operation in operations for value in operation.operands[:1]}
    types |= {result for operation in operations for result in operation.results[:1]}
    count = elements if with_assumed_sizes else product
    sizes = [count(shape_of(type_text).extents) for type_text in types if type_text]
    return UNKNOWN if UNKNOWN in sizes else max((size for size in sizes if size is not UNKNOWN), default=UNKNOWN)
