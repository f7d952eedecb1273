"""`tracemap record`: run a compiled module under the profiler and write what was measured, as a run."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap._version import __version__
from tracemap.capture.abi import declared_types
from tracemap.capture.benchmark import (
    SERIAL_FLAG,
    TIMED_FLUSH_FLAG,
    Ending,
    benchmark_command,
    count_workers,
    profiling_flags,
    run_benchmark,
)
from tracemap.capture.counters import Event, events_to_count, in_passes
from tracemap.capture.counting import check_hook, with_counts
from tracemap.capture.flagfile import check_files, read_flags, sorted_out
from tracemap.capture.inputs import ArgumentType, EntryPoint, Input, given_inputs, made_inputs
from tracemap.capture.peaks import measure_peaks
from tracemap.capture.profile import load_profile
from tracemap.capture.sampling import with_samples
from tracemap.capture.simulating import SIMULATED_DEVICE, CacheSimulation, check_device, with_caches
from tracemap.diagnostics import Diagnostic
from tracemap.errors import FunctionUnknown, ProgramFailed, RunEmpty, TargetExists, UsageInvalid
from tracemap.hook import HookSettings, environment
from tracemap.measurements.header import RunHeader
from tracemap.measurements.ireeprof import Profile, empty_profile
from tracemap.measurements.runfile import check_target, write_run
from tracemap.measurements.sql import open_database
from tracemap.options.record import RecordOptions
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN, Integer, Text

if TYPE_CHECKING:
    import duckdb

DEFAULT_DEVICE = "local-task"

_RUNTIME = "iree-base-runtime"


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """What to record: a module with its entry points, and the options, whose output and caches are decided here.

    A function or inputs that the options do not name are those of the flag file; else the only one, and made up.
    """

    module: Path
    module_sha256: Text
    bundle: Text
    functions: tuple[EntryPoint, ...]
    output: Path
    options: RecordOptions
    device: Text = UNKNOWN
    """Unknown: that of the flags, else local-task."""
    caches: CacheSimulation | None = None
    """A simulation of caches in one more execution; None: there is none."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run that was written: where, its header, and how many events it has."""

    path: Path
    header: RunHeader
    events: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request with everything decided."""

    request: RecordRequest
    entry: EntryPoint
    device: str
    inputs: tuple[Input, ...]
    flags: tuple[str, ...]
    modules: tuple[Path, ...]
    folder: Path
    """For what is needed only until the run is written."""

    @property
    def options(self) -> RecordOptions:
        return self.request.options

    @property
    def calls(self) -> int:
        return self.options.iterations + self.options.warmup

    @property
    def profile(self) -> Path:
        """Beside the output, so that it is found when tracemap itself is killed."""
        return profile_path(self.request.output)

    def command(self, profile: Path, more: Sequence[str] = ()) -> list[str]:
        specs = [given.spec for given in self.inputs]
        flags = [*self.flags, *more]
        plain = benchmark_command(self.modules, self.entry.name, specs, self.device, self.calls, flags)
        return [*plain, *profiling_flags(self.device, profile)]

    def simulated(self, module: Path, more: Sequence[str]) -> list[str]:
        """One call with another module in place of ours, on one worker and without a profile."""
        modules = [module if path == self.request.module else path for path in self.modules]
        specs = [given.spec for given in self.inputs]
        return benchmark_command(modules, self.entry.name, specs, SIMULATED_DEVICE, 1, [*self.flags, *more])

    def execute(self, command: Sequence[str], samples: str) -> Ending:
        """Run the program, with the sampler where samples are wanted; these go into a folder of this name."""
        hz = self.options.sample_hz
        if not hz:
            return run_benchmark(command)
        folder = self.folder / samples
        folder.mkdir()
        return run_benchmark(command, environment(folder, HookSettings(record_calls=False, sample_hz=hz)))

    def sampled(self, profile: Profile, samples: str, connection: duckdb.DuckDBPyConnection) -> Profile:
        """The profile with the samples of the same execution, where any were wanted."""
        if not self.options.sample_hz:
            return profile
        return with_samples(profile, self.folder / samples, self.request.module, self.options.sample_hz, connection)


_FIRST, _SECOND = "samples", "samples-again"


def profile_path(output: Path) -> Path:
    """Where the profile lies until the run is written."""
    return output.with_name(output.name + ".ireeprof")


def record(request: RecordRequest, progress: Progress = no_progress) -> Recorded:
    """Run the module and write the run.

    Raises:
        FunctionUnknown: no such function, or several and none named.
        InputInvalid: the inputs do not fit, or cannot be made up.
        TargetExists: the output exists and `force` is not set.
        TargetUnwritable: the output cannot be written.
        ProgramFailed: the program failed; what it recorded until then is kept where the message says.
        ToolMissing: the runtime's tools are not installed.
        EventUnavailable: one of the counters is not known or cannot be counted here.
        UsageInvalid: flags that do not go together.
    """
    check_target(request.output, force=request.options.force)
    if profile_path(request.output).exists() and not request.options.force:
        raise TargetExists(
            f"{profile_path(request.output)}: left behind by a recording that was killed; read it with tracemap "
            "attribute, or pass --force to replace it"
        )
    passes = _passes(request)
    with tempfile.TemporaryDirectory(prefix="tracemap-record-") as folder:
        progress("making inputs")
        return _run(_plan(request, Path(folder)), passes, progress)


def _passes(request: RecordRequest) -> list[tuple[Event, ...]]:
    """The events to count in each further execution; whether they can be counted is found out before anything runs."""
    if request.options.counters or request.options.sample_hz:
        check_hook()
    return in_passes(events_to_count(request.options.counters), request.options.counters_per_pass)


def _plan(request: RecordRequest, folder: Path) -> _Plan:
    options = request.options
    flags = sorted_out([*(read_flags(options.flagfile) if options.flagfile else []), *options.runtime_flags])
    modules = _modules(request.module, flags.modules)
    if options.inputs:
        flags = replace(flags, inputs=options.inputs)
    check_files(flags)
    entry = _entry(request, flags.function if options.function is UNKNOWN else str(options.function))
    device = flags.device or DEFAULT_DEVICE if request.device is UNKNOWN else str(request.device)
    inputs = given_inputs(entry, flags.inputs) if flags.inputs else made_inputs(entry, options.dim, folder)
    serial = (SERIAL_FLAG,) if options.serial else ()
    if request.caches is not None:
        check_device(device)
    return _Plan(request, entry, device, tuple(inputs), (*flags.rest, *serial), modules, folder)


def _modules(ours: Path, named: Sequence[str]) -> tuple[Path, ...]:
    """The modules to load: ours takes the place of the only `--module`, or of that one of several that is the same.

    Raises:
        UsageInvalid: one of several cannot be read, none of them is ours, or more than one.
    """
    if len(named) <= 1:
        return (ours,)
    content = ours.read_bytes()
    try:
        same = [Path(name).read_bytes() == content for name in named]
    except OSError as error:
        raise UsageInvalid(f"the flags name several modules; {error.filename}: {error.strerror}") from error
    if sum(same) != 1:
        raise UsageInvalid(
            f"the flags name several modules, {sum(same) or 'none'} of them the bundle's; name its module.vmfb once "
            "among them"
        )
    return tuple(ours if is_ours else Path(name) for name, is_ours in zip(named, same, strict=True))


def _entry(request: RecordRequest, name: str) -> EntryPoint:
    """The function to call, its arguments' types as the compiled module declares them."""
    names = [function.name for function in request.functions]
    listed = ", ".join(names) or "none"
    if not name and len(names) != 1:
        raise FunctionUnknown(f"the module has {len(names)} functions; name one with --function: {listed}")
    found = next((function for function in request.functions if function.name == (name or names[0])), None)
    if found is None:
        raise FunctionUnknown(f"the module has no function {name!r}; it has: {listed}")
    types = declared_types(request.module).get(found.name, ())
    if len(types) != len(found.arguments):
        return found
    # The compiler may have changed types (f64 to f32); the runtime takes those that the module declares.
    pairs = zip(found.arguments, types, strict=True)
    return EntryPoint(found.name, tuple(ArgumentType(old.name, kind, old.loop_bound) for old, kind in pairs))


def _run(plan: _Plan, passes: Sequence[Sequence[Event]], progress: Progress) -> Recorded:
    progress(f"running {plan.entry.name}, {plan.calls} calls")
    command = plan.command(plan.profile)
    ending = plan.execute(command, _FIRST)
    with open_database() as connection:
        progress("reading the profile")
        profile = _read(plan, plan.profile, ending, connection)
        again = profile.lost_records and not _failed(ending)
        if again:
            progress("records were lost; running again with more frequent flushes")
            command, ending, profile = _again(plan, command, ending, profile, connection)
        if passes and not _failed(ending):
            progress("counting events")
            profile = with_counts(profile, plan.command, passes, connection)
        if not again:  # after the counts, which are of dispatches only
            profile = plan.sampled(profile, _FIRST, connection)
        if plan.request.caches is not None and not _failed(ending):
            profile = _with_caches(plan, profile, plan.request.caches, progress)
        progress("measuring the machine")
        header = _header(plan, command, ending, profile)
        progress("writing the run")
        write_run(header, profile.events, plan.request.output, force=plan.options.force)
    plan.profile.unlink(missing_ok=True)
    if _failed(ending):
        raise ProgramFailed(_failure(plan, ending) + f"; what it recorded until then is in {plan.request.output}")
    return Recorded(plan.request.output, header, profile.event_count)


def _with_caches(plan: _Plan, profile: Profile, caches: CacheSimulation, progress: Progress) -> Profile:
    try:
        return with_caches(profile, plan.simulated, caches, progress)
    except BaseException:  # what was timed would pass for a run that was asked for
        plan.profile.unlink(missing_ok=True)
        raise


def _failed(ending: Ending) -> bool:
    return ending.status != 0 or ending.interrupted


def _failure(plan: _Plan, ending: Ending) -> str:
    said = f": {ending.said}" if ending.said else ""
    return f"iree-benchmark-module did not finish {plan.entry.name}: {ending.cause}{said}"


def _read(plan: _Plan, path: Path, ending: Ending, connection: duckdb.DuckDBPyConnection) -> Profile:
    """The profile; of a program that failed, what there is of it.

    Raises:
        ProgramFailed: it failed before anything was recorded.
    """
    calls = UNKNOWN if _failed(ending) else plan.calls
    timed = any(flag.startswith("--device_profiling_flush_interval_ms") for flag in plan.flags)
    try:
        profile = load_profile(path, connection, invocations=calls, warmup=plan.options.warmup, timed_flushes=timed)
    except (RunEmpty, FileNotFoundError):
        # A program that never opens the device writes no profile: nothing ran on it.
        profile = empty_profile(connection)
    if _failed(ending) and profile.event_count == 0:
        path.unlink(missing_ok=True)
        raise ProgramFailed(f"{_failure(plan, ending)}; nothing was recorded")
    return profile


def _again(
    plan: _Plan, command: list[str], ending: Ending, profile: Profile, connection: duckdb.DuckDBPyConnection
) -> tuple[list[str], Ending, Profile]:
    """A second attempt with flushes on a timer; the first one stands if this one does not go better."""
    second = plan.profile.with_name(plan.profile.name + ".2")
    try:
        retried = plan.command(second, (TIMED_FLUSH_FLAG,))
        better = plan.execute(retried, _SECOND)
        if _failed(better):
            return command, ending, plan.sampled(profile, _FIRST, connection)
        other = connection.cursor()
        read = load_profile(second, other, invocations=plan.calls, warmup=plan.options.warmup, timed_flushes=True)
        if read.lost_records >= profile.lost_records:
            return command, ending, plan.sampled(profile, _FIRST, connection)
        return retried, better, plan.sampled(read, _SECOND, other)
    finally:
        second.unlink(missing_ok=True)


def _header(plan: _Plan, command: list[str], ending: Ending, profile: Profile) -> RunHeader:
    request = plan.request
    about = [Diagnostic("program-killed", _failure(plan, ending))] if _failed(ending) else []
    if profile.event_count == 0:
        about.append(Diagnostic("no-events", f"{plan.entry.name} ran without any work on the device"))
    return RunHeader(
        module_sha256=request.module_sha256,
        bundle=request.bundle,
        command=tuple(command),
        function=plan.entry.name,
        device=plan.device,
        workers=count_workers(plan.device, plan.flags),
        clock=profile.clock,
        iterations=_iterations(plan, ending, profile),
        warmup=request.options.warmup,
        elapsed_ns=_elapsed_ns(plan, ending, profile),
        inputs=tuple(given.said for given in plan.inputs),
        peaks=measure_peaks(),
        programs=profile.programs,
        buffers=profile.buffers,
        tools=(f"tracemap {__version__}", f"{_RUNTIME} {_runtime_version()}"),
        diagnostics=(*about, *profile.diagnostics),
    )


def _runtime_version() -> str:
    try:
        return importlib.metadata.version(_RUNTIME)
    except importlib.metadata.PackageNotFoundError:  # the programs were found on PATH
        return "of unknown version"


def _iterations(plan: _Plan, ending: Ending, profile: Profile) -> Integer:
    if not _failed(ending):
        return plan.options.iterations
    recorded = profile.invocations
    return max(0, recorded - plan.options.warmup) if isinstance(recorded, int) else UNKNOWN


def _elapsed_ns(plan: _Plan, ending: Ending, profile: Profile) -> Integer:
    """Wall time of the measured iterations.

    The benchmark's own clock covers all calls from begin to end, but gives one sum with the warm-up in it; the profile
    knows when the warm-up was over (the first submission after it), but not when the last call returned. So: the sum,
    less what passed between the first submission and the first one after the warm-up.
    """
    span = profile.span
    begin, end = span.measured_ns, span.last_ns
    recorded = end - begin if isinstance(begin, int) and isinstance(end, int) else UNKNOWN
    total = ending.total_ns
    if not isinstance(total, int):
        return recorded
    if isinstance(span.first_ns, int) and isinstance(begin, int) and isinstance(recorded, int):
        return max(recorded, total - (begin - span.first_ns))
    # Nothing was submitted, or calls cannot be told apart: the warm-up counts as any other call.
    return round(total * plan.options.iterations / plan.calls)
