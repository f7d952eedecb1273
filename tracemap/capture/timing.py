"""Times of invocations, with the profiler and without."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.capture.benchmark import BENCHMARK_TOOL, run_program
from tracemap.capture.calling import Call, check_undecided
from tracemap.capture.execution import Execution
from tracemap.capture.noise import observed_noise
from tracemap.core.errors import ProgramFailed
from tracemap.core.functions import Function
from tracemap.core.units import NS_OF_UNIT, UNKNOWN, Integer, Unknown, join_names
from tracemap.options.measure import BenchmarkOptions
from tracemap.runs.elapsed import MeasuredSpan, elapsed_parts, host_only_parts, parts_by_device
from tracemap.runs.model import UNKNOWN_PARTS, Clock, ElapsedParts, Noise

if TYPE_CHECKING:
    import numpy.typing as npt


# ---- call times
#
# Times of the measured calls of one execution.


@dataclass(frozen=True)
class CallTimes:
    """Measured calls of an execution: number, times, elapsed time with the gaps, its parts, and the noise.

    `times_ns` and `noise` cover all calls that were made, the others those whose events were read.
    """

    calls: Integer
    times_ns: npt.NDArray[Any]
    elapsed_ns: Integer
    elapsed: ElapsedParts
    noise: Noise


def call_times(execution: Execution) -> CallTimes:
    """Analyze an execution, before rows of other executions are added to its events."""
    profile, warmup = execution.profile, execution.warmup_batches
    clock_span = _span_by_clock(execution)
    end_ns = profile.span.last_ns if execution.until_ns is UNKNOWN else execution.until_ns
    span = clock_span or MeasuredSpan(profile.span.measured_ns, end_ns)
    elapsed_ns = _elapsed_ns(execution, span, by_clock=clock_span is not None)
    if profile.lost_records:
        elapsed = UNKNOWN_PARTS  # the kernels of lost records would count as host time
    elif profile.clock is not Clock.HOST and not profile.on_host:
        elapsed = parts_by_device(profile.events, elapsed_ns)  # its clock is not related to the host's
    elif execution.stops is not None and execution.calls and not profile.event_count:
        elapsed = host_only_parts(execution.stops, warmup, execution.calls // execution.batch)
    else:
        elapsed = elapsed_parts(profile.events, elapsed_ns, span, execution.stops)
    calls: Integer = execution.calls - execution.warmup
    if execution.ending.failed:
        recorded = profile.invocations
        calls = max(0, recorded - execution.warmup) if isinstance(recorded, int) else UNKNOWN
    return CallTimes(
        calls,
        execution.times_ns[warmup:],
        elapsed_ns,
        elapsed,
        observed_noise(execution.watcher.snapshots, span.begin_ns, _latest(span.end_ns, execution.watcher.begins_ns)),
    )


def _latest(end_ns: Integer, begins_ns: Sequence[int]) -> Integer:
    return max(end_ns, *begins_ns[-1:]) if isinstance(end_ns, int) and begins_ns else end_ns


def _span_by_clock(execution: Execution) -> MeasuredSpan | None:
    """Begin and end of the measured calls by the program's own clock; None if unknown.

    None also for a stopped program: there the profile shows when the first omitted call began.
    """
    if execution.until_ns is not UNKNOWN:
        return None
    warmup = execution.warmup_batches
    calls = len(execution.profile.begins_ns) or execution.calls // execution.batch
    if execution.stops is None or not warmup < calls <= len(execution.stops.stopped_ns):
        return None
    begin, end = execution.stops.going_ns[warmup], execution.stops.stopped_ns[calls - 1]
    return MeasuredSpan(int(begin), int(end))


def _elapsed_ns(execution: Execution, measured: MeasuredSpan, *, by_clock: bool) -> Integer:
    """Wall time of the measured iterations.

    If the program's clock is unknown, there are two lower bounds. The profile knows the end of the warm-up (the first
    submission after it), but not when the last call returned. The program reports the sum of all calls, warm-up
    included, without the gaps between them; from that, the time from the first submission to the end of the warm-up is
    subtracted. The result is the larger one. A stopped program reports no sum.
    """
    first_ns, total = execution.profile.span.first_ns, execution.ending.total_ns
    begin, end = measured.begin_ns, measured.end_ns
    recorded = end - begin if isinstance(begin, int) and isinstance(end, int) else UNKNOWN
    if not isinstance(total, int) or by_clock:
        return recorded
    if isinstance(first_ns, int) and isinstance(begin, int) and isinstance(recorded, int):
        return max(recorded, total - (begin - first_ns))
    # Nothing was submitted, or calls cannot be distinguished: count the warm-up like any other call.
    return round(total * (execution.calls - execution.warmup) / execution.calls)


# ---- timing
#
# Times of functions by the stock `iree-benchmark-module`: its table, its report, and the numbers in it.


_SEE_FORMAT: Final = "see --format, and send standard output to a file"
_RESERVED_FLAGS: Final = {
    **dict.fromkeys(("--benchmark_format", "--benchmark_out", "--benchmark_out_format"), _SEE_FORMAT),
    "--benchmark_list_tests": "`tracemap show` lists the functions",
    "--batch_size": "see --dispatch-repeat",
}
_PREFIX: Final = "BM_"
_WALL, _PROCESS = "/real_time", "/process_time"


@dataclass(frozen=True, slots=True)
class FunctionTimes:
    """Time of a call of a function: a mean per repetition, and the number of calls in each mean.

    `wall_ns`: wall clock. `cpu_ns`: CPU time of all threads of the program.
    """

    function: str
    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """Google Benchmark's table and report, the numbers of each function, and a note on the clocks."""

    table: str
    report: dict[str, Any]
    functions: tuple[FunctionTimes, ...]
    clocks: str


def run_benchmark_tool(calls: Sequence[Call], options: BenchmarkOptions, folder: Path) -> BenchmarkResult:
    """Time a function, or all functions without inputs in one program.

    Args:
        calls: one call; or the calls of all functions of one module.
        options: number of calls, and for how long.
        folder: temporary folder.

    Raises:
        ProgramFailed: the program failed, or timed nothing.
        UsageInvalid: a flag that tracemap sets itself.
    """
    call = calls[0] if len(calls) == 1 else replace(calls[0], entry=Function("", ()))
    check_undecided(call.flags, _RESERVED_FLAGS)
    default, iterations, set_by_options = BenchmarkOptions(), options.iterations, {}
    if not isinstance(iterations, Unknown):
        set_by_options["--benchmark_min_time"] = "--iterations sets the exact number of calls"
    elif options.min_time != default.min_time:
        set_by_options["--benchmark_min_time"] = "--min-time sets it"
    if options.repetitions != default.repetitions:
        set_by_options["--benchmark_repetitions"] = "--repetitions sets it"
    check_undecided(options.runtime_flags, set_by_options)
    # One iteration is a batch of `dispatch_repeat` calls.
    length = f"{options.min_time:g}s" if isinstance(iterations, Unknown) else f"{iterations * options.dispatch_repeat}x"
    defaults = (f"--benchmark_min_time={length}", f"--benchmark_repetitions={options.repetitions}")
    # Later flags win: defaults, then the user's own flags; options win over a flag file.
    own = (flag for flag in call.flags if flag.partition("=")[0] not in set_by_options)
    call = replace(call, flags=(*defaults, f"--time_unit={options.time_unit}", *own))
    out = folder / "times.json"
    ours = [f"--batch_size={options.dispatch_repeat}", f"--benchmark_out={out}", "--benchmark_out_format=json"]
    ending = run_program(call.command(BENCHMARK_TOOL, *ours, "--benchmark_format=console"))
    names = join_names([call.entry.name for call in calls])
    ending.check(f"{BENCHMARK_TOOL}, which called {names},")
    try:  # control characters in names are not escaped
        report = json.loads(out.read_text(encoding="utf-8", errors="replace"), strict=False)
    except (OSError, ValueError):
        report = None
    report = report if isinstance(report, dict) else {}
    # Single repetitions, without Google Benchmark's aggregates.
    rows = [row for row in report.get("benchmarks", []) if row["run_type"] == "iteration"]
    if wrong := next((row for row in rows if row.get("error_occurred")), None):
        raise ProgramFailed(f"{BENCHMARK_TOOL}: {wrong['name']}: {wrong.get('error_message', 'it failed')}")
    if not rows:
        raise ProgramFailed(f"{BENCHMARK_TOOL} timed nothing of {names}: {ending.stderr or ending.stdout.strip()}")
    names_of_rows = dict.fromkeys(row["run_name"] for row in rows)
    by_name = {name: [row for row in rows if row["run_name"] == name] for name in names_of_rows}
    functions = tuple(
        FunctionTimes(
            name.removeprefix(_PREFIX).removesuffix(_WALL).removesuffix(_PROCESS),
            tuple(round(row["real_time"] * NS_OF_UNIT[row["time_unit"]]) for row in own),
            tuple(round(row["cpu_time"] * NS_OF_UNIT[row["time_unit"]]) for row in own),
            tuple(int(row["iterations"]) for row in own),
        )
        for name, own in by_name.items()
    )
    return BenchmarkResult(ending.stdout, report, functions, _clocks(rows[0]["run_name"], options.dispatch_repeat))


def _clocks(name: str, repeat: int) -> str:
    """The note on the clocks, from the name of a row."""
    whose = "all threads of the program (process_time)" if _PROCESS in name else "the thread that calls (cpu_time)"
    decides = "Time" if _WALL in name else "CPU"
    note = (
        f"Time: wall clock (real_time); CPU: CPU time of {whose}; both are means per call.\n"
        f"{decides} decides the number of calls."
    )
    if repeat == 1:
        return note
    return f"{note} Each dispatch runs {repeat} times in a call; numbers are divided by {repeat}."
