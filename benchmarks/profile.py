"""What `tracemap profile` costs: against a plain `iree-compile` and as many plain calls as it measured."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.measure import Figure, alternating, print_row, print_title, run, targeted, tracemap
from tests.support import PLAIN_FLAGS, SAMPLES
from tracemap.core.toolchain import find_tool
from tracemap.runs.runfile import read_run

MODELS = ("hand_mlp", "jax_mlp_train", "jax_gpt2_small_12l")
COMPILE_BOUND = "jax_gpt2_small_12l"
"""A small model measures until the limit of `--seconds`, so that only a large one has a target."""
PAIRS = 3
_GENERATED = re.compile(r"(=@|: ).*$")


def measure(folder: Path) -> list[Figure]:
    """Three alternating pairs of each model."""
    return [figure for model in MODELS for figure in _pairs(folder, model)]


def _pairs(folder: Path, name: str) -> list[Figure]:
    model, page = SAMPLES / "models" / f"{name}.mlir", folder / "page.html"
    ours, plain, ratios = alternating(
        lambda: run(tracemap("profile", model, "-o", page), cwd=folder).seconds, lambda: _plain(folder, name), PAIRS
    )
    print_title(f"profile against plain compile and calls, {name}")
    print_row("tracemap profile", ours, "s")
    print_row("compile and calls", plain, "s")
    if name == COMPILE_BOUND:
        return [targeted("profile / compile and calls", ratios, "x", 1.5)]
    print_row("profile / compile and calls", ratios, "x")
    return []


def _plain(folder: Path, name: str) -> float:
    """Seconds to compile the model, and to call it as often as the newest run did; 1 before the first run."""
    runs = sorted((folder / f"{name}.tracemap" / "runs").glob("*.parquet"))
    if not runs:
        return 1.0
    module = folder / "plain.vmfb"
    compiled = run([find_tool("iree-compile"), SAMPLES / "models" / f"{name}.mlir", *PLAIN_FLAGS, "-o", module])
    header = read_run(runs[-1]).header
    command: list[str | Path] = [
        find_tool("iree-benchmark-module"),
        f"--module={module}",
        f"--function={header.function}",
    ]
    inputs = [f"--input={_GENERATED.sub('=1', text)}" for text in header.inputs]
    called = run([*command, *inputs, "--device=local-task", f"--benchmark_min_time={header.iterations}x"])
    return compiled.seconds + called.seconds
