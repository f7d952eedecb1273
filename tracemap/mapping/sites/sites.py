"""Sites: every place in the host program that calls a kernel, with its body (phase 5) and its kernel (phase 6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from msgspec import structs

from tracemap.graph.ops import Evidence
from tracemap.graph.program import Kernel, Membership, Site
from tracemap.ir.flow import DispatchRegion, FlowDispatch, FlowProgram
from tracemap.locations import Location
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.sites.members import find_members
from tracemap.mapping.sites.owners import Owners
from tracemap.units import UNKNOWN


def pair_bodies(
    regions: Sequence[DispatchRegion], dispatches: Sequence[FlowDispatch]
) -> tuple[DispatchRegion | None, ...]:
    """The region of each dispatch, in the order of the dispatches; None where it cannot be told.

    The i-th region becomes the i-th dispatch. Where a pass in between broke that, equal locations pair in order.
    """
    if [region.location for region in regions] == [dispatch.location for dispatch in dispatches]:
        return tuple(regions)
    waiting: dict[Location, list[DispatchRegion]] = defaultdict(list)
    for region in reversed(regions):  # so that the first of equal ones is popped first
        waiting[region.location].append(region)
    return tuple(waiting[dispatch.location].pop() if waiting[dispatch.location] else None for dispatch in dispatches)


class SiteBuilder:
    """Makes the sites of a module, one per dispatch.

    `others`: owners that count where `owners` have no part in a site: a kernel that only makes a constant is of that
    constant. `callers`: of each function the public one that users call to reach it (`callers.public_callers`);
    `at_load`: the functions that only initializers reach.
    """

    def __init__(
        self, owners: Owners, others: Owners, facts: ModelFacts, callers: Mapping[str, str], at_load: Set[str]
    ) -> None:
        self._owners = owners
        self._others = others
        self._facts = facts
        self._callers = callers
        self._at_load = at_load

    def sites(self, dispatches: Sequence[FlowDispatch], bodies: Sequence[DispatchRegion | None]) -> tuple[Site, ...]:
        """Sites in order, without their commands yet, and without the members that no location tells."""
        pairs = zip(dispatches, bodies, strict=True)
        return tuple(self._site(ordinal, dispatch, region) for ordinal, (dispatch, region) in enumerate(pairs))

    def with_served(self, site: Site, region: DispatchRegion, served: Sequence[Location]) -> Site:
        """A site that nothing in it says anything of, with the op that the compiler made it for.

        `served`: the locations of what uses its results, nearest first. To bring the elements of an argument into
        another order, say, the compiler makes a kernel that has but the argument's location.
        """
        location = next((each for each in served if self._others.of(each)), None)
        if location is None:
            return site
        body = tuple(replace(op, location=location) for op in region.body)
        members = self._members(replace(region, location=location, body=body))
        return structs.replace(site, members=tuple(structs.replace(m, evidence=Evidence.ABSORBED) for m in members))

    def _site(self, ordinal: int, dispatch: FlowDispatch, region: DispatchRegion | None) -> Site:
        at_load = not dispatch.function or dispatch.function in self._at_load
        return Site(
            id=f"site{ordinal}",
            ordinal=ordinal,
            function=UNKNOWN if at_load else self._callers.get(dispatch.function, dispatch.function),
            path=self._owners.path(dispatch.location),
            kernel=dispatch.kernel,
            initializer=at_load,
            command_buffer=UNKNOWN,
            command_index=UNKNOWN,
            members=self._callers_of(dispatch) if region is None else self._members(region),
        )

    def _callers_of(self, dispatch: FlowDispatch) -> tuple[Membership, ...]:
        """The op that a dispatch without a body names: of a kernel that the model itself brings, no more is known."""
        members = self._members(DispatchRegion(dispatch.function, dispatch.location, ()))
        return tuple(structs.replace(member, operations=UNKNOWN, bytes=UNKNOWN) for member in members)

    def _members(self, region: DispatchRegion) -> tuple[Membership, ...]:
        found: tuple[Membership, ...] = ()
        for owners in (self._owners, self._others):
            found = found or find_members(region, owners, self._facts)
        return found


def sites_by_op(sites: Sequence[Site]) -> dict[int, list[Site]]:
    """Op index -> the sites that it is a member of, in order."""
    found: dict[int, list[Site]] = {}
    for site in sites:
        for member in site.members:
            found.setdefault(member.op.number, []).append(site)
    return found


def kernels_of(flow: FlowProgram, sites: Sequence[Site]) -> tuple[Kernel, ...]:
    """The kernels of the flow phase in order, each with its sites."""
    sites_of: dict[str, list[str]] = {name: [] for name in flow.kernels}
    for site in sites:
        sites_of.setdefault(site.kernel, []).append(site.id)
    return tuple(Kernel(name, tuple(ids)) for name, ids in sites_of.items())
