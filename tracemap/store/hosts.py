"""Hosts that are unlike others of their CPU model: in all ops, or in one beyond what they are in all.

A host's level in an op is the median over its runs, and what is usual the median over the hosts of the CPU model. How
far hosts commonly lie from it is told by the median absolute deviation, over all CPU models together, as few of them
have enough hosts (the modified z-score of Iglewicz and Hoaglin, "How to detect and handle outliers", 1993, with their
limit of 3.5). That deviation is itself known by few hosts: it counts for 37 % of them (Rousseeuw and Croux,
"Alternatives to the median absolute deviation", JASA 88, 1993), and chances are those of Student's distribution,
corrected by Holm's method.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from tracemap.store.chances import MAD_TO_SIGMA, holm, normal_of_student, tail
from tracemap.store.findings import OutlierHost
from tracemap.store.moderation import moderated
from tracemap.store.series import EVERY, LEAST_SCALE, Floats, Integers, Observations, median_of, tabled

LEAST_Z: Final = 3.5
LEAST_RATIO: Final = 1.05
"""Hosts that differ by less are not worth a look."""
LEVEL: Final = 0.01
"""What chance makes more often, corrected, is not named."""
LEAST_HOSTS: Final = 3
"""Of two hosts neither is the odd one."""
_EFFICIENCY: Final = 0.37


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
    corrected = holm([chance for *_, chance in found])
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


def _scales(rows: Floats, units: dict[int, Integers]) -> tuple[Floats, Floats]:
    """How far hosts commonly lie from what is usual, by row, and with how many degrees of freedom that is known."""
    hosts = np.sort(np.concatenate([*units.values()]))
    counts = np.sum(~np.isnan(rows[:, hosts]), axis=1)
    # The hosts that are the medians of their CPU models lie nowhere from them.
    left = np.maximum(counts - len(units), 1)
    variances = (MAD_TO_SIGMA * median_of(np.abs(rows[:, hosts]))) ** 2 * counts / left
    degrees = np.where(counts > len(units), _EFFICIENCY * left, 0.0)
    ops = moderated(np.nan_to_num(variances[1:]), degrees[1:])
    squares = np.concatenate([variances[:1], ops.variances])
    return np.sqrt(np.maximum(squares, LEAST_SCALE**2)), np.maximum(np.concatenate([degrees[:1], ops.degrees]), 1.0)
