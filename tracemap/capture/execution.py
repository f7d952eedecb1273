"""The executions of what is recorded: a timed one under the profiler, until it was measured enough."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.capture.benchmark import TIMED_FLUSH_FLAG, Ending, count_workers, run_benchmark
from tracemap.capture.noise import WATCH_S, Cut, Watcher
from tracemap.capture.open_run import load_profile
from tracemap.capture.plan import Plan
from tracemap.capture.stopping_rule import ENOUGH_SAMPLES, Goal
from tracemap.diagnostics import Diagnostic
from tracemap.errors import DeviceUnprofiled, ProgramFailed, RunEmpty, RunInvalid
from tracemap.functions import Function
from tracemap.hook import HookSettings, HookUnavailable, environment, stops_environment
from tracemap.measurements.elapsed import Stops
from tracemap.measurements.hook.samples import read_stops
from tracemap.measurements.ireeprof.calls import KnownCalls
from tracemap.measurements.ireeprof.profile import Profile, empty_profile
from tracemap.owned.home import beside
from tracemap.toolchain import Progress
from tracemap.units import UNKNOWN, Integer, Unknown, format_count, plural

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


@dataclass(frozen=True)
class Execution:
    """A program that was run: how it was called, how it ended, what its profile tells, the folder of its samples.

    All of it is of one execution; nothing of another may be added to its events. `calls`: how many were made, warm-up
    included, where it came to its end or was ended after so many; `batch`: how many of them the program makes at once.
    """

    command: tuple[str, ...]
    more: tuple[str, ...]
    """The flags in it that the plan does not have; a further execution that is to do the same needs them too."""
    calls: int
    warmup: int
    ending: Ending
    profile: Profile
    samples: Path
    watcher: Watcher
    stops: Stops | None = None
    """Of the program's own clock, around each call; None: nothing tells."""
    diagnostics: tuple[Diagnostic, ...] = ()
    is_whole: bool = False
    """The program came to its end, and the user pressed Ctrl-C behind it."""
    batch: int = 1

    def failure(self, entry: Function) -> str:
        """What to say of a program that failed."""
        return f"iree-benchmark-module did not finish {entry.name}: {self.ending.explanation}"

    def interrupted(self) -> Execution:
        """The same where the user pressed Ctrl-C behind it: nothing else is to be run."""
        if self.ending.interrupted:
            return self
        return replace(self, ending=replace(self.ending, interrupted=True), is_whole=not self.ending.failed)

    @property
    def times_ns(self) -> npt.NDArray[Any]:
        """How long each call took, until the next one began; the last one's is not known where none did.

        Calls of a batch are there once together, with their mean: they overlap.
        """
        import numpy as np

        begins, cut = self.profile.begins_ns, self.watcher.cut
        times_ns = np.diff(begins if cut is None or cut.until_ns is UNKNOWN else np.append(begins, cut.until_ns))
        return times_ns if self.batch == 1 else np.rint(times_ns / self.batch).astype(np.int64)

    @property
    def warmup_batches(self) -> int:
        """How many of `times_ns` are of warm-up."""
        return self.warmup // self.batch

    @property
    def until_ns(self) -> Integer:
        """The end of what was recorded, on the host's monotonic clock; unknown: the program came to its end."""
        cut = self.watcher.cut
        if cut is None:
            return UNKNOWN
        return self.profile.span.last_ns if cut.until_ns is UNKNOWN else cut.until_ns


@dataclass(frozen=True)
class _Attempt:
    """What is to be executed: how often (none: until a goal is reached), where to, with which more flags."""

    name: str
    path: Path
    calls: int
    warmup: int
    goal: Goal | None = None
    more: tuple[str, ...] = ()
    is_repeated: bool = False

    def measured(self, cut: Cut | None, batch: int) -> tuple[int, int]:
        """How many calls there were, and the warm-up among them, where the program was cut short or not."""
        return (self.calls, self.warmup) if cut is None else (cut.calls * batch, cut.warmup * batch)

    def may_be_repeated(self, ending: Ending) -> bool:
        """Whether another one may do better: the program came to its end, and nobody waits for the prompt."""
        return not (self.is_repeated or ending.failed or ending.interrupted)

    def repeated(self) -> _Attempt:
        """The same once more, with nothing left of what it has written.

        Where flushes are on a timer, the runtime writes from two threads: of several hundred profiles one is damaged by
        that (seen with IREE 3.13, without our hook, too).
        """
        os.truncate(self.path, 0)
        return replace(self, name=f"{self.name}_repeated", is_repeated=True)


@dataclass(frozen=True)
class Launch:
    """Which launch of the program it is, from 1, what is enough of it (None: calls are counted), and its profile."""

    number: int
    goal: Goal | None
    profile: Path

    def name(self, attempt: str) -> str:
        """Of an attempt at it."""
        return f"launch_{self.number}_{attempt}"


def timed_execution(plan: Plan, launch: Launch, connection: duckdb.DuckDBPyConnection, progress: Progress) -> Execution:
    """Run the program under the profiler; once more with flushes on a timer, where records were lost.

    Args:
        plan: what to run.
        launch: which of its launches it is.
        connection: where the events go.
        progress: told what is done.

    Raises:
        ProgramFailed: it failed before anything was recorded.
        DeviceUnprofiled: the runtime does not profile the device.
        RunInvalid: its profile cannot be read.
    """
    measure = _counted if launch.goal is None else _until_enough
    first = measure(plan, launch, connection, progress)
    if not first.profile.lost_records or first.ending.failed:
        return first
    progress("records were lost; running again with more frequent flushes")
    # Events and samples of both executions are kept apart until one of them is chosen.
    try:
        with beside(launch.profile) as path:
            again = _Attempt(launch.name("again"), path, _alone(first), first.warmup, more=(TIMED_FLUSH_FLAG,))
            second = _execute(plan, again, connection, progress)
            if _is_better(second, first) and plan.options.keep_profile:
                shutil.copyfile(path, launch.profile)
    except (ProgramFailed, RunEmpty, RunInvalid) as error:  # the first execution was good, and stands
        return first.interrupted() if isinstance(error, ProgramFailed) and error.interrupted else first
    if second.ending.interrupted:
        return first.interrupted()
    if not _is_better(second, first):
        return first
    counted = () if launch.goal is None else (_uncountable(second.calls - second.warmup, _LOST),)
    return replace(second, diagnostics=(*first.diagnostics, *counted))


def _alone(first: Execution) -> int:
    """As many calls as are to be made where no other launch follows: that one had only its share of the time."""
    cut = first.watcher.cut
    return first.calls if cut is None else first.warmup + (first.calls - first.warmup) * cut.sharing


def _is_better(second: Execution, first: Execution) -> bool:
    """Whether it ended well and lost less. One that has fewer events lost more, whatever it says."""
    lost_less = second.profile.lost_records < first.profile.lost_records
    return not second.ending.failed and lost_less and second.profile.event_count >= first.profile.event_count


def _counted(plan: Plan, launch: Launch, connection: duckdb.DuckDBPyConnection, progress: Progress) -> Execution:
    """Run the program with a number of calls that is known before."""
    calls = plan.iterations + plan.warmup
    progress(f"running {plan.entry.name}, {calls} calls")
    done = _execute(plan, _Attempt(launch.name("first"), launch.profile, calls, plan.warmup), connection, progress)
    if plan.flushes_on_timer and plan.options.iterations is UNKNOWN and not plan.options.cache_sim:
        return replace(done, diagnostics=(_uncountable(plan.iterations, _NOT_SHOWN),))
    return done


def _until_enough(plan: Plan, launch: Launch, connection: duckdb.DuckDBPyConnection, progress: Progress) -> Execution:
    """Run the program until it was measured enough; where the profile does not show its calls, so often as is usual."""
    again = "" if launch.number == 1 else f", launch {launch.number}"
    progress(f"running {plan.entry.name} until its median is known{_expected(plan)}{again}")
    first = _Attempt(launch.name("first"), launch.profile, 0, plan.warmup, launch.goal)
    done = _execute(plan, first, connection, progress)
    if done.ending.failed or (done.profile.event_count and done.profile.invocations is not UNKNOWN):
        return done
    # No call had returned, as where nothing is ever done on a device: what takes so long is not called often.
    calls = plan.iterations if done.calls else plan.batch.calls
    warmup = 0 if plan.options.warmup is UNKNOWN and not done.calls else plan.warmup
    progress(f"running {plan.entry.name}, {calls + warmup} calls")
    os.truncate(launch.profile, 0)
    attempt = _Attempt(launch.name("counted"), launch.profile, calls + warmup, warmup)
    counted = _execute(plan, attempt, connection, progress)
    why = _DIFFERENT if done.calls and counted.profile.invocations is not UNKNOWN else _NOT_SHOWN
    return replace(counted, diagnostics=(_uncountable(calls, why),) if counted.profile.event_count else ())


_NOT_SHOWN: Final = "the profile does not show calls as they return"
_DIFFERENT: Final = "calls do not all submit the same, by which those of a program that is ended are told apart"
"""Though they returned, and the profile has all of each."""
_LOST: Final = "records were lost where the profile was written behind each call"
"""What is flushed on a timer instead does not show when a call has returned."""


def _uncountable(calls: int, why: str) -> Diagnostic:
    """That so many calls were made, as nothing tells when they were enough."""
    text = f"{why}, so {plural(calls, 'call')} were measured, however they vary; --iterations asks for more"
    return Diagnostic("calls-uncountable", text)


def _expected(plan: Plan) -> str:
    """How many samples there can be within the time that may be spent."""
    if not plan.sample_hz:
        return ""
    rate = f", or {ENOUGH_SAMPLES:,} samples lie in kernels, at {plan.sample_hz:,} a second of each thread"
    workers, seconds = count_workers(plan.device, plan.flags), plan.options.seconds
    if isinstance(workers, Unknown):
        return rate
    most = format_count(round(plan.sample_hz * seconds * workers))
    return f"{rate}: at most {most} are to be expected in {seconds:g} s"


@dataclass(frozen=True)
class _Ran:
    """A program that has run, with what it has left: its samples, and when it stopped its clock."""

    command: tuple[str, ...]
    ending: Ending
    watcher: Watcher
    samples: Path
    stops: Path


def _execute(plan: Plan, attempt: _Attempt, connection: duckdb.DuckDBPyConnection, progress: Progress) -> Execution:
    """Run the program, and read its profile; once more where that was damaged as it was written."""
    ran = _run(plan, attempt, progress)
    ending, cut = ran.ending, ran.watcher.cut
    progress("reading the profile")
    batch = plan.batch.calls
    calls, warmup = attempt.measured(cut, batch)
    timed_flushes = plan.flushes_on_timer or bool(attempt.more)
    known = KnownCalls(UNKNOWN if ending.failed or not attempt.calls else calls, warmup, timed_flushes, batch)
    is_repeatable = timed_flushes and attempt.may_be_repeated(ending)
    try:
        profile = _read(attempt, connection, known, must_be_whole=is_repeatable and cut is None)
    except RunInvalid:
        if not is_repeatable:
            raise
        progress("the profile was damaged as it was written; running again")
        return _execute(plan, attempt.repeated(), connection, progress)
    if profile.event_count and profile.invocations is UNKNOWN and not ending.failed:
        warmup = 0  # nothing tells which events are of it: all calls count, and so do they
    stops = read_stops(ran.stops, profile.begins_ns, calls // batch, plan.batch.pieces)
    done = Execution(
        ran.command, attempt.more, calls, warmup, ending, profile, ran.samples, ran.watcher, stops, batch=batch
    )
    if ending.failed and profile.event_count == 0:
        attempt.path.unlink(missing_ok=True)
        check_profiled(plan.entry.name, ending.said)
        error = ProgramFailed(f"{done.failure(plan.entry)}; nothing was recorded")
        error.interrupted = ending.interrupted
        raise error
    return done


_UNPROFILED: Final = re.compile(r"\w+ HAL-native profiling is not implemented")


def check_profiled(name: str, said: str) -> None:
    """Refuse a device that the runtime does not profile, by what it said.

    Source: `profiling_begin` in runtime/src/iree/hal/drivers/cuda/cuda_device.c, and hip/hip_device.c, of IREE.

    Raises:
        DeviceUnprofiled: it is one.
    """
    found = _UNPROFILED.search(said)
    if found:
        raise DeviceUnprofiled(
            f"{name} ran on a device whose kernels IREE's runtime does not profile ({found[0]}); build for Vulkan, "
            "or hand what its maker's tools print, as ncu and nsys of NVIDIA's, to `tracemap attribute`"
        )


def _run(plan: Plan, attempt: _Attempt, progress: Progress) -> _Ran:
    """Run the program, with the sampler where samples are wanted."""
    command = plan.command(attempt.path, attempt.calls or _ENDLESS, attempt.more)
    samples = plan.folder / f"samples-{attempt.name}"
    stops = plan.folder / f"stops-{attempt.name}"
    variables = _sampling(samples, plan.sample_hz)
    variables |= _noting_stops(stops, variables)
    watcher = Watcher(attempt.goal, attempt.path, samples, progress)
    ending = run_benchmark(command, variables, watcher.watch, WATCH_S, plan.niceness)
    watcher.end()
    if watcher.cut is not None and not ending.interrupted:
        ending = replace(ending, status=0)  # we ended it
    return _Ran(tuple(command), ending, watcher, samples, stops)


def _sampling(samples: Path, hz: int) -> dict[str, str]:
    """What makes the hook take so many samples a second, into a folder that is made for them; 0: none."""
    if not hz:
        return {}
    samples.mkdir()
    return environment(samples, HookSettings(record_calls=False, sample_hz=hz))


def _noting_stops(stops: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """What makes the hook note when the program stops its clock; without a hook nothing does."""
    try:
        return stops_environment(stops, variables)
    except HookUnavailable:
        return {}


_ENDLESS = 1_000_000_000
"""Calls of a program that is ended before."""


def _read(
    attempt: _Attempt, connection: duckdb.DuckDBPyConnection, known: KnownCalls, *, must_be_whole: bool
) -> Profile:
    table = f"{attempt.name}_events"
    try:
        return load_profile(attempt.path, connection, table, known, must_be_whole=must_be_whole)
    except RunEmpty:
        # A program that never opens the device writes no profile: nothing ran on it.
        return empty_profile(connection, table)
