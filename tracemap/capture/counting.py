"""Further executions of what was timed, under the hook: their events are added to the dispatches of the first.

Counting slows calls down, so times and counts come from different executions of the same program; events that do not
find room in the processor's counters together have an execution each. Within a counted one the hook's calls are joined
to the profile's dispatches by kernel and order of start; between executions, dispatches are joined by kernel and order
of submission, which the program itself decides. What does not fit has no count, and is said.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.capture.benchmark import run_benchmark
from tracemap.capture.counters import Event
from tracemap.capture.profile import load_profile
from tracemap.diagnostics import Diagnostic
from tracemap.errors import ProgramFailed, RunEmpty, ToolMissing
from tracemap.hook import HookSettings, HookUnavailable, environment, library_path
from tracemap.measurements.hook.calls import HookRecording, load_calls, read_recording
from tracemap.measurements.ireeprof import Profile
from tracemap.measurements.sql import quoted
from tracemap.units import plural

if TYPE_CHECKING:
    import duckdb

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
    """One execution under the hook: what was counted in it, and the counts of its dispatches by column."""

    events: Sequence[Event]
    recording: HookRecording
    counted: dict[str, object]


def with_counts(
    profile: Profile, command: Command, passes: Sequence[Sequence[Event]], connection: duckdb.DuckDBPyConnection
) -> Profile:
    """Run again under the hook, once for each pass, and add a column per event to the profile's dispatches.

    Args:
        profile: the execution that was timed; its tables are those of `connection`.
        command: what to run.
        passes: the events to count in each execution, as `counters.in_passes` returns them.
        connection: holds the profile's tables.

    Raises:
        ProgramFailed: an execution failed.
    """
    done = []
    for events in passes:
        one = _count(command, events, connection)
        if one is None:
            return _without_counts(profile)
        done.append(one)
    return _merged(profile, done, connection)


def _count(command: Command, events: Sequence[Event], connection: duckdb.DuckDBPyConnection) -> _Pass | None:
    """Run once under the hook; None where no executable ran on the CPU."""
    with tempfile.TemporaryDirectory(prefix="tracemap-hook-", dir=_record_folder()) as name:
        folder = Path(name)
        settings = HookSettings(events=tuple(event.setting for event in events))
        ending = run_benchmark(command(folder / "counted.ireeprof"), environment(folder, settings))
        if ending.status or ending.interrupted:
            said = f": {ending.said}" if ending.said else ""
            raise ProgramFailed(
                f"an execution under the hook, which counts events, did not end well: {ending.cause}{said}"
            )
        try:
            recording = read_recording(folder)
        except RunEmpty:
            return None
        counting = connection.cursor()
        load_profile(folder / "counted.ireeprof", counting)
        load_calls(recording, counting)
        return _Pass(events, recording, _counted(counting, events))


def _record_folder() -> str | None:
    """Memory, where there is plenty: a record costs half as much there as on a disk. None: the usual folder."""
    try:
        free = shutil.disk_usage(_MEMORY).free
    except OSError:
        return None
    return _MEMORY if free >= _PLENTY_BYTES and os.access(_MEMORY, os.W_OK) else None


_MEMORY = "/dev/shm"
_PLENTY_BYTES = 4 << 30


def _without_counts(profile: Profile) -> Profile:
    text = "no events were counted: no executable ran on the CPU"
    return replace(profile, diagnostics=(*profile.diagnostics, Diagnostic("no-counters", text)))


_PLACE = "row_number() OVER (PARTITION BY kind, kernel ORDER BY submission_id, command_index, row)"
"""A dispatch among those of its kernel, in the order in which the program submits them."""


def _counted(counting: duckdb.DuckDBPyConnection, events: Sequence[Event]) -> dict[str, object]:
    """Columns kernel, place, and e0, e1 … of the dispatches of the counted execution."""
    sums = ", ".join(f"sum({quoted(event.name)})::BIGINT AS e{number}" for number, event in enumerate(events))
    names = ", ".join(f"e{number}" for number in range(len(events)))
    grid = " AND ".join(f"h.workgroups_{axis} = p.workgroups_{axis}" for axis in "xyz")
    # What ran before the first event of the profile is load-time work, which no profile has.
    return dict(
        counting.execute(f"""
        WITH dispatches AS (
            SELECT *, {_PLACE} AS place, row_number() OVER (PARTITION BY kernel ORDER BY start_ns, row) AS nth
            FROM profile_events WHERE kind = 'dispatch' AND workgroups_x * workgroups_y * workgroups_z > 0
        ), grids AS (
            SELECT kernel, call, workgroups_x, workgroups_y, workgroups_z, min(start_ns) AS start_ns, {sums}
            FROM hook_calls WHERE start_ns >= (SELECT min(start_ns) - {_SLACK_NS} FROM profile_events) GROUP BY ALL
        ), hooked AS (
            SELECT *, row_number() OVER (PARTITION BY kernel ORDER BY start_ns, call) AS nth FROM grids
        )
        SELECT p.kernel, p.place, {names}
        FROM dispatches AS p JOIN hooked AS h ON h.kernel = p.kernel AND h.nth = p.nth AND {grid}
        WHERE (SELECT count(*) FROM hooked AS x WHERE x.kernel = p.kernel)
            = (SELECT count(*) FROM dispatches AS x WHERE x.kernel = p.kernel)
        ORDER BY p.kernel, p.place
        """).fetchnumpy()
    )


_SLACK_NS = 10_000
"""How far the hook's clock, which is calibrated, may be from the profile's."""


def _merged(profile: Profile, passes: Sequence[_Pass], connection: duckdb.DuckDBPyConnection) -> Profile:
    columns, joins, notes = [], [], [_told(passes)]
    for number, one in enumerate(passes):
        name = f"counted_{number}"
        connection.register("counted_columns", one.counted)
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM counted_columns")
        connection.unregister("counted_columns")
        columns += [f"{name}.e{place} AS {quoted(event.name)}" for place, event in enumerate(one.events)]
        joins.append(f"LEFT JOIN {name} ON e.kind = 'dispatch' AND {name}.kernel = e.kernel AND {name}.place = e.place")
        notes += [*one.recording.diagnostics, *_unmatched(name, connection)]
    joined = connection.sql(f"""
        SELECT e.* EXCLUDE (row, place), {", ".join(columns)}
        FROM (SELECT *, {_PLACE} AS place FROM profile_events) AS e {" ".join(joins)}
        ORDER BY e.start_ns, e.row
    """)
    return replace(profile, events=joined, diagnostics=(*profile.diagnostics, *dict.fromkeys(notes)))


def _unmatched(name: str, connection: duckdb.DuckDBPyConnection) -> list[Diagnostic]:
    ((missing,),) = connection.execute(f"""
        SELECT count(*) FROM (SELECT *, {_PLACE} AS place FROM profile_events WHERE kind = 'dispatch') AS e
        ANTI JOIN {name} AS c ON c.kernel = e.kernel AND c.place = e.place
    """).fetchall()
    if not missing:
        return []
    text = f"{plural(missing, 'dispatch', 'dispatches')} have no counts: the executions did not do the same"
    return [Diagnostic("counters-unmatched", text)]


def _told(passes: Sequence[_Pass]) -> Diagnostic:
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
