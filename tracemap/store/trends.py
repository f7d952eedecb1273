"""Trends: level shifts in the costs of ops over nights, by CPU model.

`Observations.of(op=…, host=…, cpu_model=…, night=…, run=…, cost_ns=…)` takes columns of equal length.
`changes(observations)` finds ops that became slower or faster, with the night and the CPU model. Related:
`hosts.outliers` finds hosts that differ from others of their CPU model; `set_comparison` compares two sets of runs.
Keys are numbers; `EVERY` stands for all ops, all CPU models or all hosts.

Method: remove from log costs the effect common to all ops of a run (`series`), and clip outliers (`step_detection`).
Add level shifts one by one while the next one is significant (`changepoints`). Holm's correction covers all series, so
at most one of a hundred unchanged stores has a finding. Unclipped costs locate the night. A shift that all CPU models
share is reported once (`findings`). Equal inputs give equal findings; nothing is random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from tracemap.store.changepoints import Step, StepLocation, fit
from tracemap.store.findings import Change, Trends, merge_cpu_models
from tracemap.store.p_values import holm
from tracemap.store.series import EVERY, Observations, Table, cost_table, median_of, panels
from tracemap.store.step_detection import OpSeries, Steps, find_steps, first_steps
from tracemap.units import UNKNOWN, Unknown

LEAST_RATIO: Final = 1.02
"""Smaller changes are not reported."""
LEVEL: Final = 0.01
"""Significance level, corrected for the number of series."""

__all__ = ["EVERY", "Change", "Observations", "Trends", "changes"]


def changes(observations: Observations, least_ratio: float = LEAST_RATIO, level: float = LEVEL) -> Trends:
    """Ops that became slower or faster.

    Args:
        observations: costs of ops in runs.
        least_ratio: smaller changes, in either direction, are not reported.
        level: significance level: probability of any finding if nothing changed.
    """
    table = cost_table(observations)
    shifts, series = _find_shifts(table, least_ratio, level)
    # A changed op also moved the common effect a little, so compute that again without the changed ops.
    changed_ops = {change.op for change in shifts} - {EVERY}
    if changed_ops and 2 * len(changed_ops) < len(table.ops):
        shifts, series = _find_shifts(cost_table(observations, changed_ops), least_ratio, level)
    return Trends(
        changes=tuple(sorted(shifts, key=lambda shift: (shift.chance, shift.op, shift.cpu_model, shift.night))),
        series=series,
        ops=len(table.ops),
        cpu_models=len(np.unique(table.models)),
        hosts=len(table.hosts),
        nights=len(np.unique(table.night)),
    )


def _find_shifts(table: Table, least_ratio: float, level: float) -> tuple[list[Change], int]:
    """The level shifts, and the number of series searched."""
    firsts = [first for panel in panels(table) for first in first_steps(panel)]
    corrected = holm([first.chance for first in firsts])
    shifts = [
        shift
        for first, chance in zip(firsts, corrected, strict=True)
        if chance < level
        for shift in _reported(find_steps(first.series, first.index, chance, len(firsts), level), math.log(least_ratio))
    ]
    return merge_cpu_models(shifts, [first.series for first in firsts]), len(firsts)


def _reported(steps: Steps, least: float) -> Iterator[Change]:
    for index, step in enumerate(steps.fit.steps):
        if abs(step.size) >= least:
            yield _change(steps, index, step, steps.locations[index])


def _change(steps: Steps, number: int, step: Step, location: StepLocation) -> Change:
    series = steps.series
    indexes = [step_location.index for step_location in steps.locations]
    present, agrees, own_sizes = series.agreeing(series.window(location.index, indexes, steps.fit.walk), step.size)
    host = EVERY
    if len(present) > 1 and 2 * int(np.sum(agrees)) <= len(present):
        # Most hosts do not show the shift: a single host with a large change has moved them all.
        row = int(present[int(np.argmax(own_sizes * np.sign(step.size)))])
        host, series = int(series.hosts[row]), series.of_host(row)
        step = fit(series.design, series.clipped, series.rarities, indexes).steps[number]
    low = max((index for index in indexes if index < location.index), default=0)
    high = min((index for index in indexes if index > location.index), default=len(series.nights))
    before = _level(series, low, location.index)
    return Change(
        kind="slower" if step.size > 0 else "faster",
        op=series.op,
        cpu_model=series.cpu_model,
        host=host,
        night=int(series.nights[location.index]),
        night_low=int(series.nights[location.first]),
        night_high=int(series.nights[location.last]),
        ratio=math.exp(step.size),
        ratio_low=math.exp(step.low),
        ratio_high=math.exp(step.high),
        before_ns=before,
        after_ns=UNKNOWN if isinstance(before, Unknown) else before * math.exp(step.size),
        hosts=len(present),
        hosts_agree=int(np.sum(agrees)),
        nights_before=location.index - low,
        nights_after=high - location.index,
        chance=steps.chances[number],
    )


def _level(series: OpSeries, low: int, high: int) -> float | Unknown:
    """Cost on an ordinary host in these nights; unknown for the effect common to all ops."""
    if series.op == EVERY:
        return UNKNOWN
    return math.exp(float(median_of(median_of(series.cells[:, low:high]))))
