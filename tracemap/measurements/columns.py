"""What each column of a run's file means, and the SELECT that reads them under their canonical names.

Tables of users and of other tools are read too: names of ours are found whatever their case, times in other units, and
every column of numbers that has no meaning of its own is a metric. Whole tables are read by SQL, which is a hundred
times faster than Python; the head of a CSV, and the cell of it that is bad, are read cell by cell.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunInvalid
from tracemap.measurements.model import COLUMNS, TIME_METRICS, Clock, Metric, Run
from tracemap.measurements.sql import literal, quoted, table_of
from tracemap.sanitize import IS_PREFIXED
from tracemap.units import NS_OF_UNIT

if TYPE_CHECKING:
    import _csv

_KERNEL_NAMES = ("kernel", "dispatch", "name")
_INTEGER_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_REAL_TYPES = ("FLOAT", "DOUBLE", "HUGEINT", "UHUGEINT", "DECIMAL")
_NUMBERS_OF_CALLS = ("tid", "node", "workgroup_x", "workgroup_y", "workgroup_z")
"""Columns of numbers that tables of the hook's calls have (`hook.calls.CALL_COLUMNS`) and that measure nothing."""

CODE_OFFSET: Final = "code_offset"
"""Of a row of a step whose place in the bundle is still to be found: bytes behind the beginning of its kernel."""

LAUNCH: Final = "launch_on_queue"
"""Of a dispatch whose site is still to be found: the place of its launch among those of the run, on one queue."""


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of the file that is read."""

    index: int
    """Where it stands in the file, from 0."""
    name: str
    """As it stands in the file."""
    means: str
    """Its canonical name: one of COLUMNS, or the metric's own."""
    type: str
    """The SQL type of the canonical column."""
    factor: int
    """To nanoseconds; 1 for all that is not a time."""


def file_columns(path: Path, found: Sequence[tuple[str, str]]) -> list[FileColumn]:
    """What each column that is used means; those without a meaning are left out.

    Args:
        path: the file, for the error.
        found: the columns' names and SQL types, in the file's order.

    Raises:
        RunInvalid: two columns have the same name, or the same meaning.
    """
    # Of several names for the kernel's column only the first counts; a table of calls may well have another `name`.
    names = [name for name, _ in found]
    kernel, durations = kernel_name(names), _what_durations_mean(names)
    columns: dict[str, FileColumn] = {}
    for index, (name, found_type) in enumerate(found):
        column = _column(index, name, found_type, kernel, durations)
        if column is None:
            continue
        # SQL does not tell upper from lower case, so two metrics must differ by more than that.
        other = columns.setdefault(column.means.lower(), column)
        if other is not column:
            raise RunInvalid(f"{path}: the columns {other.name!r} and {name!r} mean the same; keep one of them")
    return list(columns.values())


def columns_of(run: Run) -> list[FileColumn]:
    """The columns of an opened run that are used."""
    types = {metric.name: metric.type for metric in run.metrics}
    return file_columns(run.table, [(name, types.get(name, "VARCHAR")) for name in run.columns])


def kernel_name(names: Iterable[str]) -> str:
    """Which of the names for the kernel's column there is; empty: not one."""
    plain = {name.strip().lower() for name in names}
    return next((name for name in _KERNEL_NAMES if name in plain), "")


def of_workgroups(names: Iterable[str]) -> bool:
    """Whether each row is the call of one workgroup, as in the table of the hook's calls: it says of which."""
    return not {"workgroup_x", "workgroup_y", "workgroup_z"}.isdisjoint(name.strip().lower() for name in names)


def calls_of_workgroups(whose: str) -> Diagnostic:
    """What a reader must know of a run whose rows are not dispatches."""
    text = (
        f"{whose} tells calls of workgroups: cpu_ns adds up to that of the dispatches, but numbers of calls, and what "
        "one took, are of workgroups; how long a dispatch took on the wall is not known"
    )
    return Diagnostic("calls-of-workgroups", text)


def _what_durations_mean(names: Sequence[str]) -> str:
    """How long a workgroup took is time of its worker, which adds up; of a dispatch it is wall time."""
    plain = {name.strip().lower() for name in names}
    tells_both = any(f"cpu_{unit}" in plain for unit in NS_OF_UNIT)
    return "cpu_ns" if of_workgroups(names) and not tells_both else "duration_ns"


def _column(index: int, name: str, found_type: str, kernel: str, durations: str) -> FileColumn | None:
    """None: the column is not used (text that means nothing to us, or the unnamed index that pandas writes)."""
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
    """The columns that are measured, in the file's order; times are on `clock`."""
    return tuple(
        Metric(column.means, "ns", clock)
        if column.means in TIME_METRICS
        else Metric(column.means, unit_of(column.means), Clock.UNKNOWN, type=column.type)
        for column in columns
        if column.means in TIME_METRICS or column.means not in COLUMNS
    )


def unit_of(metric: str) -> str:
    """What a metric counts: times are in nanoseconds, and so are perf's two clocks, in whatever mode."""
    return "ns" if metric in TIME_METRICS or metric.partition(":")[0] in ("cpu-clock", "task-clock") else "count"


# ---- the SQL of a run


def events_sql(run: Run) -> str:
    """A SELECT of the run's events under canonical names: all of COLUMNS, then the metrics that are not in it.

    Columns that the file lacks are NULL; `kind` is then `dispatch` and `warmup` false. Values that are no measurements
    (negative times, infinities) make the scan fail, as bad numbers do; `badcells.explain_bad_cell` then says where.
    """
    columns = {column.means: column for column in columns_of(run)}
    own = [name for name in columns if name not in COLUMNS]
    cells = (
        f"{_cell(columns[name], run.format) if name in columns else _ABSENT[name]} AS {quoted(name)}"
        for name in (*COLUMNS, *own)
    )
    return f"SELECT {', '.join(cells)} FROM {table_sql(run, columns.values())}"


def table_sql(run: Run, columns: Iterable[FileColumn] = ()) -> str:
    """The table function that reads the file: `columns` as what they are, the others of a CSV as text.

    A CSV's columns are named c0, c1 …, as their own names are hostile and may be doubled.
    """
    if run.format == "parquet":
        return table_of("read_parquet", run.table)
    types = {column.index: _csv_type(column) for column in columns}
    return csv_sql(run.table, [types.get(index, "VARCHAR") for index in range(len(run.columns))])


def csv_sql(path: Path, types: Sequence[str]) -> str:
    """The table function that reads a CSV, with columns c0, c1 … of these SQL types."""
    listed = ", ".join(f"c{index}: '{kind}'" for index, kind in enumerate(types))
    form = f"auto_detect=false, header=true, delim={literal(delimiter(path))}, quote='\"', escape='\"'"
    return table_of("read_csv", path, f"{form}{_ends_of_rows(path)}, columns={{{listed}}}")


def _ends_of_rows(path: Path) -> str:
    """The option that says what ends rows, where names in the head have several lines, as spreadsheets allow.

    DuckDB goes by the first line end of all. Where a name has another one than rows have, it would find no row.
    """
    with csv_rows(path) as rows:
        next(rows, None)
        lines = rows.line_num
    if lines < 2:
        return ""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        last = next(itertools.islice(file, lines - 1, None))
    found = next((end for end in ("\r\n", "\n", "\r") if last.endswith(end)), "")
    return found and f", new_line={found!a}"  # with backslashes, as DuckDB wants it


def _csv_type(column: FileColumn) -> str:
    """The type that a CSV's cells are read as. DuckDB rounds `1.5` read as BIGINT without a word, hence texts."""
    if column.factor == 1 and column.means in COLUMNS:
        return column.type
    return "DOUBLE" if column.factor > 1 or column.type == "DOUBLE" else "VARCHAR"


_DEFAULTS: Final = {"kind": "'dispatch'", "warmup": "false"}
"""Of columns that are not unknown where nothing is said."""
_ABSENT: Final = {name: f"CAST(NULL AS {kind})" for name, kind in COLUMNS.items()} | _DEFAULTS

_PLAIN = "CAST({cell} AS {type})"
_TEXT = (
    f"CASE WHEN {{cell}} ^@ '''' AND regexp_matches({{cell}}, {literal(IS_PREFIXED)}) THEN substr({{cell}}, 2) "
    "ELSE {cell} END"
)
"""The inverse of `inert.inert_cell`."""
_OR_DEFAULT = "coalesce(CAST({cell} AS {type}), {default})"
_TIME = "CASE WHEN {cell} < 0 THEN error('negative time') ELSE CAST({cell} AS BIGINT) END"
_TIME_IN_UNITS = (
    "CASE WHEN {cell} < 0 THEN error('negative time') ELSE CAST(round(CAST({cell} AS DOUBLE) * {factor}) AS BIGINT) END"
)
"""Small types of a file, as whole seconds in 32 bits, do not hold nanoseconds."""
_FINITE = "CASE WHEN NOT isfinite({cell}) THEN error('not a number to count with') ELSE CAST({cell} AS DOUBLE) END"
_WHOLE = (
    "CASE WHEN CAST({cell} AS DOUBLE) <> CAST(CAST({cell} AS BIGINT) AS DOUBLE) "
    "THEN error('not a number to count with') ELSE CAST({cell} AS BIGINT) END"
)
"""Of a text, which keeps all digits; one with a fraction is rounded as a whole number, and is another then."""


def _cell(column: FileColumn, file_format: str) -> str:
    """A column's values, checked as far as SQL does not check them by itself."""
    return _checked(column, file_format).format(
        cell=f"c{column.index}" if file_format == "csv" else quoted(column.name),
        type=column.type,
        factor=column.factor,
        default=_DEFAULTS.get(column.means),
    )


def _checked(column: FileColumn, file_format: str) -> str:
    if column.means in TIME_METRICS:
        return _TIME if column.factor == 1 else _TIME_IN_UNITS
    if column.type == "VARCHAR" and file_format == "csv" and column.means not in _DEFAULTS:
        return _TEXT
    if column.means in COLUMNS:
        return _OR_DEFAULT if column.means in _DEFAULTS else _PLAIN
    if column.type == "DOUBLE":
        return _FINITE
    return _WHOLE if file_format == "csv" else _PLAIN


# ---- CSV cell by cell


MOST_COLUMNS: Final = 2000
"""Of a run. The database ends the process where it groups by some thousand aggregates."""


def check_width(path: Path, columns: int, most: int = MOST_COLUMNS) -> None:
    """Refuse a table that has more columns than are read.

    Raises:
        RunInvalid: it has.
    """
    if columns > most:
        raise RunInvalid(f"{path}: has {columns:,} columns, and at most {most:,} are read; leave some out")


_LONGEST_FIRST_LINE = 1 << 20


@contextmanager
def csv_rows(path: Path, named: str = "") -> Iterator[_csv.Reader]:
    """The rows of a CSV.

    Args:
        path: the file.
        named: what messages call it; "": as it is called.

    Raises:
        RunInvalid: it cannot be read, or a row of it cannot.
    """
    try:
        _check_is_utf8(path, named or str(path))
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            yield csv.reader(file, delimiter=delimiter(path))
    except (OSError, csv.Error) as error:
        raise RunInvalid(f"{named or path}: cannot be read as a table: {error}") from error


def _check_is_utf8(path: Path, named: str) -> None:
    """Refuse texts of wider characters, as spreadsheets write them: every second byte of such a header is 0."""
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in start:
        raise RunInvalid(f"{named}: is a text in UTF-16 or UTF-32; save it as UTF-8")


def delimiter(path: Path) -> str:
    """A comma, unless the first line has semicolons or tabs and no comma."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first_line = file.readline(_LONGEST_FIRST_LINE)
    return next((mark for mark in ",;\t" if mark in first_line), ",")


_SEPARATED: Final = re.compile(r"[+-]?(?:\d{1,3}(?:[,.'\u00a0\u202f]\d{3})+(?:[.,]\d+)?|\d+,\d+)")
"""A number as people write it, with marks between thousands or a decimal comma."""


def left_out(names: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Diagnostic]:
    """What a reader must know of columns of what only people read as numbers; `rows`: the first ones."""
    for index, (name, found_type) in enumerate(zip(names, types, strict=True)):
        cells = [cell for row in rows for cell in row[index : index + 1] if cell]
        odd = [cell for cell in cells if _SEPARATED.fullmatch(cell) and not is_number(cell)]
        is_metric = name.strip().lower() not in (*_KERNEL_NAMES, *COLUMNS, *_NUMBERS_OF_CALLS)
        if found_type == "VARCHAR" and is_metric and len(odd) * 2 > len(cells):
            text = (
                f"the column {name!r} is no metric, as {odd[0]!r} is no number here; write numbers without marks "
                "between thousands, and fractions with a point"
            )
            yield Diagnostic("column-left-out", text)


def sql_type(cells: Sequence[str]) -> str:
    """The SQL type of a column with these cells: VARCHAR unless half of those that are not empty are numbers."""
    values = [cell for cell in cells if cell]
    numbers = [value for value in values if is_number(value)]
    if not numbers or len(numbers) * 2 < len(values):
        return "VARCHAR"
    return "BIGINT" if all(is_whole_number(number) for number in numbers) else "DOUBLE"


def is_number(text: str) -> bool:
    """Whether a cell is a finite number; Python's underscores are not for CSV."""
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False


def is_whole_number(text: str) -> bool:
    """Whether a cell is a number without a fraction; `2.0` is one."""
    return is_number(text) and float(text).is_integer()
