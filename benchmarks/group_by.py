"""The least that an attribution must do, in bare SQL: `python -m benchmarks.group_by RUN`.

Reads the columns that attribution reads and groups by kernel and command, with the same aggregates of the same metrics.
"""

from __future__ import annotations

import sys

import duckdb

AGGREGATES = ", ".join(
    f"sum({metric}), quantile_disc({metric}, [0.1, 0.5, 0.9])" for metric in ("cpu_ns", "duration_ns")
)

if __name__ == "__main__":
    with duckdb.connect() as connection:
        connection.execute(
            f"SELECT kind, kernel, command_buffer_id, command_index, count(*), {AGGREGATES} "
            f"FROM '{sys.argv[1]}' WHERE NOT warmup GROUP BY ALL"
        ).fetchall()
