"""How soon the program answers: `tracemap --help` imports no heavy package."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Figure, print_title, run, targeted, tracemap


def measure(_folder: Path) -> list[Figure]:
    """Median of 15 starts after one that fills caches."""
    run(tracemap("--help"))
    print_title("start")
    return [targeted("tracemap --help", [run(tracemap("--help")).seconds for _ in range(15)], "s", 0.15)]
