"""Recording plan: what to record, and the command lines for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracemap.capture.benchmark import BENCHMARK_TOOL, FLUSH_INTERVAL, HOST_DEVICES, call_count_flags, profiling_flags
from tracemap.capture.cache_simulation import SIMULATED_DEVICE, CacheSimulation, check_device
from tracemap.capture.calling import Batch, Call, Program, batch_of, check_undecided, make_call, without_batches
from tracemap.capture.cuda import check_cuda, is_cuda
from tracemap.capture.inputs import NO_SAVED_INPUTS, SavedInputs
from tracemap.capture.noise import niceness_to_run_at
from tracemap.capture.run_names import Reservation
from tracemap.capture.stopping_rule import LEAST_WARMUP, Goal, default_sample_hz
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import UsageInvalid
from tracemap.core.files import is_stream
from tracemap.core.functions import Function
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown
from tracemap.options.measure import CallOptions, RecordOptions

FIXED_ITERATIONS: Final = 20
"""Default number of measured calls where no stopping rule applies."""


@dataclass(frozen=True, slots=True)
class LocatedLaunches:
    """The dispatch site of each launch, "" where the order leaves several, and diagnostics."""

    sites: Sequence[str]
    diagnostics: tuple[Diagnostic, ...]


LocateLaunches = Callable[[Sequence[str]], LocatedLaunches]
"""Finds the dispatch sites of launches from their kernels, in the order in which the program submitted them."""


def no_locations(kernels: Sequence[str]) -> LocatedLaunches:
    """No sites, for a module without a map."""
    return LocatedLaunches([""] * len(kernels), ())


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """Module, entry points and options of a recording; output and caches are already resolved.

    If the options name no function or inputs, those of the flag file apply; else the only function, with generated
    inputs.
    """

    module: Path
    module_sha256: Text
    bundle: Text
    functions: tuple[Function, ...]
    output: Path
    options: RecordOptions
    device: Text = UNKNOWN
    """UNKNOWN: the device of the flags, else local-task."""
    reservation: Reservation | None = None
    """The reservation of the output's name, if already made."""
    caches: CacheSimulation | None = None
    """Cache simulation in one more execution; None: none."""
    values: tuple[object, ...] = ()
    """Inputs as Python values, instead of the options' inputs. Empty: the options decide."""
    kept: SavedInputs = NO_SAVED_INPUTS
    """Inputs saved in the module's bundle, used if the options name none."""
    locate: LocateLaunches = no_locations
    """Used for devices whose launches name no dispatch site, but are in the program's order."""
    check: Callable[[], None] = lambda: None
    """Raises an error if the module has changed meanwhile; the run is then not written."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A request with every choice made."""

    request: RecordRequest
    profile: Path
    call: Call
    folder: Path
    """Temporary folder, removed once the run is written."""
    sample_hz: int
    """Samples per second and thread; 0: no sampling."""
    niceness: Integer
    """Niceness of the program; UNKNOWN: our own."""
    batch: Batch

    @property
    def options(self) -> RecordOptions:
        """The options of the request."""
        return self.request.options

    @property
    def warmup(self) -> int:
        """Warm-up calls for a fixed number of calls, rounded up to whole batches."""
        return self.batch.rounded(LEAST_WARMUP if isinstance(self.options.warmup, Unknown) else self.options.warmup)

    @property
    def iterations(self) -> int:
        """Measured calls for a fixed number of calls, rounded up to whole batches."""
        calls = FIXED_ITERATIONS if isinstance(self.options.iterations, Unknown) else self.options.iterations
        return self.batch.rounded(calls)

    @property
    def goal(self) -> Goal | None:
        """The goal of the stopping rule, in batches; None: a fixed number of calls.

        With --cache-sim the number is fixed: simulated counts belong to one call, however many are timed. With counters
        of a GPU, too: each kernel takes a hundred times as long while it is counted.
        """
        options = self.options
        counts_on_gpu = self.on_cuda and options.counters
        if options.iterations is not UNKNOWN or options.cache_sim or self.flushes_on_timer or counts_on_gpu:
            return None
        warmup = options.warmup if isinstance(options.warmup, Unknown) else self.batch.count(options.warmup)
        reads_all = self.launches == 1 or self.on_cuda
        return Goal(
            options.precision / 100, options.seconds, self.sample_hz, warmup, self.launches, reads_all=reads_all
        )

    @property
    def launches(self) -> int:
        """Number of launches of the program, before the stopping rule reduces it.

        One launch if more than times is measured: samples and counts are joined to the calls of one process, a kept
        profile must hold all calls, and a device's own clock may restart with each process.
        """
        of_host = self.call.device.partition(":")[0] in HOST_DEVICES
        return self.options.launches if (of_host or self.on_cuda) and not _single_process_option(self.options) else 1

    @property
    def on_cuda(self) -> bool:
        """Whether the program runs on a CUDA device, so that tracemap's library records it instead of IREE."""
        return is_cuda(self.call.device)

    @property
    def flushes_on_timer(self) -> bool:
        """Whether the profile is also flushed on a timer, so that it does not show when a call returns."""
        return any(flag.startswith(FLUSH_INTERVAL) for flag in self.call.flags)

    def command(self, profile: Path, calls: int, more: Sequence[str] = ()) -> list[str]:
        """The command line that makes `calls` calls, warm-up included, and writes `profile`."""
        call = replace(self.call, flags=(*self.call.flags, *self.batch.flags, *more))
        return call.command(BENCHMARK_TOOL, *call_count_flags(calls), *profiling_flags(self.call.device, profile))

    def command_on_cuda(self, batches: int) -> list[str]:
        """The command line that makes calls in repetitions of their own, one batch in each, without a profile."""
        call = replace(self.call, flags=(*self.call.flags, *self.batch.flags))
        return call.command(BENCHMARK_TOOL, *call_count_flags(1, repetitions=batches))

    def unprofiled(self, device: str, calls: int) -> list[str]:
        """The command line for a device without the profiler: `calls` calls, timed one by one."""
        call = replace(self.call, device=device, flags=(*self.call.flags, *self.batch.flags))
        return call.command(BENCHMARK_TOOL, *call_count_flags(1, repetitions=calls))

    def simulated(self, module: Path, more: Sequence[str]) -> list[str]:
        """The command line for one call of another build of the module, on one worker and without a profile."""
        call = replace(self.call, device=SIMULATED_DEVICE, flags=(*self.call.flags, *more))
        return call.with_module(self.request.module, module).command(BENCHMARK_TOOL, *call_count_flags(1))


def make_plan(request: RecordRequest, profile: Path, folder: Path) -> Plan:
    """Make every choice that the request leaves open.

    Raises:
        FunctionUnknown: no such function, or several and none named.
        InputInvalid: the inputs do not fit, or cannot be generated.
        UsageInvalid: flags that do not go together, or that the system does not allow.
    """
    options = request.options
    _check_stopping_options(options)
    check_runtime_flags(options)
    program = Program(request.module, request.functions, request.device, request.kept)
    call = make_call(program, options, BENCHMARK_TOOL, folder, request.values)
    check_call_flags(call)
    batch = batch_of(call.flags, asynchronous=call.asynchronous)
    call = replace(call, flags=without_batches(call.flags))
    if request.caches is not None:
        check_device(call.device)
    if is_cuda(call.device):
        _check_cuda_options(options)
        check_cuda()
    hz = options.sample_hz
    if isinstance(hz, Unknown):
        hz = default_sample_hz(options.seconds)
    return Plan(request, profile, call, folder, hz, niceness_to_run_at(options.nice), batch)


_NOT_ON_CUDA: Final = {
    "--sample": "it takes samples on CPUs",
    "--keep-profile": "IREE writes no profile there",
}


def _check_cuda_options(options: RecordOptions) -> None:
    """Reject options that CUDA devices do not have.

    Raises:
        UsageInvalid: there is one.
    """
    given = {
        "--sample": options.sample_hz != 0,
        "--keep-profile": options.keep_profile,
    }
    for name, why in _NOT_ON_CUDA.items():
        if given[name]:
            raise UsageInvalid(f"{name} does not work on CUDA devices: {why}")


_SEE_CALL_OPTIONS: Final = "see --iterations, --seconds and --precision"
_SEE_OUTPUT_OPTIONS: Final = "the run goes to -o, and --keep-profile keeps the profile"
_CALL_FLAGS: Final = {
    "--benchmark_dry_run": _SEE_CALL_OPTIONS,
    "--benchmark_min_warmup_time": "see --warmup",
    "--benchmark_filter": "see --function",
    "--benchmark_list_tests": "`show` lists the functions",
    "--benchmark_enable_random_interleaving": "each function is recorded by itself",
    **dict.fromkeys(("--benchmark_report_aggregates_only", "--benchmark_display_aggregates_only"), _SEE_OUTPUT_OPTIONS),
}
"""Flags that change the program's calls, or that hide the time of single calls."""
_RESERVED_FLAGS: Final = {
    **_CALL_FLAGS,
    **dict.fromkeys(("--benchmark_min_time", "--benchmark_repetitions"), _SEE_CALL_OPTIONS),
    **dict.fromkeys(("--benchmark_format", "--benchmark_out", "--benchmark_out_format"), _SEE_OUTPUT_OPTIONS),
    **dict.fromkeys(("--device_profiling_mode", "--device_profiling_output"), _SEE_OUTPUT_OPTIONS),
}


def check_runtime_flags(options: CallOptions) -> None:
    """Reject runtime flags that a recording sets itself.

    Raises:
        UsageInvalid: there is such a flag after `--`.
    """
    check_undecided(options.runtime_flags, _RESERVED_FLAGS)


def check_call_flags(call: Call) -> None:
    """Reject flags, also from flag files, that change the program's calls.

    Raises:
        UsageInvalid: there is such a flag, or a batch flag without a valid number.
    """
    check_undecided(call.flags, _CALL_FLAGS)
    batch_of(call.flags, asynchronous=call.asynchronous)


def _single_process_option(options: RecordOptions) -> str:
    """The first option that measures more than times, in one process; empty: none."""
    asked = {
        "--iterations": options.iterations is not UNKNOWN,
        "--sample": options.sample_hz != 0,
        "--counters": bool(options.counters),
        "--cache-sim": options.cache_sim,
        "--keep-profile": options.keep_profile,
    }
    return next((name for name, is_asked in asked.items() if is_asked), "")


def _check_stopping_options(options: RecordOptions) -> None:
    """Reject options that contradict each other on the number of calls or launches.

    Raises:
        UsageInvalid: two such options are given.
    """
    default = RecordOptions()
    if options.launches not in (1, default.launches) and (option := _single_process_option(options)):
        raise UsageInvalid(f"{option} works with one launch only: drop --launches, or record a separate run for it")
    if (options.precision, options.seconds) != (default.precision, default.seconds):
        if options.iterations is not UNKNOWN:
            raise UsageInvalid("--iterations fixes the number of calls: drop --precision and --seconds")
        if options.cache_sim:
            raise UsageInvalid(
                f"--cache-sim times a fixed number of calls ({FIXED_ITERATIONS}, or --iterations): drop --precision "
                "and --seconds, or record a separate run for times"
            )
    if options.keep_profile and options.output is not None and is_stream(options.output):
        raise UsageInvalid("--keep-profile writes a file next to the run: name the run's file with -o")
