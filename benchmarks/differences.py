"""How long `tracemap diff` takes: two runs of a decoder of twelve layers, and of one of fifty thousand ops.

The large model is compared with itself, by identity, and with a copy in which all values have other names: then both
models are parsed, and all ops are found again by what they compute.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

from benchmarks.decoder import Decoder
from benchmarks.measure import Figure, Usage, print_title, run, targeted, tracemap

LAYERS: Final = 12
ITERATIONS: Final = 50
REPEATS: Final = 5


def measure(folder: Path) -> list[Figure]:
    """Compare two runs of the small decoder a few times."""
    model, bundle = folder / "decoder.mlir", folder / "decoder.tracemap"
    model.write_text(Decoder(LAYERS).text(), encoding="utf-8")
    run(tracemap("build", model, "-o", bundle))
    run(tracemap("record", bundle, "--iterations", str(ITERATIONS), "--repeat", "2"))
    print_title(f"diff of two runs of {LAYERS} layers")
    usages = _compared(*(bundle / "runs" / f"run-001-{number}.parquet" for number in (1, 2)), repeats=REPEATS)
    return [targeted("diff of two runs", [usage.seconds for usage in usages], "s", 1.0)]


def of_large(bundle: Path, made: Path, folder: Path) -> list[Figure]:
    """Compare a run of a large bundle with a copy of it, of the same model and of one with other names."""
    copy, again = folder / "renamed.tracemap", folder / "again.parquet"
    shutil.copytree(bundle, copy)
    shutil.copy(made, again)
    same = _compared(made, again, "--map-a", bundle, "--map-b", bundle, repeats=2)
    _rename(copy)
    other = _compared(made, again, "--map-a", bundle, "--map-b", copy, repeats=2)
    return [
        targeted("diff, same model", [usage.seconds for usage in same], "s", 10.0),
        targeted("diff, other names", [usage.seconds for usage in other], "s", 10.0),
        targeted("diff, peak memory", [usage.peak_mib for usage in other], "MiB", 1024.0),
    ]


def _compared(*words: str | Path, repeats: int) -> list[Usage]:
    return [run(tracemap("diff", *words)) for _ in range(repeats + 1)][1:]


def _rename(bundle: Path) -> None:
    """Give all values of a bundle's model other names; its map is made to be of another text, too."""
    (text,) = (bundle / "source").glob("*.mlir")
    text.write_text(text.read_text(encoding="utf-8").replace("%v", "%renamed"), encoding="utf-8")
    place = bundle / "map.json"
    stored = json.loads(place.read_text(encoding="utf-8"))
    stored["library"].append("renamed/*")
    place.write_text(json.dumps(stored), encoding="utf-8")
