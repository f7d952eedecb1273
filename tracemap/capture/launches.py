"""The launches of a program, one after another, and what they tell together.

Where a process has its code and its data in memory, which it keeps for as long as it runs, makes single kernels slower
or faster by more than what calls in it differ by (T. Mytkowicz, A. Diwan, M. Hauswirth, P. F. Sweeney: Producing wrong
data without doing anything obviously wrong!, ASPLOS 2009). So what may be spent is shared out over several launches,
the level above the calls at which results vary (T. Kalibera, R. Jones: Rigorous benchmarking in reasonable time, ISMM
2013), and the events of all become those of one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tracemap.capture.call_times import Measured, measured
from tracemap.capture.execution import Execution, Launch, timed_execution
from tracemap.capture.noise import disturbed, together
from tracemap.capture.plan import Plan
from tracemap.capture.sampling import samples_in_kernels
from tracemap.capture.stopping_rule import ENOUGH_SAMPLES, MOST_BYTES, Goal, Outcome, Why, still_changing
from tracemap.diagnostics import Diagnostic
from tracemap.errors import ProgramFailed, RunEmpty, RunInvalid
from tracemap.functions import Function
from tracemap.measurements.elapsed import added
from tracemap.measurements.ireeprof.profile import Joined, join_profiles
from tracemap.measurements.medians import Median, median_of
from tracemap.measurements.model import Disturbance, ElapsedParts
from tracemap.owned.ending import answer, asked_by
from tracemap.toolchain import Progress
from tracemap.units import UNKNOWN, Integer, plural, sum_of

if TYPE_CHECKING:
    import duckdb

_LEAST_LEFT_S: Final = 1.0
"""With less than that, no more launches than were meant are made, however little they agree."""


@dataclass(frozen=True)
class Launches:
    """Executions of one program whose events are one run's, and what their measured calls took, one by one.

    `joined`: the events of all, with the commands that they name. `diagnostics`: what is to be known of launches that
    are left out.
    """

    executions: tuple[Execution, ...]
    measured: tuple[Measured, ...]
    joined: Joined
    diagnostics: tuple[Diagnostic, ...]

    @property
    def event_count(self) -> int:
        """How many events were recorded, before anything was added to them."""
        return sum(each.profile.event_count for each in self.executions)

    @property
    def first(self) -> Execution:
        """The first launch, and the only one where more than times is asked for."""
        return self.executions[0]

    @property
    def last(self) -> Execution:
        """The one after which nothing was launched any more; how it ended is how all did."""
        return self.executions[-1]

    def failure(self, entry: Function) -> str:
        """What to say where the last one failed, or nothing was launched behind it as the user pressed Ctrl-C."""
        if not self.last.is_whole:
            return self.last.failure(entry)
        whole = plural(len(self.executions), "whole launch", "whole launches")
        return f"the recording of {entry.name} did not come to its end: it was interrupted behind {whole}"

    @property
    def warmup(self) -> int:
        """How many calls are warm-up, in all of them."""
        return sum(each.warmup for each in self.executions)

    @property
    def calls(self) -> Integer:
        """How many calls were measured, in all of them."""
        return sum_of(each.calls for each in self.measured)

    @property
    def elapsed_ns(self) -> Integer:
        """Wall time of the measured calls, without what lies between the launches."""
        return sum_of(each.elapsed_ns for each in self.measured)

    @property
    def elapsed(self) -> ElapsedParts:
        """What the elapsed time went for."""
        return added([each.elapsed for each in self.measured])

    @property
    def disturbance(self) -> Disturbance:
        """What disturbed the measured calls."""
        return together([each.disturbance for each in self.measured])

    @property
    def median(self) -> Median:
        """The median call of all."""
        return _median(self.measured)


def launched(plan: Plan, connection: duckdb.DuckDBPyConnection, progress: Progress) -> Launches:
    """Launch the program until it was measured enough, or until Ctrl-C, which leaves the launches that were whole.

    Args:
        plan: what to run.
        connection: where the events go.
        progress: told what is done.

    Raises:
        ProgramFailed: it failed before anything was recorded.
        RunInvalid: its profile cannot be read.
    """
    goal, left_out = plan.goal, []
    executions = [timed_execution(plan, Launch(1, goal, plan.profile), connection, progress)]
    taken = [measured(executions[0])]
    while not asked_by() and (goal := _rest(goal, executions[-1], taken)) is not None:
        launch = Launch(len(executions) + 1, goal, plan.folder / f"launch-{len(executions) + 1}.ireeprof")
        again = _one_more(plan, launch, connection, progress)
        if again is None:
            executions[-1] = executions[-1].interrupted()
            break
        if isinstance(again, Diagnostic):
            left_out.append(again)
            break
        executions.append(again)
        taken.append(measured(again))
        launch.profile.unlink()
    if asked_by():  # between two launches, or while a profile was read
        answer()
        executions[-1] = executions[-1].interrupted()
    joined = join_profiles([each.profile for each in executions])
    return Launches(tuple(executions), tuple(taken), joined, tuple(left_out))


def _one_more(
    plan: Plan, launch: Launch, connection: duckdb.DuckDBPyConnection, progress: Progress
) -> Execution | Diagnostic | None:
    """A launch behind good ones, which stand whatever comes of it: why it is left out; None where Ctrl-C ended it."""
    try:
        done = timed_execution(plan, launch, connection, progress)
    except (ProgramFailed, RunEmpty, RunInvalid) as error:
        interrupted = isinstance(error, ProgramFailed) and error.interrupted
        return None if interrupted or asked_by() else _left_out(launch, str(error))
    if done.ending.interrupted or (done.ending.failed and asked_by()):
        return None
    if done.ending.failed or done.profile.invocations is UNKNOWN or done.diagnostics:
        why = done.failure(plan.entry) if done.ending.failed else "its calls cannot be told apart"
        return _left_out(launch, why)
    return done


def _left_out(launch: Launch, why: str) -> Diagnostic:
    return Diagnostic("launch-failed", f"launch {launch.number} is left out, and none was made after it: {why}")


def _rest(goal: Goal | None, last: Execution, taken: Sequence[Measured]) -> Goal | None:
    """What is enough of the next launch; None: there is none."""
    cut = last.watcher.cut
    if goal is None or cut is None or cut.why is None or last.ending.failed or last.profile.invocations is UNKNOWN:
        return None
    seconds, recorded = goal.seconds - cut.spent_ns / 1e9, goal.recorded + cut.bytes
    # Each may know its own median, and yet they differ: then there are more than were meant.
    differ = len(taken) > 1 and _median(taken).error > goal.precision and seconds >= _LEAST_LEFT_S
    if seconds <= 0 or recorded >= MOST_BYTES or (cut.sharing == 1 and not differ):
        return None
    return replace(goal, seconds=seconds, recorded=recorded, launches=max(1, cut.sharing - 1))


def _median(taken: Sequence[Measured]) -> Median:
    import numpy as np

    return median_of(np.concatenate([each.times_ns for each in taken]))


def outcome(goal: Goal | None, launches: Launches) -> Outcome | None:
    """Why no more calls were made; None where their number was given, or the program or a launch of it failed."""
    cuts = [each.watcher.cut for each in launches.executions]
    reasons = [cut.why for cut in cuts if cut is not None and cut.why is not None]
    if goal is None or len(reasons) < len(cuts) or launches.last.ending.failed:
        return None
    median, events = launches.median, launches.joined.events
    samples = samples_in_kernels(events) if goal.sample_hz else UNKNOWN
    why = _why(reasons, goal, median, samples)
    if launches.diagnostics and why not in {Why.PRECISION, Why.SAMPLES}:
        return None  # neither is it enough, nor was all spent
    return Outcome(
        why=why,
        goal=goal,
        calls=sum(each.calls - each.warmup for each in launches.executions),
        median=median,
        samples=samples,
        changing=any(
            still_changing(each.times_ns, each.warmup_batches, goal.precision) for each in launches.executions
        ),
        bytes=sum(cut.bytes for cut in cuts if cut is not None),
        disturbed=disturbed(launches.disturbance) is not None,
        launches=len(cuts),
    )


def _why(reasons: Sequence[Why], goal: Goal, median: Median, samples: Integer) -> Why:
    """Of several launches, that know together what each alone may not; samples are counted at the end once more."""
    if isinstance(samples, int) and samples >= ENOUGH_SAMPLES:
        return Why.SAMPLES
    if len(reasons) == 1:
        return reasons[0]
    if median.error <= goal.precision:
        return Why.PRECISION
    return Why.BYTES if Why.BYTES in reasons else Why.SECONDS
