"""Sets of runs compared: ops that cost more or less in one of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracemap.store.findings import NightChange, Nights
from tracemap.store.p_values import holm, normal_of_student, student_quantile, tail
from tracemap.store.series import EVERY, Floats, Observations, Table, tabled
from tracemap.store.variance_shrinkage import Moderated, moderated
from tracemap.units import UNKNOWN

LEAST_RATIO: Final = 1.02
LEVEL: Final = 0.01
_COVERED: Final = 0.95


@dataclass(frozen=True, slots=True)
class _Pair:
    """An op on a CPU model: the log of the ratio, and what its error is made of; `row` is the table's, or `EVERY`."""

    row: int
    cpu_model: int
    size: float
    information: float
    variance: float
    degrees: int
    before: float
    hosts: int
    runs: int


def compared(
    before: Observations, after: Observations, least_ratio: float = LEAST_RATIO, level: float = LEVEL
) -> Nights:
    """What costs more or less after than before.

    Args:
        before: runs of one set.
        after: runs of the other; no run is in both.
        least_ratio: changes by less, either way, are not named.
        level: how often, at most, anything may be named where nothing changed.
    """
    table = tabled(before.beside(after))
    runs_before = np.unique(before.run[(before.cost_ns > 0) & np.isfinite(before.cost_ns)])
    later = ~np.isin(table.run, runs_before)
    pairs = [*_pairs(table, later)]
    told = _moderated(pairs)
    tests = [(pair, variance, degrees) for pair, (variance, degrees) in zip(pairs, told, strict=True) if degrees > 0]
    chances = holm(
        [
            tail(normal_of_student(pair.size * math.sqrt(pair.information / variance), degrees))
            for pair, variance, degrees in tests
        ]
    )
    named = [
        _named(table, pair, math.sqrt(variance / pair.information) * student_quantile(_COVERED, degrees), chance)
        for (pair, variance, degrees), chance in zip(tests, chances, strict=True)
        if chance < level and abs(pair.size) >= math.log(least_ratio)
    ]
    named.sort(key=lambda each: (each.chance, each.op, each.cpu_model))
    there = (len(table.ops) + 1) * len(np.unique(table.models))
    return Nights(changes=tuple(named), compared=len(tests), lonely=there - len(tests))


def _pairs(table: Table, later: npt.NDArray[np.bool_]) -> Iterator[_Pair]:
    own, models = table.own, table.models[table.host]
    for row in range(-1, len(table.ops)):
        values = table.common if row == EVERY else own[row]
        for model in np.unique(table.models):
            chosen = (models == model) & ~np.isnan(values)
            kept = chosen & np.isin(table.host, _on_both(table.host[chosen], later[chosen]))
            if np.any(kept):
                yield _pair(row, int(model), values[kept], table.host[kept], later[kept])


def _on_both(hosts: npt.NDArray[np.int64], later: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    return np.intersect1d(hosts[later], hosts[~later])


def _pair(row: int, model: int, values: Floats, host: npt.NDArray[np.int64], later: npt.NDArray[np.bool_]) -> _Pair:
    """A line through the runs of each host, of one slope for all: its rise from before to after."""
    _, number = np.unique(host, return_inverse=True)
    counts = np.bincount(number)
    rests = values - (np.bincount(number, values) / counts)[number]
    sides = later - (np.bincount(number, later) / counts)[number]
    information = float(np.sum(sides**2))
    size = float(np.sum(sides * rests) / information)
    degrees = len(values) - len(counts) - 1
    variance = float(np.sum((rests - size * sides) ** 2)) / max(degrees, 1)
    level = float(np.median([np.median(values[(number == each) & ~later]) for each in range(len(counts))]))
    return _Pair(row, model, size, information, variance, degrees, level, len(counts), len(values))


def _moderated(pairs: list[_Pair]) -> Iterator[tuple[float, float]]:
    """The variance of each pair, and its degrees of freedom; what all ops have in common varies by its own."""
    ops = [pair for pair in pairs if pair.row != EVERY]
    told = moderated(np.array([pair.variance for pair in ops]), np.array([float(pair.degrees) for pair in ops]))
    of_ops = iter(zip(told.variances, told.degrees, strict=True))
    commons = [pair for pair in pairs if pair.row == EVERY]
    own = Moderated(np.array([pair.variance for pair in commons]), np.array([float(pair.degrees) for pair in commons]))
    of_commons = iter(zip(np.maximum(own.variances, 1e-12), own.degrees, strict=True))
    for pair in pairs:
        variance, degrees = next(of_commons if pair.row == EVERY else of_ops)
        yield float(variance), float(degrees)


def _named(table: Table, pair: _Pair, width: float, chance: float) -> NightChange:
    every = pair.row == EVERY
    return NightChange(
        kind="slower" if pair.size > 0 else "faster",
        op=EVERY if every else int(table.ops[pair.row]),
        cpu_model=pair.cpu_model,
        ratio=math.exp(pair.size),
        ratio_low=math.exp(pair.size - width),
        ratio_high=math.exp(pair.size + width),
        before_ns=UNKNOWN if every else math.exp(pair.before),
        after_ns=UNKNOWN if every else math.exp(pair.before + pair.size),
        hosts=pair.hosts,
        runs=pair.runs,
        chance=chance,
    )
