"""What the elapsed time of every model of a folder went for, serial and with two workers, and how much is explained."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.measure import Figure
from tests.support import SAMPLES, Corpus
from tracemap.core.units import Unknown, format_ns, format_share
from tracemap.runs.model import RunHeader
from tracemap.runs.runfile import read_run

LEAST_EXPLAINED: Final = 0.9
WORKERS: Final = {1: ("--serial",), 2: ("--", "--task_topology_max_group_count=2")}
SECONDS: Final = "1"
PARTS: Final = ("kernels", "transfers", "queue", "host", "profiler", "not explained")


@dataclass(frozen=True, slots=True)
class _Division:
    """A run of a model: what its header says of the elapsed time."""

    name: str
    workers: int
    header: RunHeader

    @property
    def explained(self) -> float:
        """The share of the elapsed time that has a part, nothing where the parts are unknown or do not add up to it."""
        elapsed, parts = self.header.elapsed_ns, self.header.elapsed
        added = sum(part for part in parts.values() if isinstance(part, int))
        explained = parts.explained_ns
        if not isinstance(elapsed, int) or not isinstance(explained, int) or added != elapsed:
            return 0.0
        return explained / elapsed

    @property
    def cells(self) -> Iterator[str]:
        """A row of the table."""
        elapsed, calls = self.header.elapsed_ns, self.header.iterations
        yield f"  {self.name:27}"
        yield f"{self.workers:7}"
        if isinstance(elapsed, Unknown) or isinstance(calls, Unknown) or not calls:
            yield f"{'unknown':>12}"
            return
        yield f"{format_ns(elapsed // calls):>12}"
        for part in self.header.elapsed.values():
            yield f"{'unknown' if isinstance(part, Unknown) else format_share(part, elapsed):>14}"
        yield f"{100 * self.explained:10.1f} %"


def measure(folder: Path) -> list[Figure]:
    """Every flag file of the folder that CORPUS names (default: the samples), with each number of workers."""
    corpus = Corpus(Path(os.environ.get("CORPUS", SAMPLES)).resolve())
    print(f"\nelapsed time per invocation, {corpus.folder.name}")
    print(f"  {'':27}{'workers':>7}{'elapsed':>12}" + "".join(f"{part:>14}" for part in PARTS) + f"{'explained':>12}")
    divisions = [_recorded(corpus, flags, workers, folder) for flags in corpus.flag_files() for workers in WORKERS]
    return [_unexplained(divisions, workers) for workers in WORKERS]


def _recorded(corpus: Corpus, flags: str, workers: int, folder: Path) -> _Division:
    bundle, run = folder / f"{corpus.model_of(flags)}.tracemap", folder / f"{flags}-{workers}.parquet"
    if not bundle.exists():
        corpus.build(corpus.model_of(flags), bundle)
    corpus.record(flags, bundle, run, ("--seconds", SECONDS), WORKERS[workers])
    division = _Division(flags, workers, read_run(run).header)
    run.unlink()
    print("".join(division.cells), flush=True)
    return division


def _unexplained(divisions: Sequence[_Division], workers: int) -> Figure:
    """What is not explained of the model of which that is the most, as a share."""
    most = max((1 - each.explained for each in divisions if each.workers == workers), default=1.0)
    return Figure(f"not explained, at most ({workers} workers)", 100 * most, "%", 100 * (1 - LEAST_EXPLAINED))
