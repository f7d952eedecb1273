"""Dispatch sites whose ops cannot be identified by location."""

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
from tracemap.mapping.sites.members import FILL, REGION_OPS, informative_operations, working_operations
from tracemap.mapping.sites.owners import Owners


@dataclass(frozen=True, slots=True)
class UnknownMembers:
    """The indices of sites with unknown ops, and the indices of the ops that may run in them."""

    sites: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()

    def cleared(self, sites: Sequence[Site]) -> list[Site]:
        """Drop ops that were inferred, not located, and that may just as well run in a site with unknown ops."""
        if not self.sites:
            return list(sites)
        return [self._without_doubtful(index, site) for index, site in enumerate(sites)]

    def _without_doubtful(self, index: int, site: Site) -> Site:
        members = (
            () if index in self.sites else tuple(member for member in site.members if not self._is_doubtful(member))
        )
        return structs.replace(site, members=members)

    def _is_doubtful(self, member: Membership) -> bool:
        return member.evidence is Evidence.ABSORBED and member.op.number in self.doubtful


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
