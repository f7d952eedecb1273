"""Selection from a view: rows filtered, sorted and cut to `--top`, and the columns to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Final

from msgspec import structs

from tracemap.attribution.model import Attribution
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import natural_sort_key, plural_of
from tracemap.map.query import PASSES
from tracemap.options.results import AttributeOptions
from tracemap.reports.cost_lookup import MapCosts
from tracemap.reports.views.costs import NEVER, SHARE, TEXT, Cell, Column, Costs, Row, View, shown_metrics
from tracemap.reports.views.ops import PASS, by_kernel, by_line, by_name, by_op, by_site
from tracemap.reports.views.python import (
    SCOPE,
    as_tree,
    by_caller,
    by_function,
    by_overhead,
    by_pass,
    by_python,
    by_scope,
    by_source,
)

VIEWS: Mapping[str, Callable[[MapCosts, Costs], View]] = {
    "op": by_op,
    "line": by_line,
    "source": by_source,
    "python": by_python,
    "caller": by_caller,
    "function": by_function,
    "scope": by_scope,
    "pass": by_pass,
    "kernel": by_kernel,
    "site": by_site,
    "name": by_name,
    "overhead": by_overhead,
}
"""The function that makes a view, by the value of the option `by`."""


@dataclass(frozen=True, slots=True)
class ViewSelection:
    """The part of a view to show, and the size of the rest. `asked`: the user selected the columns."""

    view: View
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    asked: bool
    hidden: int
    """Rows after the first `--top`."""
    unmatched: int
    """Rows that the filters exclude."""
    hidden_share: Fraction
    unmatched_share: Fraction


def selected_costs(attribution: Attribution, options: AttributeOptions) -> Costs:
    """The metrics to show, per invocation or as sums.

    Raises:
        UsageInvalid: the runs lack a named metric.
    """
    # Opening a run without any metric already failed.
    return Costs(
        attribution.metrics, shown_metrics(attribution.metrics, options.metrics), options.totals, attribution.run
    )


def check_selection(costed: MapCosts, attribution: Attribution, options: AttributeOptions) -> None:
    """Check the names of metrics and columns before any output is written.

    Raises:
        UsageInvalid: a metric or column is unknown.
    """
    if options.metrics or options.columns or options.sort or options.filters or options.only:
        select_from_view(costed, selected_costs(attribution, options), options)


def select_from_view(costed: MapCosts, costs: Costs, options: AttributeOptions) -> ViewSelection:
    """Make the view of `options.by`, and select its rows and columns.

    Raises:
        UsageInvalid: the view lacks a named column, or there is no pass of a name.
    """
    by = options.by or _default_view(costed, options)
    view = VIEWS[by](costed, costs)
    filters = [_column_and_pattern(text) for text in options.filters]
    for name in filter(None, (name for name, _ in filters)):
        _column(view, name)  # reject unknown columns even without rows
    passes = () if by == PASS.key else tuple(pattern for name, pattern in filters if name == PASS.key)
    for pattern in passes:
        if not any(fnmatchcase(name, pattern) for name in (*PASSES, "")):
            raise UsageInvalid(f"--filter pass={pattern}: the passes are {', '.join(PASSES)}, and empty for none")
    matching = VIEWS[by](structs.replace(costed, passes=passes), costs).rows if passes else view.rows
    for name, pattern in filters:
        if name != PASS.key or not passes:
            matching = [row for row in matching if _matches(view, row, name, pattern)]
    shown = _sorted(view, matching, options.sort)[: options.top or None]
    if view.noun == SCOPE and not options.sort:
        shown = as_tree(shown)
    columns = tuple(_column(view, key) for key in options.columns) or _usual(view, shown)
    if options.sort and not options.columns:
        columns = _with_sorted(columns, _column(view, options.sort))
    total_share, shown_share = _share(view.rows), _share(shown)
    matching_share = total_share if matching is view.rows else _share(matching)
    hidden, unmatched = len(matching) - len(shown), len(view.rows) - len(matching)
    shares = (matching_share - shown_share, total_share - matching_share)
    return ViewSelection(view, columns, tuple(shown), bool(options.columns), hidden, unmatched, *shares)


def _default_view(costed: MapCosts, options: AttributeOptions) -> str:
    """Source lines for models of a framework, unless the options name a column that only ops have."""
    named = {*options.columns, options.sort, *(_column_and_pattern(text)[0] for text in options.filters)}
    return "source" if costed.is_from_framework and not named & _ONLY_OPS else "op"


_ONLY_OPS: Final = frozenset("op python name scope calls inclusive low high median p10 p90 max".split())


def _column(view: View, name: str) -> Column:
    """A column by its key, or by its heading without the unit."""
    # Keys win over equal headings. The first of several columns with the same heading wins.
    known = {column.heading: column for column in reversed(view.columns)} | {
        column.key: column for column in view.columns
    }
    if name not in known:
        raise _unknown(view, name, view.columns)
    return known[name]


def _unknown(view: View, name: str, columns: Sequence[Column]) -> UsageInvalid:
    """An error for an unknown column, with the keys of all columns and, if different, their headings in brackets."""
    names = (
        column.key if column.heading in {"", column.key} else f"{column.key} ({column.heading})" for column in columns
    )
    remedy = "; --by op has it" if name in _ONLY_OPS else ""
    return UsageInvalid(
        f"the table of {plural_of(view.noun)} has no column {name!r}; it has: {', '.join(names)}{remedy}"
    )


def _with_sorted(columns: Sequence[Column], rank: Column) -> tuple[Column, ...]:
    """The columns with the one that rows are sorted by, which narrow terminals keep."""
    kept = replace(rank, leave=NEVER)
    shown = tuple(kept if column.key == rank.key else column for column in columns)
    return shown if kept in shown else (*shown, kept)


def _usual(view: View, rows: Sequence[Row]) -> tuple[Column, ...]:
    """The default columns without those that are empty in all rows."""
    filled = {column.key for column in view.columns if any(row.get(column.key) not in {None, "", "–"} for row in rows)}
    return tuple(column for column in view.columns if column.usual and (column.key in filled or not rows))


def _matches(view: View, row: Row, name: str, pattern: str) -> bool:
    text_columns = [column.key for column in view.columns if column.unit == TEXT]
    if not name:
        return any(fnmatchcase(str(row.get(key, "")), pattern) for key in text_columns)
    key = _column(view, name).key
    if key not in text_columns:
        columns = ", ".join(text_columns)
        raise UsageInvalid(f"cannot filter by {key}, a column of numbers; filter by a column of texts: {columns}")
    return fnmatchcase(str(row.get(key, "")), pattern)


def _column_and_pattern(text: str) -> tuple[str, str]:
    """Split `COLUMN=PATTERN` at the first `=`; no column if a wildcard comes before it."""
    name, equals, pattern = text.partition("=")
    return (name, pattern) if equals and not any(letter in name for letter in "*?[") else ("", text)


def _sorted(view: View, rows: Sequence[Row], sort: str | None) -> list[Row]:
    """Sort numbers from the largest, texts from A to Z; ties and rows without a number keep the order of the map.

    Numbers within texts sort by value: line 9 of a file before line 10.
    """
    column = _column(view, sort or view.rank)
    if column.unit == TEXT:
        return sorted(rows, key=lambda row: natural_sort_key(str(row.get(column.key, ""))))
    numbers = [_number(row.get(column.key)) for row in rows]
    ranks = [(number is None, -(number or 0), index) for index, number in enumerate(numbers)]
    return [rows[index] for *_, index in sorted(ranks)]


def _number(cell: Cell) -> int | Fraction | None:
    return None if isinstance(cell, str) else cell


def _share(rows: Sequence[Row]) -> Fraction:
    # Shares of one amount have few denominators. Add numerators per denominator first, to add few fractions.
    numerators = Counter[int]()
    for row in rows:
        share = _number(row.get(SHARE)) or 0
        numerators[share.denominator] += share.numerator
    return sum((Fraction(numerator, denominator) for denominator, numerator in numerators.items()), Fraction())
