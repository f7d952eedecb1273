"""The least that an attribution must do, in bare SQL: `python -m benchmarks.group_by RUN [bare|invocations]`.

Reads the columns that attribution reads and groups by kernel, command and shape, with the same aggregates of the same
metrics over calls; `bare`: groups by kernel and command, and only counts and sums; `invocations`: the aggregates over
calls, and those over invocations, which attribution tells of each op besides.
"""

from __future__ import annotations

import sys

import duckdb

METRICS = ("cpu_ns", "duration_ns")
COMMAND = "kind, kernel, command_buffer_id, command_index"
SHAPE = "workgroups_x, workgroups_y, workgroups_z, payload_bytes"
SUMS = ", ".join(f"sum({metric})" for metric in METRICS)
ORDERED = ", ".join(f"max({metric}), quantile_disc({metric}, [0.1, 0.25, 0.5, 0.75, 0.9])" for metric in METRICS)
SUMMED = ", ".join(f"sum({metric}) AS {metric}" for metric in METRICS)


def query(run: str, *, bare: bool) -> str:
    """The group-by of a run, over its calls."""
    columns = f"{COMMAND}, count(*), {SUMS}"
    if not bare:
        columns = f"{columns}, {SHAPE}, count(invocation), {ORDERED}"
    return f"SELECT {columns} FROM '{run}' WHERE NOT warmup GROUP BY ALL"


def over_invocations(run: str) -> str:
    """The distribution over invocations of what the calls of each command take in one."""
    summed = f"SELECT {COMMAND}, invocation, {SUMMED} FROM '{run}' WHERE NOT warmup GROUP BY ALL"
    return f"SELECT {COMMAND}, count(*), {ORDERED} FROM ({summed}) GROUP BY ALL"


if __name__ == "__main__":
    path, words = sys.argv[1], sys.argv[2:]
    with duckdb.connect() as connection:
        connection.execute(query(path, bare=words == ["bare"])).fetchall()
        if words == ["invocations"]:
            connection.execute(over_invocations(path)).fetchall()
