"""DuckDB: connections of bounded memory, and quoting (names of columns and files are hostile)."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import TargetUnwritable, UsageInvalid, check_limits
from tracemap.forked import Unlocked
from tracemap.memory import free_memory
from tracemap.options.results import LEAST_MEMORY_MB, MOST_MEMORY_MB
from tracemap.outputs import replaced
from tracemap.owned.home import temporary_folder
from tracemap.sanitize import IS_FORMULA, inert_cell

if TYPE_CHECKING:
    import duckdb

_MEGABYTE = 1_000_000
MOST_MEMORY: Final = MOST_MEMORY_MB * _MEGABYTE
"""Bytes that a database holds in memory at most, where nobody asks for more or less."""
_LEAST_MEMORY = LEAST_MEMORY_MB * _MEGABYTE


CSV: Final = "FORMAT csv, HEADER true"
"""Options of COPY under which texts are written so that no spreadsheet calculates with them."""


_idle: list[duckdb.DuckDBPyConnection] = []
"""Databases that have answered questions about files and hold nothing: to open one takes longer than they took."""


def _close_idle() -> None:
    """A child would have these without the threads that do their work, and hang with the first question."""
    while _idle:
        _idle.pop().close()


os.register_at_fork(before=_close_idle)


def _opened() -> duckdb.DuckDBPyConnection:
    import duckdb

    try:
        return _idle.pop()
    except IndexError:
        return duckdb.connect()


@contextmanager
def asked_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection for questions about files: nothing is made or set in it.

    Some damage of a file is to DuckDB an error of its own, after which the database answers nothing any more.
    """
    connection = _opened()
    try:
        yield connection
    except BaseException as error:
        if isinstance(error, Exception) and _answers(connection):
            _idle.append(connection)
        else:
            connection.close()
        raise
    _idle.append(connection)


def _answers(connection: duckdb.DuckDBPyConnection) -> bool:
    import duckdb

    try:
        return connection.execute("SELECT 1").fetchall() == [(1,)]
    except duckdb.Error:
        return False


@contextmanager
def open_database(memory: int = 0) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that spills what does not fit into memory to a folder that goes away with it.

    Args:
        memory: bytes that it holds at most; 0: what the machine can spare.
    """
    with temporary_folder() as folder:
        connection = _opened()
        try:
            connection.execute(f"SET memory_limit = '{memory or spared_memory()}B'")
            connection.execute(f"SET temp_directory = {target_literal(folder)}")
            yield connection
        except BaseException:
            connection.close()
            raise
        if any(folder.iterdir()):  # it has spilled rows, and must not write any more when the folder goes
            connection.close()
        else:  # to give back hundreds of megabytes takes as long as to write a result, which need not wait for it
            Unlocked(target=connection.close).start()


def keep_compressed(connection: duckdb.DuckDBPyConnection) -> None:
    """Keep tables that are made from now on, but for temporary ones, compressed in a file.

    It lies where the connection of `open_database` spills rows to: wide rows of many that repeat take a tenth there,
    and less time than to be spilled as they are.
    """
    ((folder,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
    connection.execute(f"ATTACH IF NOT EXISTS {literal(str(Path(folder) / 'rows.duckdb'))} AS compressed_rows")
    connection.execute("SET search_path = 'compressed_rows.main,memory.main'")  # tables there are found as before


@contextmanager
def fitting(what: str, remedy: str) -> Iterator[None]:
    """Say in one sentence that rows do not fit into the memory of a database, even with all that can be on disk.

    Raises:
        UsageInvalid: they do not; `remedy` says what helps.
    """
    try:
        yield
    except out_of_memory() as error:
        check_allocated(error)
        raise UsageInvalid(f"{what} take more memory than is spared for them; {remedy}") from error


def spared_memory(memory: int = MOST_MEMORY) -> int:
    """So many bytes, but no more than half of what is free, unless that is too little to work with."""
    return max(_LEAST_MEMORY, min(memory, free_memory() // 2))


def rows_of(query: str) -> list[tuple[Any, ...]]:
    """All rows of a question about files."""
    with asked_database() as connection:
        return connection.execute(query).fetchall()


def fill(
    connection: duckdb.DuckDBPyConnection, name: str, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """A table of rows of ours, bound column by column, in place of any that had the name.

    Args:
        connection: whose temporary table it is.
        name: of the table, which is no text of others.
        columns: their SQL types by name.
        rows: the cells, in the order of the columns.
    """
    declared = ", ".join(f"{column} {kind}" for column, kind in columns.items())
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} ({declared})")
    if rows:
        lists = ", ".join(f"unnest({_LISTED.get(kind, _BOUND).format(kind=kind)})" for kind in columns.values())
        cells = [
            json.dumps(column) if kind in _LISTED else list(column)
            for kind, column in zip(columns.values(), zip(*rows, strict=True), strict=True)
        ]
        connection.execute(f"INSERT INTO {name} SELECT {lists}", cells)


_BOUND = "CAST(? AS {kind}[])"
# Whole numbers as a single text: to bind them one by one takes three times as long.
_LISTED = dict.fromkeys(("INTEGER", "BIGINT"), "CAST(CAST(? AS JSON) AS {kind}[])")


def quoted(name: str) -> str:
    """A column's name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def file_literal(path: Path | str) -> str:
    """The name of a file to read as an SQL string literal: of this file, and of no other.

    DuckDB takes names for patterns (`r[1].csv` is r1.csv, `*` is all), and a leading `~` for the user's home. Whoever
    reads addresses, in which no path of a file has two slashes, takes them as they are.
    """
    name = str(path)
    return literal(name if "://" in name else glob.escape(_without_home(name)))


def table_of(reader: str, files: Path | str | Sequence[str], options: str = "") -> str:
    """The table function of DuckDB that reads files: these, and with no columns but their own.

    A folder on the way to a file that is called `COLUMN=VALUE` would be a column, in place of the file's own.

    Args:
        reader: `read_parquet`, `read_csv` or `read_json`.
        files: one, or several of the same kind.
        options: of the function, parted by commas.
    """
    named = file_literal(files) if isinstance(files, (Path, str)) else f"[{', '.join(map(file_literal, files))}]"
    return f"{reader}({named}, hive_partitioning = false{options and f', {options}'})"


def target_literal(path: Path) -> str:
    """The name of a file to write as an SQL string literal: not below the user's home because it begins with `~`."""
    return literal(_without_home(str(path)))


def _without_home(name: str) -> str:
    return str(Path.cwd() / name) if name.startswith("~") else name


def copy_to(rows: duckdb.DuckDBPyRelation, target: Path, options: str) -> None:
    """Write rows to a file, whole or not at all; the options are those of SQL's COPY.

    Raises:
        TargetUnwritable: it cannot be written.
    """
    with copied(rows, target, options):
        pass


@contextmanager
def copied(rows: duckdb.DuckDBPyRelation, target: Path, options: str) -> Iterator[None]:
    """As `copy_to`, but the file takes its place only when what is done inside went well.

    Raises:
        TargetUnwritable: it cannot be written.
    """
    import duckdb

    shown = ", ".join(_inert(name, str(kind)) if options == CSV else quoted(name) for name, kind in _columns(rows))
    with replaced(target) as path:
        query = f"COPY (SELECT {shown} FROM copied_rows) TO {target_literal(path)} ({options})"
        try:
            written = rows.query("copied_rows", query)
            if written is not None:
                written.fetchall()
        except duckdb.IOException as error:
            raise TargetUnwritable(f"{target}: cannot be written: {said_by_system(error)}") from error
        yield


def _columns(rows: duckdb.DuckDBPyRelation) -> Iterator[tuple[str, object]]:
    return zip(rows.columns, rows.types, strict=True)


def _inert(name: str, kind: str) -> str:
    """A column as `inert.inert_cell` makes its cells."""
    cell, header = quoted(name), quoted(inert_cell(name))
    if kind != "VARCHAR":
        return f"{cell} AS {header}"
    return f"CASE WHEN regexp_matches({cell}, {literal(IS_FORMULA)}) THEN '''' || {cell} ELSE {cell} END AS {header}"


def said_by_system(error: Exception) -> str:
    """What the system said of an error that DuckDB passes on in JSON; else its first line."""
    number = re.search(r'"errno":"(\d+)"', str(error))
    return os.strerror(int(number[1])) if number else first_line(error)


def first_line(error: Exception) -> str:
    """What DuckDB says of an error, without its excerpt of the query."""
    return str(error).partition("\n")[0]


def out_of_memory() -> type[Exception]:
    """What is raised where a query needs more memory than its database may hold, even with all that can on disk."""
    import duckdb

    return duckdb.OutOfMemoryException


_NOT_GIVEN: Final = ("Failed to allocate", "Allocation failure", "bad allocation")
"""What DuckDB says where the system gave it no memory, though it might have had more by its own limit."""


def check_allocated(error: Exception) -> None:
    """Raise another error where it is not the database's own limit that `out_of_memory` tells of: none can be raised.

    Raises:
        SystemLimit: the system, or a limit of the shell, gives no more memory.
    """
    if any(words in str(error) for words in _NOT_GIVEN):
        check_limits(error)


def reading_errors() -> tuple[type[Exception], ...]:
    """What may be raised while DuckDB reads a file that is damaged.

    Not all of it is DuckDB's own: names and texts that are no UTF-8 (a ValueError), and numbers that Python's types do
    not hold, fail on their way into Python.
    """
    import duckdb

    return (duckdb.Error, OverflowError, ValueError)


def damage_of(error: Exception) -> str:
    """What is wrong with a file, of one of `reading_errors` that it ended in.

    Raises:
        SystemLimit: as `check_limits`: nothing is wrong with it.
    """
    check_limits(error)
    return first_line(error)
