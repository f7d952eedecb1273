"""Ops that a kernel of the model's own stands in for together with another op, whose location its call has.

A preprocessing pass that puts one call in place of several ops gives it the location of the last of them; of the others
nothing is left. So what is computed for that op alone, and is gone right behind preprocessing, is taken for a part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from tracemap.graph.ops import Evidence, OpId
from tracemap.graph.program import Site
from tracemap.ir.flow import DispatchRegion
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import computes
from tracemap.units import UNKNOWN

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

        parts = [*facts.dataflow.behind(last.op.number, is_part, _MOST)]
        plain = structs.replace(last, evidence=Evidence.ABSORBED, root=False, operations=UNKNOWN, bytes=UNKNOWN)
        more = (structs.replace(plain, op=OpId.of(part)) for part in parts)
        return structs.replace(site, members=(last, *more))

    return [added(site, body) for site, body in zip(sites, bodies, strict=True)]
