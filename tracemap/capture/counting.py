"""Further executions of what was timed, under the hook, which counts events.

Counting slows calls down, so times and counts come from different executions of the same program; events that do not
find room in the processor's counters together have an execution each. Within a counted one the hook's calls are joined
to the profile's dispatches by kernel and order of start; between executions, dispatches are joined by kernel and order
of submission, which the program itself decides. What does not fit has no count, and is said.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.capture.benchmark import run_benchmark
from tracemap.capture.counters.events import Event
from tracemap.capture.open_run import load_profile
from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunEmpty, RunInvalid, ToolMissing
from tracemap.hook import HookSettings, HookUnavailable, environment, library_path
from tracemap.measurements.events import EventTable
from tracemap.measurements.hook.calls import load_calls
from tracemap.measurements.hook.recording import HookRecording, read_recording
from tracemap.measurements.sql import quoted
from tracemap.owned.home import temporary_folder
from tracemap.units import plural

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
    """One execution under the hook: what was counted in it, and what the hook recorded."""

    events: Sequence[Event]
    recording: HookRecording


def add_counts(timed: EventTable, command: Command, passes: Sequence[Sequence[Event]]) -> tuple[Diagnostic, ...]:
    """Run again under the hook, once for each pass, and add a column per event to the dispatches that were timed.

    Args:
        timed: the events of the execution that was timed.
        command: what to run.
        passes: the events to count in each execution, as `counters.choosing.in_passes` returns them.

    Raises:
        ProgramFailed: an execution failed.
    """
    done: list[_Pass] = []
    found: list[Diagnostic] = []
    for events in passes:
        try:
            recording, missing = _count(timed, command, events, must_be_whole=True)
        except RunInvalid:  # the profile was damaged as it was written, as by flushes on a timer (`execution`)
            recording, missing = _count(timed, command, events, must_be_whole=False)
        if isinstance(recording, str):
            why = recording or "no executable ran on the CPU"
            return (Diagnostic("no-counters", f"no events were counted: {why}"),)
        done.append(_Pass(events, recording))
        found += recording.diagnostics
        if missing:
            text = f"{plural(missing, 'dispatch', 'dispatches')} have no counts: the executions did not do the same"
            found.append(Diagnostic("counters-unmatched", text))
    return (_how_counted(done), *dict.fromkeys(found))


def _count(
    timed: EventTable, command: Command, events: Sequence[Event], *, must_be_whole: bool
) -> tuple[HookRecording | str, int]:
    """Run once under the hook, and add its counts.

    Returns:
        What the hook recorded, and how many dispatches have no counts; where it recorded nothing, what it said.

    Raises:
        ProgramFailed: it failed.
        RunInvalid: its profile is damaged, or must be whole and is not: of a kernel with a dispatch that is not in it,
            nothing would have counts.
    """
    with temporary_folder(_record_folder()) as folder:
        settings = HookSettings(events=tuple(event.setting for event in events))
        ending = run_benchmark(command(folder / "counted.ireeprof"), environment(folder, settings))
        ending.check("an execution under the hook, which counts events,")
        try:
            recording = read_recording(folder)
        except RunEmpty:
            return ending.of_hook, 0
        path = folder / "counted.ireeprof"
        profile = load_profile(path, timed.connection, "counted_events", must_be_whole=must_be_whole)
        if must_be_whole and profile.lost_records:
            raise RunInvalid(f"{path}: records were lost")
        load_calls(recording, timed.connection)
        return recording, timed.add_counts(_counts_sql(profile.events, events), [event.name for event in events])


def _record_folder() -> Path | None:
    """Memory, where there is plenty: a record costs half as much there as on a disk. None: the usual folder."""
    try:
        free = shutil.disk_usage(_MEMORY).free
    except OSError:
        return None
    return _MEMORY if free >= _PLENTY_BYTES and os.access(_MEMORY, os.W_OK) else None


_MEMORY = Path("/dev/shm")
_PLENTY_BYTES = 4 << 30


# Calls of workgroups belong to the dispatch that started as the k-th of its kernel, as theirs did; where the two have
# not seen equally many, nothing is known. What ran before the first event of the profile is load-time work, which no
# profile has; the hook's clock, which is calibrated, may be a little off.
_COUNTS = """
WITH dispatches AS (
    SELECT *, row_number() OVER (PARTITION BY kernel ORDER BY start_ns, row) AS started
    FROM {dispatches} AS dispatch WHERE workgroups_x * workgroups_y * workgroups_z > 0
), called AS (
    SELECT kernel, call, workgroups_x, workgroups_y, workgroups_z, min(start_ns) AS start_ns, {sums}
    FROM hook_calls WHERE start_ns >= (SELECT min(start_ns) - {slack_ns} FROM {events}) GROUP BY ALL
), hooked AS (
    SELECT *, row_number() OVER (PARTITION BY kernel ORDER BY start_ns, call) AS started FROM called
)
SELECT kernel, submitted, {counts}
FROM dispatches JOIN hooked USING (kernel, started, workgroups_x, workgroups_y, workgroups_z)
WHERE (SELECT count(*) FROM hooked AS other WHERE other.kernel = dispatches.kernel)
    = (SELECT count(*) FROM dispatches AS other WHERE other.kernel = dispatches.kernel)
"""
_SLACK_NS = 10_000


def _counts_sql(counted: EventTable, events: Sequence[Event]) -> str:
    """A SELECT of kernel, submitted, and e0, e1 … of the dispatches of a counted execution."""
    sums = ", ".join(f"sum({quoted(event.name)})::BIGINT AS e{number}" for number, event in enumerate(events))
    counts = ", ".join(f"e{number}" for number in range(len(events)))
    return _COUNTS.format(
        dispatches=counted.dispatches, events=counted.name, sums=sums, counts=counts, slack_ns=_SLACK_NS
    )


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
