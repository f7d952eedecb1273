"""A store's calls added up by a cluster of Spark's with two workers, beside DuckDB: the same answer, calls a second.

`.sparkenv/bin/python -m benchmarks store_spark` (after `make spark`) measures STORE_SPARK_FILES=100 files of a million
calls. Master and workers lie on the loopback, where they share the processors: what is seen is what Spark costs.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from benchmarks.measure import Figure, output_of, print_row, print_title, tracemap
from benchmarks.store import CALLS, make_store
from tests.spark_cluster import cluster_in
from tests.support import ROOT

FILES: Final = int(os.environ.get("STORE_SPARK_FILES", "100"))
WORKERS: Final = 2
MEMORY_MB: Final = 1_000
REPEATS: Final = 3


def measure(folder: Path) -> list[Figure]:
    """Prints what both take; there is no target, but answers must be the same.

    Raises:
        SystemExit: they are not.
    """
    store = folder / "store"
    make_store(folder, store, FILES, CALLS)
    query = [*tracemap("store", "query", "--store", store, "--calls", "--format", "json"), "--memory", str(MEMORY_MB)]
    print_title(f"store query --calls on Spark with {WORKERS} workers, {FILES:,} files of {CALLS:,} calls")
    with cluster_in(folder / "cluster") as cluster:
        for _ in range(WORKERS):
            cluster.add_worker()
        answers = {"DuckDB": _timed("DuckDB", query), "Spark": _timed("Spark", [*query, "--engine", cluster.master])}
    if answers["DuckDB"] != answers["Spark"]:
        raise SystemExit("Spark and DuckDB do not give the same answer")
    return []


def _timed(name: str, query: list[str]) -> str:
    """What a query prints; prints how long it takes."""
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        answer = output_of(query, cwd=ROOT)
        seconds.append(time.perf_counter() - began)
    print_row(name, seconds, "s")
    print_row(f"{name}, calls a second", [FILES * CALLS / each / 1e6 for each in seconds], "M")
    return answer
