"""Counts of simulated instructions, brought to kernels and lines of their text.

By the debug information of the executables as the program loaded them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final, NamedTuple

from tracemap.capture.guarded import set_right
from tracemap.errors import ModuleInvalid, RunInvalid
from tracemap.machine.code import OUTSIDE, around, instructions_of, loops_by_address, loops_of
from tracemap.machine.contracted import Contracted
from tracemap.machine.flow import lines_of_values
from tracemap.machine.images import CodeFunction, Image
from tracemap.machine.lines import NO_LINES, OpLines
from tracemap.machine.symbols import function_symbols
from tracemap.machine.unplaced import code_of_ops
from tracemap.measurements.callgrind import CallgrindCounts
from tracemap.measurements.model import CORE_CYCLES, SAMPLES, STAND_INS, STEP_METRICS
from tracemap.units import split_by_largest_remainder

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
    at = _spots(counts, images, lines_of)
    # What a kernel calls that is no kernel is counted where it is called; a kernel's own code counts by itself.
    called = [call for call in counts.calls if (call.target_object, call.target) not in at]
    costs = [
        (at[key], (*picked(values), 0, values[order[0]] * at[key].hundredths))
        for key, values in counts.costs.items()
        if key in at
    ]
    own = {(name, each.low) for name, image in images.items() for each in _named(image, own_functions)}
    for call in called:
        stands_in = 0 if (call.target_object, call.target) in own else call.costs[order[0]]
        cycles = (call.costs[order[0]] - stands_in) * _BUSY_OF_ANY
        if (call.object, call.address) in at:
            costs.append((at[call.object, call.address], (*picked(call.costs), stands_in, cycles)))
    found = _by_line(costs)
    lines = {key: _whole(tuple(found[key][number] for number in range(len(EVENTS) + 2))) for key in sorted(found)}
    return SimulatedSteps(lines, counts.totals[order[0]], counts.caches)


def _by_line(costs: Sequence[tuple[_Spot, tuple[int, ...]]]) -> dict[tuple[str, int], Counter[int]]:
    """Costs by kernel and line: what code of no op costs is of the ops in the loop around it, as they cost there."""
    found: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    in_loops: dict[_LoopKey, Counter[int]] = defaultdict(Counter)
    for spot, values in costs:
        if spot.is_owned:
            found[spot.kernel, spot.line].update(dict(enumerate(values)))
            for loop in spot.loops:
                in_loops[loop][spot.line] += values[-1]
    for spot, values in costs:
        if not spot.is_owned:
            seen = next((in_loops[loop] for loop in spot.loops if loop in in_loops), Counter({spot.line: 1}))
            lines = sorted(seen)
            for number, value in enumerate(values):
                parts = split_by_largest_remainder(value, [seen[line] for line in lines])
                for line, part in zip(lines, parts, strict=True):
                    found[spot.kernel, line][number] += part
    return found


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


_LoopKey = tuple[str, str, int]
"""Object, kernel, and the number of a loop of it."""


class _Spot(NamedTuple):
    """An instruction of a kernel: its line, and for how long it keeps the core busy; whether the line is of an op.

    `loops`: those around it, from inside out.
    """

    kernel: str
    line: int
    is_owned: bool
    hundredths: int
    loops: tuple[_LoopKey, ...]


def _spots(counts: CallgrindCounts, images: Mapping[str, Image], lines_of: LinesOf) -> dict[tuple[str, int], _Spot]:
    """The instructions of kernels that ran, by object and address.

    A load is on the line that takes what it loads, a store on the line that made what it stores, as far as they tell.
    """
    import numpy as np

    seen: dict[str, set[int]] = {name: set() for name in images}
    for owner, address in (*counts.costs, *((call.target_object, call.target) for call in counts.calls)):
        if owner in seen:
            seen[owner].add(address)
    found: dict[tuple[str, int], _Spot] = {}
    for name, image in images.items():
        addresses = np.array(sorted(seen[name]), dtype=np.int64)
        functions = image.functions_at(addresses).tolist()
        kernels = [image.functions[number] for number in sorted(set(functions) - {-1})]
        told: dict[int, _Spot] = {}
        for each in kernels:
            told |= _spots_of_kernel(name, image, each, lines_of)
        for address, number, line in zip(
            addresses.tolist(), functions, image.lines_at(addresses).tolist(), strict=True
        ):
            kernel = image.functions[number].name if number >= 0 else ""
            if kernel in lines_of:
                other = _Spot(kernel, line, line in lines_of[kernel].owned, _BUSY_OF_ANY, ())
                found[name, address] = told.get(address, other)
    return found


def _spots_of_kernel(name: str, image: Image, function: CodeFunction, lines_of: LinesOf) -> dict[int, _Spot]:
    """All instructions of a kernel, by address; none where they cannot be read."""
    code = _code(image, function, lines_of)
    loops = loops_of(code.instructions)
    carried, loop_at = lines_of_values(code, loops), loops_by_address(code.instructions, loops)
    return {
        each.address: _Spot(
            function.name,
            carried.get(each.address, each.line),
            each.address in carried,
            each.hundredths,
            tuple((name, function.name, loop) for loop in around(loops, loop_at.get(each.address, OUTSIDE))),
        )
        for each in code.instructions
    }


def _code(image: Image, function: CodeFunction, lines_of: LinesOf) -> Contracted:
    """The code of a kernel; without instructions where it cannot be read."""
    try:
        instructions = instructions_of(image, function) if function.name in lines_of else ()
    except ModuleInvalid:
        instructions = ()
    return code_of_ops(instructions, lines_of.get(function.name, NO_LINES))
