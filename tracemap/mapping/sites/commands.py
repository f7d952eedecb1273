"""The command of each site: dispatches of the flow phase joined to commands of the hal phase (phase 11)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from tracemap.diagnostics import Diagnostic
from tracemap.graph.program import Command, CommandBuffer, Site
from tracemap.ir.flow import Around, FlowDispatch
from tracemap.ir.hal import HalBuffer, HalCommand, HalProgram
from tracemap.locations import Location
from tracemap.mapping.sites.owners import Owners
from tracemap.units import UNKNOWN, Integer, Text, plural


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
