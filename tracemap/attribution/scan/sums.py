"""The events of each target: how many, and per metric their sum and percentiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracemap.attribution.model import PerCall
from tracemap.attribution.scan.metrics import value_column
from tracemap.attribution.scan.percentiles import per_call, quantiles
from tracemap.attribution.scan.tables import Tables
from tracemap.measurements.model import Metric

_OF_TARGETS = "FILTER (WHERE target >= 0)"
"""Nobody asks for the percentiles of what has no target."""


@dataclass(frozen=True, slots=True)
class TargetSum:
    """The events of one target. By metric name: `sums`; how many events have no value; percentiles of the values."""

    events: int
    sums: Mapping[str, int]
    absent: Mapping[str, int]
    per_call: Mapping[str, PerCall]


def sums_by_target(tables: Tables, metrics: Sequence[Metric]) -> dict[int, TargetSum]:
    """The events of `resolved` by the number of their target, in its order."""
    # The percentiles of single targets come with the sums: that is one pass over `resolved` less.
    values = [value_column(number) for number in range(len(metrics))]
    sums = (f"[CAST(sum({value}) AS HUGEINT), count(*) - count({value})]" for value in values)
    lists = (f"{quantiles(value)} {_OF_TARGETS}" for value in values)
    columns = ", ".join(("target", "count(*)", *sums, *lists))
    rows = tables.query(f"SELECT {columns} FROM resolved GROUP BY target ORDER BY target")
    names = [metric.name for metric in metrics]
    return {target: _sum(events, names, cells) for target, events, *cells in rows}


def _sum(events: int, names: Sequence[str], cells: Sequence[Any]) -> TargetSum:
    pairs = dict(zip(names, cells, strict=False))
    return TargetSum(
        events,
        sums={name: int(total or 0) for name, (total, _) in pairs.items()},
        absent={name: absent for name, (_, absent) in pairs.items()},
        per_call=per_call(names, cells[len(names) :]),
    )
