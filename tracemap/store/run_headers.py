"""Headers of runs: reading, selection, and the search for damaged files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

import duckdb

from tracemap.core.codec import escape_surrogates
from tracemap.core.errors import StoreInvalid, UsageInvalid
from tracemap.core.units import natural_sort_key
from tracemap.runs.columns import is_number
from tracemap.runs.sql import damage_of, file_literal, literal, quoted, reader_call, reading_errors
from tracemap.store.folder import Place
from tracemap.store.layout import ALWAYS, CALLS, COLUMNS, OF_RUNS, OPS, RUNS, BadFile, Listing, Store, ops_name

# ---- selection
#
# Conditions that select runs, and the columns of headers that group them.


TAG: Final = "tag."
_HIDDEN: Final = frozenset({"number", "header", "tags"})
INPUTS: Final = "inputs"
COLUMNS_OF_RUNS: Final = (*(name for name in COLUMNS[RUNS] if name not in _HIDDEN), INPUTS)
"""Columns that select and group runs, in addition to tags (`tag.NAME`).

`inputs` is not a column of the table: it holds the sizes of the arguments, from the header's JSON.
"""
_TAG = re.compile(re.escape(TAG) + r"[\w.\-]{1,100}")
_COMPARISONS: Final = ("<=", ">=", "!=", "=", "<", ">")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_CONDITION = re.compile(rf"(?P<column>[\w.\-]+)(?P<operator>{'|'.join(_COMPARISONS)})(?P<value>.*)", re.DOTALL)


def check_column(name: str) -> str:
    """Return the name of a column of headers, or of a tag.

    Raises:
        UsageInvalid: there is no such column.
    """
    if name not in COLUMNS_OF_RUNS and not _TAG.fullmatch(name):
        raise UsageInvalid(
            f"{name}: not a column of runs; choose from {', '.join(COLUMNS_OF_RUNS)}, or a tag as {TAG}NAME"
        )
    return name


def sizes_of(inputs: Sequence[str | None]) -> str | None:
    """The types of a call's arguments without their values, since calls of other sizes have other costs.

    None: there is no argument, or the size of one is unknown, as for a file. A single number is a scalar.

    >>> sizes_of(["8x4xf32=0.5", "4xi32: zeros (made up)", "7"])
    '8x4xf32, 4xi32, scalar'
    """
    sizes = [re.split("[=:]", text or "@", maxsplit=1)[0] for text in inputs]
    if not sizes or any("@" in size for size in sizes):
        return None
    return ", ".join("scalar" if is_number(size) else size for size in sizes)


def cell_of(run: Mapping[str, Any], column: str) -> object:
    """A run's value in a column or tag; None: unknown."""
    tags: Mapping[str, str] = run["tags"] or {}
    return tags.get(column.removeprefix(TAG)) if column.startswith(TAG) else run[column]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a column: equal to a value or shell pattern, or ordered before or after it.

    An unknown value equals `unknown` only.
    """

    column: str
    operator: str
    value: str

    def holds(self, cell: object) -> bool:
        """Whether a cell meets the condition. Numbers compare as numbers, also in tags and within texts."""
        if self.operator in {"=", "!="}:
            text = "unknown" if cell is None else str(cell)
            return fnmatchcase(text, self.value) == (self.operator == "=")
        if cell is None:
            return False
        if isinstance(cell, str) and not (self.column.startswith(TAG) and is_number(cell) and is_number(self.value)):
            left, right = natural_sort_key(cell), natural_sort_key(self.value)
            order = (left > right) - (left < right)
        else:
            try:
                number = float(self.value)
            except ValueError as error:
                raise UsageInvalid(
                    f"{self.column}{self.operator}{self.value}: {self.column} is a number; compare it with a number"
                ) from error
            order = (float(str(cell)) > number) - (float(str(cell)) < number)
        return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[self.operator]


def parse_conditions(texts: Sequence[str]) -> list[Condition]:
    """Parse conditions: `host=ci-*`, `date>=2026-11-01`, `tag.branch=main`.

    Raises:
        UsageInvalid: a text is not a condition, or has an unknown column.
    """
    parsed = []
    for text in texts:
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise UsageInvalid(f"{text}: not a condition; write COLUMN=VALUE, such as host=ci-* or date>=2026-11-01")
        check_column(match["column"])
        if match["column"] == "date" and match["operator"] not in {"=", "!="} and not _DATE.fullmatch(match["value"]):
            raise UsageInvalid(f"{text}: compare dates with a date such as 2026-11-09")
        parsed.append(Condition(match["column"], match["operator"], escape_surrogates(match["value"])))
    return parsed


# ---- headers
#
# The headers of a store's runs, which are read all at once.


Header = Mapping[str, Any]
"""A row of the table `runs`, by column, and the sizes of its inputs (`inputs`)."""


@dataclass(frozen=True, slots=True)
class Headers:
    """The runs of a store in order of recording time, and the listing of all files in the store."""

    rows: Sequence[Header]
    listing: Listing

    def chosen(self, conditions: Sequence[Condition]) -> Headers:
        """The runs that meet all conditions."""
        rows = [row for row in self.rows if all(test.holds(cell_of(row, test.column)) for test in conditions)]
        return replace(self, rows=rows)

    def without(self, bad: Sequence[BadFile]) -> Headers:
        """The runs without any of these files, nor a map with such a file. The listing then names them as bad."""
        listing = replace(self.listing, bad=tuple(dict.fromkeys((*self.listing.bad, *bad))))
        names = {file.stem for file in listing.bad}
        return Headers([row for row in self.rows if names.isdisjoint((row["run"], *_names_of_map(row)))], listing)

    def files(self, table: str) -> list[str]:
        """Files of the runs in a table, in order. Table `ops` has a file per model and map, where it exists."""
        files = self.listing.files[table]
        if table == OPS:
            return [files[name] for pair in self.maps_of_models if (name := ops_name(*pair)) in files]
        return [files[row["run"]] for row in self.rows]

    @property
    def maps_of_models(self) -> list[tuple[str, str]]:
        """Pairs of model and map, in the order in which their runs were recorded."""
        return [*dict.fromkeys((row["model"], row["map"]) for row in self.rows)]


def _names_of_map(row: Header) -> tuple[str, str]:
    """The file stems of a run's map: that of the map, and that of its ops."""
    return row["map"], ops_name(row["model"], row["map"])


def read_headers(store: Store, *, skip_bad: bool) -> Headers:
    """Read the headers of all runs; `skip_bad`: leave out runs with a damaged file, which the listing then names.

    Raises:
        StoreInvalid: there is no store, or a file belongs to none of its tables.
    """
    listing = store.listed()
    rows, unread = _rows(listing)
    listing = replace(listing, bad=(*listing.bad, *unread))
    missing = []
    for row in rows:
        lacking = [table for table in OF_RUNS if row["run"] not in listing.files[table]]
        if lacking:
            path = listing.files[RUNS][row["run"]]
            missing.append(BadFile(path, f"has lost its {' and its '.join(lacking)}"))
    incomplete = {file.stem for file in missing}
    # A run that lost a file to damage is reported once, with that file.
    bad_stems = {file.stem for file in listing.bad}
    bad = (*listing.bad, *(file for file in missing if file.stem not in bad_stems))
    headers = Headers([row for row in rows if row["run"] not in incomplete | bad_stems], replace(listing, bad=bad))
    if not skip_bad:
        check_readable(headers.listing)
    return headers


def check_readable(
    listing: Listing, remedy: str = "delete these files and add their runs again, or leave them out with --skip-bad"
) -> None:
    """Refuse a store with bad files.

    Raises:
        StoreInvalid: there are bad files; the message names the first ones, and a remedy.
    """
    if listing.bad:
        examples = "; ".join(f"{file.path} {file.why}" for file in listing.bad[:_NAMED])
        more = f" (and {len(listing.bad) - _NAMED} more)" if len(listing.bad) > _NAMED else ""
        raise StoreInvalid(f"{examples}{more}: {remedy}")


_NAMED: Final = 3


def check_spelling(headers: Headers, metrics: Sequence[str]) -> None:
    """Refuse call metrics that differ between runs in letter case only: to engines, `Cycles` and `cycles` are one.

    Raises:
        UsageInvalid: there is such a metric.
        StoreInvalid: a file cannot be read.
    """
    files = ", ".join(map(file_literal, headers.files(CALLS)))
    try:
        with reader(headers.listing.place) as connection:
            names = connection.execute(f"SELECT DISTINCT name FROM parquet_schema([{files}]) ORDER BY name").fetchall()
    except reading_errors() as error:
        raise StoreInvalid(f"the store cannot be read: {damage_of(error)}") from error
    for metric in metrics:
        others = [str(name) for (name,) in names if name != metric and str(name).lower() == metric.lower()]
        if others:
            raise UsageInvalid(
                f"--metric {metric}: some runs spell it {others[0]}, and queries on calls ignore case; select runs "
                "with one spelling by --where"
            )


def find_damaged_files(headers: Headers, tables: Sequence[str]) -> list[BadFile]:
    """Find the files that made a query fail: bad or lost files of maps, and files of these tables that cannot be read.

    The files are read only after such a failure.

    Raises:
        StoreInvalid: no file failed, but the storage did not answer.
    """
    place = headers.listing.place
    place.check_answers()
    bad = [*_without_ops(headers)] if OPS in tables else []
    for reading in (_read_whole, _read_by_values):
        for table in tables:
            for path in headers.files(table):
                if fault := _damage_of(place, path, table, reading):
                    bad.append(BadFile(path, f"is damaged: {fault}"))
        if bad:
            break
    return bad


def _without_ops(headers: Headers) -> Iterator[BadFile]:
    """Bad files with the ops of maps. Where such a file is missing, the headers of the map's runs."""
    names = {name for row in headers.rows for name in _names_of_map(row)}
    bad = [file for file in headers.listing.bad if file.stem in names]
    yield from bad
    known = headers.listing.files[OPS].keys() | {file.stem for file in bad}
    for row in headers.rows:
        if known.isdisjoint(_names_of_map(row)):
            path = headers.listing.files[RUNS][row["run"]]
            yield BadFile(path, "has lost the ops of its map; add a run of the map again to restore them")


def _damage_of(
    place: Place, path: str, table: str, reading: Callable[[duckdb.DuckDBPyConnection, str, str], str]
) -> str:
    """The reason why a file of a table cannot be read; "" if it can.

    Raises:
        SystemLimit: memory or open files ran out, so the file is not to blame.
    """
    try:
        with reader(place) as connection:
            return reading(connection, reader_call("read_parquet", path), table)
    except reading_errors() as error:
        return damage_of(error)


def _read_whole(connection: duckdb.DuckDBPyConnection, file: str, table: str) -> str:
    types = {str(column): str(kind) for column, kind, *_ in connection.execute(f"DESCRIBE FROM {file}").fetchall()}
    connection.execute(f"SELECT bit_xor(hash(t)) FROM {file} AS t").fetchall()
    if lost := [column for column, kind in COLUMNS.get(table, {}).items() if types.get(column) != kind]:
        return f"its column {lost[0]} is missing or has another type"
    if table == CALLS and (floats := [column for column, kind in types.items() if kind in {"DOUBLE", "FLOAT"}]):
        return f"its column {floats[0]} is not of integers"
    for column in ALWAYS.get(table, ()):
        # For `IS NULL` DuckDB trusts the file's statistics, so compare hashes instead. For maps that does not work: an
        # empty map has the hash of NULL.
        kind = types[column]
        is_null = f"{column} IS NULL" if kind.startswith("MAP") else f"hash({column}) = hash(CAST(NULL AS {kind}))"
        if connection.execute(f"SELECT 1 FROM {file} WHERE {is_null} LIMIT 1").fetchall():
            return f"its column {column} has lost values"
    return ""


def _read_by_values(connection: duckdb.DuckDBPyConnection, file: str, _table: str) -> str:
    """Query each column for a value, as this makes DuckDB read the statistics and filters of the file."""
    columns = [quoted(str(column)) for column, *_ in connection.execute(f"DESCRIBE FROM {file}").fetchall()]
    (least,) = connection.execute(f"SELECT {', '.join(f'min({column})' for column in columns)} FROM {file}").fetchall()
    for column, value in zip(columns, least, strict=True):
        if value is not None:
            connection.execute(f"SELECT count(*) FROM {file} WHERE {column} = {literal(str(value))}").fetchall()
    return ""


@contextmanager
def reader(place: Place) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that reads files of the storage.

    Raises:
        StoreInvalid: a query failed because the storage did not answer (`Place.check_answers`).
    """
    with place.asked() as connection:
        try:
            yield connection
        except reading_errors():
            place.check_answers()
            raise


def _rows(listing: Listing) -> tuple[list[Header], list[BadFile]]:
    """The headers, and the files that do not hold one."""
    place, paths = listing.place, listing.files[RUNS]
    bad: list[BadFile] = []
    try:
        rows = _rows_of(place, list(paths.values()))
    except reading_errors():
        for path in paths.values():
            if fault := _damage_of(place, path, RUNS, _read_whole):
                bad.append(BadFile(path, f"is damaged: {fault}"))
        unreadable = {file.path for file in bad}
        rows = _rows_of(place, [path for path in paths.values() if path not in unreadable])
    damaged_stems = {file.stem for file in bad}
    counts = Counter(stem for stem, _ in rows)
    # A header names its run, as does its file, and has all required columns.
    valid = [
        row
        for stem, row in rows
        if counts[stem] == 1 and row["run"] == stem and all(row[name] is not None for name in ALWAYS[RUNS])
    ]
    handled = {row["run"] for row in valid} | damaged_stems
    bad += [
        BadFile(path, "is damaged: it does not hold the header of its run")
        for stem, path in paths.items()
        if stem not in handled
    ]
    return valid, bad


def _rows_of(place: Place, paths: Sequence[str]) -> list[tuple[str, Header]]:
    """The headers in some files, with the stems of the files."""
    if not paths:
        return []
    # Skip the column `header`: it is long and unused here.
    columns = {name: kind for name, kind in COLUMNS[RUNS].items() if name != "header"}
    # The first file sets the types of all columns, so cast them: a text in place of a number is an error.
    cells = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in columns.items())
    query = (
        f"SELECT parse_filename(filename, true) AS stem, {cells}, {_INPUTS} "
        f"FROM {reader_call('read_parquet', paths, 'filename = true')} "
        "ORDER BY recorded_ns NULLS FIRST, added_ns, run"
    )
    with reader(place) as connection:
        rows = connection.execute(query).fetchall()
    return [
        (stem, dict(zip(columns, row, strict=True)) | {INPUTS: sizes_of(inputs or ())}) for stem, *row, inputs in rows
    ]


_INPUTS: Final = "CASE WHEN json_valid(header) THEN json_extract_string(header, '$.inputs[*]') END"
