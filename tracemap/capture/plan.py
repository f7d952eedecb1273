"""What to record, and how the program is called for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracemap.capture.benchmark import BENCHMARK_TOOL, FLUSH_INTERVAL, HOST_DEVICES, counted, profiling_flags
from tracemap.capture.cache_simulation import SIMULATED_DEVICE, CacheSimulation, check_device
from tracemap.capture.calling import Call, Program, make_call
from tracemap.capture.flags import Batch, batch_of, check_undecided, without_batches
from tracemap.capture.inputs import Input
from tracemap.capture.niceness import niceness_to_run_at
from tracemap.capture.reserving import Reservation
from tracemap.capture.saved_inputs import NOTHING_KEPT, Kept
from tracemap.capture.stopping_rule import LEAST_WARMUP, Goal, enough_hz
from tracemap.errors import UsageInvalid
from tracemap.functions import Function
from tracemap.options.measure import CallOptions, RecordOptions
from tracemap.outputs import is_stream
from tracemap.units import UNKNOWN, Integer, Text, Unknown

FIXED_ITERATIONS: Final = 20
"""Measured calls where nothing else decides."""


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """What to record: a module with its entry points, and the options, whose output and caches are decided here.

    A function or inputs that the options do not name are those of the flag file; else the only one, and made up.
    """

    module: Path
    module_sha256: Text
    bundle: Text
    functions: tuple[Function, ...]
    output: Path
    options: RecordOptions
    device: Text = UNKNOWN
    """Unknown: that of the flags, else local-task."""
    reservation: Reservation | None = None
    """The output's, where it has been taken already."""
    caches: CacheSimulation | None = None
    """A simulation of caches in one more execution; None: there is none."""
    values: tuple[object, ...] = ()
    """Inputs as Python has them, in place of those of the options; none: the options decide."""
    kept: Kept = NOTHING_KEPT
    """What the module's bundle keeps to call it with, where the options name no inputs."""
    check: Callable[[], None] = lambda: None
    """Raises an error where the module is not any more what it was, and the run is not to be written."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A request with everything decided."""

    request: RecordRequest
    profile: Path
    call: Call
    folder: Path
    """For what is needed only until the run is written."""
    sample_hz: int
    """How often a second each thread is sampled; 0: it is not."""
    niceness: Integer
    """That the program runs at; unknown: at our own."""
    batch: Batch

    @property
    def options(self) -> RecordOptions:
        """What was asked for."""
        return self.request.options

    @property
    def entry(self) -> Function:
        """The function that is called."""
        return self.call.entry

    @property
    def device(self) -> str:
        """Where it runs."""
        return self.call.device

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What it is called with."""
        return self.call.inputs

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of the runtime."""
        return self.call.flags

    @property
    def warmup(self) -> int:
        """How many calls are warm-up where it is said how many are made: whole batches."""
        return self.batch.rounded(LEAST_WARMUP if isinstance(self.options.warmup, Unknown) else self.options.warmup)

    @property
    def iterations(self) -> int:
        """How many calls are measured where it is said how many, or cannot be found out: whole batches."""
        calls = FIXED_ITERATIONS if isinstance(self.options.iterations, Unknown) else self.options.iterations
        return self.batch.rounded(calls)

    @property
    def goal(self) -> Goal | None:
        """What is enough, in batches; None: calls are counted.

        Simulated counts are those of one call, however many are timed.
        """
        options = self.options
        if options.iterations is not UNKNOWN or options.cache_sim or self.flushes_on_timer:
            return None
        warmup = options.warmup if isinstance(options.warmup, Unknown) else self.batch.count(options.warmup)
        return Goal(options.precision / 100, options.seconds, self.sample_hz, warmup, self.launches)

    @property
    def launches(self) -> int:
        """How often the program is launched where that is not too dear.

        Once where more than its time is asked for: samples and counts are joined to the calls of one process, a profile
        that is kept is to hold all of them, and a device's own clock need not go on from one process to the next.
        """
        of_host = self.device.partition(":")[0] in HOST_DEVICES
        return self.options.launches if of_host and not _asked_besides(self.options) else 1

    @property
    def flushes_on_timer(self) -> bool:
        """Whether the profile is flushed not only after each call, so that it does not show calls as they return."""
        return any(flag.startswith(FLUSH_INTERVAL) for flag in self.flags)

    def command(self, profile: Path, calls: int, more: Sequence[str] = ()) -> list[str]:
        """The command line that makes so many calls, warm-up included, and writes this profile."""
        call = replace(self.call, flags=(*self.flags, *self.batch.flags, *more))
        return call.command(BENCHMARK_TOOL, *counted(calls), *profiling_flags(self.device, profile))

    def unprofiled(self, device: str, calls: int) -> list[str]:
        """The program on a device, without the profiler: so many calls, each timed by itself."""
        call = replace(self.call, device=device, flags=(*self.flags, *self.batch.flags))
        return call.command(BENCHMARK_TOOL, *counted(1, repetitions=calls))

    def simulated(self, module: Path, more: Sequence[str]) -> list[str]:
        """One call with another module in place of ours, on one worker and without a profile."""
        call = replace(self.call, device=SIMULATED_DEVICE, flags=(*self.flags, *more))
        return call.with_module(self.request.module, module).command(BENCHMARK_TOOL, *counted(1))


def make_plan(request: RecordRequest, profile: Path, folder: Path) -> Plan:
    """Decide everything that the request leaves open.

    Raises:
        FunctionUnknown: no such function, or several and none named.
        InputInvalid: the inputs do not fit, or cannot be made up.
        UsageInvalid: flags that do not go together, or that the system does not allow.
    """
    options = request.options
    _check_ends(options)
    check_runtime_flags(options)
    program = Program(request.module, request.functions, request.device, request.kept)
    call = make_call(program, options, BENCHMARK_TOOL, folder, request.values)
    check_calls_made(call)
    batch = batch_of(call.flags, asynchronous=call.asynchronous)
    call = replace(call, flags=without_batches(call.flags))
    if request.caches is not None:
        check_device(call.device)
    hz = options.sample_hz
    if isinstance(hz, Unknown):
        hz = enough_hz(options.seconds)
    return Plan(request, profile, call, folder, hz, niceness_to_run_at(options.nice), batch)


_HOW_OFTEN: Final = "see --iterations, --seconds and --precision"
_KEPT: Final = "the run goes to -o, and --keep-profile keeps the profile"
_OTHER_CALLS: Final = {
    "--benchmark_dry_run": _HOW_OFTEN,
    "--benchmark_min_warmup_time": "see --warmup",
    "--benchmark_filter": "see --function",
    "--benchmark_list_tests": "`show` lists the functions",
    "--benchmark_enable_random_interleaving": "each function is recorded by itself",
    **dict.fromkeys(("--benchmark_report_aggregates_only", "--benchmark_display_aggregates_only"), _KEPT),
}
"""With these the program makes other calls than those that a run tells of, or does not say how long each took."""
_DECIDED: Final = {
    **_OTHER_CALLS,
    **dict.fromkeys(("--benchmark_min_time", "--benchmark_repetitions"), _HOW_OFTEN),
    **dict.fromkeys(("--benchmark_format", "--benchmark_out", "--benchmark_out_format"), _KEPT),
    **dict.fromkeys(("--device_profiling_mode", "--device_profiling_output"), _KEPT),
}


def check_runtime_flags(options: CallOptions) -> None:
    """Refuse flags for what a recording decides itself.

    Raises:
        UsageInvalid: one stands behind the `--`.
    """
    check_undecided(options.runtime_flags, _DECIDED)


def check_calls_made(call: Call) -> None:
    """Refuse flags, of flag files too, by which other calls are made; ours go before all else that files say.

    Raises:
        UsageInvalid: there is one, or one for batches that names no number.
    """
    check_undecided(call.flags, _OTHER_CALLS)
    batch_of(call.flags, asynchronous=call.asynchronous)


def _asked_besides(options: RecordOptions) -> str:
    """What is asked for besides times, of the calls of one process; empty: nothing."""
    asked = {
        "--iterations": options.iterations is not UNKNOWN,
        "--sample": options.sample_hz != 0,
        "--counters": bool(options.counters),
        "--cache-sim": options.cache_sim,
        "--keep-profile": options.keep_profile,
    }
    return next((name for name, is_asked in asked.items() if is_asked), "")


def _check_ends(options: RecordOptions) -> None:
    """Refuse a number of calls or of launches beside what decides how many.

    Raises:
        UsageInvalid: both are given.
    """
    default = RecordOptions()
    if options.launches not in (1, default.launches) and (asked := _asked_besides(options)):
        raise UsageInvalid(f"{asked} is of the calls of one launch: leave --launches out, or record a run of its own")
    if (options.precision, options.seconds) != (default.precision, default.seconds):
        if options.iterations is not UNKNOWN:
            raise UsageInvalid("--iterations says exactly how many calls are made: leave --precision and --seconds out")
        if options.cache_sim:
            raise UsageInvalid(
                f"beside --cache-sim {FIXED_ITERATIONS} calls are timed, or --iterations: leave --precision and "
                "--seconds out, and record a run of its own for times"
            )
    if options.keep_profile and options.output is not None and is_stream(options.output):
        raise UsageInvalid("--keep-profile keeps a file beside the run: name the run's file with -o")
