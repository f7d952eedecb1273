"""Executions of the recorded program under the profiler."""

from __future__ import annotations

import os
import re
import shutil
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

    Events of other executions must not be added to its events. `calls`: calls made, warm-up included, if the program
    ended by itself or was stopped after them. `batch`: calls that the program makes at once.
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

        Calls of a batch overlap, so a batch is one entry, with the mean per call.
        """
        import numpy as np

        begins, cut = self.profile.begins_ns, self.watcher.cut
        times_ns = np.diff(begins if cut is None or cut.until_ns is UNKNOWN else np.append(begins, cut.until_ns))
        return times_ns if self.batch == 1 else np.rint(times_ns / self.batch).astype(np.int64)

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
    """One planned execution: number of calls (0: until a goal is reached), profile path, and additional flags."""

    name: str
    path: Path
    calls: int
    warmup: int
    goal: Goal | None = None
    more: tuple[str, ...] = ()
    is_repeated: bool = False


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
    calls = first.calls if cut is None else first.warmup + (first.calls - first.warmup) * cut.launch_count
    # Keep events and samples of both executions separate until one of them is chosen.
    try:
        with temporary_sibling(launch.profile) as path:
            again = _Attempt(launch.name("again"), path, calls, first.warmup, more=(TIMED_FLUSH_FLAG,))
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
    execution = _execute(plan, _Attempt(launch.name("first"), launch.profile, calls, plan.warmup), connection, progress)
    if plan.flushes_on_timer and plan.options.iterations is UNKNOWN and not plan.options.cache_sim:
        return replace(execution, diagnostics=(_fixed_calls_diagnostic(plan.iterations, _RETURNS_HIDDEN),))
    return execution


def _execute_until_goal(
    plan: Plan, launch: Launch, connection: duckdb.DuckDBPyConnection, progress: Progress
) -> Execution:
    """Run the program until the goal is reached; with the default number of calls if the profile shows no calls."""
    again = "" if launch.number == 1 else f", launch {launch.number}"
    progress(f"running {plan.call.entry.name} until its median is known{_expected_samples(plan)}{again}")
    first = _Attempt(launch.name("first"), launch.profile, 0, plan.warmup, launch.goal)
    execution = _execute(plan, first, connection, progress)
    if execution.ending.failed or (execution.profile.event_count and execution.profile.invocations is not UNKNOWN):
        return execution
    # No call had returned, or nothing ran on a device: make few calls of such a slow function.
    calls = plan.iterations if execution.calls else plan.batch.calls
    warmup = 0 if plan.options.warmup is UNKNOWN and not execution.calls else plan.warmup
    progress(f"running {plan.call.entry.name}, {calls + warmup} calls")
    os.truncate(launch.profile, 0)
    attempt = _Attempt(launch.name("fixed"), launch.profile, calls + warmup, warmup)
    fixed = _execute(plan, attempt, connection, progress)
    why = _CALLS_DIFFER if execution.calls and fixed.profile.invocations is not UNKNOWN else _RETURNS_HIDDEN
    return replace(fixed, diagnostics=(_fixed_calls_diagnostic(calls, why),) if fixed.profile.event_count else ())


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
    if plan.on_cuda:
        return _execute_on_cuda(plan, attempt, connection, progress)
    command = plan.command(attempt.path, attempt.calls or _ENDLESS, attempt.more)
    samples = plan.folder / f"samples-{attempt.name}"
    stops_file = plan.folder / f"stops-{attempt.name}"
    variables: dict[str, str] = {}
    if plan.sample_hz:
        samples.mkdir()
        variables = environment(samples, HookSettings(record_calls=False, sample_hz=plan.sample_hz))
    with suppress(HookUnavailable):
        variables |= stops_environment(stops_file, variables)
    watcher = Watcher(attempt.goal, GrowingProfile(attempt.path), samples, progress)
    ending = run_benchmark(command, variables, watcher.watch, WATCH_S, plan.niceness)
    watcher.end()
    cut, batch = watcher.cut, plan.batch.calls
    if cut is not None and not ending.interrupted:
        ending = replace(ending, status=0)  # we ended it: not a failure
    progress("reading the profile")
    calls, warmup = (attempt.calls, attempt.warmup) if cut is None else (cut.calls * batch, cut.warmup * batch)
    timed_flushes = plan.flushes_on_timer or bool(attempt.more)
    known = KnownCalls(UNKNOWN if ending.failed or not attempt.calls else calls, warmup, timed_flushes, batch)
    is_repeatable = timed_flushes and not (attempt.is_repeated or ending.failed or ending.interrupted)
    table, must_be_whole = f"{attempt.name}_events", is_repeatable and cut is None
    try:
        profile = load_profile(attempt.path, connection, table, known, must_be_whole=must_be_whole)
    except RunEmpty:  # a program that never opens the device writes no profile
        profile = empty_profile(connection, table)
    except RunInvalid:
        if not is_repeatable:
            raise
        # With flushes on a timer, the runtime writes from two threads. One profile of several hundred is damaged by
        # that (seen with IREE 3.13, also without our hook).
        progress("the profile was damaged while it was written; running again")
        os.truncate(attempt.path, 0)
        repeated = replace(attempt, name=f"{attempt.name}_repeated", is_repeated=True)
        return _execute(plan, repeated, connection, progress)
    if profile.event_count and profile.invocations is UNKNOWN and not ending.failed:
        warmup = 0  # the events of the warm-up are unknown, so all calls count as measured
    execution = Execution(
        tuple(command),
        attempt.more,
        calls,
        warmup,
        ending,
        profile,
        samples,
        watcher,
        read_stops(stops_file, profile.begins_ns, calls // batch, plan.batch.pieces),
        batch=batch,
    )
    if ending.failed and profile.event_count == 0:
        attempt.path.unlink(missing_ok=True)
        check_profiled(plan.call.entry.name, ending.stderr)
        error = ProgramFailed(f"{execution.failure(plan.call.entry)}; nothing was recorded")
        error.interrupted = ending.interrupted
        raise error
    return execution


def _execute_on_cuda(
    plan: Plan, attempt: _Attempt, connection: duckdb.DuckDBPyConnection, progress: Progress
) -> Execution:
    """Run the program with the CUDA library and read its recording."""
    folder, samples = plan.folder / f"cuda-{attempt.name}", plan.folder / f"samples-{attempt.name}"
    stops_file, pieces = plan.folder / f"stops-{attempt.name}", plan.batch.pieces
    command = plan.command_on_cuda(-(-attempt.calls // plan.batch.calls) or MOST_CALLS)
    variables = cuda_variables(folder, stops_file)
    watcher = Watcher(attempt.goal, GrowingCudaCalls(folder, stops_file, pieces), samples, progress)
    watch = ended_by_signal(unless_refused(watcher.watch, folder))
    ending = run_benchmark(command, variables, watch, WATCH_S, plan.niceness)
    watcher.end()
    cut, batch = watcher.cut, plan.batch.calls
    if cut is not None and not ending.interrupted:
        ending = replace(ending, status=0)  # we ended it: not a failure
    check_recorded(plan.call.entry.name, folder, ending)
    progress("reading the recording")
    made = attempt.calls or MOST_CALLS * batch  # by a program that ended by itself
    calls, warmup = (made, attempt.warmup) if cut is None else (cut.calls * batch, cut.warmup * batch)
    table, known = f"{attempt.name}_events", Calls(None, warmup, UNKNOWN if ending.failed else calls, batch)
    profile = load_cuda_profile(folder, stops_file, connection, table, known, pieces) or empty_profile(
        connection, table
    )
    stops = repeated_stops(stops_file, pieces)
    execution = Execution(
        command=tuple(command),
        more=(),
        calls=calls,
        warmup=warmup,
        ending=ending,
        profile=profile,
        samples=samples,
        watcher=watcher,
        stops=None if stops is None else whole_stops(stops),
        batch=batch,
        cuda=cuda_facts(folder),
    )
    if ending.failed and profile.event_count == 0:
        error = ProgramFailed(f"{execution.failure(plan.call.entry)}; nothing was recorded")
        error.interrupted = ending.interrupted
        raise error
    return execution


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
