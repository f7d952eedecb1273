"""IREE's profiles: read whole, or while they grow."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunInvalid
from tracemap.core.units import UNKNOWN, Integer
from tracemap.runs.columns import LAUNCH
from tracemap.runs.events import EventTable
from tracemap.runs.ireeprof.calls import (
    CLOCKS,
    NOTHING_KNOWN,
    SINCE,
    KnownCalls,
    Span,
    begins_of_calls,
    connect_clocks,
    leave_out_unsubmitted,
    number_invocations,
    span_of_calls,
    unknown_invocations,
)
from tracemap.runs.ireeprof.records import (
    FILE_HEADER_BYTES,
    clock_of_events,
    cut_profile,
    drop_records,
    invalid_times,
    load_buffers,
    load_no_records,
    load_records,
    losses,
    programs_and_buffers,
    record_types,
)
from tracemap.runs.model import Clock, RecordedBuffer, RecordedCommand
from tracemap.runs.sql import damage_of, fill_table, first_integer, reading_errors

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


# ---- growing
#
# A profile that its program is still writing: the begin of each call, and where its records begin.
#
# iree-benchmark-module flushes the profile once after each call, so each chunk of submissions is a call. Its output
# goes through a buffer of about 32 KiB: the submissions of a call may appear long before its execution records. CPU
# devices write the submissions of a flush first; a device with its own clock writes clock correlations and dispatches
# first. This module knows only the necessary part of the format (`IRPF` 1.x); `iree-profile` reads complete files.


_EVENTS = b"-events"
"""Suffix of the content types of events. In each call, events come after records about new buffers."""
_SUBMISSIONS = b"application/vnd.iree.hal.profile.queue-events"
_CLOCKS = b"application/vnd.iree.hal.profile.clock-correlations"
_MAJOR_VERSION = 1
_VERSION = struct.Struct("<4xH")
_LENGTH = struct.Struct("<Q")
# In a record's header: the lengths of the header, of the content type, and of the name, which follow each other.
_LENGTHS = struct.Struct("<56x3I")
_SUBMITTED_NS = struct.Struct("<24xq")
"""In the first submission of a chunk: its time, on the host's monotonic clock."""
_READ_BYTES: Final = 16 << 20


class GrowingProfile:
    """The calls in a growing profile.

    Attributes:
        begins_ns: begin of each call, in order: its first submission, on the host's monotonic clock.
        places: file offset where each call's records begin, after the events of the previous call.
        bytes: size of the complete records read so far.
        end_of_events: file offset after the last event record, of returned calls or not.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read yet; the file may not exist."""
        self.begins_ns: list[int] = []
        self.places: list[int] = []
        self.bytes = 0
        self._path = path
        self.end_of_events = 0
        self._following: list[int] = []  # number of event records after the submissions, per call
        self._leading = b""  # content type of the first event record
        self._begun: int | None = None  # begin of a flush whose submissions are still missing

    @property
    def whole_calls(self) -> int:
        """Number of complete calls; the last one is complete if it has as many records as the one before."""
        calls = len(self.begins_ns)
        expected = self._following[-2] if calls > 1 else 1
        return calls - 1 if calls and self._following[-1] < expected else calls

    @property
    def end_of_calls(self) -> int:
        """File offset after the last call with known submissions, without a flush whose submissions are missing."""
        return self.end_of_events if self._begun is None else self._begun

    def read_on(self) -> None:
        """Read new records; a missing file, or one of another version, has no calls."""
        try:
            with self._path.open("rb") as file:
                if not self.bytes:
                    head = file.read(FILE_HEADER_BYTES)
                    if len(head) < FILE_HEADER_BYTES or _VERSION.unpack_from(head)[0] != _MAJOR_VERSION:
                        return
                    self.bytes = FILE_HEADER_BYTES
                file.seek(self.bytes)
                while self._process(file.read(_READ_BYTES)):
                    file.seek(self.bytes)
        except FileNotFoundError:
            return

    def _process(self, data: bytes) -> bool:
        """Process the complete records in a piece of the file; returns whether there were any."""
        base, done = self.bytes, 0
        for place, done in _whole_records(data):
            header_bytes, kind_bytes, name_bytes = _LENGTHS.unpack_from(data, place)
            payload = place + header_bytes + kind_bytes + name_bytes
            kind = data[place + header_bytes : payload - name_bytes]
            is_event = kind.endswith(_EVENTS)
            if is_event and not self._leading:
                self._leading = kind
            if self._begun is None and kind in {_CLOCKS, _SUBMISSIONS, self._leading}:
                self._begun = self.end_of_events
            if kind == _SUBMISSIONS and payload + _SUBMITTED_NS.size <= done:
                self.begins_ns.append(_SUBMITTED_NS.unpack_from(data, payload)[0])
                self.places.append(self._begun or 0)
                self._following.append(0)
                self._begun = None
            elif is_event and self._following and self._begun is None:
                self._following[-1] += 1
            if is_event:
                self.end_of_events = base + done
        self.bytes = base + done
        return done > 0

    def keep(self, calls: int) -> Integer:
        """Remove the records after the first calls, once the program has ended; returns the begin of the next call."""
        more = len(self.begins_ns) > calls
        cut_profile(self._path, self.places[calls] if more else self.end_of_calls)
        return self.begins_ns[calls] if more else UNKNOWN


def _whole_records(data: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each complete record."""
    place = 0
    while place + _LENGTHS.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, place)
        if length < _LENGTHS.size or place + length > len(data):
            return
        yield place, place + length
        place += length


# ---- profile
#
# Turn an exported profile into the events of a run, with diagnostics.


@dataclass(frozen=True)
class Profile:
    """A profile: events, recorded command lists, and losses.

    `invocations`: number of invocations that could be distinguished, warm-up included. `begins_ns`: begins of the
    invocations or batches. `on_host`: start times are on the host's monotonic clock, whichever clock measured the
    durations.
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
    """Read an export of `iree-profile export --format=ireeperf-jsonl`.

    Args:
        jsonl: the exported file.
        connection: the database for the events; tables `profile_*` in it are created and dropped.
        table: the name of the table of events.
        known: known facts about the calls.
        exported_from: the `.ireeprof`, to be named in messages; None: unknown.

    Raises:
        RunEmpty: it holds no record.
        RunInvalid: it is no such export, or a damaged one.
        RunVersion: another schema version.
    """
    source_name = exported_from or jsonl
    load_records(jsonl, connection, source_name)
    try:
        return _profile(connection, table, known)
    except reading_errors() as error:  # impossible times, malformed lists
        raise RunInvalid(f"{source_name}: a record of the profile is damaged: {damage_of(error)}") from error


def empty_profile(connection: duckdb.DuckDBPyConnection, table: str) -> Profile:
    """The profile of a program that ran nothing on a device."""
    load_no_records(connection)
    return _profile(connection, table, NOTHING_KNOWN)


def _profile(connection: duckdb.DuckDBPyConnection, table: str, known: KnownCalls) -> Profile:
    clock, mixed = clock_of_events(connection)
    distinguished = number_invocations(connection, known)
    lost, lost_diagnostics = losses(connection)
    incomplete = [] if lost else leave_out_unsubmitted(connection, clock)
    load_buffers(connection)
    clocks = connect_clocks(connection, clock)
    events = EventTable(connection, table, _events_sql(clock, known.warmup, on_host=clocks.is_whole))
    programs, buffers = programs_and_buffers(connection)
    event_count = events.count
    unknown = [unknown_invocations(known.warmup)] if event_count and distinguished is UNKNOWN else []
    if known.invocations is UNKNOWN and distinguished is not UNKNOWN:
        # The last call of a killed program may have been submitted, but not reported.
        distinguished = first_integer(connection, f"SELECT max(invocation) + 1 FROM {table}")
    begins_ns = begins_of_calls(connection, known.batch)
    time_diagnostics = (*clocks.diagnostics_of(begins_ns), *invalid_times(connection, clock))
    profile = Profile(
        events=events,
        event_count=event_count,
        programs=programs,
        buffers=buffers,
        clock=clock,
        invocations=distinguished,
        begins_ns=begins_ns,
        span=span_of_calls(connection, known.warmup),
        lost_records=lost,
        on_host=clocks.is_whole,
        diagnostics=(*lost_diagnostics, *mixed, *incomplete, *time_diagnostics, *unknown),
    )
    drop_records(connection)
    return profile


# The columns of a run in their order. Numbers missing in the profile are 0, or all ones.
# Each queue counts its submissions from 1. A run has no queues, so the numbers of later queues are shifted.
# local-sync releases a transient buffer with a queue barrier, and reads and writes files by copies.
_EVENT_RECORDS = """
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
    CASE WHEN kind IN ('copy', 'fill', 'update', 'alloca', 'dealloca') AND events.op <> 'barrier'
         THEN CAST(payload_length AS BIGINT) END AS payload_bytes,
    CAST(NULL AS BIGINT) AS covered_ns
FROM events
JOIN queues ON queues.device IS NOT DISTINCT FROM physical_device_ordinal
    AND queues.queue IS NOT DISTINCT FROM queue_ordinal
LEFT JOIN (SELECT DISTINCT ON (device, queue, submission_id) * FROM profile_submissions ORDER BY number) AS s
    ON s.device = physical_device_ordinal AND s.queue = queue_ordinal AND s.submission_id = events.submission_id
JOIN numbered USING (row)
{clocks}
"""

# Only tiles have a CPU time over workers: a row without tiles has none, which is not the same as 0.
_CPU_NS = "CASE WHEN kind = 'dispatch' OR tile_duration_sum_ns > 0 THEN tile_duration_sum_ns END AS cpu_ns,"


def _events_sql(clock: Clock, warmup: int, *, on_host: bool) -> str:
    by_host = clock is Clock.HOST
    is_converted = on_host and not by_host
    return _EVENT_RECORDS.format(
        record_types=record_types(clock),
        start_ns="start_host_time_ns" if by_host else "start_driver_host_cpu_time_ns",
        since=SINCE if is_converted else "",
        clocks=CLOCKS if is_converted else "",
        submitted_ns="CASE WHEN kind <> 'dispatch' THEN s.host_time_ns END" if on_host else "CAST(NULL AS BIGINT)",
        warmup=warmup,
        cpu_ns=_CPU_NS if by_host else "",
    )


# ---- joining
#
# Join the profiles of several processes that ran the same program, one after another, into the events of one run.
#
# Each process numbers its submissions and command buffers anew. Memoized buffers are made when the module is loaded, in
# the same order in each process. So a buffer with the same number and commands as in an earlier process is the same.


Program = tuple[RecordedCommand, ...]

_APPENDED_ROWS: Final = """
SELECT event.* EXCLUDE row REPLACE (
    coalesce(renamed.new_id, event.command_buffer_id) AS command_buffer_id,
    event.submission_id + before.submissions AS submission_id,
    event.invocation + before.invocations AS invocation{launch})
FROM {events} AS event
CROSS JOIN (SELECT coalesce(max(submission_id), 0) AS submissions, coalesce(max(invocation) + 1, 0) AS invocations
            FROM {before}) AS before
LEFT JOIN renamed_buffers AS renamed ON event.command_buffer_id = renamed.id
ORDER BY event.row
"""
_LATER_LAUNCHES: Final = f", event.{LAUNCH} + (SELECT coalesce(max({LAUNCH}) + 1, 0) FROM {{before}}) AS {LAUNCH}"
"""The order of launches goes on from process to process, in runs that have it."""
# As within a process, calls of a command are counted over all one-shot buffers with the same commands.
_RECOUNTED_CALLS: Final = """
(SELECT event.* REPLACE (row_number() OVER (
     PARTITION BY kind, kernel, coalesce(one_shot.program, -1 - command_buffer_id), command_index
     ORDER BY start_ns, row) - 1 AS call)
 FROM {events} AS event LEFT JOIN one_shot_buffers AS one_shot ON one_shot.id = command_buffer_id)
"""


@dataclass(frozen=True)
class JoinedProfiles:
    """The events of all profiles, the distinct command lists, and the buffers with unique numbers."""

    events: EventTable
    programs: tuple[Program, ...]
    buffers: tuple[RecordedBuffer, ...]


def join_profiles(profiles: Sequence[Profile]) -> JoinedProfiles:
    """Append the events of all profiles to those of the first; all are in one database and on one clock."""
    first = profiles[0]
    if len(profiles) == 1:
        return JoinedProfiles(first.events, first.programs, first.buffers)
    events, buffers = first.events, _Buffers(first)
    connection = events.connection
    for profile in profiles[1:]:
        renamed = buffers.add(profile)
        if not renamed:
            unlisted = _UNLISTED_BUFFERS.format(before=events.name, events=profile.events.name)
            renamed = [(int(number), int(new)) for number, new in connection.execute(unlisted).fetchall()]
        fill_table(connection, "renamed_buffers", {"id": "BIGINT", "new_id": "BIGINT"}, renamed)
        launch = _LATER_LAUNCHES.format(before=events.name) if LAUNCH in connection.table(events.name).columns else ""
        events.add_rows(_APPENDED_ROWS.format(events=profile.events.name, before=events.name, launch=launch))
        connection.execute(f"DROP TABLE {profile.events.name}")
    fill_table(connection, "one_shot_buffers", {"id": "BIGINT", "program": "BIGINT"}, buffers.one_shot)
    events.sort("row", _RECOUNTED_CALLS.format(events=events.name))
    connection.execute("DROP TABLE renamed_buffers; DROP TABLE one_shot_buffers")
    return JoinedProfiles(events, buffers.programs, buffers.in_order)


# For devices that do not list their buffers: a buffer executed in only one call is a one-shot buffer.
_UNLISTED_BUFFERS: Final = """
SELECT command_buffer_id, command_buffer_id + (SELECT coalesce(max(command_buffer_id), 0) FROM {before})
FROM {events} WHERE command_buffer_id IS NOT NULL GROUP BY ALL HAVING count(DISTINCT invocation) = 1
"""


class _Buffers:
    """The command buffers of all processes so far, with their numbers in the joined run."""

    def __init__(self, first: Profile) -> None:
        self._number_of: dict[Program, int] = {program: number for number, program in enumerate(first.programs)}
        self._buffers = {buffer.id: buffer for buffer in first.buffers}

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(self._number_of)

    @property
    def in_order(self) -> tuple[RecordedBuffer, ...]:
        return tuple(self._buffers[number] for number in sorted(self._buffers))

    @property
    def one_shot(self) -> list[tuple[int, int]]:
        return [(buffer.id, buffer.program) for buffer in self._buffers.values() if buffer.one_shot]

    def add(self, profile: Profile) -> list[tuple[int, int]]:
        """Add the buffers of another process; returns pairs of its own buffer number and the joined one."""
        programs = [self._number_of.setdefault(program, len(self._number_of)) for program in profile.programs]
        last = max((*self._buffers, *(buffer.id for buffer in profile.buffers)), default=0)
        renamed = []
        for buffer in profile.buffers:
            joined_buffer = RecordedBuffer(buffer.id, buffer.one_shot, programs[buffer.program])
            if buffer.one_shot or self._buffers.setdefault(buffer.id, joined_buffer) != joined_buffer:
                joined_buffer = RecordedBuffer(last + buffer.id, buffer.one_shot, joined_buffer.program)
                self._buffers[joined_buffer.id] = joined_buffer
            renamed.append((buffer.id, joined_buffer.id))
        return renamed
