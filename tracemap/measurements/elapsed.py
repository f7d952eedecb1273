"""Where the elapsed time of a run went: running kernels, moving data, submissions in between, the host, the profiler.

Every moment of the measured calls belongs to the first part that has something going on in it, so the parts add up to
the elapsed time, to the nanosecond. When the host was in a call, and when the profiler wrote down what it saw, the
program tells by stopping its clock (`Stops`); without that, only what lies between the submissions of one call is known
to be the host's. What no part has is not explained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from tracemap.measurements.events import EventTable
from tracemap.measurements.model import BY_STOPS, UNKNOWN_PARTS, ElapsedParts
from tracemap.units import UNKNOWN, Integer, sum_of

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Stops:
    """When the program let its clock go on, call by call, and when it stopped it again, in ns on the host's clock."""

    going_ns: npt.NDArray[Any]
    stopped_ns: npt.NDArray[Any]


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
_BY_STOPS: Final = """
UNION ALL SELECT going_ns, stopped_ns, 4 FROM program_stops
UNION ALL SELECT stopped_ns, lead(going_ns) OVER (ORDER BY going_ns), 3 FROM program_stops
"""
_BY_ROWS: Final = """
UNION ALL SELECT min(coalesce(least(submitted_ns, start_ns), start_ns)), max(start_ns + duration_ns), 4
FROM rows WHERE invocation IS NOT NULL GROUP BY invocation
"""
# Between two moments at which something begins or ends, the same goes on all the time.
_PARTS: Final = """
WITH rows AS (SELECT invocation, kind, start_ns, duration_ns, submitted_ns FROM {events}
              WHERE NOT warmup AND kind <> 'step' AND start_ns IS NOT NULL AND duration_ns IS NOT NULL),
     intervals AS ({intervals}),
     clipped AS (SELECT greatest(s, {begin}) AS s, least(e, {end}) AS e, part FROM intervals WHERE e IS NOT NULL),
     moments AS (SELECT s AS moment, part, 1 AS more FROM clipped WHERE s < e
                 UNION ALL SELECT e, part, -1 FROM clipped WHERE s < e),
     changes AS (SELECT moment, {changes} FROM moments GROUP BY moment),
     pieces AS (SELECT lead(moment) OVER by_time - moment AS ns, {running} FROM changes
                WINDOW by_time AS (ORDER BY moment)),
     owned AS (SELECT ns, CASE {owners} ELSE -1 END AS part FROM pieces WHERE ns IS NOT NULL)
SELECT (SELECT count(*) FROM rows), {sums} FROM owned
"""
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
        connection.register("program_stops", {"going_ns": stops.going_ns, "stopped_ns": stops.stopped_ns})
    (found,) = connection.execute(_query(events.name, span, by_stops=stops is not None)).fetchall()
    if stops is not None:
        connection.unregister("program_stops")
    count, kernels, transfers, queue, stopped, host = found
    rest = elapsed_ns - (kernels + transfers + queue + stopped + host)
    if not count or rest < 0:
        return UNKNOWN_PARTS
    profiler, found_by = (UNKNOWN, UNKNOWN) if stops is None else (stopped, BY_STOPS)
    return ElapsedParts(kernels, transfers, queue, host, profiler, rest, found_by)


def of_host_alone(stops: Stops, warmup: int, calls: int) -> ElapsedParts:
    """The same of calls that did nothing on a device, the first of which are warm-up: all is the host's or a stop."""
    going, stopped = stops.going_ns[warmup:calls], stops.stopped_ns[warmup:calls]
    host_ns = int((stopped - going).sum())
    return ElapsedParts(0, 0, 0, host_ns, int(stopped[-1] - going[0]) - host_ns, 0, BY_STOPS)


def _query(events: str, span: Span, *, by_stops: bool) -> str:
    begin, end = ("NULL" if at is UNKNOWN else str(at) for at in (span.begin_ns, span.end_ns))  # NULL: no limit
    return _PARTS.format(
        events=events,
        intervals=_GOING_ON + (_BY_STOPS if by_stops else _BY_ROWS),
        begin=begin,
        end=end,
        changes=", ".join(f"sum(more) FILTER (part = {rank}) AS more_{rank}" for rank in _RANKS),
        running=", ".join(f"sum(more_{rank}) OVER by_time AS going_on_{rank}" for rank in _RANKS),
        owners=" ".join(f"WHEN going_on_{rank} > 0 THEN {rank}" for rank in _RANKS),
        sums=", ".join(f"CAST(coalesce(sum(ns) FILTER (part = {rank}), 0) AS BIGINT)" for rank in _RANKS),
    )


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
