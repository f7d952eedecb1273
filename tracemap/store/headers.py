"""The headers of a store's runs: read all at once, chosen, and told apart in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import duckdb

from tracemap.errors import StoreInvalid
from tracemap.measurements.sql import first_line, literal, reading_errors
from tracemap.store.layout import OF_RUNS, RUNS, BadFile, Listing, Store
from tracemap.store.selection import Condition, cell_of
from tracemap.store.tables import COLUMNS

Header = Mapping[str, Any]
"""A row of the table `runs`, by column."""


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
        """Those that have none of these files, which the listing names from now on."""
        names = {each.path.stem for each in bad}
        listing = replace(self.listing, bad=(*self.listing.bad, *bad))
        return Headers([row for row in self.rows if row["run"] not in names], listing)

    def files(self, table: str) -> list[Any]:
        """Their files of a table, in their order."""
        return [self.listing.files[table][row["run"]] for row in self.rows]


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
    lost = {each.path.stem for each in missing}
    # A run that has lost a file to damage is named once, by that file.
    broken = {each.path.stem for each in listing.bad}
    bad = (*listing.bad, *(each for each in missing if each.path.stem not in broken))
    found = Headers([row for row in rows if row["run"] not in lost | broken], replace(listing, bad=bad))
    if not skip_bad:
        check_readable(found.listing)
    return found


def check_readable(listing: Listing) -> None:
    """Refuse a store with files that are none of its tables.

    Raises:
        StoreInvalid: there are some; the first ones are named.
    """
    if listing.bad:
        named = "; ".join(f"{each.path} {each.why}" for each in listing.bad[:_NAMED])
        more = f" (and {len(listing.bad) - _NAMED} more)" if len(listing.bad) > _NAMED else ""
        raise StoreInvalid(f"{named}{more}: take such files away, or leave them out with --skip-bad")


_NAMED: Final = 3


def damaged(headers: Headers, tables: Sequence[str]) -> list[BadFile]:
    """The files of some tables that cannot be read to their ends: each is read whole, which is only done when a
    question has failed.
    """
    found = []
    for table in tables:
        for path in headers.files(table):
            try:
                with duckdb.connect() as connection:
                    connection.execute(
                        f"SELECT bit_xor(hash(t)) FROM read_parquet({literal(str(path))}) AS t"
                    ).fetchall()
            except reading_errors() as error:
                found.append(BadFile(path, f"is damaged: {first_line(error)}"))
    return found


def _rows(listing: Listing) -> tuple[list[Header], list[BadFile]]:
    """The headers, and files of some that cannot be read."""
    paths = list(listing.files[RUNS].values())
    try:
        return _rows_of(paths), []
    except reading_errors():
        bad = []
    for path in paths:
        try:
            _rows_of([path])
        except reading_errors() as error:
            bad.append(BadFile(path, f"is damaged: {first_line(error)}"))
    spoiled = {each.path for each in bad}
    return _rows_of([path for path in paths if path not in spoiled]), bad


def _rows_of(paths: Sequence[Path]) -> list[Header]:
    if not paths:
        return []
    # What a header says as a whole is long, and nobody asks for it here.
    columns = [name for name in COLUMNS[RUNS] if name != "header"]
    files = ", ".join(literal(str(path)) for path in paths)
    query = (
        f"SELECT {', '.join(columns)} FROM read_parquet([{files}], hive_partitioning = false) "
        "ORDER BY recorded_ns NULLS FIRST, added_ns, run"
    )
    with duckdb.connect() as connection:
        return [dict(zip(columns, row, strict=True)) for row in connection.execute(query).fetchall()]
