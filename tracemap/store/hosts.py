"""Hosts that are unlike others of their CPU model: in all ops, or in one beyond what they are in all.

A host's level in an op is the median over its runs, and what is usual the median over the hosts of the CPU model. How
far hosts commonly lie from it is told by the median distance of two hosts of the same CPU model, over all CPU models
together, as few of them have enough hosts (Shamos, "Geometry and statistics", 1976; Bickel and Lehmann, "Descriptive
statistics for nonparametric models IV", 1979): some hosts that are unlike others do not move it far. Its z-score has
the limit of Iglewicz and Hoaglin ("How to detect and handle outliers", 1993). That distance is itself known by few
hosts: it counts for 60 % of them, the least that was found for three to ten hosts of a CPU model by drawing from normal
distributions. Chances are those of Student's distribution, corrected by Holm's method: among what hosts are in all
ops and among what they are in one, with half of the level for either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tracemap.store.findings import OutlierHost
from tracemap.store.p_values import holm, normal_of_student, tail
from tracemap.store.series import EVERY, LEAST_SCALE, Floats, Integers, Observations, median_of, tabled
from tracemap.store.variance_shrinkage import moderated

LEAST_Z: Final = 3.5
LEAST_RATIO: Final = 1.05
"""Hosts that differ by less are not worth a look."""
LEVEL: Final = 0.01
"""What chance makes more often, corrected, is not named."""
LEAST_HOSTS: Final = 3
"""Of two hosts neither is the odd one."""
_EFFICIENCY: Final = 0.6
_DISTANCE_TO_SIGMA: Final = 1.0483
"""The standard deviation by the median distance of two values: one by the third quartile and the square root of two."""
_MOST_NEIGHBOURS: Final = 32
"""With so many others each host is compared at the most: more tell hardly more, and take long in a large fleet."""


def outliers(observations: Observations, least_ratio: float = LEAST_RATIO, level: float = LEVEL) -> list[OutlierHost]:
    """The hosts that are unlike others, the most unlike first; none where too few hosts share a CPU model."""
    table = tabled(observations)
    of_model = {int(model): np.flatnonzero(table.models == model) for model in np.unique(table.models)}
    units = {model: hosts for model, hosts in of_model.items() if len(hosts) >= LEAST_HOSTS}
    degrees = _EFFICIENCY * sum(len(hosts) - 1 for hosts in units.values())
    if degrees < 1:
        return []
    own = table.own
    levels = np.stack([median_of(own[:, table.host == unit]) for unit in range(len(table.hosts))], axis=1)
    apart = np.full_like(levels, np.nan)
    for hosts in units.values():
        apart[:, hosts] = levels[:, hosts] - median_of(levels[:, hosts])[:, None]
    overall = median_of(apart, 0)
    rows = np.concatenate([overall[None], apart - overall])
    scales, certain = _scales(rows, units)
    found = []
    for row, unit in np.argwhere(~np.isnan(rows)):
        z = float(rows[row, unit] / scales[row])
        found.append((int(row), int(unit), z, tail(normal_of_student(z, float(certain[row])))))
    corrected = _corrected([row == 0 for row, *_ in found], [chance for *_, chance in found])
    named = [
        OutlierHost(
            host=int(table.hosts[unit]),
            cpu_model=int(table.models[unit]),
            op=EVERY if row == 0 else int(table.ops[row - 1]),
            ratio=math.exp(rows[row, unit]),
            z=z,
            chance=chance,
            hosts=len(units[int(table.models[unit])]),
        )
        for (row, unit, z, _), chance in zip(found, corrected, strict=True)
        if chance < level and abs(z) >= LEAST_Z and abs(rows[row, unit]) >= math.log(least_ratio)
    ]
    return sorted(named, key=lambda each: (each.chance, -abs(each.z), each.host, each.op))


def _corrected(overall: Sequence[bool], chances: Sequence[float]) -> list[float]:
    """Chances of two families, those of hosts in all ops and those of single ops: what is rare in one of them stays so.

    In one family what a host is in all ops would have to be rare among thousands of ops.
    """
    families = {
        of: iter(holm([chance for each, chance in zip(overall, chances, strict=True) if each == of]))
        for of in (True, False)
    }
    return [min(1.0, 2 * next(families[each])) for each in overall]


def _scales(rows: Floats, units: dict[int, Integers]) -> tuple[Floats, Floats]:
    """How far hosts commonly lie from what is usual, by row, and with how many degrees of freedom that is known."""
    one, other = np.concatenate([_pairs(hosts) for hosts in units.values()], axis=1)
    distances = np.array([median_of(np.abs(row[one] - row[other])) for row in rows])
    counts = np.sum(~np.isnan(rows[:, np.concatenate([*units.values()])]), axis=1)
    left = np.where(np.isnan(distances), 0, np.maximum(counts - len(units), 0))
    variances = np.nan_to_num(_DISTANCE_TO_SIGMA * distances) ** 2
    degrees = _EFFICIENCY * left
    ops = moderated(variances[1:], degrees[1:])
    squares = np.concatenate([variances[:1], ops.variances])
    return np.sqrt(np.maximum(squares, LEAST_SCALE**2)), np.maximum(np.concatenate([degrees[:1], ops.degrees]), 1.0)


def _pairs(hosts: Integers) -> Integers:
    """Two rows: hosts, and others with which they are compared; of few hosts each with each."""
    steps = range(1, min(len(hosts) // 2, _MOST_NEIGHBOURS) + 1)
    return np.concatenate([np.stack([hosts, np.roll(hosts, -step)]) for step in steps], axis=1)
