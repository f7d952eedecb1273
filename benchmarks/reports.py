"""How long answers take on a real model: `show`, `attribute`, `diff` and the pages of GPT-2 with twelve layers."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Figure, print_title, run, targeted, tracemap
from benchmarks.pages import browser_of, frames, until_interactive
from tests.support import SAMPLES

MODEL = "jax_gpt2_small_12l"
REPEATS = 5
OTHER_FLAGS = ("--iree-opt-level=O3", "--iree-dispatch-creation-enable-aggressive-fusion")
"""Of the build that the first one is compared with."""


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
    figures.append(targeted("page", [page.stat().st_size / 1e6], "MB", 1.5))
    with browser_of(folder / "profile") as browser:
        if browser is not None:
            seconds = until_interactive(browser, page, "overview", "#icicle g.cell")
            figures += [targeted("page, until interactive", seconds, "s", 1.0), *frames(browser, "dot_general h3")]
    return figures + _of_comparison(folder, bundle, made)


def _of_comparison(folder: Path, bundle: Path, made: Path) -> list[Figure]:
    """The page of two builds with a run of each, of which most kernels are others."""
    other, again, page = folder / "other.tracemap", folder / "other.parquet", folder / "diff.html"
    model, sources = SAMPLES / "models" / f"{MODEL}.mlir", SAMPLES / "sources"
    run(tracemap("build", model, "--source-root", sources, "-o", other, "--", *OTHER_FLAGS))
    run(tracemap("record", other, "--flagfile", SAMPLES / "flags" / f"{MODEL}.flags", "--iterations", "5", "-o", again))
    maps = ("--map-a", bundle, "--map-b", other)
    seconds = [run(tracemap("diff", made, again, *maps, "--html", page, "--force")).seconds for _ in range(REPEATS + 1)]
    figures = [targeted("diff --html", seconds[1:], "s", 2.0)]
    figures.append(targeted("page of a comparison", [page.stat().st_size / 1e6], "MB", 3.0))
    with browser_of(folder / "other profile") as browser:
        if browser is not None:
            until = until_interactive(browser, page, "overview", "#changed-ops tr")
            figures.append(targeted("page of a comparison, until interactive", until, "s", 1.0))
    return figures
