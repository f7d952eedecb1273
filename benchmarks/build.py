"""What tracing costs at compile time: `tracemap build` against a plain `iree-compile` with the same flags."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Figure, alternating, print_row, print_title, run, targeted, tracemap
from tests.support import PLAIN_FLAGS, SAMPLES
from tracemap.toolchain import find_tool

MODEL = SAMPLES / "models" / "jax_gpt2_small_12l.mlir"


def measure(folder: Path) -> list[Figure]:
    """Five alternating pairs on GPT-2 with twelve layers."""
    ours = tracemap("build", MODEL, "-o", folder / "model.tracemap", "--force")
    theirs: list[str | Path] = [find_tool("iree-compile"), MODEL, *PLAIN_FLAGS, "-o", folder / "plain.vmfb"]
    builds, compiles, ratios = alternating(lambda: run(ours).seconds, lambda: run(theirs).seconds, 5)
    print_title(f"build against plain iree-compile, {MODEL.stem}")
    print_row("tracemap build", builds, "s")
    print_row("iree-compile", compiles, "s")
    return [targeted("build / iree-compile", ratios, "x", 1.6)]
