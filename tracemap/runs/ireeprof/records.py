"""The records of a profile: complete records of an `.ireeprof`, and its export as a DuckDB table.

Records never pass through Python row by row. This module knows the export's schema. Rows of all record types are in one
table, `profile_records`, in order of their `rowid`.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tracemap.core.diagnostics import RECORDS_LOST, Diagnostic
from tracemap.core.errors import RunEmpty, RunInvalid, RunVersion, raising_unreadable
from tracemap.core.files import open_stored_file
from tracemap.core.units import UNKNOWN, format_count, join_names, plural
from tracemap.runs.model import Clock, RecordedBuffer, RecordedCommand
from tracemap.runs.sql import damage_of, first_integer, keep_compressed, reader_call, reading_errors

if TYPE_CHECKING:
    import duckdb


_MAGIC = b"IRPF"
FILE_HEADER_BYTES: Final = 24
"""Size of the header of an `.ireeprof`. Each record begins with its length as a little-endian u64, itself included."""
_FILE_LENGTH_OFFSET = 16


class WholeRecords(msgspec.Struct, frozen=True):
    """Size of the complete records of an `.ireeprof`, its file size, and whether its writer finished it."""

    end: int
    size: int
    finished: bool


def whole_records(profile: Path) -> WholeRecords:
    """Walk an `.ireeprof` from record to record.

    Raises:
        RunEmpty: no complete record, or no file: a program without records creates none.
        RunInvalid: it is no `.ireeprof`, or cannot be read.
    """
    with raising_unreadable(profile, RunInvalid):
        if not profile.exists():
            raise RunEmpty(f"{profile}: there is no such file: nothing was recorded")
        size = profile.stat().st_size
    if size == 0:
        raise RunEmpty(f"{profile}: the profile is empty: nothing was recorded before the program ended")
    with open_stored_file(profile, RunInvalid) as file:
        head = file.read(FILE_HEADER_BYTES)
        if not head.startswith(_MAGIC):
            raise RunInvalid(f"{profile}: not a profile of IREE (it does not begin with {_MAGIC.decode()})")
        end = FILE_HEADER_BYTES
        while len(length_bytes := file.read(8)) == 8:
            (length,) = struct.unpack("<Q", length_bytes)
            if length < 8 or end + length > size:
                break
            end += length
            file.seek(end)
    if end == FILE_HEADER_BYTES:
        raise RunEmpty(f"{profile}: the profile holds no record: nothing was recorded, or the device cannot profile")
    (declared,) = struct.unpack_from("<Q", head, _FILE_LENGTH_OFFSET)
    return WholeRecords(end, size, finished=declared == end == size)


def copy_whole_records(profile: Path, target: Path) -> Diagnostic | None:
    """Copy the complete records of an unfinished profile; None, and no copy, if it is finished.

    Raises:
        RunEmpty: no record is complete.
        RunInvalid: it is no `.ireeprof`.
    """
    whole = whole_records(profile)
    if whole.finished:
        return None
    shutil.copyfile(profile, target)
    cut_profile(target, whole.end)
    return Diagnostic(
        "run-truncated",
        "the profile is not whole (the program was ended, its disk was full, or the file was cut): events after its "
        f"last complete record are missing, and {plural(whole.size - whole.end, 'byte')} of half a record left out",
    )


def cut_profile(profile: Path, end: int) -> None:
    """Truncate a profile to its first `end` bytes, which are complete records, and fix the length in its header."""
    with profile.open("r+b") as file:
        file.truncate(end)
        file.seek(_FILE_LENGTH_OFFSET)
        file.write(struct.pack("<Q", end))


# ---- the records of an export


EXPORT_MEMORY: Final = 420_000_000
"""Memory for a database to process an export of any size at a good speed; the rest is spilled to disk."""
_MAX_IN_MEMORY = EXPORT_MEMORY
"""Size of an export whose records, about half as large, fit into that memory with the derived tables."""
EXPORT_SCHEMA_VERSION: Final = 15
"""The supported version of ireeperf-jsonl."""

# All fields that are read, over all record types; fields that a record does not have are NULL.
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
    "host_cpu_timestamp_ns": "BIGINT",
    "host_time_begin_ns": "BIGINT",
    "host_time_end_ns": "BIGINT",
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

_NEEDED: Final = {
    "queue_event": ("submission_id", "op", "host_time_ns"),
    "host_execution_event": ("submission_id", "op", "start_host_time_ns", "end_host_time_ns"),
    "dispatch_event": ("submission_id",),
    "queue_device_event": ("submission_id", "op"),
}
"""Fields of records of events without which nothing can be read. Newer schema versions need to have them."""

_HOST_RECORDS = "('host_execution_event')"
_DEVICE_RECORDS = "('dispatch_event', 'queue_device_event')"


def load_records(jsonl: Path, connection: duckdb.DuckDBPyConnection, named: Path) -> None:
    """Make `profile_records` from an export; messages name the file `named`.

    Raises:
        RunEmpty: it holds no record.
        RunInvalid: it is no such export.
        RunVersion: another schema version.
    """
    fields = ", ".join(f"{name}: '{kind}'" for name, kind in _FIELDS.items())
    if jsonl.stat().st_size > _MAX_IN_MEMORY:
        keep_compressed(connection)
    try:
        connection.execute(
            "CREATE OR REPLACE TABLE profile_records AS FROM "
            + reader_call("read_json", jsonl, f"format='newline_delimited', columns={{{fields}}}")
        )
    except reading_errors() as error:
        raise RunInvalid(f"{named}: not an export of iree-profile: {damage_of(error)}") from error
    versions = connection.execute("SELECT DISTINCT schema_version FROM profile_records ORDER BY 1").fetchall()
    if not versions:
        raise RunEmpty(f"{named}: the export of iree-profile is empty")
    for (version,) in versions:
        if version is None:
            raise RunInvalid(f"{named}: not an export of iree-profile: a record has no schema_version")
        reason = _unreadable(connection, version)
        if reason:
            raise RunVersion(
                f"{named}: iree-profile exported schema version {version}, {reason}; tracemap reads version "
                f"{EXPORT_SCHEMA_VERSION} and newer ones with the same fields, so install an iree-base-runtime with one"
            )


def _unreadable(connection: duckdb.DuckDBPyConnection, version: int) -> str:
    """The reason why records of a schema version cannot be read, such as a missing field; "": they can."""
    if version < EXPORT_SCHEMA_VERSION:
        return "which is older"
    if version == EXPORT_SCHEMA_VERSION:
        return ""
    counts = ", ".join(
        f"count(*) FILTER (record_type = '{kind}') AS records, count({field}) FILTER (record_type = '{kind}') AS filled"
        for kind, fields in _NEEDED.items()
        for field in fields
    )
    row = connection.execute(f"SELECT {counts} FROM profile_records").fetchone()
    assert row is not None  # an aggregate has one row
    needed = [(kind, field) for kind, fields in _NEEDED.items() for field in fields]
    for (kind, field), records, filled in zip(needed, row[::2], row[1::2], strict=True):
        if records and not filled:
            return f"in which no {kind} has the field {field}"
    return "" if any(row) else f"which has no {join_names(list(_NEEDED), ' or ')}"


def drop_records(connection: duckdb.DuckDBPyConnection) -> None:
    """Drop the tables of an export, which take more space than the events."""
    for name in ("profile_records", "profile_submissions", "profile_buffers", "profile_clocks"):
        connection.execute(f"DROP TABLE IF EXISTS {name}")


def load_no_records(connection: duckdb.DuckDBPyConnection) -> None:
    """Make an empty `profile_records`."""
    fields = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in _FIELDS.items())
    connection.execute(f"CREATE OR REPLACE TABLE profile_records AS SELECT {fields} LIMIT 0")


def record_types(clock: Clock) -> str:
    """The record types of events on a clock, as an SQL list."""
    return _HOST_RECORDS if clock is Clock.HOST else _DEVICE_RECORDS


def clock_of_events(connection: duckdb.DuckDBPyConnection) -> tuple[Clock, list[Diagnostic]]:
    """The clock of the events. A process with host and device queues has both; their times must not be mixed."""
    host, device = (
        first_integer(connection, f"SELECT count(*) FROM profile_records WHERE record_type IN {types}")
        for types in (_HOST_RECORDS, _DEVICE_RECORDS)
    )
    if not device:
        return Clock.HOST, []
    if not host:
        return Clock.DEVICE, []
    text = f"left out {plural(host, 'event')} on the host's clock, since the device's events have their own clock"
    return Clock.DEVICE, [Diagnostic("clock-mixed", text)]


# A chunk of `host-execution-events` holds records of the type `host_execution_event`.
_LOSSES = """
SELECT category, content, count(*), sum(coalesce(dropped_records, 0)), any_value(message),
    (SELECT count(*) FROM profile_records AS kept
     WHERE kept.record_type = rtrim(replace(diagnostics.content, '-', '_'), 's'))
FROM (SELECT *, regexp_extract(content_type, '[^.]*$') AS content FROM profile_records
      WHERE record_type = 'diagnostic') AS diagnostics
GROUP BY 1, 2 ORDER BY 1, 2
"""


def losses(connection: duckdb.DuckDBPyConnection) -> tuple[int, list[Diagnostic]]:
    """The number of records that the runtime dropped, and a diagnostic per kind."""
    total, diagnostics = 0, []
    for category, content, times, dropped, message, kept in connection.execute(_LOSSES).fetchall():
        of_total = f"{format_count(int(dropped))} of " if kept else ""
        text = (
            f"{category} ({content}): {of_total}{plural(int(dropped) + kept, 'record')} lost, "
            f"{plural(int(times), 'time')}: {message}; costs and numbers of calls cover only the rest"
        )
        diagnostics.append(Diagnostic(RECORDS_LOST, text))
        total += max(int(dropped), int(times))
    return total, diagnostics


def invalid_times(connection: duckdb.DuckDBPyConnection, clock: Clock) -> list[Diagnostic]:
    """Diagnostics about events without a duration."""
    kinds = {
        "times-invalid": ("NOT coalesce(valid, false)", "the runtime marked it invalid"),
        "clock-unconnected": (
            "valid AND duration_ns IS NULL",
            "the profile cannot convert ticks of the device's clock to nanoseconds",
        ),
    }
    events = f"FROM profile_records WHERE record_type IN {record_types(clock)}"
    return [
        Diagnostic(slug, f"{plural(count, 'event')} without a duration: {why}")
        for slug, (condition, why) in kinds.items()
        if (count := first_integer(connection, f"SELECT count(*) {events} AND {condition}"))
    ]


# ---- command buffers and their command lists


_ONE_SHOT_BIT = 1
# One-shot buffers get a new id on each call; their list of commands, the *program*, repeats. A long run has millions of
# commands in few programs, so lists are compared by their length and two sums of hashes. Different lists agree in these
# once in 10^19 pairs.
_BUFFERS = f"""
CREATE OR REPLACE TABLE profile_buffers AS
WITH buffer AS (
    SELECT command_buffer_id AS id, any_value(mode & {_ONE_SHOT_BIT}) = {_ONE_SHOT_BIT} AS one_shot
    FROM profile_records WHERE record_type = 'command_buffer' GROUP BY id
), listed AS (
    SELECT command_buffer_id AS id, count(*) AS commands, bit_xor(number) AS mixed, sum(number) AS summed
    FROM (SELECT command_buffer_id, hash(command_index, op, key, workgroup_count) AS number
          FROM profile_records WHERE record_type = 'command_operation' AND op IS NOT NULL)
    GROUP BY id
), first AS (
    SELECT *, min(id) OVER (PARTITION BY commands, mixed, summed) AS first_id FROM buffer LEFT JOIN listed USING (id)
)
SELECT id, one_shot, first_id, CAST(dense_rank() OVER (ORDER BY first_id) - 1 AS BIGINT) AS program FROM first
"""
_PROGRAMS = """
SELECT program, c.op, c.key, c.workgroup_count
FROM (SELECT DISTINCT program, first_id FROM profile_buffers) AS programs
LEFT JOIN (SELECT *, rowid AS row FROM profile_records WHERE record_type = 'command_operation') AS c
    ON c.command_buffer_id = programs.first_id
ORDER BY program, c.command_index, c.row
"""


def load_buffers(connection: duckdb.DuckDBPyConnection) -> None:
    """Make `profile_buffers`: every buffer with the index of its program, from 0 in order of appearance."""
    connection.execute(_BUFFERS)


def programs_and_buffers(
    connection: duckdb.DuckDBPyConnection,
) -> tuple[tuple[tuple[RecordedCommand, ...], ...], tuple[RecordedBuffer, ...]]:
    """The distinct command lists, in the order of their first buffer, and the buffers in creation order."""
    programs: dict[int, list[RecordedCommand]] = {}
    for number, kind, key, workgroups in connection.execute(_PROGRAMS).fetchall():
        commands = programs.setdefault(number, [])
        if kind is not None:
            commands.append(_command(kind, key, workgroups))
    rows = connection.execute("SELECT id, one_shot, program FROM profile_buffers ORDER BY id").fetchall()
    return tuple(map(tuple, programs.values())), tuple(RecordedBuffer(*row) for row in rows)


def _command(kind: str, key: str | None, workgroups: Sequence[int | None] | None) -> RecordedCommand:
    if kind != "dispatch":
        return RecordedCommand(kind, UNKNOWN, ())
    counts = tuple(count for count in workgroups or () if count is not None)
    if len(counts) < len(workgroups or ()):
        raise ValueError("a command's workgroup_count lacks a number")
    return RecordedCommand(kind, UNKNOWN if key is None else key, counts)
