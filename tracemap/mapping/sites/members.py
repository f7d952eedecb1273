"""Ops in each dispatch site, and the evidence for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from msgspec import structs

from tracemap.graph.model import CallPath, Evidence, Membership, OpId, Site, Step, in_order
from tracemap.ir.attributes import is_conversion, product
from tracemap.ir.bodies import BodyOp, BodyOperand
from tracemap.ir.flow import RESHAPES, DispatchRegion
from tracemap.locations import Location
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.idioms import Rotation
from tracemap.mapping.model.kinds import computes
from tracemap.mapping.model.origins import Conversions
from tracemap.mapping.sites.cost import CostModel
from tracemap.mapping.sites.owners import Owners
from tracemap.units import ASSUMED_SIZE, UNKNOWN, Integer

# ---- amounts
#
# What memberships are estimated to cost where sizes are not known before: so much if each of these were the same.
#
# While a site's members are found, their amounts are those of the assumed sizes, so that they are split, added and
# compared as all others. In the map these stand by themselves, and the amounts are unknown.


def assumed(member: Membership) -> Membership:
    """A member whose amounts are those of assumed sizes."""
    return structs.replace(member, assumed_operations=member.operations, assumed_bytes=member.bytes)


def is_assumed(site: Site) -> bool:
    """Whether amounts of a site's members are those of assumed sizes."""
    return any(member.assumed_operations is not UNKNOWN for member in site.members)


def elements(extents: Iterable[Integer]) -> Integer:
    """How many elements there are where each size that is not known before is assumed."""
    return product(tuple([ASSUMED_SIZE if extent is UNKNOWN else extent for extent in extents]))


def with_amounts_apart(site: Site) -> Site:
    """A site whose members have found all: what was assumed stands apart from what is known."""
    if not is_assumed(site):
        return site
    members = tuple(structs.replace(assumed(member), operations=UNKNOWN, bytes=UNKNOWN) for member in site.members)
    return structs.replace(site, members=members)


# ---- idle
#
# Ops that a fused location names in a site where they do nothing: their work is in a site of their own.
#
# A pass that moves an operation past another one gives what frames it both locations. Named by such a location alone,
# with no operation and no byte of the site, an op is no member of it.


def without_idle(sites: Sequence[Site], facts: ModelFacts) -> list[Site]:
    """Sites without the members that do nothing in them, and work elsewhere. What only moves elements stays."""
    working = {member.op for site in sites for member in site.members if not _does_nothing(member)}

    def is_idle(member: Membership) -> bool:
        number = member.op.number
        fused = member.evidence is Evidence.FUSED and _does_nothing(member) and member.op in working
        return fused and computes(facts.operations[number]) and number not in facts.moves

    return [_without(site, [member for member in site.members if is_idle(member)]) for site in sites]


def _does_nothing(member: Membership) -> bool:
    """Whether a member's amounts are known to be nothing; the assumed ones stand in for those that are not known."""
    return member.operations == 0 and member.bytes == 0


def _without(site: Site, idle: Sequence[Membership]) -> Site:
    """A site without some members, the root of which is what does the most; as it is where nothing would be left."""
    left = [member for member in site.members if member not in idle]
    if not idle or not left:
        return site
    if not any(member.root for member in left):
        most = max(left, key=_amount)
        left = [structs.replace(member, root=member is most) for member in left]
    return structs.replace(site, members=tuple(left))


def _amount(member: Membership) -> tuple[bool, int, int]:
    """By which members are compared: an unknown amount counts as the most."""
    numbers = [each if isinstance(each, int) else -1 for each in (member.operations, member.bytes)]
    return min(numbers) < 0, numbers[0], numbers[1]


# ---- evidence
#
# What the operations of a site's body prove: by whose location alone or with others, and by which kind of operation.
#
# An operation that does work (an arithmetic operation in a region, a product, a sort) was made for the op that its
# location names. What only frames such work (loads, stores, reshapes, the structured operation around a region that
# tells of itself) gets the locations of whatever was folded into its shape or its indexing, beside its own: a reshape
# that passes a `linalg.generic` leaves it the location of the op on the other side, which has a kernel of its own.


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


# ---- rotated
#
# What of a body rotates halves: operations that no location tells, in the region of the op that uses the rotation.


_NEGATES = "arith.negf"
"""What negates one of the halves; all else that no location tells brings them together."""
_CHOOSES = "arith.select"
_READS = "tensor.extract"
_NOBODY = frozenset({"arith.constant", "linalg.index", "linalg.yield"})


def rotated(body: Sequence[BodyOp], owners: Owners, facts: ModelFacts) -> Mapping[int, OpId]:
    """The indices of body ops that rotate halves, and the op of the model that each is of."""
    found: dict[int, OpId] = {}
    for parent, rotation in _rotations(body, owners, facts):
        for op in body:
            if op.parent == parent and op.name not in _NOBODY and not owners.of(op.location):
                found[op.index] = rotation.negate if op.name == _NEGATES else rotation.join
    return found


def rotation_in(region: DispatchRegion | None, owners: Owners, facts: ModelFacts) -> Rotation | None:
    """The first rotation in a site's body; None where there is none."""
    return None if region is None else next((each for _, each in _rotations(region.body, owners, facts)), None)


def with_rotations(steps: Sequence[Step], rotations: Sequence[Rotation]) -> tuple[Step, ...]:
    """The steps of a kernel that rotates halves, of which those in regions that no location tells are of the rotation.

    `rotations`: at the kernel's sites, one at least.
    """
    return tuple(
        step
        if step.ops or step.parent is UNKNOWN or step.op_name in _NOBODY
        else structs.replace(step, ops=_ops(rotations, negates=step.op_name == _NEGATES))
        for step in steps
    )


def _ops(rotations: Sequence[Rotation], *, negates: bool) -> tuple[OpId, ...]:
    return in_order(each.negate if negates else each.join for each in rotations)


def _rotations(body: Sequence[BodyOp], owners: Owners, facts: ModelFacts) -> Iterator[tuple[int, Rotation]]:
    """The ops whose regions hold a rotation: what is read is negated or not, and nothing tells whose that is."""
    for op in body:
        if op.name != _CHOOSES or op.parent < 0 or owners.of(op.location):
            continue
        made_by = {body[operand.producer].name for operand in op.operands if operand.producer >= 0}
        if not {_NEGATES, _READS} <= made_by:
            continue
        users = [user for user in body if any(operand.producer == op.index for operand in user.operands)]
        told = [owner for user in users for owner in owners.of(user.location)]
        rotation = next(filter(None, (facts.rotations.before(owner.number) for owner in told)), None)
        if rotation is not None:
            yield op.parent, rotation


# ---- members
#
# Which ops do work in a site, and by what evidence.
#
# Read from the dispatch-creation phase, where every call site still has a body and locations of its own. Every
# operation of the body, parts included, votes with its location; only the callee side of call sites counts (see
# `tagging`).


def find_members(region: DispatchRegion, owners: Owners, facts: ModelFacts) -> tuple[Membership, ...]:
    """The members of a site in the order in which the body first shows them, with costs; exactly one is the root."""
    body = region.body
    evidence = find_evidence(region, owners, facts.moves)
    if not evidence:
        return ()
    paths = _paths(region, owners)
    root_by_location = next((op for op in owners.of(region.location) if op in evidence), None)
    folds = _folded_conversions(region, owners, facts.conversions, evidence)
    folded = {index: fold.op for index, fold in folds.items()}
    evidence |= {fold.op: fold.evidence for fold in folds.values()}
    untold = {**folded, **rotated(body, owners, facts)}
    for index, op in untold.items():
        evidence.setdefault(op, Evidence.ABSORBED)
        paths.setdefault(op, [owners.path(body[body[index].parent].location)])
    whose = _BodyOwners(body, owners, evidence, root_by_location, untold)
    costs = CostModel(body, whose, folded)
    if is_assumed := costs.are_open and bool(region.assumed):
        costs = CostModel(region.assumed, lambda op: whose(body[op.index]), folded)
    root = root_by_location or _costliest(evidence, costs)
    found = (
        Membership(op, kind, op == root, costs.operations.get(op, 0), costs.bytes.get(op, 0), path, tuple(others))
        for op, kind in evidence.items()
        for path, *others in [paths[op]]
    )
    return tuple(map(assumed, found) if is_assumed else found)


@dataclass(frozen=True, slots=True)
class _Fold:
    """A conversion of the model that another op of it does, and how that is known."""

    op: OpId
    evidence: Evidence


def _folded_conversions(
    region: DispatchRegion, owners: Owners, conversions: Conversions, evidence: Mapping[OpId, Evidence]
) -> dict[int, _Fold]:
    """Conversions of elements inside of other ops' regions, by index, and the ops of the model that they came from.

    A conversion folded into a matrix product is done again in each product that uses it, and no location tells so: the
    operand of the product that is converted in the region is the one that the model converts, and is read as narrow.
    Where the kernel reads the very value that the model converts, they are fused: locations tell both.
    """
    scalar = (op for op in region.body if op.parent >= 0 and op.operands and is_conversion(op.name))
    folds = ((op.index, _fold(op, region, owners, conversions, evidence)) for op in scalar)
    return {index: fold for index, fold in folds if fold is not None}


def _fold(
    op: BodyOp,
    region: DispatchRegion,
    owners: Owners,
    conversions: Conversions,
    evidence: Mapping[OpId, Evidence],
) -> _Fold | None:
    """The conversion of the model that an op in the region of another does; None where that is none of the model's.

    What has an owner of its own is no conversion of somebody else's, and what has evidence is not looked for. What the
    kernel reads tells the operand; else it is that of the same number, which some ops count otherwise.
    """
    around, number = region.body[op.parent], op.operands[0].argument
    readers, operand = owners.of(around.location), around.operands[number]
    if not set(owners.of(op.location)) <= set(readers):
        return None
    path = owners.path(around.location)
    made = [each for reader in readers for each in conversions.read_by(reader, path)]
    bits = operand.shape.element_bits
    made = [each for each in made if each.conversion.op not in evidence and each.conversion.is_folded_into(bits)]
    read = {index for location in _read_at(region, operand) for index in owners.provenance.of(location)}
    told = (_Fold(each.conversion.op, Evidence.FUSED) for each in made if each.sources & read)
    alike = (_Fold(each.conversion.op, Evidence.ABSORBED) for each in made if each.number == number)
    return next(told, next(alike, None))


_HANDING_ON = RESHAPES | {"iree_tensor_ext.dispatch.tensor.load"}


def _read_at(region: DispatchRegion, operand: BodyOperand) -> tuple[Location, ...]:
    """Where the value is made that an operand of an op in a body is, be it in the body or before."""
    while operand.producer >= 0:
        producer = region.body[operand.producer]
        if producer.name not in _HANDING_ON:
            return (producer.location,)
        operand = producer.operands[0]
    return region.reads[operand.argument] if 0 <= operand.argument < len(region.reads) else ()


def _paths(region: DispatchRegion, owners: Owners) -> dict[OpId, list[CallPath]]:
    """The calls that lead to each op, one way or several, as those locations tell that say the most.

    These are what works for the op, all of it. What only frames work may be named by a call whose work is elsewhere, so
    of an op that has nothing else there is but the first way.
    """
    found: dict[OpId, dict[CallPath, None]] = {}
    for op in working(region.body, owners):
        for owner, path in owners.ways(op.location):
            found.setdefault(owner, {})[path] = None
    paths = {owner: list(several) for owner, several in found.items()}
    for location in [*(op.location for op in telling(region.body)), region.location]:
        for owner, path in owners.ways(location):
            paths.setdefault(owner, [path])
    return paths


class _BodyOwners:
    """The owners of each body op for the cost model: its own, else those of the op around it, else the root.

    `folded`: the owners of body ops that no location tells.
    """

    def __init__(
        self,
        body: Sequence[BodyOp],
        owners: Owners,
        evidence: Mapping[OpId, Evidence],
        root: OpId | None,
        folded: Mapping[int, OpId],
    ) -> None:
        self._body = body
        self._owners = owners
        self._evidence = evidence
        self._folded = folded
        self._fallback = (root or next(iter(evidence)),)

    def __call__(self, op: BodyOp) -> tuple[OpId, ...]:
        while True:
            if op.index in self._folded:
                return (self._folded[op.index],)
            own = tuple(owner for owner in self._owners.of(op.location) if owner in self._evidence)
            if own:
                return own
            # What carries no tag that counts (shapes, terminators, what a pass made up) works for what is around it.
            if op.parent < 0:
                return self._fallback
            op = self._body[op.parent]


def _costliest(evidence: Mapping[OpId, Evidence], costs: CostModel) -> OpId:
    """The op with the most operations, then bytes, then the first; unknown counts as the most."""

    def size(value: Integer) -> tuple[bool, int]:
        return (True, 0) if value is UNKNOWN else (False, value)

    def weight(op: OpId) -> tuple[tuple[bool, int], tuple[bool, int]]:
        return size(costs.operations.get(op, 0)), size(costs.bytes.get(op, 0))

    return max(evidence, key=weight)
