"""On-disk layout: append-only Parquet, safe for concurrent writers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tracemap.errors import TargetUnwritable
from tracemap.measurements.sql import fill, fitting, said_by_system, target_literal
from tracemap.options.option import is_address
from tracemap.store.folder import STORE_KEY, STORE_VERSION, SUFFIX, Place, StoreFile, folder_at, stem_of
from tracemap.units import UNKNOWN, Text

if TYPE_CHECKING:
    import duckdb


# ---- layout
#
# Where what lies in a store: a place that only grows, made of Parquet files alone, safe for many writers at once.
#
#     runs/model=M/host=H/date=D/RUN.parquet     a run's header, as one row; a run is in the store when this is there
#     calls/model=M/host=H/date=D/RUN.parquet    its events, each with the number of its target
#     targets/…/RUN.parquet                      the places of each target
#     aside/…/RUN.parquet                        what of the sums of targets is no work
#     costs/…/RUN.parquet                        what each op has of each place; and what has no op, with its reason
#     spreads/…/RUN.parquet                      what each op costs in an invocation
#     ops/MAP-MODEL.parquet                      the ops of a map, with the keys that they have in a model
#     maps/MAP.parquet                           what of a bundle is needed to match its ops with another's
#
# A run's name is made of what it holds, so that adding it again, from wherever, finds it there. Files are written
# under a name that no engine reads and get their own with the last byte; none is ever replaced.


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


# ---- tables
#
# The columns of a store's tables, and their files: written whole, by rows of ours or by a query.
#
# Types are those that DuckDB and Spark both have. Amounts are decimals of 38 digits: sums of them are exact in both.


AMOUNT: Final = "DECIMAL(38,0)"

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    RUNS: {
        "run": "VARCHAR",
        "number": "BIGINT",
        "model": "VARCHAR",
        "map": "VARCHAR",
        "module": "VARCHAR",
        "bundle": "VARCHAR",
        "compiler": "VARCHAR",
        "flags": "VARCHAR",
        "function": "VARCHAR",
        "host": "VARCHAR",
        "cpu_model": "VARCHAR",
        "processors": "BIGINT",
        "device": "VARCHAR",
        "workers": "BIGINT",
        "clock": "VARCHAR",
        "date": "VARCHAR",
        "recorded_ns": "BIGINT",
        "added_ns": "BIGINT",
        "tools": "VARCHAR",
        "rule": "VARCHAR",
        "iterations": "BIGINT",
        "warmup": "BIGINT",
        "elapsed_ns": "BIGINT",
        "median_ns": "BIGINT",
        "low_ns": "BIGINT",
        "high_ns": "BIGINT",
        "tool_ns": "BIGINT",
        "waiting_ns": "BIGINT",
        "stolen_ns": "BIGINT",
        "disturbance_ns": AMOUNT,
        "calls": "BIGINT",
        "tags": "MAP(VARCHAR, VARCHAR)",
        "header": "VARCHAR",
    },
    TARGETS: {
        "run": "BIGINT",
        "target": "INTEGER",
        "place": "VARCHAR",
        "kernel": "VARCHAR",
        "position": "INTEGER",
        "places": "INTEGER",
    },
    ASIDE: {"run": "BIGINT", "target": "INTEGER", "metric": "VARCHAR", "reason": "VARCHAR", "amount": AMOUNT},
    COSTS: {
        "run": "BIGINT",
        "metric": "VARCHAR",
        "place": "VARCHAR",
        "position": "INTEGER",
        "op": "VARCHAR",
        "reason": "VARCHAR",
        "amount": AMOUNT,
    },
    SPREADS: {
        "run": "BIGINT",
        "metric": "VARCHAR",
        "op": "VARCHAR",
        "median": "BIGINT",
        "low": "BIGINT",
        "high": "BIGINT",
        "p10": "BIGINT",
        "p90": "BIGINT",
        "most": "BIGINT",
    },
    OPS: {
        "map": "VARCHAR",
        "op": "VARCHAR",
        "key": "VARCHAR",
        "how": "VARCHAR",
        "name": "VARCHAR",
        "file": "VARCHAR",
        "line": "BIGINT",
        "function": "VARCHAR",
        "scope": "VARCHAR",
    },
    MAPS: {"map": "VARCHAR", "name": "VARCHAR", "content": "BLOB"},
}
"""By table its columns, with their types in SQL; NULL is unknown.

runs: `run` is the run's name, `number` the same as other tables have it in their column `run`; `date` is the day (UTC)
of `recorded_ns`, which the recording machine's clock told, `added_ns` is by the clock of who added it; `tool_ns` is the
profiler's own work, `disturbance_ns` what calls took beyond their fences, of CPU time; `header` is the run's header as
JSON.
targets: the n-th of the `places` that events of a target may be of; a target that is no place of the map has none, and
its `place` is the reason. aside: what of a target's sum is no work of a place. costs: what is of no op has a reason;
a metric of which there was nothing has a row of 0.
ops: `key` is the same for what `diff` matches in maps of one model; `how` it was matched.
"""

NO_METRICS: Final = frozenset({"run", "target", "invocation", "start_ns"})
"""Columns of calls that tell which one it is, and when it was: nothing that it takes. All others are metrics."""

ALWAYS: Final[Mapping[str, Sequence[str]]] = {
    RUNS: ("run", "number", "model", "map", "added_ns", "tags"),
    TARGETS: ("run", "target", "places"),
    ASIDE: ("run", "target", "metric", "reason", "amount"),
    COSTS: ("run", "metric", "amount"),
    SPREADS: ("run", "metric", "op", "median"),
    OPS: ("map", "op", "key"),
}
"""By table the columns in which nothing is ever unknown."""

Row = tuple[Any, ...]
_PARQUET: Final = f"FORMAT parquet, COMPRESSION zstd, KV_METADATA {{'{STORE_KEY}': '{STORE_VERSION}'}}"


def known(value: Any) -> Any:  # noqa: ANN401 - a cell of whatever type
    """A cell of a table: what is unknown is NULL."""
    return None if value is UNKNOWN else value


def told(cell: Any) -> Any:  # noqa: ANN401 - the same
    """The inverse of `known`."""
    return UNKNOWN if cell is None else cell


def write_rows(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Row], target: StoreFile) -> None:
    """Write a table of a store, with columns as `COLUMNS` has them.

    Raises:
        TargetUnwritable: it cannot be written.
    """
    fill(connection, "written", COLUMNS[table], rows)
    # The same rows are the same file; a header is a single one.
    order = "" if table == RUNS else " ORDER BY ALL"
    write_query(connection, f"SELECT * FROM written{order}", target)


def write_query(connection: duckdb.DuckDBPyConnection, query: str, target: StoreFile) -> None:
    """Write the rows of a query as a file of a store.

    Raises:
        TargetUnwritable: it cannot be written.
        UsageInvalid: its rows do not fit into memory, even with all that can be on disk.
    """
    import duckdb

    remedy = "allow more with --memory, or name a folder that has more room by TMPDIR"
    with target.published() as path, fitting(f"the rows of {target.name}, in their order,", remedy):
        try:
            connection.execute(f"COPY ({query}) TO {target_literal(path)} ({_PARQUET})").fetchall()
        except duckdb.IOException as error:
            raise TargetUnwritable(f"{target}: cannot be written: {said_by_system(error)}") from error
