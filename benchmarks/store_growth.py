"""How a store's questions grow with its files, and with the sites of its programs: decoders, each run multiplied.

CPU time and the peak of memory of whole commands. A fitted exponent of 1 is linear growth; below 1 is what a command
takes before it looks at anything.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.decoder import Decoder
from benchmarks.growth import slope
from benchmarks.measure import Figure, Usage, run, tracemap
from benchmarks.store import add_recorded, multiply
from tests.support import ROOT
from tracemap.map.bundle import load

FILES: Final = (10, 100, 1000)
LAYERS: Final = (12, 48, 192)
"""Of the programs whose sites grow; there are `FILES_OF_SITES` of each. Files grow with the first of them."""
FILES_OF_SITES: Final = 100
CALLS: Final = 20_000
"""In each file: what grows here is what lies beside the calls."""
QUERIES: Final = {"query": (), "query --calls": ("--calls",)}

MOST_EXPONENT: Final = 1.1


@dataclass(frozen=True, slots=True)
class _Point:
    """A store: its files, the sites of its program, and what each question took."""

    files: int
    sites: int
    used: dict[str, Usage]


def measure(folder: Path) -> list[Figure]:
    """Every number of files at the fewest sites, and every number of sites at as many files; exponents of time."""
    print("\ngrowth of store query: CPU time and peak of memory")
    print(f"  {'files':>6}{'sites':>7}" + "".join(f"{name + ', s':>18}{'MiB':>7}" for name in QUERIES))
    shallow = _first(LAYERS[0], folder)
    of_files = [_measured(shallow, files, LAYERS[0], folder) for files in FILES]
    at_as_many = [point for point in of_files if point.files == FILES_OF_SITES]
    deeper = [_measured(_first(layers, folder), FILES_OF_SITES, layers, folder) for layers in LAYERS[1:]]
    return [*_exponents("files", of_files), *_exponents("sites", [*at_as_many, *deeper])]


def _first(layers: int, folder: Path) -> Path:
    """A store with one run of a decoder."""
    model, store = folder / f"decoder{layers}.mlir", folder / f"first{layers}"
    model.write_text(Decoder(layers).text(), encoding="utf-8")
    add_recorded(model, ("--iterations", "20"), store, folder)
    return store


def _measured(first: Path, files: int, layers: int, folder: Path) -> _Point:
    store = folder / "store"
    multiply(first, store, files, CALLS)
    ask = tracemap("store", "query", "--store", store, "--format", "json")
    run(ask, cwd=ROOT)  # once for the whole tree of files, which the system then knows
    used = {name: run([*ask, *words], cwd=ROOT) for name, words in QUERIES.items()}
    shutil.rmtree(store)
    point = _Point(files, _sites(folder / f"decoder{layers}.tracemap"), used)
    cells = (f"{usage.cpu_seconds:18.2f}{usage.peak_mib:7.0f}" for usage in used.values())
    print(f"  {point.files:6}{point.sites:7}{''.join(cells)}", flush=True)
    return point


def _sites(bundle: Path) -> int:
    return len(load(bundle).graph.sites)


def _exponents(what: str, points: list[_Point]) -> Iterator[Figure]:
    """By question the slope, on logarithmic axes, of time over files or sites."""
    along = [float(getattr(point, what)) for point in points]
    for name in QUERIES:
        found = slope(along, [point.used[name].cpu_seconds for point in points])
        yield Figure(f"store {name}, power of {what}", found, "", MOST_EXPONENT)
