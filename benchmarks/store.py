"""How a store copes with many calls: runs of a million calls each, made of a recorded one, on one machine.

`python -m benchmarks store` measures STORE_FILES=1000 files, a thousand million calls: some minutes and ten gigabytes.
All single calls are added up (`tracemap store query --calls`), beside DuckDB's bare group-by of the same files, in
turn, both under the same limit of memory. The files have as many targets as the real run; the values of their calls are
its own, moved a little, differently in each file.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import duckdb

from benchmarks.measure import Figure, in_turn, print_row, print_title, run, targeted, tracemap
from tests.support import ROOT, SAMPLES

MODEL: Final = "jax_gpt2_4l"
FILES: Final = int(os.environ.get("STORE_FILES", "1000"))
CALLS: Final = 1_000_000
ITERATIONS: Final = "4000"
"""Of the real run: some 270,000 calls."""
MEMORY_MB: Final = 4_000
PAIRS: Final = 5
_NEEDED: Final = 14_000
"""Bytes of disk for a thousand calls, with room to spare."""


def measure(folder: Path) -> list[Figure]:
    """Seconds by those of the bare group-by, and the peak of memory; over a hundredth and a tenth of the files, too."""
    needed = FILES * CALLS // 1000 * _NEEDED
    if shutil.disk_usage(folder).free < needed:
        raise SystemExit(f"{FILES} files of {CALLS:,} calls need {needed / 1e9:.0f} GB of disk")
    figures: list[Figure] = []
    for files in sorted({max(1, FILES // 100), max(1, FILES // 10), FILES}):
        store = folder / f"store-{files}"
        make_store(folder, store, files, CALLS)
        figures += _measured(store, files, largest=files == FILES)
        shutil.rmtree(store)
    return figures


def _measured(store: Path, files: int, *, largest: bool) -> Iterator[Figure]:
    print_title(f"store query --calls, {files:,} files of {CALLS:,} calls")
    query = tracemap("store", "query", "--calls", "--store", store, "--memory", str(MEMORY_MB), "--format", "json")
    bare = [sys.executable, "-m", "benchmarks.bare_group_by", str(store), str(MEMORY_MB)]
    run(query, cwd=ROOT)  # once for the whole tree of files, which the system then knows
    pairs = in_turn(lambda: run(query, cwd=ROOT), lambda: run(bare, cwd=ROOT), PAIRS)
    print_row("store query", [ours.seconds for ours, _ in pairs], "s")
    print_row("bare group-by", [theirs.seconds for _, theirs in pairs], "s")
    print_row("calls a second", [files * CALLS / ours.seconds / 1e6 for ours, _ in pairs], "M")
    rates = [theirs.seconds / ours.seconds for ours, theirs in pairs]
    print_row("rate by that of the group-by", rates, "x")
    peak = max(ours.peak_mib for ours, _ in pairs)
    print_row("peak memory", [peak], "MiB")
    if largest:
        # The rate is to be at least 0.8 of the group-by's: the time at most 1.25 times its.
        yield targeted("store query / bare group-by", [1 / rate for rate in rates], "x", 1.25)
        yield targeted("store query, peak memory", [peak], "MiB", 8e9 / 2**20)


def make_store(folder: Path, store: Path, files: int, calls: int) -> None:
    """A store of so many runs, each of so many calls, made of one that was recorded and added."""
    first = folder / "first"
    if not first.exists():
        flags = ("--flagfile", SAMPLES / "flags" / f"{MODEL}.flags", "--iterations", ITERATIONS)
        add_recorded(SAMPLES / "models" / f"{MODEL}.mlir", flags, first, folder)
    multiply(first, store, files, calls)


def add_recorded(model: Path, options: Sequence[str | Path], store: Path, folder: Path) -> None:
    """Build a model and record it with these options, and add the run to a store; other files lie in the folder."""
    bundle, recorded = folder / f"{model.stem}.tracemap", folder / f"{model.stem}.parquet"
    run(tracemap("build", model, "-o", bundle))
    run(tracemap("record", bundle, *options, "-o", recorded))
    run(tracemap("store", "add", recorded, "--map", bundle, "--store", store))


def multiply(first: Path, store: Path, files: int, calls: int) -> None:
    """Make a store of so many runs, each of so many calls, of one that has a single run."""
    shutil.copytree(first, store)
    (real,) = first.glob("runs/*/*/*/*.parquet")
    with duckdb.connect() as connection:
        connection.execute("SET preserve_insertion_order = false")
        connection.execute(f"CREATE TABLE real AS FROM read_parquet('{_of(first, 'calls', real)}')")
        ((rows,),) = connection.execute("SELECT count(*) FROM real").fetchall()
        times = f"range({-(-calls // rows)}) AS again(number)"
        connection.execute(f"CREATE TABLE base AS SELECT real.* FROM real, {times} LIMIT {calls}")
        for number in range(files):
            _add(connection, first, store, real, number)
    for table in ("runs", "calls", "targets", "aside", "costs", "spreads"):
        _of(store, table, real).unlink()


def _of(store: Path, table: str, real: Path) -> Path:
    """The file of the recorded run in a table."""
    (found,) = store.glob(f"{table}/*/*/*/{real.name}")
    return found


def _add(connection: duckdb.DuckDBPyConnection, first: Path, store: Path, real: Path, number: int) -> None:
    """A run like the recorded one, of a host of its own, with a number and a name of its own."""
    name, mark = f"{number:015x}", "KV_METADATA {'tracemap-store': '1'}"
    for table in ("calls", "targets", "aside", "costs", "spreads", "runs"):
        target = _of(store, table, real).with_name(f"{name}.parquet")
        changed = f"CAST({number} AS BIGINT) AS run"
        source = f"read_parquet('{_of(first, table, real)}')"
        if table == "calls":
            changed += f", cpu_ns + (cpu_ns * ((target + {number}) % 7)) // 100 AS cpu_ns"
            source = "base"
        elif table == "runs":
            changed = f"'{name}' AS run, CAST({number} AS BIGINT) AS number, 'ci-{number % 20}' AS host"
        rows = f"SELECT * REPLACE ({changed}) FROM {source}"
        connection.execute(f"COPY ({rows}) TO '{target}' (FORMAT parquet, COMPRESSION zstd, {mark})")
