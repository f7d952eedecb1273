"""Location of the bad cell of a run's table, after the scan of the whole table has failed.

The scan checks values in SQL, which is fast, but SQL cannot always say where a bad value is.
"""

from __future__ import annotations

from collections.abc import Callable

from tracemap.core.errors import RunInvalid, check_limits, start_of
from tracemap.core.units import plural
from tracemap.runs.columns import FileColumn, columns_of, csv_rows, is_number, is_whole_number, table_sql
from tracemap.runs.model import TIME_METRICS, Run
from tracemap.runs.sql import damage_of, quoted, reader_call, reading_errors, rows_of

_LONGEST_QUOTE = 60
_TRUTH = ("true", "false", "t", "f", "1", "0", "yes", "no", "y", "n")
"""Texts that SQL accepts as a truth value."""


def explain_bad_cell(run: Run, error: Exception) -> RunInvalid:
    """The error for a failed scan of `events_sql`, with file, line, column and the bad text.

    Raises:
        SystemLimit: as in `check_limits`.
    """
    check_limits(error)
    if run.format == "csv":
        # The record that SQL suspects, else any record: Python takes minutes for ten million rows.
        suspect = _suspicious_record(run)
        fault = (suspect and _bad_cell_from(run, suspect)) or _bad_cell_from(run, 1) or _different_line_end(run)
    else:
        fault = _bad_cell_of_parquet(run)
    return RunInvalid(f"{run.file}: {fault or f'cannot be read: {damage_of(error)}'}")


# ---- CSV


def _different_line_end(run: Run) -> str:
    """The first line whose end differs from that of the first line, such as in concatenated files of two systems."""
    with run.table.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        ends = (line.removesuffix("\n")[-1:] == "\r" for line in file if line.endswith("\n"))
        head = next(ends, False)
        number = next((number for number, end in enumerate(ends, 2) if end is not head), 0)
    if not number:
        return ""
    return (
        f"line {number} has another line end than the first line (\\r\\n and \\n); save the file with one kind of them"
    )


_SUSPICIOUS_RECORD = """
SELECT record FROM (SELECT row_number() OVER () AS record, * FROM {table}) WHERE {is_bad} ORDER BY record LIMIT 1
"""


def _suspicious_record(run: Run) -> int:
    """The number of the first record with a bad cell, from 1 after the header; 0 if SQL cannot find it."""
    is_bad = " OR ".join(_is_bad(column) for column in columns_of(run) if column.type != "VARCHAR")
    query = _SUSPICIOUS_RECORD.format(table=table_sql(run), is_bad=is_bad or "false")
    try:
        return next((int(record) for (record,) in rows_of(query)), 0)
    except reading_errors() as error:
        check_limits(error)
        return 0


def _is_bad(column: FileColumn) -> str:
    """SQL condition: a cell's text is bad; `_fault_finder` has the reason."""
    text = f"c{column.index}"
    if column.type == "BOOLEAN":
        return f"({text} IS NOT NULL AND TRY_CAST({text} AS BOOLEAN) IS NULL)"
    number = f"TRY_CAST({text} AS DOUBLE)"
    conditions = [f"coalesce(NOT isfinite({number}), true)", f"abs({number}) >= 9.2e18"]
    if column.means in TIME_METRICS:
        conditions.append(f"{number} < 0")
    elif column.type == "BIGINT":
        conditions.append(f"{number} <> trunc({number})")
    return f"({text} IS NOT NULL AND ({' OR '.join(conditions)}))"


def _bad_cell_from(run: Run, first: int) -> str:
    """The first bad cell in the records from number `first` on, or an earlier row with a wrong number of cells."""
    checks = [(column, _fault_finder(column)) for column in columns_of(run) if column.type != "VARCHAR"]
    width = len(run.columns)
    with csv_rows(run.table) as rows:
        next(rows, None)
        record, line = 0, rows.line_num
        for row in rows:
            # A quoted cell may contain line breaks: a record begins after the end of the previous one.
            begin, line = line + 1, rows.line_num
            record += bool(row)
            if row and len(row) != width:
                return f"line {begin}: {plural(len(row), 'cell')}, but the header names {plural(width, 'column')}"
            for column, fault_of in checks if row and record >= first else ():
                text = row[column.index]
                if text and (fault := fault_of(text)):
                    return f"line {begin}, column {column.name}: {_quoted_start(text)} is {fault}"
    return ""


def _fault_finder(column: FileColumn) -> Callable[[str], str]:
    """A function that returns the fault of a cell's text; empty if there is none."""
    if column.type == "BOOLEAN":
        return lambda text: "" if text.lower() in _TRUTH else "neither true nor false"
    if column.means in TIME_METRICS:
        return lambda text: _number_fault(text) or ("a negative time" if float(text) < 0 else "")
    if column.type == "BIGINT":
        return lambda text: _number_fault(text) or ("" if is_whole_number(text) else "not a whole number")
    return _number_fault


def _number_fault(text: str) -> str:
    if not (text.isascii() and is_number(text)):  # Python reads digits of all scripts, the database only ASCII
        return "not a number"
    return "" if abs(float(text)) < 2**63 else "too large a number"


# ---- Parquet


_BAD_NUMBER = """
SELECT file_row_number + 1, CAST({cell} AS VARCHAR), {number} IS NULL
FROM {rows} WHERE {cell} IS NOT NULL AND ({condition})
ORDER BY file_row_number LIMIT 1
"""
_ALL_VALUES = "SELECT max(hash({cell})) FROM {rows}"
"""Fails if a value cannot be read. DuckDB would answer most other queries from statistics, without reading."""


def _bad_cell_of_parquet(run: Run) -> str:
    """The first column with a bad value or that cannot be read; empty if all columns can be read."""
    rows = reader_call("read_parquet", run.table, "file_row_number = true")
    for column in columns_of(run):
        cell = quoted(column.name)
        number = f"TRY_CAST({cell} AS {column.type})"
        condition = f"{number} IS NULL"
        if column.type == "DOUBLE":
            condition += f" OR isinf({number}) OR isnan({number})"
        elif column.means in TIME_METRICS:
            condition += f" OR {number} < 0"
        query = _BAD_NUMBER.format(cell=cell, rows=rows, number=number, condition=condition)
        try:
            rows_of(_ALL_VALUES.format(cell=cell, rows=reader_call("read_parquet", run.table)))
            for row, text, is_unreadable in rows_of(query) if column.type != "VARCHAR" else ():
                fault = "not a number" if is_unreadable or column.type == "DOUBLE" else "a negative time"
                return f"row {row}, column {column.name}: {_quoted_start(text)} is {fault}"
        except reading_errors() as error:
            return f"column {column.name}: cannot be read: {damage_of(error)}"
    return ""


def _quoted_start(text: str) -> str:
    return repr(start_of(text, _LONGEST_QUOTE))
