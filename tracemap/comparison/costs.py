"""What ops and residuals cost before and after, of as many invocations, in whole numbers that add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracemap.attribution.model import Attribution
from tracemap.attribution.scan.connection import IN_MILLIONTHS, MILLIONTHS
from tracemap.comparison.model import BASIS, Amount
from tracemap.units import UNKNOWN, Integer, Unknown, rounded, sum_of

Scaled = Mapping[str, Mapping[str, int]]
"""By metric and by op or residual reason."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one side by metric: of the whole, and of each part, which add up to it."""

    wholes: Mapping[str, int]
    ops: Scaled
    residual: Scaled


def common_metrics(before: Sequence[Attribution], after: Sequence[Attribution]) -> tuple[tuple[str, str], ...]:
    """Names and units of the metrics that all runs have, in the order of the second side; none without runs.

    One that has fractions in some runs is in millionths of all: in the others it merely happens to be whole.
    """
    if not before or not after:
        return ()
    units = [{metric.name: metric.unit for metric in each.metrics} for each in (*after, *before)]
    found = ((name, _common_unit({of.get(name) for of in units})) for name in units[0])
    return tuple([(name, unit) for name, unit in found if unit is not None])


def _common_unit(units: set[str | None]) -> str | None:
    """The unit in which runs with these can be laid side by side; None: a run lacks the metric, or counts another."""
    whole = units - {IN_MILLIONTHS}
    if None in units or len(whole) > 1:
        return None
    return IN_MILLIONTHS if IN_MILLIONTHS in units else whole.pop()


def invocations_of(runs: Sequence[Attribution], metric: str) -> Integer:
    """In how many calls a metric was measured, in all of these runs; those of several functions do not add up."""
    if len({run.run.function for run in runs}) > 1:
        return UNKNOWN
    return sum_of([each.invocations for run in runs for each in run.metrics if each.name == metric])


def are_per_invocation(before: Sequence[Attribution], after: Sequence[Attribution]) -> bool:
    """Whether both sides tell how many invocations each common metric is of."""
    names = [name for name, _ in common_metrics(before, after)]
    counts = [invocations_of(runs, name) for runs in (before, after) if runs for name in names]
    return all(not isinstance(count, Unknown) and count > 0 for count in counts)


def costs(runs: Sequence[Attribution], metrics: Sequence[tuple[str, str]], *, per_invocation: bool) -> Costs:
    """The costs of all runs of a side together, of `BASIS` invocations or of the whole runs; `metrics` with units."""
    wholes, ops, residual = {}, {}, {}
    for name, unit in metrics:
        of_ops, of_reasons = Counter[str](), Counter[str]()
        for run in runs:
            size = _size_in(unit, run, name)
            for op in run.ops:
                of_ops[op.op] += op.metrics[name].attributed * size
            for row in run.residual:
                of_reasons[row.reason.value] += row.metrics[name] * size
        count = invocations_of(runs, name)
        values = [*of_ops.values(), *of_reasons.values()]
        scaled = scaled_to(values, count) if per_invocation and isinstance(count, int) else values
        wholes[name] = sum(scaled)
        ops[name] = dict(zip(of_ops, scaled, strict=False))
        residual[name] = dict(zip(of_reasons, scaled[len(of_ops) :], strict=True))
    return Costs(wholes, ops, residual)


def _size_in(unit: str, run: Attribution, name: str) -> int:
    """How many of a unit one of a run's is: a run that has no fractions counts wholes."""
    own = next(metric.unit for metric in run.metrics if metric.name == name)
    return MILLIONTHS if unit == IN_MILLIONTHS != own else 1


def scaled_to(values: Sequence[int], count: int) -> list[int]:
    """Sums over `count` invocations as those over `BASIS`: whole numbers, whose sum is the nearest to the exact one.

    What is left of rounding down goes, one each, to the largest remainders (Hamilton's method).
    """
    if count == BASIS:
        return list(values)
    parts = [value * BASIS // count for value in values]
    left_over = rounded(sum(values) * BASIS, count) - sum(parts)
    rests = [value * BASIS % count for value in values]
    for place in sorted(range(len(rests)), key=rests.__getitem__, reverse=True)[:left_over]:
        parts[place] += 1
    return parts


def amount(before: int, after: int) -> Amount:
    """What something costs before and after."""
    return Amount(before, after, after - before)
