"""Which runs are asked about, and by which columns of their headers they are told apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from tracemap.codec import storable
from tracemap.errors import UsageInvalid
from tracemap.measurements.columns import is_number
from tracemap.store.layout import RUNS
from tracemap.store.tables import COLUMNS
from tracemap.units import in_parts

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
