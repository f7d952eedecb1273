"""Work that carries another op's location: after CSE, in data movement, in replaced kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from msgspec import structs

from tracemap.graph.model import Evidence, Membership, OpId, Site, Step, in_order
from tracemap.ir.attributes import Shape, add, shape_of
from tracemap.ir.bodies import BodyOp
from tracemap.ir.flow import DispatchRegion
from tracemap.ir.source import SourceOperation
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import can_be_member, computes, is_call, only_renames, word_of_name
from tracemap.mapping.sites.cost import LOAD, STORE
from tracemap.mapping.sites.members import only_moves_elements
from tracemap.mapping.sites.owners import Owners
from tracemap.mapping.sites.raised import untold_member
from tracemap.units import UNKNOWN, Integer

# ---- moved
#
# Kernels that only move elements, of ops that move elements and lost their place in the program.
#
# The compiler moves elementwise work to where there is less of it: the logarithm of a broadcast is taken before the
# broadcast. What is left behind it, a kernel that writes each element that it reads to other places, then carries the
# location of the logarithm, which has a kernel of its own. In the model the op that moved the elements stands before.
# Transposes are moved the other way, too, in front of reshapes, and then carry the location of what they move: there
# the op stands behind.


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

    for along in (facts.dataflow.upstream, facts.dataflow.downstream):
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


# ---- replaced
#
# Ops that a kernel of the model's own stands in for together with another op, whose location its call has.
#
# A preprocessing pass that puts one call in place of several ops gives it the location of the last of them; of the
# others nothing is left. So what is computed for that op alone, and is gone right behind preprocessing, is taken for a
# part.


_MOST = 64
_CALL = "flow.dispatch"
"""An op that calls a kernel itself stands in for nothing."""


def add_replaced(
    sites: Sequence[Site],
    bodies: Sequence[DispatchRegion | None],
    facts: ModelFacts,
    is_gone: Callable[[int], bool],
) -> list[Site]:
    """Sites with the ops that kernels without a body stand in for.

    Args:
        sites: with the members that locations tell.
        bodies: theirs, in the same order.
        facts: of the model.
        is_gone: whether an op is located in no phase from preprocessing on.
    """
    known = {member.op.number for site in sites for member in site.members}

    def added(site: Site, body: DispatchRegion | None) -> Site:
        if body is not None or len(site.members) != 1 or facts.operations[site.members[0].op.number].name == _CALL:
            return site
        (last,) = site.members
        group = {last.op.number}

        def is_part(maker: int) -> bool:
            alone = computes(facts.operations[maker]) and group.issuperset(facts.dataflow.users(maker))
            if found := alone and maker not in known and is_gone(maker):
                group.add(maker)
            return found

        parts = [*facts.dataflow.upstream(last.op.number, is_part, _MOST)]
        plain = structs.replace(last, evidence=Evidence.ABSORBED, root=False, operations=UNKNOWN, bytes=UNKNOWN)
        more = (structs.replace(plain, op=OpId.of(part)) for part in parts)
        return structs.replace(site, members=(last, *more))

    return [added(site, body) for site, body in zip(sites, bodies, strict=True)]


# ---- stand ins
#
# Work that carries the location of another op, as the compiler found it twice and kept the other one's.
#
# To lower an op, the compiler makes more than the op needs, or parts that the model has as well: with a slice of torch
# it makes the reversal that a negative step would need, with a top_k the positions along a row. Where the model itself
# reverses the same tensor, or counts the same positions, the two are merged, and the location of the first stays. Then
# a kernel has what that op made feed an op which the model never hands any of its results: it stands in for one that
# does.


StandIns = Mapping[OpId, OpId]
"""Ops whose locations stand in for others, at a site, and the ops that they stand in for."""

_MOST_RELABELLED_STEPS = 16
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
            *(
                each
                for move in flow.upstream(user, facts.moves.__contains__, _MOST_RELABELLED_STEPS)
                for each in flow.makers(move)
            ),
        )
    }
    lost = [index for index in sorted(behind - placed - facts.moves) if _can_have_lost_its_place(index, facts)]
    read = set(flow.makers(stand_in))
    closer = [index for index in lost if read & set(flow.makers(index))]
    return next((found[0] for found in (lost, closer) if len(found) == 1), None)


def _can_have_lost_its_place(index: int, facts: ModelFacts) -> bool:
    """Whether an op does work that the compiler neither found done already nor did itself."""
    operation = facts.operations[index]
    if (
        not can_be_member(operation)
        or is_call(operation)
        or index in facts.duplicates
        or index not in facts.dataflow.live
    ):
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
