"""Headers of runs: read and selected."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

import duckdb

from tracemap.codec import storable
from tracemap.errors import StoreInvalid, UsageInvalid
from tracemap.measurements.columns import is_number
from tracemap.measurements.sql import damage_of, file_literal, literal, quoted, reading_errors, table_of
from tracemap.store.folder import Place
from tracemap.store.layout import ALWAYS, CALLS, COLUMNS, OF_RUNS, OPS, RUNS, BadFile, Listing, Store, ops_name
from tracemap.units import in_parts

# ---- selection
#
# Which runs are asked about, and by which columns of their headers they are told apart.


TAG: Final = "tag."
_HIDDEN: Final = frozenset({"number", "header", "tags"})
INPUTS: Final = "inputs"
COLUMNS_OF_RUNS: Final = (*(name for name in COLUMNS[RUNS] if name not in _HIDDEN), INPUTS)
"""Columns by which runs are chosen and grouped; besides these there are tags, as `tag.NAME`.

`inputs` is none of the table's: the sizes of the arguments, which the header tells as JSON.
"""
_TAG = re.compile(re.escape(TAG) + r"[\w.\-]{1,100}")
_COMPARISONS: Final = ("<=", ">=", "!=", "=", "<", ">")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_CONDITION = re.compile(rf"(?P<column>[\w.\-]+)(?P<operator>{'|'.join(_COMPARISONS)})(?P<value>.*)", re.DOTALL)


def check_column(name: str) -> str:
    """The name of a column of headers, or of a tag.

    Raises:
        UsageInvalid: there is no such column.
    """
    if name not in COLUMNS_OF_RUNS and not _TAG.fullmatch(name):
        raise UsageInvalid(
            f"{name}: runs have no such column; they have {', '.join(COLUMNS_OF_RUNS)}, and tags as {TAG}NAME"
        )
    return name


def sizes_of(inputs: Sequence[str | None]) -> str | None:
    """The types of a call's arguments, without what is in them: calls of other sizes do not cost the same.

    None: there is no argument, or one tells no size, as a file does. A number alone is no size.

    >>> sizes_of(["8x4xf32=0.5", "4xi32: zeros (made up)", "7"])
    '8x4xf32, 4xi32, scalar'
    """
    sizes = [re.split("[=:]", each or "@", maxsplit=1)[0] for each in inputs]
    if not sizes or any("@" in each for each in sizes):
        return None
    return ", ".join("scalar" if is_number(each) else each for each in sizes)


def cell_of(run: Mapping[str, Any], column: str) -> object:
    """What a run has in a column; None: it is not known."""
    tags: Mapping[str, str] = run["tags"] or {}
    return tags.get(column.removeprefix(TAG)) if column.startswith(TAG) else run[column]


@dataclass(frozen=True, slots=True)
class Condition:
    """What a column of a header must be: equal to a value, which may be a pattern as of a shell, or before or after it.

    What is unknown is equal to `unknown` only.
    """

    column: str
    operator: str
    value: str

    def holds(self, cell: object) -> bool:
        """Whether it holds of a cell; numbers are compared as numbers, those in tags and within texts too."""
        if self.operator in {"=", "!="}:
            text = "unknown" if cell is None else str(cell)
            return fnmatchcase(text, self.value) == (self.operator == "=")
        if cell is None:
            return False
        if isinstance(cell, str) and not (self.column.startswith(TAG) and is_number(cell) and is_number(self.value)):
            one, other = in_parts(cell), in_parts(self.value)
            order = (one > other) - (one < other)
        else:
            try:
                number = float(self.value)
            except ValueError as error:
                raise UsageInvalid(
                    f"{self.column}{self.operator}{self.value}: is a column of numbers; compare it with one"
                ) from error
            order = (float(str(cell)) > number) - (float(str(cell)) < number)
        return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[self.operator]


def conditions(texts: Sequence[str]) -> list[Condition]:
    """Conditions as they are typed: `host=ci-*`, `date>=2026-11-01`, `tag.branch=main`.

    Raises:
        UsageInvalid: one is no condition, or of no column.
    """
    found = []
    for text in texts:
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise UsageInvalid(f"{text}: is no condition; write COLUMN=VALUE, such as host=ci-* or date>=2026-11-01")
        check_column(match["column"])
        if match["column"] == "date" and match["operator"] not in {"=", "!="} and not _DATE.fullmatch(match["value"]):
            raise UsageInvalid(f"{text}: dates are compared with one such as 2026-11-09")
        found.append(Condition(match["column"], match["operator"], storable(match["value"])))
    return found


# ---- headers
#
# The headers of a store's runs: read all at once, chosen, and told apart in groups.


Header = Mapping[str, Any]
"""A row of the table `runs`, by column, and the sizes of its inputs."""


@dataclass(frozen=True, slots=True)
class Headers:
    """The runs of a store, by when they were recorded; the files of all of them, and what else was found there."""

    rows: Sequence[Header]
    listing: Listing

    def chosen(self, wanted: Sequence[Condition]) -> Headers:
        """Those of which all conditions hold."""
        rows = [row for row in self.rows if all(each.holds(cell_of(row, each.column)) for each in wanted)]
        return replace(self, rows=rows)

    def without(self, bad: Sequence[BadFile]) -> Headers:
        """Those that have none of these files, nor a map whose file is one; the listing names them from now on."""
        listing = replace(self.listing, bad=tuple(dict.fromkeys((*self.listing.bad, *bad))))
        names = {each.stem for each in listing.bad}
        return Headers([row for row in self.rows if names.isdisjoint((row["run"], *_names_of_map(row)))], listing)

    def files(self, table: str) -> list[str]:
        """Their files of a table, in their order; of `ops` a file for each of their maps that has one."""
        there = self.listing.files[table]
        if table == OPS:
            return [there[name] for pair in self.maps_of_models if (name := ops_name(*pair)) in there]
        return [there[row["run"]] for row in self.rows]

    @property
    def maps_of_models(self) -> list[tuple[str, str]]:
        """Each model with each of its maps, in the order in which runs of them were recorded."""
        return [*dict.fromkeys((row["model"], row["map"]) for row in self.rows)]


def _names_of_map(row: Header) -> tuple[str, str]:
    """What the files of a run's map are called: that of the map, and that of its ops."""
    return row["map"], ops_name(row["model"], row["map"])


def read_headers(store: Store, *, skip_bad: bool) -> Headers:
    """All runs; `skip_bad`: without those that have a damaged file, which the listing then names.

    Raises:
        StoreInvalid: there is no store, or a file that is none of its tables.
    """
    listing = store.listed()
    rows, unread = _rows(listing)
    listing = replace(listing, bad=(*listing.bad, *unread))
    missing = []
    for row in rows:
        lacks = [table for table in OF_RUNS if row["run"] not in listing.files[table]]
        if lacks:
            path = listing.files[RUNS][row["run"]]
            missing.append(BadFile(path, f"has lost its {' and its '.join(lacks)}"))
    lost = {each.stem for each in missing}
    # A run that has lost a file to damage is named once, by that file.
    broken = {each.stem for each in listing.bad}
    bad = (*listing.bad, *(each for each in missing if each.stem not in broken))
    found = Headers([row for row in rows if row["run"] not in lost | broken], replace(listing, bad=bad))
    if not skip_bad:
        check_readable(found.listing)
    return found


def check_readable(
    listing: Listing, remedy: str = "take such files away and add their runs again, or leave them out with --skip-bad"
) -> None:
    """Refuse a store with files that are none of its tables.

    Raises:
        StoreInvalid: there are some; the first ones are named, and what to do.
    """
    if listing.bad:
        named = "; ".join(f"{each.path} {each.why}" for each in listing.bad[:_NAMED])
        more = f" (and {len(listing.bad) - _NAMED} more)" if len(listing.bad) > _NAMED else ""
        raise StoreInvalid(f"{named}{more}: {remedy}")


_NAMED: Final = 3


def check_spelling(headers: Headers, metrics: Sequence[str]) -> None:
    """Refuse metrics of calls that some runs write in other letters: to engines, `Cycles` and `cycles` are one column.

    Raises:
        UsageInvalid: there is such a metric.
        StoreInvalid: a file cannot be read.
    """
    files = ", ".join(map(file_literal, headers.files(CALLS)))
    try:
        with reader(headers.listing.place) as connection:
            found = connection.execute(f"SELECT DISTINCT name FROM parquet_schema([{files}]) ORDER BY name").fetchall()
    except reading_errors() as error:
        raise StoreInvalid(f"the store cannot be read: {damage_of(error)}") from error
    for metric in metrics:
        others = [str(name) for (name,) in found if name != metric and str(name).lower() == metric.lower()]
        if others:
            raise UsageInvalid(
                f"--metric {metric}: some runs call it {others[0]}, which single calls are not told apart by; choose "
                "runs that call it alike, with --where"
            )


def damaged(headers: Headers, tables: Sequence[str]) -> list[BadFile]:
    """The files of some tables for which a question has failed: those of maps that are known to be bad or lost, and
    those that cannot be read. Only then are they read for their own sake.

    Raises:
        StoreInvalid: it was no file that failed, but the place that they lie in.
    """
    place = headers.listing.place
    place.check_answers()
    found = [*_without_ops(headers)] if OPS in tables else []
    for reading in (_read_whole, _read_by_values):
        for table in tables:
            for path in headers.files(table):
                if why := _damage_of(place, path, table, reading):
                    found.append(BadFile(path, f"is damaged: {why}"))
        if found:
            break
    return found


def _without_ops(headers: Headers) -> Iterator[BadFile]:
    """Files of the ops of maps that are bad; where such a file is not there, the headers of its runs."""
    names = {name for row in headers.rows for name in _names_of_map(row)}
    bad = [each for each in headers.listing.bad if each.stem in names]
    yield from bad
    there = headers.listing.files[OPS].keys() | {each.stem for each in bad}
    for row in headers.rows:
        if there.isdisjoint(_names_of_map(row)):
            path = headers.listing.files[RUNS][row["run"]]
            yield BadFile(path, "has lost the ops of its map, which are there again when a run of it is added again")


def _damage_of(
    place: Place, path: str, table: str, reading: Callable[[duckdb.DuckDBPyConnection, str, str], str]
) -> str:
    """Why a file of a table cannot be read; "" where it can.

    Raises:
        SystemLimit: for want of memory or of open files, which is no file's fault.
    """
    try:
        with reader(place) as connection:
            return reading(connection, table_of("read_parquet", path), table)
    except reading_errors() as error:
        return damage_of(error)


def _read_whole(connection: duckdb.DuckDBPyConnection, file: str, table: str) -> str:
    there = {str(column): str(kind) for column, kind, *_ in connection.execute(f"DESCRIBE FROM {file}").fetchall()}
    connection.execute(f"SELECT bit_xor(hash(t)) FROM {file} AS t").fetchall()
    if lost := [column for column, kind in COLUMNS.get(table, {}).items() if there.get(column) != kind]:
        return f"its column {lost[0]} is lost"
    if table == CALLS and (odd := [column for column, kind in there.items() if kind in {"DOUBLE", "FLOAT"}]):
        return f"its column {odd[0]} has no whole numbers"
    for column in ALWAYS.get(table, ()):
        # Whether a column has none, the database believes what the file says of it; it does not of their hashes, that
        # of an empty map being the same.
        kind = there[column]
        is_lost = f"{column} IS NULL" if kind.startswith("MAP") else f"hash({column}) = hash(CAST(NULL AS {kind}))"
        if connection.execute(f"SELECT 1 FROM {file} WHERE {is_lost} LIMIT 1").fetchall():
            return f"its column {column} has lost values"
    return ""


def _read_by_values(connection: duckdb.DuckDBPyConnection, file: str, _table: str) -> str:
    """Questions that name a value look at what a file says of its values, too, which nobody else reads."""
    columns = [quoted(str(column)) for column, *_ in connection.execute(f"DESCRIBE FROM {file}").fetchall()]
    (least,) = connection.execute(f"SELECT {', '.join(f'min({each})' for each in columns)} FROM {file}").fetchall()
    for column, value in zip(columns, least, strict=True):
        if value is not None:
            connection.execute(f"SELECT count(*) FROM {file} WHERE {column} = {literal(str(value))}").fetchall()
    return ""


@contextmanager
def reader(place: Place) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that reads files of a place.

    Raises:
        StoreInvalid: as `Place.check_answers`, where a query fails for that.
    """
    with place.asked() as connection:
        try:
            yield connection
        except reading_errors():
            place.check_answers()
            raise


def _rows(listing: Listing) -> tuple[list[Header], list[BadFile]]:
    """The headers, and files that do not hold one."""
    place, paths = listing.place, listing.files[RUNS]
    bad: list[BadFile] = []
    try:
        rows = _rows_of(place, list(paths.values()))
    except reading_errors():
        for path in paths.values():
            if why := _damage_of(place, path, RUNS, _read_whole):
                bad.append(BadFile(path, f"is damaged: {why}"))
        spoiled = {each.path for each in bad}
        rows = _rows_of(place, [path for path in paths.values() if path not in spoiled])
    seen = {each.stem for each in bad}
    named = Counter(stem for stem, _ in rows)
    own = [row for stem, row in rows if named[stem] == 1 and _is_of(row, stem)]
    told = {row["run"] for row in own} | seen
    bad += [
        BadFile(path, "is damaged: it is not the header of its run") for stem, path in paths.items() if stem not in told
    ]
    return own, bad


def _is_of(row: Header, stem: str) -> bool:
    """Whether a header is that of the run whose file it was in, and says what each does."""
    return row["run"] == stem and all(row[name] is not None for name in ALWAYS[RUNS])


def _rows_of(place: Place, paths: Sequence[str]) -> list[tuple[str, Header]]:
    """The headers in some files, each with its file's name."""
    if not paths:
        return []
    # What a header says as a whole is long, and nobody asks for it here.
    columns = {name: kind for name, kind in COLUMNS[RUNS].items() if name != "header"}
    # Files are read as the first of them is: what it has in place of a number is none.
    cells = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in columns.items())
    query = (
        f"SELECT parse_filename(filename, true) AS stem, {cells}, {_INPUTS} "
        f"FROM {table_of('read_parquet', paths, 'filename = true')} "
        "ORDER BY recorded_ns NULLS FIRST, added_ns, run"
    )
    with reader(place) as connection:
        rows = connection.execute(query).fetchall()
    return [
        (stem, dict(zip(columns, row, strict=True)) | {INPUTS: sizes_of(inputs or ())}) for stem, *row, inputs in rows
    ]


_INPUTS: Final = "CASE WHEN json_valid(header) THEN json_extract_string(header, '$.inputs[*]') END"
