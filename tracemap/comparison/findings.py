"""Which changes are more than chance: by intervals of medians over the invocations of each run.

The median of what an op costs in an invocation lies, with 95 %, between two of the ordered values (order statistics;
David and Nagaraja, 2003, section 7.1; `measurements.order`). Where the intervals of the two runs, laid against one
another in the worst way, leave a ratio beyond the threshold, the change is named. Runs also differ as wholes: the
machine is faster or slower from one to the next. Ops whose machine code is the same tell by how much, and all are
corrected by that; they tell, too, by how much ops differ that nothing was done to, and what differs by less is not
named. Such ops themselves are never named: what they cost more or less is of the machine, or of what ran before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tracemap.attribution.model import OpCost
from tracemap.comparison.model import Drift, Finding, Kind
from tracemap.measurements.order import weighted_quantile
from tracemap.units import UNKNOWN, Integer, Text, Unknown

LEAST_SHARE: Final = 0.005
"""Of an invocation: what changes it by less is not named."""
_LEAST_OPS: Final = 3
"""Of fewer ops no drift of the machine can be told."""
NO_DRIFT: Final = Drift(1.0, 1.0, 0)
_MOST_OF_COST: Final = 0.9


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with its interval."""

    median: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Measured:
    """An op with what it costs in an invocation before and after (None: it is not there); `same_code`: see `Drift`."""

    before: Text
    after: Text
    name: str
    line: Integer
    one: Spread | None
    two: Spread | None
    same_code: bool


def spread_of(cost: OpCost | None) -> Spread | None:
    """The interval of an op's median; None where the run does not tell."""
    if cost is None:
        return None
    median, low, high = (getattr(cost.per_invocation, name) for name in ("median", "median_low", "median_high"))
    known = all(isinstance(each, int) for each in (median, low, high))
    return Spread(median, low, high) if known else None


def drift_of(ops: Sequence[Measured]) -> Drift:
    """The median of the ratios of ops with unchanged code, each counted by its cost, and how far they lie from it."""
    ratios = [
        (op.two.median / op.one.median, op.one.median)
        for op in ops
        if op.same_code and op.one and op.two and op.one.median and op.two.median
    ]
    if len(ratios) < _LEAST_OPS:
        return NO_DRIFT
    middle = weighted_quantile(ratios, 0.5)
    apart = [(max(ratio / middle, middle / ratio), weight) for ratio, weight in ratios]
    return Drift(round(middle, 4), round(weighted_quantile(apart, _MOST_OF_COST), 4), len(ratios))


def findings(ops: Sequence[Measured], metric: str, threshold: float, drift: Drift) -> tuple[Finding, ...]:
    """The changes beyond the threshold, in percent; the largest first."""
    least = LEAST_SHARE * sum(op.one.median for op in ops if op.one)
    found = [made for op in ops if not op.same_code for made in _finding(op, metric, threshold, drift, least)]
    found.sort(key=lambda each: -abs(_known(each.median_after) - _known(each.median_before)))
    return tuple(found)


def _known(value: Integer) -> int:
    return 0 if isinstance(value, Unknown) else value


def _finding(op: Measured, metric: str, threshold: float, drift: Drift, least: float) -> Iterator[Finding]:
    if op.one is None or op.two is None:
        # What is there on one side only is named where its cost alone is beyond the threshold of an invocation.
        yield from _alone(op, metric, least / LEAST_SHARE * threshold / 100)
        return
    if min(op.one.low, op.two.low) <= 0 or abs(op.two.median / drift.ratio - op.one.median) < least:
        return
    middle, low, high = ratios(op.one, op.two, drift)
    limit = 1 + threshold / 100
    if max(middle, 1 / middle) > drift.spread and (low > limit or high < 1 / limit):
        medians = op.one.median, op.two.median
        yield _made("slower" if low > limit else "faster", op, metric, medians, (middle, low, high))


def ratios(one: Spread, two: Spread, drift: Drift) -> tuple[float, float, float]:
    """How many times as much something costs, without the machine's part: by the medians, at least, and at most."""
    ends = (one.median, two.median), (one.high, two.low), (one.low, two.high)
    middle, low, high = (after / before / drift.ratio for before, after in ends)
    return middle, low, high


def _alone(op: Measured, metric: str, enough: float) -> Iterator[Finding]:
    cost = op.one or op.two
    if cost is None or cost.low <= enough or (op.before is UNKNOWN) == (op.after is UNKNOWN):
        return
    if op.after is UNKNOWN:
        yield _made("gone", op, metric, (cost.median, UNKNOWN), (0.0, 0.0, 0.0))
    else:
        yield _made("new", op, metric, (UNKNOWN, cost.median), (0.0, 0.0, 0.0))


def _made(
    kind: Kind, op: Measured, metric: str, medians: tuple[Integer, Integer], ratios: tuple[float, float, float]
) -> Finding:
    middle, low, high = (round(each, 4) for each in ratios)
    return Finding(
        kind=kind,
        before=op.before,
        after=op.after,
        name=op.name,
        line=op.line,
        metric=metric,
        median_before=medians[0],
        median_after=medians[1],
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
    )


def beyond(found: Sequence[Finding], percent: float) -> list[Finding]:
    """Those that cost more than before by more than so much, at the near end of their interval, and new ones."""
    return [
        each for each in found if each.kind == "new" or (each.kind == "slower" and each.ratio_low > 1 + percent / 100)
    ]
