"""Dispatch sites: every place in the host program that calls a kernel, with its commands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from msgspec import structs

from tracemap.diagnostics import Diagnostic
from tracemap.graph.model import Command, CommandBuffer, Evidence, Kernel, Membership, Site
from tracemap.ir.flow import Around, DispatchRegion, FlowDispatch, FlowProgram
from tracemap.ir.hal import HalBuffer, HalCommand, HalProgram
from tracemap.locations import Location
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.sites.members import find_members
from tracemap.mapping.sites.owners import Owners
from tracemap.units import UNKNOWN, Integer, Text, plural

# ---- exports
#
# Names the kernels of commands where the hal phase only numbers them, as that of IREE before 3.12 does.
#
# A command keeps the location of its dispatch in the flow phase, so each number is known by the kernels that all of
# its commands could be. Where a location has several kernels (an op that was split), numbers go in the order of the
# kernels, which the linking of executables keeps.


Export = tuple[str, int]
"""The executable, by the global that holds it, and the number of the export in it."""


def with_kernels(hal: HalProgram, dispatches: Sequence[FlowDispatch]) -> HalProgram:
    """The hal phase with the kernels of numbered exports; as it is where the phase names them itself.

    Args:
        hal: the phase.
        dispatches: of the flow phase, in order.
    """
    commands = [command for buffer in hal.buffers for command in buffer.commands if isinstance(command.export, tuple)]
    if not commands:
        return hal
    names = kernels_of_exports(commands, dispatches)
    buffers = tuple(
        replace(buffer, commands=tuple(_named(command, names) for command in buffer.commands)) for buffer in hal.buffers
    )
    return replace(hal, buffers=buffers)


def _named(command: HalCommand, names: Mapping[Export, str]) -> HalCommand:
    if not isinstance(command.export, tuple):
        return command
    return replace(command, kernel=names.get(command.export, UNKNOWN))


def kernels_of_exports(commands: Sequence[HalCommand], dispatches: Sequence[FlowDispatch]) -> dict[Export, str]:
    """The kernel of each export, as far as it can be told; exports of one executable are different kernels."""
    left = _candidates(commands, dispatches)
    names: dict[Export, str] = {}
    while any(left.values()):
        # Those without a choice; where none is left, the first number takes the first of its kernels.
        certain = [export for export, kernels in left.items() if len(kernels) == 1]
        chosen = certain or [min(export for export, kernels in left.items() if kernels)]
        names.update((export, left.pop(export)[0]) for export in chosen)
        taken = {(executable, kernel) for (executable, _), kernel in names.items()}
        left = {
            (executable, number): [kernel for kernel in kernels if (executable, kernel) not in taken]
            for (executable, number), kernels in left.items()
        }
    return names


def _candidates(commands: Sequence[HalCommand], dispatches: Sequence[FlowDispatch]) -> dict[Export, list[str]]:
    """Of each export the kernels that it can be by the locations of all of its commands, in the order of the phase."""
    at: dict[Location, dict[str, None]] = defaultdict(dict)
    for dispatch in dispatches:
        at[dispatch.location].setdefault(dispatch.kernel)
    found: dict[Export, list[str]] = {}
    for export, location in _places(commands):
        kernels = at.get(location, {})
        found[export] = [kernel for kernel in found.get(export, list(kernels)) if kernel in kernels]
    return found


def _places(commands: Sequence[HalCommand]) -> Iterator[tuple[Export, Location]]:
    return ((command.export, command.location) for command in commands if isinstance(command.export, tuple))


# ---- commands
#
# The command of each site: dispatches of the flow phase joined to commands of the hal phase (phase 11).


@dataclass(frozen=True, slots=True)
class PlacedSites:
    """Sites with their command buffer and index, the buffers, and what could not be joined exactly.

    `left_out`: the ids of the sites that have no command, and are not one with another.
    """

    sites: tuple[Site, ...]
    buffers: tuple[CommandBuffer, ...]
    diagnostics: tuple[Diagnostic, ...]
    left_out: frozenset[str]


def place_commands(
    sites: Sequence[Site],
    dispatches: Sequence[FlowDispatch],
    hal: HalProgram,
    owners: Owners,
    callers: Mapping[str, str],
) -> PlacedSites:
    """Find the command of each site.

    Args:
        sites: of the module, in order.
        dispatches: of the sites, in order.
        hal: the hal phase.
        owners: of copies and fills.
        callers: of each function the public one that users call to reach it.
    """
    commands = [command for buffer in hal.buffers for command in buffer.commands if command.kind == "dispatch"]
    join = CommandJoin(sites, dispatches, commands)
    by_id = {site.id: site for site in sites}
    places: dict[str, tuple[Integer, Integer]] = {}
    buffers: list[CommandBuffer] = []
    for ordinal, buffer in enumerate(hal.buffers):
        static = [_static_command(command, join, owners) for command in buffer.commands]
        for index, command in enumerate(static):
            if command.site is not UNKNOWN:
                places.setdefault(command.site, (ordinal, index))  # of duplicates the first
        in_buffer = [by_id[command.site] for command in static if command.site is not UNKNOWN]
        buffers.append(_static_buffer(ordinal, buffer, hal, static, in_buffer, callers))
    placed = tuple(_with_place(site, *places.get(site.id, (UNKNOWN, UNKNOWN))) for site in sites)
    left_out = frozenset(_left_out(join, placed))
    return PlacedSites(placed, tuple(buffers), tuple(_join_diagnostics(join, len(left_out))), left_out)


class CommandJoin:
    """Joins flow dispatches to commands of the hal phase by kernel and location.

    Both phases keep each site's own root location, so the pair is nearly always unique; among equals the order, which
    the phases keep within a function, decides. `merged` has, by site, those that have no command of their own any more
    because the compiler made them one with it (equal arms of a branch).
    """

    def __init__(
        self, sites: Sequence[Site], dispatches: Sequence[FlowDispatch], commands: Sequence[HalCommand]
    ) -> None:
        self._sites = sites
        self._site_of: dict[int, str] = {}
        self._by_location(dispatches, commands)
        self._by_order(commands)
        taken = set(self._site_of.values())
        lost = [site for site in sites if site.id not in taken]
        around = {site.id: dispatch.around for site, dispatch in zip(sites, dispatches, strict=True)}
        self.merged: dict[str, tuple[str, ...]] = {
            site.id: tuple(
                other.id
                for other in lost
                if _could_be_one(site, other) and _may_exclude(around[site.id], around[other.id])
            )
            for site in sites
            if site.id in taken
        }

    @property
    def merged_sites(self) -> frozenset[str]:
        """The sites that are one command with another."""
        return frozenset(site for sites in self.merged.values() for site in sites)

    def of(self, command: HalCommand) -> Text:
        """The id of the site that a command is; `UNKNOWN` where none of its kernel is left."""
        return self._site_of.get(id(command), UNKNOWN)

    def _by_location(self, dispatches: Sequence[FlowDispatch], commands: Sequence[HalCommand]) -> None:
        # By kernel too, for dispatches that one op was split into share its location.
        waiting: dict[tuple[Text, Location], list[str]] = defaultdict(list)
        # Reversed, so that the first of equal ones is popped first.
        for site, dispatch in reversed(list(zip(self._sites, dispatches, strict=True))):
            waiting[dispatch.kernel, dispatch.location].append(site.id)
        for command in commands:
            found = waiting.get((command.kernel, command.location), [])
            if found:
                # The last one stays: a command that the compiler duplicated is the same site again.
                self._site_of[id(command)] = found.pop() if len(found) > 1 else found[0]

    def _by_order(self, commands: Sequence[HalCommand]) -> None:
        self.inexact = 0
        taken = set(self._site_of.values())
        left: dict[str, list[str]] = defaultdict(list)
        for site in self._sites:
            if site.id not in taken:
                left[site.kernel].append(site.id)
        for command in commands:
            if id(command) not in self._site_of:
                self.inexact += 1
                waiting = left.get(str(command.kernel), [])
                if waiting:
                    self._site_of[id(command)] = waiting.pop(0)


def _could_be_one(site: Site, lost: Site) -> bool:
    return (site.kernel, site.function, site.initializer) == (lost.kernel, lost.function, lost.initializer)


def _may_exclude(one: Around, other: Around) -> bool:
    """Whether of two call sites one may run without the other: else none is one command for both.

    They do in two blocks of one operation: arms of a branch, or what branches lead to. Of functions nothing is known.
    """
    if not one or not other or one[0][0] != other[0][0]:
        return True
    (first, _), (second, _) = next((pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]), _APART)
    return first == second


_APART = ((0, 0), (1, 0))
"""Of call sites in the same block, or one in an operation of the block of the other, no pair is different."""


def _static_command(command: HalCommand, join: CommandJoin, owners: Owners) -> Command:
    site = join.of(command)
    merged = () if site is UNKNOWN else join.merged.get(site, ())
    ops = () if command.kind in ("dispatch", "barrier") else owners.of(command.location)
    return Command(command.kind, command.kernel, site, command.workgroups, merged, ops)


def _static_buffer(
    ordinal: int,
    buffer: HalBuffer,
    hal: HalProgram,
    commands: Sequence[Command],
    sites: Sequence[Site],
    callers: Mapping[str, str],
) -> CommandBuffer:
    at_load = not buffer.function or buffer.function in hal.called_by_initializers
    function: Text = UNKNOWN if at_load else callers.get(buffer.function, buffer.function)
    return CommandBuffer(
        ordinal=ordinal,
        function=sites[0].function if sites else function,
        memoized=at_load and not buffer.one_shot,
        initializer=all(site.initializer for site in sites) if sites else at_load and buffer.one_shot,
        commands=tuple(commands),
    )


def _with_place(site: Site, command_buffer: Integer, command_index: Integer) -> Site:
    return structs.replace(site, command_buffer=command_buffer, command_index=command_index)


def _left_out(join: CommandJoin, sites: Sequence[Site]) -> Iterator[str]:
    """The sites that no command is of.

    None where no site has one: then the program has commands of a kind that is not read.
    """
    if all(site.command_buffer is UNKNOWN for site in sites):
        return iter(())
    merged = join.merged_sites
    return (site.id for site in sites if site.command_buffer is UNKNOWN and site.id not in merged)


def _join_diagnostics(join: CommandJoin, left_out: int) -> list[Diagnostic]:
    found = []
    if join.inexact:
        text = f"{join.inexact} commands of the hal phase were joined to sites by kernel and order only"
        found.append(Diagnostic("commands-by-order", text))
    merged = plural(len(join.merged_sites), "site")
    if join.merged_sites:
        text = f"{merged} became one command with another: which of them ran cannot be told"
        found.append(Diagnostic("sites-merged", text))
    if left_out:
        found.append(
            Diagnostic("sites-without-command", f"{plural(left_out, 'site')} without a command in the hal phase")
        )
    return found


# ---- sites
#
# Sites: every place in the host program that calls a kernel, with its body (phase 5) and its kernel (phase 6).


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
