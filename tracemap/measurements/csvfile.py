"""CSV files cell by cell, as Python sees them: for the head of a table, and to find the cell that is bad.

Whole tables are read by SQL, which is a hundred times faster.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import RunInvalid

if TYPE_CHECKING:
    import _csv

_LONGEST_FIRST_LINE = 1 << 20


@contextmanager
def csv_rows(path: Path) -> Iterator[_csv.Reader]:
    """The rows of a CSV.

    Raises:
        RunInvalid: it cannot be read, or a row of it cannot.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            yield csv.reader(file, delimiter=delimiter(path))
    except (OSError, csv.Error) as error:
        raise RunInvalid(f"{path}: cannot be read as a table: {error}") from error


def delimiter(path: Path) -> str:
    """A comma, unless the first line has semicolons or tabs and no comma."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first_line = file.readline(_LONGEST_FIRST_LINE)
    return next((mark for mark in ",;\t" if mark in first_line), ",")


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
