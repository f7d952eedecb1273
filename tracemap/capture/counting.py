"""Further executions of what was timed, under the hook, which counts events.

Counting slows calls down, so times and counts come from different executions of the same program; events that do not
find room in the processor's counters together have an execution each. Within a counted one the hook's calls are joined
to the profile's dispatches by kernel and order of start; between executions, dispatches are joined by kernel and order
of submission, which the program itself decides. Where a profile lacks dispatches of a kernel (a machine that is busy
may flush it too late), the order of start tells, if nothing of the kernel overlapped. What does not fit has no count,
and is said.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.capture.benchmark import run_benchmark
from tracemap.capture.counters.events import Event
from tracemap.capture.open_run import load_profile
from tracemap.diagnostics import INTERRUPTED, Diagnostic
from tracemap.errors import ProgramFailed, RunEmpty, RunInvalid, ToolMissing
from tracemap.hook import HookSettings, HookUnavailable, environment, library_path
from tracemap.measurements.events import EventTable
from tracemap.measurements.hook.calls import load_calls
from tracemap.measurements.hook.recording import HookRecording, read_recording
from tracemap.measurements.sql import quoted
from tracemap.owned.home import temporary_folder
from tracemap.units import UNKNOWN, Integer, plural

Command = Callable[[Path], list[str]]
"""The command line that writes its profile to this path."""


def check_hook() -> None:
    """Find out before the run whether the hook can be used.

    Raises:
        ToolMissing: its library was not built; the message says what to install.
    """
    try:
        library_path()
    except HookUnavailable as error:
        raise ToolMissing(str(error)) from error


@dataclass(frozen=True)
class _Pass:
    """One execution under the hook: what was counted in it, and what the hook recorded.

    `missing` dispatches have no counts; of `by_order` kernels the order of start alone tells whose counts they are.
    """

    events: Sequence[Event]
    recording: HookRecording
    missing: int
    by_order: int

    @property
    def diagnostics(self) -> Iterator[Diagnostic]:
        """What must be known of it."""
        yield from self.recording.diagnostics
        if self.by_order:
            text = (
                f"the profile of the counted execution lacks dispatches: counts of {plural(self.by_order, 'kernel')} "
                "go to dispatches in the order in which they started (inferred)"
            )
            yield Diagnostic("counters-by-order", text)
        if self.missing:
            text = (
                f"{plural(self.missing, 'dispatch', 'dispatches')} have no counts: the executions did not do the same"
            )
            yield Diagnostic("counters-unmatched", text)


def add_counts(
    timed: EventTable, command: Command, passes: Sequence[Sequence[Event]], niceness: Integer = UNKNOWN
) -> tuple[Diagnostic, ...]:
    """Run again under the hook, once for each pass, and add a column per event to the dispatches that were timed.

    Args:
        timed: the events of the execution that was timed.
        command: what to run.
        passes: the events to count in each execution, as `counters.choosing.in_passes` returns them.
        niceness: that it runs at; unknown: our own.

    Raises:
        ProgramFailed: an execution failed.
    """
    done: list[_Pass] = []
    found: list[Diagnostic] = []
    for events in passes:
        try:
            counted = _count_whole(timed, command, events, niceness)
        except ProgramFailed as error:
            if not (error.interrupted and done):
                raise
            found.append(Diagnostic(INTERRUPTED, "what other executions counted before is kept"))
            break
        if isinstance(counted, str):
            why = counted or "no executable ran on the CPU"
            return (Diagnostic("no-counters", f"no events were counted: {why}"),)
        done.append(counted)
        found += counted.diagnostics
    return (_how_counted(done), *dict.fromkeys(found))


def _count_whole(timed: EventTable, command: Command, events: Sequence[Event], niceness: Integer) -> _Pass | str:
    """Run once under the hook, and once more where its profile was damaged, as by flushes on a timer (`execution`)."""
    try:
        return _count(timed, command, events, niceness, must_be_whole=True)
    except RunInvalid:
        return _count(timed, command, events, niceness, must_be_whole=False)


def _count(
    timed: EventTable, command: Command, events: Sequence[Event], niceness: Integer, *, must_be_whole: bool
) -> _Pass | str:
    """Run once under the hook, and add its counts; where it recorded nothing, what it said.

    Raises:
        ProgramFailed: it failed.
        RunInvalid: its profile is damaged, or must be whole and is not: it may be at the second try.
    """
    with temporary_folder(_record_folder()) as folder:
        settings = HookSettings(events=tuple(event.setting for event in events))
        of_hook = environment(folder, settings)
        ending = run_benchmark(command(folder / "counted.ireeprof"), of_hook, niceness=niceness)
        ending.check("an execution under the hook, which counts events,")
        try:
            recording = read_recording(folder)
        except RunEmpty:
            return ending.hook_messages
        path = folder / "counted.ireeprof"
        profile = load_profile(path, timed.connection, "counted_events", must_be_whole=must_be_whole)
        if must_be_whole and profile.lost_records:
            raise RunInvalid(f"{path}: records were lost")
        load_calls(recording, timed.connection)
        query, by_order = _joined(timed, profile.events, events)
        missing = timed.add_counts(query, [event.name for event in events])
        return _Pass(events, recording, missing, by_order)


def _record_folder() -> Path | None:
    """Memory, where there is plenty: a record costs half as much there as on a disk. None: the usual folder."""
    try:
        free = shutil.disk_usage(_MEMORY).free
    except OSError:
        return None
    return _MEMORY if free >= _PLENTY_BYTES and os.access(_MEMORY, os.W_OK) else None


_MEMORY = Path("/dev/shm")
_PLENTY_BYTES = 4 << 30


# Calls of workgroups belong to the dispatch that started as the k-th of its kernel, as theirs did. What ran before the
# first event of the profile is load-time work, which no profile has; the hook's clock, which is calibrated, may be a
# little off. Where the profile has not seen as many dispatches of a kernel as the hook has, it lost some: the order of
# start alone tells then, of kernels whose dispatches started as they were submitted, each after the one before it.
_CALLED = """
CREATE OR REPLACE TEMP TABLE counted_calls AS
WITH called AS (
    SELECT kernel, call, workgroups_x, workgroups_y, workgroups_z, min(start_ns) AS start_ns,
        max(start_ns + duration_ns) AS end_ns, {sums}
    FROM hook_calls WHERE start_ns >= (SELECT min(start_ns) - {slack_ns} FROM {events}) GROUP BY ALL
)
SELECT *, row_number() OVER (PARTITION BY kernel ORDER BY start_ns, call) AS started FROM called
"""
# Whether something starts when all of its kernel that comes before, in an order, has ended.
_IS_BEHIND = (
    "start_ns >= coalesce(max({end}) OVER (PARTITION BY kernel ORDER BY {order} "
    "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), start_ns)"
)
_KERNELS = """
CREATE OR REPLACE TEMP TABLE counted_kernels AS
WITH hooked AS (
    SELECT kernel, count(*) AS calls, bool_and(is_apart) AS are_apart
    FROM (SELECT kernel, {call_is_apart} AS is_apart FROM counted_calls)
    GROUP BY kernel
), profiled AS (
    SELECT kernel, count(*) AS calls FROM {counted} AS dispatch WHERE {has_work} GROUP BY kernel
), timed AS (
    SELECT kernel, count(*) AS calls, bool_and(is_next) AS are_in_order
    FROM (SELECT kernel, {dispatch_is_next} AS is_next FROM {timed} AS dispatch WHERE {has_work})
    GROUP BY kernel
)
SELECT kernel, hooked.calls = profiled.calls IS TRUE AS is_whole,
    hooked.calls = timed.calls AND are_apart AND are_in_order IS TRUE AS is_ordered
FROM hooked LEFT JOIN profiled USING (kernel) LEFT JOIN timed USING (kernel)
"""
_COUNTS = """
SELECT kernel, submitted, {counts}
FROM (SELECT *, row_number() OVER (PARTITION BY kernel ORDER BY start_ns, row) AS started
      FROM {counted} AS dispatch WHERE {has_work})
JOIN counted_calls USING (kernel, started, workgroups_x, workgroups_y, workgroups_z)
SEMI JOIN (FROM counted_kernels WHERE is_whole) AS whole USING (kernel)
UNION ALL
SELECT kernel, submitted, {counts}
FROM (SELECT *, row_number() OVER (PARTITION BY kernel ORDER BY submitted) AS started
      FROM {timed} AS dispatch WHERE {has_work})
JOIN counted_calls USING (kernel, started, workgroups_x, workgroups_y, workgroups_z)
SEMI JOIN (FROM counted_kernels WHERE is_ordered AND NOT is_whole) AS ordered USING (kernel)
"""
_HAS_WORK = "workgroups_x * workgroups_y * workgroups_z > 0"
_SLACK_NS = 10_000


def _joined(timed: EventTable, counted: EventTable, events: Sequence[Event]) -> tuple[str, int]:
    """How the counts of an execution go to the dispatches that were timed.

    Returns:
        A SELECT of kernel, submitted, and e0, e1 … of the dispatches; and of how many kernels the order of start alone
        tells, as the profile of the counted execution lacks dispatches that the hook saw.
    """
    sums = ", ".join(f"sum({quoted(event.name)})::BIGINT AS e{number}" for number, event in enumerate(events))
    counts = ", ".join(f"e{number}" for number in range(len(events)))
    rows = {"timed": timed.dispatches, "counted": counted.dispatches, "has_work": _HAS_WORK}
    connection = timed.connection
    connection.execute(_CALLED.format(events=counted.name, sums=sums, slack_ns=_SLACK_NS))
    call_is_apart = _IS_BEHIND.format(end="end_ns", order="started")
    dispatch_is_next = _IS_BEHIND.format(end="start_ns + duration_ns", order="submitted")
    connection.execute(_KERNELS.format(**rows, call_is_apart=call_is_apart, dispatch_is_next=dispatch_is_next))
    ((by_order,),) = connection.execute(
        "SELECT count(*) FROM counted_kernels WHERE is_ordered AND NOT is_whole"
    ).fetchall()
    return _COUNTS.format(**rows, counts=counts), int(by_order)


def _how_counted(passes: Sequence[_Pass]) -> Diagnostic:
    costs = [
        thread.overhead_ticks * process.ns_per_tick
        for one in passes
        for process in one.recording.processes
        for thread in process.threads
    ]
    names = "; ".join(
        ", ".join(event.name + (" (user code only)" if event.user_only else "") for event in one.events)
        for one in passes
    )
    where = "in a second execution" if len(passes) == 1 else f"in {len(passes)} further executions, one after the other"
    calls = max(one.recording.call_count for one in passes)
    return Diagnostic(
        "counted-apart",
        f"{names}: counted {where}, under the hook, which added about {max(costs):.0f} ns to each of "
        f"{plural(calls, 'call')} of workgroups; times are of the first",
    )
