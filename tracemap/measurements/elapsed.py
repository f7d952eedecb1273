"""Where the elapsed time of a run went: running kernels, moving data, submissions in between, the host, the profiler.

Every moment of the measured calls belongs to the first part that has something going on in it, so the parts add up to
the elapsed time, to the nanosecond. When the host was in a call, and when the profiler wrote down what it saw, the
program tells by stopping its clock (`Stops`); without that, only what lies between the submissions of one call is known
to be the host's. What no part has is not explained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from tracemap.measurements.events import EventTable
from tracemap.measurements.model import BY_STOPS, UNKNOWN_PARTS, ElapsedParts
from tracemap.units import UNKNOWN, Integer, sum_of

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Stops:
    """When the program let its clock go on, call by call, and when it stopped it again, in ns on the host's clock."""

    going_ns: npt.NDArray[Any]
    stopped_ns: npt.NDArray[Any]

    @property
    def intervals(self) -> dict[str, npt.NDArray[Any]]:
        """When the clock went, and when it stood between two calls: begin, end, and the number of the part."""
        import numpy as np

        going, standing = np.full(len(self.going_ns), 4), np.full(max(0, len(self.going_ns) - 1), 3)
        return {
            "s": np.concatenate((self.going_ns, self.stopped_ns[:-1])),
            "e": np.concatenate((self.stopped_ns, self.going_ns[1:])),
            "part": np.concatenate((going, standing)),
        }


@dataclass(frozen=True, slots=True)
class Span:
    """When the measured calls began and ended; unknown: the rows tell, and not what was before and after them."""

    begin_ns: Integer
    end_ns: Integer


# What goes on, as intervals; the number of a part is its rank. A row lasts from its submission to its end, of which a
# transfer has what follows its start. Rows of dispatches lie within their submission's.
_GOING_ON: Final = """
SELECT start_ns AS s, start_ns + duration_ns AS e,
    CASE kind WHEN 'dispatch' THEN 0 WHEN 'copy' THEN 1 WHEN 'fill' THEN 1 WHEN 'update' THEN 1 ELSE 2 END AS part
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
_SOME_INTERVALS: Final = "SELECT s, e, part FROM intervals WHERE rowid >= {first} AND rowid < {first} + {count}"
_AT_A_TIME: Final = 1 << 20
"""Intervals that are looked at together, so that memory does not grow with the run."""
_RANKS: Final = range(5)


def elapsed_parts(events: EventTable, elapsed_ns: Integer, span: Span, stops: Stops | None) -> ElapsedParts:
    """The parts of the elapsed time of the measured calls; unknown where nothing has times.

    Args:
        events: the rows; those of a clock of its own have no `submitted_ns`.
        elapsed_ns: how long the calls took.
        span: of the calls, on the rows' clock.
        stops: of the program's clock, on the rows' clock; None: they are not known.
    """
    if elapsed_ns is UNKNOWN:
        return UNKNOWN_PARTS
    connection = events.connection
    if stops is not None:
        connection.register("program_stops", stops.intervals)
    connection.execute(_intervals(events.name, span, by_stops=stops is not None))
    if stops is not None:
        connection.unregister("program_stops")
    kernels, transfers, queue, stopped, host = owned = _owned_ns(connection)
    connection.execute("DROP TABLE intervals")
    rest = elapsed_ns - sum(owned)
    timed = connection.execute(f"SELECT 1 FROM {events.name} WHERE {_MEASURED} LIMIT 1").fetchall()
    if not timed or rest < 0:
        return UNKNOWN_PARTS
    profiler, found_by = (UNKNOWN, UNKNOWN) if stops is None else (stopped, BY_STOPS)
    return ElapsedParts(kernels, transfers, queue, host, profiler, rest, found_by)


def parts_by_device(events: EventTable, elapsed_ns: Integer) -> ElapsedParts:
    """The same of rows on a device's own clock, which says nothing of the host: it may wait, too."""
    parts = elapsed_parts(events, elapsed_ns, Span(UNKNOWN, UNKNOWN), None)
    if parts.host_ns is UNKNOWN:
        return parts
    return structs.replace(parts, host_ns=UNKNOWN, unexplained_ns=sum_of((parts.unexplained_ns, parts.host_ns)))


def of_host_alone(stops: Stops, warmup: int, calls: int) -> ElapsedParts:
    """The same of calls that did nothing on a device, the first of which are warm-up: all is the host's or a stop."""
    going, stopped = stops.going_ns[warmup:calls], stops.stopped_ns[warmup:calls]
    host_ns = int((stopped - going).sum())
    return ElapsedParts(0, 0, 0, host_ns, int(stopped[-1] - going[0]) - host_ns, 0, BY_STOPS)


def _intervals(events: str, span: Span, *, by_stops: bool) -> str:
    """What makes the table of all that goes on in the measured calls, in the order in which it begins."""
    begin, end = ("NULL" if at is UNKNOWN else str(at) for at in (span.begin_ns, span.end_ns))  # NULL: no limit
    return _INTERVALS.format(
        events=events,
        measured=_MEASURED,
        intervals=_GOING_ON + (_BY_STOPS if by_stops else _BY_ROWS),
        begin=begin,
        end=end,
    )


def _owned_ns(connection: duckdb.DuckDBPyConnection) -> list[int]:
    """The time that each part has of the table: what its intervals and those of the parts before it cover, less these.

    An interval covers what lies beyond the end of all that began before it.
    """
    import numpy as np

    covered, reached = [0 for _ in _RANKS], [np.iinfo(np.int64).min for _ in _RANKS]
    ((count,),) = connection.execute("SELECT count(*) FROM intervals").fetchall()
    for first in range(0, count, _AT_A_TIME):
        some = connection.execute(_SOME_INTERVALS.format(first=first, count=_AT_A_TIME)).fetchnumpy()
        for rank in _RANKS:
            going_on = some["part"] <= rank
            begins, ends = some["s"][going_on], some["e"][going_on]
            latest = np.maximum.accumulate(np.concatenate(([reached[rank]], ends)))
            covered[rank] += int(np.maximum(0, ends - np.maximum(begins, latest[:-1])).sum())
            reached[rank] = int(latest[-1])
    return [both - before for before, both in pairwise([0, *covered])]


def added(parts: Sequence[ElapsedParts]) -> ElapsedParts:
    """The parts of runs, of one at least, together; unknown as soon as one run's are.

    Where only some of them know the profiler's own work, nothing says how much it is of all: it is not explained.
    """
    if len({each.profiler_found_by for each in parts}) > 1:
        parts = [_profiler_unknown(each) for each in parts]
    kernels, transfers, queue, host, profiler, rest = map(sum_of, zip(*(each.values() for each in parts), strict=True))
    return ElapsedParts(kernels, transfers, queue, host, profiler, rest, parts[0].profiler_found_by)


def _profiler_unknown(parts: ElapsedParts) -> ElapsedParts:
    if parts.profiler_ns is UNKNOWN:
        return parts
    rest = sum_of((parts.unexplained_ns, parts.profiler_ns))
    return structs.replace(parts, profiler_ns=UNKNOWN, unexplained_ns=rest, profiler_found_by=UNKNOWN)
