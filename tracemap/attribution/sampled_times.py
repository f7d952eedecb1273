"""The error of times that are parts of samples, as those of native code are.

The number of samples in an op is binomial: of N samples, n are in it. Its time is that part of the measured time, so
its relative standard error is the square root of (1 - n / N) / n. If an op has no sample, 3 of N is the 95 % bound of
its part (Hanley and Lippman-Hand, JAMA 249, 1983, p. 1743).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import structs

from tracemap.attribution.model import OpCost, OpResult, PerInvocation
from tracemap.core.units import Integer
from tracemap.runs.model import NATIVE_DEVICE, SAMPLES, TIME_METRICS, RunHeader

_NORMAL: Final = 1.96
"""Half width of the 95 % interval in standard errors."""
_BOUND_OF_NONE: Final = 3


def with_sampling_error(ops: Sequence[OpResult], header: RunHeader, samples: int) -> tuple[OpResult, ...]:
    """Widen likely ranges and intervals of medians by the error of the samples, if times are parts of samples.

    Args:
        ops: the costs of ops.
        header: the header of the runs.
        samples: number of samples of the runs, also those that belong to no op.
    """
    if header.device != NATIVE_DEVICE or not samples:
        return tuple(ops)
    wholes = {name: sum(op.metrics[name].attributed for op in ops if name in op.metrics) for name in TIME_METRICS}
    return tuple(_widened_op(op, samples, wholes) for op in ops)


def _widened_op(op: OpResult, samples: int, wholes: dict[str, int]) -> OpResult:
    own = op.metrics[SAMPLES].attributed if SAMPLES in op.metrics else 0
    error = _NORMAL * math.sqrt((1 - own / samples) / own) if own else 0.0
    costs = {
        name: _widened(cost, error, 0 if own else _BOUND_OF_NONE * wholes[name] // samples)
        if name in TIME_METRICS
        else cost
        for name, cost in op.metrics.items()
    }
    return structs.replace(op, metrics=costs)


def _widened(cost: OpCost, error: float, bound_of_none: int) -> OpCost:
    """A cost with a relative error, or if it has no sample, an upper bound."""
    half = cost.attributed * error
    below = math.hypot(half, _distance(cost.attributed, cost.likely_low))
    above = math.hypot(half, _distance(cost.attributed, cost.likely_high)) + bound_of_none
    low, high = max(0, math.floor(cost.attributed - below)), math.ceil(cost.attributed + above)
    return structs.replace(
        cost,
        likely_low=low,
        likely_high=high,
        uncertain=cost.uncertain or (high > low and 2 * (high - low) >= cost.attributed),
        per_invocation=_widened_median(cost.per_invocation, error),
    )


def _distance(value: int, bound: Integer) -> int:
    return abs(value - bound) if isinstance(bound, int) else 0


def _widened_median(own: PerInvocation, error: float) -> PerInvocation:
    if not (isinstance(own.median, int) and isinstance(own.median_low, int) and isinstance(own.median_high, int)):
        return own
    half = own.median * error
    return structs.replace(
        own,
        median_low=max(0, math.floor(own.median - math.hypot(half, own.median - own.median_low))),
        median_high=math.ceil(own.median + math.hypot(half, own.median_high - own.median)),
    )
