"""The runs of a store, one by one."""

from __future__ import annotations

from typing import Any

from tracemap.store.grouping import looked
from tracemap.store.headers import Header, Headers
from tracemap.store.model import FleetRun, FleetRuns
from tracemap.store.tables import told


def fleet_runs(headers: Headers) -> FleetRuns:
    """What the headers of runs tell."""
    return FleetRuns(runs=tuple(map(_run, headers.rows)), looked=looked(headers))


def _run(row: Header) -> FleetRun:
    cells: dict[str, Any] = {name: told(row[name]) for name in FleetRun.__struct_fields__}
    cells |= {"disturbance_ns": int(row["disturbance_ns"] or 0), "tags": row["tags"] or {}}
    return FleetRun(**cells)
