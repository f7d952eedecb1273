"""Work that carries the location of another op, as the compiler found it twice and kept the other one's.

To lower an op, the compiler makes more than the op needs, or parts that the model has as well: with a slice of torch it
makes the reversal that a negative step would need, with a top_k the positions along a row. Where the model itself
reverses the same tensor, or counts the same positions, the two are merged, and the location of the first stays. Then a
kernel has what that op made feed an op which the model never hands any of its results: it stands in for one that does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from msgspec import structs

from tracemap.graph.ops import OpId, in_order
from tracemap.graph.program import Membership, Site, Step
from tracemap.ir.bodies import BodyOp
from tracemap.ir.flow import DispatchRegion
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import can_be_member, is_call
from tracemap.mapping.model.words import word_of_name
from tracemap.mapping.sites.owners import Owners
from tracemap.mapping.sites.paths import untold_member

StandIns = Mapping[OpId, OpId]
"""Ops whose locations stand in for others, at a site, and the ops that they stand in for."""

_MOST_STEPS = 16
"""How many ops before a use are looked at for the one that lost its place."""


def find_stand_ins(
    sites: Sequence[Site], bodies: Sequence[DispatchRegion | None], owners: Owners, facts: ModelFacts
) -> tuple[StandIns, ...]:
    """Of each site the members that stand in for others.

    Args:
        sites: with the members that locations tell.
        bodies: of the sites, in order.
        owners: of what stands in the bodies.
        facts: of the model.
    """
    placed = frozenset(member.op.number for site in sites for member in site.members)
    return tuple(
        {} if body is None or len(site.members) < 2 else _stand_ins(site, body.body, owners, placed, facts)
        for site, body in zip(sites, bodies, strict=True)
    )


def replace_stand_ins(sites: Sequence[Site], found: Sequence[StandIns], facts: ModelFacts) -> tuple[Site, ...]:
    """The sites, with the ops that others stood in for in their place."""
    return tuple(
        _replaced(site, stand_ins, facts) if stand_ins else site for site, stand_ins in zip(sites, found, strict=True)
    )


def without_stand_ins(steps: Sequence[Step], found: Sequence[StandIns], members: Set[OpId]) -> tuple[Step, ...]:
    """The steps of a kernel, with the ops that others stood in for, unless these work at another site of it.

    `found`: at its sites; `members`: of its sites.
    """
    meant = {op: other for stand_ins in found for op, other in stand_ins.items() if op not in members}

    def ops(step: Step) -> tuple[OpId, ...]:
        return in_order(meant.get(op, op) for op in step.ops)

    return tuple(structs.replace(step, ops=ops(step)) for step in steps)


def _stand_ins(
    site: Site, body: Sequence[BodyOp], owners: Owners, placed: Set[int], facts: ModelFacts
) -> dict[OpId, OpId]:
    members = {member.op for member in site.members}
    users: dict[OpId, set[OpId]] = {}
    for maker, user in _edges(body, owners, facts):
        if {maker, user} <= members:
            users.setdefault(maker, set()).add(user)
    found: dict[OpId, OpId] = {}
    for op, fed in users.items():
        numbers = {user.number for user in fed}
        if facts.dataflow.nearest(op.number, numbers, downwards=True) is None:
            meant = _meant(op.number, numbers, placed, facts)
            if meant is not None:
                found[op] = OpId.of(meant)
    return found


def _edges(body: Sequence[BodyOp], owners: Owners, facts: ModelFacts) -> Iterator[tuple[OpId, OpId]]:
    """Which op's work feeds which other op's: of what is of one op alone, inside of regions.

    An op that the body has as the model has it, as a subtraction, made nothing beside it that could stand for others;
    nor did the one that a region is made for, where this divides and counts to know which element it reads.
    """
    for user in body:
        for operand in user.operands if user.parent >= 0 else ():
            if operand.producer < 0 or body[operand.producer].parent < 0:
                continue
            maker = body[operand.producer]
            ours, theirs = owners.of(maker.location), owners.of(user.location)
            if len(ours) != 1 or len(theirs) != 1 or ours == theirs:
                continue
            if maker.computes_index and ours == owners.of(body[maker.parent].location):
                continue
            if word_of_name(maker.name) != word_of_name(facts.operations[ours[0].number].name):
                yield ours[0], theirs[0]


def _meant(stand_in: int, users: Set[int], placed: Set[int], facts: ModelFacts) -> int | None:
    """The only op without a place that feeds the same ops, or the only one that reads what the stand-in reads too."""
    flow = facts.dataflow
    behind = {
        maker
        for user in users
        for maker in (
            *flow.makers(user),
            *(each for move in flow.behind(user, facts.moves.__contains__, _MOST_STEPS) for each in flow.makers(move)),
        )
    }
    lost = [index for index in sorted(behind - placed - facts.moves) if _can_have_lost_its_place(index, facts)]
    read = set(flow.makers(stand_in))
    closer = [index for index in lost if read & set(flow.makers(index))]
    return next((found[0] for found in (lost, closer) if len(found) == 1), None)


def _can_have_lost_its_place(index: int, facts: ModelFacts) -> bool:
    """Whether an op does work that the compiler neither found done already nor did itself."""
    operation = facts.operations[index]
    if not can_be_member(operation) or is_call(operation) or index in facts.twins or index not in facts.dataflow.live:
        return False
    return not operation.operands or index not in facts.dataflow.constant


def _replaced(site: Site, stand_ins: StandIns, facts: ModelFacts) -> Site:
    def replaced(member: Membership) -> Membership:
        if member.op not in stand_ins:
            return member
        operation = facts.operations[stand_ins[member.op].number]
        return untold_member(
            operation, site, facts, operations=member.operations, traffic=member.bytes, root=member.root
        )

    return structs.replace(site, members=tuple(map(replaced, site.members)))
