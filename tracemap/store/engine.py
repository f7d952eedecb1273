"""Query engines: views of the store's tables, and SQL in the common subset of DuckDB and Spark.

A test checks that the queries in `store` keep to that subset: sums of integers cast to DECIMAL(38,0), windows,
`filter`, `percentile_cont … within group`. Integer division differs, so each engine defines `quotient(a, b)`, which
rounds down like Python's `//`, also for negative numbers.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracemap.errors import StoreInvalid, UsageInvalid
from tracemap.measurements.sql import (
    check_allocated,
    damage_of,
    fill,
    open_database,
    out_of_memory,
    reading_errors,
    rows_of,
    spared_memory,
    table_of,
)
from tracemap.store.folder import Place
from tracemap.store.layout import AMOUNT, CALLS, COLUMNS, Row
from tracemap.toolchain import Progress

if TYPE_CHECKING:
    import duckdb

QUOTIENT: Final = "quotient"
# `//` and `%` truncate towards 0. The second `%` makes the remainder that of rounding down.
_A, _B = "CAST(a AS HUGEINT)", "CAST(b AS HUGEINT)"
_QUOTIENT: Final = f"CREATE MACRO {QUOTIENT}(a, b) AS CAST(({_A} - ({_A} % {_B} + {_B}) % {_B}) // {_B} AS {AMOUNT})"
_EVERY_S: Final = 1.0


def text_literal(text: str) -> str:
    """A text literal for all engines: quotes and backslashes, which some engines treat as escapes, become `chr(N)`."""
    parts = re.split(r"(['\\])", text)
    literals = (f"chr({ord(part)})" if part in {"'", "\\"} else f"'{part}'" for part in parts if part)
    return f"({' || '.join(literals)})" if text else "''"


class Engine(Protocol):
    """Runs queries on views and temporary tables."""

    def view(self, name: str, files: Sequence[str]) -> None:
        """Create a view of files of one table. Without files it has no rows.

        Files of calls differ in their metrics. A metric that a file lacks is NULL.
        """

    def fill(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        """Create a small table from Python rows, with columns of these SQL types."""

    def columns(self, name: str) -> Sequence[str]:
        """The names of a view's columns."""

    def keep(self, name: str, query: str) -> None:
        """Run a query and store its rows as a table."""

    def rows(self, query: str) -> list[Row]:
        """All rows of a query. Integers and decimals without fraction become ints."""


class DuckEngine:
    """DuckDB in this process, with bounded memory; it spills to disk."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, memory: int, progress: Progress) -> None:
        self._connection = connection
        self._memory = memory
        self._progress = progress
        connection.execute("SET preserve_insertion_order = false")
        # Each query opens thousands of files. None is ever replaced, so cache their metadata.
        connection.execute("SET parquet_metadata_cache = true")
        # Do not trust a file's statistics: a damaged file that claimed to have no NULL was summed up.
        connection.execute("SET disabled_optimizers = 'statistics_propagation'")
        connection.execute(_QUOTIENT)

    def view(self, name: str, files: Sequence[str]) -> None:
        """See `Engine.view`."""
        if not files:
            empty = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in COLUMNS[name].items())
            self._execute(f"CREATE OR REPLACE VIEW {name} AS SELECT {empty} LIMIT 0")
            return
        self._execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {_parquet(files, name)}")
        # The first file sets the types for all files; others raise an error.
        types = {str(column): str(kind) for column, kind, *_ in self._execute(f"DESCRIBE {name}").fetchall()}
        if any(types.get(column) != kind for column, kind in COLUMNS.get(name, {}).items()):
            raise StoreInvalid(f"the store cannot be read: its {name} have other columns than a store's")

    def fill(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        """See `Engine.fill`."""
        fill(self._connection, name, columns, rows)

    def columns(self, name: str) -> Sequence[str]:
        """See `Engine.columns`."""
        return [str(column) for column, *_ in self._execute(f"DESCRIBE {name}").fetchall()]

    def keep(self, name: str, query: str) -> None:
        """See `Engine.keep`."""
        with self._watched():
            self._execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    def rows(self, query: str) -> list[Row]:
        """See `Engine.rows`."""
        with self._watched():
            return [tuple(map(_plain, row)) for row in self._execute(query).fetchall()]

    def _execute(self, query: str) -> duckdb.DuckDBPyConnection:
        try:
            return self._connection.execute(query)
        except out_of_memory() as error:
            check_allocated(error)
            raise UsageInvalid(
                f"the query needs more than {self._memory // 1_000_000} MB, even when it spills to disk: "
                "raise --memory, set TMPDIR to a folder with more room, or select fewer runs with --where"
            ) from error
        except reading_errors() as error:
            raise StoreInvalid(f"the store cannot be read: {damage_of(error)}") from error

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Report the progress of a query once a second."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_EVERY_S):
                percent = self._connection.query_progress()
                if percent >= 0:
                    self._progress(f"summing calls: {percent:.0f} %")

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _plain(cell: Any) -> Any:  # noqa: ANN401 - a cell of any type
    """A cell as a Python value: decimals become ints."""
    from decimal import Decimal

    return int(cell) if isinstance(cell, Decimal) else cell


def columns_of(files: Sequence[str]) -> dict[str, str]:
    """The union of the columns of Parquet files, with their types, from the footers.

    Raises:
        StoreInvalid: a file cannot be read.
    """
    try:
        described = rows_of(f"DESCRIBE SELECT * FROM {_parquet(files, CALLS)}")
    except reading_errors() as error:
        raise StoreInvalid(f"the store cannot be read: {damage_of(error)}") from error
    return {str(column): str(kind) for column, kind, *_ in described}


def _parquet(files: Sequence[str], table: str) -> str:
    """SQL for files of a table. Only calls need the union of columns, as finding it takes as long as a small read."""
    return table_of("read_parquet", files, f"union_by_name = {str(table == CALLS).lower()}")


@contextmanager
def duck_engine(memory_mb: int, progress: Progress, place: Place | None = None) -> Iterator[DuckEngine]:
    """DuckDB with a limit in megabytes (0: what the machine can spare), which reads files of a storage."""
    memory = memory_mb * 1_000_000 or spared_memory()
    with open_database(memory) as connection:
        engine = DuckEngine(connection, memory, progress)
        if place is None:
            yield engine
            return
        place.open_to(connection)
        try:
            yield engine
        except StoreInvalid:
            place.check_answers()
            raise
