"""Groups of runs, and lists of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from tracemap.store.engine import Engine
from tracemap.store.headers import INPUTS, Header, Headers, cell_of
from tracemap.store.layout import told
from tracemap.store.lineage import Names
from tracemap.store.model import FleetRun, FleetRuns, Looked, SkippedFile
from tracemap.units import UNKNOWN, Text, in_parts

# ---- grouping
#
# The runs that a question is about, in groups: told to the engine that answers, and to those who read the answer.


_AHEAD_NS: Final = 60_000_000_000
"""By so much a clock may be ahead of another and still be right."""


def looked(headers: Headers) -> Looked:
    """What was looked at."""
    ahead = sum(
        row["recorded_ns"] is not None and row["recorded_ns"] > row["added_ns"] + _AHEAD_NS for row in headers.rows
    )
    skipped = tuple(SkippedFile(each.path, each.why) for each in headers.listing.bad)
    return Looked(len(headers.rows), skipped, headers.listing.unfinished, ahead)


def grouped(rows: Sequence[Header], columns: Sequence[str]) -> list[list[Header]]:
    """Runs of the same model with the same values in columns, in the order of these; what is not known comes last."""
    found: dict[tuple[object, ...], list[Header]] = defaultdict(list)
    for row in rows:
        found[(row["model"], *(cell_of(row, column) for column in columns))].append(row)
    return [found[key] for key in sorted(found, key=lambda key: [*map(_in_order, key)])]


def _in_order(cell: object) -> tuple[bool, str, object]:
    """By what cells are ordered: what is not known comes last, numbers within texts go by their value."""
    if cell is None:
        return True, "", 0
    return False, str(type(cell)), in_parts(cell) if isinstance(cell, str) else cell


def grouped_by_call(rows: Sequence[Header]) -> list[list[Header]]:
    """Runs of the same model whose calls cost the like: of one function, with inputs of the same sizes.

    Runs that do not tell these are with the others where all that do tell the same.
    """
    found = []
    for group in grouped(rows, ("function",)):
        several = len({row[INPUTS] for row in group} - {None}) > 1
        found += grouped(group, (INPUTS,)) if several else [group]
    return found


def group_of(runs: Sequence[Header], columns: Sequence[str]) -> dict[str, Text]:
    """What the runs of a group have in the columns in which they are alike."""
    cells = {column: cell_of(runs[0], column) for column in columns}
    return {column: UNKNOWN if cell is None else str(cell) for column, cell in cells.items()}


def register(engine: Engine, headers: Headers, names: Names, groups: Sequence[Sequence[Header]]) -> None:
    """Hand the small tables to an engine: which run is of which group, and which op of a map has which key."""
    maps = {pair: number for number, pair in enumerate(headers.maps_of_models)}
    rows = [
        (row["number"], number, maps[row["model"], row["map"]]) for number, group in enumerate(groups) for row in group
    ]
    engine.fill("chosen", {"number": "BIGINT", "grouping": "INTEGER", "map": "INTEGER"}, rows)
    keyed = [(maps[model, sha], op, key) for (model, sha, op), key in names.keys.items() if (model, sha) in maps]
    engine.fill("keyed", {"map": "INTEGER", "op": "VARCHAR", "op_key": "INTEGER"}, keyed)


# ---- listing
#
# The runs of a store, one by one.


def fleet_runs(headers: Headers) -> FleetRuns:
    """What the headers of runs tell."""
    return FleetRuns(runs=tuple(map(_run, headers.rows)), looked=looked(headers))


def _run(row: Header) -> FleetRun:
    cells: dict[str, Any] = {name: told(row[name]) for name in FleetRun.__struct_fields__}
    cells |= {"disturbance_ns": int(row["disturbance_ns"] or 0), "tags": row["tags"] or {}}
    return FleetRun(**cells)
