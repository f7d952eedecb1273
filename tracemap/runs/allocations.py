"""The memory that a device allocated in the measured invocations of a run."""

from __future__ import annotations

from typing import Final

from tracemap.core.codec import Count, Record
from tracemap.core.errors import RunInvalid
from tracemap.core.units import MAX_INTEGER, UNKNOWN, Integer, Text, plural
from tracemap.runs.bad_cells import explain_bad_cell
from tracemap.runs.columns import events_sql
from tracemap.runs.model import Run
from tracemap.runs.sql import open_database, reading_errors


class AllocatedMemory(Record, frozen=True):
    """The memory that a device allocated in the measured invocations of a run.

    `run`: the run's file name. `invocations`: those that allocate. `allocations`: their number in all of them.
    `allocated_bytes` and `released_bytes`: sums over all of them. `peak_bytes`: the most bytes at one time in an
    invocation; memory without a release, such as a result, counts until the invocation ends. `unreleased_bytes`: the
    bytes without a release in the invocation with the peak. `reason`: why the peak is unknown, "" if it is known.
    """

    run: str
    invocations: Count
    allocations: Count
    allocated_bytes: Integer
    released_bytes: Integer
    peak_bytes: Integer
    unreleased_bytes: Integer
    reason: str


# Memory is taken when an allocation begins, and free when a release has ended.
_LIVE: Final = """
WITH event AS (
    SELECT invocation, kind, submission_id, payload_bytes,
        CASE kind WHEN 'alloca' THEN start_ns ELSE start_ns + coalesce(duration_ns, 0) END AS time_ns,
        CASE kind WHEN 'alloca' THEN payload_bytes ELSE -payload_bytes END AS change
    FROM ({events}) WHERE kind IN ('alloca', 'dealloca') AND NOT warmup
), live AS (
    SELECT *, sum(change) OVER (PARTITION BY invocation ORDER BY time_ns, submission_id, kind
                                ROWS UNBOUNDED PRECEDING) AS bytes
    FROM event
), of_invocation AS (
    SELECT invocation, max(bytes) AS peak, sum(change) AS unreleased FROM live GROUP BY invocation
)
SELECT count(DISTINCT invocation), count(*) FILTER (kind = 'alloca'),
    coalesce(sum(payload_bytes) FILTER (kind = 'alloca'), 0),
    coalesce(sum(payload_bytes) FILTER (kind = 'dealloca'), 0),
    count(*) FILTER (invocation IS NULL),
    count(*) FILTER (kind = 'alloca' AND payload_bytes IS NULL),
    count(*) FILTER (kind = 'dealloca' AND payload_bytes IS NULL),
    (SELECT coalesce(max(peak), 0) FROM of_invocation),
    (SELECT coalesce(arg_max(unreleased, (peak, unreleased)), 0) FROM of_invocation)
FROM event
"""


def allocated_memory(run: Run, memory: int = 0) -> AllocatedMemory:
    """The memory that the device allocated in a run.

    Args:
        run: the run.
        memory: memory limit in bytes; 0: the memory that the machine can spare.

    Raises:
        RunInvalid: a cell does not have its column's type, or the sizes are impossible.
    """
    with open_database(memory) as connection:
        try:
            (row,) = connection.execute(_LIVE.format(events=events_sql(run))).fetchall()
        except reading_errors() as error:
            raise explain_bad_cell(run, error) from error
    invocations, allocations, allocated, released, unplaced, unsized, unsized_releases, peak, unreleased = map(int, row)
    if max(allocated, released) > MAX_INTEGER:
        raise RunInvalid(f"{run.file}: its allocations are larger than any memory; record again")
    device = run.header.device if isinstance(run.header.device, str) else "the device"
    reason = _reason(allocations, unplaced, unsized, unsized_releases, device)
    return AllocatedMemory(
        run=run.file_name,
        invocations=invocations,
        allocations=allocations,
        allocated_bytes=UNKNOWN if unsized else allocated,
        released_bytes=UNKNOWN if unsized_releases else released,
        peak_bytes=UNKNOWN if reason else peak,
        unreleased_bytes=UNKNOWN if reason else unreleased,
        reason=reason,
    )


def _reason(allocations: int, unplaced: int, unsized: int, unsized_releases: int, device: Text) -> str:
    """Why the peak is unknown; "" if it is known."""
    if not allocations:
        return "it has no allocations"
    if unplaced:
        return f"{plural(unplaced, 'allocation or release', 'allocations or releases')} without an invocation"
    if unsized:
        return f"{plural(unsized, 'allocation')} without a size (column payload_bytes)"
    if unsized_releases:
        return f"{device} does not say how much memory {plural(unsized_releases, 'release')} gave back"
    return ""
