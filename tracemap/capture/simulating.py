"""An execution under valgrind, whose simulated cache events are added to a timed run, per kernel and step.

The tool is callgrind, which simulates caches as cachegrind does, and alone tells counts by instruction: cachegrind
reads at most 4095 bytes of code with one line, and kernels have far longer runs. Addresses are brought to kernels and
lines here, by the debug information of the executables as the program loaded them.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracemap.capture.benchmark import run_benchmark
from tracemap.capture.geometry import Geometry
from tracemap.capture.guarded import set_right
from tracemap.diagnostics import Diagnostic
from tracemap.errors import ModuleInvalid, ProgramFailed, RunInvalid, UsageInvalid
from tracemap.machine.code import instructions_of, loops_of
from tracemap.machine.flow import lines_of_values
from tracemap.machine.images import CodeFunction, Image, read_image
from tracemap.machine.lines import NO_LINES, OpLines
from tracemap.machine.unplaced import code_of_ops
from tracemap.measurements.callgrind import CallgrindCounts, read_callgrind
from tracemap.measurements.events import EventTable
from tracemap.measurements.model import CACHE_SIMULATED, STEP_METRICS, EventKind
from tracemap.measurements.sql import literal, quoted
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, check_tool, find_tool
from tracemap.units import format_count, format_share

Command = Callable[[Path, Sequence[str]], list[str]]
"""The command line that runs a module once, on one worker, with more flags."""

LinesOf = Mapping[str, OpLines]
"""The lines of a kernel's text that are of ops, by the kernel's name."""

SIMULATED_DEVICE: Final = "local-sync"
"""Works off everything in the calling thread: nothing depends on how threads take turns."""
_HOST_DEVICES = ("local", "local-task", "local-sync")
EVENTS: Final = tuple(metric for metric in STEP_METRICS if re.fullmatch(r"I\w+|D\w+", metric))
"""What is simulated: instructions, data reads and writes, and the misses of each cache."""

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
    lines of its text that are of ops; `load_time`: some kernels run when the module is loaded, which is taken off.
    """

    module: Path
    build: str
    geometry: Geometry
    lines_of: LinesOf
    load_time: bool


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
        ending = run_benchmark(steady, {_PRESERVE: str(folder), "TMPDIR": str(folder)}, clock.watch)
        if clock.stuck:
            raise ProgramFailed(
                f"under valgrind {valgrind.version} the program did nothing for {_STUCK_S} s, and was ended"
            )
        ending.check(f"the program under valgrind {valgrind.version}")
        images = {str(path): read_image(path) for path in sorted(folder.glob("*.so")) if path.stat().st_size}
        return simulated_steps(read_callgrind(folder / _COUNTS, images), images, simulation.lines_of)


# ---- from instructions to steps


@dataclass(frozen=True, slots=True)
class SimulatedSteps:
    """Counts per kernel and line of its text (0: code without a line), in the order of `EVENTS`.

    `program` is how many instructions the whole program ran; `substituted` how many of the kernels' were in functions
    that the compiler calls for instructions that the target does not have; they are counted where they are called.
    `caches` are the simulator's own words on the caches.
    """

    lines: Mapping[tuple[str, int], tuple[int, ...]]
    program: int
    substituted: int
    caches: tuple[str, ...]

    @property
    def instructions(self) -> int:
        """How many the kernels ran."""
        return sum(values[0] for values in self.lines.values())

    def without(self, other: SimulatedSteps) -> SimulatedSteps:
        """What is left when what another execution did, which did a part of it, is taken off."""
        left = {}
        for key, values in self.lines.items():
            taken = other.lines.get(key, (0,) * len(values))
            # Both begin in the same way; if a few misses should differ all the same, none is left over.
            rest = tuple(max(0, own - its) for own, its in zip(values, taken, strict=True))
            if any(rest):
                left[key] = rest
        return replace(
            self,
            lines=left,
            program=max(0, self.program - other.program),
            substituted=max(0, self.substituted - other.substituted),
        )


def simulated_steps(counts: CallgrindCounts, images: Mapping[str, Image], lines_of: LinesOf) -> SimulatedSteps:
    """Bring counts by instruction to kernels and lines.

    Args:
        counts: of the objects `images`.
        images: the executables by the names that the counts call them.
        lines_of: of those of their functions that are kernels.

    Raises:
        RunInvalid: an event is missing.
    """
    order = [_index_of(counts.events, event) for event in EVENTS]
    counts = set_right(counts, images, lines_of)
    at = _kernel_lines(counts, images, lines_of)
    # What a kernel calls that is no kernel is counted where it is called; a kernel's own code counts by itself.
    called = [call for call in counts.calls if (call.target_object, call.target) not in at]
    costs = [*counts.costs.items(), *(((call.object, call.address), call.costs) for call in called)]
    found: dict[tuple[str, int], Counter[int]] = {}
    for key, values in costs:
        if key in at:
            found.setdefault(at[key], Counter()).update({number: values[index] for number, index in enumerate(order)})
    lines = {key: tuple(found[key][number] for number in range(len(EVENTS))) for key in sorted(found)}
    substituted = sum(call.costs[order[0]] for call in called if (call.object, call.address) in at)
    return SimulatedSteps(lines, counts.totals[order[0]], substituted, counts.caches)


def _index_of(events: Sequence[str], event: str) -> int:
    if event not in events:
        raise RunInvalid(f"callgrind did not count {event}; it counted {', '.join(events)}")
    return events.index(event)


def _kernel_lines(
    counts: CallgrindCounts, images: Mapping[str, Image], lines_of: LinesOf
) -> dict[tuple[str, int], tuple[str, int]]:
    """Kernel and line of all instructions, by object and address, that are of kernels.

    A load is on the line that takes what it loads, a store on the line that made what it stores, as far as they tell.
    """
    import numpy as np

    seen: dict[str, set[int]] = {name: set() for name in images}
    for owner, address in (*counts.costs, *((call.target_object, call.target) for call in counts.calls)):
        if owner in seen:
            seen[owner].add(address)
    found = {}
    for name, image in images.items():
        addresses = np.array(sorted(seen[name]), dtype=np.int64)
        functions = image.functions_at(addresses).tolist()
        kernels = [image.functions[number] for number in sorted(set(functions) - {-1})]
        carried = {at: line for kernel in kernels for at, line in _carried(image, kernel, lines_of).items()}
        for address, number, line in zip(
            addresses.tolist(), functions, image.lines_at(addresses).tolist(), strict=True
        ):
            kernel = image.functions[number].name if number >= 0 else ""
            if kernel in lines_of:
                found[name, address] = kernel, carried.get(address, line)
    return found


def _carried(image: Image, function: CodeFunction, lines_of: LinesOf) -> Mapping[int, int]:
    """The lines whose values a kernel's instructions carry, by address; none where its code cannot be read."""
    try:
        instructions = instructions_of(image, function) if function.name in lines_of else ()
    except ModuleInvalid:
        instructions = ()
    code = code_of_ops(instructions, lines_of.get(function.name, NO_LINES))
    return lines_of_values(code, loops_of(instructions))


# ---- into the run


def _rows_sql(steps: SimulatedSteps) -> str:
    """A SELECT of a row per kernel and step."""
    rows = ", ".join(
        f"({literal(EventKind.STEP.value)}, {literal(kernel)}, {line}, false, {', '.join(map(str, values))})"
        for (kernel, line), values in steps.lines.items()
    )
    columns = {"kind": "VARCHAR", "kernel": "VARCHAR", "step": "BIGINT", "warmup": "BOOLEAN"}
    columns |= dict.fromkeys(EVENTS, "BIGINT")
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
    if counted.substituted:
        text += (
            f"; {format_share(counted.substituted, counted.instructions)} of theirs are in functions that stand in for "
            "instructions that the build lacks, and count at the steps that need these"
        )
    return Diagnostic(CACHE_SIMULATED, text)
