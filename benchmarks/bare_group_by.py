"""DuckDB's bare group-by of the calls of a store: `python -m benchmarks.bare_group_by STORE MEGABYTES`."""

from __future__ import annotations

import sys

import duckdb


def main(store: str, memory_mb: str) -> None:
    """Calls and CPU time by run and target."""
    with duckdb.connect() as connection:
        connection.execute(f"SET memory_limit = '{memory_mb}MB'")
        connection.execute("SET preserve_insertion_order = false")
        connection.execute(
            f"SELECT run, target, count(*), sum(cpu_ns) FROM read_parquet('{store}/calls/**/*.parquet') GROUP BY ALL"
        ).fetchall()


if __name__ == "__main__":
    main(*sys.argv[1:])
