"""Sites whose ops locations do not tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec import structs

from tracemap.graph.model import Evidence, Membership, Site
from tracemap.ir.bodies import BodyOp
from tracemap.ir.flow import DispatchRegion, FlowDispatch
from tracemap.locations import CallSite, Location, is_informative
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import REGION_TERMINATORS, computes
from tracemap.mapping.sites.members import FILL, SHOWS_ITS_WORK, telling, working
from tracemap.mapping.sites.owners import Owners


@dataclass(frozen=True, slots=True)
class Untold:
    """The places of the sites that are not told, and the indices of the ops that may work in them."""

    places: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()

    def cleared(self, sites: Sequence[Site]) -> list[Site]:
        """Sites without the members that only reasoning tells, and that may as well work in one that is not told."""
        if not self.places:
            return list(sites)
        return [self._cleared(place, site) for place, site in enumerate(sites)]

    def _cleared(self, place: int, site: Site) -> Site:
        members = () if place in self.places else tuple(member for member in site.members if not self._is_guess(member))
        return structs.replace(site, members=members)

    def _is_guess(self, member: Membership) -> bool:
        return member.evidence is Evidence.ABSORBED and member.op.number in self.doubtful


def find_untold(
    dispatches: Sequence[FlowDispatch], bodies: Sequence[DispatchRegion | None], owners: Owners, facts: ModelFacts
) -> Untold:
    """What locations do not tell of the sites with these bodies; with tags there is nothing of that."""
    finder = _Finder(owners, facts)
    regions = [
        body or DispatchRegion(dispatch.function, dispatch.location, ())
        for dispatch, body in zip(dispatches, bodies, strict=True)
    ]
    places = frozenset(place for place, region in enumerate(regions) if not finder.is_told(region))
    # Also what no location names may work in these: a part of a softmax, say.
    return Untold(places, frozenset(op.index for op in facts.ops if computes(op)) if places else frozenset())


class _Finder:
    def __init__(self, owners: Owners, facts: ModelFacts) -> None:
        self._owners = owners
        self._provenance = owners.provenance
        self._facts = facts

    def is_told(self, region: DispatchRegion) -> bool:
        """Whether of all that works in a site locations tell the op that it is of."""
        body = region.body
        work = working(body, self._owners)
        if any(self._is_anonymous(op, body) for op in work):
            return False
        if work:
            return not (any(self._provenance.is_untold(op.location) for op in work) or self._may_move(body))
        return not any(map(self._provenance.doubtful, self._framing(region)))

    def _may_move(self, body: Sequence[BodyOp]) -> bool:
        """Whether one of several ops that only move elements may be a member, by what frames the work."""
        framing = (op.location for op in telling(body) if op.name != FILL)
        candidates = self._facts.owners(index for each in framing for index in self._provenance.doubtful(each))
        return not self._facts.moves.isdisjoint(candidates)

    def _framing(self, region: DispatchRegion) -> list[Location]:
        """The locations that tell of a site in which nothing does work, as `evidence` asks them."""
        body = telling(region.body)
        framing = [op.location for op in body if op.name != FILL]
        fills = [op.location for op in body if op.name == FILL]
        for locations in (framing, fills):
            if any(self._owners.of(each) or self._provenance.doubtful(each) for each in locations):
                return locations
        return [region.location]

    def _is_anonymous(self, op: BodyOp, body: Sequence[BodyOp]) -> bool:
        """Whether the work of an operation without a location may be that of any op that the model has no location of.

        What stands in the region of an operation for one op is that op's, if it has as much work without a location.
        """
        anonymous = self._provenance.anonymous
        if not anonymous or op.computes_index or is_informative(_innermost(op.location)):
            return False
        if op.parent < 0:
            return True
        around = body[op.parent]
        if around.parent < 0 and around.name not in SHOWS_ITS_WORK:
            return False
        owners = self._owners.of(around.location)
        own = sum(self._unlocated[owner.number] for owner in owners) if len(owners) == 1 else 0
        inside = [each for each in body if each.parent == op.parent and not each.name.endswith(REGION_TERMINATORS)]
        unknown = [each for each in inside if not is_informative(_innermost(each.location))]
        return not anonymous <= {owner.number for owner in owners} and len(unknown) > own

    @cached_property
    def _unlocated(self) -> Counter[int]:
        """Of each op how many of its parts have no location."""
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
