"""How long answers take on a real model: `show`, `attribute` and the page of GPT-2 with twelve layers."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Figure, print_title, run, targeted, tracemap
from tests.support import SAMPLES

MODEL = "jax_gpt2_small_12l"
REPEATS = 5


def measure(folder: Path) -> list[Figure]:
    """Whole commands, from start to exit; the first of each is not counted."""
    bundle, made, page = folder / f"{MODEL}.tracemap", folder / "run.parquet", folder / "page.html"
    model, sources = SAMPLES / "models" / f"{MODEL}.mlir", SAMPLES / "sources"
    run(tracemap("build", model, "--source-root", sources, "-o", bundle))
    run(tracemap("record", bundle, "--flagfile", SAMPLES / "flags" / f"{MODEL}.flags", "--iterations", "5", "-o", made))
    commands = {
        "show": tracemap("show", bundle, "--format", "json"),
        "attribute": tracemap("attribute", made, "--map", bundle),
        "attribute --html": tracemap("attribute", made, "--map", bundle, "--html", page, "--force"),
        "report": tracemap("report", bundle, made, "-o", page, "--force"),
    }
    print_title(f"answers on {MODEL}")
    figures = []
    for name, command in commands.items():
        seconds = [run(command).seconds for _ in range(REPEATS + 1)][1:]
        figures.append(targeted(name, seconds, "s", 1.0))
    return figures
