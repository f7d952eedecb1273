"""Text of other tools, line by line, as a table of DuckDB: what a line says is told by regular expressions in SQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import RunInvalid, start_of
from tracemap.inert import for_terminal
from tracemap.measurements.sql import damage_of, reading_errors, table_of

if TYPE_CHECKING:
    import duckdb

_LOADED = """
CREATE OR REPLACE TEMP TABLE {table} AS
SELECT row_number() OVER () AS number, {columns}
FROM {rows}
"""
_LINES = "auto_detect=false, header=false, delim='\x01', quote='', escape='', columns={line: 'VARCHAR'}"


def load_lines(path: Path, connection: duckdb.DuckDBPyConnection, table: str, columns: str) -> None:
    """Make a table of a text: `number` of each line that is not empty, from 1, and columns in SQL of its `line`.

    Raises:
        RunInvalid: it is no text, or a line has no end.
    """
    try:
        connection.execute(_LOADED.format(table=table, columns=columns, rows=table_of("read_csv", path, _LINES)))
    except reading_errors() as error:
        raise RunInvalid(f"{path}: cannot be read as lines of text: {damage_of(error)}") from error


def not_understood(path: Path, number: int, line: str, what: str) -> RunInvalid:
    """The error for a line that is not what the others are; `what` they are."""
    return RunInvalid(f"{path}, line {number}: {for_terminal(start_of(line, 80))!r} is no {what}")
