"""An exported profile becomes the events of a run, and what is known of how they came about.

IREE itself marks no calls of the entry point, so which call a submission belongs to is found out here, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunInvalid
from tracemap.measurements.events import EventTable
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
from tracemap.units import UNKNOWN, Integer, format_count

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

# ---- which call a submission belongs to


@dataclass(frozen=True, slots=True)
class KnownCalls:
    """What the one who ran the program knows of the calls of the entry point.

    `invocations`: how many there were, warm-up included; `warmup`: how many of the first are warm-up; `timed_flushes`:
    the profile was also flushed on a timer, so its chunks are not the calls.
    """

    invocations: Integer = UNKNOWN
    warmup: int = 0
    timed_flushes: bool = False


NOTHING_KNOWN: Final = KnownCalls()
"""Of a profile that was made elsewhere."""


@dataclass(frozen=True, slots=True)
class Span:
    """When things happened, in ns on the host's monotonic clock.

    `first_ns`: the first submission; `measured_ns`: the first one after warm-up; `last_ns`: the last event's end.
    """

    first_ns: Integer
    measured_ns: Integer
    last_ns: Integer


_SUBMISSIONS = """
CREATE OR REPLACE TABLE profile_submissions AS
SELECT physical_device_ordinal AS device, queue_ordinal AS queue, submission_id, op, operation_count, host_time_ns,
    command_buffer_id, dense_rank() OVER (ORDER BY source_record_index) - 1 AS chunk,
    row_number() OVER (ORDER BY rowid) - 1 AS number, CAST(NULL AS BIGINT) AS invocation
FROM profile_records WHERE record_type = 'queue_event'
"""

_MOST_CHUNKS = """
SELECT max(chunks) FROM (SELECT count(DISTINCT chunk) AS chunks FROM profile_submissions GROUP BY device, queue)
"""

_DIFFERING_BLOCKS = """
WITH texts AS (SELECT {block} AS block, string_agg(op || operation_count, ' ' ORDER BY number) || ' ' AS text
               FROM profile_submissions GROUP BY 1),
     whole AS (SELECT text FROM texts ORDER BY block LIMIT 1)
SELECT count(*) FROM texts, whole
WHERE NOT CASE WHEN block = (SELECT max(block) FROM texts) THEN starts_with(whole.text, texts.text)
          ELSE whole.text = texts.text END
"""


def number_invocations(connection: duckdb.DuckDBPyConnection, known: KnownCalls) -> Integer:
    """Make `profile_submissions`: every submission with the invocation it belongs to (NULL: cannot be told).

    iree-benchmark-module flushes the profile once after each call, so the chunks of submissions are the invocations,
    unless flushes on a timer cut them further; then equal repetition tells. Of a queue that was flushed more often than
    calls are known of, others were made too, and nothing tells which are which.

    Returns:
        How many invocations could be told apart.
    """
    connection.execute(_SUBMISSIONS)
    chunks = first_integer(connection, "SELECT count(DISTINCT chunk) FROM profile_submissions")
    total = first_integer(connection, "SELECT count(*) FROM profile_submissions")
    invocations = known.invocations
    if total == 0:
        return invocations
    are_chunks = chunks == invocations or (invocations is UNKNOWN and _repeats(connection, "chunk"))
    if are_chunks and not known.timed_flushes:
        connection.execute("UPDATE profile_submissions SET invocation = chunk")
        return chunks
    most = first_integer(connection, _MOST_CHUNKS)
    if isinstance(invocations, int) and not known.timed_flushes and most > invocations:
        return UNKNOWN
    if isinstance(invocations, int) and invocations > 0 and total % invocations == 0:
        block = f"number // {total // invocations}"
        if _repeats(connection, block):
            connection.execute(f"UPDATE profile_submissions SET invocation = {block}")
            return invocations
    return UNKNOWN


def _repeats(connection: duckdb.DuckDBPyConnection, block: str) -> bool:
    """Whether all blocks of submissions are the same sequence of operations (the last may be cut short)."""
    return first_integer(connection, _DIFFERING_BLOCKS.format(block=block)) == 0


def unknown_invocations(warmup: int) -> Diagnostic:
    """A sentence for a profile whose calls cannot be told apart."""
    text = "the calls of the entry point cannot be told apart in the profile"
    if warmup:
        text += f"; the {format_count(warmup)} warm-up calls are therefore not marked and are counted as measured"
    return Diagnostic("invocation-unknown", text)


def span_of_calls(connection: duckdb.DuckDBPyConnection, warmup: int) -> Span:
    """When the calls began and ended."""
    first, measured = connection.execute(
        f"SELECT min(host_time_ns), min(host_time_ns) FILTER (invocation >= {warmup}) FROM profile_submissions"
    ).fetchall()[0]
    ((last,),) = connection.execute(
        "SELECT max(greatest(end_host_time_ns, host_time_ns)) FROM profile_records "
        "WHERE record_type IN ('host_execution_event', 'queue_event')"
    ).fetchall()
    return Span(*(UNKNOWN if value is None else int(value) for value in (first, measured, last)))


def begins_of_calls(connection: duckdb.DuckDBPyConnection) -> npt.NDArray[Any]:
    """When each call of the entry point began: its first submission, in ns on the host's monotonic clock."""
    query = "SELECT min(host_time_ns) AS ns FROM profile_submissions WHERE invocation IS NOT NULL GROUP BY invocation"
    found: npt.NDArray[Any] = connection.execute(f"{query} ORDER BY invocation").fetchnumpy()["ns"]
    return found.astype("int64")


# ---- the whole


@dataclass(frozen=True)
class Profile:
    """What a profile tells: the events, the recorded command lists, and what was lost.

    `invocations` counts the calls of the entry point that could be told apart, warm-up included; `begins_ns` is when
    they began.
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
    load_buffers(connection)
    events = EventTable(connection, table, _events_sql(clock, known.warmup))
    programs, buffers = programs_and_buffers(connection)
    lost, lost_diagnostics = losses(connection)
    event_count = events.count
    unknown = [unknown_invocations(known.warmup)] if event_count and told_apart is UNKNOWN else []
    if known.invocations is UNKNOWN and told_apart is not UNKNOWN:
        # The last call of a killed program may have been submitted and never reported.
        told_apart = first_integer(connection, f"SELECT max(invocation) + 1 FROM {table}")
    profile = Profile(
        events=events,
        event_count=event_count,
        programs=programs,
        buffers=buffers,
        clock=clock,
        invocations=told_apart,
        begins_ns=begins_of_calls(connection),
        span=span_of_calls(connection, known.warmup),
        lost_records=lost,
        diagnostics=(*lost_diagnostics, *mixed, *invalid_times(connection, clock), *unknown),
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
    {start_ns} AS start_ns,
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
"""

# Times over workers exist for tiles only: a row without tiles has no cpu time, which is not the same as 0.
_CPU_NS = "CASE WHEN kind = 'dispatch' OR tile_duration_sum_ns > 0 THEN tile_duration_sum_ns END AS cpu_ns,"


def _events_sql(clock: Clock, warmup: int) -> str:
    on_host = clock is Clock.HOST
    return _EVENTS.format(
        record_types=record_types(clock),
        start_ns="start_host_time_ns" if on_host else "start_driver_host_cpu_time_ns",
        submitted_ns="CASE WHEN kind <> 'dispatch' THEN s.host_time_ns END" if on_host else "CAST(NULL AS BIGINT)",
        warmup=warmup,
        cpu_ns=_CPU_NS if on_host else "",
    )
