"""Invocations in a profile: which events belong to them, and their times on the host's clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.units import UNKNOWN, Integer, format_ns, plural
from tracemap.runs.ireeprof.records import record_types
from tracemap.runs.model import Clock
from tracemap.runs.sql import fill_table, first_integer

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


# ---- clocks
#
# Convert the clock of a device's driver to the host's, by correlation records that hold both.
#
# Each record has one reading of the driver's clock between two readings of the host's, so the offset between the
# clocks lies between two bounds. If one offset fits the bounds of all records, the clocks run at the same rate, and the
# offset is known more precisely than by any single record. Otherwise it is interpolated between records.


_SAMPLES: Final = """
SELECT physical_device_ordinal AS device, host_cpu_timestamp_ns AS driver_ns,
    host_time_begin_ns - host_cpu_timestamp_ns AS least, host_time_end_ns - host_cpu_timestamp_ns AS most
FROM profile_records WHERE record_type = 'clock_correlation' AND physical_device_ordinal IS NOT NULL
    AND host_cpu_timestamp_ns > 0 AND host_time_begin_ns > 0 AND host_time_end_ns >= host_time_begin_ns
ORDER BY device, driver_ns
"""
_UNSAMPLED: Final = """
SELECT count(*) FROM profile_records WHERE record_type IN {types}
AND coalesce(physical_device_ordinal NOT IN (SELECT device FROM profile_clocks), true)
"""
SINCE: Final = (
    " + clocks.offset_ns + CAST(round(clocks.slope * (start_driver_host_cpu_time_ns - clocks.at_ns)) AS BIGINT)"
)
"""SQL that converts the start of an event to the host's clock."""
CLOCKS: Final = """
ASOF LEFT JOIN profile_clocks AS clocks ON clocks.device = physical_device_ordinal
    AND start_driver_host_cpu_time_ns >= clocks.at_ns
"""
_NEGLIGIBLE: Final = 0.01
"""Largest error that needs no diagnostic, as a part of a call."""
_SINCE_EVER: Final = -(2**62)
_COLUMNS: Final = {"device": "UBIGINT", "at_ns": "BIGINT", "offset_ns": "BIGINT", "slope": "DOUBLE"}


@dataclass(frozen=True, slots=True)
class Connection:
    """Whether all events are converted to the host's clock, from how many records, and with which error."""

    is_whole: bool
    records: int = 0
    error_ns: int = 0

    def diagnostics_of(self, begins_ns: npt.NDArray[Any]) -> list[Diagnostic]:
        """The diagnostic if calls are so short that the error matters; `begins_ns`: begins of the calls."""
        import numpy as np

        call_ns = float(np.median(np.diff(begins_ns))) if len(begins_ns) > 1 else math.inf
        if self.error_ns <= _NEGLIGIBLE * call_ns:
            return []
        text = (
            f"device times on the host's clock are uncertain by {format_ns(self.error_ns)} (from "
            f"{plural(self.records, 'correlation record')}), so parts of the elapsed time may be off by that per call"
        )
        return [Diagnostic("clocks-loosely-connected", text)]


def connect_clocks(connection: duckdb.DuckDBPyConnection, clock: Clock) -> Connection:
    """Make `profile_clocks`, which converts times of a device to the host's clock."""
    if clock is Clock.HOST:
        return Connection(is_whole=True)
    import numpy as np

    samples = connection.execute(_SAMPLES).fetchnumpy()
    rows, error_ns = [], 0
    for device in np.unique(samples["device"]):
        is_own = samples["device"] == device
        begins, error = _segments(samples["driver_ns"][is_own], samples["least"][is_own], samples["most"][is_own])
        rows += [(int(device), *segment) for segment in begins]
        error_ns = max(error_ns, error)
    fill_table(connection, "profile_clocks", _COLUMNS, rows)
    if not rows or first_integer(connection, _UNSAMPLED.format(types=record_types(clock))):
        return Connection(is_whole=False)
    return Connection(is_whole=True, records=len(samples["device"]), error_ns=error_ns)


def _segments(
    driver_ns: npt.NDArray[Any], least: npt.NDArray[Any], most: npt.NDArray[Any]
) -> tuple[list[tuple[int, int, float]], int]:
    """Begin, offset and slope of each segment of the conversion, and its error."""
    import numpy as np

    low, high = int(least.max()), int(most.min())
    if low <= high:
        offset = 0 if low <= 0 <= high else (low + high) // 2  # prefer the assumption that both are the same clock
        return [(_SINCE_EVER, offset, 0.0)], max(high - offset, offset - low)
    widths = most - least
    is_sample = (widths <= np.median(widths)) & (np.diff(driver_ns, prepend=driver_ns[0] - 1) > 0)
    at, middle = driver_ns[is_sample], least[is_sample] + widths[is_sample] // 2
    slopes = np.append(np.diff(middle) / np.diff(at), 0.0)
    segments = zip(at.tolist(), middle.tolist(), slopes.tolist(), strict=True)
    return [(_SINCE_EVER, int(middle[0]), 0.0), *segments], int(widths[is_sample].max() + 1) // 2


# ---- invocations
#
# The invocation that each submission belongs to, and the times of invocations. IREE itself does not mark invocations.


@dataclass(frozen=True, slots=True)
class KnownCalls:
    """Known facts about the calls, from the code that ran the program.

    `invocations`: number of calls, warm-up included. `warmup`: number of warm-up calls. `timed_flushes`: the profile
    was also flushed on a timer, so its chunks are not calls. `batch`: calls between two flushes; a chunk then has the
    submissions of all of them, one call after another.
    """

    invocations: Integer = UNKNOWN
    warmup: int = 0
    timed_flushes: bool = False
    batch: int = 1


NOTHING_KNOWN: Final = KnownCalls()
"""For a profile from elsewhere."""


@dataclass(frozen=True, slots=True)
class Span:
    """Times in ns on the host's monotonic clock.

    `first_ns`: the first submission. `measured_ns`: the first submission after the warm-up. `last_ns`: the end of the
    last event.
    """

    first_ns: Integer
    measured_ns: Integer
    last_ns: Integer


# Records are in the order in which submissions became ready; the host's clock gives the order in which they were made.
_SUBMISSIONS = """
CREATE OR REPLACE TABLE profile_submissions AS
SELECT physical_device_ordinal AS device, queue_ordinal AS queue, submission_id, op, operation_count, host_time_ns,
    command_buffer_id, dense_rank() OVER (ORDER BY source_record_index) - 1 AS chunk,
    row_number() OVER (ORDER BY host_time_ns, rowid) - 1 AS number, CAST(NULL AS BIGINT) AS invocation
FROM profile_records WHERE record_type = 'queue_event'
"""

_MOST_CHUNKS = """
SELECT max(chunks) FROM (SELECT count(DISTINCT chunk) AS chunks FROM profile_submissions GROUP BY device, queue)
"""

_DIFFERING_BLOCKS = """
WITH texts AS (SELECT {block} AS block,
                      string_agg(op || operation_count, ' ' ORDER BY device, queue, submission_id) || ' ' AS text
               FROM profile_submissions GROUP BY 1),
     whole AS (SELECT text FROM texts ORDER BY block LIMIT 1)
SELECT count(*) FROM texts, whole
WHERE NOT CASE WHEN block = (SELECT max(block) FROM texts) THEN starts_with(whole.text, texts.text)
          ELSE whole.text = texts.text END
"""


def number_invocations(connection: duckdb.DuckDBPyConnection, known: KnownCalls) -> Integer:
    """Make `profile_submissions`: every submission with its invocation (NULL: unknown).

    iree-benchmark-module flushes the profile once after each call, so the chunks of submissions are the invocations.
    Flushes on a timer split them further; then the equal repetition of submissions shows the invocations. If a queue
    was flushed more often than there are known calls, other calls were made too, and they cannot be distinguished.

    Returns:
        The number of invocations that could be distinguished.
    """
    connection.execute(_SUBMISSIONS)
    chunks = first_integer(connection, "SELECT count(DISTINCT chunk) FROM profile_submissions")
    total = first_integer(connection, "SELECT count(*) FROM profile_submissions")
    invocations = known.invocations
    if total == 0:
        return invocations
    if not known.timed_flushes and (invocations in (UNKNOWN, chunks * known.batch)):
        block = "chunk"
        if known.batch > 1:
            query = "SELECT min(n), max(n) FROM (SELECT count(*) AS n FROM profile_submissions GROUP BY chunk)"
            ((fewest, most),) = connection.execute(query).fetchall()
            # The submissions of chunks must divide into batches.
            block = "" if fewest != most or most % known.batch else f"number // {most // known.batch}"
        # The number of calls alone proves that chunks are calls. Within a chunk, calls show by equal repetition.
        is_known = known.batch == 1 and invocations == chunks
        if block and (is_known or _repeats(connection, block)):
            connection.execute(f"UPDATE profile_submissions SET invocation = {block}")
            return chunks * known.batch
    if not isinstance(invocations, int):
        return UNKNOWN
    if not known.timed_flushes and first_integer(connection, _MOST_CHUNKS) * known.batch > invocations:
        return UNKNOWN
    if invocations > 0 and total % invocations == 0:  # by the number of calls alone, if all calls do the same
        block = f"number // {total // invocations}"
        if _repeats(connection, block):
            connection.execute(f"UPDATE profile_submissions SET invocation = {block}")
            return invocations
    return UNKNOWN


def _repeats(connection: duckdb.DuckDBPyConnection, block: str) -> bool:
    """Whether all blocks of submissions are the same sequence of operations (the last may be cut short)."""
    return first_integer(connection, _DIFFERING_BLOCKS.format(block=block)) == 0


def unknown_invocations(warmup: int) -> Diagnostic:
    """The diagnostic for a profile whose invocations cannot be distinguished."""
    text = "invocations cannot be distinguished in the profile"
    if warmup:
        text += f"; {plural(warmup, 'warm-up invocation')} cannot be marked, so reports count all as measured"
    return Diagnostic("invocation-unknown", text)


def span_of_calls(connection: duckdb.DuckDBPyConnection, warmup: int) -> Span:
    """Begin and end of the calls."""
    first, measured = connection.execute(
        f"SELECT min(host_time_ns), min(host_time_ns) FILTER (invocation >= {warmup}) FROM profile_submissions"
    ).fetchall()[0]
    ((last,),) = connection.execute(
        "SELECT max(greatest(end_host_time_ns, host_time_ns)) FROM profile_records "
        "WHERE record_type IN ('host_execution_event', 'queue_event')"
    ).fetchall()
    return Span(*(UNKNOWN if value is None else int(value) for value in (first, measured, last)))


def begins_of_calls(connection: duckdb.DuckDBPyConnection, batch: int) -> npt.NDArray[Any]:
    """Begin of each call or batch: its first submission, in ns on the host's monotonic clock."""
    query = (
        f"SELECT min(host_time_ns) AS ns FROM profile_submissions WHERE invocation IS NOT NULL "
        f"GROUP BY invocation // {batch} ORDER BY invocation // {batch}"
    )
    begins: npt.NDArray[Any] = connection.execute(query).fetchnumpy()["ns"]
    return begins.astype("int64")


_UNSUBMITTED: Final = """
FROM profile_records WHERE record_type IN {types} AND submission_id > (
    SELECT max(submission_id) FROM profile_submissions
    WHERE device = physical_device_ordinal AND queue = queue_ordinal)
"""


def leave_out_unsubmitted(connection: duckdb.DuckDBPyConnection, clock: Clock) -> list[Diagnostic]:
    """Remove events after the last recorded submission, as when the program was ended.

    A device writes the dispatches of a call before its submissions, so those of the last call may be there alone.
    """
    if clock is Clock.HOST:
        return []
    unsubmitted = _UNSUBMITTED.format(types=record_types(clock))
    count = first_integer(connection, f"SELECT count(*) {unsubmitted}")
    if not count:
        return []
    connection.execute(f"DELETE {unsubmitted}")
    text = f"left out {plural(count, 'event')} of an incomplete last call: its submissions are not in the profile"
    return [Diagnostic("call-incomplete", text)]
