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
from tracemap.mapping.sites.raised import paths_to, unlocated_member
from tracemap.units import UNKNOWN, Integer, split_by_largest_remainder

Group = tuple[OpId, ...]
"""Ops of the model that one operation computes: the op in its location, then the others, in the model's order."""


def find_horizontal_groups(
    sites: Sequence[Site], bodies: Sequence[DispatchRegion | None], owners: Owners, facts: ModelFacts
) -> tuple[Group, ...]:
    """For each site the ops that are computed side by side; empty if there are none."""
    costs: dict[OpId, dict[str, Integer]] = {}
    for site in sites:
        for member in site.members:
            costs.setdefault(member.op, {})[site.id] = member.operations
    pairs = zip(sites, bodies, strict=True)
    return tuple(() if body is None else _group(site, body.body, owners, facts, costs) for site, body in pairs)


def add_horizontal_members(sites: Sequence[Site], groups: Sequence[Group], facts: ModelFacts) -> tuple[Site, ...]:
    """Add all ops of such a group to its site, with equal costs."""
    pairs = zip(sites, groups, strict=True)
    return tuple(_with_group(site, group, facts) if group else site for site, group in pairs)


def assign_horizontal_steps(steps: Sequence[Step], groups: Sequence[Group]) -> tuple[Step, ...]:
    """Assign the steps of a group's first op to all ops of the group. `groups`: those of the kernel's sites."""
    group_of = {group[0]: group for group in groups if group}

    def ops(step: Step) -> tuple[OpId, ...]:
        return in_order(group_op for op in step.ops for group_op in group_of.get(op, (op,)))

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
        count = _unlocated_products(op, body, owners)
        located = [owner for owner in owners.of(op.location) if owner in members]
        if count < 2 or len(located) != 1:
            continue
        operations = product((2, op.iterations))
        others = [
            other
            for other in map(OpId.of, _ops_with_shared_operand(located[0], site, facts))
            if not _computed_elsewhere(costs.get(other, {}), site, operations)
        ]
        if len(others) == count - 1:
            return (located[0], *others)
    return ()


def _unlocated_products(op: BodyOp, body: Sequence[BodyOp], owners: Owners) -> int:
    """The number of sums of products that an operation computes without locations."""
    if len(op.results) < 2 or op.iterations in {result.elements for result in op.results} - {UNKNOWN}:
        return 0
    multiplications = (part for part in body if part.parent == op.index and part.name in MULTIPLIES)
    return sum(1 for part in multiplications if not owners.of(part.location))


def _ops_with_shared_operand(first: OpId, site: Site, facts: ModelFacts) -> list[int]:
    """The ops of the same kind in the same function that use one of an op's operands at the same position."""
    operation = facts.operations[first.number]
    origins = _operands(operation, site, facts)

    def shares(other: SourceOperation) -> bool:
        if (other.name, other.results, other.function) != (operation.name, operation.results, operation.function):
            return False
        return any(left == right for left, right in zip(origins, _operands(other, site, facts), strict=False))

    candidates = (op for op in facts.ops if op.index != operation.index and op.index in facts.dataflow.live)
    return [op.index for op in candidates if op.index not in facts.duplicates and shares(op)]


def _operands(operation: SourceOperation, site: Site, facts: ModelFacts) -> list[object]:
    """The origins of an op's operands; constants, which many ops share, are different from all others."""

    def is_constant(origin: Origin) -> bool:
        maker = facts.origins.maker(origin)
        return maker is not None and maker.index in facts.dataflow.constant

    origins = facts.origins.operands(operation, paths_to(operation, site, facts)[0])
    return [object() if is_constant(origin) else origin for origin in origins]


def _computed_elsewhere(costs: Mapping[str, Integer], site: Site, operations: Integer) -> bool:
    """Whether an op does as much work in another site; adding a bias to a product, for example, is less."""
    others = [cost for place, cost in costs.items() if place != site.id]
    return any(cost is UNKNOWN or operations is UNKNOWN or cost >= operations for cost in others)


def _with_group(site: Site, group: Group, facts: ModelFacts) -> Site:
    located_member = next(member for member in site.members if member.op == group[0])
    operations, traffic = (
        _split_equally(amount, len(group)) for amount in (located_member.operations, located_member.bytes)
    )
    costs = dict(zip(group, zip(operations, traffic, strict=True), strict=True))
    members = []
    for member in site.members:
        share = costs.pop(member.op, (0, 0))
        previous = (0, 0) if member is located_member else (member.operations, member.bytes)
        amounts = (add(left, right) for left, right in zip(previous, share, strict=True))
        members.append(structs.replace(member, **dict(zip(("operations", "bytes"), amounts, strict=True))))
    new_members = (
        unlocated_member(facts.operations[op.number], site, facts, operations=work, traffic=bytes_moved, root=False)
        for op, (work, bytes_moved) in costs.items()
    )
    return structs.replace(site, members=(*members, *new_members))


def _split_equally(amount: Integer, count: int) -> Sequence[Integer]:
    return [UNKNOWN] * count if amount is UNKNOWN else split_by_largest_remainder(amount, [1] * count)
