"""Simulated caches of native code: a call of a function under callgrind, its counts by line of the program."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Final

from tracemap.capture.cache_simulation import (
    EVENTS,
    SimulatedSteps,
    SimulationClock,
    Valgrind,
    find_valgrind,
    run_callgrind,
)
from tracemap.capture.machine import Geometry
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunInvalid
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress
from tracemap.core.units import format_count
from tracemap.machine.native_lines import CodeParts
from tracemap.runs.callgrind import CallgrindCounts, read_callgrind
from tracemap.runs.model import CACHE_SIMULATED, INSTRUCTIONS

_EXPECTED_S: Final = 20.0
"""Most of it is the start of the program that makes the calls."""


def simulate_native(
    command: Callable[[int], list[str]],
    library: Path,
    parts: CodeParts,
    geometry: Geometry,
    progress: Progress,
) -> tuple[SimulatedSteps, Diagnostic]:
    """Simulate one call: two calls in one execution, less one call in another.

    Args:
        command: the command that makes a number of calls.
        library: the library, by its name in the program.
        parts: its code.
        geometry: the caches.
        progress: receives a line of text per step.

    Raises:
        ProgramFailed: the program failed under valgrind.
        RunInvalid: callgrind did not count an event.
        ToolMissing: valgrind is not installed.
    """
    valgrind, clock = find_valgrind(), SimulationClock(progress, 2 * _EXPECTED_S)

    def steps(calls: int) -> SimulatedSteps:
        with temporary_folder() as folder:
            file = run_callgrind(valgrind, command(calls), geometry, clock, folder)
            return _steps(read_callgrind(file, {str(library)}), str(library), parts)

    simulated = steps(2).without(steps(1))
    return simulated, _note(valgrind, geometry, simulated)


_CYCLES_OF_INSTRUCTIONS: Final = 2
"""Instructions per cycle of code that is not analysed."""


def _steps(counts: CallgrindCounts, library: str, parts: CodeParts) -> SimulatedSteps:
    """The counts by line. What a called function outside of the library costs counts at the call."""
    import numpy as np

    if missing := [event for event in EVENTS if event not in counts.events]:
        raise RunInvalid(f"callgrind did not count {missing[0]}; it counted {', '.join(counts.events)}")
    picked = itemgetter(*(counts.events.index(event) for event in EVENTS))
    costs = [(address, picked(values)) for (owner, address), values in counts.costs.items() if owner == library]
    costs += [
        (call.address, picked(call.costs))
        for call in counts.calls
        if call.object == library and call.target_object != library
    ]
    kernels, lines = parts.at(np.array([address for address, _ in costs], dtype=np.int64))
    sums: dict[tuple[str, int], list[int]] = {}
    for (_, values), kernel, line in zip(costs, kernels.tolist(), lines.tolist(), strict=True):
        if kernel >= 0:
            own = sums.setdefault((parts.names[kernel], line), [0] * len(EVENTS))
            for number, value in enumerate(values):
                own[number] += value
    instructions = EVENTS.index(INSTRUCTIONS)
    by_line = {
        key: (*values, 0, values[instructions] // _CYCLES_OF_INSTRUCTIONS) for key, values in sorted(sums.items())
    }
    return SimulatedSteps(by_line, counts.totals[counts.events.index(INSTRUCTIONS)], counts.caches)


def _note(valgrind: Valgrind, geometry: Geometry, steps: SimulatedSteps) -> Diagnostic:
    caches = ", ".join(map(str, geometry.caches)) or "; ".join(steps.caches)
    text = (
        f"instructions and cache events ({EVENTS[0]} … {EVENTS[-1]}) are simulated, not measured: the second call "
        f"under valgrind {valgrind.version} (callgrind, with cachegrind's caches). Caches: {caches} "
        f"({geometry.source}). The code of the bundle ran {format_count(steps.instructions)} instructions"
    )
    return Diagnostic(CACHE_SIMULATED, text)
