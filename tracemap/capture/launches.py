"""Launches of a program in a row, and their combined result.

Memory layout differs between processes and makes single kernels slower or faster, by more than calls within a process
vary (T. Mytkowicz, A. Diwan, M. Hauswirth, P. F. Sweeney: Producing wrong data without doing anything obviously
wrong!, ASPLOS 2009). So the budget is split over several launches, the level above calls at which results vary
(T. Kalibera, R. Jones: Rigorous benchmarking in reasonable time, ISMM 2013). The events of all form one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tracemap.capture.execution import Execution, Launch, Recording, read_recording, record_launch, timed_execution
from tracemap.capture.noise import Cut, combined_noise, noise_diagnostic
from tracemap.capture.plan import Plan
from tracemap.capture.sampling import samples_in_kernels
from tracemap.capture.stopping_rule import ENOUGH_SAMPLES, MOST_BYTES, Goal, StoppingOutcome, StopReason, still_changing
from tracemap.capture.timing import CallTimes, call_times
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import ProgramFailed, RunEmpty, RunInvalid
from tracemap.core.functions import Function
from tracemap.core.process.limits import usable_processors
from tracemap.core.process.signals import confirm_signal, pending_signal
from tracemap.core.toolchain import Progress
from tracemap.core.units import UNKNOWN, Integer, plural, sum_of
from tracemap.runs.ireeprof.profile import JoinedProfiles, join_profiles
from tracemap.runs.model import Noise
from tracemap.runs.sql import attached_database
from tracemap.runs.statistics import Median, median_of

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

_LEAST_LEFT_S: Final = 1.0
"""Least time left for an additional launch, even if the launches so far disagree."""


@dataclass(frozen=True)
class Launches:
    """Executions of one program that form one run, with the times of their measured calls.

    `joined`: events of all executions, with the command buffers that they name. `diagnostics`: launches that were left
    out.
    """

    executions: tuple[Execution, ...]
    call_times: tuple[CallTimes, ...]
    joined: JoinedProfiles
    diagnostics: tuple[Diagnostic, ...]

    @property
    def event_count(self) -> int:
        """Number of recorded events, without rows added later."""
        return sum(execution.profile.event_count for execution in self.executions)

    @property
    def first(self) -> Execution:
        """The first launch; the only one if more than times is measured."""
        return self.executions[0]

    @property
    def last(self) -> Execution:
        """The last launch. Its ending is the ending of the recording."""
        return self.executions[-1]

    def failure(self, entry: Function) -> str:
        """The message if the last launch failed, or if Ctrl-C came after a whole launch."""
        if not self.last.is_whole:
            return self.last.failure(entry)
        whole = plural(len(self.executions), "whole launch", "whole launches")
        return f"the recording of {entry.name} was interrupted after {whole}"

    @property
    def elapsed_ns(self) -> Integer:
        """Wall time of the measured calls, without the time between launches."""
        return sum_of(times.elapsed_ns for times in self.call_times)

    @property
    def noise(self) -> Noise:
        """Noise during the measured calls."""
        return combined_noise([times.noise for times in self.call_times])

    @property
    def clocked_ns(self) -> Integer:
        """Median time of an invocation by the program's own clock, which stops while the profiler writes its data."""
        import numpy as np

        times = [
            (own.stops.stopped_ns[: len(own.stops.going_ns)] - own.stops.going_ns)[own.warmup_batches :]
            for own in self.executions
            if own.stops is not None and own.batch == 1
        ]
        return median_of(np.concatenate(times)).value if times else UNKNOWN

    @property
    def median(self) -> Median:
        """The median call over all launches."""
        return _median([times.times_ns for times in self.call_times])


def record_launches(plan: Plan, connection: duckdb.DuckDBPyConnection, progress: Progress) -> Launches:
    """Launch the program until the goal is reached, or until Ctrl-C, which keeps the whole launches.

    Args:
        plan: the program to run.
        connection: the database for the events.
        progress: receives a line of text per step.

    Raises:
        ProgramFailed: it failed before anything was recorded.
        RunInvalid: its profile cannot be read.
    """
    first = timed_execution(plan, Launch(1, plan.goal, plan.profile), connection, progress)
    later = _record_later(plan, first, progress)
    if is_interrupted := later.interrupted or pending_signal():  # pending: it came between two launches
        confirm_signal()
    if later.recordings:
        progress("reading the profiles")
    executions, times, left_out = [first], [call_times(first)], list(later.left_out)
    for result in _read_later(plan, first, later.recordings, connection):
        if isinstance(result, Diagnostic):
            left_out.append(result)
        else:
            executions.append(result[0])
            times.append(result[1])
    if is_interrupted:
        executions[-1] = executions[-1].interrupted()
    joined = join_profiles([execution.profile for execution in executions])
    return Launches(tuple(executions), tuple(times), joined, tuple(left_out))


# ---- later launches
#
# The program runs again and again, and the profiles are read afterwards: that takes about as long as the calls of a
# small program, but less on several CPUs, which must not happen while a program is measured.


@dataclass(frozen=True)
class _LaterLaunches:
    """Launches after the first: their recordings, a diagnostic on a failed one, and whether Ctrl-C ended one."""

    recordings: tuple[Recording, ...]
    left_out: tuple[Diagnostic, ...] = ()
    interrupted: bool = False


def _record_later(plan: Plan, first: Execution, progress: Progress) -> _LaterLaunches:
    """Launch the program again until the goal is reached, one of them fails, or Ctrl-C."""
    if first.ending.failed or first.profile.invocations is UNKNOWN:
        return _LaterLaunches(())
    recordings: list[Recording] = []
    times, cut = [first.times_ns[first.warmup_batches :]], first.watcher.cut
    goal = _next_goal(plan.goal, cut, times)
    while goal is not None and not pending_signal():
        number = len(recordings) + 2
        launch = Launch(number, goal, plan.folder / f"launch-{number}.ireeprof")
        try:
            recording = record_launch(plan, launch, progress)
        except ProgramFailed as error:
            if error.interrupted or pending_signal():
                return _LaterLaunches(tuple(recordings), interrupted=True)
            return _LaterLaunches(tuple(recordings), (_failed(number, str(error)),))
        ending = recording.ending
        if ending.interrupted or (ending.failed and pending_signal()):
            return _LaterLaunches(tuple(recordings), interrupted=True)
        if ending.failed:
            return _LaterLaunches(tuple(recordings), (_failed(number, recording.failure(plan.call.entry)),))
        recordings.append(recording)
        times.append(recording.times_ns[recording.warmup // recording.batch :])
        goal = _next_goal(goal, recording.watcher.cut, times)
    return _LaterLaunches(tuple(recordings))


def _failed(number: int, reason: str) -> Diagnostic:
    return Diagnostic("launch-failed", f"launch {number} is left out, and no launch followed it: {reason}")


def _next_goal(goal: Goal | None, cut: Cut | None, times_ns: Sequence[npt.NDArray[Any]]) -> Goal | None:
    """The goal of the launch after those with these times, the last of which was stopped; None: no more launches."""
    if goal is None or cut is None or cut.reason is None:
        return None
    seconds, recorded = goal.seconds - cut.spent_ns / 1e9, goal.recorded + cut.bytes
    # The launches may be precise and still disagree: then make more of them than planned.
    differ = len(times_ns) > 1 and _median(times_ns).error > goal.precision and seconds >= _LEAST_LEFT_S
    if seconds <= 0 or recorded >= MOST_BYTES or (cut.launch_count == 1 and not differ):
        return None
    return replace(goal, seconds=seconds, recorded=recorded, launches=max(1, cut.launch_count - 1))


def _median(times_ns: Sequence[npt.NDArray[Any]]) -> Median:
    import numpy as np

    return median_of(np.concatenate(times_ns))


def _read_later(
    plan: Plan, first: Execution, recordings: Sequence[Recording], connection: duckdb.DuckDBPyConnection
) -> Iterator[tuple[Execution, CallTimes] | Diagnostic]:
    """Read the profiles of later launches, several at once: each execution with its times, or why it is left out."""
    if not recordings:
        return

    def read(number: int, recording: Recording) -> tuple[Execution, CallTimes] | Diagnostic:
        name = f"launch_{number}"
        with attached_database(connection, name) as own:
            try:
                execution = read_recording(plan, recording, own, f"{name}.events")
            except (ProgramFailed, RunEmpty, RunInvalid) as error:
                return _unreadable(number, str(error))
            recording.attempt.path.unlink(missing_ok=True)
            if execution.profile.invocations is UNKNOWN or not execution.profile.event_count:
                return _unreadable(number, "its calls cannot be distinguished")
            if execution.profile.lost_records and not first.profile.lost_records:
                return _unreadable(number, "the runtime lost records of it, but none of the first launch")
            return execution, call_times(execution)

    connection.execute("SET threads = 1")  # each reader is a thread
    with ThreadPoolExecutor(usable_processors()) as readers:
        yield from readers.map(read, range(2, 2 + len(recordings)), recordings)
    connection.execute("RESET threads")


def _unreadable(number: int, reason: str) -> Diagnostic:
    return Diagnostic("launch-failed", f"launch {number} is left out: {reason}")


def stopping_outcome(goal: Goal | None, launches: Launches) -> StoppingOutcome | None:
    """Why the recording stopped; None if the number of calls was fixed, or a launch failed."""
    executions = launches.executions
    cuts = [(own.batch, own.watcher.cut) for own in executions if own.watcher.cut is not None]
    reasons = [cut.reason for _, cut in cuts if cut.reason is not None]
    if goal is None or len(reasons) < len(executions) or launches.last.ending.failed:
        return None
    median, events = launches.median, launches.joined.events
    samples = samples_in_kernels(events) if goal.sample_hz else UNKNOWN
    reason = _overall_reason(reasons, goal, median, samples)
    if launches.diagnostics and reason not in {StopReason.PRECISION, StopReason.SAMPLES}:
        return None  # neither is the goal reached, nor the budget spent
    return StoppingOutcome(
        reason=reason,
        goal=goal,
        calls=sum(batch * (cut.calls - cut.warmup) for batch, cut in cuts),
        median=median,
        samples=samples,
        changing=any(
            still_changing(execution.times_ns, execution.warmup_batches, goal.precision) for execution in executions
        ),
        bytes=sum(cut.bytes for _, cut in cuts),
        noisy=noise_diagnostic(launches.noise) is not None,
        launches=len(cuts),
    )


def _overall_reason(reasons: Sequence[StopReason], goal: Goal, median: Median, samples: Integer) -> StopReason:
    """The reason over all launches, which may know the median better than each alone. Samples are recounted."""
    if isinstance(samples, int) and samples >= ENOUGH_SAMPLES:
        return StopReason.SAMPLES
    if len(reasons) == 1:
        return reasons[0]
    if median.error <= goal.precision:
        return StopReason.PRECISION
    return StopReason.BYTES if StopReason.BYTES in reasons else StopReason.SECONDS
