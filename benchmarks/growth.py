"""How tracemap's own time and memory grow with a program's layers and its calls: decoders, recorded and attributed.

What the runtime and the compiler take is left out. A fitted exponent of 1 is linear growth.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb
import numpy as np

from benchmarks.decoder import Decoder
from benchmarks.measure import Figure, own_usage, run, tracemap
from tracemap.runs.sql import literal

LAYERS: Final = (48, 96, 192)
ITERATIONS: Final = (20, 500, 2000)
MEMOIZED: Final = {"once": (), "per call": ("--", "--iree-hal-memoization=false")}
"""How often the program makes its command buffers, with the compiler's flags for that."""

MOST_MIB: Final = 700.0
MOST_PER_EVENT: Final = 1.3
"""How much longer an event of the deepest program may take than one of the shallowest, at the most calls."""


@dataclass(frozen=True, slots=True)
class _Point:
    """A run of a program: events, and by command CPU seconds and the peak of memory."""

    layers: int
    iterations: int
    events: int
    seconds: dict[str, float]
    peak_mib: dict[str, float]


def measure(folder: Path) -> list[Figure]:
    """Every depth with every number of calls; the tables, and what is targeted."""
    return [figure for buffers in MEMOIZED for figure in _of_buffers(buffers, folder)]


def _of_buffers(buffers: str, folder: Path) -> Iterator[Figure]:
    print(f"\ngrowth of record and attribute, command buffers made {buffers}: CPU time and peak of memory of tracemap")
    print(f"  {'layers':>6}{'calls':>7}{'events':>11}" + 2 * f"{'CPU s':>10}{'µs/event':>10}{'MiB':>7}")
    points = list(_points(buffers, folder))
    for command in ("record", "attribute"):
        most = [point for point in points if point.iterations == ITERATIONS[-1]]
        per_event = [point.seconds[command] / point.events for point in most]
        exponents = ", ".join(f"{name} {value:.2f}" for name, value in _exponents(points, command))
        print(f"  {command}: time grows with the power of {exponents}")
        peak = max(point.peak_mib[command] for point in points)
        yield Figure(f"{command}, buffers {buffers}, peak", peak, "MiB", MOST_MIB)
        yield Figure(f"{command}, buffers {buffers}, time per event", per_event[-1] / per_event[0], "x", MOST_PER_EVENT)


def _points(buffers: str, folder: Path) -> Iterator[_Point]:
    for layers in LAYERS:
        model, bundle = folder / f"decoder{layers}.mlir", folder / f"decoder{layers}.tracemap"
        model.write_text(Decoder(layers).text(), encoding="utf-8")
        run(tracemap("build", model, "-o", bundle, "--force", *MEMOIZED[buffers]))
        for iterations in ITERATIONS:
            yield _measured(layers, iterations, bundle, folder / "run.parquet")


def _measured(layers: int, iterations: int, bundle: Path, made: Path) -> _Point:
    commands = {
        "record": ("record", bundle, "--iterations", str(iterations), "--force", "-o", made),
        "attribute": ("attribute", made, "--map", bundle, "--format", "json"),
    }
    used = {name: own_usage(*words) for name, words in commands.items()}
    point = _Point(
        layers,
        iterations,
        _events(made),
        {name: usage.cpu_seconds for name, usage in used.items()},
        {name: usage.peak_mib for name, usage in used.items()},
    )
    cells = (
        f"{point.seconds[name]:10.2f}{1e6 * point.seconds[name] / point.events:10.2f}{point.peak_mib[name]:7.0f}"
        for name in commands
    )
    print(f"  {layers:6}{iterations:7}{point.events:11,}{''.join(cells)}", flush=True)
    return point


def _events(made: Path) -> int:
    ((events,),) = duckdb.execute(f"SELECT count(*) FROM {literal(str(made))}").fetchall()
    return int(events)


def _exponents(points: Sequence[_Point], command: str) -> Iterator[tuple[str, float]]:
    """The slopes, on logarithmic axes, of time over layers at the most calls, and over calls at the most layers."""
    of_layers = [point for point in points if point.iterations == ITERATIONS[-1]]
    of_calls = [point for point in points if point.layers == LAYERS[-1]]
    yield "layers", slope([point.layers for point in of_layers], [point.seconds[command] for point in of_layers])
    yield "calls", slope([point.iterations for point in of_calls], [point.seconds[command] for point in of_calls])


def slope(along: Sequence[float], values: Sequence[float]) -> float:
    """The median of the slopes of all pairs (Theil, 1950), which one noisy measurement does not move far."""
    logs = list(zip(np.log(along), np.log(values), strict=True))
    return statistics.median(float((y2 - y1) / (x2 - x1)) for (x1, y1), (x2, y2) in itertools.combinations(logs, 2))
