"""The parts of a run's elapsed time: kernels, transfers, queue, host, profiler.

Every moment of the measured invocations belongs to the first part that was active in it. So the parts add up to the
elapsed time, to the nanosecond. The program shows when an invocation ran and when the profiler wrote, because it stops
its clock for the profiler (`Stops`). Without stops, only the time between the submissions of one invocation is known to
be the host's. The rest is not explained.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from tracemap.core.units import UNKNOWN, Integer, Text, sum_of
from tracemap.runs.events import EventTable
from tracemap.runs.model import BY_STOPS, UNKNOWN_PARTS, ElapsedParts
from tracemap.runs.sql import first_integer

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


class ClockStops(msgspec.Struct, frozen=True):
    """Starts and stops of the program's clock, one pair per invocation, in ns on the host's clock."""

    going_ns: npt.NDArray[Any]
    stopped_ns: npt.NDArray[Any]

    @property
    def intervals(self) -> dict[str, npt.NDArray[Any]]:
        """Intervals of the running clock, and of the stopped clock between invocations: begin, end and part number."""
        import numpy as np

        running, stopped = np.full(len(self.going_ns), 4), np.full(max(0, len(self.going_ns) - 1), 3)
        return {
            "s": np.concatenate((self.going_ns, self.stopped_ns[:-1])),
            "e": np.concatenate((self.stopped_ns, self.going_ns[1:])),
            "part": np.concatenate((running, stopped)),
        }


class MeasuredSpan(msgspec.Struct, frozen=True):
    """Begin and end of the measured invocations; unknown: only the rows have times, not the host before and after."""

    begin_ns: Integer
    end_ns: Integer


# Activities as intervals; the number of a part is its rank. A row lasts from its submission to its end; a transfer is
# active from its start. Rows of dispatches are within the row of their submission.
_ACTIVITIES: Final = """
SELECT start_ns AS s, start_ns + duration_ns AS e,
    CASE WHEN kind = 'dispatch' THEN 0 WHEN kind IN ('copy', 'fill', 'update', 'migration') THEN 1 ELSE 2 END AS part
FROM rows UNION ALL
SELECT least(submitted_ns, start_ns), start_ns + duration_ns, 2 FROM rows WHERE submitted_ns IS NOT NULL
"""
_BY_STOPS: Final = "UNION ALL SELECT * FROM program_stops"
_BY_ROWS: Final = """
UNION ALL SELECT min(coalesce(least(submitted_ns, start_ns), start_ns)), max(start_ns + duration_ns), 4
FROM rows WHERE invocation IS NOT NULL GROUP BY invocation
"""
_MEASURED: Final = "NOT warmup AND kind <> 'step' AND start_ns IS NOT NULL AND duration_ns IS NOT NULL"
_INTERVALS: Final = """
CREATE OR REPLACE TEMP TABLE intervals AS
WITH rows AS (SELECT invocation, kind, start_ns, duration_ns, submitted_ns FROM {events} WHERE {measured})
SELECT greatest(s, {begin}) AS s, least(e, {end}) AS e, CAST(part AS TINYINT) AS part FROM ({intervals})
WHERE e IS NOT NULL AND greatest(s, {begin}) < least(e, {end}) ORDER BY s
"""
_BATCH: Final = "SELECT s, e, part FROM intervals WHERE rowid >= {first} AND rowid < {first} + {count}"
_BATCH_SIZE: Final = 1 << 20
"""Intervals per batch, so that memory does not grow with the run."""
_RANKS: Final = range(5)


def elapsed_parts(
    events: EventTable, elapsed_ns: Integer, span: MeasuredSpan, stops: ClockStops | None
) -> ElapsedParts:
    """The parts of the elapsed time of the measured invocations; unknown if no row has times.

    Args:
        events: the rows; those on a device's own clock have no `submitted_ns`.
        elapsed_ns: the elapsed time of the invocations.
        span: begin and end of the invocations, on the rows' clock.
        stops: stops of the program's clock, on the rows' clock; None if unknown.
    """
    if elapsed_ns is UNKNOWN:
        return UNKNOWN_PARTS
    connection = events.connection
    if stops is not None:
        connection.register("program_stops", stops.intervals)
    begin, end = ("NULL" if at is UNKNOWN else str(at) for at in (span.begin_ns, span.end_ns))  # NULL: no limit
    intervals = _ACTIVITIES + (_BY_ROWS if stops is None else _BY_STOPS)
    connection.execute(
        _INTERVALS.format(events=events.name, measured=_MEASURED, intervals=intervals, begin=begin, end=end)
    )
    if stops is not None:
        connection.unregister("program_stops")
    kernels, transfers, queue, stopped, host = parts = _part_times(connection)
    connection.execute("DROP TABLE intervals")
    rest = elapsed_ns - sum(parts)
    timed = connection.execute(f"SELECT 1 FROM {events.name} WHERE {_MEASURED} LIMIT 1").fetchall()
    if not timed or rest < 0:
        return UNKNOWN_PARTS
    profiler, found_by = (UNKNOWN, UNKNOWN) if stops is None else (stopped, BY_STOPS)
    return ElapsedParts(kernels, transfers, queue, host, profiler, rest, found_by)


def parts_by_device(events: EventTable, elapsed_ns: Integer) -> ElapsedParts:
    """The parts for rows on a device's own clock, where time outside submissions may be the host's or a wait."""
    parts = elapsed_parts(events, elapsed_ns, MeasuredSpan(UNKNOWN, UNKNOWN), None)
    if parts.host_ns is UNKNOWN:
        return parts
    return structs.replace(parts, host_ns=UNKNOWN, unexplained_ns=sum_of((parts.unexplained_ns, parts.host_ns)))


def host_only_parts(stops: ClockStops, warmup: int, calls: int) -> ElapsedParts:
    """The parts for invocations `warmup` to `calls` without device work: host and profiler only."""
    started, stopped = stops.going_ns[warmup:calls], stops.stopped_ns[warmup:calls]
    host_ns = int((stopped - started).sum())
    return ElapsedParts(0, 0, 0, host_ns, int(stopped[-1] - started[0]) - host_ns, 0, BY_STOPS)


def _part_times(connection: duckdb.DuckDBPyConnection) -> list[int]:
    """The time of each part: the union of its intervals and those of higher-ranked parts, minus the latter's union.

    An interval adds to a union the time after the latest end of all intervals that began earlier.
    """
    import numpy as np

    covered, reached = [0 for _ in _RANKS], [np.iinfo(np.int64).min for _ in _RANKS]
    for first in range(0, first_integer(connection, "SELECT count(*) FROM intervals"), _BATCH_SIZE):
        batch = connection.execute(_BATCH.format(first=first, count=_BATCH_SIZE)).fetchnumpy()
        for rank in _RANKS:
            is_active = batch["part"] <= rank
            begins, ends = batch["s"][is_active], batch["e"][is_active]
            latest = np.maximum.accumulate(np.concatenate(([reached[rank]], ends)))
            covered[rank] += int(np.maximum(0, ends - np.maximum(begins, latest[:-1])).sum())
            reached[rank] = int(latest[-1])
    return [with_part - without for without, with_part in pairwise([0, *covered])]


def summed_parts(parts: Sequence[ElapsedParts]) -> ElapsedParts:
    """The sum of the parts of one or more runs; unknown if any run's are.

    If only some runs know the profiler's own work, that part is unknown, and counts as not explained.
    """
    kernels, transfers, queue, host, profiler, rest = map(sum_of, zip(*(run.values() for run in parts), strict=True))
    found_by: Text = parts[0].profiler_found_by
    if any(run.profiler_found_by != found_by for run in parts):
        rest = sum_of([rest, *(run.profiler_ns for run in parts if run.profiler_ns is not UNKNOWN)])
        profiler, found_by = UNKNOWN, UNKNOWN
    return ElapsedParts(kernels, transfers, queue, host, profiler, rest, found_by)
