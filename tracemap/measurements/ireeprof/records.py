"""The records of an exported profile as a table of DuckDB, which never passes through Python row by row.

This module knows the export's schema. Rows of all record types are in one table, `profile_records`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunEmpty, RunInvalid, RunVersion
from tracemap.measurements.header import Clock
from tracemap.measurements.sql import first_line, literal, reading_errors
from tracemap.units import plural

if TYPE_CHECKING:
    import duckdb

EXPORT_SCHEMA_VERSION: Final = 15
"""The version of ireeperf-jsonl whose fields are read here."""

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


def load_records(jsonl: Path, connection: duckdb.DuckDBPyConnection, named: Path) -> None:
    """Make `profile_records` of an export; messages name the file `named`.

    Raises:
        RunEmpty: it holds no record.
        RunInvalid: it is no such export.
        RunVersion: it is of another schema version.
    """
    fields = ", ".join(f"{name}: '{kind}'" for name, kind in _FIELDS.items())
    try:
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE profile_records AS SELECT row_number() OVER () AS row, * FROM "
            f"read_json({literal(str(jsonl))}, format='newline_delimited', columns={{{fields}}})"
        )
    except reading_errors() as error:
        raise RunInvalid(f"{named}: not an export of iree-profile: {first_line(error)}") from error
    versions = connection.execute("SELECT DISTINCT schema_version FROM profile_records ORDER BY 1").fetchall()
    if not versions:
        raise RunEmpty(f"{named}: the export of iree-profile is empty")
    for (version,) in versions:
        if version is None:
            raise RunInvalid(f"{named}: not an export of iree-profile: a record has no schema_version")
        if version != EXPORT_SCHEMA_VERSION:
            raise RunVersion(
                f"{named}: iree-profile exported schema version {version}, tracemap reads version "
                f"{EXPORT_SCHEMA_VERSION}; install the iree-base-runtime that tracemap asks for"
            )


def load_no_records(connection: duckdb.DuckDBPyConnection) -> None:
    """Make an empty `profile_records`."""
    fields = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in _FIELDS.items())
    connection.execute(f"CREATE OR REPLACE TEMP TABLE profile_records AS SELECT 0 AS row, {fields} LIMIT 0")


def first_integer(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    """The one number that a query answers; 0 for NULL."""
    return int(connection.execute(query).fetchall()[0][0] or 0)


def record_types(clock: Clock) -> str:
    """The types of the records that are events on a clock, as an SQL list."""
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
    text = f"{plural(host, 'event')} on the host's clock left out: the device's events are on a clock of their own"
    return Clock.DEVICE, [Diagnostic("clock-mixed", text)]


_LOSSES = """
SELECT category, regexp_extract(content_type, '[^.]*$'), count(*), sum(coalesce(dropped_records, 0)), any_value(message)
FROM profile_records WHERE record_type = 'diagnostic' GROUP BY 1, 2 ORDER BY 1, 2
"""


def losses(connection: duckdb.DuckDBPyConnection) -> tuple[int, list[Diagnostic]]:
    """How many records the runtime says it dropped, and a sentence for each kind of them."""
    rows = connection.execute(_LOSSES).fetchall()
    diagnostics = [
        Diagnostic(
            "records-lost",
            f"{category} ({content}): {plural(int(dropped), 'record')} lost, {plural(int(times), 'time')}: {message}",
        )
        for category, content, times, dropped, message in rows
    ]
    return sum(max(int(dropped), int(times)) for _, _, times, dropped, _ in rows), diagnostics


def invalid_times(connection: duckdb.DuckDBPyConnection, clock: Clock) -> list[Diagnostic]:
    """A sentence where events have no duration."""
    count = first_integer(
        connection,
        f"SELECT count(*) FROM profile_records WHERE record_type IN {record_types(clock)} "
        "AND NOT coalesce(valid, false)",
    )
    if not count:
        return []
    text = f"{plural(count, 'event')} without a duration: the runtime marked it invalid"
    return [Diagnostic("times-invalid", text)]
