"""How much of the submissions' wall time their dispatches cover: told by the run's file, or found in its events."""

from __future__ import annotations

from collections.abc import Sequence

from tracemap.attribution.join.targets import EXECUTE
from tracemap.attribution.scan.lookups import Source
from tracemap.attribution.scan.tables import Tables

COVERED = "covered_ns"
"""The column that tells it, in files and in `resolved`."""

# The union of a submission's dispatch intervals, clipped to the submission: dispatches overlap on several workers.
_COVERED_BY_DISPATCHES = """
WITH event AS (SELECT kind, submission_id, start_ns, start_ns + duration_ns AS end_ns FROM {events}
               WHERE NOT warmup AND submission_id IS NOT NULL AND start_ns IS NOT NULL AND duration_ns IS NOT NULL
               AND kind IN ('dispatch', 'execute')),
     span AS (SELECT submission_id, start_ns AS span_start, end_ns AS span_end FROM event WHERE kind = 'execute'),
     part AS (SELECT submission_id, greatest(start_ns, span_start) AS s, least(end_ns, span_end) AS e
              FROM event JOIN span USING (submission_id) WHERE kind = 'dispatch'),
     ordered AS (SELECT s, e, max(e) OVER (PARTITION BY submission_id ORDER BY s, e
                                           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached FROM part)
SELECT CAST(sum(greatest(0, e - greatest(s, coalesce(reached, s)))) AS BIGINT) FROM ordered
"""


def own_covered(source: Source) -> str:
    """What a run's file tells of an event (named `event`); NULL where it is no execute or the file lacks the column."""
    told = COVERED in source.columns
    return f"CASE event.kind WHEN 'execute' THEN event.{COVERED} END" if told else "CAST(NULL AS BIGINT)"


def covered_ns(tables: Tables, sources: Sequence[Source]) -> int:
    """Nanoseconds of all runs' executes in which a dispatch of theirs ran.

    Raises:
        RunInvalid: a cell is not what its column says.
    """
    ((told,),) = tables.query(f"SELECT sum({COVERED}) FROM resolved WHERE target = {EXECUTE}")
    covered = int(told or 0)
    for source in sources:
        if COVERED not in source.columns:
            ((found,),) = source.tables.query(_COVERED_BY_DISPATCHES.format(events=source.events))
            covered += int(found or 0)
    return covered
