"""An execution under valgrind, whose simulated cache events are added to a timed run, per kernel and step.

The tool is callgrind, which simulates caches as cachegrind does, and alone tells counts by instruction: cachegrind
reads at most 4095 bytes of code with one line, and kernels have far longer runs.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.capture.benchmark import run_benchmark
from tracemap.capture.geometry import Geometry
from tracemap.capture.simulated import EVENTS, LinesOf, SimulatedSteps, simulated_steps
from tracemap.diagnostics import Diagnostic
from tracemap.errors import ProgramFailed, UsageInvalid
from tracemap.machine.images import read_image
from tracemap.measurements.callgrind import read_callgrind
from tracemap.measurements.events import EventTable
from tracemap.measurements.model import CACHE_SIMULATED, CORE_CYCLES, STAND_INS, EventKind
from tracemap.measurements.sql import literal, quoted
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, check_tool, find_tool
from tracemap.units import format_count, format_share

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
