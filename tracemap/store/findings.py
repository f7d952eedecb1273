"""Findings of trends and comparisons, and their merging over CPU models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from tracemap.store.changepoints import COVERAGE, LEAST_NIGHTS, Step, fit, locate_step
from tracemap.store.p_values import student_quantile
from tracemap.store.series import EVERY
from tracemap.store.step_detection import OpSeries
from tracemap.units import UNKNOWN, Unknown

# ---- findings
#
# Frozen records of numbers. Keys are those of the observations; `EVERY` stands for all.


Kind = Literal["slower", "faster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A level shift: an op became slower or faster on a CPU model.

    `op` is `EVERY` if all ops of the runs shifted together, so the machines changed, not the program. `cpu_model` is
    `EVERY` if all CPU models shifted by the same ratio. `host` is `EVERY`, or the only host of its CPU model that
    shifted.

    `night` is the first measured night at the new level; `night_low` and `night_high` are its 95 % interval.
    `ratio` is new over old cost. Its interval is a nominal 95 % one, which covers about 85 % (docs/accuracy.md).
    `before_ns` and `after_ns` are costs on an ordinary host, unknown if `op` is `EVERY`. `hosts` have data around the
    shift; `hosts_agree` of them show it on their own. `nights_before` and `nights_after` count nights up to the next
    shifts. `chance` is the p-value, corrected for the number of series.
    """

    kind: Kind
    op: int
    cpu_model: int
    host: int
    night: int
    night_low: int
    night_high: int
    ratio: float
    ratio_low: float
    ratio_high: float
    before_ns: float | Unknown
    after_ns: float | Unknown
    hosts: int
    hosts_agree: int
    nights_before: int
    nights_after: int
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trends:
    """Level shifts, the most significant first, and the size of the search."""

    changes: tuple[Change, ...]
    series: int
    ops: int
    cpu_models: int
    hosts: int
    nights: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierHost:
    """A host that differs from others of its CPU model: in all ops (`op` is `EVERY`), or in one op beyond that.

    `ratio`: its cost over the median of the others. `z`: the difference in robust standard deviations. `chance`:
    p-value, corrected for the number of hosts and ops. `hosts`: number of hosts with the CPU model.
    """

    host: int
    cpu_model: int
    op: int
    ratio: float
    z: float
    chance: float
    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDifference:
    """An op costs more or less in one set of runs than in another, on a CPU model; `op` is `EVERY` for all together.

    `ratio` has a 95 % interval. `hosts`: hosts in both sets; `runs`: their runs. `chance`: p-value, corrected for the
    number of ops and CPU models.
    """

    kind: Kind
    op: int
    cpu_model: int
    ratio: float
    ratio_low: float
    ratio_high: float
    before_ns: float | Unknown
    after_ns: float | Unknown
    hosts: int
    runs: int
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDifferences:
    """Differences between two sets of runs, the most significant first.

    `compared`: pairs of op and CPU model with hosts in both sets; `lonely`: pairs without.
    """

    changes: tuple[SetDifference, ...]
    compared: int
    lonely: int


# ---- merging
#
# Merge level shifts of the same size and night on all CPU models into one finding.
#
# Sizes are the same if Cochran's Q says so (Biometrics 10, 1954, p. 101: squared differences in units of their errors).
# A CPU model without a significant shift counts, too, if its interval for a step at this night excludes 0 with the same
# sign.


_MAX_HETEROGENEITY: Final = 3.1
"""Limit of Q as a normal deviate: chance exceeds it in one of a thousand cases."""


def merge_cpu_models(shifts: Sequence[Change], all_series: Sequence[OpSeries]) -> list[Change]:
    """Merge findings that affect all CPU models."""
    by_op: dict[int, list[Change]] = {}
    for change in shifts:
        by_op.setdefault(change.op, []).append(change)
    result: list[Change] = []
    for op, op_shifts in by_op.items():
        for group in _overlapping_groups(op_shifts):
            merged_shift = _merge_group(group, [series for series in all_series if series.op == op])
            result += group if merged_shift is None else [merged_shift]
    return result


def _overlapping_groups(shifts: Sequence[Change]) -> Iterator[list[Change]]:
    """Groups of an op's findings whose nights overlap, in the same direction."""
    ordered = sorted(shifts, key=lambda shift: (shift.kind, shift.host != EVERY, shift.night_low, shift.night))
    while ordered:
        group = [ordered.pop(0)]
        while ordered and _overlaps(group, ordered[0]):
            group.append(ordered.pop(0))
        yield group


def _overlaps(group: Sequence[Change], other: Change) -> bool:
    first = group[0]
    return (
        (first.kind, first.host, other.host) == (other.kind, EVERY, EVERY)
        and other.cpu_model not in {shift.cpu_model for shift in group}
        and other.night_low <= max(shift.night_high for shift in group)
    )


def _merge_group(group: Sequence[Change], all_series: Sequence[OpSeries]) -> Change | None:
    """Merge findings if they affect all CPU models with data before and after; None: some CPU models differ."""
    if len(group) < 2:
        return None
    night = max(group, key=lambda shift: shift.hosts).night
    active = [series for series in all_series if series.index_of(night) in series.design.allowed()]
    models = {shift.cpu_model for shift in group}
    if not models <= {series.cpu_model for series in active}:
        return None
    steps = [
        fit(series.design, series.clipped, series.rarities, [series.index_of(night)]).steps[0] for series in active
    ]
    sign = 1 if group[0].kind == "slower" else -1
    if any(min(sign * step.low, sign * step.high) <= 0 for step in steps) or not _have_same_size(steps):
        return None
    return _merged_change(group, active, steps, night)


def _standard_errors(steps: Sequence[Step]) -> list[float]:
    width = student_quantile(COVERAGE, math.inf)
    return [(step.high - step.low) / 2 / width for step in steps]


def _weighted_mean(steps: Sequence[Step]) -> tuple[float, float]:
    """Mean of step sizes, weighted by precision, and its standard error."""
    weights = [error**-2 for error in _standard_errors(steps)]
    return sum(weight * step.size for weight, step in zip(weights, steps, strict=True)) / sum(weights), sum(
        weights
    ) ** -0.5


def _have_same_size(steps: Sequence[Step]) -> bool:
    mean, _ = _weighted_mean(steps)
    q = sum(((step.size - mean) / error) ** 2 for step, error in zip(steps, _standard_errors(steps), strict=True))
    degrees = max(len(steps) - 1, 1)
    # Wilson and Hilferty's normal approximation of chi squared.
    return (math.cbrt(q / degrees) - 1 + 2 / (9 * degrees)) / math.sqrt(2 / (9 * degrees)) < _MAX_HETEROGENEITY


def _merged_change(
    group: Sequence[Change], all_series: Sequence[OpSeries], steps: Sequence[Step], night: int
) -> Change:
    size, error = _weighted_mean(steps)
    width = error * student_quantile(COVERAGE, math.inf)
    nights = np.unique(np.concatenate([series.nights for series in all_series]))
    residuals = np.full((sum(len(series.hosts) for series in all_series), len(nights)), np.nan)
    row = 0
    for series in all_series:
        residuals[row : row + len(series.hosts), np.searchsorted(nights, series.nights)] = series.residuals
        row += len(series.hosts)
    index = int(np.searchsorted(nights, night))
    reach = max(LEAST_NIGHTS, min(max(shift.nights_before, shift.nights_after) for shift in group))
    window = replace(all_series[0].window(0, [], 0.0), low=max(0, index - reach), guess=index, high=index + reach)
    location = locate_step(
        residuals, np.concatenate([series.scales for series in all_series]), window, 0.0, np.arange(len(nights))
    )
    before = [shift.before_ns for shift in group]
    known = [value for value in before if value is not UNKNOWN]
    return replace(
        max(group, key=lambda shift: shift.hosts),
        cpu_model=EVERY,
        night=int(nights[location.index]),
        night_low=int(nights[location.first]),
        night_high=int(nights[location.last]),
        ratio=math.exp(size),
        ratio_low=math.exp(size - width),
        ratio_high=math.exp(size + width),
        hosts=sum(shift.hosts for shift in group),
        hosts_agree=sum(shift.hosts_agree for shift in group),
        chance=min(shift.chance for shift in group),
        before_ns=float(np.median(known)) if known else UNKNOWN,
        after_ns=float(np.median(known)) * math.exp(size) if known else UNKNOWN,
    )
