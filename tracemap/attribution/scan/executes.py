"""How much of the submissions' wall time their dispatches cover: told by the run's file, or found in its events."""

from __future__ import annotations

from collections.abc import Sequence

from tracemap.attribution.join.targets import EXECUTE
from tracemap.attribution.scan.lookups import Source
from tracemap.attribution.scan.tables import Tables
from tracemap.measurements.events import covered_sql

COVERED = "covered_ns"
"""The column that tells it, in files and in `resolved`."""


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
            measured = f"(SELECT * FROM {source.events} WHERE NOT warmup)"
            parts = covered_sql(measured, "submission_id")
            ((found,),) = source.tables.query(f"SELECT CAST(sum({COVERED}) AS BIGINT) FROM ({parts})")
            covered += int(found or 0)
    return covered
