"""Executions of the recorded program under the profiler."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.capture.benchmark import TIMED_FLUSH_FLAG, Ending, count_workers, run_benchmark
from tracemap.capture.cuda import (
    MOST_CALLS,
    NO_CUDA,
    CudaFacts,
    check_recorded,
    cuda_facts,
    cuda_variables,
    ended_by_signal,
    load_cuda_profile,
    unless_refused,
)
from tracemap.capture.noise import WATCH_S, Watcher
from tracemap.capture.plan import Plan
from tracemap.capture.stopping_rule import ENOUGH_SAMPLES, Goal
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import DeviceUnprofiled, ProgramFailed, RunEmpty, RunInvalid
from tracemap.core.functions import Function
from tracemap.core.process.temporary_files import temporary_sibling
from tracemap.core.toolchain import Progress
from tracemap.core.units import UNKNOWN, Integer, Unknown, format_count, plural
from tracemap.hook import HookSettings, HookUnavailable, environment, stops_environment
from tracemap.runs.cuda.launches import Calls, GrowingCudaCalls, repeated_stops, whole_stops
from tracemap.runs.elapsed import ClockStops
from tracemap.runs.hook.samples import read_stops
from tracemap.runs.ireeprof.calls import KnownCalls
from tracemap.runs.ireeprof.profile import GrowingProfile, Profile, empty_profile
from tracemap.runs.readers.iree_profile import load_profile

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


@dataclass(frozen=True)
class Execution:
    """One execution of the program: command line, ending, profile, and the folder of its samples.

    Events of other executions must not be added to its events. `calls`: calls in the profile, warm-up included, if the
    program ended by itself or was stopped. `batch`: calls that the program makes at once.
    """

    command: tuple[str, ...]
    more: tuple[str, ...]
    """Flags in it that are not the plan's; another execution that does the same needs them, too."""
    calls: int
    warmup: int
    ending: Ending
    profile: Profile
    samples: Path
    watcher: Watcher
    stops: ClockStops | None = None
    """When the program's own clock stopped around each call; None: unknown."""
    diagnostics: tuple[Diagnostic, ...] = ()
    is_whole: bool = False
    """The program ended well, and the user pressed Ctrl-C after it."""
    batch: int = 1
    cuda: CudaFacts = NO_CUDA
    """Facts about a recording on a CUDA device."""

    def failure(self, entry: Function) -> str:
        """The message for a program that failed."""
        return f"iree-benchmark-module did not finish {entry.name}: {self.ending.explanation}"

    def interrupted(self) -> Execution:
        """The same execution with Ctrl-C after it: nothing else is to run."""
        if self.ending.interrupted:
            return self
        return replace(self, ending=replace(self.ending, interrupted=True), is_whole=not self.ending.failed)

    @property
    def times_ns(self) -> npt.NDArray[Any]:
        """Time from the start of each call to the start of the next; without the last call if none follows.

        Calls of a batch overlap, so a batch is one entry, with the mean per call. If the program was stopped, the times
        are those of all its whole calls, also of calls whose events are not read.
        """
        begins_ns = self.profile.begins_ns if self.watcher.cut is None else self.watcher.begins_ns
        return _times_ns(begins_ns, self.batch)

    @property
    def warmup_batches(self) -> int:
        """How many entries of `times_ns` are warm-up."""
        return self.warmup // self.batch

    @property
    def until_ns(self) -> Integer:
        """End of the recording on the host's monotonic clock; UNKNOWN: the program ended by itself."""
        cut = self.watcher.cut
        if cut is None:
            return UNKNOWN
        return self.profile.span.last_ns if cut.until_ns is UNKNOWN else cut.until_ns


@dataclass(frozen=True)
class _Attempt:
    """One planned execution: number of calls (0: until a goal is reached), profile path, and additional flags.

    `folder`: the plan's temporary folder, for the other files of the execution.
    """

    name: str
    path: Path
    folder: Path
    calls: int
    warmup: int
    goal: Goal | None = None
    more: tuple[str, ...] = ()
    is_repeated: bool = False

    @property
    def samples(self) -> Path:
        """Folder of the samples."""
        return self.folder / f"samples-{self.name}"

    @property
    def stops(self) -> Path:
        """The hook's file of the program's clock."""
        return self.folder / f"stops-{self.name}"

    @property
    def cuda(self) -> Path:
        """Folder of the CUDA library's recording."""
        return self.folder / f"cuda-{self.name}"


@dataclass(frozen=True)
class Recording:
    """One execution that has ended, before its profile is read. `calls`, `warmup`, `batch`: as in `Execution`."""

    command: tuple[str, ...]
    attempt: _Attempt
    calls: int
    warmup: int
    ending: Ending
    watcher: Watcher
    batch: int

    @property
    def times_ns(self) -> npt.NDArray[Any]:
        """As in `Execution`."""
        return _times_ns(self.watcher.begins_ns, self.batch)

    def failure(self, entry: Function) -> str:
        """The message for a program that failed."""
        return f"iree-benchmark-module did not finish {entry.name}: {self.ending.explanation}"


def _times_ns(begins_ns: Sequence[int] | npt.NDArray[Any], batch: int) -> npt.NDArray[Any]:
    import numpy as np

    times_ns = np.diff(np.asarray(begins_ns, dtype=np.int64))
    return times_ns if batch == 1 else np.rint(times_ns / batch).astype(np.int64)


@dataclass(frozen=True)
class Launch:
    """One launch of the program: its index from 1, its goal (None: a fixed number of calls), and its profile."""

    number: int
    goal: Goal | None
    profile: Path

    def name(self, attempt: str) -> str:
        """The name of an attempt at this launch."""
        return f"launch_{self.number}_{attempt}"


def timed_execution(plan: Plan, launch: Launch, connection: duckdb.DuckDBPyConnection, progress: Progress) -> Execution:
    """Run the program under the profiler; run it again with flushes on a timer if records were lost.

    Args:
        plan: the program to run.
        launch: the launch to make.
        connection: the database for the events.
        progress: receives a line of text per step.

    Raises:
        ProgramFailed: it failed before anything was recorded.
        DeviceUnprofiled: the runtime does not profile the device.
        RunInvalid: its profile cannot be read.
    """
    measure = _execute_fixed if launch.goal is None else _execute_until_goal
    first = measure(plan, launch, connection, progress)
    if not first.profile.lost_records or first.ending.failed or plan.on_cuda:
        return first
    progress("profile records were lost; running again with more frequent flushes")
    # A single launch uses the whole time; the first one had only its part of it.
    cut = first.watcher.cut
    calls = first.calls
    if cut is not None:
        calls = plan.batch.calls * (cut.warmup + (cut.calls - cut.warmup) * cut.launch_count)
    # Keep events and samples of both executions separate until one of them is chosen.
    try:
        with temporary_sibling(launch.profile) as path:
            again = _Attempt(launch.name("again"), path, plan.folder, calls, first.warmup, more=(TIMED_FLUSH_FLAG,))
            second = _execute(plan, again, connection, progress)
            if _lost_less(second, first) and plan.options.keep_profile:
                shutil.copyfile(path, launch.profile)
    except (ProgramFailed, RunEmpty, RunInvalid) as error:  # keep the first execution, which was good
        return first.interrupted() if isinstance(error, ProgramFailed) and error.interrupted else first
    if second.ending.interrupted:
        return first.interrupted()
    if not _lost_less(second, first):
        return first
    fixed = () if launch.goal is None else (_fixed_calls_diagnostic(second.calls - second.warmup, _RECORDS_LOST),)
    return replace(second, diagnostics=(*first.diagnostics, *fixed))


def _lost_less(second: Execution, first: Execution) -> bool:
    """Whether it ended well and lost less. An execution with fewer events lost more, whatever its profile says."""
    lost_less = second.profile.lost_records < first.profile.lost_records
    return not second.ending.failed and lost_less and second.profile.event_count >= first.profile.event_count


def _execute_fixed(plan: Plan, launch: Launch, connection: duckdb.DuckDBPyConnection, progress: Progress) -> Execution:
    """Run the program with a fixed number of calls."""
    calls = plan.iterations + plan.warmup
    progress(f"running {plan.call.entry.name}, {calls} calls")
    attempt = _Attempt(launch.name("first"), launch.profile, plan.folder, calls, plan.warmup)
    execution = _execute(plan, attempt, connection, progress)
    if plan.flushes_on_timer and plan.options.iterations is UNKNOWN and not plan.options.cache_sim:
        return replace(execution, diagnostics=(_fixed_calls_diagnostic(plan.iterations, _RETURNS_HIDDEN),))
    return execution


def _execute_until_goal(
    plan: Plan, launch: Launch, connection: duckdb.DuckDBPyConnection, progress: Progress
) -> Execution:
    """Run the program until the goal is reached; with the default number of calls if the profile shows no calls."""
    execution = _execute(plan, _goal_attempt(plan, launch, progress), connection, progress)
    if execution.ending.failed or (execution.profile.event_count and execution.profile.invocations is not UNKNOWN):
        return execution
    # If no call had returned, make few calls of such a slow function.
    has_returned = execution.calls > 0 or execution.watcher.runs_idle
    calls = plan.iterations if has_returned else plan.batch.calls
    warmup = 0 if plan.options.warmup is UNKNOWN and not has_returned else plan.warmup
    progress(f"running {plan.call.entry.name}, {calls + warmup} calls")
    os.truncate(launch.profile, 0)
    attempt = _Attempt(launch.name("fixed"), launch.profile, plan.folder, calls + warmup, warmup)
    fixed = _execute(plan, attempt, connection, progress)
    why = _CALLS_DIFFER if execution.calls and fixed.profile.invocations is not UNKNOWN else _RETURNS_HIDDEN
    return replace(fixed, diagnostics=(_fixed_calls_diagnostic(calls, why),) if fixed.profile.event_count else ())


def record_launch(plan: Plan, launch: Launch, progress: Progress) -> Recording:
    """Run the program until the goal of a launch is reached, without reading its profile."""
    return _record(plan, _goal_attempt(plan, launch, progress), progress)


def _goal_attempt(plan: Plan, launch: Launch, progress: Progress) -> _Attempt:
    again = "" if launch.number == 1 else f", launch {launch.number}"
    progress(f"running {plan.call.entry.name} until its median is known{_expected_samples(plan)}{again}")
    return _Attempt(launch.name("first"), launch.profile, plan.folder, 0, plan.warmup, launch.goal)


_RETURNS_HIDDEN: Final = "the profile does not show when a call returns"
_CALLS_DIFFER: Final = "calls submit different work, so the calls of a stopped program cannot be distinguished"
"""Although they returned, and the profile has all of each."""
_RECORDS_LOST: Final = "records were lost when the profile was written after each call"
"""Flushes on a timer avoid the loss, but do not show when a call returns."""


def _fixed_calls_diagnostic(calls: int, why: str) -> Diagnostic:
    """The diagnostic that a fixed number of calls was made, since the stopping rule could not work."""
    text = f"{why}; so exactly {plural(calls, 'call')} were measured, however noisy. Use --iterations N for more"
    return Diagnostic("calls-uncountable", text)


def _expected_samples(plan: Plan) -> str:
    """How many samples to expect within the time limit, for the progress line."""
    if not plan.sample_hz:
        return ""
    rate = f", or {ENOUGH_SAMPLES:,} samples lie in kernels, at {plan.sample_hz:,} per second and thread"
    workers, seconds = count_workers(plan.call.device, plan.call.flags), plan.options.seconds
    if isinstance(workers, Unknown):
        return rate
    most = format_count(round(plan.sample_hz * seconds * workers))
    return f"{rate}: expect at most {most} in {seconds:g} s"


def _execute(plan: Plan, attempt: _Attempt, connection: duckdb.DuckDBPyConnection, progress: Progress) -> Execution:
    """Run the program and read its profile; run it again if the profile was damaged while it was written."""
    recording = _record(plan, attempt, progress)
    progress("reading the profile")
    try:
        return read_recording(plan, recording, connection, f"{attempt.name}_events")
    except RunInvalid:
        if not _is_repeatable(plan, recording):
            raise
    # With flushes on a timer, the runtime writes from two threads. One profile of several hundred is damaged by
    # that (seen with IREE 3.13, also without our hook).
    progress("the profile was damaged while it was written; running again")
    os.truncate(attempt.path, 0)
    repeated = replace(attempt, name=f"{attempt.name}_repeated", is_repeated=True)
    return _execute(plan, repeated, connection, progress)


def _record(plan: Plan, attempt: _Attempt, progress: Progress) -> Recording:
    """Run the program until it ends, or until the goal of the attempt is reached."""
    if plan.on_cuda:
        return _record_on_cuda(plan, attempt, progress)
    command = plan.command(attempt.path, attempt.calls or _ENDLESS, attempt.more)
    variables: dict[str, str] = {}
    if plan.sample_hz:
        attempt.samples.mkdir()
        variables = environment(attempt.samples, HookSettings(record_calls=False, sample_hz=plan.sample_hz))
    with suppress(HookUnavailable):
        variables |= stops_environment(attempt.stops, variables)
    watcher = Watcher(attempt.goal, GrowingProfile(attempt.path), attempt.samples, progress, attempt.stops)
    ending = run_benchmark(command, variables, watcher.watch, WATCH_S, plan.niceness)
    return _ended(plan, attempt, command, ending, watcher)


def _ended(plan: Plan, attempt: _Attempt, command: Sequence[str], ending: Ending, watcher: Watcher) -> Recording:
    """The execution after its end; a program that the watcher stopped has not failed."""
    watcher.end()
    cut, batch = watcher.cut, plan.batch.calls
    if cut is None:
        calls = attempt.calls or (MOST_CALLS * batch if plan.on_cuda else 0)
        return Recording(tuple(command), attempt, calls, attempt.warmup, ending, watcher, batch)
    if not ending.interrupted:
        ending = replace(ending, status=0)
    return Recording(tuple(command), attempt, cut.read_calls * batch, cut.warmup * batch, ending, watcher, batch)


def _is_repeatable(plan: Plan, recording: Recording) -> bool:
    """True if another try may give a whole profile."""
    attempt, ending = recording.attempt, recording.ending
    timed_flushes = plan.flushes_on_timer or bool(attempt.more)
    return timed_flushes and not (plan.on_cuda or attempt.is_repeated or ending.failed or ending.interrupted)


def read_recording(plan: Plan, recording: Recording, connection: duckdb.DuckDBPyConnection, table: str) -> Execution:
    """Read the profile of an execution.

    Args:
        plan: the program.
        recording: its execution.
        connection: the database for the events; tables `profile_*` in it are overwritten.
        table: the name of the table of events.

    Raises:
        ProgramFailed: the program failed before anything was recorded.
        DeviceUnprofiled: the runtime does not profile the device.
        RunInvalid: the profile cannot be read.
    """
    if plan.on_cuda:
        return _read_on_cuda(plan, recording, connection, table)
    attempt, ending, batch = recording.attempt, recording.ending, recording.batch
    calls, warmup = recording.calls, recording.warmup
    timed_flushes = plan.flushes_on_timer or bool(attempt.more)
    known = KnownCalls(UNKNOWN if ending.failed or not attempt.calls else calls, warmup, timed_flushes, batch)
    must_be_whole = _is_repeatable(plan, recording) and recording.watcher.cut is None
    try:
        profile = load_profile(attempt.path, connection, table, known, must_be_whole=must_be_whole)
    except RunEmpty:  # a program that never opens the device writes no profile
        profile = empty_profile(connection, table)
    if profile.event_count and profile.invocations is UNKNOWN and not ending.failed:
        warmup = 0  # the events of the warm-up are unknown, so all calls count as measured
    if ending.failed and profile.event_count == 0:
        attempt.path.unlink(missing_ok=True)
        check_profiled(plan.call.entry.name, ending.stderr)
        raise _nothing_recorded(plan, recording)
    stops = read_stops(attempt.stops, profile.begins_ns, calls // batch, plan.batch.pieces)
    return _execution(replace(recording, warmup=warmup), profile, stops)


def _execution(
    recording: Recording, profile: Profile, stops: ClockStops | None, cuda: CudaFacts = NO_CUDA
) -> Execution:
    return Execution(
        recording.command,
        recording.attempt.more,
        recording.calls,
        recording.warmup,
        recording.ending,
        profile,
        recording.attempt.samples,
        recording.watcher,
        stops,
        batch=recording.batch,
        cuda=cuda,
    )


def _nothing_recorded(plan: Plan, recording: Recording) -> ProgramFailed:
    error = ProgramFailed(f"{recording.failure(plan.call.entry)}; nothing was recorded")
    error.interrupted = recording.ending.interrupted
    return error


def _record_on_cuda(plan: Plan, attempt: _Attempt, progress: Progress) -> Recording:
    """Run the program with the CUDA library."""
    command = plan.command_on_cuda(-(-attempt.calls // plan.batch.calls) or MOST_CALLS)
    growing = GrowingCudaCalls(attempt.cuda, attempt.stops, plan.batch.pieces)
    watcher = Watcher(attempt.goal, growing, attempt.samples, progress, attempt.stops)
    watch = ended_by_signal(unless_refused(watcher.watch, attempt.cuda))
    variables = cuda_variables(attempt.cuda, attempt.stops)
    ending = run_benchmark(command, variables, watch, WATCH_S, plan.niceness)
    recording = _ended(plan, attempt, command, ending, watcher)
    check_recorded(plan.call.entry.name, attempt.cuda, recording.ending)
    return recording


def _read_on_cuda(plan: Plan, recording: Recording, connection: duckdb.DuckDBPyConnection, table: str) -> Execution:
    """Read the recording of the CUDA library."""
    attempt, pieces, failed = recording.attempt, plan.batch.pieces, recording.ending.failed
    known = Calls(None, recording.warmup, UNKNOWN if failed else recording.calls, recording.batch)
    profile = load_cuda_profile(attempt.cuda, attempt.stops, connection, table, known, pieces) or empty_profile(
        connection, table
    )
    if failed and profile.event_count == 0:
        raise _nothing_recorded(plan, recording)
    stops = repeated_stops(attempt.stops, pieces)
    return _execution(recording, profile, None if stops is None else whole_stops(stops), cuda_facts(attempt.cuda))


_UNPROFILED: Final = re.compile(r"\w+ HAL-native profiling is not implemented")


def check_profiled(name: str, stderr: str) -> None:
    """Reject a device that the runtime does not profile, by the runtime's error message.

    Source: `profiling_begin` in IREE's runtime/src/iree/hal/drivers/cuda/cuda_device.c and hip/hip_device.c.

    Raises:
        DeviceUnprofiled: the message says so.
    """
    match = _UNPROFILED.search(stderr)
    if match:
        raise DeviceUnprofiled(
            f"{name} ran on a device that IREE's runtime cannot profile ({match[0]}). Build for Vulkan, "
            "or pass the output of the vendor's profiler (such as ncu or nsys) to `tracemap attribute`"
        )


_ENDLESS = 1_000_000_000
"""Number of invocations to request from a program that the stopping rule ends."""
