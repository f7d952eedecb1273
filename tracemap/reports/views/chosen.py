"""What of a view is shown: rows that match, sorted, the first so many; and the columns that are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction

from tracemap.attribution.model import Attribution
from tracemap.errors import UsageInvalid
from tracemap.options.results import AttributeOptions
from tracemap.reports.cost_lookup import CostedMap
from tracemap.reports.views.costs import SHARE, Costs, shown_metrics
from tracemap.reports.views.model import TEXT, Cell, Column, Row, View
from tracemap.reports.views.ops import by_kernel, by_line, by_name, by_op, by_site
from tracemap.reports.views.python import by_caller, by_python, by_scope
from tracemap.units import in_parts

VIEWS: Mapping[str, Callable[[CostedMap, Costs], View]] = {
    "op": by_op,
    "line": by_line,
    "python": by_python,
    "caller": by_caller,
    "scope": by_scope,
    "kernel": by_kernel,
    "site": by_site,
    "name": by_name,
}
"""What makes the view of each value of the option `by`."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is shown of a view: columns and rows, whether the columns were asked for, and what is not shown."""

    view: View
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    asked: bool
    hidden: int
    """Rows beyond the first so many."""
    unmatched: int
    """Rows that do not match."""
    hidden_share: Fraction
    unmatched_share: Fraction


def costs_of(attribution: Attribution, options: AttributeOptions) -> Costs:
    """Which metrics are shown, and as what.

    Raises:
        UsageInvalid: the runs have no such metric.
    """
    # A run without a metric is refused when it is opened.
    return Costs(
        attribution.metrics, shown_metrics(attribution.metrics, options.metrics), options.totals, attribution.run
    )


def check_choice(costed: CostedMap, attribution: Attribution, options: AttributeOptions) -> None:
    """Find out before anything is written whether what is to be shown is there.

    Raises:
        UsageInvalid: there is no such metric or column.
    """
    if options.metrics or options.columns or options.sort or options.filters:
        chosen_view(costed, costs_of(attribution, options), options)


def chosen_view(costed: CostedMap, costs: Costs, options: AttributeOptions) -> Chosen:
    """Make the view that is asked for, and choose its rows and columns.

    Raises:
        UsageInvalid: the view has no such column.
    """
    view = VIEWS[options.by](costed, costs)
    for name in filter(None, (_column_and_rest(pattern)[0] for pattern in options.filters)):
        _column(view, name)  # it is refused whether there are rows or not
    matching = view.rows
    for pattern in options.filters:
        matching = [row for row in matching if _matches(view, row, pattern)]
    shown = _sorted(view, matching, options.sort)[: options.top or None]
    columns = tuple(_column(view, key) for key in options.columns) or _usual(view, shown)
    everything, first = _share(view.rows), _share(shown)
    found = everything if matching is view.rows else _share(matching)
    hidden, unmatched = len(matching) - len(shown), len(view.rows) - len(matching)
    of = (hidden, unmatched, found - first, everything - found)
    return Chosen(view, columns, tuple(shown), bool(options.columns), *of)


def _column(view: View, name: str) -> Column:
    """A column by its name, or by what stands above it, without the unit."""
    # A name goes before a heading that is the same: of several columns with one heading, the first is meant.
    known = {column.heading: column for column in reversed(view.columns)} | {
        column.key: column for column in view.columns
    }
    if name not in known:
        raise _unknown(view, name, view.columns)
    return known[name]


def _unknown(view: View, name: str, columns: Sequence[Column]) -> UsageInvalid:
    """What is said of a name that no column has: the names, and the headings in brackets that are others."""
    named = (
        column.key if column.heading in {"", column.key} else f"{column.key} ({column.heading})" for column in columns
    )
    return UsageInvalid(f"the table of {view.noun}s has no column {name!r}; it has: {', '.join(named)}")


def _usual(view: View, rows: Sequence[Row]) -> tuple[Column, ...]:
    """The usual columns, but those that say nothing in any row."""
    said = {column.key for column in view.columns if any(row.get(column.key) not in {None, "", "–"} for row in rows)}
    return tuple(column for column in view.columns if column.usual and (column.key in said or not rows))


def _matches(view: View, row: Row, pattern: str) -> bool:
    texts = [column.key for column in view.columns if column.unit == TEXT]
    name, rest = _column_and_rest(pattern)
    if not name:
        return any(fnmatchcase(str(row.get(key, "")), pattern) for key in texts)
    key = _column(view, name).key
    if key not in texts:
        raise UsageInvalid(f"{key} is a column of numbers; rows are filtered by texts: {', '.join(texts)}")
    return fnmatchcase(str(row.get(key, "")), rest)


def _column_and_rest(pattern: str) -> tuple[str, str]:
    """The column before the first `=` and the pattern behind it; no column where a wildcard stands before it."""
    name, equals, rest = pattern.partition("=")
    return (name, rest) if equals and not any(letter in name for letter in "*?[") else ("", pattern)


def _sorted(view: View, rows: Sequence[Row], sort: str | None) -> list[Row]:
    """Numbers from the largest, texts from A to Z; ties, and what has no number, as in the map.

    A number within a text goes by its value: line 9 of a file stands before line 10.
    """
    column = _column(view, sort or view.rank)
    if column.unit == TEXT:
        return sorted(rows, key=lambda row: in_parts(str(row.get(column.key, ""))))
    numbers = [_number(row.get(column.key)) for row in rows]
    ranks = [(number is None, -(number or 0), place) for place, number in enumerate(numbers)]
    return [rows[place] for *_, place in sorted(ranks)]


def _number(cell: Cell) -> int | Fraction | None:
    return None if isinstance(cell, str) else cell


def _share(rows: Sequence[Row]) -> Fraction:
    # Shares of one amount have few denominators: adding numerators of each leaves few fractions to bring together.
    numerators = Counter[int]()
    for row in rows:
        share = _number(row.get(SHARE)) or 0
        numerators[share.denominator] += share.numerator
    return sum((Fraction(sum_of, denominator) for denominator, sum_of in numerators.items()), Fraction())
