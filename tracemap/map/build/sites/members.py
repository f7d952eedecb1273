"""Fused ops: which ops are in each dispatch, by which evidence, and which work has no known op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from msgspec import structs

from tracemap.core.locations import CallSite, Location, is_informative
from tracemap.core.units import ASSUMED_SIZE, UNKNOWN, Integer, sum_of
from tracemap.ir.attributes import is_conversion, product
from tracemap.ir.dispatch_bodies import BodyOp, BodyOperand
from tracemap.ir.flow import RESHAPES, DispatchRegion, FlowDispatch
from tracemap.map.build.model.idioms import Rotation
from tracemap.map.build.model.kinds import REGION_TERMINATORS, computes
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.build.model.scopes import Conversions
from tracemap.map.build.sites.cost import CostModel
from tracemap.map.build.sites.owners import Owners
from tracemap.map.model import CallPath, Evidence, KernelLine, Membership, OpId, Site, sort_ops

# ---- amounts
#
# Estimated costs of ops in a dispatch with dynamic sizes, as if each such size were the same number.
#
# While a site's ops are determined, the costs for assumed sizes are in the usual fields, so that they are split, added
# and compared like all others. In the map they have fields of their own, and the usual costs are unknown.


def with_assumed_costs(member: Membership) -> Membership:
    """A membership with its costs in the fields for assumed sizes."""
    return structs.replace(member, assumed_operations=member.operations, assumed_bytes=member.bytes)


def is_assumed(site: Site) -> bool:
    """Whether the costs of a site's ops are those for assumed sizes."""
    return any(member.assumed_operations is not UNKNOWN for member in site.members)


def elements(extents: Iterable[Integer]) -> Integer:
    """The number of elements, with the assumed size for each dynamic one."""
    return product(tuple([ASSUMED_SIZE if extent is UNKNOWN else extent for extent in extents]))


def separate_assumed_costs(site: Site) -> Site:
    """Move costs for assumed sizes to their own fields, once all ops of the site are known."""
    if not is_assumed(site):
        return site
    members = tuple(
        structs.replace(with_assumed_costs(member), operations=UNKNOWN, bytes_read=UNKNOWN, bytes_written=UNKNOWN)
        for member in site.members
    )
    return structs.replace(site, members=members)


# ---- idle
#
# Ops that a fused location names in a site without work of theirs, because their work is in another site.
#
# A pass that moves an operation past another one gives both locations to the operations around it. An op with such a
# location as its only evidence, and without operations and bytes in the site, does not belong to it.


def drop_idle_members(sites: Sequence[Site], facts: ModelFacts) -> list[Site]:
    """Drop ops without work in a site if they work elsewhere. Ops that only move elements stay."""
    working = {member.op for site in sites for member in site.members if not _does_nothing(member)}

    def is_idle(member: Membership) -> bool:
        number = member.op.number
        fused = member.evidence is Evidence.FUSED and _does_nothing(member) and member.op in working
        return fused and computes(facts.operations[number]) and number not in facts.moves

    return [_without(site, [member for member in site.members if is_idle(member)]) for site in sites]


def _does_nothing(member: Membership) -> bool:
    """Whether an op's costs are known to be zero; costs for assumed sizes count if the real ones are unknown."""
    return member.operations == 0 and member.bytes == 0


def _without(site: Site, idle: Sequence[Membership]) -> Site:
    """Drop ops of a site; the most expensive of the others becomes the root. A site never loses all of its ops."""
    remaining = [member for member in site.members if member not in idle]
    if not idle or not remaining:
        return site
    if not any(member.root for member in remaining):
        largest = max(remaining, key=_amount_key)
        remaining = [structs.replace(member, root=member is largest) for member in remaining]
    return structs.replace(site, members=tuple(remaining))


def _amount_key(member: Membership) -> tuple[bool, int, int]:
    """Sort key for the costs of fused ops: unknown costs count as the highest."""
    numbers = [amount if isinstance(amount, int) else -1 for amount in (member.operations, member.bytes)]
    return min(numbers) < 0, numbers[0], numbers[1]


# ---- evidence
#
# The evidence in a site's body: ops that locations name, alone or with others, and the kind of the located operation.
#
# An operation that does work (arithmetic in a region, a product, a sort) was made for the op in its location. Framing
# operations (loads, stores, reshapes, or a structured operation with located work in its region) also get the
# locations of ops that were folded into their shape or indexing. For example, a reshape that moves past a
# `linalg.generic` leaves it the location of the op on the other side, which has a kernel of its own.

_SILENT = frozenset(
    """
    arith.constant flow.return iree_tensor_ext.dispatch.workload.ordinal tensor.dim tensor.empty
    """.split()
)
"""Body operations whose locations are no evidence: values that CSE shares between sites, shapes, and terminators."""

_FRAMING = frozenset(
    """
    iree_linalg_ext.yield iree_tensor_ext.dispatch.tensor.load iree_tensor_ext.dispatch.tensor.store
    linalg.index linalg.yield tensor.cast tensor.collapse_shape tensor.expand_shape tensor.extract_slice
    """.split()
)
"""Body operations that pass values to and from the work."""

_INDEXING = ("affine.", "arith.index_cast")
"""Prefixes of operations on sizes at the start of a body; inside regions they compute elements from positions."""
FILL = "linalg.fill"
REGION_OPS = ("linalg.generic", "linalg.map", "linalg.reduce")
"""Structured ops whose work is all in their region; for others (products, sorts) the op itself is better evidence."""

_MOVING = frozenset({*REGION_OPS, "linalg.broadcast", "linalg.copy", "linalg.transpose"}) - {"linalg.reduce"}
"""Structured ops that only move elements if their region, if any, contains no work."""


def find_evidence(region: DispatchRegion, owners: Owners, moves: Set[int]) -> dict[OpId, Evidence]:
    """The ops that a site's body names, in order of appearance, with the evidence.

    `moves`: the indices of the ops that only move elements. They have no working operation, so a framing operation
    whose only location is theirs suffices. For other ops, framing operations count only if no working operation has a
    location. Fills count only if nothing else has one, the site's own location only if nothing in the body has one. A
    kernel that the compiler added for several consecutive ops belongs to the first that computes, since the later ones
    mostly read its results.
    """
    body = informative_operations(region.body)
    framing = [op.location for op in body if op.name != FILL]
    evidence = _evidence_of([op.location for op in working_operations(body, owners)], owners)
    if evidence:
        framing_evidence = _evidence_of(framing, owners)
        moving_ops = {op for op, kind in framing_evidence.items() if kind is Evidence.LOCATED and op.number in moves}
        evidence = {
            op: evidence.get(op, kind) for op, kind in framing_evidence.items() if op in evidence or op in moving_ops
        }
    else:
        fills = [op.location for op in body if op.name == FILL]
        # Weaker evidence counts only without stronger evidence: a fill next to other work is part of that work.
        for locations in (framing, fills, [region.location]):
            evidence = evidence or _evidence_of(locations, owners)
    if not region.added or not evidence:
        return evidence
    main_op = min(evidence, key=lambda op: (op.number in moves, op.number))
    return {main_op: evidence[main_op]}


def informative_operations(body: Sequence[BodyOp]) -> list[BodyOp]:
    """The operations whose locations can be evidence, fills last."""
    informative = [op for op in body if op.name not in _SILENT]
    return sorted(informative, key=lambda op: op.name == FILL)


def working_operations(body: Sequence[BodyOp], owners: Owners) -> list[BodyOp]:
    """The operations of a body that do work."""
    body = informative_operations(body)
    parents_of_unlocated = {op.parent for op in body if _is_work(op) and not owners.of(op.location)}
    parents_of_work = {op.parent for op in body if _is_work(op)}
    return [
        op
        for op in body
        if _is_work(op)
        and (op.name not in REGION_OPS or op.index not in parents_of_work or op.index in parents_of_unlocated)
    ]


def only_moves_elements(body: Sequence[BodyOp]) -> bool:
    """Whether a body only copies elements to other positions."""
    work = [op for op in body if op.name not in _SILENT and _is_work(op)]
    return bool(work) and all(op.parent < 0 and op.name in _MOVING for op in work)


def _is_work(op: BodyOp) -> bool:
    if op.parent < 0 and op.name.startswith(_INDEXING):
        return False
    return op.name != FILL and op.name not in _FRAMING


def _evidence_of(locations: Sequence[Location], owners: Owners) -> dict[OpId, Evidence]:
    """The ops that locations name; the only op of a location has stronger evidence than one of several."""
    evidence: dict[OpId, Evidence] = {}
    for location in locations:
        ops = owners.of(location)
        for op in ops:
            if len(ops) == 1:
                evidence[op] = Evidence.LOCATED
            else:
                evidence.setdefault(op, Evidence.FUSED)
    return evidence


# ---- rotated
#
# Rotations by halves in a body: operations without locations, in the region of the op that uses the rotation.

_NEGATE = "arith.negf"
"""Negates one of the halves; all other operations without a location concatenate them."""
_SELECT = "arith.select"
_READ = "tensor.extract"
SHARED_OPS = frozenset({"arith.constant", "linalg.index", "linalg.yield"})


def rotation_operations(body: Sequence[BodyOp], owners: Owners, facts: ModelFacts) -> Mapping[int, OpId]:
    """The indices of body operations that rotate halves, with the model's op for each."""
    op_of_index: dict[int, OpId] = {}
    for parent, rotation in _rotations(body, owners, facts):
        for op in body:
            if op.parent == parent and op.name not in SHARED_OPS and not owners.of(op.location):
                op_of_index[op.index] = rotation.negate if op.name == _NEGATE else rotation.join
    return op_of_index


def find_rotation(region: DispatchRegion | None, owners: Owners, facts: ModelFacts) -> Rotation | None:
    """The first rotation in a site's body; None if there is none."""
    return None if region is None else next((rotation for _, rotation in _rotations(region.body, owners, facts)), None)


def assign_rotation_steps(steps: Sequence[KernelLine], rotations: Sequence[Rotation]) -> tuple[KernelLine, ...]:
    """Assign the unlocated steps in regions of a kernel that rotates halves to the ops of the rotation.

    `rotations`: those at the kernel's sites, at least one.
    """
    negations = sort_ops(rotation.negate for rotation in rotations)
    joins = sort_ops(rotation.join for rotation in rotations)
    return tuple(
        step
        if step.ops or step.parent is UNKNOWN or step.op_name in SHARED_OPS
        else structs.replace(step, ops=negations if step.op_name == _NEGATE else joins)
        for step in steps
    )


def _rotations(body: Sequence[BodyOp], owners: Owners, facts: ModelFacts) -> Iterator[tuple[int, Rotation]]:
    """Regions with a rotation (a choice between a value and its negation, without locations), by parent."""
    for op in body:
        if op.name != _SELECT or op.parent < 0 or owners.of(op.location):
            continue
        producers = {body[operand.producer].name for operand in op.operands if operand.producer >= 0}
        if not {_NEGATE, _READ} <= producers:
            continue
        users = [user for user in body if any(operand.producer == op.index for operand in user.operands)]
        user_ops = [owner for user in users for owner in owners.of(user.location)]
        rotation = next(filter(None, (facts.rotations.before(owner.number) for owner in user_ops)), None)
        if rotation is not None:
            yield op.parent, rotation


# ---- fused ops by location
#
# They are read from the dispatch-creation phase, where every dispatch still has a body and locations of its own. The
# location of every operation of the body counts, parts included, but only the callee side of call sites (see
# `tagging`).


def find_members(region: DispatchRegion, owners: Owners, facts: ModelFacts) -> tuple[Membership, ...]:
    """The ops in a site with their costs, in order of appearance in the body; exactly one is the root."""
    body = region.body
    evidence = find_evidence(region, owners, facts.moves)
    if not evidence:
        return ()
    paths = _paths(region, owners)
    root_by_location = next((op for op in owners.of(region.location) if op in evidence), None)
    folds = _folded_conversions(region, owners, facts.conversions, evidence)
    converted_by = {index: op for index, (op, _) in folds.items()}
    evidence |= dict(folds.values())
    unlocated_ops = {**converted_by, **rotation_operations(body, owners, facts)}
    for index, op in unlocated_ops.items():
        evidence.setdefault(op, Evidence.ABSORBED)
        paths.setdefault(op, [owners.path(body[body[index].parent].location)])
    fallback = (root_by_location or next(iter(evidence)),)

    def body_owners(op: BodyOp) -> tuple[OpId, ...]:
        """The owners of a body operation: its own, else those of the enclosing op, else the root."""
        while op.index not in unlocated_ops:
            located = tuple(owner for owner in owners.of(op.location) if owner in evidence)
            # Operations without a tag (shapes, terminators, those that a pass added) work for the op around them.
            if located or op.parent < 0:
                return located or fallback
            op = body[op.parent]
        return (unlocated_ops[op.index],)

    costs = CostModel(body, body_owners, converted_by)
    if is_assumed := costs.are_open and bool(region.assumed):
        costs = CostModel(region.assumed, lambda op: body_owners(body[op.index]), converted_by)
    root = root_by_location or _costliest(evidence, costs)
    memberships = (
        Membership(op, kind, op == root, costs.operations.get(op, 0), *costs.bytes_of(op), path, tuple(others))
        for op, kind in evidence.items()
        for path, *others in [paths[op]]
    )
    return tuple(map(with_assumed_costs, memberships) if is_assumed else memberships)


_Fold = tuple[OpId, Evidence]
"""A conversion of the model that another op does as well, with the evidence."""


def _folded_conversions(
    region: DispatchRegion, owners: Owners, conversions: Conversions, evidence: Mapping[OpId, Evidence]
) -> dict[int, _Fold]:
    """Conversions of elements inside the regions of other ops, by index, with the model's ops that they came from.

    A conversion that is folded into matrix products is repeated in each of them, without a location. It is found
    because the product's operand that is converted in the region is the one that the model converts, and it is read
    with the narrow type. If the kernel reads the same value that the model converts, locations show the fusion.
    """
    scalar_conversions = (op for op in region.body if op.parent >= 0 and op.operands and is_conversion(op.name))
    folds = ((op.index, _fold(op, region, owners, conversions, evidence)) for op in scalar_conversions)
    return {index: fold for index, fold in folds if fold is not None}


def _fold(
    op: BodyOp,
    region: DispatchRegion,
    owners: Owners,
    conversions: Conversions,
    evidence: Mapping[OpId, Evidence],
) -> _Fold | None:
    """The model's conversion that an op in the region of another op does; None if there is none.

    Operations with an owner of their own are no conversions of other ops, and conversions with evidence are skipped.
    The kernel's inputs identify the operand; otherwise it is the operand with the same index, though some ops order
    their operands differently.
    """
    outer, number = region.body[op.parent], op.operands[0].argument
    readers, operand = owners.of(outer.location), outer.operands[number]
    if not set(owners.of(op.location)) <= set(readers):
        return None
    path = owners.path(outer.location)
    candidates = [candidate for reader in readers for candidate in conversions.read_by(reader, path)]
    bits = operand.shape.element_bits
    candidates = [
        candidate
        for candidate in candidates
        if candidate.conversion.op not in evidence and candidate.conversion.is_folded_into(bits)
    ]
    read_ops = {index for location in _producer_locations(region, operand) for index in owners.provenance.of(location)}
    fused = ((found.conversion.op, Evidence.FUSED) for found in candidates if found.sources & read_ops)
    absorbed = ((found.conversion.op, Evidence.ABSORBED) for found in candidates if found.number == number)
    return next(fused, next(absorbed, None))


_FORWARDING = RESHAPES | {"iree_tensor_ext.dispatch.tensor.load"}


def _producer_locations(region: DispatchRegion, operand: BodyOperand) -> tuple[Location, ...]:
    """The locations of the producer of an operand, inside or outside of the body."""
    while operand.producer >= 0:
        producer = region.body[operand.producer]
        if producer.name not in _FORWARDING:
            return (producer.location,)
        operand = producer.operands[0]
    return region.reads[operand.argument] if 0 <= operand.argument < len(region.reads) else ()


def _paths(region: DispatchRegion, owners: Owners) -> dict[OpId, list[CallPath]]:
    """The call paths to each op, from the locations with the best evidence.

    Working operations give all paths. Framing operations may name calls whose work is elsewhere, so an op without
    working operations has only the first path.
    """
    found_paths: dict[OpId, dict[CallPath, None]] = {}
    for op in working_operations(region.body, owners):
        for owner, path in owners.op_paths(op.location):
            found_paths.setdefault(owner, {})[path] = None
    paths = {owner: list(op_path_list) for owner, op_path_list in found_paths.items()}
    for location in [*(op.location for op in informative_operations(region.body)), region.location]:
        for owner, path in owners.op_paths(location):
            paths.setdefault(owner, [path])
    return paths


def _costliest(evidence: Mapping[OpId, Evidence], costs: CostModel) -> OpId:
    """The op with the most operations, then the most bytes, then the first; unknown counts as the most."""

    def size(value: Integer) -> tuple[bool, int]:
        return (True, 0) if value is UNKNOWN else (False, value)

    def weight(op: OpId) -> tuple[tuple[bool, int], tuple[bool, int]]:
        return size(costs.operations.get(op, 0)), size(sum_of(costs.bytes_of(op)))

    return max(evidence, key=weight)


# ---- fused ops without a location


@dataclass(frozen=True, slots=True)
class UnknownMembers:
    """The indices of sites with unknown ops, and the indices of the ops that may run in them."""

    sites: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()

    def cleared(self, sites: Sequence[Site]) -> list[Site]:
        """Drop ops that were inferred, not located, and that may just as well run in a site with unknown ops."""
        if not self.sites:
            return list(sites)
        return [
            structs.replace(site, members=tuple(member for member in site.members if self._is_certain(index, member)))
            for index, site in enumerate(sites)
        ]

    def _is_certain(self, site: int, member: Membership) -> bool:
        is_doubtful = member.evidence is Evidence.ABSORBED and member.op.number in self.doubtful
        return site not in self.sites and not is_doubtful


def find_unknown_members(
    dispatches: Sequence[FlowDispatch], bodies: Sequence[DispatchRegion | None], owners: Owners, facts: ModelFacts
) -> UnknownMembers:
    """Find the sites whose ops locations do not identify; with tags there are none."""
    finder = _Finder(owners, facts)
    regions = [
        body or DispatchRegion(dispatch.function, dispatch.location, ())
        for dispatch, body in zip(dispatches, bodies, strict=True)
    ]
    unknown = frozenset(index for index, region in enumerate(regions) if not finder.is_identified(region))
    # Ops that no location names may run in these, too: a part of a softmax, for example.
    return UnknownMembers(unknown, frozenset(op.index for op in facts.ops if computes(op)) if unknown else frozenset())


class _Finder:
    def __init__(self, owners: Owners, facts: ModelFacts) -> None:
        self._owners = owners
        self._provenance = owners.provenance
        self._facts = facts

    def is_identified(self, region: DispatchRegion) -> bool:
        """Whether locations identify the op of all work in a site."""
        body = region.body
        work = working_operations(body, self._owners)
        if any(self._is_anonymous(op, body) for op in work):
            return False
        if work:
            return not (any(self._provenance.is_ambiguous(op.location) for op in work) or self._may_move(body))
        return not any(map(self._provenance.doubtful, self._framing(region)))

    def _may_move(self, body: Sequence[BodyOp]) -> bool:
        """Whether a site may contain one of several moving ops, judging by the framing operations."""
        framing = (op.location for op in informative_operations(body) if op.name != FILL)
        candidates = self._facts.owners(index for location in framing for index in self._provenance.doubtful(location))
        return not self._facts.moves.isdisjoint(candidates)

    def _framing(self, region: DispatchRegion) -> list[Location]:
        """The locations that count as evidence in a site without working operations, as in `members`."""
        body = informative_operations(region.body)
        framing = [op.location for op in body if op.name != FILL]
        fills = [op.location for op in body if op.name == FILL]
        for locations in (framing, fills):
            if any(self._owners.of(location) or self._provenance.doubtful(location) for location in locations):
                return locations
        return [region.location]

    def _is_anonymous(self, op: BodyOp, body: Sequence[BodyOp]) -> bool:
        """Whether an unlocated operation may belong to any of the model's ops with unlocated parts.

        Operations in the region of a single op belong to it if the op has as many parts without a location.
        """
        anonymous = self._provenance.anonymous
        if not anonymous or op.computes_index or is_informative(_innermost(op.location)):
            return False
        if op.parent < 0:
            return True
        outer = body[op.parent]
        if outer.parent < 0 and outer.name not in REGION_OPS:
            return False
        owners = self._owners.of(outer.location)
        own_unlocated = sum(self._unlocated[owner.number] for owner in owners) if len(owners) == 1 else 0
        siblings = [
            sibling for sibling in body if sibling.parent == op.parent and not sibling.name.endswith(REGION_TERMINATORS)
        ]
        unlocated = [sibling for sibling in siblings if not is_informative(_innermost(sibling.location))]
        return not anonymous <= {owner.number for owner in owners} and len(unlocated) > own_unlocated

    @cached_property
    def _unlocated(self) -> Counter[int]:
        """The number of parts without a location, for each op."""
        parts = (part for parts in self._facts.parts_of.values() for part in parts)
        return Counter(
            part.owner
            for part in parts
            if part.index not in self._facts.with_location and not part.name.endswith(REGION_TERMINATORS)
        )


def _innermost(location: Location) -> Location:
    while isinstance(location, CallSite):
        location = location.callee
    return location
