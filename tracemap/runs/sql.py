"""DuckDB connections with bounded memory, and quoting, because names of columns and files may be hostile."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.errors import TargetUnwritable, UsageInvalid, check_limits
from tracemap.core.files import atomic_file
from tracemap.core.process.forked import LockFreeThread
from tracemap.core.process.limits import free_memory
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.sanitize import IS_FORMULA, escape_formula
from tracemap.options.results import LEAST_MEMORY_MB, MOST_MEMORY_MB

if TYPE_CHECKING:
    import duckdb


MOST_MEMORY: Final = MOST_MEMORY_MB * 1_000_000
"""Default memory limit of a database, in bytes."""
_LEAST_MEMORY = LEAST_MEMORY_MB * 1_000_000

CSV: Final = "FORMAT csv, HEADER true"
"""Options of COPY for CSV. With them, texts are escaped so that no spreadsheet evaluates them as formulas."""

_COMPRESSED: Final = "compressed_"

_idle: list[duckdb.DuckDBPyConnection] = []
"""Empty databases to reuse, because opening one takes longer than a query about a file."""


def _close_idle() -> None:
    """Close idle databases before a fork: a child would have them without their threads and hang at its first query."""
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
def query_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection for read-only queries about files: callers create no tables and change no settings.

    For some damaged files DuckDB reports an internal error, and the database is unusable afterwards; it is then closed.
    """
    connection = _opened()
    try:
        yield connection
    except BaseException as error:
        if isinstance(error, Exception) and _is_usable(connection):
            _idle.append(connection)
        else:
            connection.close()
        raise
    _idle.append(connection)


def _is_usable(connection: duckdb.DuckDBPyConnection) -> bool:
    import duckdb

    try:
        return connection.execute("SELECT 1").fetchall() == [(1,)]
    except duckdb.Error:
        return False


@contextmanager
def open_database(memory: int = 0) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that spills to a temporary folder, which is removed with it.

    Args:
        memory: memory limit in bytes; 0: the memory that the machine can spare.
    """
    with temporary_folder() as folder:
        connection = _opened()
        try:
            connection.execute(f"SET memory_limit = '{memory or available_memory()}B'")
            connection.execute(f"SET temp_directory = {target_literal(folder)}")
            yield connection
        except BaseException:
            connection.close()
            raise
        if any(folder.iterdir()):  # it has spilled rows, and must stop writing before the folder is removed
            connection.close()
        else:  # freeing hundreds of megabytes takes as long as writing a result, so do not wait for it
            LockFreeThread(target=connection.close).start()


@contextmanager
def attached_database(connection: duckdb.DuckDBPyConnection, name: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection for another thread, which creates tables in a database of its own, called `name`.

    Afterwards, `connection` sees its tables as `name.TABLE`. Both share the memory limit.
    """
    own = connection.cursor()
    try:
        own.execute(f"ATTACH ':memory:' AS {name}; USE {name}")
        yield own
    finally:
        own.close()


def keep_compressed(connection: duckdb.DuckDBPyConnection) -> None:
    """Store new tables, except temporary ones, compressed in a file.

    The file is in the folder to which the connection of `open_database` spills. Wide tables with repeated values take a
    tenth of the space there, and less time than spilling them uncompressed.
    """
    query = "SELECT current_setting('temp_directory'), current_database()"
    ((folder, database),) = connection.execute(query).fetchall()
    if database.startswith(_COMPRESSED):
        return
    compressed = f"{_COMPRESSED}{database}"
    connection.execute(f"ATTACH {literal(str(Path(folder) / f'{compressed}.duckdb'))} AS {compressed}")
    connection.execute(f"SET search_path = '{compressed}.main,{database}.main'")  # old tables stay visible


@contextmanager
def explained_out_of_memory(rows: str, remedy: str) -> Iterator[None]:
    """Translate an out-of-memory error of a database into a sentence about these rows.

    Raises:
        UsageInvalid: the rows do not fit into the memory limit, even with spilling; `remedy` says what helps.
    """
    try:
        yield
    except out_of_memory() as error:
        check_allocated(error)
        raise UsageInvalid(f"{rows} need more memory than is available; {remedy}") from error


def available_memory(memory: int = MOST_MEMORY) -> int:
    """`memory` bytes, but at most half of the free memory, and at least the minimum to work with."""
    return max(_LEAST_MEMORY, min(memory, free_memory() // 2))


def rows_of(query: str) -> list[tuple[Any, ...]]:
    """All rows of a query about files."""
    with query_database() as connection:
        return connection.execute(query).fetchall()


def first_integer(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    """The single number that a query returns; 0 for NULL."""
    return int(connection.execute(query).fetchall()[0][0] or 0)


def fill_table(
    connection: duckdb.DuckDBPyConnection, name: str, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Create a temporary table from Python rows, bound column by column; replaces a table of that name.

    Args:
        connection: the connection.
        name: the name of the table, from trusted text.
        columns: the SQL types of the columns by name.
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
# Integers are bound as a single text: binding them one by one takes three times as long.
_LISTED = dict.fromkeys(("INTEGER", "BIGINT"), "CAST(CAST(? AS JSON) AS {kind}[])")


def quoted(name: str) -> str:
    """A column's name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def file_literal(path: Path | str) -> str:
    """The name of a file to read as an SQL string literal that matches only this file.

    DuckDB treats names as glob patterns (`r[1].csv` is r1.csv, `*` is all) and a leading `~` as the user's home. URLs,
    recognized by `://`, are not escaped.
    """
    name = str(path)
    return literal(name if "://" in name else glob.escape(_without_home(name)))


def reader_call(reader: str, files: Path | str | Sequence[str], options: str = "") -> str:
    """The DuckDB table function that reads these files, with only their own columns.

    By default DuckDB would turn a parent folder named `COLUMN=VALUE` into a column that replaces the file's.

    Args:
        reader: `read_parquet`, `read_csv` or `read_json`.
        files: one file, or several of the same kind.
        options: options of the function, separated by commas.
    """
    named = file_literal(files) if isinstance(files, (Path, str)) else f"[{', '.join(map(file_literal, files))}]"
    return f"{reader}({named}, hive_partitioning = false{options and f', {options}'})"


def target_literal(path: Path) -> str:
    """The name of a file to write as an SQL string literal; a leading `~` is no home folder."""
    return literal(_without_home(str(path)))


def _without_home(name: str) -> str:
    return str(Path.cwd() / name) if name.startswith("~") else name


def copy_to(rows: duckdb.DuckDBPyRelation, target: Path, options: str) -> None:
    """Write rows to a file atomically; the options are those of SQL's COPY.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    with copied(rows, target, options):
        pass


@contextmanager
def copied(rows: duckdb.DuckDBPyRelation, target: Path, options: str) -> Iterator[None]:
    """As `copy_to`, but the file replaces the target only if the body of the `with` statement succeeds.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    import duckdb

    columns = zip(rows.columns, rows.types, strict=True)
    shown = ", ".join(_escaped(name, str(kind)) if options == CSV else quoted(name) for name, kind in columns)
    with atomic_file(target) as path:
        query = f"COPY (SELECT {shown} FROM copied_rows) TO {target_literal(path)} ({options})"
        try:
            written = rows.query("copied_rows", query)
            if written is not None:
                written.fetchall()
        except duckdb.IOException as error:
            raise TargetUnwritable(f"{target}: cannot be written: {system_message(error)}") from error
        yield


def _escaped(name: str, kind: str) -> str:
    """A column whose cells are escaped as by `sanitize.escape_formula`, in SQL."""
    cell, header = quoted(name), quoted(escape_formula(name))
    if kind != "VARCHAR":
        return f"{cell} AS {header}"
    return f"CASE WHEN regexp_matches({cell}, {literal(IS_FORMULA)}) THEN '''' || {cell} ELSE {cell} END AS {header}"


def system_message(error: Exception) -> str:
    """The system's message for an error that DuckDB passes on in JSON; else the error's first line."""
    number = re.search(r'"errno":"(\d+)"', str(error))
    return os.strerror(int(number[1])) if number else first_line(error)


def first_line(error: Exception) -> str:
    """The first line of a DuckDB error, without the excerpt of the query."""
    return str(error).partition("\n")[0]


def out_of_memory() -> type[Exception]:
    """The exception of a query that needs more memory than its database's limit, even with spilling."""
    import duckdb

    return duckdb.OutOfMemoryException


_NOT_GIVEN: Final = ("Failed to allocate", "Allocation failure", "bad allocation")
"""Texts of DuckDB's error if the system refused memory below the database's own limit."""


def check_allocated(error: Exception) -> None:
    """Raise another error if the system, not the database's limit, caused the out-of-memory error.

    Raises:
        SystemLimit: the system, or a limit of the shell, refused memory, so raising the database's limit cannot help.
    """
    if any(words in str(error) for words in _NOT_GIVEN):
        check_limits(error)


def reading_errors() -> tuple[type[Exception], ...]:
    """The exceptions of DuckDB reading a damaged file.

    Not all are DuckDB's own: texts that are not UTF-8 (a ValueError), and numbers that Python's types cannot hold, fail
    when they are converted to Python.
    """
    import duckdb

    return (duckdb.Error, OverflowError, ValueError)


def damage_of(error: Exception) -> str:
    """The description of a file's damage, from one of `reading_errors`.

    Raises:
        SystemLimit: as in `check_limits`: the file is not damaged.
    """
    check_limits(error)
    return first_line(error)
