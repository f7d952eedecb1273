"""Ops that a fused location names in a site where they do nothing: their work is in a site of their own.

A pass that moves an operation past another one gives what frames it both locations. Named by such a location alone,
with no operation and no byte of the site, an op is no member of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from tracemap.graph.ops import Evidence
from tracemap.graph.program import Membership, Site
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import computes


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
