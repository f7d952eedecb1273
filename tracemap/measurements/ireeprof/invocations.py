"""Which call of the entry point each submission of a profile belongs to. IREE itself marks no calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracemap.diagnostics import Diagnostic
from tracemap.measurements.ireeprof.records import first_integer
from tracemap.units import UNKNOWN, Integer, format_count

if TYPE_CHECKING:
    import duckdb


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
CREATE OR REPLACE TEMP TABLE profile_submissions AS
SELECT physical_device_ordinal AS device, queue_ordinal AS queue, submission_id, op, operation_count, host_time_ns,
    command_buffer_id, dense_rank() OVER (ORDER BY source_record_index) - 1 AS chunk,
    row_number() OVER (ORDER BY row) - 1 AS number, CAST(NULL AS BIGINT) AS invocation
FROM profile_records WHERE record_type = 'queue_event'
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
    unless flushes on a timer cut them further; then equal repetition tells.

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
