"""Horizontal fusion: products computed in one loop because they share an operand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from tracemap.graph.model import OpId, Site, Step, in_order
from tracemap.ir.attributes import add, product
from tracemap.ir.bodies import BodyOp
from tracemap.ir.flow import DispatchRegion
from tracemap.ir.source import SourceOperation
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.origins import Origin
from tracemap.mapping.sites.cost import MULTIPLIES
from tracemap.mapping.sites.owners import Owners
from tracemap.mapping.sites.raised import paths_to, untold_member
from tracemap.units import UNKNOWN, Integer, split_by_largest_remainder

Group = tuple[OpId, ...]
"""Ops of the model that one operation computes: that which it is located at, then the others, in the model's order."""


def groups_beside(
    sites: Sequence[Site], bodies: Sequence[DispatchRegion | None], owners: Owners, facts: ModelFacts
) -> tuple[Group, ...]:
    """Of each site the ops that are computed side by side; empty where there are none."""
    costs: dict[OpId, dict[str, Integer]] = {}
    for site in sites:
        for member in site.members:
            costs.setdefault(member.op, {})[site.id] = member.operations
    pairs = zip(sites, bodies, strict=True)
    return tuple(() if body is None else _group(site, body.body, owners, facts, costs) for site, body in pairs)


def add_beside(sites: Sequence[Site], groups: Sequence[Group], facts: ModelFacts) -> tuple[Site, ...]:
    """The sites, of which those that compute ops side by side have all of these as members, with equal costs."""
    pairs = zip(sites, groups, strict=True)
    return tuple(_shared(site, group, facts) if group else site for site, group in pairs)


def with_beside(steps: Sequence[Step], groups: Sequence[Group]) -> tuple[Step, ...]:
    """The steps of a kernel, of which those of the first of a group are of all of it. `groups`: at its sites."""
    whole = {group[0]: group for group in groups if group}

    def ops(step: Step) -> tuple[OpId, ...]:
        return in_order(each for op in step.ops for each in whole.get(op, (op,)))

    return tuple(structs.replace(step, ops=ops(step)) for step in steps)


def _group(
    site: Site,
    body: Sequence[BodyOp],
    owners: Owners,
    facts: ModelFacts,
    costs: Mapping[OpId, Mapping[str, Integer]],
) -> Group:
    members = {member.op for member in site.members}
    for op in body:
        count = _products(op, body, owners)
        first = [owner for owner in owners.of(op.location) if owner in members]
        if count < 2 or len(first) != 1:
            continue
        each = product((2, op.iterations))
        others = [
            other
            for other in map(OpId.of, _sharing(first[0], site, facts))
            if not _computed_elsewhere(costs.get(other, {}), site, each)
        ]
        if len(others) == count - 1:
            return (first[0], *others)
    return ()


def _products(op: BodyOp, body: Sequence[BodyOp], owners: Owners) -> int:
    """How many sums of products an operation computes of which nothing tells whose they are."""
    if len(op.results) < 2 or op.iterations in {result.elements for result in op.results} - {UNKNOWN}:
        return 0
    inside = (each for each in body if each.parent == op.index and each.name in MULTIPLIES)
    return sum(1 for each in inside if not owners.of(each.location))


def _sharing(first: OpId, site: Site, facts: ModelFacts) -> list[int]:
    """The ops that are of the kind of another, in its function, and compute with one of its operands as it does."""
    wanted = facts.operations[first.number]
    own = _operands(wanted, site, facts)

    def shares(other: SourceOperation) -> bool:
        if (other.name, other.results, other.function) != (wanted.name, wanted.results, wanted.function):
            return False
        return any(one == two for one, two in zip(own, _operands(other, site, facts), strict=False))

    candidates = (op for op in facts.ops if op.index != wanted.index and op.index in facts.dataflow.live)
    return [op.index for op in candidates if op.index not in facts.twins and shares(op)]


def _operands(operation: SourceOperation, site: Site, facts: ModelFacts) -> list[object]:
    """Where the operands of an op come from; what is a constant, which many ops have, is like no other."""

    def is_constant(origin: Origin) -> bool:
        maker = facts.origins.maker(origin)
        return maker is not None and maker.index in facts.dataflow.constant

    origins = facts.origins.operands(operation, paths_to(operation, site, facts)[0])
    return [object() if is_constant(origin) else origin for origin in origins]


def _computed_elsewhere(costs: Mapping[str, Integer], site: Site, operations: Integer) -> bool:
    """Whether an op does so much work in another site; what adds a bias to a product does less."""
    others = [cost for place, cost in costs.items() if place != site.id]
    return any(cost is UNKNOWN or operations is UNKNOWN or cost >= operations for cost in others)


def _shared(site: Site, group: Group, facts: ModelFacts) -> Site:
    first = next(member for member in site.members if member.op == group[0])
    operations, traffic = (_equally(amount, len(group)) for amount in (first.operations, first.bytes))
    costs = dict(zip(group, zip(operations, traffic, strict=True), strict=True))
    kept = []
    for member in site.members:
        more = costs.pop(member.op, (0, 0))
        old = (0, 0) if member is first else (member.operations, member.bytes)
        changed = (add(one, two) for one, two in zip(old, more, strict=True))
        kept.append(structs.replace(member, **dict(zip(("operations", "bytes"), changed, strict=True))))
    added = (
        untold_member(facts.operations[op.number], site, facts, operations=work, traffic=moved, root=False)
        for op, (work, moved) in costs.items()
    )
    return structs.replace(site, members=(*kept, *added))


def _equally(amount: Integer, count: int) -> Sequence[Integer]:
    return [UNKNOWN] * count if amount is UNKNOWN else split_by_largest_remainder(amount, [1] * count)
