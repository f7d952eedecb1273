"""How tracemap copes with a large model: a decoder of fifty thousand ops, its map, costs, page and diff.

What making and running the program takes is the compiler's and the runtime's, and left out. A page is interactive when
its script has run and the source that its address names is drawn, in a Chromium without a window.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks import differences
from benchmarks.decoder import Decoder
from benchmarks.measure import Figure, peak_with_forks_mib, print_row, print_title, run, targeted, tracemap
from benchmarks.pages import browser_of, frames, until_interactive

LAYERS: Final = 636
ITERATIONS: Final = 20
REPEATS: Final = 3
LINE: Final = 40_000
"""What is drawn is around it: lines of the middle of a text are reached as quickly as its first ones."""


def measure(folder: Path) -> list[Figure]:
    """Build and record the decoder once; attribute it with its page, and open that, a few times."""
    model, bundle = folder / "decoder.mlir", folder / "decoder.tracemap"
    made, page = folder / "run.parquet", folder / "page.html"
    model.write_text(Decoder(LAYERS).text(), encoding="utf-8")
    run(tracemap("build", model, "-o", bundle))
    run(tracemap("record", bundle, "--iterations", str(ITERATIONS), "-o", made))
    ops = model.read_text(encoding="utf-8").count("stablehlo.")
    print_title(f"a decoder of {LAYERS} layers, {ops:,} ops")
    command = tracemap("attribute", made, "--map", bundle, "--html", page, "--force")
    usages = [run(command) for _ in range(REPEATS + 1)][1:]
    figures = [
        targeted("attribute --html", [usage.seconds for usage in usages], "s", 6.0),
        targeted("peak memory, all processes", [peak_with_forks_mib(command)], "MiB", 700.0),
        targeted("page", [page.stat().st_size / 1e6], "MB", 15.0),
        targeted("map", [(bundle / "map.json").stat().st_size / ops], "B/op", 300.0),
    ]
    print_row("attribute --html, CPU", [usage.cpu_seconds for usage in usages], "s")
    figures += differences.of_large(bundle, made, folder)
    return [*figures, *_opened(page, folder / "profile")]


def _opened(page: Path, profile: Path) -> list[Figure]:
    with browser_of(profile) as browser:
        if browser is None:
            return []
        seconds = until_interactive(browser, page, f"F0L{LINE}", f"#F0L{LINE} .g")
        elements = browser.execute_script("return document.querySelectorAll('*').length")
        print(f"  {elements:,} elements in the document")
        return [targeted("page, until interactive", seconds, "s", 3.0), *frames(browser, "stablehlo.dot layer12")]
