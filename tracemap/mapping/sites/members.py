"""Which ops do work in a site, and by what evidence.

Read from the dispatch-creation phase, where every call site still has a body and locations of its own. Every operation
of the body, parts included, votes with its location; only the callee side of call sites counts (see `tagging`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracemap.graph.ops import Evidence, OpId
from tracemap.graph.program import CallPath, Membership
from tracemap.ir.bodies import BodyOp, BodyOperand
from tracemap.ir.flow import RESHAPES, DispatchRegion
from tracemap.ir.scalars import is_conversion
from tracemap.locations import Location
from tracemap.mapping.model.conversions import Conversions
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
