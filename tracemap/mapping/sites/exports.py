"""Names the kernels of commands where the hal phase only numbers them, as that of IREE before 3.12 does.

A command keeps the location of its dispatch in the flow phase, so each number is known by the kernels that all of its
commands could be. Where a location has several kernels (an op that was split), numbers go in the order of the kernels,
which the linking of executables keeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tracemap.ir.flow import FlowDispatch
from tracemap.ir.hal import HalCommand, HalProgram
from tracemap.locations import Location
from tracemap.units import UNKNOWN

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
