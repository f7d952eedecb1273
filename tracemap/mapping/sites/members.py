"""Which ops do work in a site, and by what evidence.

Read from the dispatch-creation phase, where every call site still has a body and locations of its own. Every operation
of the body, parts included, votes with its tags; only the callee side of call sites counts (see `locations.Tags`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracemap.graph.model import Evidence, Membership, OpId
from tracemap.ir.bodies import BodyOp
from tracemap.ir.phases import DispatchRegion
from tracemap.locations import Location, Tags
from tracemap.mapping.model.conversions import Conversions, is_scalar_conversion
from tracemap.mapping.sites.cost import CostModel
from tracemap.units import UNKNOWN, Integer

_NO_EVIDENCE = frozenset(
    {
        "arith.constant",
        "flow.return",
        "iree_tensor_ext.dispatch.workload.ordinal",
        "linalg.fill",
        "tensor.dim",
        "tensor.empty",
    }
)
"""Body ops whose tags say nothing: values shared by CSE between sites, shapes, and the end of the body."""


@dataclass(frozen=True, slots=True)
class TagOwners:
    """Translates tags to the ids of the ops that can be members: parts to their ops, what does no work to nothing."""

    tags: Tags
    op_of_index: Mapping[int, OpId]
    call_of_index: Mapping[int, OpId]
    conversions: Conversions | None = None
    """The conversions of the model, to be looked for where they were folded into others; None: they are not."""

    def of(self, location: Location) -> tuple[OpId, ...]:
        """The ids of the ops whose tags a location carries, in order, each once."""
        indices = self.tags.of(location)
        return tuple(dict.fromkeys(self.op_of_index[index] for index in indices if index in self.op_of_index))

    def path(self, location: Location) -> tuple[OpId, ...]:
        """The ids of the call ops that led to what stands at a location, outermost first."""
        indices = self.tags.callers(location)
        return tuple(self.call_of_index[index] for index in indices if index in self.call_of_index)


def find_members(region: DispatchRegion, owners: TagOwners) -> tuple[Membership, ...]:
    """The members of a site in the order in which the body first shows them, with costs; exactly one is the root.

    A site in which only fills carry tags belongs to what they fill; one in which nothing does, to its own location.
    """
    places = [op.location for op in region.body if op.name not in _NO_EVIDENCE]
    fills = [op.location for op in region.body if op.name == "linalg.fill"]
    evidence: dict[OpId, Evidence] = {}
    for locations in (places, fills, [region.location]):
        evidence = evidence or _evidence(locations, owners)
    if not evidence:
        return ()
    paths = _paths([*places, *fills, region.location], owners)
    root_by_location = next((op for op in owners.of(region.location) if op in evidence), None)
    folded = _folded_conversions(region.body, owners, evidence)
    for index, op in folded.items():
        evidence.setdefault(op, Evidence.ABSORBED)
        paths.setdefault(op, owners.path(region.body[region.body[index].parent].location))
    costs = CostModel(region.body, _BodyOwners(region.body, owners, evidence, root_by_location, folded))
    root = root_by_location or _costliest(evidence, costs)
    return tuple(
        Membership(op, kind, op == root, costs.operations.get(op, 0), costs.bytes.get(op, 0), paths[op])
        for op, kind in evidence.items()
    )


def _folded_conversions(
    body: Sequence[BodyOp], owners: TagOwners, evidence: Mapping[OpId, Evidence]
) -> dict[int, OpId]:
    """Conversions of elements inside of other ops' regions, by index, and the ops of the model that they came from.

    A conversion folded into a matrix product is done again in each product that uses it, and no location tells so: the
    operand of the product that is converted in the region is the one that the model converts, and is read as narrow.
    """
    found: dict[int, OpId] = {}
    for op in body:
        if owners.conversions is None or op.parent < 0 or not is_scalar_conversion(op.name) or not op.operands:
            continue
        location = body[op.parent].location
        around = owners.of(location)
        if not set(owners.of(op.location)) <= set(around):
            continue
        place = op.operands[0].argument
        made = [owners.conversions.read_by(owner, place, owners.path(location)) for owner in around]
        conversion = next((each for each in made if each is not None and each.op not in evidence), None)
        if conversion is not None and conversion.is_folded_into(body[op.parent].operands[place].shape.element_bits):
            found[op.index] = conversion.op
    return found


def _evidence(locations: Sequence[Location], owners: TagOwners) -> dict[OpId, Evidence]:
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


def _paths(locations: Sequence[Location], owners: TagOwners) -> dict[OpId, tuple[OpId, ...]]:
    """The calls that lead to each op, as the first location that names it tells."""
    found: dict[OpId, tuple[OpId, ...]] = {}
    for location in locations:
        for op in owners.of(location):
            if op not in found:
                found[op] = owners.path(location)
    return found


class _BodyOwners:
    """The owners of each body op for the cost model: its own tags, else those of the op around it, else the root.

    `folded`: the owners of body ops that no location tells.
    """

    def __init__(
        self,
        body: Sequence[BodyOp],
        owners: TagOwners,
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
