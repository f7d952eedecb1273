"""The table `resolved`: every event of all runs, warm-up left out, as the number of its target and whole values.

Each run's file is read once for it. It is the connection's own, and may spill to disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracemap.attribution.join.targets import EXECUTE, MEMORY, TRANSFER, UNMATCHED
from tracemap.attribution.scan.executes import COVERED, own_covered
from tracemap.attribution.scan.lookups import Lookup, Source
from tracemap.attribution.scan.metrics import value_column, value_of
from tracemap.attribution.scan.tables import Tables
from tracemap.measurements.model import Metric

_RESOLVED = f"""
SELECT CAST(CASE event.kind WHEN 'dispatch' THEN {{dispatch}} WHEN 'execute' THEN {EXECUTE}
                            WHEN 'copy' THEN {{transfer}} WHEN 'fill' THEN {{transfer}} WHEN 'update' THEN {{transfer}}
                            WHEN 'alloca' THEN {MEMORY} WHEN 'dealloca' THEN {MEMORY} ELSE {UNMATCHED} END AS INTEGER)
       AS target, {{values}}
FROM (SELECT * FROM {{events}} WHERE {{which}}) AS event {{joins}}
"""


def resolve(tables: Tables, metrics: Sequence[Metric]) -> None:
    """Make the table, without rows: columns `target`, one for each metric, and what dispatches covered of executes."""
    values = "".join(f"{value_column(number)} BIGINT, " for number in range(len(metrics)))
    tables.fill("resolved", f"target INTEGER, {values}{COVERED} BIGINT", ())


def add_events(source: Source, lookups: Sequence[Lookup], metrics: Sequence[Metric]) -> None:
    """Add the events of a run.

    Raises:
        RunInvalid: a cell is not what its column says, or the file is damaged.
    """
    # Rows of steps are no events of their own: they would count as calls.
    which = "NOT warmup AND kind <> 'step'" if source.run.step_metrics else "NOT warmup"
    query = _RESOLVED.format(
        dispatch=first_of((lookup.of_dispatch for lookup in lookups), UNMATCHED),
        transfer=first_of((lookup.of_transfer for lookup in lookups), TRANSFER),
        values=", ".join((*(value_of(metric, source.run) for metric in metrics), own_covered(source))),
        events=source.events,
        which=which,
        joins=joined(lookups),
    )
    source.tables.query(f"INSERT INTO resolved {query}")


def first_of(targets: Iterable[str], otherwise: int) -> str:
    """The first target that lookups give; else the number of what has none."""
    return f"coalesce({', '.join((*filter(None, targets), str(otherwise)))})"


def joined(lookups: Iterable[Lookup]) -> str:
    """The joins of lookups, in their order."""
    return " ".join(lookup.join for lookup in lookups)
