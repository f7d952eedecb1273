"""On-disk layout: append-only Parquet, safe for concurrent writers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tracemap.core.errors import TargetUnwritable
from tracemap.core.units import UNKNOWN, Text
from tracemap.options.option import is_address
from tracemap.runs.sql import explained_out_of_memory, fill_table, system_message, target_literal
from tracemap.store.folder import STORE_KEY, STORE_VERSION, SUFFIX, Place, StoreFile, folder_at, stem_of

if TYPE_CHECKING:
    import duckdb


# ---- layout
#
# On-disk layout: an append-only tree of Parquet files, safe for concurrent writers.
#
#     runs/model=M/host=H/date=D/RUN.parquet     the run's header, as one row; a run exists once this file does
#     calls/model=M/host=H/date=D/RUN.parquet    its events, with the index of their target
#     targets/…/RUN.parquet                      the places of each target
#     aside/…/RUN.parquet                        amounts of targets that are not work (outliers, double counts)
#     costs/…/RUN.parquet                        cost of each op at each place; unattributed cost with its reason
#     spreads/…/RUN.parquet                      cost of each op per invocation
#     ops/MAP-MODEL.parquet                      the ops of a map, with their keys in a model
#     maps/MAP.parquet                           the parts of a bundle that match its ops with those of other maps
#
# A run's name is a hash of its content, so a run that is added again, from any path, is found. Files are written under
# a hidden name and get their final name after the last byte. No file is ever replaced.


RUNS, OPS, MAPS = "runs", "ops", "maps"
OF_RUNS = CALLS, TARGETS, ASIDE, COSTS, SPREADS = "calls", "targets", "aside", "costs", "spreads"
"""The tables with one file per run, in addition to its header."""

_RUN_NAME = re.compile(r"[0-9a-f]{15}")
_LONGEST = 60


def run_name(number: int) -> str:
    """The run's name for people and files. Engines use `number`, which they join faster."""
    return f"{number:015x}"


def run_number(content: Iterable[bytes]) -> int:
    """The id of a run: a hash of its content."""
    digest = sha256()
    for part in content:
        digest.update(part)
    return int(digest.hexdigest()[:15], 16)


def ops_name(model: str, map_sha256: str) -> str:
    """File stem of the ops of a map in a model. Several models may share a map, but each has its own keys."""
    return f"{map_sha256}-{sha256(model.encode(errors='backslashreplace')).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file in a store that belongs to none of its tables; `why`: the fault."""

    path: str
    why: str

    @property
    def stem(self) -> str:
        """The file's name without folders and suffix: the name of its run or map."""
        return stem_of(self.path)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a store.

    `files`: paths by table and file stem. `bad`: unreadable files. `unfinished`: number of runs without a header:
    another process is adding them, or was killed while it did.
    """

    place: Place
    files: Mapping[str, Mapping[str, str]]
    bad: tuple[BadFile, ...] = ()
    unfinished: int = 0


@dataclass(frozen=True, slots=True)
class Store:
    """A store in a folder or bucket."""

    place: Place

    def run_file(self, table: str, name: str, partition: Mapping[str, Text]) -> StoreFile:
        """A run's file in a table. The partition's values may be any text."""
        parts = (f"{key}={_part(value)}" for key, value in partition.items())
        return StoreFile(self.place, self.place.file(table, *parts, name + SUFFIX))

    def map_file(self, map_sha256: str) -> StoreFile:
        """The file of a map."""
        return StoreFile(self.place, self.place.file(MAPS, map_sha256 + SUFFIX))

    def ops_file(self, model: str, map_sha256: str) -> StoreFile:
        """The file with the ops of a map in a model."""
        return StoreFile(self.place, self.place.file(OPS, ops_name(model, map_sha256) + SUFFIX))

    def has_run(self, name: str) -> bool:
        """Whether the store has a run, under any model, host and date."""
        return self.place.has_below(RUNS, name + SUFFIX)

    def has_lost(self, name: str, partition: Mapping[str, Text]) -> bool:
        """Whether a run of this partition has a header but lacks a file in one of its tables."""
        if not self.run_file(RUNS, name, partition).exists():
            return False
        return not all(self.run_file(table, name, partition).exists() for table in OF_RUNS)

    def has_runs(self) -> bool:
        """Whether the store has any run."""
        return self.place.holds(RUNS)

    def is_of_model(self, path: str, model: str) -> bool:
        """Whether a run's file lies in the partition of a model."""
        return f"/model={_part(model)}/" in path

    def listed(self) -> Listing:
        """List all files, and check by their first and last bytes that they are complete Parquet files.

        Raises:
            StoreInvalid: there is no store, the store is empty, or it cannot be read.
        """
        self.place.check_there(RUNS)
        bad: list[BadFile] = []
        files = {table: self._of_table(table, bad, {}) for table in (RUNS, OPS, MAPS)}
        files |= {table: self._of_table(table, bad, files[RUNS]) for table in OF_RUNS}
        started = {stem for table in OF_RUNS for stem in files[table]} - files[RUNS].keys()
        broken = {file.stem for file in bad}
        foreign_stems = [stem for stem in started if not _RUN_NAME.fullmatch(stem)]
        for stem in sorted(foreign_stems):
            for table in OF_RUNS:
                if (path := files[table].get(stem)) is not None:
                    bad.append(BadFile(path, "is not a file of a store"))
        return Listing(self.place, files, tuple(bad), len(started - broken - set(foreign_stems)))

    def _of_table(self, table: str, bad: list[BadFile], headers: Mapping[str, str]) -> dict[str, str]:
        """The files of a table by stem. Of several files with one stem, take the one in the partition of the header.

        The others are left from a process that was killed while it added the run under another name of the model, host
        or date.
        """
        paths_by_stem: dict[str, list[str]] = {}
        for path, why in self.place.faults(table):
            if why:
                bad.append(BadFile(path, why))
            else:
                paths_by_stem.setdefault(stem_of(path), []).append(path)
        for stem, paths in paths_by_stem.items():
            partition = _partition_of(headers[stem]) if stem in headers else None
            paths.sort(key=lambda path: _partition_of(path) != partition)
            if table not in OF_RUNS or (partition is not None and _partition_of(paths[0]) != partition):
                bad.extend(BadFile(path, f"has the same name as {paths[0]}") for path in paths[1:])
        return {stem: paths[0] for stem, paths in paths_by_stem.items()}


def _partition_of(path: str) -> str:
    """The folders of a run's file that name its model, host and date."""
    return "/".join(path.split("/")[-4:-1])


def store_at(location: str | Path) -> Store:
    """The store in a folder, or at the address of a bucket (s3://BUCKET/PREFIX).

    Raises:
        StoreInvalid: the folder can neither be read nor created.
        UsageInvalid: the address is not one of a bucket.
        ToolMissing: the packages that read buckets are not installed.
    """
    if isinstance(location, str) and is_address(location):
        from tracemap.store.s3_bucket import bucket_at

        return Store(bucket_at(location))
    return Store(folder_at(Path(location)))


def _part(value: Text) -> str:
    """Encode a value as part of a path: without special characters, and no longer than file names may be."""
    if value is UNKNOWN or not value:
        return "unknown"
    encoded = value.encode(errors="backslashreplace")
    name = quote(encoded, safe=" ").replace(".", "%2E", 1 if value.startswith(".") else 0)
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST].rpartition('%')[0] or name[:_LONGEST]}-{sha256(encoded).hexdigest()[:12]}"


# ---- tables
#
# Columns of the store's tables. Files are written from Python rows or from a query.
#
# DuckDB and Spark share these types. Amounts are decimals of 38 digits, whose sums are exact in both engines.


AMOUNT: Final = "DECIMAL(38,0)"

_DECLARED: Final = {  # in the notation of SQL
    RUNS: """
        run VARCHAR, number BIGINT, model VARCHAR, map VARCHAR, module VARCHAR, bundle VARCHAR, compiler VARCHAR,
        flags VARCHAR, function VARCHAR, host VARCHAR, cpu_model VARCHAR, processors BIGINT, device VARCHAR,
        workers BIGINT, clock VARCHAR, date VARCHAR, recorded_ns BIGINT, added_ns BIGINT, tools VARCHAR,
        rule VARCHAR, iterations BIGINT, warmup BIGINT, elapsed_ns BIGINT, median_ns BIGINT, low_ns BIGINT,
        high_ns BIGINT, tool_ns BIGINT, waiting_ns BIGINT, stolen_ns BIGINT, outliers_ns DECIMAL(38,0),
        calls BIGINT, tags MAP(VARCHAR, VARCHAR), header VARCHAR
    """,
    TARGETS: """
        run BIGINT, target INTEGER, place VARCHAR, kernel VARCHAR, position INTEGER, places INTEGER
    """,
    ASIDE: "run BIGINT, target INTEGER, metric VARCHAR, reason VARCHAR, amount DECIMAL(38,0)",
    COSTS: """
        run BIGINT, metric VARCHAR, place VARCHAR, position INTEGER, op VARCHAR, reason VARCHAR,
        amount DECIMAL(38,0)
    """,
    SPREADS: """
        run BIGINT, metric VARCHAR, op VARCHAR, median BIGINT, low BIGINT, high BIGINT, p10 BIGINT, p90 BIGINT,
        most BIGINT
    """,
    OPS: """
        map VARCHAR, op VARCHAR, key VARCHAR, how VARCHAR, name VARCHAR, file VARCHAR, line BIGINT,
        function VARCHAR, scope VARCHAR
    """,
    MAPS: "map VARCHAR, name VARCHAR, content BLOB",
}
COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    table: dict(re.findall(r"(\w+) (\w+(?:\(.*?\))?)", text)) for table, text in _DECLARED.items()
}
"""SQL types of the columns, by table. NULL means unknown.

runs: `run` is the run's name; `number` is the same value as column `run` of other tables. `date` is the day (UTC) of
`recorded_ns`. `recorded_ns` is by the clock of the recording machine, `added_ns` by that of the adding machine.
`tool_ns` is the profiler's own work. `outliers_ns` is CPU time above the outlier threshold. `header` is JSON.
targets: a row for each place where events of a target may belong; `position` is its index among the `places`. A target
without a place in the map has one row, whose `place` is the reason.
aside: amounts of a target that are not work of a place.
costs: unattributed costs have a `reason`. A metric whose cost is 0 has a row of 0.
ops: ops of a model that `diff` matches across maps have the same `key`; `how` is the kind of match.
"""

NO_METRICS: Final = frozenset({"run", "target", "invocation", "start_ns"})
"""Columns of calls that are identity or time, not a metric. All other columns are metrics."""

ALWAYS: Final[Mapping[str, Sequence[str]]] = {
    RUNS: ("run", "number", "model", "map", "added_ns", "tags"),
    TARGETS: ("run", "target", "places"),
    ASIDE: ("run", "target", "metric", "reason", "amount"),
    COSTS: ("run", "metric", "amount"),
    SPREADS: ("run", "metric", "op", "median"),
    OPS: ("map", "op", "key"),
}
"""Columns that are never NULL, by table."""

Row = tuple[Any, ...]
_PARQUET: Final = f"FORMAT parquet, COMPRESSION zstd, KV_METADATA {{'{STORE_KEY}': '{STORE_VERSION}'}}"


def null_if_unknown(value: Any) -> Any:  # noqa: ANN401 - a cell of whatever type
    """Encode a cell of a table: unknown becomes NULL."""
    return None if value is UNKNOWN else value


def unknown_if_null(cell: Any) -> Any:  # noqa: ANN401 - the same
    """Decode a cell of a table: NULL becomes unknown."""
    return UNKNOWN if cell is None else cell


def write_rows(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Row], target: StoreFile) -> None:
    """Write a table's file, with the columns of `COLUMNS`.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    fill_table(connection, "written", COLUMNS[table], rows)
    # Sort so that equal rows give equal files. A header is a single row.
    order = "" if table == RUNS else " ORDER BY ALL"
    write_query(connection, f"SELECT * FROM written{order}", target)


def write_query(connection: duckdb.DuckDBPyConnection, query: str, target: StoreFile) -> None:
    """Write the result of a query as a file of the store.

    Raises:
        TargetUnwritable: the file cannot be written.
        UsageInvalid: the rows do not fit into memory, even when they spill to disk.
    """
    import duckdb

    remedy = "allow more with --memory, or set TMPDIR to a folder with more room"
    with target.published() as path, explained_out_of_memory(f"the sorted rows of {target.name}", remedy):
        try:
            connection.execute(f"COPY ({query}) TO {target_literal(path)} ({_PARQUET})").fetchall()
        except duckdb.IOException as error:
            raise TargetUnwritable(f"{target}: cannot be written: {system_message(error)}") from error
