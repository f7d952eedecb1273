"""An execution under valgrind, whose simulated cache events are added to a timed run, per kernel and step.

The tool is callgrind, which simulates caches as cachegrind does, and alone tells counts by instruction: cachegrind
reads at most 4095 bytes of code with one line, and kernels have far longer runs. Addresses are brought to kernels and
lines here, by the debug information of the executables as the program loaded them.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.capture.benchmark import Ending, run_benchmark
from tracemap.capture.geometry import Geometry
from tracemap.errors import ProgramFailed, RunInvalid, UsageInvalid
from tracemap.machine.images import Image, read_image
from tracemap.measurements.callgrind import CallgrindCounts, read_callgrind
from tracemap.measurements.ireeprof import Profile
from tracemap.measurements.model import INSTRUCTIONS, STEP_METRICS, EventKind, RunDiagnostic
from tracemap.measurements.sql import literal, quoted
from tracemap.toolchain import Progress, check_tool, find_tool
from tracemap.units import format_count, format_share, plural

if TYPE_CHECKING:
    import duckdb

Command = Callable[[Path], list[str]]
"""The command line that runs a module once, on one worker."""

SIMULATED_DEVICE: Final = "local-sync"
"""Works off everything in the calling thread: nothing depends on how threads take turns."""
_HOST_DEVICES = ("local", "local-task", "local-sync")
EVENTS: Final = tuple(metric for metric in STEP_METRICS if re.fullmatch(r"I\w+|D\w+", metric))
"""What is simulated: instructions, data reads and writes, and the misses of each cache."""

_SLOWDOWN = 70
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

    `module` is the bundle's, compiled for valgrind, and `build` says for what; `kernels` are all of it, `load_time`
    those that also run when the module is loaded.
    """

    module: Path
    build: str
    geometry: Geometry
    kernels: frozenset[str]
    load_time: frozenset[str]


def check_device(device: str) -> None:
    """Refuse devices whose code valgrind does not run.

    Raises:
        UsageInvalid: it is not a CPU.
    """
    if device.partition(":")[0] not in _HOST_DEVICES:
        raise UsageInvalid(f"caches are simulated for code of CPUs; the device is {device}")


def with_caches(profile: Profile, command: Command, simulation: CacheSimulation, progress: Progress) -> Profile:
    """Run once under valgrind, and add a row per kernel and step to the profile's events.

    Args:
        profile: the execution that was timed.
        command: what to run.
        simulation: which module, and what caches.
        progress: told how long it takes.

    Raises:
        ProgramFailed: the program failed, be it alone or under valgrind.
        ToolMissing: valgrind is not installed.
    """
    valgrind = find_valgrind()
    with tempfile.TemporaryDirectory(prefix="tracemap-caches-") as name:
        folder = Path(name)
        estimate_s = _alone(command(simulation.module), progress) * _SLOWDOWN
        _under_valgrind(valgrind, command(simulation.module), simulation.geometry, folder, _Clock(progress, estimate_s))
        progress("reading the simulated counts")
        images = {str(path): read_image(path) for path in sorted(folder.glob("*.so")) if path.stat().st_size}
        counts = read_callgrind(folder / _COUNTS, images)
    steps = simulated_steps(counts, images, simulation.kernels)
    notes = _told(valgrind, simulation, counts, steps)
    return replace(profile, events=_merged(profile.events, steps), diagnostics=(*profile.diagnostics, *notes))


# ---- running


_COUNTS = "callgrind.out"


def _alone(command: Sequence[str], progress: Progress) -> float:
    """Run the program without valgrind; returns how many seconds that took."""
    progress("trying the build for the simulator")
    begin = time.monotonic()
    ending = run_benchmark(command)
    _check(ending, "the build for the simulator, run once without valgrind,")
    return time.monotonic() - begin


def _check(ending: Ending, what: str) -> None:
    if ending.status or ending.interrupted:
        said = f": {ending.said}" if ending.said else ""
        raise ProgramFailed(f"{what} did not end well: {ending.cause}{said}")


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
        left = f"of about {estimate:.0f} s" if passed < estimate else f"longer than the estimated {estimate:.0f} s"
        self._progress(f"simulating caches, {passed:.0f} s {left}")

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


def _under_valgrind(
    valgrind: Valgrind, command: Sequence[str], geometry: Geometry, folder: Path, clock: _Clock
) -> None:
    options = [
        *("--tool=callgrind", "--cache-sim=yes", "--quiet", "--vgdb=no"),
        *("--dump-instr=yes", "--dump-line=no", "--compress-strings=no", "--compress-pos=no"),
        f"--callgrind-out-file={folder / _COUNTS}",
        *(cache.flag for cache in geometry.caches),
    ]
    steady = [sys.executable, "-I", "-S", str(_STEADY), str(valgrind.program), *options, *command]
    ending = run_benchmark(steady, {_PRESERVE: str(folder), "TMPDIR": str(folder)}, clock.watch)
    if clock.stuck:
        raise ProgramFailed(
            f"under valgrind {valgrind.version} the program did nothing for {_STUCK_S} s, and was ended"
        )
    _check(ending, f"the program under valgrind {valgrind.version}")


# ---- from instructions to steps


@dataclass(frozen=True, slots=True)
class SimulatedSteps:
    """Counts per kernel and line of its text (0: code without a line), in the order of `EVENTS`.

    `substituted` is how many instructions ran in functions that the compiler calls for instructions that the target
    does not have; they are counted where they are called.
    """

    lines: Mapping[tuple[str, int], tuple[int, ...]]
    substituted: int


def simulated_steps(counts: CallgrindCounts, images: Mapping[str, Image], kernels: Collection[str]) -> SimulatedSteps:
    """Bring counts by instruction to kernels and lines.

    Args:
        counts: of the objects `images`.
        images: the executables by the names that the counts call them.
        kernels: which of their functions are kernels.

    Raises:
        RunInvalid: an event is missing.
    """
    order = [_place(counts.events, event) for event in EVENTS]
    found: dict[tuple[str, int], Counter[int]] = {}
    substituted = 0
    for name, image in images.items():
        places = _Places(image, kernels)
        costs = [(address, values) for (owner, address), values in counts.costs.items() if owner == name]
        for call in counts.calls:
            if call.object == name and not (call.target_object == name and places.kernel_at(call.target)):
                costs.append((call.address, call.costs))
                substituted += call.costs[order[0]] if places.kernel_at(call.address) else 0
        for address, values in costs:
            if kernel := places.kernel_at(address):
                sums = found.setdefault((kernel, places.line_at(address)), Counter())
                sums.update({number: values[place] for number, place in enumerate(order)})
    lines = {key: tuple(found[key][number] for number in range(len(EVENTS))) for key in sorted(found)}
    return SimulatedSteps(lines, substituted)


def _place(events: Sequence[str], event: str) -> int:
    if event not in events:
        raise RunInvalid(f"callgrind did not count {event}; it counted {', '.join(events)}")
    return events.index(event)


class _Places:
    """Looks up the kernel and the line of addresses of one image."""

    def __init__(self, image: Image, kernels: Collection[str]) -> None:
        self._image = image
        self._kernels = kernels
        self._known: dict[int, tuple[str, int]] = {}

    def _at(self, address: int) -> tuple[str, int]:
        if address not in self._known:
            import numpy as np

            place = np.array([address], dtype=np.int64)
            function = int(self._image.functions_at(place)[0])
            name = self._image.functions[function].name if function >= 0 else ""
            self._known[address] = name if name in self._kernels else "", int(self._image.lines_at(place)[0])
        return self._known[address]

    def kernel_at(self, address: int) -> str:
        """The kernel whose code this is, "" for other code."""
        return self._at(address)[0]

    def line_at(self, address: int) -> int:
        """The line of the kernel's text."""
        return self._at(address)[1]


# ---- into the run


def _merged(timed: duckdb.DuckDBPyRelation, steps: SimulatedSteps) -> duckdb.DuckDBPyRelation:
    """The timed events, and after them a row per kernel and step."""
    if not steps.lines:
        return timed
    rows = ", ".join(
        f"({literal(EventKind.STEP.value)}, {literal(kernel)}, {line}, false, {', '.join(map(str, values))})"
        for (kernel, line), values in steps.lines.items()
    )
    cells = {"kind": "VARCHAR", "kernel": "VARCHAR", "step": "BIGINT", "warmup": "BOOLEAN"} | dict.fromkeys(
        EVENTS, "BIGINT"
    )
    typed = ", ".join(f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}" for name, kind in cells.items())
    merged = timed.query(
        "timed_events",
        "SELECT * EXCLUDE (place) FROM (SELECT *, row_number() OVER () AS place FROM timed_events UNION ALL BY NAME "
        f"SELECT {typed} FROM (VALUES {rows}) AS steps({', '.join(map(quoted, cells))})) "
        "ORDER BY place NULLS LAST, kernel, step",
    )
    assert merged is not None  # of a SELECT there is always a relation
    return merged


def _told(
    valgrind: Valgrind, simulation: CacheSimulation, counts: CallgrindCounts, steps: SimulatedSteps
) -> list[RunDiagnostic]:
    own = sum(values[0] for values in steps.lines.values())
    whole = counts.totals[_place(counts.events, INSTRUCTIONS)]
    caches = ", ".join(map(str, simulation.geometry.caches)) or "; ".join(counts.caches)
    told = (
        f"{', '.join(EVENTS)} are not measured but simulated, by valgrind {valgrind.version} (callgrind, whose caches "
        f"are cachegrind's), of a build for {simulation.build}: the same kernels and steps, other instructions. They "
        "are of one call on one worker; times are of the timed calls. "
        f"Caches: {caches} ({simulation.geometry.source}). "
        f"Kernels ran {format_count(own)} of the program's {format_count(whole)} instructions"
    )
    if steps.substituted:
        told += (
            f"; {format_share(steps.substituted, own)} of theirs stand in for instructions that the build lacks, such "
            "as fused multiply-adds, and are counted at the steps that need these"
        )
    notes = [RunDiagnostic("cache-simulated", told)]
    mixed = sorted(simulation.load_time & {kernel for kernel, _ in steps.lines})
    if mixed:
        listed = ", ".join(mixed[:_LISTED]) + (f" and {len(mixed) - _LISTED} more" if len(mixed) > _LISTED else "")
        text = f"{plural(len(mixed), 'kernel')} also ran when the module was loaded, which is counted with it: {listed}"
        notes.append(RunDiagnostic("cache-load-time", text))
    return notes


_LISTED = 5
