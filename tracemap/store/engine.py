"""What answers questions about many runs: views of the store's tables, and queries in SQL that every engine takes.

The common part of DuckDB's and Spark's SQL is what the texts in `store` keep to (a test says so): sums of whole numbers
cast to DECIMAL(38,0), windows, `filter`, `percentile_cont … within group`. Whole quotients are written differently in
both; each engine defines `quotient(a, b)`, which rounds down as Python's `//` does, also what is negative.
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
# `//` and `%` cut off towards 0; the second `%` makes the rest one of rounding down.
_A, _B = "CAST(a AS HUGEINT)", "CAST(b AS HUGEINT)"
_QUOTIENT: Final = f"CREATE MACRO {QUOTIENT}(a, b) AS CAST(({_A} - ({_A} % {_B} + {_B}) % {_B}) // {_B} AS {AMOUNT})"
_EVERY_S: Final = 1.0


def text_literal(text: str) -> str:
    """A text as all engines take it: what ends a literal, or escapes in some, stands beside it by its number."""
    parts = re.split(r"(['\\])", text)
    shown = (f"chr({ord(part)})" if part in {"'", "\\"} else f"'{part}'" for part in parts if part)
    return f"({' || '.join(shown)})" if text else "''"


class Engine(Protocol):
    """Runs queries over views and kept tables."""

    def view(self, name: str, files: Sequence[str]) -> None:
        """Make files of one table a view. Without files it has no rows.

        Calls have the metrics that their run was measured with: one that a file lacks is NULL there.
        """

    def fill(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        """A small table of rows of ours, with columns of these SQL types."""

    def columns(self, name: str) -> Sequence[str]:
        """The names of a view's columns."""

    def keep(self, name: str, query: str) -> None:
        """Compute a query once, and keep its rows as a table."""

    def rows(self, query: str) -> list[Row]:
        """All rows of a query. Whole numbers and decimals of whole numbers are ints, whatever their SQL types."""


class DuckEngine:
    """DuckDB in this process: bounded memory, what does not fit is spilled."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, memory: int, progress: Progress) -> None:
        self._connection = connection
        self._memory = memory
        self._progress = progress
        connection.execute("SET preserve_insertion_order = false")
        # Thousands of files, each opened by every query; none is ever replaced.
        connection.execute("SET parquet_metadata_cache = true")
        # What a file says of its values is not to be believed: one that denies that it has lost some was summed up.
        connection.execute("SET disabled_optimizers = 'statistics_propagation'")
        connection.execute(_QUOTIENT)

    def view(self, name: str, files: Sequence[str]) -> None:
        """As `Engine.view`."""
        if not files:
            empty = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in COLUMNS[name].items())
            self._execute(f"CREATE OR REPLACE VIEW {name} AS SELECT {empty} LIMIT 0")
            return
        self._execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {_parquet(files, name)}")
        # All files are read as the first of them is, or are refused.
        found = {str(column): str(kind) for column, kind, *_ in self._execute(f"DESCRIBE {name}").fetchall()}
        if any(found.get(column) != kind for column, kind in COLUMNS.get(name, {}).items()):
            raise StoreInvalid(f"the store cannot be read: its {name} are no table of a store")

    def fill(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        """As `Engine.fill`."""
        fill(self._connection, name, columns, rows)

    def columns(self, name: str) -> Sequence[str]:
        """As `Engine.columns`."""
        return [str(column) for column, *_ in self._execute(f"DESCRIBE {name}").fetchall()]

    def keep(self, name: str, query: str) -> None:
        """As `Engine.keep`."""
        with self._watched():
            self._execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    def rows(self, query: str) -> list[Row]:
        """As `Engine.rows`."""
        with self._watched():
            return [tuple(map(_plain, row)) for row in self._execute(query).fetchall()]

    def _execute(self, query: str) -> duckdb.DuckDBPyConnection:
        try:
            return self._connection.execute(query)
        except out_of_memory() as error:
            check_allocated(error)
            raise UsageInvalid(
                f"the runs take more memory than {self._memory // 1_000_000} MB, even with all that can be on disk: "
                "allow more with --memory, let TMPDIR name a folder with more room, or choose fewer runs with --where"
            ) from error
        except reading_errors() as error:
            raise StoreInvalid(f"the store cannot be read: {damage_of(error)}") from error

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Tell how far a query is, once a second."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_EVERY_S):
                percent = self._connection.query_progress()
                if percent >= 0:
                    self._progress(f"adding up calls: {percent:.0f} %")

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _plain(cell: Any) -> Any:  # noqa: ANN401 - a cell of whatever type
    """A cell as Python has it: decimals without places are whole numbers."""
    from decimal import Decimal

    return int(cell) if isinstance(cell, Decimal) else cell


def columns_of(files: Sequence[str]) -> dict[str, str]:
    """The columns that Parquet files have together, with their types, as their footers tell.

    Raises:
        StoreInvalid: one cannot be read.
    """
    try:
        described = rows_of(f"DESCRIBE SELECT * FROM {_parquet(files, CALLS)}")
    except reading_errors() as error:
        raise StoreInvalid(f"the store cannot be read: {damage_of(error)}") from error
    return {str(column): str(kind) for column, kind, *_ in described}


def _parquet(files: Sequence[str], table: str) -> str:
    """Files of a table as DuckDB takes them; to find the columns of all of them takes as long as reading small ones."""
    return table_of("read_parquet", files, f"union_by_name = {str(table == CALLS).lower()}")


@contextmanager
def duck_engine(memory_mb: int, progress: Progress, place: Place | None = None) -> Iterator[DuckEngine]:
    """DuckDB, which may hold so many megabytes (0: what the machine can spare), and reads files of a place."""
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
