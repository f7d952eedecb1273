"""Cache simulation: an execution under callgrind, brought to kernels and lines."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from tracemap.capture.benchmark import run_benchmark
from tracemap.capture.machine import Geometry
from tracemap.diagnostics import Diagnostic
from tracemap.errors import ModuleInvalid, ProgramFailed, RunInvalid, UsageInvalid
from tracemap.machine.code import OUTSIDE, Instruction, instructions_of, loops_around, loops_by_address, loops_of
from tracemap.machine.debug_lines import NO_LINES, Contracted, OpLines, code_of_ops
from tracemap.machine.flow import lines_of_values
from tracemap.machine.images import CodeFunction, Image, function_symbols, read_image
from tracemap.measurements.callgrind import CallgrindCounts, read_callgrind
from tracemap.measurements.events import EventTable
from tracemap.measurements.model import CACHE_SIMULATED, CORE_CYCLES, SAMPLES, STAND_INS, STEP_METRICS, EventKind
from tracemap.measurements.sql import literal, quoted
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, check_tool, find_tool
from tracemap.units import format_count, format_share, split_by_largest_remainder

# ---- guarded
#
# What instructions read and write under a mask, where callgrind counts it for what it is not.
#
# Callgrind (seen with 3.19) makes no room for such accesses among an instruction's counts (`addEvent_D_guarded` in its
# `main.c`), so they fall into those of the instruction behind it, element by element: the access counts as an
# execution of that one, and its miss as a miss of the instruction's own code. Vectors of sizes that are not known
# before are read and written like this, and so are gathers; left as it is, a third of the instructions of such a loop
# never ran, and its misses of data are none.


_GUARDED: Final = re.compile(r"vp?(maskmov|gather)")
_FETCHED: Final = ("Ir", "I1mr", "ILmr")
_READ: Final = ("Dr", "D1mr", "DLmr")
_WRITTEN: Final = ("Dw", "D1mw", "DLmw")

Costs = dict[int, tuple[int, ...]]
"""By address, in the order of the events."""


def set_right(counts: CallgrindCounts, images: Mapping[str, Image], kernels: Collection[str]) -> CallgrindCounts:
    """The counts with accesses under a mask where they belong.

    Args:
        counts: of the objects `images`, of all events.
        images: the executables by the names that the counts call them.
        kernels: the names of the functions that are looked at.
    """
    by_image: dict[str, Costs] = {}
    for (name, address), values in counts.costs.items():
        by_image.setdefault(name, {})[address] = values
    changed: dict[tuple[str, int], tuple[int, ...]] = {}
    for name, costs in by_image.items():
        for function in images[name].functions:
            if function.name in kernels and any(function.low <= address < function.high for address in costs):
                found = guarded_apart(_instructions(images[name], function), costs, counts.events)
                changed |= {(name, address): values for address, values in found.items()}
    fetched = counts.events.index(_FETCHED[0])
    more = sum(values[fetched] - counts.costs[key][fetched] for key, values in changed.items())
    totals = tuple(total + more * (event == fetched) for event, total in enumerate(counts.totals))
    return replace(counts, totals=totals, costs={**counts.costs, **changed})


def _instructions(image: Image, function: CodeFunction) -> Sequence[Instruction]:
    """The instructions of a function; none where its code cannot be read."""
    try:
        return instructions_of(image, function)
    except ModuleInvalid:
        return ()


def guarded_apart(
    instructions: Sequence[Instruction], costs: Mapping[int, tuple[int, ...]], events: Sequence[str]
) -> Costs:
    """The costs of instructions that differ from `costs`, with accesses under a mask at those that make them.

    What is taken from the instruction behind is what that seems to have run more often than the one before it, and all
    of its misses; where it can be reached otherwise, nothing tells. One instruction counts as one access, as it does
    without a mask, a gather as one for each element.

    Args:
        instructions: of a function, by address.
        costs: by address; those of others are left out.
        events: what is counted, all that `Ir` to `DLmw` names among it.
    """
    reached = {target for each in instructions for target in each.targets}
    fetched = [events.index(name) for name in _FETCHED]
    found: Costs = {}
    for one, behind in pairwise(instructions):
        own = found.get(one.address, costs.get(one.address))
        next_one = costs.get(behind.address)
        if _GUARDED.match(one.mnemonic) is None or own is None or next_one is None or behind.address in reached:
            continue
        elements = next_one[fetched[0]] - own[fetched[0]]
        if elements > 0:
            misses = [min(next_one[event], elements) for event in fetched[1:]]
            accesses = elements if "gather" in one.mnemonic else min(elements, own[fetched[0]])
            names = _WRITTEN if one.values.stores else _READ
            found[one.address] = _changed(own, zip(map(events.index, names), (accesses, *misses), strict=True))
            found[behind.address] = _changed(
                next_one, zip(fetched, (-elements, *(-each for each in misses)), strict=True)
            )
    return found


def _changed(costs: tuple[int, ...], by: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    changed = list(costs)
    for event, amount in by:
        changed[event] += amount
    return tuple(changed)


# ---- simulated
#
# Counts of simulated instructions, brought to kernels and lines of their text.
#
# By the debug information of the executables as the program loaded them.


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
            tuple((name, function.name, loop) for loop in loops_around(loops, loop_at.get(each.address, OUTSIDE))),
        )
        for each in code.instructions
    }


def _code(image: Image, function: CodeFunction, lines_of: LinesOf) -> Contracted:
    """The code of a kernel; without instructions where it cannot be read."""
    instructions = _instructions(image, function) if function.name in lines_of else ()
    return code_of_ops(instructions, lines_of.get(function.name, NO_LINES))


# ---- simulating
#
# An execution under valgrind, whose simulated cache events are added to a timed run, per kernel and step.
#
# The tool is callgrind, which simulates caches as cachegrind does, and alone tells counts by instruction: cachegrind
# reads at most 4095 bytes of code with one line, and kernels have far longer runs.


Command = Callable[[Path, Sequence[str]], list[str]]
"""The command line that runs a module once, on one worker, with more flags."""

SIMULATED_DEVICE: Final = "local-sync"
"""Works off everything in the calling thread: nothing depends on how threads take turns."""
_HOST_DEVICES = ("local", "local-task", "local-sync")

_SLOWDOWN = 60
"""About how many times longer callgrind takes than the program itself."""
_STUCK_S = 60
_FUSED_SINCE = (3, 24)
"""The valgrind that runs fused multiply-adds at a bearable speed."""
_PRESERVE = "IREE_PRESERVE_DYLIB_TEMP_FILES"
_STEADY = Path(__file__).with_name("steady.py")


@dataclass(frozen=True, slots=True)
class Valgrind:
    """The installed valgrind."""

    program: Path
    version: str

    @property
    def runs_fused(self) -> bool:
        """Whether it runs fused multiply-adds at a bearable speed."""
        numbers = tuple(int(number) for number in re.findall(r"\d+", self.version)[:2])
        return numbers >= _FUSED_SINCE


def find_valgrind() -> Valgrind:
    """The installed valgrind.

    Raises:
        ToolMissing: it is not installed.
        ToolFailed: it does not even tell its version.
    """
    program = find_tool("valgrind")
    return Valgrind(program, check_tool([program, "--version"]).strip().removeprefix("valgrind-"))


@dataclass(frozen=True, slots=True)
class CacheSimulation:
    """What to simulate.

    `module` is the bundle's, compiled for valgrind, and `build` says for what; `lines_of` has for each kernel of it the
    lines of its text that are of ops; `load_time`: some kernels run when the module is loaded, which is taken off;
    `own_functions`: the names of what the kernels of the bundle's own module call.
    """

    module: Path
    build: str
    geometry: Geometry
    lines_of: LinesOf
    load_time: bool
    own_functions: frozenset[str]


def check_device(device: str) -> None:
    """Refuse devices whose code valgrind does not run.

    Raises:
        UsageInvalid: it is not a CPU.
    """
    if device.partition(":")[0] not in _HOST_DEVICES:
        raise UsageInvalid(f"caches are simulated for code of CPUs; the device is {device}")


def add_caches(
    timed: EventTable, command: Command, simulation: CacheSimulation, progress: Progress
) -> tuple[Diagnostic, ...]:
    """Run once under valgrind, and add a row per kernel and step behind the events that were timed.

    Args:
        timed: the events.
        command: what to run.
        simulation: which module, and what caches.
        progress: told how long it takes.

    Raises:
        ProgramFailed: the program failed, be it alone or under valgrind.
        ToolMissing: valgrind is not installed.
    """
    valgrind = find_valgrind()
    estimate_s = _alone(command(simulation.module, ()), progress) * _SLOWDOWN
    clock = _Clock(progress, estimate_s * (2 if simulation.load_time else 1))
    counted = _simulated(valgrind, command(simulation.module, _ONE_CALL), simulation, clock)
    if simulation.load_time:
        counted = counted.without(_simulated(valgrind, command(simulation.module, _NO_CALL), simulation, clock))
    if counted.lines:
        timed.add_rows(_rows_sql(counted))
    return (_how_simulated(valgrind, simulation, counted),)


# ---- running


_COUNTS = "callgrind.out"
_ONE_CALL, _NO_CALL = ("--benchmark_filter=.*",), ("--benchmark_filter=^$",)
"""Call the function, or only load the module; of one length, so that both have the same addresses."""


def _alone(command: Sequence[str], progress: Progress) -> float:
    """Run the program without valgrind; returns how many seconds that took."""
    progress("trying the build for the simulator")
    begin = time.monotonic()
    with temporary_folder() as folder:  # the runtime leaves empty files behind
        ending = run_benchmark(command, {"TMPDIR": str(folder)})
    ending.check("the build for the simulator, run once without valgrind,")
    return time.monotonic() - begin


class _Clock:
    """Tells how long it has been, of how long it may take; ends a program that does nothing any more."""

    def __init__(self, progress: Progress, estimate_s: float) -> None:
        self._progress = progress
        self._estimate_s = estimate_s
        self._begin = time.monotonic()
        self._used = -1
        self._changed = self._begin
        self.stuck = False
        self._tell()

    def _tell(self) -> None:
        passed, estimate = time.monotonic() - self._begin, self._estimate_s
        left = f" of about {estimate:.0f} s" if passed < estimate else f", more than the {estimate:.0f} s estimated"
        self._progress(f"simulating caches, {passed:.0f} s{left}")

    def watch(self, process: int) -> bool:
        """Once a second: False where the process has used no processor time for a minute."""
        self._tell()
        used = _processor_ticks(process)
        if used != self._used:
            self._used, self._changed = used, time.monotonic()
        self.stuck = time.monotonic() - self._changed > _STUCK_S
        return not self.stuck


def _processor_ticks(process: int) -> int:
    """Processor time of a process, all its threads together (proc(5), fields 14 and 15)."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:  # it has just ended
        return 0
    return int(fields[11]) + int(fields[12])


def _simulated(
    valgrind: Valgrind, command: Sequence[str], simulation: CacheSimulation, clock: _Clock
) -> SimulatedSteps:
    """Run a program under valgrind to its end, and read what its kernels did."""
    with temporary_folder() as folder:
        options = [
            *("--tool=callgrind", "--cache-sim=yes", "--quiet", "--vgdb=no"),
            *("--dump-instr=yes", "--dump-line=no", "--compress-strings=no", "--compress-pos=no"),
            f"--callgrind-out-file={folder / _COUNTS}",
            *(cache.flag for cache in simulation.geometry.caches),
        ]
        steady = [sys.executable, "-I", "-S", str(_STEADY), str(valgrind.program), *options, *command]
        # What kernels call is found when they are loaded: by default the dynamic linker looks for it in the first call.
        variables = {_PRESERVE: str(folder), "TMPDIR": str(folder), "LD_BIND_NOW": "1"}
        ending = run_benchmark(steady, variables, clock.watch)
        if clock.stuck:
            raise ProgramFailed(
                f"under valgrind {valgrind.version} the program did nothing for {_STUCK_S} s, and was ended"
            )
        ending.check(f"the program under valgrind {valgrind.version}")
        images = {str(path): read_image(path) for path in sorted(folder.glob("*.so")) if path.stat().st_size}
        counts = read_callgrind(folder / _COUNTS, images)
        return simulated_steps(counts, images, simulation.lines_of, simulation.own_functions)


# ---- into the run


def _rows_sql(steps: SimulatedSteps) -> str:
    """A SELECT of a row per kernel and step; instructions that stand in have a column where there are any."""
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


def _how_simulated(valgrind: Valgrind, simulation: CacheSimulation, counted: SimulatedSteps) -> Diagnostic:
    caches = ", ".join(map(str, simulation.geometry.caches)) or "; ".join(counted.caches)
    text = (
        f"instructions and cache events ({EVENTS[0]} … {EVENTS[-1]}) are simulated, not measured: one call on one "
        f"worker under valgrind {valgrind.version} (callgrind, with cachegrind's caches), of the same kernels compiled "
        f"for {simulation.build}; times are of all timed calls of the bundle's own module. "
        f"Caches: {caches} ({simulation.geometry.source}). "
    )
    if simulation.load_time:
        text += "What runs when the module is loaded is taken off. "
    text += f"Kernels ran {format_count(counted.instructions)} of {format_count(counted.program)} instructions"
    if counted.stand_ins:
        text += (
            f"; {format_share(counted.stand_ins, counted.instructions)} of theirs are in functions that stand in for "
            "instructions that the build lacks, and count at the steps that need these"
        )
    return Diagnostic(CACHE_SIMULATED, text)
