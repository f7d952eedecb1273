"""Findings of trends, merged over CPU models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from tracemap.store.changepoints import COVERED, LEAST_NIGHTS, Step, fit, located
from tracemap.store.p_values import student_quantile
from tracemap.store.series import EVERY
from tracemap.store.step_detection import Stretch
from tracemap.units import UNKNOWN, Unknown

# ---- findings
#
# What is said of a fleet: frozen records of numbers. Keys are those of the observations; `EVERY`: all of them.


Kind = Literal["slower", "faster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An op became slower or faster, on a CPU model, at a night.

    `op` is `EVERY` where all ops of the runs did together: the machines changed, not the program. `cpu_model` is
    `EVERY` where all CPU models did by the same; `host` is `EVERY`, or the one whose change it is: others of its CPU
    model do not share it.

    `night` is the first one with the new level that was measured, `night_low` and `night_high` hold it with 95 %.
    `ratio` is the new cost by the old one, with an interval that is meant to hold it in 95 of 100 cases and holds it in
    about 85 (docs/accuracy.md); of an ordinary host `before_ns` became
    `after_ns` (unknown where `op` is `EVERY`). It rests on so many hosts, of which `hosts_agree` show it each by
    itself, and on so many nights before and after, up to other changes. `chance` is the p-value, corrected for the
    number of series.
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
    """The changes, the least likely by chance first; in how many series they were looked for."""

    changes: tuple[Change, ...]
    series: int
    ops: int
    cpu_models: int
    hosts: int
    nights: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierHost:
    """A host that is unlike others of its CPU model: overall (`op` is `EVERY`), or in an op beyond that.

    `ratio`: its cost by the median of the others; `z` by how many robust standard deviations that is beyond what
    is usual; `chance` is the p-value, corrected for the number of hosts and ops. `hosts`: how many there are.
    """

    host: int
    cpu_model: int
    op: int
    ratio: float
    z: float
    chance: float
    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NightChange:
    """An op costs more or less in one set of runs than in another, on a CPU model; `op` is `EVERY`: all together.

    `ratio` with its interval of 95 %; `hosts` that are in both sets; `runs` of theirs. `chance` is the p-value,
    corrected for the number of ops and CPU models.
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
class Nights:
    """What differs between two sets of runs, the least likely by chance first.

    `compared`: pairs of op and CPU model for which hosts are in both sets; `lonely`: those that none is for.
    """

    changes: tuple[NightChange, ...]
    compared: int
    lonely: int


# ---- merging
#
# What changed on all CPU models by the same, in the same night, is one finding.
#
# Sizes are the same as long as Cochran's Q says so (Biometrics 10, 1954, p. 101: the squares of their differences, in
# terms of their errors); a CPU model on which chance could explain the step alone is one of them where its own
# interval of the step at this night lies on the same side of nothing.


_MOST_APART: Final = 3.1
"""Normal deviates: sizes that chance makes as different in one of a thousand cases are still the same."""


def merged(found: Sequence[Change], stretches: Sequence[Stretch]) -> list[Change]:
    """The findings, those of all CPU models as one."""
    by_op: dict[int, list[Change]] = {}
    for change in found:
        by_op.setdefault(change.op, []).append(change)
    made: list[Change] = []
    for op, of_op in by_op.items():
        for together in _meeting(of_op):
            on_all = _on_all(together, [each for each in stretches if each.op == op])
            made += together if on_all is None else [on_all]
    return made


def _meeting(found: Sequence[Change]) -> Iterator[list[Change]]:
    """Findings of an op that may be of one night, in the same direction."""
    ordered = sorted(found, key=lambda each: (each.kind, each.host != EVERY, each.night_low, each.night))
    while ordered:
        meeting = [ordered.pop(0)]
        while ordered and _meet(meeting, ordered[0]):
            meeting.append(ordered.pop(0))
        yield meeting


def _meet(found: Sequence[Change], other: Change) -> bool:
    first = found[0]
    return (
        (first.kind, first.host, other.host) == (other.kind, EVERY, EVERY)
        and other.cpu_model not in {each.cpu_model for each in found}
        and other.night_low <= max(each.night_high for each in found)
    )


def _on_all(found: Sequence[Change], stretches: Sequence[Stretch]) -> Change | None:
    """One finding for all CPU models that were measured before and after; None: it is not of all of them."""
    if len(found) < 2:
        return None
    night = max(found, key=lambda each: each.hosts).night
    there = [each for each in stretches if each.place_of(night) in each.design.allowed()]
    named = {each.cpu_model for each in found}
    if not named <= {each.cpu_model for each in there}:
        return None
    steps = [fit(each.design, each.series, each.rarities, [each.place_of(night)]).steps[0] for each in there]
    sign = 1 if found[0].kind == "slower" else -1
    if any(min(sign * step.low, sign * step.high) <= 0 for step in steps) or not _same(steps):
        return None
    return _one(found, there, steps, night)


def _errors(steps: Sequence[Step]) -> list[float]:
    width = student_quantile(COVERED, math.inf)
    return [(step.high - step.low) / 2 / width for step in steps]


def _mean(steps: Sequence[Step]) -> tuple[float, float]:
    """Of sizes, each by how well it is known; and its standard error."""
    weights = [error**-2 for error in _errors(steps)]
    return sum(weight * step.size for weight, step in zip(weights, steps, strict=True)) / sum(weights), sum(
        weights
    ) ** -0.5


def _same(steps: Sequence[Step]) -> bool:
    mean, _ = _mean(steps)
    q = sum(((step.size - mean) / error) ** 2 for step, error in zip(steps, _errors(steps), strict=True))
    degrees = max(len(steps) - 1, 1)
    # Wilson and Hilferty's normal deviate of chi squared.
    return (math.cbrt(q / degrees) - 1 + 2 / (9 * degrees)) / math.sqrt(2 / (9 * degrees)) < _MOST_APART


def _one(found: Sequence[Change], stretches: Sequence[Stretch], steps: Sequence[Step], night: int) -> Change:
    size, error = _mean(steps)
    width = error * student_quantile(COVERED, math.inf)
    nights = np.unique(np.concatenate([each.nights for each in stretches]))
    rests = np.full((sum(len(each.hosts) for each in stretches), len(nights)), np.nan)
    row = 0
    for each in stretches:
        rests[row : row + len(each.hosts), np.searchsorted(nights, each.nights)] = each.rests
        row += len(each.hosts)
    place = int(np.searchsorted(nights, night))
    reach = max(LEAST_NIGHTS, min(max(each.nights_before, each.nights_after) for each in found))
    window = replace(stretches[0].window(0, [], 0.0), low=max(0, place - reach), guess=place, high=place + reach)
    spot = located(rests, np.concatenate([each.scales for each in stretches]), window, 0.0, np.arange(len(nights)))
    before = [each.before_ns for each in found]
    known = [value for value in before if value is not UNKNOWN]
    return replace(
        max(found, key=lambda each: each.hosts),
        cpu_model=EVERY,
        night=int(nights[spot.place]),
        night_low=int(nights[spot.first]),
        night_high=int(nights[spot.last]),
        ratio=math.exp(size),
        ratio_low=math.exp(size - width),
        ratio_high=math.exp(size + width),
        hosts=sum(each.hosts for each in found),
        hosts_agree=sum(each.hosts_agree for each in found),
        chance=min(each.chance for each in found),
        before_ns=float(np.median(known)) if known else UNKNOWN,
        after_ns=float(np.median(known)) * math.exp(size) if known else UNKNOWN,
    )
