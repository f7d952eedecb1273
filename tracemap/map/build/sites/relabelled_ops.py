"""Fused ops whose locations the compiler changed: by CSE, and by horizontal fusion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from msgspec import structs

from tracemap.core.units import UNKNOWN, Integer, split_by_largest_remainder, sum_of
from tracemap.ir.attributes import Shape, product, shape_of
from tracemap.ir.dispatch_bodies import BodyOp
from tracemap.ir.flow import DispatchRegion
from tracemap.ir.source_model import SourceOperation
from tracemap.map.build.model.kinds import alias_of_name, can_be_member, computes, is_call, only_renames
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.build.model.scopes import Origin
from tracemap.map.build.sites.cost import LOAD, MULTIPLIES, STORE
from tracemap.map.build.sites.members import only_moves_elements
from tracemap.map.build.sites.owners import Owners
from tracemap.map.build.sites.raised_idioms import paths_to, unlocated_member
from tracemap.map.model import Evidence, KernelLine, Membership, OpId, Site, sort_ops

# ---- horizontal fusion
#
# Horizontal fusion: products computed in one loop because they share an operand.

HorizontalGroup = tuple[OpId, ...]
"""Ops of the model that one operation computes: the op in its location, then the others, in the model's order."""


def find_horizontal_groups(
    sites: Sequence[Site], bodies: Sequence[DispatchRegion | None], owners: Owners, facts: ModelFacts
) -> tuple[HorizontalGroup, ...]:
    """For each site the ops that are computed side by side; empty if there are none."""
    costs: dict[OpId, dict[str, Integer]] = {}
    for site in sites:
        for member in site.members:
            costs.setdefault(member.op, {})[site.id] = member.operations
    pairs = zip(sites, bodies, strict=True)
    return tuple(() if body is None else _group(site, body.body, owners, facts, costs) for site, body in pairs)


def add_horizontal_members(
    sites: Sequence[Site], groups: Sequence[HorizontalGroup], facts: ModelFacts
) -> tuple[Site, ...]:
    """Add all ops of such a group to its site, with equal costs."""
    pairs = zip(sites, groups, strict=True)
    return tuple(_with_group(site, group, facts) if group else site for site, group in pairs)


def assign_horizontal_steps(steps: Sequence[KernelLine], groups: Sequence[HorizontalGroup]) -> tuple[KernelLine, ...]:
    """Assign the steps of a group's first op to all ops of the group. `groups`: those of the kernel's sites."""
    group_of = {group[0]: group for group in groups if group}

    def ops(step: KernelLine) -> tuple[OpId, ...]:
        return sort_ops(group_op for op in step.ops for group_op in group_of.get(op, (op,)))

    return tuple(structs.replace(step, ops=ops(step)) for step in steps)


def _group(
    site: Site,
    body: Sequence[BodyOp],
    owners: Owners,
    facts: ModelFacts,
    costs: Mapping[OpId, Mapping[str, Integer]],
) -> HorizontalGroup:
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


def _with_group(site: Site, group: HorizontalGroup, facts: ModelFacts) -> Site:
    located_member = next(member for member in site.members if member.op == group[0])
    amounts = (_split_equally(amount, len(group)) for amount in _amounts(located_member))
    costs = dict(zip(group, zip(*amounts, strict=True), strict=True))
    members = []
    for member in site.members:
        share = costs.pop(member.op, (0, 0, 0))
        previous = (0, 0, 0) if member is located_member else _amounts(member)
        operations, read, written = map(sum_of, zip(previous, share, strict=True))
        members.append(structs.replace(member, operations=operations, bytes_read=read, bytes_written=written))
    new_members = (
        unlocated_member(facts.operations[op.number], site, facts, operations=work, traffic=(read, written), root=False)
        for op, (work, read, written) in costs.items()
    )
    return structs.replace(site, members=(*members, *new_members))


def _amounts(member: Membership) -> tuple[Integer, Integer, Integer]:
    return member.operations, member.bytes_read, member.bytes_written


def _split_equally(amount: Integer, count: int) -> Sequence[Integer]:
    return [UNKNOWN] * count if amount is UNKNOWN else split_by_largest_remainder(amount, [1] * count)


# ---- moved
#
# Kernels that only move elements, for element-moving ops that have lost their location.
#
# The compiler moves elementwise work to smaller tensors: it takes the logarithm of a broadcast ahead of the broadcast.
# The broadcast then becomes a kernel that only copies elements to other positions, with the location of the logarithm,
# which has a kernel of its own. The op that moves the elements is upstream in the model. Transposes are also moved the
# other way, in front of reshapes, and then have the location of the op that they move; that op is downstream.

_MAX_STEPS = 32
"""The longest chain of ops, in both directions, that is searched for the move."""


def assign_to_moves(
    sites: Sequence[Site], bodies: Sequence[DispatchRegion | None], facts: ModelFacts
) -> tuple[Site, ...]:
    """Give sites that only move elements the op that moves them in the model, in place of those that locations name."""
    # An op with a kernel of its own has not lost its location.
    site_ops = frozenset(member.op.number for site in sites for member in site.members)
    return tuple(
        site if body is None or not only_moves_elements(body.body) else _with_move(site, body.body, site_ops, facts)
        for site, body in zip(sites, bodies, strict=True)
    )


def _with_move(site: Site, body: Sequence[BodyOp], site_ops: Set[int], facts: ModelFacts) -> Site:
    """A site that only moves elements, with that op; unchanged if its ops do so, or no such op is found."""
    if any(member.op.number in facts.moves for member in site.members):
        return site
    loaded = {op.results[0].elements for op in body if op.name == LOAD}
    stored = {op.operands[0].shape.elements for op in body if op.name == STORE}
    if len(stored) != 1 or UNKNOWN in loaded | stored:
        return site
    elements = stored.pop()
    for member in site.members:
        for move in _moves_around(facts.operations[member.op.number], elements, facts):
            if move.index not in site_ops and _input_shape(move, facts).elements in loaded:
                return structs.replace(site, members=(_sole_member(move, site, facts),))
    return site


def _moves_around(operation: SourceOperation, elements: Integer, facts: ModelFacts) -> Iterator[SourceOperation]:
    """The element-moving ops that only elementwise work on as many elements separates from an op.

    First those upstream, nearest first, then those downstream.
    """

    def makes_as_many(index: int) -> bool:
        return any(shape_of(result).elements == elements for result in facts.operations[index].results)

    for direction in (facts.dataflow.upstream, facts.dataflow.downstream):
        for index in direction(operation.index, makes_as_many, _MAX_STEPS):
            candidate = facts.operations[index]
            if index in facts.moves and _rearranges(candidate, facts):
                yield candidate


def _rearranges(operation: SourceOperation, facts: ModelFacts) -> bool:
    """Whether an op reorders elements; reshapes, which keep their order, change the extents instead."""
    if only_renames(operation):
        return False
    before, after = _input_shape(operation, facts), shape_of(operation.results[0])
    return before.elements != after.elements or _extents(before) == _extents(after)


def _extents(shape: Shape) -> list[str]:
    return sorted(str(extent) for extent in shape.extents if extent != 1)


def _input_shape(operation: SourceOperation, facts: ModelFacts) -> Shape:
    return shape_of(facts.model.type_of(operation.operands[0])) if operation.operands else Shape((UNKNOWN,), UNKNOWN)


def _sole_member(operation: SourceOperation, site: Site, facts: ModelFacts) -> Membership:
    """A fused op with the total estimated cost of all ops in the dispatch."""
    operations, read, written = map(sum_of, zip(*map(_amounts, site.members), strict=True))
    return unlocated_member(operation, site, facts, operations=operations, traffic=(read, written), root=True)


# ---- replaced
#
# Ops that a call of a kernel of the model's own replaced, together with the op in the call's location.
#
# A preprocessing pass that replaces several ops by one call gives it the location of the last of them, and the others
# disappear. So an op that is computed only for that op, and is gone right after preprocessing, counts as a part of it.

_MAX_PARTS = 64
_CALL = "flow.dispatch"
"""An op that calls a kernel itself, and so replaces nothing."""


def add_replaced_ops(
    sites: Sequence[Site],
    bodies: Sequence[DispatchRegion | None],
    facts: ModelFacts,
    is_gone: Callable[[int], bool],
) -> list[Site]:
    """Add the ops that kernels without a body replaced to their sites, which have the ops that locations name.

    `is_gone`: whether no phase from preprocessing on locates an op.
    """
    known = {member.op.number for site in sites for member in site.members}

    def added(site: Site, body: DispatchRegion | None) -> Site:
        if body is not None or len(site.members) != 1 or facts.operations[site.members[0].op.number].name == _CALL:
            return site
        (member,) = site.members
        group = {member.op.number}

        def is_part(maker: int) -> bool:
            feeds_only_group = computes(facts.operations[maker]) and group.issuperset(facts.dataflow.users(maker))
            if is_new_part := feeds_only_group and maker not in known and is_gone(maker):
                group.add(maker)
            return is_new_part

        parts = [*facts.dataflow.upstream(member.op.number, is_part, _MAX_PARTS)]
        absorbed = structs.replace(
            member,
            evidence=Evidence.ABSORBED,
            root=False,
            operations=UNKNOWN,
            bytes_read=UNKNOWN,
            bytes_written=UNKNOWN,
        )
        other_members = (structs.replace(absorbed, op=OpId.of(part)) for part in parts)
        return structs.replace(site, members=(member, *other_members))

    return [added(site, body) for site, body in zip(sites, bodies, strict=True)]


# ---- stand ins
#
# Work with the location of another op, because the compiler merged equal operations and kept the other's location.
#
# To lower an op, the compiler may add operations that the model has as well: a slice in torch also makes the reversal
# for a negative step, and a top_k makes the positions along a row. If the model itself reverses the same tensor or
# counts the same positions, CSE merges the two and keeps the first location. In the kernel the op in that location then
# feeds an op that never uses its results in the model. So it stands in for an op that does feed it.

Relabelling = Mapping[OpId, OpId]
"""Ops whose location stands in for another op at a site -> the other op."""

_MAX_MOVES = 16
"""The longest chain of moves that is searched for the relabelled op."""


def find_stand_ins(
    sites: Sequence[Site], bodies: Sequence[DispatchRegion | None], owners: Owners, facts: ModelFacts
) -> tuple[Relabelling, ...]:
    """For each site, with the ops that locations name, those whose location stands in for another op."""
    site_ops = frozenset(member.op.number for site in sites for member in site.members)
    return tuple(
        {} if body is None or len(site.members) < 2 else _stand_ins(site, body.body, owners, site_ops, facts)
        for site, body in zip(sites, bodies, strict=True)
    )


def restore_relabelled(
    sites: Sequence[Site], stand_ins_of_sites: Sequence[Relabelling], facts: ModelFacts
) -> tuple[Site, ...]:
    """The sites with the relabelled ops instead of their stand-ins."""
    return tuple(
        _with_relabelled_ops(site, stand_ins, facts) if stand_ins else site
        for site, stand_ins in zip(sites, stand_ins_of_sites, strict=True)
    )


def restore_relabelled_steps(
    steps: Sequence[KernelLine], stand_ins_of_sites: Sequence[Relabelling], members: Set[OpId]
) -> tuple[KernelLine, ...]:
    """The lines of kernel IR with the relabelled ops, unless a stand-in itself runs at another site of the kernel.

    `stand_ins_of_sites`: of the kernel's sites; `members`: the ops of these sites.
    """
    replacements = {
        op: other for stand_ins in stand_ins_of_sites for op, other in stand_ins.items() if op not in members
    }

    def ops(step: KernelLine) -> tuple[OpId, ...]:
        return sort_ops(replacements.get(op, op) for op in step.ops)

    return tuple(structs.replace(step, ops=ops(step)) for step in steps)


def _stand_ins(
    site: Site, body: Sequence[BodyOp], owners: Owners, site_ops: Set[int], facts: ModelFacts
) -> dict[OpId, OpId]:
    members = {member.op for member in site.members}
    users: dict[OpId, set[OpId]] = {}
    for maker, user in _edges(body, owners, facts):
        if {maker, user} <= members:
            users.setdefault(maker, set()).add(user)
    replacements: dict[OpId, OpId] = {}
    for op, fed_ops in users.items():
        user_indices = {user.number for user in fed_ops}
        if facts.dataflow.nearest(op.number, user_indices, downwards=True) is None:
            replaced = _relabelled_op(op.number, user_indices, site_ops, facts)
            if replaced is not None:
                replacements[op] = OpId.of(replaced)
    return replacements


def _edges(body: Sequence[BodyOp], owners: Owners, facts: ModelFacts) -> Iterator[tuple[OpId, OpId]]:
    """Pairs of ops, the first of which feeds the second, inside regions and where locations are unique.

    An operation of the same kind as its op, such as a subtraction, is the op itself, and stands in for nothing. Nor
    does the op of a region that divides and counts to find the index of the element that it reads.
    """
    for user in body:
        for operand in user.operands if user.parent >= 0 else ():
            if operand.producer < 0 or body[operand.producer].parent < 0:
                continue
            maker = body[operand.producer]
            maker_ops, user_ops = owners.of(maker.location), owners.of(user.location)
            if len(maker_ops) != 1 or len(user_ops) != 1 or maker_ops == user_ops:
                continue
            if maker.computes_index and maker_ops == owners.of(body[maker.parent].location):
                continue
            if alias_of_name(maker.name) != alias_of_name(facts.operations[maker_ops[0].number].name):
                yield maker_ops[0], user_ops[0]


def _relabelled_op(stand_in: int, users: Set[int], site_ops: Set[int], facts: ModelFacts) -> int | None:
    """The only op without a site that feeds the same ops, or the only one of these with an input of the stand-in."""
    flow = facts.dataflow
    moves = (move for user in users for move in flow.upstream(user, facts.moves.__contains__, _MAX_MOVES))
    upstream_ops = {maker for op in {*users, *moves} for maker in flow.makers(op)}
    relabelled = [index for index in sorted(upstream_ops - site_ops - facts.moves) if _may_be_relabelled(index, facts)]
    inputs = set(flow.makers(stand_in))
    with_common_input = [index for index in relabelled if inputs & set(flow.makers(index))]
    return next((candidates[0] for candidates in (relabelled, with_common_input) if len(candidates) == 1), None)


def _may_be_relabelled(index: int, facts: ModelFacts) -> bool:
    """Whether an op does work that the compiler neither merged nor computed itself."""
    operation = facts.operations[index]
    if not can_be_member(operation) or is_call(operation) or index in facts.duplicates:
        return False
    return index in facts.dataflow.live and (not operation.operands or index not in facts.dataflow.constant)


def _with_relabelled_ops(site: Site, stand_ins: Relabelling, facts: ModelFacts) -> Site:
    def restore(member: Membership) -> Membership:
        if member.op not in stand_ins:
            return member
        operation = facts.operations[stand_ins[member.op].number]
        traffic = member.bytes_read, member.bytes_written
        return unlocated_member(operation, site, facts, operations=member.operations, traffic=traffic, root=member.root)

    return structs.replace(site, members=tuple(map(restore, site.members)))
