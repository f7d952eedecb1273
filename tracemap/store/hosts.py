"""Outlier hosts: hosts that differ from others of their CPU model, in all ops or in a single op.

A host's level in an op is the median over its runs. The usual level is the median over the hosts of the CPU model. The
scale is the median distance between two hosts of the same CPU model (Shamos, "Geometry and statistics", 1976; Bickel
and Lehmann, "Descriptive statistics for nonparametric models IV", 1979), which a few outlier hosts hardly move. It is
pooled over CPU models, since few of them have enough hosts. The z-score limit is that of Iglewicz and Hoaglin ("How to
detect and handle outliers", 1993).

The scale is itself estimated from few hosts. It has 60 % of their degrees of freedom: the lowest efficiency in
simulations of three to ten normal hosts per CPU model. P-values are those of Student's distribution, with Holm's
correction: one family for hosts in all ops and one for single ops, with half of the level each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tracemap.store.findings import OutlierHost
from tracemap.store.p_values import holm, normal_of_student, tail
from tracemap.store.series import EVERY, LEAST_SCALE, Floats, Integers, Observations, cost_table, median_of
from tracemap.store.variance_shrinkage import shrink_variances

LEAST_Z: Final = 3.5
LEAST_RATIO: Final = 1.05
"""Smaller differences are not reported."""
LEVEL: Final = 0.01
"""Significance level for corrected p-values."""
LEAST_HOSTS: Final = 3
"""Of two hosts, neither can be called the outlier."""
_EFFICIENCY: Final = 0.6
_DISTANCE_TO_SIGMA: Final = 1.0483
"""Standard deviation over median distance of two normal values: 1 / (normal third quartile * sqrt(2))."""
_MOST_NEIGHBOURS: Final = 32
"""Each host is compared with this many others at most: more add little precision, and take long for many hosts."""


def outliers(observations: Observations, least_ratio: float = LEAST_RATIO, level: float = LEVEL) -> list[OutlierHost]:
    """The outlier hosts, the most significant first. Empty if too few hosts share a CPU model."""
    table = cost_table(observations)
    of_model = {int(model): np.flatnonzero(table.models == model) for model in np.unique(table.models)}
    units = {model: hosts for model, hosts in of_model.items() if len(hosts) >= LEAST_HOSTS}
    degrees = _EFFICIENCY * sum(len(hosts) - 1 for hosts in units.values())
    if degrees < 1:
        return []
    own = table.own
    levels = np.stack([median_of(own[:, table.host == unit]) for unit in range(len(table.hosts))], axis=1)
    deviations = np.full_like(levels, np.nan)
    for hosts in units.values():
        deviations[:, hosts] = levels[:, hosts] - median_of(levels[:, hosts])[:, None]
    overall = median_of(deviations, 0)
    rows = np.concatenate([overall[None], deviations - overall])
    scales, row_degrees = _scales(rows, units)
    tests = []
    for row, unit in np.argwhere(~np.isnan(rows)):
        z = float(rows[row, unit] / scales[row])
        tests.append((int(row), int(unit), z, tail(normal_of_student(z, float(row_degrees[row])))))
    corrected = _corrected([row == 0 for row, *_ in tests], [chance for *_, chance in tests])
    significant = [
        OutlierHost(
            host=int(table.hosts[unit]),
            cpu_model=int(table.models[unit]),
            op=EVERY if row == 0 else int(table.ops[row - 1]),
            ratio=math.exp(rows[row, unit]),
            z=z,
            chance=chance,
            hosts=len(units[int(table.models[unit])]),
        )
        for (row, unit, z, _), chance in zip(tests, corrected, strict=True)
        if chance < level and abs(z) >= LEAST_Z and abs(rows[row, unit]) >= math.log(least_ratio)
    ]
    return sorted(significant, key=lambda outlier: (outlier.chance, -abs(outlier.z), outlier.host, outlier.op))


def _corrected(overall: Sequence[bool], chances: Sequence[float]) -> list[float]:
    """P-values corrected in two families: hosts in all ops, and single ops.

    In one family, a host's difference in all ops would have to be significant among thousands of single ops.
    """
    families = {
        family: iter(
            holm([chance for is_overall, chance in zip(overall, chances, strict=True) if is_overall == family])
        )
        for family in (True, False)
    }
    return [min(1.0, 2 * next(families[is_overall])) for is_overall in overall]


def _scales(rows: Floats, units: dict[int, Integers]) -> tuple[Floats, Floats]:
    """Standard deviation between hosts, by row, and its degrees of freedom."""
    first, second = np.concatenate([_pairs(hosts) for hosts in units.values()], axis=1)
    distances = np.array([median_of(np.abs(row[first] - row[second])) for row in rows])
    counts = np.sum(~np.isnan(rows[:, np.concatenate([*units.values()])]), axis=1)
    remaining = np.where(np.isnan(distances), 0, np.maximum(counts - len(units), 0))
    variances = np.nan_to_num(_DISTANCE_TO_SIGMA * distances) ** 2
    degrees = _EFFICIENCY * remaining
    ops = shrink_variances(variances[1:], degrees[1:])
    squares = np.concatenate([variances[:1], ops.variances])
    return np.sqrt(np.maximum(squares, LEAST_SCALE**2)), np.maximum(np.concatenate([degrees[:1], ops.degrees]), 1.0)


def _pairs(hosts: Integers) -> Integers:
    """Two rows: hosts, and the hosts to compare them with. Few hosts are compared all with all."""
    steps = range(1, min(len(hosts) // 2, _MOST_NEIGHBOURS) + 1)
    return np.concatenate([np.stack([hosts, np.roll(hosts, -step)]) for step in steps], axis=1)
