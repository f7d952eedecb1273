"""Make a large run of a recorded one: `python -m benchmarks.repeat_run RECORDED.parquet TARGET EVENTS [FORMAT…]`.

Writes TARGET.parquet, and TARGET.csv where the format csv is named, with the recorded header. A process of its own,
because the peak of memory of a measured command begins with that of the process that started it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

_COUNTERS = ("submission_id", "call", "invocation")
_PAUSE_NS = 10_000_000


def repeat(recorded: Path, target: Path, events: int, *, as_csv: bool) -> None:
    """Repeat the measured rows; numbers that count and times go on rising, so that no two rows are the same event."""
    rows = f"(SELECT * FROM '{recorded}' WHERE NOT warmup)"
    with duckdb.connect() as connection:
        ends = ", ".join(f"max({name}) - min({name}) + 1" for name in _COUNTERS)
        query = f"SELECT count(*), max(start_ns) - min(start_ns) + {_PAUSE_NS}, {ends} FROM {rows}"
        ((count, span, *steps),) = connection.execute(query).fetchall()
        shifts = {"start_ns": span, **dict(zip(_COUNTERS, steps, strict=True))}
        moved = ", ".join(f"{name} + copy * {shift or 0} AS {name}" for name, shift in shifts.items())
        # Real calls differ: without this the ten million values would be a few thousand.
        moved += "".join(
            f", CASE kind WHEN 'dispatch' THEN greatest({name} - copy % 97, 1) ELSE {name} END AS {name}"
            for name in ("cpu_ns", "duration_ns")
        )
        copies = f"range({-(-events // count)}) AS copies(copy)"
        repeated = f"SELECT run.* REPLACE ({moved}) FROM {copies}, {rows} AS run LIMIT {events}"
        metadata = f"SELECT decode(value) FROM parquet_kv_metadata('{recorded}') WHERE decode(key) = 'tracemap'"
        ((header,),) = connection.execute(metadata).fetchall()
        quoted = str(header).replace("'", "''")
        parquet, table = (target.with_suffix(suffix) for suffix in (".parquet", ".csv"))
        connection.execute(f"COPY ({repeated}) TO '{parquet}' (FORMAT parquet, KV_METADATA {{tracemap: '{quoted}'}})")
        if as_csv:
            connection.execute(f"COPY (SELECT * FROM '{parquet}') TO '{table}' (FORMAT csv, HEADER true)")
            table.with_name(table.name + ".json").write_text(str(header), encoding="utf-8")


if __name__ == "__main__":
    repeat(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), as_csv="csv" in sys.argv[4:])
