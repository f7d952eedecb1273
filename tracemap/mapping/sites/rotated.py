"""What of a body rotates halves: operations that no location tells, in the region of the op that uses the rotation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from tracemap.graph.ops import OpId, in_order
from tracemap.graph.program import Step
from tracemap.ir.bodies import BodyOp
from tracemap.ir.flow import DispatchRegion
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.rotated import Rotation
from tracemap.mapping.sites.owners import Owners
from tracemap.units import UNKNOWN

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
