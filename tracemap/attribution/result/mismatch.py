"""Runs of which nothing matches the map: what they have, and what the map has instead."""

from __future__ import annotations

from typing import Final

from tracemap.attribution.join.run import UNMATCHED
from tracemap.attribution.scan.scan import Scan
from tracemap.attribution.scan.tables import Tables
from tracemap.errors import RunMismatch
from tracemap.graph.model import TraceGraph
from tracemap.measurements.columns import events_sql
from tracemap.measurements.sql import literal
from tracemap.units import listed, plural

_NAMED: Final = 3
_NAMES = """
SELECT kernel, count(*) FROM ({events}) WHERE kind NOT IN ('execute', 'alloca', 'dealloca') GROUP BY kernel
ORDER BY count(*) DESC, kernel NULLS LAST LIMIT {most}
"""
_KNOWN = "SELECT kernel FROM ({events}) WHERE kernel IN ({known}) LIMIT 1"


def check_something_matches(graph: TraceGraph, tables: Tables, seen: Scan) -> None:
    """Refuse runs with events of kernels of which none is the map's.

    Raises:
        RunMismatch: it is so.
    """
    lost = seen.by_target[UNMATCHED].events if UNMATCHED in seen.by_target else 0
    lost += sum(row.target == UNMATCHED for row in seen.step_rows)
    found = any(number >= 0 and events.events for number, events in seen.by_target.items())
    if not lost or found or any(row.target >= 0 for row in seen.step_rows):
        return
    known = ", ".join(literal(kernel.name) for kernel in graph.kernels) or "NULL"
    if any(tables.of_run(run).query(_KNOWN.format(events=events_sql(run), known=known)) for run in tables.runs):
        return  # the map's kernels, in places where it has none
    names = [
        "no kernel" if name is None else repr(name)
        for run in tables.runs
        for name, _ in tables.of_run(run).query(_NAMES.format(events=events_sql(run), most=_NAMED))
    ]
    files = ", ".join(run.file_name for run in tables.runs)
    has = listed([repr(kernel.name) for kernel in graph.kernels], most=_NAMED) or "none"
    raise RunMismatch(
        f"{files}: {plural(lost, 'row')} and none of a kernel of the map; the rows name {_some(names)}, the map has "
        f"{has}; name the bundle that it was recorded from, or pass --allow-mismatch"
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown}, …" if len(names) > _NAMED else shown
