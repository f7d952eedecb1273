"""What tracing costs at compile time: `tracemap build` against a plain `iree-compile` with the same flags.

Elapsed time is what a user waits; CPU time says the same on a machine that other programs use. Models of several sizes
tell whether the share of tracemap's own time grows: GPT-2 with twelve layers, and decoders of 5 and 20 thousand ops;
`python -m benchmarks build_largest` has one of 50 thousand, which takes a compiler minutes.

tracemap compiles without the compiler's checks after every pass, which a plain compilation has. `--verify=false` gives
a plain compilation without them, so the third figure is tracemap's own work alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.decoder import Decoder
from benchmarks.measure import Figure, Usage, in_turn, own_usage, print_row, print_title, run, targeted, tracemap
from tests.support import PLAIN_FLAGS, SAMPLES
from tracemap.core.toolchain import find_tool
from tracemap.map.build.cache import FOLDER_VARIABLE

MODEL = SAMPLES / "models" / "jax_gpt2_small_12l.mlir"
LAYERS = (64, 254)
"""Of decoders of 5 and 20 thousand ops."""
LARGEST_LAYERS = 636
PAIRS, PAIRS_OF_LARGEST, PAIRS_WITHOUT_TARGET = 9, 3, 3


def measure(folder: Path) -> list[Figure]:
    """Nine alternating pairs of each model."""
    decoders = [decoder(folder, layers) for layers in LAYERS]
    return [figure for model in (MODEL, *decoders) for figure in _pairs(folder, model, PAIRS)]


def measure_largest(folder: Path) -> list[Figure]:
    """Three alternating pairs of a decoder of 50 thousand ops."""
    return _pairs(folder, decoder(folder, LARGEST_LAYERS), PAIRS_OF_LARGEST)


def decoder(folder: Path, layers: int) -> Path:
    """Write a decoder of this many layers; returns the model's file."""
    model = folder / f"decoder{layers}.mlir"
    model.write_text(Decoder(layers).text(), encoding="utf-8")
    return model


def _pairs(folder: Path, model: Path, pairs: int) -> list[Figure]:
    build_command: list[str | Path] = ["build", model, "-o", folder / "model.tracemap", "--force"]
    ours = tracemap(*build_command)
    theirs: list[str | Path] = [find_tool("iree-compile"), model, *PLAIN_FLAGS, "-o", folder / "plain.vmfb"]
    measured = in_turn(lambda: run(ours), lambda: run(theirs), pairs)
    unchecked = in_turn(lambda: run(ours), lambda: run([*theirs, "--verify=false"]), PAIRS_WITHOUT_TARGET)
    programs_mib = own_usage(*build_command).programs_mib
    with cache_in(folder / "cache"):
        run(ours)
        restored = [run(ours).seconds for _ in range(pairs)]
    builds, compiles = [pair[0] for pair in measured], [pair[1] for pair in measured]
    print_title(f"build against plain iree-compile, {model.stem}")
    print_row("tracemap build", [build.seconds for build in builds], "s")
    print_row("iree-compile", [plain.seconds for plain in compiles], "s")
    print_row("tracemap build, CPU", [build.cpu_seconds for build in builds], "s")
    print_row("iree-compile, CPU", [plain.cpu_seconds for plain in compiles], "s")
    print_row("tracemap build, unchanged model", restored, "s")
    unchecked_ratios = [ours.cpu_seconds / plain.cpu_seconds for ours, plain in unchecked]
    print_row("build / iree-compile --verify=false, CPU", unchecked_ratios, "x")
    return [
        targeted(f"build / iree-compile, {model.stem}", _ratios(builds, compiles, "seconds"), "x", 1.1),
        targeted(f"the same, CPU, {model.stem}", _ratios(builds, compiles, "cpu_seconds"), "x", 1.2),
        targeted(
            f"the same, memory of the compiler, {model.stem}",
            [programs_mib / plain.peak_mib for plain in compiles],
            "x",
            1.1,
        ),
        targeted(
            f"unchanged model / iree-compile, {model.stem}",
            [seconds / plain.seconds for seconds, plain in zip(restored, compiles, strict=True)],
            "x",
            0.1,
        ),
    ]


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """Let builds keep their bundles in a folder, and copy them from there."""
    before = os.environ[FOLDER_VARIABLE]
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ[FOLDER_VARIABLE] = before


def _ratios(builds: Sequence[Usage], compiles: Sequence[Usage], name: str) -> list[float]:
    return [getattr(build, name) / getattr(plain, name) for build, plain in zip(builds, compiles, strict=True)]
