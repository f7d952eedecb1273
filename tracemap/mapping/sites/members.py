"""Which ops do work in a site, and by what evidence.

Read from the dispatch-creation phase, where every call site still has a body and locations of its own. Every operation
of the body, parts included, votes with its location; only the callee side of call sites counts (see `tagging`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracemap.graph.ops import Evidence, OpId
from tracemap.graph.program import CallPath, Membership
from tracemap.ir.bodies import BodyOp
from tracemap.ir.flow import DispatchRegion
from tracemap.mapping.model.conversions import Conversion, Conversions, is_scalar_conversion
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.sites.amounts import assumed
from tracemap.mapping.sites.cost import CostModel
from tracemap.mapping.sites.evidence import find_evidence, telling, working
from tracemap.mapping.sites.owners import Owners
from tracemap.mapping.sites.rotated import rotated
from tracemap.units import UNKNOWN, Integer


def find_members(region: DispatchRegion, owners: Owners, facts: ModelFacts) -> tuple[Membership, ...]:
    """The members of a site in the order in which the body first shows them, with costs; exactly one is the root."""
    body = region.body
    evidence = find_evidence(region, owners, facts.moves)
    if not evidence:
        return ()
    paths = _paths(region, owners)
    root_by_location = next((op for op in owners.of(region.location) if op in evidence), None)
    folded = _folded_conversions(body, owners, facts.conversions, evidence)
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


def _folded_conversions(
    body: Sequence[BodyOp], owners: Owners, conversions: Conversions, evidence: Mapping[OpId, Evidence]
) -> dict[int, OpId]:
    """Conversions of elements inside of other ops' regions, by index, and the ops of the model that they came from.

    A conversion folded into a matrix product is done again in each product that uses it, and no location tells so: the
    operand of the product that is converted in the region is the one that the model converts, and is read as narrow.
    """
    found: dict[int, OpId] = {}
    for op in body:
        if op.parent >= 0 and op.operands and is_scalar_conversion(op.name):
            around, operand = body[op.parent], op.operands[0].argument
            conversion = _converted(op, around, owners, conversions, evidence)
            if conversion is not None and conversion.is_folded_into(around.operands[operand].shape.element_bits):
                found[op.index] = conversion.op
    return found


def _converted(
    op: BodyOp, around: BodyOp, owners: Owners, conversions: Conversions, evidence: Mapping[OpId, Evidence]
) -> Conversion | None:
    """The conversion of the model that makes what an op converts in the region of another; None where none does.

    What has an owner of its own is no conversion of somebody else's, and what has evidence is not looked for.
    """
    candidates = owners.of(around.location)
    if not set(owners.of(op.location)) <= set(candidates):
        return None
    path, operand = owners.path(around.location), op.operands[0].argument
    made = (conversions.read_by(owner, operand, path) for owner in candidates)
    return next((each for each in made if each is not None and each.op not in evidence), None)


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
