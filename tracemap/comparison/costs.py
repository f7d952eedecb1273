"""Costs of ops and unattributed costs before and after, scaled to equal invocations, in integers that add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracemap.attribution.model import Attribution
from tracemap.attribution.scan.connection import IN_MILLIONTHS, MILLIONTHS
from tracemap.comparison.model import BASIS, Amount
from tracemap.units import UNKNOWN, Integer, Unknown, rounded, sum_of

Scaled = Mapping[str, Mapping[str, int]]
"""Scaled costs, by metric and by op or reason."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one side by metric: the totals, and the parts that add up to them."""

    wholes: Mapping[str, int]
    ops: Scaled
    residual: Scaled


def common_metrics(before: Sequence[Attribution], after: Sequence[Attribution]) -> tuple[tuple[str, str], ...]:
    """Names and units of the metrics that all runs have, in the order of the second side; empty without runs.

    A metric with fractions in some runs is in millionths for all runs; in the others it merely happens to be whole.
    """
    if not before or not after:
        return ()
    units = [{metric.name: metric.unit for metric in attribution.metrics} for attribution in (*after, *before)]
    names_and_units = ((name, _common_unit({units_of_run.get(name) for units_of_run in units})) for name in units[0])
    return tuple([(name, unit) for name, unit in names_and_units if unit is not None])


def _common_unit(units: set[str | None]) -> str | None:
    """The common unit of a metric; None: a run lacks the metric, or has another unit."""
    whole = units - {IN_MILLIONTHS}
    if None in units or len(whole) > 1:
        return None
    return IN_MILLIONTHS if IN_MILLIONTHS in units else whole.pop()


def invocations_of(runs: Sequence[Attribution], metric: str) -> Integer:
    """Invocations of a metric over all runs. Unknown if the runs called different functions."""
    if len({run.run.function for run in runs}) > 1:
        return UNKNOWN
    return sum_of(
        [metric_total.invocations for run in runs for metric_total in run.metrics if metric_total.name == metric]
    )


def are_per_invocation(before: Sequence[Attribution], after: Sequence[Attribution]) -> bool:
    """Whether the number of invocations is known for each common metric on both sides."""
    names = [name for name, _ in common_metrics(before, after)]
    counts = [invocations_of(runs, name) for runs in (before, after) if runs for name in names]
    return all(not isinstance(count, Unknown) and count > 0 for count in counts)


def costs(runs: Sequence[Attribution], metrics: Sequence[tuple[str, str]], *, per_invocation: bool) -> Costs:
    """Sum the costs of a side's runs, scaled to `BASIS` invocations or unscaled; `metrics` with units."""
    wholes, ops, residual = {}, {}, {}
    for name, unit in metrics:
        op_sums, reason_sums = Counter[str](), Counter[str]()
        for run in runs:
            factor = _size_in(unit, run, name)
            for op in run.ops:
                op_sums[op.op] += op.metrics[name].attributed * factor
            for row in run.residual:
                reason_sums[row.reason.value] += row.metrics[name] * factor
        count = invocations_of(runs, name)
        values = [*op_sums.values(), *reason_sums.values()]
        scaled = scaled_to(values, count) if per_invocation and isinstance(count, int) else values
        wholes[name] = sum(scaled)
        ops[name] = dict(zip(op_sums, scaled, strict=False))
        residual[name] = dict(zip(reason_sums, scaled[len(op_sums) :], strict=True))
    return Costs(wholes, ops, residual)


def _size_in(unit: str, run: Attribution, name: str) -> int:
    """Factor from a run's unit to a unit: a run without fractions counts wholes."""
    own = next(metric.unit for metric in run.metrics if metric.name == name)
    return MILLIONTHS if unit == IN_MILLIONTHS != own else 1


def scaled_to(values: Sequence[int], count: int) -> list[int]:
    """Scale sums over `count` invocations to `BASIS`. The integers add up to the rounded exact sum.

    Units lost by rounding down go, one each, to the largest remainders (Hamilton's method).
    """
    if count == BASIS:
        return list(values)
    parts = [value * BASIS // count for value in values]
    missing = rounded(sum(values) * BASIS, count) - sum(parts)
    remainders = [value * BASIS % count for value in values]
    for index in sorted(range(len(remainders)), key=remainders.__getitem__, reverse=True)[:missing]:
        parts[index] += 1
    return parts


def amount(before: int, after: int) -> Amount:
    """A cost before and after, with its change."""
    return Amount(before, after, after - before)
