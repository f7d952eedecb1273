"""A comparison as CSV: a row per op and metric, then one per residual and metric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracemap.comparison.model import Amount, Comparison, OpDifference
from tracemap.inert import csv_line, without_controls
from tracemap.units import Integer, Text, Unknown

COLUMNS: Final = (
    *("before", "after", "how", "edited", "name_before", "name", "line_before", "line_after", "scope"),
    *("fate_before", "fate_after", "code", "metric", "unit", "cost_before", "cost_after", "change"),
)


def diff_csv(made: Comparison) -> str:
    """The table, with a header line; what is not known is an empty cell.

    Ops without a cost have one row, without a metric. Rows of residuals have the reason in the column `name` and no op,
    so that the column `change` adds up to the change of the whole, for each metric.
    """
    return "".join([csv_line(COLUMNS), *map(csv_line, _rows(made))])


def _rows(made: Comparison) -> Iterator[list[int | str]]:
    units = {metric.name: metric.unit for metric in made.metrics}
    for op in made.ops:
        about = _about(op)
        if not op.amounts:
            yield [*about, *[""] * 5]
        for name, amount in op.amounts.items():
            yield [*about, *_figures(name, units[name], amount)]
    for row in made.residual:
        for name, amount in row.amounts.items():
            yield [*[""] * 5, row.reason, *[""] * 6, *_figures(name, units[name], amount)]


def _about(op: OpDifference) -> list[int | str]:
    places = (_cell(op.line_before), _cell(op.line_after), without_controls("/".join(op.scope)))
    names = (_cell(op.name_before), without_controls(op.name))
    about = (_cell(op.before), _cell(op.after), _cell(op.how), int(op.edited))
    return [*about, *names, *places, _cell(op.fate_before), _cell(op.fate_after), _cell(op.code)]


def _figures(name: str, unit: str, amount: Amount) -> list[int | str]:
    return [without_controls(name), unit, amount.before, amount.after, amount.change]


def _cell(value: Integer | Text) -> int | str:
    if isinstance(value, Unknown):
        return ""
    return value if isinstance(value, int) else without_controls(value)
