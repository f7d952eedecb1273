"""How soon the program answers: CPU time of short commands, above that of Python's own start."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Figure, in_turn, print_title, run, targeted, tracemap
from tests.support import SAMPLES

PAIRS = 15
ITERATIONS = 50


def measure(folder: Path) -> list[Figure]:
    """Fifteen alternating pairs of each command and `python -c pass`, on a bundle and a short run of the MLP."""
    bundle, recording = folder / "hand_mlp.tracemap", folder / "run.parquet"
    run(tracemap("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", bundle))
    run(tracemap("record", bundle, "--iterations", str(ITERATIONS), "-o", recording))
    print_title("CPU time above `python -c pass`")
    return [
        targeted(name, seconds_above_python(command), "s", target)
        for name, command, target in (
            ("tracemap --help", tracemap("--help"), 0.06),
            ("tracemap show BUNDLE op3", tracemap("show", bundle, "op3"), 0.15),
            (f"attribute, {ITERATIONS} iterations", tracemap("attribute", recording, "--map", bundle), 0.35),
            ("import tracemap", [sys.executable, "-c", "import tracemap"], 0.05),
        )
    ]


def seconds_above_python(command: Sequence[str]) -> list[float]:
    """CPU seconds of a command, of its children too, minus those of the Python start in the same pair."""
    empty = [sys.executable, "-c", "pass"]
    pairs = in_turn(lambda: run(command).cpu_seconds, lambda: run(empty).cpu_seconds, PAIRS)
    return [ours - python for ours, python in pairs]
