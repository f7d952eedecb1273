"""What changed in a fleet, and since when: steps in the costs of ops over nights, by CPU model.

The interface for those who have the runs: `Observations.of(op=…, host=…, cpu_model=…, night=…, run=…, cost_ns=…)` takes
columns of equal length; `changes(observations)` names what became slower or faster, in which night, on which CPU model.
Beside it stand `hosts.outliers(observations)` (hosts unlike others of their CPU model) and `nightlies.compared(before,
after)` (two sets of runs). Keys are numbers, as given; `EVERY` stands for all ops, all CPU models, all hosts.

How it is done: logarithms of costs lose what all ops of a run have in common (`series`), are cleaned of outliers
(`cleaning`), and are searched for steps one by one, beside those that were found, as long as chance does not explain
the next one (`changepoints`). Chances are corrected by Holm's method for the series that were looked at, so that of a
hundred stores in which nothing changed one has a finding. The night is told by all single costs (`locating`), and a
step that all CPU models share is named once (`merging`). The same inputs give the same findings: nothing is drawn at
random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from tracemap.store.changepoints import Located, Step, fit
from tracemap.store.findings import Change, Trends, merged
from tracemap.store.p_values import holm
from tracemap.store.series import EVERY, Observations, Table, median_of, panels, tabled
from tracemap.store.step_detection import Steps, Stretch, first_steps, steps_of
from tracemap.units import UNKNOWN, Unknown

LEAST_RATIO: Final = 1.02
"""Changes by less are not worth naming."""
LEVEL: Final = 0.01
"""What chance makes more often, corrected for the number of series, is not named."""

__all__ = ["EVERY", "Change", "Observations", "Trends", "changes"]


def changes(observations: Observations, least_ratio: float = LEAST_RATIO, level: float = LEVEL) -> Trends:
    """What became slower or faster.

    Args:
        observations: what ops cost in runs.
        least_ratio: changes by less, either way, are not named.
        level: how often, at most, anything may be named where nothing changed.
    """
    table = tabled(observations)
    named, series = _found(table, least_ratio, level)
    # What an op does by itself also moved what ops have in common, by a little: those that changed are no longer asked.
    apart = {change.op for change in named} - {EVERY}
    if apart and 2 * len(apart) < len(table.ops):
        named, series = _found(tabled(observations, apart), least_ratio, level)
    return Trends(
        changes=tuple(sorted(named, key=lambda each: (each.chance, each.op, each.cpu_model, each.night))),
        series=series,
        ops=len(table.ops),
        cpu_models=len(np.unique(table.models)),
        hosts=len(table.hosts),
        nights=len(np.unique(table.night)),
    )


def _found(table: Table, least_ratio: float, level: float) -> tuple[list[Change], int]:
    """The changes, and in how many series they were looked for."""
    firsts = [first for panel in panels(table) for first in first_steps(panel)]
    corrected = holm([first.chance for first in firsts])
    named = [
        change
        for first, chance in zip(firsts, corrected, strict=True)
        if chance < level
        for change in _named(steps_of(first.stretch, first.place, chance, len(firsts), level), math.log(least_ratio))
    ]
    return merged(named, [first.stretch for first in firsts]), len(firsts)


def _named(steps: Steps, least: float) -> Iterator[Change]:
    for number, step in enumerate(steps.fit.steps):
        if abs(step.size) >= least:
            yield _change(steps, number, step, steps.located[number])


def _change(steps: Steps, number: int, step: Step, spot: Located) -> Change:
    stretch = steps.stretch
    places = [each.place for each in steps.located]
    there, agree, own = stretch.agreeing(stretch.window(spot.place, places, steps.fit.walk), step.size)
    host = EVERY
    if len(there) > 1 and 2 * int(np.sum(agree)) <= len(there):
        # Most hosts do not show it: one of them that changed much has moved them all.
        row = int(there[int(np.argmax(own * np.sign(step.size)))])
        host, stretch = int(stretch.hosts[row]), stretch.alone(row)
        step = fit(stretch.design, stretch.series, stretch.rarities, places).steps[number]
    low = max((place for place in places if place < spot.place), default=0)
    high = min((place for place in places if place > spot.place), default=len(stretch.nights))
    before = _level(stretch, low, spot.place)
    return Change(
        kind="slower" if step.size > 0 else "faster",
        op=stretch.op,
        cpu_model=stretch.cpu_model,
        host=host,
        night=int(stretch.nights[spot.place]),
        night_low=int(stretch.nights[spot.first]),
        night_high=int(stretch.nights[spot.last]),
        ratio=math.exp(step.size),
        ratio_low=math.exp(step.low),
        ratio_high=math.exp(step.high),
        before_ns=before,
        after_ns=UNKNOWN if isinstance(before, Unknown) else before * math.exp(step.size),
        hosts=len(there),
        hosts_agree=int(np.sum(agree)),
        nights_before=spot.place - low,
        nights_after=high - spot.place,
        chance=steps.chances[number],
    )


def _level(stretch: Stretch, low: int, high: int) -> float | Unknown:
    """What an ordinary host needed in these nights; unknown for what all ops have in common."""
    if stretch.op == EVERY:
        return UNKNOWN
    return math.exp(float(median_of(median_of(stretch.cells[:, low:high]))))
