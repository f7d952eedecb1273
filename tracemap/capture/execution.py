"""The execution that is timed: run under the profiler, and run again where the profiler lost too much."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.capture.benchmark import TIMED_FLUSH_FLAG, Ending, run_benchmark
from tracemap.capture.plan import Plan
from tracemap.capture.profile import load_profile
from tracemap.errors import ProgramFailed, RunEmpty, RunInvalid
from tracemap.functions import Function
from tracemap.hook import HookSettings, environment
from tracemap.measurements.ireeprof.invocations import KnownCalls
from tracemap.measurements.ireeprof.profile import Profile, empty_profile
from tracemap.toolchain import Progress
from tracemap.units import UNKNOWN

if TYPE_CHECKING:
    import duckdb

_FLUSH_INTERVAL = TIMED_FLUSH_FLAG.partition("=")[0]


@dataclass(frozen=True)
class Execution:
    """A program that was run: how it was called, how it ended, what its profile tells, the folder of its samples.

    All of it is of one execution; nothing of another may be added to its events.
    """

    command: tuple[str, ...]
    more: tuple[str, ...]
    """The flags in it that the plan does not have; a further execution that is to do the same needs them too."""
    ending: Ending
    profile: Profile
    samples: Path

    def failure(self, entry: Function) -> str:
        """What to say of a program that failed."""
        return _failure(self.ending, entry)


def _failure(ending: Ending, entry: Function) -> str:
    return f"iree-benchmark-module did not finish {entry.name}: {ending.explanation}"


def timed_execution(plan: Plan, connection: duckdb.DuckDBPyConnection, progress: Progress) -> Execution:
    """Run the program under the profiler; once more with flushes on a timer, where records were lost.

    Args:
        plan: what to run.
        connection: where the events go.
        progress: told what is done.

    Raises:
        ProgramFailed: it failed before anything was recorded.
        RunInvalid: its profile cannot be read.
    """
    progress(f"running {plan.entry.name}, {plan.calls} calls")
    first = _execute(plan, plan.profile, (), connection, progress)
    if not first.profile.lost_records or first.ending.failed:
        return first
    progress("records were lost; running again with more frequent flushes")
    path = plan.profile.with_name(plan.profile.name + ".2")
    # Events and samples of both executions are kept apart until one of them is chosen.
    try:
        second = _execute(plan, path, (TIMED_FLUSH_FLAG,), connection, progress)
    except (ProgramFailed, RunEmpty, RunInvalid):  # the first execution was good, and stands
        return first
    finally:
        path.unlink(missing_ok=True)
    return second if _is_better(second, first) else first


def _is_better(second: Execution, first: Execution) -> bool:
    """Whether it ended well and lost less. One that has fewer events lost more, whatever it says."""
    lost_less = second.profile.lost_records < first.profile.lost_records
    return not second.ending.failed and lost_less and second.profile.event_count >= first.profile.event_count


def _execute(
    plan: Plan, path: Path, more: tuple[str, ...], connection: duckdb.DuckDBPyConnection, progress: Progress
) -> Execution:
    """Run the program with more flags, with the sampler where samples are wanted; its profile goes to `path`."""
    attempt = "again" if more else "first"
    command = plan.command(path, more)
    samples = plan.folder / f"samples-{attempt}"
    variables = {}
    if hz := plan.options.sample_hz:
        samples.mkdir()
        variables = environment(samples, HookSettings(record_calls=False, sample_hz=hz))
    ending = run_benchmark(command, variables)
    progress("reading the profile")
    known = KnownCalls(
        invocations=UNKNOWN if ending.failed else plan.calls,
        warmup=plan.options.warmup,
        timed_flushes=any(flag.startswith(_FLUSH_INTERVAL) for flag in (*plan.flags, *more)),
    )
    table = f"{attempt}_events"
    try:
        profile = load_profile(path, connection, table, known)
    except RunEmpty:
        # A program that never opens the device writes no profile: nothing ran on it.
        profile = empty_profile(connection, table)
    if ending.failed and profile.event_count == 0:
        path.unlink(missing_ok=True)
        raise ProgramFailed(f"{_failure(ending, plan.entry)}; nothing was recorded")
    return Execution(tuple(command), more, ending, profile, samples)
