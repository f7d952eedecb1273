"""Dispatch sites: all places in the host program that launch kernels, with their commands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Protocol

from msgspec import structs

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.locations import Location
from tracemap.core.units import UNKNOWN, Integer, Text, plural
from tracemap.ir.flow import DispatchRegion, EnclosingOps, FlowDispatch, FlowProgram
from tracemap.ir.hal import HalBuffer, HalCommand, HalProgram
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.build.sites.members import find_members
from tracemap.map.build.sites.owners import Owners
from tracemap.map.model import Command, CommandBuffer, Evidence, Kernel, Membership, Site

# ---- exports
#
# Finds the kernels of commands if the hal phase only numbers them, as in IREE before 3.12.
#
# A command keeps the location of its dispatch in the flow phase, which narrows down the kernels of each number. If a
# location has several kernels (an op that was split), numbers are assigned in the order of the kernels, which the
# linking of executables keeps.

Export = tuple[str, int]
"""The global that holds the executable, and the number of the export in it."""


def with_kernels(hal: HalProgram, dispatches: Sequence[FlowDispatch]) -> HalProgram:
    """The hal phase with the kernels of numbered exports; unchanged if the phase names kernels itself."""
    commands = [command for buffer in hal.buffers for command in buffer.commands if isinstance(command.export, tuple)]
    if not commands:
        return hal
    names = kernels_of_exports(commands, dispatches)
    buffers = tuple(
        replace(buffer, commands=tuple(_with_kernel(command, names) for command in buffer.commands))
        for buffer in hal.buffers
    )
    return replace(hal, buffers=buffers)


def _with_kernel(command: HalCommand, names: Mapping[Export, str]) -> HalCommand:
    if not isinstance(command.export, tuple):
        return command
    return replace(command, kernel=names.get(command.export, UNKNOWN))


def kernels_of_exports(commands: Sequence[HalCommand], dispatches: Sequence[FlowDispatch]) -> dict[Export, str]:
    """The kernel of each export, as far as known; different exports of an executable are different kernels."""
    remaining = _candidates(commands, dispatches)
    names: dict[Export, str] = {}
    while any(remaining.values()):
        # Take unambiguous exports first; if there are none, the lowest number gets the first of its kernels.
        certain = [export for export, kernels in remaining.items() if len(kernels) == 1]
        resolved = certain or [min(export for export, kernels in remaining.items() if kernels)]
        names.update((export, remaining.pop(export)[0]) for export in resolved)
        taken = {(executable, kernel) for (executable, _), kernel in names.items()}
        remaining = {
            (executable, index): [kernel for kernel in kernels if (executable, kernel) not in taken]
            for (executable, index), kernels in remaining.items()
        }
    return names


def _candidates(commands: Sequence[HalCommand], dispatches: Sequence[FlowDispatch]) -> dict[Export, list[str]]:
    """The possible kernels of each export, by the locations of all its commands, in the order of the phase."""
    kernels_at: dict[Location, dict[str, None]] = defaultdict(dict)
    for dispatch in dispatches:
        kernels_at[dispatch.location].setdefault(dispatch.kernel)
    candidates: dict[Export, list[str]] = {}
    for command in commands:
        if isinstance(command.export, tuple):
            kernels = kernels_at.get(command.location, {})
            previous = candidates.get(command.export, list(kernels))
            candidates[command.export] = [kernel for kernel in previous if kernel in kernels]
    return candidates


# ---- commands
#
# The command of each site: joins dispatches of the flow phase to commands of the hal phase (phase 11).


@dataclass(frozen=True, slots=True)
class PlacedSites:
    """Sites with their command buffer and index, the buffers, and diagnostics of inexact joins.

    `left_out`: the ids of sites without a command, not counting those that were merged with another site.
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
    """Find the command of each site; sites and dispatches are in the order of the flow phase.

    `owners`: for copies and fills; `callers`: function -> the public function that users call to reach it.
    """
    commands = [command for buffer in hal.buffers for command in buffer.commands if command.kind == "dispatch"]
    join = CommandJoin(sites, dispatches, commands)
    by_id = {site.id: site for site in sites}
    places: dict[str, tuple[Integer, Integer]] = {}
    buffers: list[CommandBuffer] = []
    for ordinal, buffer in enumerate(hal.buffers):
        command_records = [_static_command(command, join, owners) for command in buffer.commands]
        for index, command in enumerate(command_records):
            if command.site is not UNKNOWN:
                places.setdefault(command.site, (ordinal, index))  # the first of duplicates
        buffer_sites = [by_id[command.site] for command in command_records if command.site is not UNKNOWN]
        buffers.append(_static_buffer(ordinal, buffer, hal, command_records, buffer_sites, callers))
    placed_sites = tuple(
        structs.replace(site, command_buffer=buffer, command_index=index)
        for site in sites
        for buffer, index in [places.get(site.id, (UNKNOWN, UNKNOWN))]
    )
    left_out = _left_out(join, placed_sites)
    return PlacedSites(placed_sites, tuple(buffers), tuple(_join_diagnostics(join, len(left_out))), left_out)


class Launch(Protocol):
    """A dispatch command of a later phase."""

    @property
    def kernel(self) -> Text:
        """Its kernel; unknown if the phase does not name it."""

    @property
    def location(self) -> Location:
        """Its location."""


class CommandJoin:
    """Joins flow dispatches to commands of a later phase by kernel and location.

    Both phases keep each site's own root location, so the pair is nearly always unique. Among equals the order decides,
    which the phases keep within a function. `merged`: for each site, the sites without a command of their own, because
    the compiler merged them with it (equal arms of a branch).
    """

    def __init__(self, sites: Sequence[Site], dispatches: Sequence[FlowDispatch], commands: Sequence[Launch]) -> None:
        self._sites = sites
        self._site_of: dict[int, str] = {}
        self._by_location(dispatches, commands)
        self._by_order(commands)
        taken = set(self._site_of.values())
        unmatched = [site for site in sites if site.id not in taken]
        around = {site.id: dispatch.around for site, dispatch in zip(sites, dispatches, strict=True)}
        self.merged: dict[str, tuple[str, ...]] = {
            site.id: tuple(
                candidate.id
                for candidate in unmatched
                if _KERNEL_AND_FUNCTION(site) == _KERNEL_AND_FUNCTION(candidate)
                and _may_be_exclusive(around[site.id], around[candidate.id])
            )
            for site in sites
            if site.id in taken
        }

    @property
    def merged_sites(self) -> frozenset[str]:
        """The sites that were merged into the command of another."""
        return frozenset(site for sites in self.merged.values() for site in sites)

    def of(self, command: Launch) -> Text:
        """The id of the site of a command; `UNKNOWN` if no site of its kernel is left."""
        return self._site_of.get(id(command), UNKNOWN)

    def _by_location(self, dispatches: Sequence[FlowDispatch], commands: Sequence[Launch]) -> None:
        # By kernel too, since an op that was split into several dispatches gives all of them its location.
        pending: dict[tuple[Text, Location], list[str]] = defaultdict(list)
        # Reversed, so that pop() takes the first of equal ones.
        for site, dispatch in reversed(list(zip(self._sites, dispatches, strict=True))):
            pending[dispatch.kernel, dispatch.location].append(site.id)
        for command in commands:
            site_ids = pending.get((command.kernel, command.location), [])
            if site_ids:
                # The last one stays, since a command that the compiler duplicated belongs to the same site.
                self._site_of[id(command)] = site_ids.pop() if len(site_ids) > 1 else site_ids[0]

    def _by_order(self, commands: Sequence[Launch]) -> None:
        self.inexact = 0
        taken = set(self._site_of.values())
        remaining: dict[str, list[str]] = defaultdict(list)
        for site in self._sites:
            if site.id not in taken:
                remaining[site.kernel].append(site.id)
        for command in commands:
            if id(command) not in self._site_of:
                self.inexact += 1
                pending = remaining.get(str(command.kernel), [])
                if pending:
                    self._site_of[id(command)] = pending.pop(0)


_KERNEL_AND_FUNCTION = attrgetter("kernel", "function", "initializer")
"""The fields that two sites share if one command may stand for both."""


def _may_be_exclusive(first_site: EnclosingOps, second_site: EnclosingOps) -> bool:
    """Whether one of two call sites may run without the other; only then can one command stand for both.

    They may in different blocks of one operation: arms of a branch, or branch targets. In different functions they may,
    too.
    """
    if not first_site or not second_site or first_site[0][0] != second_site[0][0]:
        return True
    (first, _), (second, _) = next(
        (pair for pair in zip(first_site, second_site, strict=False) if pair[0] != pair[1]), _SAME_BLOCK
    )
    return first == second


_SAME_BLOCK = ((0, 0), (1, 0))
"""The result for call sites in the same block, or with one in an operation of the other's block."""


def _static_command(command: HalCommand, join: CommandJoin, owners: Owners) -> Command:
    site = join.of(command)
    merged = () if site is UNKNOWN else join.merged.get(site, ())
    ops = () if command.kind in ("dispatch", "barrier") else owners.of(command.location)
    return Command(command.kind, command.kernel, site, command.workgroups, merged, ops, command.length)


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


def _left_out(join: CommandJoin, sites: Sequence[Site]) -> frozenset[str]:
    """The sites without a command.

    None if no site has a command, since the program then has commands of a kind that tracemap does not read.
    """
    without = frozenset(site.id for site in sites if site.command_buffer is UNKNOWN)
    return frozenset() if len(without) == len(sites) else without - join.merged_sites


def _join_diagnostics(join: CommandJoin, left_out: int) -> Iterator[Diagnostic]:
    if join.inexact:
        text = f"{join.inexact} commands of the hal phase were matched to dispatches by kernel and order only"
        yield Diagnostic("commands-by-order", text)
    if join.merged_sites:
        merged = plural(len(join.merged_sites), "dispatch")
        text = f"{merged} merged with another into one command, so runs cannot show which of them ran"
        yield Diagnostic("sites-merged", text)
    if left_out:
        text = f"{plural(left_out, 'dispatch')} without a command in the hal phase"
        yield Diagnostic("sites-without-command", text)


# ---- sites


def pair_bodies(
    regions: Sequence[DispatchRegion], dispatches: Sequence[FlowDispatch]
) -> tuple[DispatchRegion | None, ...]:
    """The region of each dispatch, in the order of the dispatches; None if unknown.

    The i-th region becomes the i-th dispatch. If a pass in between changed the order, equal locations pair in order.
    """
    if [region.location for region in regions] == [dispatch.location for dispatch in dispatches]:
        return tuple(regions)
    pending: dict[Location, list[DispatchRegion]] = defaultdict(list)
    for region in reversed(regions):  # so that the first of equal ones is popped first
        pending[region.location].append(region)
    return tuple(pending[dispatch.location].pop() if pending[dispatch.location] else None for dispatch in dispatches)


class SiteBuilder:
    """Makes the sites of a module, one for each dispatch.

    `others`: owners for sites without ops of `owners`: a kernel that only makes a constant belongs to that constant.
    `callers`: function -> the public function that users call to reach it (`callers.public_callers`);
    `at_load`: the functions that only initializers reach.
    """

    def __init__(
        self, owners: Owners, others: Owners, facts: ModelFacts, callers: Mapping[str, str], at_load: Set[str]
    ) -> None:
        self._owners = owners
        self._fallback_owners = others
        self._facts = facts
        self._callers = callers
        self._at_load = at_load

    def sites(self, dispatches: Sequence[FlowDispatch], bodies: Sequence[DispatchRegion | None]) -> tuple[Site, ...]:
        """The sites in order, still without commands and without unlocated ops."""
        pairs = zip(dispatches, bodies, strict=True)
        return tuple(self._site(ordinal, dispatch, region) for ordinal, (dispatch, region) in enumerate(pairs))

    def with_user_op(self, site: Site, region: DispatchRegion, users: Sequence[Location]) -> Site:
        """A site whose own locations name no op, with the op that the compiler made it for.

        `users`: the locations of the users of its results, nearest first. For example, a kernel that reorders the
        elements of an argument has only the argument's location.
        """
        location = next((user_location for user_location in users if self._fallback_owners.of(user_location)), None)
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
            members=self._members_without_body(dispatch) if region is None else self._members(region),
        )

    def _members_without_body(self, dispatch: FlowDispatch) -> tuple[Membership, ...]:
        """The op in the location of a dispatch without a body, such as a kernel that the model itself brings."""
        members = self._members(DispatchRegion(dispatch.function, dispatch.location, ()))
        unknown = {"operations": UNKNOWN, "bytes_read": UNKNOWN, "bytes_written": UNKNOWN}
        return tuple(structs.replace(member, **unknown) for member in members)

    def _members(self, region: DispatchRegion) -> tuple[Membership, ...]:
        located = find_members(region, self._owners, self._facts)
        return located or find_members(region, self._fallback_owners, self._facts)


def sites_by_op(sites: Sequence[Site]) -> dict[int, list[Site]]:
    """Op index -> the sites with the op, in order."""
    sites_of: dict[int, list[Site]] = {}
    for site in sites:
        for member in site.members:
            sites_of.setdefault(member.op.number, []).append(site)
    return sites_of


def kernels_of(flow: FlowProgram, sites: Sequence[Site]) -> tuple[Kernel, ...]:
    """The kernels of the flow phase in order, each with its sites."""
    sites_of: dict[str, list[str]] = {name: [] for name in flow.kernels}
    for site in sites:
        sites_of.setdefault(site.kernel, []).append(site.id)
    return tuple(Kernel(name, tuple(ids)) for name, ids in sites_of.items())
