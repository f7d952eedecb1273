"""The meaning of each column in a run's file, and the SELECT that reads columns under their canonical names.

Tables of users and of other tools are supported: column names in any case, times in other units, and every other column
of numbers as a metric. SQL reads whole tables, a hundred times faster than Python. Only the head of a CSV, and the
search for a bad cell, go cell by cell.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunInvalid
from tracemap.core.sanitize import IS_PREFIXED
from tracemap.core.units import NS_OF_UNIT, UNKNOWN, Integer
from tracemap.runs.model import COLUMNS, TIME_METRICS, Clock, Metric, Run
from tracemap.runs.sql import literal, quoted, reader_call

if TYPE_CHECKING:
    import _csv


_KERNEL_NAMES = ("kernel", "dispatch", "name")
_INTEGER_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_REAL_TYPES = ("FLOAT", "DOUBLE", "HUGEINT", "UHUGEINT", "DECIMAL")
_NUMBERS_OF_CALLS = ("tid", "node", "workgroup_x", "workgroup_y", "workgroup_z")
"""Columns of numbers in the hook's tables of calls (`hook.calls.CALL_COLUMNS`) that are not metrics."""

CODE_OFFSET: Final = "code_offset"
"""Column of `step` rows without an address yet: bytes from the start of their kernel."""

LAUNCH: Final = "launch_on_queue"
"""Column of events without a site yet: position of a launch, copy or fill among those of the run, on one queue."""

_TRANSFER_MARK: Final = "\x1f"
"""In names of copies and fills; no kernel's name has it."""


def transfer_name(kind: str, payload_bytes: Integer) -> str:
    """The name of a copy or fill among launches: its kind and size; an update is a copy from the host.

    >>> transfer_name("update", 16) == transfer_name("copy", 16), is_transfer_name(transfer_name("fill", UNKNOWN))
    (True, True)
    """
    return f"{'copy' if kind == 'update' else kind}{_TRANSFER_MARK}{'' if payload_bytes is UNKNOWN else payload_bytes}"


def matches_transfer(known: str, name: str) -> bool:
    """Whether a copy or fill may be one whose name has perhaps no size, or no kind.

    >>> fill = transfer_name("fill", 16)
    >>> matches_transfer(fill, fill), matches_transfer(transfer_name("fill", UNKNOWN), fill)
    (True, True)
    >>> matches_transfer(transfer_name("fill", 8), fill), matches_transfer("kernel", "kernel")
    (False, False)
    """
    kind, mark, size = known.partition(_TRANSFER_MARK)
    other_kind, other_mark, other_size = name.partition(_TRANSFER_MARK)
    return bool(mark and other_mark) and kind in ("", other_kind) and size in ("", other_size)


def is_transfer_name(name: str) -> bool:
    """Whether a name among launches is one of a copy or fill."""
    return _TRANSFER_MARK in name


LAUNCH_NAME: Final = """CASE WHEN kind = 'dispatch' THEN kernel ELSE CASE kind WHEN 'update' THEN 'copy' ELSE kind END
    || chr(31) || coalesce(CAST(payload_bytes AS VARCHAR), '') END"""
"""The name of an event with `LAUNCH` in SQL: its kernel, or as by `transfer_name`."""


class FileColumn(msgspec.Struct, frozen=True):
    """A column of the file that is read."""

    index: int
    """Its position in the file, from 0."""
    name: str
    """Its name in the file."""
    means: str
    """Its canonical name: one of COLUMNS, or the name of a metric."""
    type: str
    """The SQL type of the canonical column."""
    factor: int
    """Nanoseconds per unit of a time; 1 for other columns."""


def file_columns(path: Path, found: Sequence[tuple[str, str]]) -> list[FileColumn]:
    """The columns of a file that are used, with their meanings.

    Args:
        path: the file, for the error.
        found: the columns' names and SQL types, in the file's order.

    Raises:
        RunInvalid: two columns have the same name, or the same meaning.
    """
    # Only the first of the names for the kernel's column counts; a table of calls may have another column `name`.
    names = [name for name, _ in found]
    kernel, plain = kernel_name(names), {name.strip().lower() for name in names}
    # CPU time for workgroups, which adds up over workers; wall time for dispatches.
    of_workgroups = has_workgroup_rows(names) and not any(f"cpu_{unit}" in plain for unit in NS_OF_UNIT)
    durations = "cpu_ns" if of_workgroups else "duration_ns"
    columns: dict[str, FileColumn] = {}
    for index, (name, sql_type_in_file) in enumerate(found):
        column = _column(index, name, sql_type_in_file, kernel, durations)
        if column is None:
            continue
        # SQL ignores case, so two metrics must differ by more than that.
        other = columns.setdefault(column.means.lower(), column)
        if other is not column:
            raise RunInvalid(f"{path}: the columns {other.name!r} and {name!r} mean the same; keep one of them")
    return list(columns.values())


def columns_of(run: Run) -> list[FileColumn]:
    """The columns of an opened run that are used."""
    types = {metric.name: metric.type for metric in run.metrics}
    return file_columns(run.table, [(name, types.get(name, "VARCHAR")) for name in run.columns])


def kernel_name(names: Iterable[str]) -> str:
    """The name of the kernel's column among these names, in lower case; empty if there is none."""
    plain = {name.strip().lower() for name in names}
    return next((name for name in _KERNEL_NAMES if name in plain), "")


def has_workgroup_rows(names: Iterable[str]) -> bool:
    """Whether every row is the call of one workgroup, as in the hook's table of calls: it has workgroup indices."""
    return not {"workgroup_x", "workgroup_y", "workgroup_z"}.isdisjoint(name.strip().lower() for name in names)


def workgroup_calls_note(source: str) -> Diagnostic:
    """The note on a run whose rows are workgroups, not dispatches."""
    text = (
        f"{source} has calls of workgroups: cpu_ns adds up to that of the dispatches, but numbers of calls and times "
        "per call are of workgroups; the wall time of a dispatch is unknown"
    )
    return Diagnostic("calls-of-workgroups", text)


def _column(index: int, name: str, found_type: str, kernel: str, durations: str) -> FileColumn | None:
    """A column with its meaning; None if it is not used (unknown text, or the unnamed index that pandas writes)."""
    plain = name.strip().lower()
    if plain in _KERNEL_NAMES:
        return FileColumn(index, name, "kernel", "VARCHAR", 1) if plain == kernel else None
    base, _, unit = plain.rpartition("_")
    if f"{base}_ns" in TIME_METRICS and unit in NS_OF_UNIT:
        means = durations if base == "duration" else f"{base}_ns"
        return FileColumn(index, name, means, "BIGINT", NS_OF_UNIT[unit])
    if plain in COLUMNS:
        return FileColumn(index, name, plain, COLUMNS[plain], 1)
    if not plain or plain in (*_NUMBERS_OF_CALLS, CODE_OFFSET, LAUNCH):
        return None
    if found_type in _INTEGER_TYPES:
        return FileColumn(index, name, name, "BIGINT", 1)
    return FileColumn(index, name, name, "DOUBLE", 1) if found_type.startswith(_REAL_TYPES) else None


def metrics_of(columns: Iterable[FileColumn], clock: Clock) -> tuple[Metric, ...]:
    """The metrics among the columns, in the file's order; times are on `clock`."""
    return tuple(
        Metric(column.means, "ns", clock)
        if column.means in TIME_METRICS
        else Metric(column.means, unit_of(column.means), Clock.UNKNOWN, type=column.type)
        for column in columns
        if column.means in TIME_METRICS or column.means not in COLUMNS
    )


def unit_of(metric: str) -> str:
    """The unit of a metric: `ns` for times and perf's two clocks, `bytes` for a GPU's `…-bytes`, else `count`."""
    if metric.endswith("-bytes"):
        return "bytes"
    return "ns" if metric in TIME_METRICS or metric.partition(":")[0] in ("cpu-clock", "task-clock") else "count"


# ---- the SQL of a run


def events_sql(run: Run) -> str:
    """A SELECT of the run's events under canonical names: all of COLUMNS, then the other metrics.

    Columns that the file lacks are NULL, except that `kind` is `dispatch` and `warmup` is false. Impossible values
    (negative times, infinities) and bad numbers make the scan fail; `bad_cells.explain_bad_cell` then locates them.
    """
    columns = {column.means: column for column in columns_of(run)}
    metrics = [name for name in columns if name not in COLUMNS]
    cells = (
        f"{_cell_sql(columns[name], run.format) if name in columns else _ABSENT[name]} AS {quoted(name)}"
        for name in (*COLUMNS, *metrics)
    )
    return f"SELECT {', '.join(cells)} FROM {table_sql(run, columns.values())}"


def table_sql(run: Run, columns: Iterable[FileColumn] = ()) -> str:
    """The table function that reads the file: `columns` with their types, the other columns of a CSV as text.

    A CSV's columns are named c0, c1 …, because their own names may be hostile or duplicated.
    """
    if run.format == "parquet":
        return reader_call("read_parquet", run.table)
    types = ["VARCHAR"] * len(run.columns)  # also for integers, because DuckDB silently rounds `1.5` to a BIGINT
    for column in columns:
        if column.factor > 1 or column.type == "DOUBLE":
            types[column.index] = "DOUBLE"
        elif column.means in COLUMNS:
            types[column.index] = column.type
    return csv_sql(run.table, types)


def csv_sql(path: Path, types: Sequence[str]) -> str:
    """The table function that reads a CSV, with columns c0, c1 … of these SQL types."""
    listed = ", ".join(f"c{index}: '{kind}'" for index, kind in enumerate(types))
    form = f"auto_detect=false, header=true, delim={literal(delimiter(path))}, quote='\"', escape='\"'"
    return reader_call("read_csv", path, f"{form}{_ends_of_rows(path)}, columns={{{listed}}}")


def _ends_of_rows(path: Path) -> str:
    """The option for line ends, needed if a column name spans several lines, as spreadsheets allow.

    DuckDB infers the line end from the first one in the file. If a name contains another one, it would find no row.
    """
    with csv_rows(path) as rows:
        next(rows, None)
        lines = rows.line_num
    if lines < 2:
        return ""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        last = next(itertools.islice(file, lines - 1, None))
    line_end = next((end for end in ("\r\n", "\n", "\r") if last.endswith(end)), "")
    return line_end and f", new_line={line_end!a}"  # DuckDB expects it escaped


_DEFAULTS: Final = {"kind": "'dispatch'", "warmup": "false"}
"""Defaults of columns that are not NULL when absent."""
_ABSENT: Final = {name: f"CAST(NULL AS {kind})" for name, kind in COLUMNS.items()} | _DEFAULTS

_PLAIN = "CAST({cell} AS {type})"
_TEXT = (
    f"CASE WHEN {{cell}} ^@ '''' AND regexp_matches({{cell}}, {literal(IS_PREFIXED)}) THEN substr({{cell}}, 2) "
    "ELSE {cell} END"
)
"""The inverse of `sanitize.escape_formula`."""
_OR_DEFAULT = "coalesce(CAST({cell} AS {type}), {default})"
_TIME = "CASE WHEN {cell} < 0 THEN error('negative time') ELSE CAST({cell} AS BIGINT) END"
_TIME_IN_UNITS = (
    "CASE WHEN {cell} < 0 THEN error('negative time') ELSE CAST(round(CAST({cell} AS DOUBLE) * {factor}) AS BIGINT) END"
)
"""Converts to DOUBLE first, because a file's narrow type, such as seconds in 32 bits, cannot hold nanoseconds."""
_FINITE = "CASE WHEN NOT isfinite({cell}) THEN error('not a number to count with') ELSE CAST({cell} AS DOUBLE) END"
_WHOLE = (
    "CASE WHEN CAST({cell} AS DOUBLE) <> CAST(CAST({cell} AS BIGINT) AS DOUBLE) "
    "THEN error('not a number to count with') ELSE CAST({cell} AS BIGINT) END"
)
"""An integer from text, which keeps all digits; a text with a fraction differs from its rounded value and fails."""


def _cell_sql(column: FileColumn, file_format: str) -> str:
    """A column's values, with the checks that SQL does not do by itself."""
    is_csv = file_format == "csv"
    if column.means in TIME_METRICS:
        checked = _TIME if column.factor == 1 else _TIME_IN_UNITS
    elif column.means in _DEFAULTS:
        checked = _OR_DEFAULT
    elif column.means in COLUMNS or not (is_csv or column.type == "DOUBLE"):
        checked = _TEXT if is_csv and column.type == "VARCHAR" else _PLAIN
    else:
        checked = _FINITE if column.type == "DOUBLE" else _WHOLE
    cell = f"c{column.index}" if is_csv else quoted(column.name)
    default = _DEFAULTS.get(column.means)
    return checked.format(cell=cell, type=column.type, factor=column.factor, default=default)


# ---- CSV cell by cell


MOST_COLUMNS: Final = 2000
"""Most columns of a run: the database kills the process when it computes several thousand aggregates per group."""


def check_width(path: Path, columns: int, most: int = MOST_COLUMNS) -> None:
    """Reject a table with too many columns.

    Raises:
        RunInvalid: the table has more than `most` columns.
    """
    if columns > most:
        raise RunInvalid(f"{path}: has {columns:,} columns, more than the limit of {most:,}; leave some out")


_LONGEST_FIRST_LINE = 1 << 20


@contextmanager
def csv_rows(path: Path, name: str = "") -> Iterator[_csv.Reader]:
    """The rows of a CSV.

    Args:
        path: the file.
        name: its name in messages; empty: the path.

    Raises:
        RunInvalid: the file or a row cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
        # Spreadsheets write UTF-16 and UTF-32: every second byte of such a header is 0.
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in start:
            raise RunInvalid(f"{name or path}: is a text in UTF-16 or UTF-32; save it as UTF-8")
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            yield csv.reader(file, delimiter=delimiter(path))
    except (OSError, csv.Error) as error:
        raise RunInvalid(f"{name or path}: cannot be read as a table: {error}") from error


def delimiter(path: Path) -> str:
    """The separator of cells: a comma, unless the first line has semicolons or tabs and no comma."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first_line = file.readline(_LONGEST_FIRST_LINE)
    return next((separator for separator in ",;\t" if separator in first_line), ",")


_SEPARATED: Final = re.compile(r"[+-]?(?:\d{1,3}(?:[,.'\u00a0\u202f]\d{3})+(?:[.,]\d+)?|\d+,\d+)")
"""A number with separators between thousands, or with a decimal comma."""


def column_notes(names: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Diagnostic]:
    """Notes on columns whose cells look like numbers but do not parse; `rows` are the first ones."""
    for index, (name, found_type) in enumerate(zip(names, types, strict=True)):
        cells = [cell for row in rows for cell in row[index : index + 1] if cell]
        formatted = [cell for cell in cells if _SEPARATED.fullmatch(cell) and not is_number(cell)]
        is_metric = name.strip().lower() not in (*_KERNEL_NAMES, *COLUMNS, *_NUMBERS_OF_CALLS)
        if found_type == "VARCHAR" and is_metric and len(formatted) * 2 > len(cells):
            text = (
                f"column {name!r} is left out, because {formatted[0]!r} is not a number; write numbers without "
                "separators between thousands, and with a decimal point"
            )
            yield Diagnostic("column-left-out", text)


def sql_type(cells: Sequence[str]) -> str:
    """The SQL type of a column with these cells: VARCHAR unless at least half of its nonempty cells are numbers."""
    values = [cell for cell in cells if cell]
    numbers = [value for value in values if is_number(value)]
    if not numbers or len(numbers) * 2 < len(values):
        return "VARCHAR"
    return "BIGINT" if all(is_whole_number(number) for number in numbers) else "DOUBLE"


def is_number(text: str) -> bool:
    """Whether a cell is a finite number; underscores, which Python accepts, are not."""
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False


def is_whole_number(text: str) -> bool:
    """Whether a cell is a number without a fraction; `2.0` is one."""
    return is_number(text) and float(text).is_integer()
