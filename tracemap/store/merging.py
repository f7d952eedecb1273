"""What changed on all CPU models by the same, in the same night, is one finding.

Sizes are the same as long as Cochran's Q says so (Biometrics 10, 1954, p. 101: the squares of their differences, in
terms of their errors); a CPU model on which chance could explain the step alone is one of them where its own interval
of the step at this night lies on the same side of nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tracemap.store.chances import student_quantile
from tracemap.store.changepoints import COVERED, LEAST_NIGHTS, Step, fit
from tracemap.store.findings import Change
from tracemap.store.locating import located
from tracemap.store.series import EVERY
from tracemap.store.stretches import Stretch
from tracemap.units import UNKNOWN

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
