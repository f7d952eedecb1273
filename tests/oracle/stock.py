"""Programs compiled and timed by IREE's own tools, without tracemap: the truth of predictions about whole programs.

Programs that are compared run in turns, each turn in a process of its own. The memory layout of a process and the other
load of the machine then affect all of them alike. Results are medians over the turns.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support import PLAIN_FLAGS
from tracemap.core.toolchain import find_tool

DEVICES: Final[Mapping[str, tuple[str, ...]]] = {
    "local-sync": ("--device=local-sync",),
    "1 worker": ("--device=local-task", "--task_topology_max_group_count=1"),
    "2 workers": ("--device=local-task", "--task_topology_max_group_count=2"),
}
"""Runtime flags by the name of a device."""
_REPETITIONS: Final = 3
_MODES: Final = "queue-events,host-execution,executable-metadata"
_FLUSHED: Final = "--device_profiling_flush_interval_ms=1"
"""Without it, long invocations overflow the profiler's buffers."""
_LONG_INVOCATIONS: Final = 4
_ATTEMPTS: Final = 6
_PROFILED_NS: Final = 150_000_000
"""Time for the profiled invocations of a process."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program, its inputs in IREE's syntax, and its flags for the compiler and the runtime."""

    name: str
    text: str
    inputs: tuple[str, ...] = ()
    compile_flags: tuple[str, ...] = ()
    run_flags: tuple[str, ...] = ()
    function: str = "main"
    calls: int = 0
    """Calls of kernels per invocation, for a program with more of them than the profiler keeps."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A compiled program on a device."""

    module: Path
    program: Program
    device: tuple[str, ...]

    @property
    def flags(self) -> list[str]:
        """The flags of iree-benchmark-module, without those of its time."""
        inputs = [f"--input={value}" for value in self.program.inputs]
        run = [f"--module={self.module}", f"--function={self.program.function}", *inputs]
        # The last --device would be a second one, so the program's own replaces it.
        device = [] if any(flag.startswith("--device=") for flag in self.program.run_flags) else self.device
        return [*run, *device, *self.program.run_flags]


@dataclass(slots=True)
class Kernels:
    """Time in kernels per invocation, by turn: in any kernel (wall time), and by kernel per call (CPU time)."""

    wall_ns: list[float] = field(default_factory=list)
    call_ns: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[str, int] = field(default_factory=dict)

    @property
    def wall(self) -> float:
        """The median time in kernels per invocation."""
        return statistics.median(self.wall_ns)

    def call(self, kernel: str) -> float:
        """The median time of a call of a kernel."""
        return statistics.median(self.call_ns[kernel])


class Failed(RuntimeError):
    """A tool of IREE rejected a program."""


def compiled(program: Program, folder: Path, flags: Sequence[str] = PLAIN_FLAGS) -> Path:
    """Compile a program with plain iree-compile, once; returns its module.

    Raises:
        Failed: the compiler rejects it.
    """
    source, module = folder / f"{program.name}.mlir", folder / f"{program.name}.vmfb"
    if not module.exists():
        source.write_text(program.text, encoding="utf-8")
        _run("iree-compile", [str(source), *flags, *program.compile_flags, "-o", str(module)])
    return module


def dispatches(program: Program, folder: Path, flags: Sequence[str] = PLAIN_FLAGS) -> str:
    """The flow phase of a program as text, to see which kernels the compiler forms."""
    source = folder / f"{program.name}.mlir"
    source.write_text(program.text, encoding="utf-8")
    elided = ["--mlir-elide-elementsattrs-if-larger=4", "--mlir-elide-resource-strings-if-larger=4"]
    return _run("iree-compile", [str(source), *flags, *program.compile_flags, "--compile-to=flow", *elided, "-o", "-"])


def times_in_turns(timed: Mapping[str, Timed], turns: int, seconds: float = 0.1) -> dict[str, list[float]]:
    """The time of an invocation of each program in ns, for each turn; every second turn is in the reverse order."""
    found: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(turns):
        for name in sorted(timed, reverse=bool(turn % 2)):
            found[name].append(_time(timed[name], seconds))
    return found


def _time(timed: Timed, seconds: float) -> float:
    words = [f"--benchmark_min_time={seconds / _REPETITIONS:.4f}s", f"--benchmark_repetitions={_REPETITIONS}"]
    printed = json.loads(_run("iree-benchmark-module", [*timed.flags, *words, "--benchmark_format=json"]))
    rows = [row for row in printed["benchmarks"] if row.get("run_type") != "aggregate"]
    assert {row["time_unit"] for row in rows} <= {"ms", "us", "ns"}
    scale = {"ms": 1e6, "us": 1e3, "ns": 1.0}
    return float(statistics.median(row["real_time"] * scale[row["time_unit"]] for row in rows))


def kernels_in_turns(timed: Mapping[str, Timed], turns: int, folder: Path) -> dict[str, Kernels]:
    """The time in kernels of each program as IREE's own profiler measures it, for each turn."""
    found = {name: Kernels() for name in timed}
    for turn in range(turns):
        for name in sorted(timed, reverse=bool(turn % 2)):
            _profile(timed[name], folder, found[name])
    return found


def _profile(timed: Timed, folder: Path, kernels: Kernels) -> None:
    """Add a process's times to those of others; a first quarter of its invocations warms up."""
    invocation_ns = _time(timed, 0.02)
    count = int(min(2000, max(8, _PROFILED_NS / invocation_ns)))
    if timed.program.calls:
        # Those that the profiler keeps stand for all.
        kept = _profiled_at_last(timed, folder)
        calls_ns = _without_outliers([int(row["duration_ns"]) for row in kept])
        kernels.wall_ns.append(statistics.fmean(calls_ns) * timed.program.calls)
        return
    events = _profiled(timed, folder, count, [])
    if len(events) % count:
        raise Failed(f"{timed.program.name}: {len(events)} calls of kernels in {count} invocations: some were lost")
    # Each invocation makes the same calls, so equal parts of the events are invocations.
    size = len(events) // count
    invocations = [events[first : first + size] for first in range(0, len(events), size)] if size else [[]]
    measured = invocations[len(invocations) // 4 :]
    kernels.wall_ns.append(statistics.median(map(_union_ns, measured)))
    by_kernel: dict[str, list[int]] = defaultdict(list)
    for row in (row for events in measured for row in events):
        cpu_ns = int(row.get("tile_duration_sum_ns") or 0)
        by_kernel[str(row["key"])].append(cpu_ns or int(row["duration_ns"]))
    for key, calls in by_kernel.items():
        kernels.call_ns[key].append(statistics.fmean(_without_outliers(calls)))
        kernels.calls[key] = len(calls) // len(measured)


def _profiled_at_last(timed: Timed, folder: Path) -> list[Mapping[str, Any]]:
    """The calls of a long program; profiles that are written during an invocation are sometimes damaged."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(Failed):
            return _profiled(timed, folder, _LONG_INVOCATIONS, [_FLUSHED])
    return _profiled(timed, folder, _LONG_INVOCATIONS, [_FLUSHED])


def _profiled(timed: Timed, folder: Path, count: int, flags: Sequence[str]) -> list[Mapping[str, Any]]:
    """The calls of kernels in a process, by their starts."""
    profile, rows = folder / "stock.ireeprof", folder / "stock.jsonl"
    profiling = [f"--device_profiling_mode={_MODES}", f"--device_profiling_output={profile}", *flags]
    _run("iree-benchmark-module", [*timed.flags, f"--benchmark_min_time={count}x", *profiling], ahead=not flags)
    _run("iree-profile", ["export", "--format=ireeperf-jsonl", f"--output={rows}", str(profile)])
    events = [row for row in map(json.loads, rows.read_text(encoding="utf-8").splitlines()) if _is_call(row)]
    return sorted(events, key=lambda row: int(row["start_host_time_ns"]))


def _is_call(row: Mapping[str, Any]) -> bool:
    return row.get("record_type") == "host_execution_event" and row.get("op", "") == "dispatch"


def _union_ns(events: Iterable[Mapping[str, Any]]) -> int:
    """The time in which at least one of the events runs; they are in order of their starts."""
    total, end = 0, 0
    for row in events:
        start, stop = int(row["start_host_time_ns"]), int(row["end_host_time_ns"])
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


def _without_outliers(values: Sequence[int]) -> list[int]:
    """Values up to three times the median; longer calls waited for a processor."""
    limit = 3 * statistics.median(values)
    return [value for value in values if value <= limit]


def ratio_in_turns(times: Mapping[str, Sequence[float]], after: str, before: str) -> float:
    """The median over the turns of a program's time divided by another's."""
    return statistics.median(a / b for a, b in zip(times[after], times[before], strict=True))


def difference_in_turns(times: Mapping[str, Sequence[float]], first: str, second: str) -> float:
    """The median over the turns of the difference of two programs' times."""
    return statistics.median(a - b for a, b in zip(times[first], times[second], strict=True))


def _ahead_of_others() -> None:
    """Run before other programs of the machine, which would otherwise be measured, too."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def run_ahead_of_others(command: Sequence[str]) -> str:
    """Run a command with real-time priority, if the system allows it, and return what it prints.

    Raises:
        Failed: its status is not 0.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=_ahead_of_others)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: status {done.returncode}: {done.stderr[-600:]}")
    return done.stdout


def _run(tool: str, arguments: Sequence[str], *, ahead: bool = True) -> str:
    command = [str(find_tool(tool)), *arguments]
    before = _ahead_of_others if ahead and tool == "iree-benchmark-module" else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=before)
    if done.returncode:
        raise Failed(f"{tool}: status {done.returncode}: {done.stderr[-600:]}")
    return done.stdout
