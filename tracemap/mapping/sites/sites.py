"""Sites: every place in the host program that calls a kernel, from body (phase 5) to kernel (6) to command (11)."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tracemap.diagnostics import Diagnostic
from tracemap.graph.model import Command, CommandBuffer, Kernel, Membership, Site
from tracemap.ir.phases import DispatchRegion, FlowDispatch, FlowProgram, HalBuffer, HalCommand, HalProgram
from tracemap.locations import Location
from tracemap.mapping.sites.members import TagOwners, find_members
from tracemap.units import UNKNOWN, Integer, Text, plural

_ASYNC_SUFFIX = "$async"


def pair_regions(
    regions: Sequence[DispatchRegion], dispatches: Sequence[FlowDispatch]
) -> tuple[list[DispatchRegion | None], bool]:
    """The body of each flow dispatch, and whether all were paired.

    The i-th region becomes the i-th dispatch. Where a pass in between broke that, equal locations pair in order.
    """
    if [region.location for region in regions] == [dispatch.location for dispatch in dispatches]:
        return list(regions), True
    waiting: dict[Location, list[DispatchRegion]] = defaultdict(list)
    for region in reversed(regions):
        waiting[region.location].append(region)
    paired = [waiting[dispatch.location].pop() if waiting[dispatch.location] else None for dispatch in dispatches]
    return paired, all(region is not None for region in paired)


class SiteBuilder:
    """Makes the sites of a module, one per flow dispatch, in order."""

    def __init__(self, owners: TagOwners) -> None:
        self._owners = owners

    def sites(self, regions: Sequence[DispatchRegion], flow: FlowProgram) -> tuple[list[Site], list[Diagnostic]]:
        """Sites without their commands yet, and what could not be read."""
        paired, complete = pair_regions(regions, flow.dispatches)
        diagnostics = []
        if not complete:
            text = (
                "some dispatches of the flow phase have no body in the dispatch-creation phase: their ops are unknown"
            )
            diagnostics.append(Diagnostic("bodies-missing", text))
        callers = public_callers(flow)
        sites = [
            self._site(ordinal, dispatch, region, callers)
            for ordinal, (dispatch, region) in enumerate(zip(flow.dispatches, paired, strict=True))
        ]
        return sites, diagnostics

    def _site(
        self, ordinal: int, dispatch: FlowDispatch, region: DispatchRegion | None, callers: Mapping[str, str]
    ) -> Site:
        members: tuple[Membership, ...] = () if region is None else find_members(region, self._owners)
        at_load = not dispatch.function
        return Site(
            id=f"site{ordinal}",
            ordinal=ordinal,
            function=UNKNOWN if at_load else callers.get(dispatch.function, dispatch.function),
            path=self._owners.path(dispatch.location),
            kernel=dispatch.kernel,
            initializer=at_load,
            command_buffer=UNKNOWN,
            command_index=UNKNOWN,
            members=members,
        )


def public_callers(flow: FlowProgram) -> dict[str, str]:
    """For each function the public function that users call to reach it.

    The asynchronous form `f$async` is reached through its wrapper `f`; a private function that several public ones
    reach stands for itself.
    """
    names = {function.name for function in flow.functions}
    callers: dict[str, set[str]] = defaultdict(set)
    for function in flow.functions:
        for callee in function.calls:
            callers[callee].add(function.name)
    public = {function.name for function in flow.functions if function.public}
    found: dict[str, str] = {}
    for name in names:
        if name in public:
            plain = name.removesuffix(_ASYNC_SUFFIX)
            found[name] = plain if plain in public else name
        else:
            reaching = {_plain(caller, public) for caller in _reaching(name, callers) if caller in public}
            found[name] = reaching.pop() if len(reaching) == 1 else name
    return found


def _plain(name: str, public: set[str]) -> str:
    plain = name.removesuffix(_ASYNC_SUFFIX)
    return plain if plain in public else name


def _reaching(name: str, callers: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    stack = [name]
    while stack:
        for caller in callers.get(stack.pop(), ()):
            if caller not in seen:
                seen.add(caller)
                stack.append(caller)
    return seen


def kernels_of(flow: FlowProgram, sites: Sequence[Site]) -> tuple[Kernel, ...]:
    """The kernels of the flow phase in order, each with its sites."""
    sites_of: dict[str, list[str]] = {name: [] for name in flow.kernels}
    for site in sites:
        sites_of.setdefault(site.kernel, []).append(site.id)
    return tuple(Kernel(name, tuple(ids)) for name, ids in sites_of.items())


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
        self.merged: dict[str, tuple[str, ...]] = {
            site.id: tuple(other.id for other in lost if _could_be_one(site, other))
            for site in sites
            if site.id in taken
        }

    def of(self, command: HalCommand) -> Text:
        """The id of the site that a command is; `UNKNOWN` where none of its kernel is left."""
        return self._site_of.get(id(command), UNKNOWN)

    def _by_location(self, dispatches: Sequence[FlowDispatch], commands: Sequence[HalCommand]) -> None:
        waiting: dict[tuple[Text, Location], list[str]] = defaultdict(list)
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


def place_commands(
    sites: Sequence[Site], flow: FlowProgram, hal: HalProgram, owners: TagOwners
) -> tuple[tuple[Site, ...], tuple[CommandBuffer, ...], list[Diagnostic]]:
    """Sites with their command buffer and index, the static command buffers, and what could not be joined exactly.

    `owners` translates tags to the ops that a copy or fill can be of.
    """
    dispatches = [command for buffer in hal.buffers for command in buffer.commands if command.kind == "dispatch"]
    join = CommandJoin(sites, flow.dispatches, dispatches)
    callers = public_callers(flow)
    by_id = {site.id: site for site in sites}
    places: dict[str, tuple[Integer, Integer]] = {}
    buffers: list[CommandBuffer] = []
    for ordinal, buffer in enumerate(hal.buffers):
        commands = [_static_command(command, join, owners) for command in buffer.commands]
        for index, command in enumerate(commands):
            if command.site is not UNKNOWN:
                places.setdefault(command.site, (ordinal, index))
        in_buffer = [by_id[command.site] for command in commands if command.site is not UNKNOWN]
        buffers.append(_static_buffer(ordinal, buffer, hal, commands, in_buffer, callers))
    placed = tuple(_with_place(site, *places.get(site.id, (UNKNOWN, UNKNOWN))) for site in sites)
    return placed, tuple(buffers), _join_diagnostics(join, placed)


def _static_command(command: HalCommand, join: CommandJoin, owners: TagOwners) -> Command:
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
    return dataclasses.replace(site, command_buffer=command_buffer, command_index=command_index)


def _join_diagnostics(join: CommandJoin, sites: Sequence[Site]) -> list[Diagnostic]:
    found = []
    if join.inexact:
        text = f"{join.inexact} commands of the hal phase were joined to sites by kernel and order only"
        found.append(Diagnostic("commands-by-order", text))
    merged = {site for sites_of_one in join.merged.values() for site in sites_of_one}
    if merged:
        text = f"{plural(len(merged), 'site')} became one command with another: which of them ran cannot be told"
        found.append(Diagnostic("sites-merged", text))
    lost = sum(1 for site in sites if site.command_buffer is UNKNOWN and site.id not in merged)
    if lost:
        found.append(Diagnostic("sites-without-command", f"{plural(lost, 'site')} without a command in the hal phase"))
    return found
