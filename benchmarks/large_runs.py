"""How attribution copes with much data: a run of ten million events, made by repeating a recorded one.

Parquet has a target in seconds; reading CSV is mostly parsing, so it is compared with a plain DuckDB group-by of the
same columns and aggregates on the same file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measure import Figure, alternating, print_row, print_title, run, targeted, tracemap
from tests.support import ROOT, SAMPLES

MODEL = "jax_gpt2_4l"
EVENTS = 10_000_000
REPEATS = 5


def measure(folder: Path) -> list[Figure]:
    """Whole commands: seconds on Parquet, ratio to a group-by on CSV, and the peak of memory of both."""
    bundle, large = make_run(folder)
    parquet = tracemap("attribute", large.with_suffix(".parquet"), "--map", bundle, "--format", "json")
    table = tracemap("attribute", large.with_suffix(".csv"), "--map", bundle, "--format", "json")
    group_by: list[str | Path] = [sys.executable, "-m", "benchmarks.group_by", large.with_suffix(".csv")]
    print_title(f"attribute {EVENTS:,} events, {MODEL}")
    usages = [run(parquet) for _ in range(REPEATS + 1)][1:]
    figures = [targeted("attribute Parquet", [usage.seconds for usage in usages], "s", 2.0)]
    peaks = [usage.peak_mib for usage in usages]

    def attribute_table() -> float:
        usage = run(table)
        peaks.append(usage.peak_mib)
        return usage.seconds

    ours, theirs, ratios = alternating(attribute_table, lambda: run(group_by, cwd=ROOT).seconds, REPEATS)
    print_row("attribute CSV", ours, "s")
    print_row("group-by CSV", theirs, "s")
    figures.append(targeted("attribute / group-by, CSV", ratios, "x", 1.5))
    return [*figures, targeted("peak memory, largest", [max(peaks)], "MiB", 1e9 / 2**20)]


def make_run(folder: Path) -> tuple[Path, Path]:
    """A bundle, and the common stem of the large run's Parquet and CSV."""
    bundle, recorded, large = folder / f"{MODEL}.tracemap", folder / "recorded.parquet", folder / "large"
    run(tracemap("build", SAMPLES / "models" / f"{MODEL}.mlir", "-o", bundle))
    flags = SAMPLES / "flags" / f"{MODEL}.flags"
    run(tracemap("record", bundle, "--flagfile", flags, "--iterations", "100", "-o", recorded))
    run([sys.executable, "-m", "benchmarks.repeat_run", recorded, large, str(EVENTS)], cwd=ROOT)
    return bundle, large
