"""Sites: every place in the host program that calls a kernel, from body (phase 5) to kernel (6) to command (11)."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tracemap.graph.model import Command, CommandBuffer, Diagnostic, Kernel, Membership, Site
from tracemap.ir.phases import DispatchRegion, FlowDispatch, FlowProgram, HalBuffer, HalCommand, HalProgram
from tracemap.locations import Location
from tracemap.mapping.members import TagOwners, find_members
from tracemap.units import UNKNOWN, Integer, Text

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
    the phases keep within a function, decides.
    """

    def __init__(self, sites: Sequence[Site], dispatches: Sequence[FlowDispatch]) -> None:
        self._waiting: dict[tuple[Text, Location], list[Site]] = defaultdict(list)
        for site, dispatch in reversed(list(zip(sites, dispatches, strict=True))):
            self._waiting[dispatch.kernel, dispatch.location].append(site)
        self._by_kernel: dict[Text, list[Site]] = defaultdict(list)
        self._taken: set[str] = set()
        for site in sites:
            self._by_kernel[site.kernel].append(site)
        self.inexact = 0

    def take(self, command: HalCommand) -> Text:
        """The id of the site that a command is; `UNKNOWN` where none of its kernel is left."""
        exact = self._waiting[command.kernel, command.location]
        if exact:
            return self._mark(exact.pop())
        left = [site for site in self._by_kernel[command.kernel] if site.id not in self._taken]
        self.inexact += 1
        return self._mark(left[0]) if left else UNKNOWN

    def _mark(self, site: Site) -> str:
        self._taken.add(site.id)
        return site.id


def place_commands(
    sites: Sequence[Site], flow: FlowProgram, hal: HalProgram
) -> tuple[tuple[Site, ...], tuple[CommandBuffer, ...], list[Diagnostic]]:
    """Sites with their command buffer and index, the static command buffers, and what could not be joined exactly."""
    join = CommandJoin(sites, flow.dispatches)
    callers = public_callers(flow)
    by_id = {site.id: site for site in sites}
    places: dict[str, tuple[Integer, Integer]] = {}
    buffers: list[CommandBuffer] = []
    for ordinal, buffer in enumerate(hal.buffers):
        commands = []
        for index, command in enumerate(buffer.commands):
            site = join.take(command) if command.kind == "dispatch" else UNKNOWN
            commands.append(Command(command.kind, command.kernel, site, command.workgroups))
            if site is not UNKNOWN:
                places[site] = (ordinal, index)
        in_buffer = [by_id[command.site] for command in commands if command.site is not UNKNOWN]
        buffers.append(_static_buffer(ordinal, buffer, hal, commands, in_buffer, callers))
    placed = tuple(_with_place(site, *places.get(site.id, (UNKNOWN, UNKNOWN))) for site in sites)
    return placed, tuple(buffers), _join_diagnostics(join, placed)


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
    lost = sum(1 for site in sites if site.command_buffer is UNKNOWN)
    if lost:
        found.append(Diagnostic("sites-without-command", f"{lost} sites have no command in the hal phase"))
    return found
