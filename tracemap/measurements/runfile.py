"""Runs as files: Parquet (the header in its key-value metadata) or CSV (the header beside it, in `run.csv.json`).

Tables of users and of other tools are read too. Reading a run looks at its header and first rows only; the values are
checked by the one scan that the attribution makes (`events_sql`), and a bad one is located after that scan has failed.
"""

from __future__ import annotations

import atexit
import csv
import itertools
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.errors import RunEmpty, RunInvalid, TargetUnwritable
from tracemap.measurements.header import UNTOLD_HEADER, header_from_json, header_to_json
from tracemap.measurements.ireeprof import PROFILE_MAGIC
from tracemap.measurements.model import COLUMNS, STEP_METRICS, TIME_METRICS, Clock, Metric, Run, RunHeader
from tracemap.measurements.sql import literal, quoted
from tracemap.outputs import check_file, replaced
from tracemap.units import plural

if TYPE_CHECKING:
    import _csv

    import duckdb

PARQUET_KEY: Final = "tracemap"
"""The key of the header in Parquet's key-value metadata."""

_PARQUET_MAGIC = b"PAR1"
_SAMPLE_ROWS = 1000
_KERNEL_NAMES = ("kernel", "dispatch", "name")
_TIME_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000}
_INTEGER_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_REAL_TYPES = ("FLOAT", "DOUBLE", "HUGEINT", "UHUGEINT", "DECIMAL")
_NUMBERS_OF_CALLS = ("tid", "node", "workgroup_x", "workgroup_y", "workgroup_z")
"""Columns of numbers that tables of the hook's calls have (`calltable.CALL_COLUMNS`) and that measure nothing."""
_TRUTH = ("true", "false", "t", "f", "1", "0", "yes", "no", "y", "n")


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the file that is read: where it stands, what it becomes, and its values' type in the file."""

    place: int
    name: str
    """As it stands in the file."""
    target: str
    """Its canonical name: one of COLUMNS, or the metric's own."""
    type: str
    """The SQL type of the canonical column."""
    scale: int
    """Factor to nanoseconds; 1 for all that is not a time."""


# ---- writing


def check_target(target: Path, *, force: bool) -> None:
    """Find out before the work whether a run can be written: its table, and the header beside a CSV.

    Raises:
        TargetExists: one of them exists and `force` is not set.
        TargetUnwritable: the folder does not exist or may not be written, or the target is a folder itself.
    """
    for path in (target, *_headers_beside(target)):
        check_file(path, force=force)


def header_path(table: Path) -> Path:
    """Where the header of a CSV lies."""
    return table.with_name(table.name + ".json")


def _headers_beside(target: Path) -> list[Path]:
    return [header_path(target)] if target.suffix == ".csv" else []


def write_run(header: RunHeader, events: duckdb.DuckDBPyRelation, target: Path, *, force: bool) -> None:
    """Write a run: CSV where the name ends in `.csv`, else Parquet. Nothing half written is ever under the name.

    Args:
        header: how the run came about.
        events: the table, with columns as in `measurements.model.COLUMNS` and metrics.
        target: the file to make.
        force: replace what is there.

    Raises:
        TargetExists: there is something and `force` is not set.
        TargetUnwritable: it cannot be written.
    """
    import duckdb

    check_target(target, force=force)
    text = json.dumps(header_to_json(header), ensure_ascii=False, indent=1) + "\n"
    try:
        if target.suffix == ".csv":
            with replaced(target) as table, replaced(header_path(target)) as beside:
                _copy_to(events, table, "FORMAT csv, HEADER true")
                beside.write_text(text, encoding="utf-8")
        else:
            with replaced(target) as table:
                _copy_to(events, table, f"FORMAT parquet, KV_METADATA {{{PARQUET_KEY}: {literal(text)}}}")
    except (OSError, duckdb.IOException) as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error}") from error


def _copy_to(events: duckdb.DuckDBPyRelation, path: Path, options: str) -> None:
    copied = events.query("run_events", f"COPY (SELECT * FROM run_events) TO {literal(str(path))} ({options})")
    if copied is not None:
        copied.fetchall()


# ---- reading


def read_run(path: Path) -> Run:
    """Open a run: one of ours, or a bare CSV or Parquet table of somebody else. `-` is standard input.

    Raises:
        RunInvalid: no such file, no table, no column that names the kernel, or no metric.
        RunVersion: its header is of another format version.
        RunEmpty: a table without a header and without a row.
    """
    if str(path) == "-":
        path = _copy_of_standard_input()
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise RunInvalid(f"{path}: cannot be read: {error.strerror}") from error
    if magic == PROFILE_MAGIC:
        raise RunInvalid(f"{path}: is a profile of IREE, not a table; it must be exported first")
    return _read_parquet_run(path) if magic == _PARQUET_MAGIC else _read_csv_run(path)


def _copy_of_standard_input() -> Path:
    """DuckDB reads a file more than once, which a pipe does not allow."""
    with tempfile.NamedTemporaryFile(prefix="tracemap-stdin-", suffix=".csv", delete=False) as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    atexit.register(Path(copy.name).unlink, missing_ok=True)
    return Path(copy.name)


def _read_parquet_run(path: Path) -> Run:
    import duckdb

    table = f"read_parquet({literal(str(path))})"
    try:
        with duckdb.connect() as connection:
            described = connection.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()
            pairs = connection.execute(
                f"SELECT value FROM parquet_kv_metadata({literal(str(path))}) WHERE key = '{PARQUET_KEY}'"
            ).fetchall()
            ((rows,),) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    except duckdb.Error as error:
        raise RunInvalid(f"{path}: cannot be read as Parquet: {str(error).partition(chr(10))[0]}") from error
    header = _parsed_header(pairs[0][0], str(path)) if pairs else None
    found = {str(name): str(kind) for name, kind, *_ in described}
    if header is None and rows == 0 and found:
        raise RunEmpty(f"{path}: the table has columns and no event")
    return _run(path, "parquet", header, list(found.items()))


def _read_csv_run(path: Path) -> Run:
    beside = header_path(path)
    header = None
    if beside.is_file():
        header = _parsed_header(beside.read_bytes(), str(beside))
    with _csv_reader(path) as rows:
        names = tuple(next(rows, ()))
        sample = list(itertools.islice(rows, _SAMPLE_ROWS))
    if not names and header is None:
        raise RunEmpty(f"{path}: the file is empty: no events")
    if header is None and not any(sample) and _kernel_name(names):
        raise RunEmpty(f"{path}: the table has a header line and no event")
    types = [_sampled_type([row[place] for row in sample if place < len(row)]) for place in range(len(names))]
    if "step" in {name.strip().lower() for name in names}:
        # Rows of steps may come after many thousand others, which have no value in their columns.
        types = [
            "BIGINT" if name in STEP_METRICS and kind == "VARCHAR" else kind
            for name, kind in zip(names, types, strict=True)
        ]
    return _run(path, "csv", header, list(zip(names, types, strict=True)))


def _parsed_header(text: bytes, where: str) -> RunHeader:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise RunInvalid(f"{where}: the run's header is no JSON ({error}); record again") from error
    return header_from_json(data, where)


@contextmanager
def _csv_reader(path: Path) -> Iterator[_csv.Reader]:
    """The rows of a CSV as Python sees them; for its head, and to find a bad cell."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        try:
            yield csv.reader(file, delimiter=_delimiter(path))
        except csv.Error as error:
            raise RunInvalid(f"{path}: cannot be read as a table: {error}") from error


def _delimiter(path: Path) -> str:
    """A comma, unless the first line has semicolons or tabs and no comma."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first_line = file.readline(1 << 20)
    return next((mark for mark in ",;\t" if mark in first_line), ",")


def _sampled_type(cells: list[str]) -> str:
    """The type of a column without a fixed one: VARCHAR unless half of the values are numbers."""
    values = [cell for cell in cells if cell]
    numbers = [value for value in values if _is_number(value)]
    if not numbers or len(numbers) * 2 < len(values):
        return "VARCHAR"
    return "BIGINT" if all(_is_integer(number) for number in numbers) else "DOUBLE"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False


def _is_integer(text: str) -> bool:
    return _is_number(text) and float(text).is_integer()


def _run(path: Path, file_format: str, header: RunHeader | None, found: list[tuple[str, str]]) -> Run:
    """The run of a file with the `found` columns (name and SQL type)."""
    columns = _assigned(path, found)
    clock = Clock.UNKNOWN if header is None else header.clock
    metrics = tuple(_metric(column, clock) for column in columns if _is_metric(column.target))
    names = tuple(name for name, _ in found)
    kernel = any(column.target == "kernel" for column in columns)
    if not kernel or not metrics:
        missing = (
            "column that names the kernel (kernel, dispatch or name)"
            if not kernel
            else ("metric: duration_ns, duration_us, duration_ms, cpu_ns, or another column of numbers")
        )
        there = ", ".join(names) if names else "nothing"
        raise RunInvalid(f"{path}: there is no {missing}; its columns are: {there}")
    return Run(header or UNTOLD_HEADER, path, file_format, names, metrics, has_header=header is not None)


def _is_metric(target: str) -> bool:
    return target in TIME_METRICS or target not in COLUMNS


def _metric(column: _Column, clock: Clock) -> Metric:
    if column.target in TIME_METRICS:
        return Metric(column.target, "ns", clock)
    return Metric(column.target, "count", Clock.UNKNOWN, type=column.type)


def _assigned(path: Path, found: list[tuple[str, str]]) -> list[_Column]:
    """What each column that is used becomes. Names of ours are found whatever their case, as in SQL.

    Raises:
        RunInvalid: two columns have the same name, or the same meaning.
    """
    kernel = _kernel_name([name for name, _ in found])
    columns: dict[str, _Column] = {}
    for place, (name, found_type) in enumerate(found):
        column = _column(place, name, found_type, kernel)
        if column is None:
            continue
        other = columns.setdefault(column.target.lower(), column)
        if other is not column:
            raise RunInvalid(f"{path}: the columns {other.name!r} and {name!r} mean the same; keep one of them")
    return list(columns.values())


def _kernel_name(names: Iterable[str]) -> str | None:
    """Which of the names for the kernel's column there is; None: not one."""
    plain = {name.strip().lower() for name in names}
    return next((name for name in _KERNEL_NAMES if name in plain), None)


def _column(place: int, name: str, found_type: str, kernel: str | None) -> _Column | None:
    """None: the column is not used (text that means nothing to us, or the unnamed index that pandas writes)."""
    plain = name.strip().lower()
    if plain in _KERNEL_NAMES:
        return _Column(place, name, "kernel", "VARCHAR", 1) if plain == kernel else None
    if plain in COLUMNS:
        return _Column(place, name, plain, COLUMNS[plain], 1)
    base, _, unit = plain.rpartition("_")
    if f"{base}_ns" in TIME_METRICS and unit in _TIME_UNITS:
        return _Column(place, name, f"{base}_ns", "BIGINT", _TIME_UNITS[unit])
    if not plain or plain in _NUMBERS_OF_CALLS:
        return None
    if found_type in _INTEGER_TYPES:
        return _Column(place, name, name, "BIGINT", 1)
    return _Column(place, name, name, "DOUBLE", 1) if found_type.startswith(_REAL_TYPES) else None


# ---- the SQL of a run


def events_sql(run: Run) -> str:
    """A SELECT of the run's events under canonical names: all of COLUMNS, then the metrics that are not in it.

    Columns that the file lacks are NULL; `kind` is then `dispatch` and `warmup` false. Values that are no measurements
    (negative times, infinities) make the scan fail, as bad numbers do; `explain_bad_cell` then says where.
    """
    columns = {column.target: column for column in _columns_of(run)}
    selected = [_selected(name, columns.get(name), kind, run.format) for name, kind in COLUMNS.items()]
    selected += [
        _selected(name, column, column.type, run.format) for name, column in columns.items() if name not in COLUMNS
    ]
    return f"SELECT {', '.join(selected)} FROM {_scan(run, columns.values())}"


def _columns_of(run: Run) -> list[_Column]:
    """The columns again, from what the run says of them."""
    types = {metric.name: metric.type for metric in run.metrics}
    return _assigned(run.table, [(name, types.get(name, "VARCHAR")) for name in run.columns])


def _scan(run: Run, columns: Iterable[_Column]) -> str:
    """The table function that reads the file; a CSV's columns are named c0, c1 …, as their own names are hostile."""
    path = literal(str(run.table))
    if run.format == "parquet":
        return f"read_parquet({path})"
    types = dict.fromkeys(range(len(run.columns)), "VARCHAR") | {column.place: _csv_type(column) for column in columns}
    listed = ", ".join(f"c{place}: '{kind}'" for place, kind in types.items())
    return (
        f"read_csv({path}, auto_detect=false, header=true, delim={literal(_delimiter(run.table))}, "
        f"quote='\"', escape='\"', columns={{{listed}}})"
    )


def _csv_type(column: _Column) -> str:
    """The type that a CSV's cells are read as. DuckDB rounds `1.5` read as BIGINT without a word, hence DOUBLE."""
    fractions = column.scale > 1 or column.target not in COLUMNS
    return "DOUBLE" if fractions else column.type


def _selected(name: str, column: _Column | None, kind: str, file_format: str) -> str:
    if column is None:
        default = {"kind": "'dispatch'", "warmup": "false"}.get(name, f"CAST(NULL AS {kind})")
        return f"{default} AS {quoted(name)}"
    cell = f"c{column.place}" if file_format == "csv" else quoted(column.name)
    if name in TIME_METRICS:
        nanoseconds = cell if column.scale == 1 else f"round({cell} * {column.scale})"
        cell = f"CASE WHEN {cell} < 0 THEN error('negative time') ELSE CAST({nanoseconds} AS BIGINT) END"
    elif name not in COLUMNS:
        wrong = f"NOT isfinite({cell})" if kind == "DOUBLE" else f"{cell} <> trunc({cell})"
        checked = f"CASE WHEN {wrong} THEN error('not a number to count with') ELSE CAST({cell} AS {kind}) END"
        cell = checked if kind == "DOUBLE" or file_format == "csv" else f"CAST({cell} AS {kind})"
    else:
        cell = f"CAST({cell} AS {kind})"
        cell = {"kind": f"coalesce({cell}, 'dispatch')", "warmup": f"coalesce({cell}, false)"}.get(name, cell)
    return f"{cell} AS {quoted(name)}"


# ---- saying which cell is bad


def explain_bad_cell(run: Run, error: Exception) -> RunInvalid:
    """The error for a scan of `events_sql` that failed: it names file, line, column and the offending text."""
    found = _bad_cell_of_csv(run) if run.format == "csv" else _bad_cell_of_parquet(run)
    if found is not None:
        return RunInvalid(f"{run.table}: {found}")
    return RunInvalid(f"{run.table}: cannot be read: {str(error).partition(chr(10))[0]}")


def _bad_cell_of_csv(run: Run) -> str | None:
    """Looks at the record that SQL suspects, as every cell of ten million rows takes Python minutes; else at all."""
    suspect = _suspicious_record(run)
    return (suspect and _bad_cell_from(run, suspect)) or _bad_cell_from(run, 1)


def _suspicious_record(run: Run) -> int:
    """The number of the first record with a bad cell, from 1 after the header; 0 if SQL cannot tell."""
    import duckdb

    doubts = [_doubt(column) for column in _columns_of(run) if column.type != "VARCHAR"]
    try:
        with duckdb.connect() as connection:
            found = connection.execute(
                f"SELECT record FROM (SELECT row_number() OVER () AS record, * FROM {_scan(run, ())}) "
                f"WHERE {' OR '.join(doubts) or 'false'} ORDER BY record LIMIT 1"
            ).fetchall()
    except duckdb.Error:
        return 0
    return int(found[0][0]) if found else 0


def _doubt(column: _Column) -> str:
    """A condition on a cell's text that holds for no good cell; what is wrong is for `_fault_finder` to say."""
    text = f"c{column.place}"
    if column.type == "BOOLEAN":
        return f"({text} IS NOT NULL AND TRY_CAST({text} AS BOOLEAN) IS NULL)"
    number = f"TRY_CAST({text} AS DOUBLE)"
    wrong = [f"coalesce(NOT isfinite({number}), true)", f"abs({number}) >= 9.2e18"]
    if column.target in TIME_METRICS:
        wrong.append(f"{number} < 0")
    elif column.type == "BIGINT":
        wrong.append(f"{number} <> trunc({number})")
    return f"({text} IS NOT NULL AND ({' OR '.join(wrong)}))"


def _bad_cell_from(run: Run, first: int) -> str | None:
    """The first bad cell in the records from number `first` on; rows of a wrong length are found everywhere."""
    checks = [(column, _fault_finder(column)) for column in _columns_of(run) if column.type != "VARCHAR"]
    width = len(run.columns)
    with _csv_reader(run.table) as reader:
        next(reader, None)
        record, line = 0, reader.line_num
        for row in reader:
            # A quoted cell may hold line breaks: a record begins where the one before it ended.
            begin, line = line + 1, reader.line_num
            record += bool(row)
            if row and len(row) != width:
                return f"line {begin}: {plural(len(row), 'cell')}, but the header names {plural(width, 'column')}"
            if row and record >= first and (found := _first_fault(row, checks)):
                return f"line {begin}, {found}"
    return None


def _first_fault(row: list[str], checks: list[tuple[_Column, Callable[[str], str]]]) -> str:
    for column, fault in checks:
        text = row[column.place]
        if text and (wrong := fault(text)):
            return f"column {column.name}: {text!r} is {wrong}"
    return ""


def _fault_finder(column: _Column) -> Callable[[str], str]:
    """A function that says what is wrong with a cell's text; the empty text if nothing is."""
    if column.type == "BOOLEAN":
        return lambda text: "" if text.strip().lower() in _TRUTH else "neither true nor false"
    if column.target in TIME_METRICS:
        return lambda text: _number_fault(text) or ("a negative time" if float(text) < 0 else "")
    if column.type == "BIGINT":
        return lambda text: _number_fault(text) or ("" if _is_integer(text) else "not a whole number")
    return _number_fault


def _number_fault(text: str) -> str:
    if not _is_number(text):
        return "not a number"
    return "" if abs(float(text)) < 2**63 else "too large a number"


def _bad_cell_of_parquet(run: Run) -> str | None:
    import duckdb

    with duckdb.connect() as connection:
        for column in _columns_of(run):
            if column.type == "VARCHAR":
                continue
            cell = quoted(column.name)
            number = f"TRY_CAST({cell} AS {column.type})"
            wrong = (
                f"{number} IS NULL OR isinf({number}) OR isnan({number})"
                if column.type == "DOUBLE"
                else (f"{number} IS NULL OR {number} < 0" if column.target in TIME_METRICS else f"{number} IS NULL")
            )
            rows = connection.execute(
                f"SELECT file_row_number + 1, CAST({cell} AS VARCHAR), {number} IS NULL "
                f"FROM read_parquet({literal(str(run.table))}, file_row_number=true) "
                f"WHERE {cell} IS NOT NULL AND ({wrong}) ORDER BY file_row_number LIMIT 1"
            ).fetchall()
            if rows:
                row, text, unreadable = rows[0]
                fault = "not a number" if unreadable or column.type == "DOUBLE" else "a negative time"
                return f"row {row}, column {column.name}: {text!r} is {fault}"
    return None
