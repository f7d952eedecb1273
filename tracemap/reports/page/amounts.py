"""Measured integers as amounts: with their text for people and their share of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracemap.attribution.model import MetricTotal, PerCall
from tracemap.reports.page.model import Amount, Spread
from tracemap.units import format_quantity, format_share


def amount(value: int, metric: MetricTotal) -> Amount:
    """A value of a metric, as text and as a share of what was measured."""
    return Amount(value, format_quantity(value, metric.unit), format_share(value, metric.measured))


def amounts(values: Mapping[str, int], metrics: Sequence[MetricTotal]) -> dict[str, Amount]:
    """Values by metric name as amounts, in the order of the metrics."""
    return {metric.name: amount(values[metric.name], metric) for metric in metrics}


def spread(per_call: PerCall | None, metric: MetricTotal) -> Spread | None:
    """The spread over calls as amounts; None where there was no call."""
    if per_call is None:
        return None
    return Spread(amount(per_call.median, metric), amount(per_call.p10, metric), amount(per_call.p90, metric))
