"""What memberships are estimated to cost where sizes are not known before: so much if each of these were the same.

While a site's members are found, their amounts are those of the assumed sizes, so that they are split, added and
compared as all others. In the map these stand by themselves, and the amounts are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from tracemap.graph.program import Membership, Site
from tracemap.ir.types import product
from tracemap.units import ASSUMED_SIZE, UNKNOWN, Integer


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
