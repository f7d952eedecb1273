"""Where what lies in a store: a place that only grows, made of Parquet files alone, safe for many writers at once.

    runs/model=M/host=H/date=D/RUN.parquet     a run's header, as one row; a run is in the store when this is there
    calls/model=M/host=H/date=D/RUN.parquet    its events, each with the number of its target
    targets/…/RUN.parquet                      the places of each target
    aside/…/RUN.parquet                        what of the sums of targets is no work
    costs/…/RUN.parquet                        what each op has of each place; and what has no op, with its reason
    spreads/…/RUN.parquet                      what each op costs in an invocation
    ops/MAP-MODEL.parquet                      the ops of a map, with the keys that they have in a model
    maps/MAP.parquet                           what of a bundle is needed to match its ops with another's

A run's name is made of what it holds, so that adding it again, from wherever, finds it there. Files are written under a
name that no engine reads and get their own with the last byte; none is ever replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tracemap.options.address import is_address
from tracemap.store.folder import folder_at
from tracemap.store.places import SUFFIX, Place, StoreFile, stem_of
from tracemap.units import UNKNOWN, Text

RUNS, CALLS, TARGETS, ASIDE, COSTS, SPREADS, OPS, MAPS = (
    "runs",
    "calls",
    "targets",
    "aside",
    "costs",
    "spreads",
    "ops",
    "maps",
)
OF_RUNS: Final = (CALLS, TARGETS, ASIDE, COSTS, SPREADS)
"""The tables that each run has a file of, besides its header."""

_RUN_NAME = re.compile(r"[0-9a-f]{15}")
_LONGEST = 60


def run_name(number: int) -> str:
    """What a run is called by people and files; `number` is the same for engines, which join numbers faster."""
    return f"{number:015x}"


def run_number(content: Iterable[bytes]) -> int:
    """The number of a run, made of what it holds."""
    digest = sha256()
    for part in content:
        digest.update(part)
    return int(digest.hexdigest()[:15], 16)


def ops_name(model: str, map_sha256: str) -> str:
    """What the ops of a map are called as those of a model: one map may be of several, and each has keys of its own."""
    return f"{map_sha256}-{sha256(model.encode(errors='backslashreplace')).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file below a store that is none of its tables, and why."""

    path: str
    why: str

    @property
    def stem(self) -> str:
        """What it is called, without the folders and the suffix: the name of its run or map."""
        return stem_of(self.path)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a store.

    `files`: by table and the stem of the file's name. `bad`: what cannot be read. `unfinished`: how many runs another
    process is adding just now, or was when it was killed: they have no header yet.
    """

    place: Place
    files: Mapping[str, Mapping[str, str]]
    bad: tuple[BadFile, ...] = ()
    unfinished: int = 0


@dataclass(frozen=True, slots=True)
class Store:
    """A store, by the place where it lies."""

    place: Place

    def run_file(self, table: str, name: str, partition: Mapping[str, Text]) -> StoreFile:
        """A run's file of a table; the partition's values are texts of whatever kind."""
        parts = (f"{key}={_part(value)}" for key, value in partition.items())
        return StoreFile(self.place, self.place.file(table, *parts, name + SUFFIX))

    def map_file(self, map_sha256: str) -> StoreFile:
        """The file of a map."""
        return StoreFile(self.place, self.place.file(MAPS, map_sha256 + SUFFIX))

    def ops_file(self, model: str, map_sha256: str) -> StoreFile:
        """The file of the ops of a map, as those of a model."""
        return StoreFile(self.place, self.place.file(OPS, ops_name(model, map_sha256) + SUFFIX))

    def has_run(self, name: str) -> bool:
        """Whether a run is there, whatever model, host and date it was added with."""
        return self.place.has_below(RUNS, name + SUFFIX)

    def has_lost(self, name: str, partition: Mapping[str, Text]) -> bool:
        """Whether a run that is there, with this partition, lacks a file of one of its tables."""
        if not self.run_file(RUNS, name, partition).exists():
            return False
        return not all(self.run_file(table, name, partition).exists() for table in OF_RUNS)

    def has_runs(self) -> bool:
        """Whether any run was ever added."""
        return self.place.holds(RUNS)

    def is_of_model(self, path: str, model: str) -> bool:
        """Whether a run's file lies where those of a model do."""
        return f"/model={_part(model)}/" in path

    def listed(self) -> Listing:
        """All its files; those that are no whole Parquet files are told apart by their first and last bytes.

        Raises:
            StoreInvalid: there is no store, or nothing was ever added to it; or it cannot be read.
        """
        self.place.check_there(RUNS)
        bad: list[BadFile] = []
        files = {table: self._of_table(table, bad, {}) for table in (RUNS, OPS, MAPS)}
        files |= {table: self._of_table(table, bad, files[RUNS]) for table in OF_RUNS}
        begun = {stem for table in OF_RUNS for stem in files[table]} - files[RUNS].keys()
        broken = {each.stem for each in bad}
        strange = [stem for stem in begun if not _RUN_NAME.fullmatch(stem)]
        for stem in sorted(strange):
            for table in OF_RUNS:
                if (path := files[table].get(stem)) is not None:
                    bad.append(BadFile(path, "is no file of a store"))
        return Listing(self.place, files, tuple(bad), len(begun - broken - set(strange)))

    def _of_table(self, table: str, bad: list[BadFile], headers: Mapping[str, str]) -> dict[str, str]:
        """The files of a table by their stems; of several with one, that which lies where the run's header does.

        The others were left by who was killed while adding the run under other words, such as another model's name.
        """
        found: dict[str, list[str]] = {}
        for path, why in self.place.faults(table):
            if why:
                bad.append(BadFile(path, why))
            else:
                found.setdefault(stem_of(path), []).append(path)
        for stem, paths in found.items():
            where = _partition_of(headers[stem]) if stem in headers else None
            paths.sort(key=lambda path: _partition_of(path) != where)
            if table not in OF_RUNS or (where is not None and _partition_of(paths[0]) != where):
                bad.extend(BadFile(path, f"has the name of {paths[0]}") for path in paths[1:])
        return {stem: paths[0] for stem, paths in found.items()}


def _partition_of(path: str) -> str:
    """The folders of a run's file that name its model, host and date."""
    return "/".join(path.split("/")[-4:-1])


def store_at(where: str | Path) -> Store:
    """The store of a folder, or of a bucket's address (s3://BUCKET/PREFIX).

    Raises:
        StoreInvalid: no folder of this name can be read or made.
        UsageInvalid: no store can lie at such an address.
        ToolMissing: what reads buckets is not installed.
    """
    if isinstance(where, str) and is_address(where):
        from tracemap.store.bucket import bucket_at

        return Store(bucket_at(where))
    return Store(folder_at(Path(where)))


def _part(value: Text) -> str:
    """A value as a part of a path: nothing in it has a meaning, and none is longer than names of files may be."""
    if value is UNKNOWN or not value:
        return "unknown"
    encoded = value.encode(errors="backslashreplace")
    name = quote(encoded, safe=" ").replace(".", "%2E", 1 if value.startswith(".") else 0)
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST].rpartition('%')[0] or name[:_LONGEST]}-{sha256(encoded).hexdigest()[:12]}"
