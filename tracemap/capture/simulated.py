"""Counts of simulated instructions, brought to kernels and lines of their text.

By the debug information of the executables as the program loaded them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

from tracemap.capture.guarded import set_right
from tracemap.errors import ModuleInvalid, RunInvalid
from tracemap.machine.code import instructions_of, loops_of
from tracemap.machine.contracted import Contracted
from tracemap.machine.flow import lines_of_values
from tracemap.machine.images import CodeFunction, Image
from tracemap.machine.lines import NO_LINES, OpLines
from tracemap.machine.symbols import function_symbols
from tracemap.machine.unplaced import code_of_ops
from tracemap.measurements.callgrind import CallgrindCounts
from tracemap.measurements.model import CORE_CYCLES, SAMPLES, STAND_INS, STEP_METRICS

LinesOf = Mapping[str, OpLines]
"""The lines of a kernel's text that are of ops, by the kernel's name."""

EVENTS: Final = tuple(metric for metric in STEP_METRICS if metric not in (SAMPLES, STAND_INS, CORE_CYCLES))
"""What is simulated: instructions, data reads and writes, and the misses of each cache."""


@dataclass(frozen=True, slots=True)
class SimulatedSteps:
    """Counts per kernel and line of its text (0: code without a line): `EVENTS`, then `STAND_INS` and `CORE_CYCLES`.

    Instructions that stand in are those of functions that the compiler calls for instructions that the target does not
    have; they are counted where they are called. `program` is how many instructions the whole program ran; `caches` are
    the simulator's own words on the caches.
    """

    lines: Mapping[tuple[str, int], tuple[int, ...]]
    program: int
    caches: tuple[str, ...]

    @property
    def instructions(self) -> int:
        """How many the kernels ran."""
        return sum(values[0] for values in self.lines.values())

    @property
    def stand_ins(self) -> int:
        """How many of these stand in for others."""
        return sum(values[len(EVENTS)] for values in self.lines.values())

    def without(self, other: SimulatedSteps) -> SimulatedSteps:
        """What is left when what another execution did, which did a part of it, is taken off."""
        left = {}
        for key, values in self.lines.items():
            taken = other.lines.get(key, (0,) * len(values))
            # Both begin in the same way; if a few misses should differ all the same, none is left over.
            rest = tuple(max(0, own - its) for own, its in zip(values, taken, strict=True))
            if any(rest):
                left[key] = rest
        return replace(self, lines=left, program=max(0, self.program - other.program))


def simulated_steps(
    counts: CallgrindCounts, images: Mapping[str, Image], lines_of: LinesOf, own_functions: Collection[str] = ()
) -> SimulatedSteps:
    """Bring counts by instruction to kernels and lines.

    Args:
        counts: of the objects `images`.
        images: the executables by the names that the counts call them.
        lines_of: of those of their functions that are kernels.
        own_functions: the names of functions that stand in for nothing, for the timed kernels call them, too.

    Raises:
        RunInvalid: an event is missing.
    """
    order = [_index_of(counts.events, event) for event in EVENTS]
    picked = itemgetter(*order)
    counts = set_right(counts, images, lines_of)
    at, busy_at = _kernel_lines(counts, images, lines_of)
    # What a kernel calls that is no kernel is counted where it is called; a kernel's own code counts by itself.
    called = [call for call in counts.calls if (call.target_object, call.target) not in at]
    costs = [
        (key, (*picked(values), 0, values[order[0]] * busy_at.get(key, _BUSY_OF_ANY)))
        for key, values in counts.costs.items()
        if key in at
    ]
    own = {(name, each.low) for name, image in images.items() for each in _named(image, own_functions)}
    for call in called:
        stands_in = 0 if (call.target_object, call.target) in own else call.costs[order[0]]
        cycles = (call.costs[order[0]] - stands_in) * _BUSY_OF_ANY
        costs.append(((call.object, call.address), (*picked(call.costs), stands_in, cycles)))
    found: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    for key, values in costs:
        if key in at:
            found[at[key]].update(dict(enumerate(values)))
    lines = {key: _whole(tuple(found[key][number] for number in range(len(EVENTS) + 2))) for key in sorted(found)}
    return SimulatedSteps(lines, counts.totals[order[0]], counts.caches)


_BUSY_OF_ANY: Final = 50
"""Hundredths of a cycle of an instruction that was not looked at: two a cycle."""


def _whole(values: tuple[int, ...]) -> tuple[int, ...]:
    """Counts with hundredths of a cycle, the last of them, in cycles."""
    return (*values[:-1], (values[-1] + 50) // 100)


def _named(image: Image, names: Collection[str]) -> Iterator[CodeFunction]:
    return (function for function in function_symbols(image) if function.name in names) if names else iter(())


def _index_of(events: Sequence[str], event: str) -> int:
    if event not in events:
        raise RunInvalid(f"callgrind did not count {event}; it counted {', '.join(events)}")
    return events.index(event)


def _kernel_lines(
    counts: CallgrindCounts, images: Mapping[str, Image], lines_of: LinesOf
) -> tuple[dict[tuple[str, int], tuple[str, int]], dict[tuple[str, int], int]]:
    """Of all instructions that are of kernels the kernel and line, and the hundredths of a cycle that one takes.

    Both are by object and address.
    A load is on the line that takes what it loads, a store on the line that made what it stores, as far as they tell.
    """
    import numpy as np

    seen: dict[str, set[int]] = {name: set() for name in images}
    for owner, address in (*counts.costs, *((call.target_object, call.target) for call in counts.calls)):
        if owner in seen:
            seen[owner].add(address)
    found: dict[tuple[str, int], tuple[str, int]] = {}
    busy: dict[tuple[str, int], int] = {}
    for name, image in images.items():
        addresses = np.array(sorted(seen[name]), dtype=np.int64)
        functions = image.functions_at(addresses).tolist()
        kernels = [image.functions[number] for number in sorted(set(functions) - {-1})]
        carried: dict[int, int] = {}
        for each in kernels:
            code = _code(image, each, lines_of)
            carried |= lines_of_values(code, loops_of(code.instructions))
            busy |= {(name, one.address): one.hundredths for one in code.instructions}
        for address, number, line in zip(
            addresses.tolist(), functions, image.lines_at(addresses).tolist(), strict=True
        ):
            kernel = image.functions[number].name if number >= 0 else ""
            if kernel in lines_of:
                found[name, address] = kernel, carried.get(address, line)
    return found, busy


def _code(image: Image, function: CodeFunction, lines_of: LinesOf) -> Contracted:
    """The code of a kernel; without instructions where it cannot be read."""
    try:
        instructions = instructions_of(image, function) if function.name in lines_of else ()
    except ModuleInvalid:
        instructions = ()
    return code_of_ops(instructions, lines_of.get(function.name, NO_LINES))
