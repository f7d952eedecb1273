"""What `attribute` and `report` share: opening runs, and finding the bundle that a run belongs to."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import BundleMissing
from tracemap.units import UNKNOWN

if TYPE_CHECKING:
    from tracemap.measurements.model import Run


def open_runs(paths: Sequence[Path]) -> list[Run]:
    """Open runs; what has to be converted (`.ireeprof`) lies in a temporary folder until the program ends."""
    from tracemap.capture.profile import open_run

    folder = Path(tempfile.mkdtemp(prefix="tracemap-runs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    opened = []
    for number, path in enumerate(paths):
        place = folder / str(number)
        place.mkdir()
        opened.append(open_run(path, place))
    return opened


def find_bundle(run: Run, path: Path) -> Path:
    """The bundle of a run: the one that its header names, else the only one beside it or in the working folder.

    A run that lies in a bundle's `runs/` belongs to that bundle.

    Raises:
        BundleMissing: there is none, or more than one.
    """
    from tracemap.graph.bundle import MAP_NAME, RUNS_FOLDER, SUFFIX

    resolved = path.resolve()
    if resolved.parent.name == RUNS_FOLDER and (resolved.parent.parent / MAP_NAME).is_file():
        return resolved.parent.parent
    beside = Path() if str(path) == "-" else path.parent
    if run.header.bundle is not UNKNOWN:
        named = Path(run.header.bundle)
        for candidate in (named, beside / named.name, Path(named.name)):
            if (candidate / MAP_NAME).is_file():
                return candidate
    found = sorted({*beside.glob(f"*{SUFFIX}"), *Path().glob(f"*{SUFFIX}")}, key=str)
    bundles = [folder for folder in found if (folder / MAP_NAME).is_file()]
    distinct = {folder.resolve(): folder for folder in bundles}
    if len(distinct) == 1:
        return bundles[0]
    if not distinct:
        raise BundleMissing(f"{path}: no bundle was named and none lies beside it; name it with --map")
    listed = ", ".join(str(folder) for folder in distinct.values())
    raise BundleMissing(f"{path}: which bundle does it belong to? Name it with --map; there are: {listed}")
