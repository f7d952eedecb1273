"""An exported profile becomes the events of a run, and what is known of how they came about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunInvalid
from tracemap.measurements.events import EventTable
from tracemap.measurements.ireeprof.calls import (
    NOTHING_KNOWN,
    KnownCalls,
    Span,
    begins_of_calls,
    leave_out_unsubmitted,
    number_invocations,
    span_of_calls,
    unknown_invocations,
)
from tracemap.measurements.ireeprof.clocks import CLOCKS, SINCE, connect_clocks
from tracemap.measurements.ireeprof.records import (
    clock_of_events,
    drop_records,
    first_integer,
    invalid_times,
    load_buffers,
    load_no_records,
    load_records,
    losses,
    programs_and_buffers,
    record_types,
)
from tracemap.measurements.model import Clock, RecordedBuffer, RecordedCommand
from tracemap.measurements.sql import damage_of, reading_errors
from tracemap.units import UNKNOWN, Integer

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


@dataclass(frozen=True)
class Profile:
    """What a profile tells: the events, the recorded command lists, and what was lost.

    `invocations` counts the calls of the entry point that could be told apart, warm-up included; `begins_ns` is when
    they, or batches of them, began. `on_host`: when events began is told on the host's monotonic clock, whichever clock
    tells how long they took.
    """

    events: EventTable
    event_count: int
    programs: tuple[tuple[RecordedCommand, ...], ...]
    buffers: tuple[RecordedBuffer, ...]
    clock: Clock
    invocations: Integer
    begins_ns: npt.NDArray[Any]
    span: Span
    lost_records: int
    on_host: bool
    diagnostics: tuple[Diagnostic, ...]


def read_export(
    jsonl: Path,
    connection: duckdb.DuckDBPyConnection,
    table: str = "events",
    known: KnownCalls = NOTHING_KNOWN,
    *,
    exported_from: Path | None = None,
) -> Profile:
    """Read what `iree-profile export --format=ireeperf-jsonl` wrote.

    Args:
        jsonl: the exported file.
        connection: holds the events until they are written; tables `profile_*` in it are made and dropped.
        table: the name of the table of events.
        known: what is known of the calls.
        exported_from: the `.ireeprof`, which messages name then; None: it is not at hand.

    Raises:
        RunEmpty: it holds no record.
        RunInvalid: it is no such export, or a damaged one.
        RunVersion: it is of another schema version.
    """
    named = exported_from or jsonl
    load_records(jsonl, connection, named)
    try:
        return _profile(connection, table, known)
    except reading_errors() as error:  # numbers that no clock gives, lists that are none
        raise RunInvalid(f"{named}: a record of the profile is damaged: {damage_of(error)}") from error


def empty_profile(connection: duckdb.DuckDBPyConnection, table: str) -> Profile:
    """The profile of a program in which nothing was recorded because nothing ran."""
    load_no_records(connection)
    return _profile(connection, table, NOTHING_KNOWN)


def _profile(connection: duckdb.DuckDBPyConnection, table: str, known: KnownCalls) -> Profile:
    """Read the table `profile_records`."""
    clock, mixed = clock_of_events(connection)
    told_apart = number_invocations(connection, known)
    lost, lost_diagnostics = losses(connection)
    incomplete = [] if lost else leave_out_unsubmitted(connection, clock)
    load_buffers(connection)
    clocks = connect_clocks(connection, clock)
    events = EventTable(connection, table, _events_sql(clock, known.warmup, on_host=clocks.is_whole))
    programs, buffers = programs_and_buffers(connection)
    event_count = events.count
    unknown = [unknown_invocations(known.warmup)] if event_count and told_apart is UNKNOWN else []
    if known.invocations is UNKNOWN and told_apart is not UNKNOWN:
        # The last call of a killed program may have been submitted and never reported.
        told_apart = first_integer(connection, f"SELECT max(invocation) + 1 FROM {table}")
    begins_ns = begins_of_calls(connection, known.batch)
    about_times = (*clocks.about(begins_ns), *invalid_times(connection, clock))
    profile = Profile(
        events=events,
        event_count=event_count,
        programs=programs,
        buffers=buffers,
        clock=clock,
        invocations=told_apart,
        begins_ns=begins_ns,
        span=span_of_calls(connection, known.warmup),
        lost_records=lost,
        on_host=clocks.is_whole,
        diagnostics=(*lost_diagnostics, *mixed, *incomplete, *about_times, *unknown),
    )
    drop_records(connection)
    return profile


# The columns of a run in their order. Numbers that the profile lacks are 0, or all ones.
# Each queue counts its submissions from 1; in a run, which has no queues, those of the first queue keep their numbers.
# local-sync releases a transient buffer with a queue barrier, and files are read and written by copies.
_EVENTS = """
WITH events AS NOT MATERIALIZED (
    SELECT *, rowid AS row, CASE WHEN record_type = 'dispatch_event' THEN 'dispatch' WHEN op = 'barrier' THEN 'dealloca'
                   WHEN op IN ('read', 'write') THEN 'copy' ELSE op END AS kind
    FROM profile_records WHERE record_type IN {record_types}
), queues AS (
    SELECT physical_device_ordinal AS device, queue_ordinal AS queue,
        (row_number() OVER (ORDER BY device, queue) - 1) * max(last) OVER () AS submissions_before
    FROM (SELECT physical_device_ordinal, queue_ordinal, CAST(coalesce(max(submission_id), 0) AS BIGINT) AS last
          FROM events GROUP BY ALL)
), numbered AS NOT MATERIALIZED (
    SELECT row, row_number() OVER (
        PARTITION BY kind, key, coalesce(program, -1 - CAST(command_buffer_id AS HUGEINT)), command_index
        ORDER BY {start_ns}, row) - 1 AS call
    FROM events LEFT JOIN (SELECT id, program FROM profile_buffers WHERE one_shot) AS one_shot
         ON one_shot.id = command_buffer_id
)
SELECT row, kind, key AS kernel,
    CAST(nullif(events.command_buffer_id, 0) AS BIGINT) AS command_buffer_id,
    CAST(nullif(command_index, 4294967295) AS BIGINT) AS command_index,
    CAST(nullif(events.submission_id, 0) AS BIGINT) + submissions_before AS submission_id,
    CAST(NULL AS VARCHAR) AS site,
    call,
    invocation,
    coalesce(invocation < {warmup}, false) AS warmup,
    {submitted_ns} AS submitted_ns,
    {start_ns}{since} AS start_ns,
    CASE WHEN valid THEN duration_ns END AS duration_ns,
    {cpu_ns}
    CAST(NULL AS VARCHAR) AS thread,
    CAST(NULL AS BIGINT) AS cpu,
    CASE WHEN kind = 'dispatch' THEN workgroup_count[1] END AS workgroups_x,
    CASE WHEN kind = 'dispatch' THEN workgroup_count[2] END AS workgroups_y,
    CASE WHEN kind = 'dispatch' THEN workgroup_count[3] END AS workgroups_z,
    CASE WHEN kind IN ('copy', 'fill', 'update') THEN CAST(payload_length AS BIGINT) END AS payload_bytes,
    CAST(NULL AS BIGINT) AS covered_ns
FROM events
JOIN queues ON queues.device IS NOT DISTINCT FROM physical_device_ordinal
    AND queues.queue IS NOT DISTINCT FROM queue_ordinal
LEFT JOIN (SELECT DISTINCT ON (device, queue, submission_id) * FROM profile_submissions ORDER BY number) AS s
    ON s.device = physical_device_ordinal AND s.queue = queue_ordinal AND s.submission_id = events.submission_id
JOIN numbered USING (row)
{clocks}
"""

# Times over workers exist for tiles only: a row without tiles has no cpu time, which is not the same as 0.
_CPU_NS = "CASE WHEN kind = 'dispatch' OR tile_duration_sum_ns > 0 THEN tile_duration_sum_ns END AS cpu_ns,"


def _events_sql(clock: Clock, warmup: int, *, on_host: bool) -> str:
    by_host = clock is Clock.HOST
    is_brought = on_host and not by_host
    return _EVENTS.format(
        record_types=record_types(clock),
        start_ns="start_host_time_ns" if by_host else "start_driver_host_cpu_time_ns",
        since=SINCE if is_brought else "",
        clocks=CLOCKS if is_brought else "",
        submitted_ns="CASE WHEN kind <> 'dispatch' THEN s.host_time_ns END" if on_host else "CAST(NULL AS BIGINT)",
        warmup=warmup,
        cpu_ns=_CPU_NS if by_host else "",
    )
