"""Where the elapsed time of a run went: running kernels, moving data, submissions in between, the host.

Every moment between the first and the last event belongs to exactly one part, so the parts add up to the elapsed time,
to the nanosecond. What the program's clock counted beyond its events is not explained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracemap.measurements.events import EventTable
from tracemap.measurements.model import UNKNOWN_PARTS, ElapsedParts
from tracemap.units import UNKNOWN, Integer, sum_of

# What an interval covers that no earlier one has covered is its own; what lies between intervals is the host's. Of a
# submission, the time in which a dispatch of its own ran is the kernels'; where submissions overlap, no more than all.
_PARTS: Final = """
WITH busy AS (SELECT invocation, kind, start_ns AS s, start_ns + duration_ns AS e, covered_ns FROM {events}
              WHERE NOT warmup AND kind NOT IN ('dispatch', 'step')
              AND start_ns IS NOT NULL AND duration_ns IS NOT NULL AND invocation IS NOT NULL),
     ordered AS (SELECT *, max(e) OVER (PARTITION BY invocation ORDER BY s, e, kind
                                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached FROM busy),
     own AS (SELECT *, greatest(0, e - greatest(s, coalesce(reached, s))) AS ns FROM ordered),
     spent AS (SELECT invocation, min(s) AS first, max(e) AS last,
                      coalesce(sum(ns) FILTER (kind IN ('copy', 'fill', 'update')), 0) AS transfers,
                      coalesce(sum(ns) FILTER (kind NOT IN ('copy', 'fill', 'update')), 0) AS submitted,
                      coalesce(sum(covered_ns), 0) AS covered FROM own GROUP BY invocation),
     placed AS (SELECT *, least(covered, submitted) AS kernels,
                       max(last) OVER (ORDER BY first, invocation
                                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM spent)
SELECT count(*), CAST(sum(kernels) AS BIGINT), CAST(sum(transfers) AS BIGINT), CAST(sum(submitted - kernels) AS BIGINT),
       CAST(sum(last - first - submitted - transfers) AS BIGINT),
       CAST(sum(greatest(0, first - coalesce(before, first))) AS BIGINT), bool_or(first < before)
FROM placed
"""


def elapsed_parts(events: EventTable, elapsed_ns: Integer) -> ElapsedParts:
    """The parts of the elapsed time of the measured calls; unknown where they overlap, or nothing has times."""
    (found,) = events.connection.execute(_PARTS.format(events=events.name)).fetchall()
    count, kernels, transfers, queue, host, between, overlap = found
    if elapsed_ns is UNKNOWN or not count or overlap:
        return UNKNOWN_PARTS
    rest = elapsed_ns - (kernels + transfers + queue + host + between)
    return ElapsedParts(kernels, transfers, queue, host, between, rest) if rest >= 0 else UNKNOWN_PARTS


def added(parts: Sequence[ElapsedParts]) -> ElapsedParts:
    """The parts of runs, of one at least, together; unknown as soon as one run's are."""
    return ElapsedParts(*(sum_of(values) for values in zip(*(each.values() for each in parts), strict=True)))
