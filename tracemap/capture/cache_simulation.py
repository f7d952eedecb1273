"""Cache simulation: one execution under callgrind, with its counts assigned to kernels and lines."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from tracemap.capture.benchmark import run_benchmark
from tracemap.capture.machine import Geometry
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import ModuleInvalid, ProgramFailed, RunInvalid, UsageInvalid
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, check_tool, find_tool
from tracemap.core.units import format_count, format_share, split_by_largest_remainder
from tracemap.machine.code import OUTSIDE, Instruction, instructions_of, loops_around, loops_by_address, loops_of
from tracemap.machine.dataflow import value_lines
from tracemap.machine.debug_lines import NO_LINES, OpLines, code_of_ops
from tracemap.machine.images import CodeFunction, Image, function_symbols, read_image
from tracemap.runs.callgrind import CallgrindCounts, read_callgrind
from tracemap.runs.events import EventTable
from tracemap.runs.model import CACHE_SIMULATED, CORE_CYCLES, SAMPLES, STAND_INS, STEP_METRICS, EventKind
from tracemap.runs.sql import literal, quoted

# ---- masked accesses
#
# Correct callgrind's counts of masked loads and stores, and of gathers.
#
# Callgrind (seen with 3.19) has no counter for such accesses (`addEvent_D_guarded` in its `main.c`). It adds them to
# the counts of the next instruction, element by element: an access counts as an execution of the next instruction, and
# its miss as an instruction-cache miss there. Loops over vectors of dynamic sizes use masks. Without the correction, a
# third of the instructions of such a loop never ran, and it has no data misses.


_MASKED: Final = re.compile(r"vp?(maskmov|gather)")
_FETCHED: Final = ("Ir", "I1mr", "ILmr")
_READ: Final = ("Dr", "D1mr", "DLmr")
_WRITTEN: Final = ("Dw", "D1mw", "DLmw")

Costs = dict[int, tuple[int, ...]]
"""Counts by address, in the order of the events."""


def move_masked_accesses(
    counts: CallgrindCounts, images: Mapping[str, Image], kernels: Collection[str]
) -> CallgrindCounts:
    """Move the counts of masked accesses to the instructions that make them.

    Args:
        counts: all events of the objects in `images`.
        images: the executables, by their names in the counts.
        kernels: the names of the functions to correct.
    """
    by_image: dict[str, Costs] = {}
    for (name, address), values in counts.costs.items():
        by_image.setdefault(name, {})[address] = values
    changed: dict[tuple[str, int], tuple[int, ...]] = {}
    for name, costs in by_image.items():
        for function in images[name].functions:
            if function.name in kernels and any(function.low <= address < function.high for address in costs):
                corrected = corrected_masked_accesses(_instructions(images[name], function), costs, counts.events)
                changed |= {(name, address): values for address, values in corrected.items()}
    fetched = counts.events.index(_FETCHED[0])
    more = sum(values[fetched] - counts.costs[key][fetched] for key, values in changed.items())
    totals = tuple(total + more * (event == fetched) for event, total in enumerate(counts.totals))
    return replace(counts, totals=totals, costs={**counts.costs, **changed})


def _instructions(image: Image, function: CodeFunction) -> Sequence[Instruction]:
    """The instructions of a function; empty if its code cannot be read."""
    try:
        return instructions_of(image, function)
    except ModuleInvalid:
        return ()


def corrected_masked_accesses(
    instructions: Sequence[Instruction], costs: Mapping[int, tuple[int, ...]], events: Sequence[str]
) -> Costs:
    """Corrected counts of the instructions that differ from `costs`.

    If the next instruction seems to run more often than the masked access, the surplus and all its misses are moved.
    That is impossible if the next instruction is a jump target. A masked access counts once per instruction, as without
    a mask; a gather counts once per element.

    Args:
        instructions: of a function, by address.
        costs: counts by address; other addresses are ignored.
        events: the counted events, including all in `Ir` to `DLmw`.
    """
    jump_targets = {target for instruction in instructions for target in instruction.targets}
    fetched = [events.index(name) for name in _FETCHED]
    corrected: Costs = {}
    for access, following in pairwise(instructions):
        own_counts = corrected.get(access.address, costs.get(access.address))
        following_counts = costs.get(following.address)
        if (
            _MASKED.match(access.mnemonic) is None
            or own_counts is None
            or following_counts is None
            or following.address in jump_targets
        ):
            continue
        elements = following_counts[fetched[0]] - own_counts[fetched[0]]
        if elements > 0:
            misses = [min(following_counts[event], elements) for event in fetched[1:]]
            accesses = elements if "gather" in access.mnemonic else min(elements, own_counts[fetched[0]])
            names = _WRITTEN if access.values.stores else _READ
            corrected[access.address] = _with_changes(
                own_counts, zip(map(events.index, names), (accesses, *misses), strict=True)
            )
            corrected[following.address] = _with_changes(
                following_counts, zip(fetched, (-elements, *(-miss for miss in misses)), strict=True)
            )
    return corrected


def _with_changes(costs: tuple[int, ...], by: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    changed = list(costs)
    for event, amount in by:
        changed[event] += amount
    return tuple(changed)


# ---- simulated counts
#
# Assign counts of simulated instructions to kernels and lines of kernel IR, by the debug information of the
# executables that the program loaded.


LinesOf = Mapping[str, OpLines]
"""Lines of kernel IR that belong to ops, by kernel name."""

EVENTS: Final = tuple(metric for metric in STEP_METRICS if metric not in (SAMPLES, STAND_INS, CORE_CYCLES))
"""Simulated events: instructions, data reads and writes, and the misses of each cache."""


@dataclass(frozen=True, slots=True)
class SimulatedSteps:
    """Counts per kernel and line of kernel IR (0: no line): `EVENTS`, then `STAND_INS` and `CORE_CYCLES`.

    Stand-in instructions belong to functions that the compiler calls for instructions missing on the target; they are
    counted at the call. `program`: instructions of the whole program. `caches`: the simulator's description of the
    caches.
    """

    lines: Mapping[tuple[str, int], tuple[int, ...]]
    program: int
    caches: tuple[str, ...]

    @property
    def instructions(self) -> int:
        """Instructions of the kernels."""
        return sum(values[0] for values in self.lines.values())

    @property
    def stand_ins(self) -> int:
        """Stand-in instructions among them."""
        return sum(values[len(EVENTS)] for values in self.lines.values())

    def without(self, other: SimulatedSteps) -> SimulatedSteps:
        """Subtract the counts of an execution that did only a part of the work."""
        left = {}
        for key, values in self.lines.items():
            other_counts = other.lines.get(key, (0,) * len(values))
            # Both executions begin alike; if a few misses still differ, clamp to 0.
            rest = tuple(max(0, own_counts - its) for own_counts, its in zip(values, other_counts, strict=True))
            if any(rest):
                left[key] = rest
        return replace(self, lines=left, program=max(0, self.program - other.program))


def simulated_steps(
    counts: CallgrindCounts, images: Mapping[str, Image], lines_of: LinesOf, own_functions: Collection[str] = ()
) -> SimulatedSteps:
    """Assign counts per instruction to kernels and lines.

    Args:
        counts: counts of the objects in `images`.
        images: the executables, by their names in the counts.
        lines_of: lines of ops, for those functions that are kernels.
        own_functions: functions that are no stand-ins, since the timed kernels call them, too.

    Raises:
        RunInvalid: an event is missing.
    """
    for event in EVENTS:
        if event not in counts.events:
            raise RunInvalid(f"callgrind did not count {event}; it counted {', '.join(counts.events)}")
    order = [counts.events.index(event) for event in EVENTS]
    picked = itemgetter(*order)
    counts = move_masked_accesses(counts, images, lines_of)
    at = _spots(counts, images, lines_of)
    # Calls of functions that are no kernels count at the call; a kernel's own code counts by itself.
    called = [call for call in counts.calls if (call.target_object, call.target) not in at]
    costs = [
        (at[key], (*picked(values), 0, values[order[0]] * at[key].hundredths))
        for key, values in counts.costs.items()
        if key in at
    ]
    own_counts = {
        (name, function.low)
        for name, image in (images.items() if own_functions else ())
        for function in function_symbols(image)
        if function.name in own_functions
    }
    for call in called:
        stands_in = 0 if (call.target_object, call.target) in own_counts else call.costs[order[0]]
        cycles = (call.costs[order[0]] - stands_in) * _BUSY_OF_ANY
        if (call.object, call.address) in at:
            costs.append((at[call.object, call.address], (*picked(call.costs), stands_in, cycles)))
    lines: dict[tuple[str, int], tuple[int, ...]] = {}
    for key, counter in sorted(_by_line(costs).items(), key=itemgetter(0)):
        *whole, hundredths = (counter[number] for number in range(len(EVENTS) + 2))
        lines[key] = (*whole, (hundredths + 50) // 100)  # in whole cycles
    return SimulatedSteps(lines, counts.totals[order[0]], counts.caches)


def _by_line(costs: Sequence[tuple[_Spot, tuple[int, ...]]]) -> dict[tuple[str, int], Counter[int]]:
    """Counts by kernel and line. Code without an op counts for the ops of its loop, in proportion to their cycles."""
    by_line: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    in_loops: dict[_LoopKey, Counter[int]] = defaultdict(Counter)
    for spot, values in costs:
        if spot.is_owned:
            by_line[spot.kernel, spot.line].update(dict(enumerate(values)))
            for loop in spot.loops:
                in_loops[loop][spot.line] += values[-1]
    for spot, values in costs:
        if not spot.is_owned:
            seen = next((in_loops[loop] for loop in spot.loops if loop in in_loops), Counter({spot.line: 1}))
            lines = sorted(seen)
            for number, value in enumerate(values):
                parts = split_by_largest_remainder(value, [seen[line] for line in lines])
                for line, part in zip(lines, parts, strict=True):
                    by_line[spot.kernel, line][number] += part
    return by_line


_BUSY_OF_ANY: Final = 50
"""Hundredths of a cycle of an instruction that was not analyzed: two instructions per cycle."""

_LoopKey = tuple[str, str, int]
"""Object, kernel, and index of a loop in it."""


class _Spot(NamedTuple):
    """An instruction of a kernel: its line, whether the line belongs to an op, and how long it keeps the core busy.

    `loops`: the loops around it, innermost first.
    """

    kernel: str
    line: int
    is_owned: bool
    hundredths: int
    loops: tuple[_LoopKey, ...]


def _spots(counts: CallgrindCounts, images: Mapping[str, Image], lines_of: LinesOf) -> dict[tuple[str, int], _Spot]:
    """The executed instructions of kernels, by object and address.

    A load belongs to the line that uses its value, a store to the line that produced its value, if known.
    """
    import numpy as np

    seen: dict[str, set[int]] = {name: set() for name in images}
    for owner, address in (*counts.costs, *((call.target_object, call.target) for call in counts.calls)):
        if owner in seen:
            seen[owner].add(address)
    spots_by_address: dict[tuple[str, int], _Spot] = {}
    for name, image in images.items():
        addresses = np.array(sorted(seen[name]), dtype=np.int64)
        functions = image.functions_at(addresses).tolist()
        kernels = [image.functions[number] for number in sorted(set(functions) - {-1})]
        spots: dict[int, _Spot] = {}
        for kernel_function in kernels:
            spots |= _spots_of_kernel(name, image, kernel_function, lines_of)
        for address, number, line in zip(
            addresses.tolist(), functions, image.lines_at(addresses).tolist(), strict=True
        ):
            kernel = image.functions[number].name if number >= 0 else ""
            if kernel in lines_of:
                other = _Spot(kernel, line, line in lines_of[kernel].owned, _BUSY_OF_ANY, ())
                spots_by_address[name, address] = spots.get(address, other)
    return spots_by_address


def _spots_of_kernel(name: str, image: Image, function: CodeFunction, lines_of: LinesOf) -> dict[int, _Spot]:
    """All instructions of a kernel, by address; empty if its code cannot be read."""
    instructions = _instructions(image, function) if function.name in lines_of else ()
    code = code_of_ops(instructions, lines_of.get(function.name, NO_LINES))
    loops = loops_of(code.instructions)
    carried, loop_at = value_lines(code, loops), loops_by_address(code.instructions, loops)
    return {
        instruction.address: _Spot(
            function.name,
            carried.get(instruction.address, instruction.line),
            instruction.address in carried,
            instruction.hundredths,
            tuple(
                (name, function.name, loop) for loop in loops_around(loops, loop_at.get(instruction.address, OUTSIDE))
            ),
        )
        for instruction in code.instructions
    }


# ---- simulation
#
# An execution under valgrind. Its simulated cache events are added to a timed run, per kernel and step.
#
# The tool is callgrind, which simulates caches as cachegrind does. Only callgrind counts per instruction: cachegrind
# reads at most 4095 bytes of code per line, and kernels have far longer ones.


Command = Callable[[Path, Sequence[str]], list[str]]
"""The command line that runs a module once, on one worker, with additional flags."""

SIMULATED_DEVICE: Final = "local-sync"
"""Runs everything in the calling thread, so that no thread scheduling affects the counts."""
_HOST_DEVICES = ("local", "local-task", "local-sync")

_SLOWDOWN = 60
"""Approximate slowdown of the program under callgrind."""
_STUCK_S = 60
_FUSED_SINCE = (3, 24)
"""First valgrind release that runs fused multiply-adds fast enough."""
_PRESERVE = "IREE_PRESERVE_DYLIB_TEMP_FILES"
_VALGRIND_EXEC = Path(__file__).with_name("valgrind_exec.py")


@dataclass(frozen=True, slots=True)
class Valgrind:
    """The installed valgrind."""

    program: Path
    version: str

    @property
    def runs_fused(self) -> bool:
        """Whether it runs fused multiply-adds fast enough."""
        numbers = tuple(int(number) for number in re.findall(r"\d+", self.version)[:2])
        return numbers >= _FUSED_SINCE


def find_valgrind() -> Valgrind:
    """The installed valgrind.

    Raises:
        ToolMissing: it is not installed.
        ToolFailed: it cannot report its version.
    """
    program = find_tool("valgrind")
    return Valgrind(program, check_tool([program, "--version"]).strip().removeprefix("valgrind-"))


@dataclass(frozen=True, slots=True)
class CacheSimulation:
    """A planned simulation.

    `module`: the bundle's model compiled for valgrind; `build` describes the target. `lines_of`: lines of ops, per
    kernel. `load_time`: some kernels run when the module is loaded; their counts are subtracted. `own_functions`: the
    functions that kernels of the bundle's own module call.
    """

    module: Path
    build: str
    geometry: Geometry
    lines_of: LinesOf
    load_time: bool
    own_functions: frozenset[str]


def check_device(device: str) -> None:
    """Reject devices whose code valgrind does not run.

    Raises:
        UsageInvalid: the device is not a CPU.
    """
    if device.partition(":")[0] not in _HOST_DEVICES:
        raise UsageInvalid(f"--cache-sim works for CPU code only; the device is {device}")


def add_caches(
    timed: EventTable, command: Command, simulation: CacheSimulation, progress: Progress
) -> tuple[Diagnostic, ...]:
    """Run once under valgrind, and add a row per kernel and step after the timed events.

    Args:
        timed: the events.
        command: the program to run.
        simulation: the module and the caches.
        progress: receives a line of text per step.

    Raises:
        ProgramFailed: the program failed, with or without valgrind.
        ToolMissing: valgrind is not installed.
    """
    valgrind = find_valgrind()
    progress("testing the build for the simulator")
    begin = time.monotonic()
    with temporary_folder() as folder:  # the runtime leaves empty files in it
        ending = run_benchmark(command(simulation.module, ()), {"TMPDIR": str(folder)})
    ending.check("the build for the simulator, run once without valgrind,")
    estimate_s = (time.monotonic() - begin) * _SLOWDOWN
    clock = SimulationClock(progress, estimate_s * (2 if simulation.load_time else 1))
    steps = _simulate(valgrind, command(simulation.module, _ONE_CALL), simulation, clock)
    if simulation.load_time:
        steps = steps.without(_simulate(valgrind, command(simulation.module, _NO_CALL), simulation, clock))
    if steps.lines:
        timed.add_rows(steps_sql(steps))
    return (_simulation_diagnostic(valgrind, simulation, steps),)


# ---- running


_COUNTS = "callgrind.out"
_ONE_CALL, _NO_CALL = ("--benchmark_filter=.*",), ("--benchmark_filter=^$",)
"""Call the function, or only load the module. Both flags have the same length, so that addresses are the same."""


class SimulationClock:
    """Reports elapsed and estimated time; ends a program that hangs."""

    def __init__(self, progress: Progress, estimate_s: float) -> None:
        self._progress = progress
        self._estimate_s = estimate_s
        self._begin = time.monotonic()
        self._used = -1
        self._with_changes = self._begin
        self.stuck = False
        self._tell()

    def _tell(self) -> None:
        passed, estimate = time.monotonic() - self._begin, self._estimate_s
        left = f" of about {estimate:.0f} s" if passed < estimate else f", more than the {estimate:.0f} s estimated"
        self._progress(f"simulating caches, {passed:.0f} s{left}")

    def watch(self, process: int) -> bool:
        """Called once a second; False if the process has used no CPU time for a minute."""
        self._tell()
        used = 0  # CPU time of a process with all its threads (proc(5), fields 14 and 15)
        with suppress(OSError):  # it has just ended
            stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
            used = sum(map(int, stat.rpartition(")")[2].split()[11:13]))
        if used != self._used:
            self._used, self._with_changes = used, time.monotonic()
        self.stuck = time.monotonic() - self._with_changes > _STUCK_S
        return not self.stuck


def _simulate(
    valgrind: Valgrind, command: Sequence[str], simulation: CacheSimulation, clock: SimulationClock
) -> SimulatedSteps:
    """Run a program under valgrind and read the counts of its kernels."""
    with temporary_folder() as folder:
        file = run_callgrind(valgrind, command, simulation.geometry, clock, folder)
        images = {str(path): read_image(path) for path in sorted(folder.glob("*.so")) if path.stat().st_size}
        return simulated_steps(read_callgrind(file, images), images, simulation.lines_of, simulation.own_functions)


def run_callgrind(
    valgrind: Valgrind, command: Sequence[str], geometry: Geometry, clock: SimulationClock, folder: Path
) -> Path:
    """Run a program under callgrind; returns the file with its counts, in `folder`.

    Raises:
        ProgramFailed: the program failed, or hung.
    """
    options = [
        *("--tool=callgrind", "--cache-sim=yes", "--quiet", "--vgdb=no"),
        *("--dump-instr=yes", "--dump-line=no", "--compress-strings=no", "--compress-pos=no"),
        f"--callgrind-out-file={folder / _COUNTS}",
        *(cache.flag for cache in geometry.caches),
    ]
    command_line = [sys.executable, "-I", "-S", str(_VALGRIND_EXEC), str(valgrind.program), *options, *command]
    # Resolve symbols at load time, so that the dynamic linker does not run inside the first call.
    variables = {_PRESERVE: str(folder), "TMPDIR": str(folder), "LD_BIND_NOW": "1"}
    ending = run_benchmark(command_line, variables, clock.watch)
    if clock.stuck:
        raise ProgramFailed(
            f"the program hung under valgrind {valgrind.version}: it used no CPU time for {_STUCK_S} s, so it was ended"
        )
    ending.check(f"the program under valgrind {valgrind.version}")
    return folder / _COUNTS


# ---- into the run


def steps_sql(steps: SimulatedSteps) -> str:
    """A SELECT with a row per kernel and step; the column of stand-ins exists only if there are any."""
    all_names = (*EVENTS, STAND_INS, CORE_CYCLES)
    names = [name for name in all_names if name != STAND_INS or steps.stand_ins]
    rows = ", ".join(
        f"({literal(EventKind.STEP.value)}, {literal(kernel)}, {line}, false, "
        f"{', '.join(str(value) for name, value in zip(all_names, values, strict=True) if name in names)})"
        for (kernel, line), values in steps.lines.items()
    )
    columns = {"kind": "VARCHAR", "kernel": "VARCHAR", "step": "BIGINT", "warmup": "BOOLEAN"}
    columns |= dict.fromkeys(names, "BIGINT")
    cells = ", ".join(f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}" for name, kind in columns.items())
    return f"SELECT {cells} FROM (VALUES {rows}) AS steps({', '.join(map(quoted, columns))}) ORDER BY kernel, step"


def _simulation_diagnostic(valgrind: Valgrind, simulation: CacheSimulation, steps: SimulatedSteps) -> Diagnostic:
    caches = ", ".join(map(str, simulation.geometry.caches)) or "; ".join(steps.caches)
    text = (
        f"instructions and cache events ({EVENTS[0]} … {EVENTS[-1]}) are simulated, not measured: one call on one "
        f"worker under valgrind {valgrind.version} (callgrind, with cachegrind's caches), with the same kernels "
        f"compiled for {simulation.build}; times come from all timed calls of the bundle's own module. "
        f"Caches: {caches} ({simulation.geometry.source}). "
    )
    if simulation.load_time:
        text += "Work at module load time is subtracted. "
    text += f"Kernels ran {format_count(steps.instructions)} of {format_count(steps.program)} instructions"
    if steps.stand_ins:
        text += (
            f"; {format_share(steps.stand_ins, steps.instructions)} of them are in functions that stand in for "
            "instructions missing in the simulated build, and count at the steps that call these"
        )
    return Diagnostic(CACHE_SIMULATED, text)
