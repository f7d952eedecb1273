"""How attribution copes with much data: a run of ten million events, made by repeating a recorded one.

Parquet has a target in seconds. Reading CSV is mostly parsing, so it is compared with bare DuckDB group-bys of the same
file: one of the same aggregates, one that only counts and sums. Attribution finds fences, outliers and distributions
over invocations besides.

`python -m benchmarks largest_runs` does so with a hundred million events, in Parquet: beside a group-by of what calls
take, and beside one of all that attribution tells, over calls and over invocations, which takes some 15 GB of memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Figure, Usage, alternating, print_row, print_title, run, targeted, tracemap
from tests.support import ROOT, SAMPLES

MODEL = "jax_gpt2_4l"
EVENTS, MOST_EVENTS = 10_000_000, 100_000_000
REPEATS, REPEATS_OF_MOST = 5, 3


def measure(folder: Path) -> list[Figure]:
    """Whole commands: seconds on Parquet, ratios to group-bys on CSV, and the peak of memory of both."""
    bundle, large = make_run(folder, EVENTS, "csv")
    parquet, table = (
        tracemap("attribute", large.with_suffix(suffix), "--map", bundle, "--format", "json")
        for suffix in (".parquet", ".csv")
    )
    print_title(f"attribute {EVENTS:,} events, {MODEL}")
    usages = [run(parquet) for _ in range(REPEATS + 1)][1:]
    figures = [targeted("attribute Parquet", [usage.seconds for usage in usages], "s", 2.0)]
    print_row("attribute Parquet, CPU", [usage.cpu_seconds for usage in usages], "s")
    for name, words, target in (("group-by", [], 1.3), ("bare group-by", ["bare"], 2.2)):
        group_by = [sys.executable, "-m", "benchmarks.group_by", str(large.with_suffix(".csv")), *words]
        usages += _beside(name, table, group_by, target, figures)
    return [*figures, targeted("peak memory, largest", [max(usage.peak_mib for usage in usages)], "MiB", 1e9 / 2**20)]


def measure_largest(folder: Path) -> list[Figure]:
    """Ratios to two group-bys of the same file, and the peak of memory."""
    bundle, large = make_run(folder, MOST_EVENTS)
    file = large.with_suffix(".parquet")
    ours = tracemap("attribute", file, "--map", bundle, "--format", "json")
    print_title(f"attribute {MOST_EVENTS:,} events, {MODEL}")
    of_calls, of_all = (
        [sys.executable, "-m", "benchmarks.group_by", str(file), *words] for words in ((), ("invocations",))
    )
    usages = [(run(ours), run(of_calls, cwd=ROOT), run(of_all, cwd=ROOT)) for _ in range(REPEATS_OF_MOST)]
    names = ("attribute", "group-by over calls", "group-by of the same")
    for number, name in enumerate(names):
        print_row(f"{name}, Parquet", [each[number].seconds for each in usages], "s")
        print_row(f"{name}, peak memory", [each[number].peak_mib for each in usages], "MiB")
    print_row("attribute / over calls", [each[0].seconds / each[1].seconds for each in usages], "x")
    ratios = [each[0].seconds / each[2].seconds for each in usages]
    return [
        targeted("attribute / group-by of the same", ratios, "x", 1.25),
        targeted("peak memory, hundred million", [max(each[0].peak_mib for each in usages)], "MiB", 2e9 / 2**20),
    ]


def _beside(
    name: str, ours: Sequence[str], theirs: Sequence[str], target: float, figures: list[Figure]
) -> Sequence[Usage]:
    """Print what attribution of a CSV takes beside a group-by of it; returns the former's usages."""
    our_usages: list[Usage] = []
    their_usages: list[Usage] = []

    def seconds(command: Sequence[str], usages: list[Usage]) -> float:
        usages.append(run(command, cwd=ROOT))
        return usages[-1].seconds

    our_s, their_s, ratios = alternating(
        lambda: seconds(ours, our_usages), lambda: seconds(theirs, their_usages), REPEATS
    )
    print_row("attribute CSV", our_s, "s")
    print_row(f"{name} CSV", their_s, "s")
    figures.append(targeted(f"attribute / {name}, CSV", ratios, "x", target))
    cpu = [one.cpu_seconds / other.cpu_seconds for one, other in zip(our_usages, their_usages, strict=True)]
    print_row(f"attribute / {name}, CPU", cpu[1:], "x")
    return our_usages


def make_run(folder: Path, events: int, *formats: str) -> tuple[Path, Path]:
    """A bundle, and the common stem of the large run's Parquet, and of its CSV where that format is named."""
    bundle, recorded, large = folder / f"{MODEL}.tracemap", folder / "recorded.parquet", folder / "large"
    run(tracemap("build", SAMPLES / "models" / f"{MODEL}.mlir", "-o", bundle))
    flags = SAMPLES / "flags" / f"{MODEL}.flags"
    run(tracemap("record", bundle, "--flagfile", flags, "--iterations", "100", "-o", recorded))
    run([sys.executable, "-m", "benchmarks.repeat_run", recorded, large, str(events), *formats], cwd=ROOT)
    return bundle, large
