"""A second execution of what was timed, under the hook: its events are added to the dispatches of the first.

Counting slows calls down, so times and counts come from two executions of the same program. Within the second one, the
hook's calls are joined to the profile's dispatches by kernel and order of start; between the two, dispatches are joined
by kernel and order of submission, which the program itself decides. What does not fit has no count, and is said.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.capture.benchmark import run_benchmark
from tracemap.capture.counters import Event
from tracemap.capture.profile import load_profile
from tracemap.errors import ProgramFailed, RunEmpty, ToolMissing
from tracemap.hook import HookSettings, HookUnavailable, environment, library_path
from tracemap.measurements.hookfile import HookRecording, load_calls, read_recording
from tracemap.measurements.ireeprof import Profile
from tracemap.measurements.model import RunDiagnostic
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


def with_counts(
    profile: Profile, command: Command, events: Sequence[Event], connection: duckdb.DuckDBPyConnection
) -> Profile:
    """Run again under the hook and add a column per event to the profile's dispatches.

    Args:
        profile: the execution that was timed; its tables are those of `connection`.
        command: what to run.
        events: what to count, as `counters.events_to_count` returns it.
        connection: holds the profile's tables.

    Raises:
        ProgramFailed: the second execution failed.
    """
    with tempfile.TemporaryDirectory(prefix="tracemap-hook-") as name:
        folder = Path(name)
        settings = HookSettings(events=tuple(event.setting for event in events))
        ending = run_benchmark(command(folder / "counted.ireeprof"), environment(folder, settings))
        if ending.status or ending.interrupted:
            said = f": {ending.said}" if ending.said else ""
            raise ProgramFailed(
                f"the execution under the hook, which counts events, did not end well: {ending.cause}{said}"
            )
        try:
            recording = read_recording(folder)
        except RunEmpty:
            return _without_counts(profile)
        counting = connection.cursor()
        load_profile(folder / "counted.ireeprof", counting)
        load_calls(recording, counting)
        counted = _counted(counting, events)
    return _merged(profile, recording, events, counted, connection)


def _without_counts(profile: Profile) -> Profile:
    text = "no events were counted: no executable ran on the CPU"
    return replace(profile, diagnostics=(*profile.diagnostics, RunDiagnostic("no-counters", text)))


_PLACE = "row_number() OVER (PARTITION BY kind, kernel ORDER BY submission_id, command_index, row)"
"""A dispatch among those of its kernel, in the order in which the program submits them."""


def _counted(counting: duckdb.DuckDBPyConnection, events: Sequence[Event]) -> dict[str, object]:
    """Columns kernel, place, and e0, e1 … of the dispatches of the counted execution."""
    sums = ", ".join(f"sum({quoted(event.name)})::BIGINT AS e{number}" for number, event in enumerate(events))
    names = ", ".join(f"e{number}" for number in range(len(events)))
    grid = " AND ".join(f"h.workgroups_{axis} = p.workgroup_{axis}" for axis in "xyz")
    # What ran before the first event of the profile is load-time work, which no profile has.
    return dict(
        counting.execute(f"""
        WITH dispatches AS (
            SELECT *, {_PLACE} AS place, row_number() OVER (PARTITION BY kernel ORDER BY start_ns, row) AS nth
            FROM profile_events WHERE kind = 'dispatch' AND workgroup_x * workgroup_y * workgroup_z > 0
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


def _merged(
    profile: Profile,
    recording: HookRecording,
    events: Sequence[Event],
    counted: dict[str, object],
    connection: duckdb.DuckDBPyConnection,
) -> Profile:
    connection.register("counted_columns", counted)
    connection.execute("CREATE OR REPLACE TEMP TABLE counted_events AS SELECT * FROM counted_columns")
    connection.unregister("counted_columns")
    columns = ", ".join(f"c.e{number} AS {quoted(event.name)}" for number, event in enumerate(events))
    joined = connection.sql(f"""
        SELECT e.* EXCLUDE (row, place), {columns}
        FROM (SELECT *, {_PLACE} AS place FROM profile_events) AS e
        LEFT JOIN counted_events AS c ON e.kind = 'dispatch' AND c.kernel = e.kernel AND c.place = e.place
        ORDER BY e.start_ns, e.row
    """)
    ((missing,),) = connection.execute(f"""
        SELECT count(*) FROM (SELECT *, {_PLACE} AS place FROM profile_events WHERE kind = 'dispatch') AS e
        ANTI JOIN counted_events AS c ON c.kernel = e.kernel AND c.place = e.place
    """).fetchall()
    notes = [_told(recording, events), *recording.diagnostics]
    if missing:
        text = f"{plural(missing, 'dispatch', 'dispatches')} have no counts: the two executions did not do the same"
        notes.append(RunDiagnostic("counters-unmatched", text))
    return replace(profile, events=joined, diagnostics=(*profile.diagnostics, *notes))


def _told(recording: HookRecording, events: Sequence[Event]) -> RunDiagnostic:
    costs = [
        thread.overhead_ticks * process.ns_per_tick for process in recording.processes for thread in process.threads
    ]
    names = ", ".join(event.name + (" (user code only)" if event.user_only else "") for event in events)
    return RunDiagnostic(
        "counted-apart",
        f"{names}: counted in a second execution, under the hook, which added about {max(costs):.0f} ns to each of "
        f"{plural(recording.call_count, 'call')} of workgroups; times are of the first",
    )
