"""The table of ops as Parquet: the rows of `attribute --format csv`, with types, and NULL for unknown values."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tracemap.attribution.model import Attribution
from tracemap.errors import UsageInvalid
from tracemap.graph.model import TraceGraph
from tracemap.measurements.sql import copy_to, open_database, quoted
from tracemap.reports.csv_tables import TABLE_COLUMNS, attribution_rows
from tracemap.units import INTEGER_LIMIT, Unknown

_TYPES: Final = {str: "VARCHAR", int: "BIGINT"}


def write_parquet(graph: TraceGraph, attribution: Attribution, target: Path) -> None:
    """Write the table atomically.

    Raises:
        UsageInvalid: a number has more than 64 bits.
        TargetUnwritable: the file cannot be written.
    """
    columns: list[list[str | int | None]] = [[] for _ in TABLE_COLUMNS]
    for row in attribution_rows(graph, attribution):
        for column, cell in zip(columns, row, strict=True):
            if isinstance(cell, int) and abs(cell) > INTEGER_LIMIT:
                raise UsageInvalid(f"{cell} has more than 64 bits, which Parquet cannot hold; export as csv")
            column.append(None if isinstance(cell, Unknown) else cell)
    types = [_TYPES[kind] for kind in TABLE_COLUMNS.values()]
    lists = ", ".join(
        f"unnest(CAST(? AS {kind}[])) AS {quoted(name)}" for name, kind in zip(TABLE_COLUMNS, types, strict=True)
    )
    with open_database() as connection:
        # A single thread keeps the order of rows, for deterministic output.
        connection.execute("SET threads = 1")
        connection.execute(f"CREATE TEMP TABLE ops AS SELECT {lists}", columns)
        copy_to(connection.table("ops"), target, "FORMAT parquet")
