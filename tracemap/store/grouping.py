"""Groups and lists of runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from tracemap.store.engine import Engine
from tracemap.store.headers import INPUTS, Header, Headers, cell_of
from tracemap.store.layout import unknown_if_null
from tracemap.store.lineage import Names
from tracemap.store.model import FleetRun, FleetRuns, Looked, SkippedFile
from tracemap.units import UNKNOWN, Text, in_parts

# ---- grouping
#
# Group the selected runs, and register the groups with the engine.


_AHEAD_NS: Final = 60_000_000_000
"""Tolerance for the difference between two machines' clocks."""


def query_scope(headers: Headers) -> Looked:
    """Summary of the runs and files that a query read."""
    ahead = sum(
        row["recorded_ns"] is not None and row["recorded_ns"] > row["added_ns"] + _AHEAD_NS for row in headers.rows
    )
    skipped = tuple(SkippedFile(file.path, file.why) for file in headers.listing.bad)
    return Looked(len(headers.rows), skipped, headers.listing.unfinished, ahead)


def grouped(rows: Sequence[Header], columns: Sequence[str]) -> list[list[Header]]:
    """Group runs of one model with equal values in columns. Groups are in order of these values, unknown last."""
    groups: dict[tuple[object, ...], list[Header]] = defaultdict(list)
    for row in rows:
        groups[(row["model"], *(cell_of(row, column) for column in columns))].append(row)
    return [groups[key] for key in sorted(groups, key=lambda key: [*map(_in_order, key)])]


def _in_order(cell: object) -> tuple[bool, str, object]:
    """Sort key of cells: unknown comes last, and numbers within texts sort by value."""
    if cell is None:
        return True, "", 0
    return False, str(type(cell)), in_parts(cell) if isinstance(cell, str) else cell


def grouped_by_call(rows: Sequence[Header]) -> list[list[Header]]:
    """Group runs of one model whose calls have comparable costs: same function, same sizes of inputs.

    Runs with unknown sizes join the others if all known sizes are equal.
    """
    groups = []
    for group in grouped(rows, ("function",)):
        differ = len({row[INPUTS] for row in group} - {None}) > 1
        groups += grouped(group, (INPUTS,)) if differ else [group]
    return groups


def group_of(runs: Sequence[Header], columns: Sequence[str]) -> dict[str, Text]:
    """The values that the runs of a group share."""
    cells = {column: cell_of(runs[0], column) for column in columns}
    return {column: UNKNOWN if cell is None else str(cell) for column, cell in cells.items()}


def register(engine: Engine, headers: Headers, names: Names, groups: Sequence[Sequence[Header]]) -> None:
    """Create the small tables of an engine: the group of each run, and the key of each op of a map."""
    maps = {pair: number for number, pair in enumerate(headers.maps_of_models)}
    rows = [
        (row["number"], number, maps[row["model"], row["map"]]) for number, group in enumerate(groups) for row in group
    ]
    engine.fill("chosen", {"number": "BIGINT", "grouping": "INTEGER", "map": "INTEGER"}, rows)
    keyed = [(maps[model, sha], op, key) for (model, sha, op), key in names.keys.items() if (model, sha) in maps]
    engine.fill("keyed", {"map": "INTEGER", "op": "VARCHAR", "op_key": "INTEGER"}, keyed)


# ---- listing
#
# List the runs of a store.


def fleet_runs(headers: Headers) -> FleetRuns:
    """The runs of a store, from their headers."""
    return FleetRuns(runs=tuple(map(_run, headers.rows)), looked=query_scope(headers))


def _run(row: Header) -> FleetRun:
    cells: dict[str, Any] = {name: unknown_if_null(row[name]) for name in FleetRun.__struct_fields__}
    cells |= {"disturbance_ns": int(row["disturbance_ns"] or 0), "tags": row["tags"] or {}}
    return FleetRun(**cells)
