"""IREE's own profiles (`.ireeprof`), as exported by `iree-profile` to JSON lines, become the events of a run.

Events are never touched one by one in Python: DuckDB reads the JSON lines and shapes the table. This module knows the
export's schema and what is missing from it: a marker where one call of the entry point ends and the next begins.
"""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunEmpty, RunInvalid, RunVersion
from tracemap.measurements.header import Clock, RecordedBuffer, RecordedCommand
from tracemap.measurements.sql import literal
from tracemap.units import UNKNOWN, Integer, format_count, plural

if TYPE_CHECKING:
    import duckdb

PROFILE_MAGIC: Final = b"IRPF"
EXPORT_SCHEMA_VERSION: Final = 15
"""The version of ireeperf-jsonl whose fields are read here."""

_FILE_HEADER_BYTES = 24
_FILE_LENGTH_OFFSET = 16
_ONE_SHOT_BIT = 1

# The fields that are read, of all record types together; each record has some of them, the rest is NULL.
_FIELDS = {
    "schema_version": "BIGINT",
    "record_type": "VARCHAR",
    "source_record_index": "BIGINT",
    "event_id": "BIGINT",
    "physical_device_ordinal": "UBIGINT",
    "queue_ordinal": "UBIGINT",
    "submission_id": "UBIGINT",
    "command_buffer_id": "UBIGINT",
    "command_index": "UBIGINT",
    "mode": "UBIGINT",
    "op": "VARCHAR",
    "key": "VARCHAR",
    "valid": "BOOLEAN",
    "workgroup_count": "BIGINT[]",
    "operation_count": "UBIGINT",
    "host_time_ns": "BIGINT",
    "start_host_time_ns": "BIGINT",
    "end_host_time_ns": "BIGINT",
    "start_driver_host_cpu_time_ns": "BIGINT",
    "duration_ns": "BIGINT",
    "tile_duration_sum_ns": "BIGINT",
    "payload_length": "UBIGINT",
    "category": "VARCHAR",
    "content_type": "VARCHAR",
    "message": "VARCHAR",
    "dropped_records": "BIGINT",
}

_HOST_RECORDS = "('host_execution_event')"
_DEVICE_RECORDS = "('dispatch_event', 'queue_device_event')"

# local-sync releases a transient buffer with a queue barrier, and files are read and written by copies.
_KIND_OF_OP = "CASE op WHEN 'barrier' THEN 'dealloca' WHEN 'read' THEN 'copy' WHEN 'write' THEN 'copy' ELSE op END"


@dataclass(frozen=True, slots=True)
class Span:
    """When things happened, in ns on the host's monotonic clock.

    `first_ns`: the first submission; `measured_ns`: the first one after warm-up; `last_ns`: the last event's end.
    """

    first_ns: Integer
    measured_ns: Integer
    last_ns: Integer


@dataclass(frozen=True)
class Profile:
    """What a profile tells: the events as a table of DuckDB, the recorded command lists, and what was lost.

    `invocations` counts the calls of the entry point that could be told apart, warm-up included.
    """

    events: duckdb.DuckDBPyRelation
    event_count: int
    programs: tuple[tuple[RecordedCommand, ...], ...]
    buffers: tuple[RecordedBuffer, ...]
    clock: Clock
    invocations: Integer
    span: Span
    lost_records: int
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class WholeRecords:
    """How many bytes of an `.ireeprof` are whole records, its size, and whether its writer finished it."""

    end: int
    size: int
    finished: bool


def is_profile(path: Path) -> bool:
    """Whether a file begins as an `.ireeprof` does."""
    with path.open("rb") as file:
        return file.read(len(PROFILE_MAGIC)) == PROFILE_MAGIC


def whole_records(profile: Path) -> WholeRecords:
    """Walk an `.ireeprof` from record to record.

    Raises:
        RunEmpty: not one record is whole.
        RunInvalid: it is no `.ireeprof`.
    """
    size = profile.stat().st_size
    if size == 0:
        raise RunEmpty(f"{profile}: the profile is empty: nothing was recorded before the program ended")
    with profile.open("rb") as file:
        head = file.read(_FILE_HEADER_BYTES)
        if not head.startswith(PROFILE_MAGIC):
            raise RunInvalid(f"{profile}: not a profile of IREE (it does not begin with {PROFILE_MAGIC.decode()})")
        end = _FILE_HEADER_BYTES
        # Every record begins with its length as a little-endian u64, itself included.
        while len(length_bytes := file.read(8)) == 8:
            (length,) = struct.unpack("<Q", length_bytes)
            if length < 8 or end + length > size:
                break
            end += length
            file.seek(end)
    if end == _FILE_HEADER_BYTES:
        raise RunEmpty(f"{profile}: the profile holds no record: nothing was recorded, or the device cannot profile")
    (declared,) = struct.unpack_from("<Q", head, _FILE_LENGTH_OFFSET)
    return WholeRecords(end, size, finished=declared == end == size)


def copy_whole_records(profile: Path, target: Path) -> Diagnostic | None:
    """Copy the whole records of a profile that its writer did not finish; None, and no copy, if it did.

    Raises:
        RunEmpty: not one record is whole.
        RunInvalid: it is no `.ireeprof`.
    """
    whole = whole_records(profile)
    if whole.finished:
        return None
    shutil.copyfile(profile, target)
    with target.open("r+b") as file:
        file.truncate(whole.end)
        file.seek(_FILE_LENGTH_OFFSET)
        file.write(struct.pack("<Q", whole.end))
    return Diagnostic(
        "run-truncated",
        "the program that wrote the profile did not finish it: events after its last whole record are missing, "
        f"{plural(whole.size - whole.end, 'byte')} of half a record were cut off",
    )


def read_export(
    jsonl: Path,
    connection: duckdb.DuckDBPyConnection,
    *,
    invocations: Integer = UNKNOWN,
    warmup: int = 0,
    timed_flushes: bool = False,
) -> Profile:
    """Read what `iree-profile export --format=ireeperf-jsonl` wrote.

    Args:
        jsonl: the exported file.
        connection: holds the events until they are written; tables `profile_*` in it are overwritten.
        invocations: how often the entry point was called, warm-up included, where that is known.
        warmup: how many of the first invocations are warm-up.
        timed_flushes: the profile was also flushed on a timer, so its chunks are not the invocations.

    Raises:
        RunInvalid: it is no such export.
        RunVersion: it is of another schema version.
    """
    _load(jsonl, connection)
    return _profile(connection, invocations, warmup, timed_flushes)


def empty_profile(connection: duckdb.DuckDBPyConnection) -> Profile:
    """The profile of a program in which nothing was recorded because nothing ran."""
    fields = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in _FIELDS.items())
    connection.execute(f"CREATE OR REPLACE TEMP TABLE profile_records AS SELECT 0 AS row, {fields} LIMIT 0")
    return _profile(connection, UNKNOWN, 0, timed_flushes=False)


def _profile(connection: duckdb.DuckDBPyConnection, invocations: Integer, warmup: int, timed_flushes: bool) -> Profile:
    """Read the table `profile_records`."""
    clock, mixed = _clock(connection)
    told_apart = _number_invocations(connection, invocations, timed_flushes)
    _shape_events(connection, clock, warmup)
    _cover_executes(connection)
    programs, buffers = _programs(connection)
    lost, losses = _losses(connection)
    count = _integer(connection, "SELECT count(*) FROM profile_events")
    unknown = _invocation_diagnostics(count, told_apart, warmup)
    if invocations is UNKNOWN and told_apart is not UNKNOWN:
        # The last call of a killed program may have been submitted and never reported.
        told_apart = _integer(connection, "SELECT max(invocation) + 1 FROM profile_events")
    return Profile(
        # Workers report in the order in which they get to it, which need not be that of the work.
        events=connection.sql("SELECT * EXCLUDE row FROM profile_events ORDER BY start_ns, row"),
        event_count=count,
        programs=programs,
        buffers=buffers,
        clock=clock,
        invocations=told_apart,
        span=_span(connection, warmup),
        lost_records=lost,
        diagnostics=(*losses, *mixed, *_invalid_times(connection, clock), *unknown),
    )


def _load(jsonl: Path, connection: duckdb.DuckDBPyConnection) -> None:
    import duckdb

    fields = ", ".join(f"{name}: '{kind}'" for name, kind in _FIELDS.items())
    try:
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE profile_records AS SELECT row_number() OVER () AS row, * FROM "
            f"read_json({literal(str(jsonl))}, format='newline_delimited', columns={{{fields}}})"
        )
    except duckdb.Error as error:
        raise RunInvalid(f"{jsonl}: not an export of iree-profile: {_first_line(error)}") from error
    versions = connection.execute("SELECT DISTINCT schema_version FROM profile_records ORDER BY 1").fetchall()
    if not versions:
        raise RunEmpty(f"{jsonl}: the export of iree-profile is empty")
    for (version,) in versions:
        if version is None:
            raise RunInvalid(f"{jsonl}: not an export of iree-profile: a record has no schema_version")
        if version != EXPORT_SCHEMA_VERSION:
            raise RunVersion(
                f"{jsonl}: iree-profile exported schema version {version}, tracemap reads version "
                f"{EXPORT_SCHEMA_VERSION}; install the iree-base-runtime that tracemap asks for"
            )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _integer(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    return int(connection.execute(query).fetchall()[0][0] or 0)


def _clock(connection: duckdb.DuckDBPyConnection) -> tuple[Clock, list[Diagnostic]]:
    """The clock of the events. A process with host and device queues has both; their times must not be mixed."""
    host = _integer(connection, f"SELECT count(*) FROM profile_records WHERE record_type IN {_HOST_RECORDS}")
    device = _integer(connection, f"SELECT count(*) FROM profile_records WHERE record_type IN {_DEVICE_RECORDS}")
    if not device:
        return Clock.HOST, []
    if not host:
        return Clock.DEVICE, []
    text = f"{plural(host, 'event')} on the host's clock left out: the device's events are on a clock of their own"
    return Clock.DEVICE, [Diagnostic("clock-mixed", text)]


def _number_invocations(connection: duckdb.DuckDBPyConnection, invocations: Integer, timed_flushes: bool) -> Integer:
    """Make `profile_submissions`: every submission with the invocation it belongs to (NULL: cannot be told).

    IREE marks no invocations. But iree-benchmark-module flushes the profile once after each, so the chunks of
    submissions are the invocations, unless flushes on a timer cut them further; then equal repetition tells.
    """
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE profile_submissions AS SELECT physical_device_ordinal AS device, "
        "queue_ordinal AS queue, submission_id, op, operation_count, host_time_ns, command_buffer_id, "
        "dense_rank() OVER (ORDER BY source_record_index) - 1 AS chunk, "
        "row_number() OVER (ORDER BY row) - 1 AS place, CAST(NULL AS BIGINT) AS invocation "
        "FROM profile_records WHERE record_type = 'queue_event'"
    )
    chunks = _integer(connection, "SELECT count(DISTINCT chunk) FROM profile_submissions")
    total = _integer(connection, "SELECT count(*) FROM profile_submissions")
    if total == 0:
        return invocations
    if not timed_flushes and (chunks == invocations or (invocations is UNKNOWN and _repeats(connection, "chunk"))):
        connection.execute("UPDATE profile_submissions SET invocation = chunk")
        return chunks
    if isinstance(invocations, int) and invocations > 0 and total % invocations == 0:
        block = f"place // {total // invocations}"
        if _repeats(connection, block):
            connection.execute(f"UPDATE profile_submissions SET invocation = {block}")
            return invocations
    return UNKNOWN


def _repeats(connection: duckdb.DuckDBPyConnection, block: str) -> bool:
    """Whether all blocks of submissions are the same sequence of operations (the last may be cut short)."""
    texts = (
        f"SELECT {block} AS block, string_agg(op || operation_count, ' ' ORDER BY place) || ' ' AS text "
        "FROM profile_submissions GROUP BY 1"
    )
    differing = _integer(
        connection,
        f"WITH texts AS ({texts}), whole AS (SELECT text FROM texts ORDER BY block LIMIT 1) "
        "SELECT count(*) FROM texts, whole WHERE NOT CASE WHEN block = (SELECT max(block) FROM texts) "
        "THEN starts_with(whole.text, texts.text) ELSE whole.text = texts.text END",
    )
    return differing == 0


def _shape_events(connection: duckdb.DuckDBPyConnection, clock: Clock, warmup: int) -> None:
    """Make `profile_events`, with the columns of a run in their order; `row` is the place in the profile."""
    on_host = clock is Clock.HOST
    start = "start_host_time_ns" if on_host else "start_driver_host_cpu_time_ns"
    # One-shot buffers get a fresh id on each call; what repeats is their list of commands.
    _number_programs(connection)
    # Times over workers exist for tiles only: a row without tiles has no cpu time, which is not the same as 0.
    cpu = "CASE WHEN kind = 'dispatch' OR tile_duration_sum_ns > 0 THEN tile_duration_sum_ns END AS cpu_ns, "
    connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE profile_events AS
        WITH events AS (
            SELECT *, CASE WHEN record_type = 'dispatch_event' THEN 'dispatch' ELSE {_KIND_OF_OP} END AS kind
            FROM profile_records WHERE record_type IN {_HOST_RECORDS if on_host else _DEVICE_RECORDS}
        )
        SELECT row, kind, key AS kernel,
            CAST(nullif(events.command_buffer_id, 0) AS BIGINT) AS command_buffer_id,
            CAST(nullif(command_index, 4294967295) AS BIGINT) AS command_index,
            CAST(nullif(events.submission_id, 0) AS BIGINT) AS submission_id,
            CAST(NULL AS VARCHAR) AS site,
            row_number() OVER (
                PARTITION BY kind, key, coalesce(program, events.command_buffer_id::VARCHAR), command_index
                ORDER BY {start}, row) - 1 AS call,
            invocation,
            coalesce(invocation < {warmup}, false) AS warmup,
            {start} AS start_ns,
            CASE WHEN valid THEN duration_ns END AS duration_ns,
            {cpu if on_host else ""}
            CAST(NULL AS VARCHAR) AS thread,
            CAST(NULL AS BIGINT) AS cpu,
            {_workgroups()},
            CASE WHEN kind IN ('copy', 'fill', 'update') THEN CAST(payload_length AS BIGINT) END AS payload_bytes,
            CAST(NULL AS BIGINT) AS covered_ns
        FROM events
        LEFT JOIN (SELECT DISTINCT ON (device, queue, submission_id) * FROM profile_submissions ORDER BY place) AS s
            ON s.device = physical_device_ordinal AND s.queue = queue_ordinal
            AND s.submission_id = events.submission_id
        LEFT JOIN profile_one_shot ON profile_one_shot.id = events.command_buffer_id
    """)


def _cover_executes(connection: duckdb.DuckDBPyConnection) -> None:
    """Set `covered_ns`: the union of a submission's dispatches, clipped to it; on several workers they overlap."""
    connection.execute("""
        CREATE OR REPLACE TEMP TABLE profile_covered AS
        WITH span AS (SELECT row, submission_id, start_ns, start_ns + duration_ns AS end_ns FROM profile_events
                      WHERE kind = 'execute' AND duration_ns IS NOT NULL),
             part AS (SELECT span.row, greatest(event.start_ns, span.start_ns) AS s,
                             least(event.start_ns + event.duration_ns, span.end_ns) AS e
                      FROM span LEFT JOIN profile_events AS event
                      ON event.submission_id = span.submission_id AND event.kind = 'dispatch'),
             ordered AS (SELECT row, s, e, max(e) OVER (PARTITION BY row ORDER BY s, e
                                                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
                         FROM part)
        SELECT row, CAST(coalesce(sum(greatest(0, e - greatest(s, coalesce(reached, s)))), 0) AS BIGINT) AS covered
        FROM ordered GROUP BY row
    """)
    connection.execute(
        "UPDATE profile_events SET covered_ns = covered FROM profile_covered "
        "WHERE profile_covered.row = profile_events.row"
    )


def _workgroups() -> str:
    return ", ".join(
        f"CASE WHEN kind = 'dispatch' THEN workgroup_count[{place}] END AS workgroups_{axis}"
        for place, axis in enumerate("xyz", start=1)
    )


def _number_programs(connection: duckdb.DuckDBPyConnection) -> None:
    """Make `profile_buffers` (with the JSON text of each one's commands) and `profile_one_shot`."""
    connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE profile_buffers AS
        SELECT b.command_buffer_id AS id, any_value(b.mode & {_ONE_SHOT_BIT}) = {_ONE_SHOT_BIT} AS one_shot,
            to_json(coalesce(list([c.op, c.key, c.workgroup_count::VARCHAR] ORDER BY c.command_index)
                FILTER (c.op IS NOT NULL), [])) AS program
        FROM profile_records AS b
        LEFT JOIN (SELECT * FROM profile_records WHERE record_type = 'command_operation') AS c USING (command_buffer_id)
        WHERE b.record_type = 'command_buffer' GROUP BY id
    """)
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE profile_one_shot AS SELECT id, program FROM profile_buffers WHERE one_shot"
    )


def _programs(
    connection: duckdb.DuckDBPyConnection,
) -> tuple[tuple[tuple[RecordedCommand, ...], ...], tuple[RecordedBuffer, ...]]:
    """The distinct command lists, in the order of their first buffer, and the buffers in creation order."""
    texts = connection.execute("SELECT program FROM profile_buffers GROUP BY program ORDER BY min(id)").fetchall()
    numbers = {text: index for index, (text,) in enumerate(texts)}
    programs = tuple(tuple(_command(*command) for command in json.loads(text)) for text in numbers)
    rows = connection.execute("SELECT id, one_shot, program FROM profile_buffers ORDER BY id").fetchall()
    return programs, tuple(RecordedBuffer(id_, one_shot, numbers[text]) for id_, one_shot, text in rows)


def _command(kind: str, key: str | None, workgroups: str) -> RecordedCommand:
    if kind != "dispatch":
        return RecordedCommand(kind, UNKNOWN, ())
    return RecordedCommand(kind, UNKNOWN if key is None else key, tuple(json.loads(workgroups)))


def _losses(connection: duckdb.DuckDBPyConnection) -> tuple[int, list[Diagnostic]]:
    """How many records the runtime says it dropped, and a sentence for each kind of them."""
    rows = connection.execute(
        "SELECT category, regexp_extract(content_type, '[^.]*$'), count(*), sum(coalesce(dropped_records, 0)), "
        "any_value(message) FROM profile_records WHERE record_type = 'diagnostic' GROUP BY 1, 2 ORDER BY 1, 2"
    ).fetchall()
    diagnostics = [
        Diagnostic(
            "records-lost",
            f"{category} ({content}): {plural(int(dropped), 'record')} lost, {plural(int(times), 'time')}: {message}",
        )
        for category, content, times, dropped, message in rows
    ]
    return sum(max(int(dropped), int(times)) for _, _, times, dropped, _ in rows), diagnostics


def _invalid_times(connection: duckdb.DuckDBPyConnection, clock: Clock) -> list[Diagnostic]:
    kinds = _HOST_RECORDS if clock is Clock.HOST else _DEVICE_RECORDS
    count = _integer(
        connection,
        f"SELECT count(*) FROM profile_records WHERE record_type IN {kinds} AND NOT coalesce(valid, false)",
    )
    if not count:
        return []
    return [Diagnostic("times-invalid", f"{plural(count, 'event')} without a duration: the runtime marked it invalid")]


def _invocation_diagnostics(events: int, invocations: Integer, warmup: int) -> list[Diagnostic]:
    if events == 0 or invocations is not UNKNOWN:
        return []
    text = "the calls of the entry point cannot be told apart in the profile"
    if warmup:
        text += f"; the {format_count(warmup)} warm-up calls are therefore not marked and are counted as measured"
    return [Diagnostic("invocation-unknown", text)]


def _span(connection: duckdb.DuckDBPyConnection, warmup: int) -> Span:
    first, measured = connection.execute(
        f"SELECT min(host_time_ns), min(host_time_ns) FILTER (invocation >= {warmup}) FROM profile_submissions"
    ).fetchall()[0]
    ((last,),) = connection.execute(
        "SELECT max(greatest(end_host_time_ns, host_time_ns)) FROM profile_records "
        "WHERE record_type IN ('host_execution_event', 'queue_event')"
    ).fetchall()
    return Span(*(UNKNOWN if value is None else int(value) for value in (first, measured, last)))
