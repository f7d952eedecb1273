"""The columns of a store's tables, and their files: written whole, by rows of ours or by a query.

Types are those that DuckDB and Spark both have. Amounts are decimals of 38 digits: sums of them are exact in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import TargetUnwritable
from tracemap.measurements.sql import fill, fitting, said_by_system, target_literal
from tracemap.store.layout import (
    ASIDE,
    COSTS,
    MAPS,
    OPS,
    RUNS,
    SPREADS,
    TARGETS,
)
from tracemap.store.places import STORE_KEY, STORE_VERSION, StoreFile
from tracemap.units import UNKNOWN

if TYPE_CHECKING:
    import duckdb

AMOUNT: Final = "DECIMAL(38,0)"

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    RUNS: {
        "run": "VARCHAR",
        "number": "BIGINT",
        "model": "VARCHAR",
        "map": "VARCHAR",
        "module": "VARCHAR",
        "bundle": "VARCHAR",
        "compiler": "VARCHAR",
        "flags": "VARCHAR",
        "function": "VARCHAR",
        "host": "VARCHAR",
        "cpu_model": "VARCHAR",
        "processors": "BIGINT",
        "device": "VARCHAR",
        "workers": "BIGINT",
        "clock": "VARCHAR",
        "date": "VARCHAR",
        "recorded_ns": "BIGINT",
        "added_ns": "BIGINT",
        "tools": "VARCHAR",
        "rule": "VARCHAR",
        "iterations": "BIGINT",
        "warmup": "BIGINT",
        "elapsed_ns": "BIGINT",
        "median_ns": "BIGINT",
        "low_ns": "BIGINT",
        "high_ns": "BIGINT",
        "tool_ns": "BIGINT",
        "waiting_ns": "BIGINT",
        "stolen_ns": "BIGINT",
        "disturbance_ns": AMOUNT,
        "calls": "BIGINT",
        "tags": "MAP(VARCHAR, VARCHAR)",
        "header": "VARCHAR",
    },
    TARGETS: {
        "run": "BIGINT",
        "target": "INTEGER",
        "place": "VARCHAR",
        "kernel": "VARCHAR",
        "position": "INTEGER",
        "places": "INTEGER",
    },
    ASIDE: {"run": "BIGINT", "target": "INTEGER", "metric": "VARCHAR", "reason": "VARCHAR", "amount": AMOUNT},
    COSTS: {
        "run": "BIGINT",
        "metric": "VARCHAR",
        "place": "VARCHAR",
        "position": "INTEGER",
        "op": "VARCHAR",
        "reason": "VARCHAR",
        "amount": AMOUNT,
    },
    SPREADS: {
        "run": "BIGINT",
        "metric": "VARCHAR",
        "op": "VARCHAR",
        "median": "BIGINT",
        "low": "BIGINT",
        "high": "BIGINT",
        "p10": "BIGINT",
        "p90": "BIGINT",
        "most": "BIGINT",
    },
    OPS: {
        "map": "VARCHAR",
        "op": "VARCHAR",
        "key": "VARCHAR",
        "how": "VARCHAR",
        "name": "VARCHAR",
        "file": "VARCHAR",
        "line": "BIGINT",
        "function": "VARCHAR",
        "scope": "VARCHAR",
    },
    MAPS: {"map": "VARCHAR", "name": "VARCHAR", "content": "BLOB"},
}
"""By table its columns, with their types in SQL; NULL is unknown.

runs: `run` is the run's name, `number` the same as other tables have it in their column `run`; `date` is the day (UTC)
of `recorded_ns`, which the recording machine's clock told, `added_ns` is by the clock of who added it; `tool_ns` is the
profiler's own work, `disturbance_ns` what calls took beyond their fences, of CPU time; `header` is the run's header as
JSON.
targets: the n-th of the `places` that events of a target may be of; a target that is no place of the map has none, and
its `place` is the reason. aside: what of a target's sum is no work of a place. costs: what is of no op has a reason;
a metric of which there was nothing has a row of 0.
ops: `key` is the same for what `diff` matches in maps of one model; `how` it was matched.
"""

NO_METRICS: Final = frozenset({"run", "target", "invocation", "start_ns"})
"""Columns of calls that tell which one it is, and when it was: nothing that it takes. All others are metrics."""

ALWAYS: Final[Mapping[str, Sequence[str]]] = {
    RUNS: ("run", "number", "model", "map", "added_ns", "tags"),
    TARGETS: ("run", "target", "places"),
    ASIDE: ("run", "target", "metric", "reason", "amount"),
    COSTS: ("run", "metric", "amount"),
    SPREADS: ("run", "metric", "op", "median"),
    OPS: ("map", "op", "key"),
}
"""By table the columns in which nothing is ever unknown."""

Row = tuple[Any, ...]
_PARQUET: Final = f"FORMAT parquet, COMPRESSION zstd, KV_METADATA {{'{STORE_KEY}': '{STORE_VERSION}'}}"


def known(value: Any) -> Any:  # noqa: ANN401 - a cell of whatever type
    """A cell of a table: what is unknown is NULL."""
    return None if value is UNKNOWN else value


def told(cell: Any) -> Any:  # noqa: ANN401 - the same
    """The inverse of `known`."""
    return UNKNOWN if cell is None else cell


def write_rows(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Row], target: StoreFile) -> None:
    """Write a table of a store, with columns as `COLUMNS` has them.

    Raises:
        TargetUnwritable: it cannot be written.
    """
    fill(connection, "written", COLUMNS[table], rows)
    # The same rows are the same file; a header is a single one.
    order = "" if table == RUNS else " ORDER BY ALL"
    write_query(connection, f"SELECT * FROM written{order}", target)


def write_query(connection: duckdb.DuckDBPyConnection, query: str, target: StoreFile) -> None:
    """Write the rows of a query as a file of a store.

    Raises:
        TargetUnwritable: it cannot be written.
        UsageInvalid: its rows do not fit into memory, even with all that can be on disk.
    """
    import duckdb

    remedy = "allow more with --memory, or name a folder that has more room by TMPDIR"
    with target.published() as path, fitting(f"the rows of {target.name}, in their order,", remedy):
        try:
            connection.execute(f"COPY ({query}) TO {target_literal(path)} ({_PARQUET})").fetchall()
        except duckdb.IOException as error:
            raise TargetUnwritable(f"{target}: cannot be written: {said_by_system(error)}") from error
