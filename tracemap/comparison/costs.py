"""What ops and residuals cost before and after, of as many invocations, in whole numbers that add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracemap.attribution.model import Attribution
from tracemap.comparison.model import BASIS, Amount
from tracemap.units import Integer, Unknown, rounded

Scaled = Mapping[str, Mapping[str, int]]
"""By metric and by op or residual reason."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one side by metric: of the whole, and of each part, which add up to it."""

    wholes: Mapping[str, int]
    ops: Scaled
    residual: Scaled


NOTHING = Costs({}, {}, {})


def common_metrics(before: Attribution | None, after: Attribution | None) -> tuple[tuple[str, str], ...]:
    """Names and units of the metrics that both have, in the order of the second."""
    if before is None or after is None:
        return ()
    known = {(metric.name, metric.unit) for metric in before.metrics}
    return tuple((metric.name, metric.unit) for metric in after.metrics if (metric.name, metric.unit) in known)


def invocations_of(attribution: Attribution, metric: str) -> Integer:
    """In how many calls a metric was measured."""
    return next(each.invocations for each in attribution.metrics if each.name == metric)


def are_per_invocation(before: Attribution | None, after: Attribution | None) -> bool:
    """Whether both sides tell how many invocations each common metric is of."""
    names = [name for name, _ in common_metrics(before, after)]
    counts = [invocations_of(each, name) for each in (before, after) if each is not None for name in names]
    return all(not isinstance(count, Unknown) and count > 0 for count in counts)


def costs(attribution: Attribution | None, metrics: Sequence[str], *, per_invocation: bool) -> Costs:
    """The costs of a run, of `BASIS` invocations or of the whole run."""
    if attribution is None:
        return NOTHING
    wholes, ops, residual = {}, {}, {}
    for name in metrics:
        of_ops: dict[str, int] = {op.op: op.metrics[name].attributed for op in attribution.ops}
        of_reasons = {row.reason.value: row.metrics[name] for row in attribution.residual}
        count = invocations_of(attribution, name)
        values = [*of_ops.values(), *of_reasons.values()]
        scaled = scaled_to(values, count) if per_invocation and isinstance(count, int) else values
        wholes[name] = sum(scaled)
        ops[name] = dict(zip(of_ops, scaled, strict=False))
        residual[name] = dict(zip(of_reasons, scaled[len(of_ops) :], strict=True))
    return Costs(wholes, ops, residual)


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
