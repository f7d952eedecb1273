"""Significant changes, by confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from tracemap.attribution.model import OpCost
from tracemap.compare.model import Drift, Finding, FindingKind, OpRatio
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown
from tracemap.runs.statistics import drift_ratio, weighted_quantile

# ---- intervals
#
# 95 % intervals of cost ratios, within a run and over runs.
#
# Costs are compared as logarithms, so ratios become differences. With one run per side, the interval is that of the
# median over its invocations (order statistics; David and Nagaraja, Order Statistics, 2003, section 7.1). With several,
# it is that of a precision-weighted mean over runs: runs vary by a variance of their own (DerSimonian and Laird,
# Controlled Clinical Trials 7, 1986, p. 177), and the interval is that of Hartung and Knapp (Statistics in Medicine 20,
# 2001, p. 3875), by Student's t. So a noisy run weighs little. The interval of a difference adds the squared distances
# to the bounds (Zou and Donner, Statistics in Medicine 27, 2008, p. 1693). With equally many runs on both sides, runs
# are compared pair by pair. Changes of the machine from recording to recording then affect both runs of a pair.


_CONFIDENCE: Final = 0.95
_NORMAL: Final = 1.96
"""Half width of the 95 % interval in standard errors."""
_SUREST: Final = 1e-8
"""Smallest variance of a logarithm: no precision better than 0.01 % is assumed."""
_STEPS: Final = 60
"""Bisections to reach machine precision."""


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """A median over the invocations of a run, with its 95 % interval."""

    median: float
    low: float
    high: float

    def times(self, factor: float) -> MedianInterval:
        """Multiply by a factor."""
        return MedianInterval(self.median * factor, self.low * factor, self.high * factor)


def ratio_between(before: Sequence[MedianInterval], after: Sequence[MedianInterval]) -> MedianInterval:
    """Cost ratio of after to before. Each side has a `Spread` for each run; all are above 0."""
    old_logs, new_logs = (
        [MedianInterval(*map(math.log, (run.median, run.low, run.high))) for run in runs] for runs in (before, after)
    )
    if len(old_logs) == len(new_logs):
        ratio = _combine([_difference(old, new) for old, new in zip(old_logs, new_logs, strict=True)])
    else:
        ratio = _difference(_combine(old_logs), _combine(new_logs))
    return MedianInterval(*map(math.exp, (ratio.median, ratio.low, ratio.high)))


def _difference(before: MedianInterval, after: MedianInterval) -> MedianInterval:
    difference = after.median - before.median
    down = math.hypot(after.median - after.low, before.high - before.median)
    up = math.hypot(after.high - after.median, before.median - before.low)
    return MedianInterval(difference, difference - down, difference + up)


def _combine(runs: Sequence[MedianInterval]) -> MedianInterval:
    """The precision-weighted mean over runs with its interval. A single run is returned as is."""
    if len(runs) == 1:
        return runs[0]
    freedom, values = len(runs) - 1, [run.median for run in runs]
    within = [max(((run.high - run.low) / (2 * _NORMAL)) ** 2, _SUREST) for run in runs]
    weights = [1 / variance for variance in within]
    q = _squares(values, weights, statistics.fmean(values, weights))
    scale = sum(weights) - sum(weight * weight for weight in weights) / sum(weights)
    between = max(0.0, (q - freedom) / scale)
    weights = [1 / (variance + between) for variance in within]
    mean = statistics.fmean(values, weights)
    width = student(freedom) * math.sqrt(_squares(values, weights, mean) / freedom / sum(weights))
    return MedianInterval(mean, mean - width, mean + width)


def _squares(values: Sequence[float], weights: Sequence[float], mean: float) -> float:
    return sum(weight * (value - mean) ** 2 for value, weight in zip(values, weights, strict=True))


@cache
def student(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t with `freedom` degrees of freedom."""
    low, high = 0.0, math.pi / 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < _CONFIDENCE else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """P(|t| <= tan(angle) * sqrt(freedom)) (Abramowitz and Stegun, 1964, 26.7.3 and 26.7.4)."""
    cosine, sine = math.cos(angle), math.sin(angle)
    term, terms = cosine if freedom % 2 else 1.0, []
    for number in range(freedom % 2, freedom - 1, 2):
        terms.append(term)
        term *= cosine * cosine * (number + 1) / (number + 2)
    return 2 / math.pi * (angle + sine * sum(terms)) if freedom % 2 else sine * sum(terms)


# ---- findings
#
# Significant changes, by the intervals above.
#
# A change is a finding if the interval of its ratio lies beyond the threshold. The machine also drifts from run to run.
# Ops with unchanged machine code show by how much, and all ratios are corrected for it. The scatter of these ops is a
# second limit: smaller changes are not findings. Ops with unchanged code are never findings themselves, since their
# change comes from the machine, or from the code that ran before them.


LEAST_SHARE: Final = 0.005
"""Smallest change that can be a finding, as a share of an invocation."""
NO_DRIFT: Final = Drift(1.0, 1.0, 0)
_MOST_OF_COST: Final = 0.9


@dataclass(frozen=True, slots=True)
class MeasuredOp:
    """An op with its costs per invocation before and after; `same_code`: it takes part in the estimate of drift.

    `old_costs`, `new_costs`: a spread per run of the side; empty if the op does not exist there, or a run lacks its
    cost. `corrected`: the costs after correction for drift in each invocation (`correct_drift`), if both sides have
    them.
    """

    before: Text
    after: Text
    name: str
    line: Integer
    old_costs: tuple[MedianInterval, ...]
    new_costs: tuple[MedianInterval, ...]
    same_code: bool
    corrected: tuple[tuple[MedianInterval, ...], tuple[MedianInterval, ...]] | None = None

    @property
    def has_ratio(self) -> bool:
        """Whether its cost is significantly above 0 in all runs of both sides."""
        return (
            bool(self.old_costs and self.new_costs) and min(run.low for run in (*self.old_costs, *self.new_costs)) > 0
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """Slowdown of the machine in each run, relative to the first run before, and its estimate of drift."""

    old_factors: tuple[float, ...]
    new_factors: tuple[float, ...]
    drift: Drift

    def ratio_of(self, op: MeasuredOp) -> MedianInterval | None:
        """Cost ratio of an op, corrected for drift by invocation where possible, otherwise by run.

        None: the op has no ratio.
        """
        if not op.has_ratio:
            return None
        if op.corrected is not None and all(run.low > 0 for runs in op.corrected for run in runs):
            return ratio_between(*op.corrected)
        return ratio_between(_corrected(op.old_costs, self.old_factors), _corrected(op.new_costs, self.new_factors))


NO_CORRECTION: Final = Machine((), (), NO_DRIFT)
"""No correction: drift is unknown."""


def _corrected(runs: Sequence[MedianInterval], factors: Sequence[float]) -> Sequence[MedianInterval]:
    if not factors:
        return runs
    return [run.times(1 / factor) for run, factor in zip(runs, factors, strict=True)]


def spread_of(cost: OpCost | None) -> MedianInterval | None:
    """The median of an op's cost per invocation, with its interval; None if the run does not have it."""
    if cost is None:
        return None
    own = cost.per_invocation
    known = [value for value in (own.median, own.median_low, own.median_high) if value is not UNKNOWN]
    return MedianInterval(*known) if len(known) == 3 else None


def machine_of(ops: Sequence[MeasuredOp]) -> Machine:
    """Estimate the machine's drift from ops with unchanged code, and the scatter of these ops."""
    unchanged = [op for op in ops if op.same_code and op.has_ratio]
    if not unchanged:
        return NO_CORRECTION
    old_factors = _factors([op.old_costs for op in unchanged], [op.old_costs for op in ops if op.old_costs], unchanged)
    new_factors = _factors([op.new_costs for op in unchanged], [op.new_costs for op in ops if op.new_costs], unchanged)
    if not old_factors or not new_factors:
        return NO_CORRECTION
    machine = Machine(old_factors, new_factors, NO_DRIFT)
    scatter = [
        (math.exp(abs(math.log(ratio.median))), op.old_costs[0].median)
        for op in unchanged
        if (ratio := machine.ratio_of(op)) is not None
    ]
    old_log, new_log = (statistics.fmean(map(math.log, factors)) for factors in (old_factors, new_factors))
    spread = round(weighted_quantile(scatter, _MOST_OF_COST), 4)
    return Machine(old_factors, new_factors, Drift(round(math.exp(new_log - old_log), 4), spread, len(unchanged)))


def _factors(
    unchanged: Sequence[tuple[MedianInterval, ...]],
    everything: Sequence[tuple[MedianInterval, ...]],
    ops: Sequence[MeasuredOp],
) -> tuple[float, ...]:
    """Slowdown of the machine in each run of a side, relative to the first run before; empty if unknown."""
    factors = []
    for index in range(len(unchanged[0])):
        pairs = [(op.old_costs[0].median, runs[index].median) for op, runs in zip(ops, unchanged, strict=True)]
        all_costs = sum(runs[index].median for runs in everything)
        factor = drift_ratio(pairs, (0.0, all_costs))
        if isinstance(factor, Unknown):
            return ()
        factors.append(factor)
    return tuple(factors)


def findings(
    ops: Sequence[MeasuredOp], metric: str, threshold: float, machine: Machine = NO_CORRECTION
) -> tuple[Finding, ...]:
    """Changes beyond the threshold (in percent), the largest first."""
    least = LEAST_SHARE * sum(_median(op.old_costs) for op in ops)
    changes = [finding for op in ops if not op.same_code for finding in _finding(op, metric, threshold, machine, least)]
    changes.sort(key=lambda finding: -abs(_known(finding.median_after) - _known(finding.median_before)))
    return tuple(changes)


def _median(runs: Sequence[MedianInterval]) -> float:
    return statistics.median([run.median for run in runs]) if runs else 0.0


def _known(value: Integer) -> int:
    return 0 if isinstance(value, Unknown) else value


def _finding(op: MeasuredOp, metric: str, threshold: float, machine: Machine, least: float) -> Iterator[Finding]:
    if _costs_nothing(op.old_costs) != _costs_nothing(op.new_costs):
        # An op that costs something on one side only is a finding if that exceeds the threshold of an invocation.
        gone = _costs_nothing(op.new_costs)
        own, other = (op.old_costs, op.after) if gone else (op.new_costs, op.before)
        # An op whose cost some runs of the opposite side lack has no spreads there, but does exist.
        exists_once = other is UNKNOWN or bool(op.new_costs if gone else op.old_costs)
        if exists_once and min(run.low for run in own) > least / LEAST_SHARE * threshold / 100:
            yield _as_finding("gone" if gone else "new", op, metric, machine, OpRatio(0.0, 0.0, 0.0))
        return
    ratio, limit = machine.ratio_of(op), 1 + threshold / 100
    if ratio is None or abs(ratio.median - 1) * _median(op.old_costs) < least:
        return
    if max(ratio.median, 1 / ratio.median) > machine.drift.spread and (ratio.low > limit or ratio.high < 1 / limit):
        yield _as_finding("slower" if ratio.low > limit else "faster", op, metric, machine, op_ratio(ratio))


def op_ratio(ratio: MedianInterval) -> OpRatio:
    """Round a ratio for reports."""
    return OpRatio(*(round(value, 4) for value in (ratio.median, ratio.low, ratio.high)))


def _costs_nothing(runs: Sequence[MedianInterval]) -> bool:
    """Whether an op does not exist, or costs nothing in any invocation, such as in a branch not taken."""
    return all(run.high <= 0 for run in runs)


def _as_finding(kind: FindingKind, op: MeasuredOp, metric: str, machine: Machine, ratio: OpRatio) -> Finding:
    return Finding(
        kind=kind,
        before=op.before,
        after=op.after,
        name=op.name,
        line=op.line,
        metric=metric,
        median_before=round(_median(op.old_costs)) if op.old_costs else UNKNOWN,
        median_after=round(_median(op.new_costs) / machine.drift.ratio) if op.new_costs else UNKNOWN,
        ratio=ratio.ratio,
        ratio_low=ratio.ratio_low,
        ratio_high=ratio.ratio_high,
    )


def regressions(findings: Sequence[Finding], percent: float) -> list[Finding]:
    """Findings that are new, or slower by more than a percentage at the lower bound of their ratio."""
    return [
        finding
        for finding in findings
        if finding.kind == "new" or (finding.kind == "slower" and finding.ratio_low > 1 + percent / 100)
    ]
