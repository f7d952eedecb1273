"""Which ops do work in a site, and by what evidence.

Read from the dispatch-creation phase, where every call site still has a body and locations of its own. Every operation
of the body, parts included, votes with its tags; only the callee side of call sites counts (see `locations.Tags`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracemap.graph.model import Evidence, Membership
from tracemap.ir.bodies import BodyOp
from tracemap.ir.phases import DispatchRegion
from tracemap.locations import Location, Tags
from tracemap.mapping.cost import CostModel
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
    op_of_index: Mapping[int, str]

    def of(self, location: Location) -> tuple[str, ...]:
        """The ids of the ops whose tags a location carries, in order, each once."""
        indices = self.tags.of(location)
        return tuple(dict.fromkeys(self.op_of_index[index] for index in indices if index in self.op_of_index))


def find_members(region: DispatchRegion, owners: TagOwners) -> tuple[Membership, ...]:
    """The members of a site in the order in which the body first shows them, with costs; exactly one is the root.

    A site in which only fills carry tags belongs to what they fill; one in which nothing does, to its own location.
    """
    evidence = _evidence([op for op in region.body if op.name not in _NO_EVIDENCE], owners)
    if not evidence:
        evidence = _evidence([op for op in region.body if op.name == "linalg.fill"], owners)
    if not evidence:
        evidence = _strength({}, owners.of(region.location))
    if not evidence:
        return ()
    root_by_location = next((op for op in owners.of(region.location) if op in evidence), "")
    costs = CostModel(region.body, _BodyOwners(region.body, owners, evidence, root_by_location))
    root = root_by_location or _costliest(evidence, costs)
    return tuple(
        Membership(op, kind, op == root, costs.operations.get(op, 0), costs.bytes.get(op, 0))
        for op, kind in evidence.items()
    )


def _evidence(body: Sequence[BodyOp], owners: TagOwners) -> dict[str, Evidence]:
    found: dict[str, Evidence] = {}
    for op in body:
        _strength(found, owners.of(op.location))
    return found


def _strength(found: dict[str, Evidence], ops: tuple[str, ...]) -> dict[str, Evidence]:
    """Note that these ops stand together on one location: alone is stronger than one of several."""
    for op in ops:
        if len(ops) == 1:
            found[op] = Evidence.LOCATED
        else:
            found.setdefault(op, Evidence.FUSED)
    return found


class _BodyOwners:
    """The owners of each body op for the cost model: its own tags, else those of the op around it, else the root."""

    def __init__(self, body: Sequence[BodyOp], owners: TagOwners, evidence: Mapping[str, Evidence], root: str) -> None:
        self._body = body
        self._owners = owners
        self._evidence = evidence
        self._fallback = (root or next(iter(evidence)),)

    def __call__(self, op: BodyOp) -> tuple[str, ...]:
        while True:
            own = tuple(owner for owner in self._owners.of(op.location) if owner in self._evidence)
            if own:
                return own
            if op.parent < 0:
                return self._fallback
            op = self._body[op.parent]


def _costliest(evidence: Mapping[str, Evidence], costs: CostModel) -> str:
    """The op with the most operations, then bytes, then the first; unknown counts as the most."""

    def size(value: Integer) -> tuple[bool, int]:
        return (True, 0) if value is UNKNOWN else (False, value)

    def weight(op: str) -> tuple[tuple[bool, int], tuple[bool, int]]:
        return size(costs.operations.get(op, 0)), size(costs.bytes.get(op, 0))

    return max(evidence, key=weight)
