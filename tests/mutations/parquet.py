"""Changes at random to tables in Parquet that leave a whole file: no damaged byte would make them."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import duckdb

from tests.mutations.changes import changed_bytes, changed_json
from tracemap.runs.sql import literal, quoted

_NUMBERS = (
    "0",
    "-1",
    "7",
    "9223372036854775807",
    "-9223372036854775807",
    "1e308",
    "'nan'::DOUBLE",
    "0.5",
    "4294967296",
)
_TYPES = ("TINYINT", "INTEGER", "BIGINT", "HUGEINT", "DOUBLE", "DECIMAL(38, 0)")
_TEXTS = (
    *("", " ", "x", "op0", "op999999", "site0", "main", "null", "time", "duration_ns", "a" * 100_000),
    *(
        "../../../etc/passwd",
        "/etc/passwd",
        ".",
        "\n",
        "\x1b[31m",
        "</script>",
        "é\u202e",
        "=1+1",
        "'; DROP TABLE costs",
    ),
)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """One for all changes of a worker: to open one takes longer than a change."""
    return duckdb.connect()


@contextmanager
def _opened(data: bytes) -> Iterator[tuple[duckdb.DuckDBPyConnection, str, Path]]:
    """A connection, the table's SQL and a path to write to."""
    with tempfile.TemporaryDirectory() as work:
        old = Path(work) / "old.parquet"
        old.write_bytes(data)
        yield _database(), str(old), Path(work) / "new.parquet"


def changed_parquet_header(data: bytes, dice: random.Random) -> bytes:
    """The table as it was, with changes to the JSON that its metadata holds."""
    with _opened(data) as (connection, old, new):
        ((header,),) = connection.execute(
            "SELECT value FROM parquet_kv_metadata($1) WHERE key = 'tracemap'", [old]
        ).fetchall()
        connection.execute("SET VARIABLE header = $1::BLOB", [changed_json(header, dice)])
        connection.execute(
            f"COPY (SELECT * FROM '{old}') TO '{new}' (FORMAT parquet, KV_METADATA {{tracemap: getvariable('header')}})"
        )
        return new.read_bytes()


def changed_table(data: bytes, dice: random.Random) -> bytes:
    """Changes to a column or to rows; now and then to bytes."""
    if dice.random() < 0.3:
        return changed_bytes(data, dice)
    with _opened(data) as (connection, old, new):
        # So that the same dice make the same change.
        connection.execute("SET threads = 1")
        connection.execute("SELECT setseed($1)", [dice.random()])
        table = f"read_parquet({literal(old)}, hive_partitioning = false)"
        pairs = connection.execute("SELECT decode(key), decode(value) FROM parquet_kv_metadata($1)", [old]).fetchall()
        kept = pairs if dice.random() < 0.9 else ()
        metadata = ", ".join(f"{quoted(key)}: {literal(value)}" for key, value in kept)
        names = [name for name, *_ in connection.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()]
        query = _changed(table, dice.choice(names), dice)
        options = f"FORMAT parquet, KV_METADATA {{{metadata}}}" if metadata else "FORMAT parquet"
        connection.execute(f"COPY ({query}) TO '{new}' ({options})")
        return new.read_bytes()


def _changed(table: str, name: str, dice: random.Random) -> str:
    """A SELECT of the rows with one change, mostly to a column."""
    column, word, number = quoted(name), literal(dice.choice(_TEXTS)), dice.choice(_NUMBERS)
    some = dice.choice(("true", "random() < 0.3"))
    values = (
        f"CASE WHEN {some} THEN NULL ELSE {column} END",
        f"CASE WHEN {some} THEN {word} ELSE CAST({column} AS VARCHAR) END",
        f"CASE WHEN {some} THEN {number} ELSE TRY_CAST(CAST({column} AS VARCHAR) AS {dice.choice(_TYPES)}) END",
        f"[{column}]",
    )
    changes = (
        *(f"SELECT * REPLACE ({value} AS {column}) FROM {table}" for value in values),
        f"SELECT * EXCLUDE ({column}), 1 AS one_more FROM {table}",
        f"SELECT * RENAME ({column} AS renamed) FROM {table}",
        f"SELECT * FROM {table} WHERE {dice.choice(('false', 'random() < 0.5'))}",
        f"SELECT changed.* FROM {table} AS changed, range({dice.choice((2, 100))})",
    )
    return dice.choice(changes)
