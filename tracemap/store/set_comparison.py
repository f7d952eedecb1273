"""Compare two sets of runs: ops that cost more or less in one of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracemap.store.findings import SetDifference, SetDifferences
from tracemap.store.p_values import holm, normal_of_student, student_quantile, tail
from tracemap.store.series import EVERY, Floats, Observations, Table, cost_table
from tracemap.store.variance_shrinkage import ShrunkVariances, shrink_variances
from tracemap.units import UNKNOWN

LEAST_RATIO: Final = 1.02
LEVEL: Final = 0.01
_COVERAGE: Final = 0.95


@dataclass(frozen=True, slots=True)
class _Pair:
    """An op on a CPU model: log ratio of costs, and the parts of its error. `row` is the table's row, or `EVERY`."""

    row: int
    cpu_model: int
    size: float
    information: float
    variance: float
    degrees: int
    before: float
    hosts: int
    runs: int


def compare_sets(
    before: Observations, after: Observations, least_ratio: float = LEAST_RATIO, level: float = LEVEL
) -> SetDifferences:
    """Ops that cost more or less in `after` than in `before`.

    Args:
        before: runs of one set.
        after: runs of the other set; the sets are disjoint.
        least_ratio: smaller changes, in either direction, are not reported.
        level: significance level: probability of any finding if nothing changed.
    """
    table = cost_table(before.concat(after))
    runs_before = np.unique(before.run[(before.cost_ns > 0) & np.isfinite(before.cost_ns)])
    later = ~np.isin(table.run, runs_before)
    pairs = [*_pairs(table, later)]
    moments = _shrunk(pairs)
    tests = [(pair, variance, degrees) for pair, (variance, degrees) in zip(pairs, moments, strict=True) if degrees > 0]
    chances = holm(
        [
            tail(normal_of_student(pair.size * math.sqrt(pair.information / variance), degrees))
            for pair, variance, degrees in tests
        ]
    )
    findings = [
        _difference(table, pair, math.sqrt(variance / pair.information) * student_quantile(_COVERAGE, degrees), chance)
        for (pair, variance, degrees), chance in zip(tests, chances, strict=True)
        if chance < level and abs(pair.size) >= math.log(least_ratio)
    ]
    findings.sort(key=lambda finding: (finding.chance, finding.op, finding.cpu_model))
    pairs_total = (len(table.ops) + 1) * len(np.unique(table.models))
    return SetDifferences(changes=tuple(findings), compared=len(tests), lonely=pairs_total - len(tests))


def _pairs(table: Table, later: npt.NDArray[np.bool_]) -> Iterator[_Pair]:
    own, models = table.own, table.models[table.host]
    for row in range(-1, len(table.ops)):
        values = table.common if row == EVERY else own[row]
        for model in np.unique(table.models):
            of_model = (models == model) & ~np.isnan(values)
            used = of_model & np.isin(table.host, _in_both_sets(table.host[of_model], later[of_model]))
            if np.any(used):
                yield _pair(row, int(model), values[used], table.host[used], later[used])


def _in_both_sets(hosts: npt.NDArray[np.int64], later: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    return np.intersect1d(hosts[later], hosts[~later])


def _pair(row: int, model: int, values: Floats, host: npt.NDArray[np.int64], later: npt.NDArray[np.bool_]) -> _Pair:
    """Fit a step per host, of the same size for all hosts: least squares on the set of each run."""
    _, index = np.unique(host, return_inverse=True)
    counts = np.bincount(index)
    residuals = values - (np.bincount(index, values) / counts)[index]
    sides = later - (np.bincount(index, later) / counts)[index]
    information = float(np.sum(sides**2))
    size = float(np.sum(sides * residuals) / information)
    degrees = len(values) - len(counts) - 1
    variance = float(np.sum((residuals - size * sides) ** 2)) / max(degrees, 1)
    level = float(np.median([np.median(values[(index == i) & ~later]) for i in range(len(counts))]))
    return _Pair(row, model, size, information, variance, degrees, level, len(counts), len(values))


def _shrunk(pairs: list[_Pair]) -> Iterator[tuple[float, float]]:
    """Variance and degrees of freedom of each pair. The part common to all ops is not shrunk with the ops'."""
    ops = [pair for pair in pairs if pair.row != EVERY]
    shrunk = shrink_variances(
        np.array([pair.variance for pair in ops]), np.array([float(pair.degrees) for pair in ops])
    )
    of_ops = iter(zip(shrunk.variances, shrunk.degrees, strict=True))
    common_pairs = [pair for pair in pairs if pair.row == EVERY]
    own = ShrunkVariances(
        np.array([pair.variance for pair in common_pairs]), np.array([float(pair.degrees) for pair in common_pairs])
    )
    of_common = iter(zip(np.maximum(own.variances, 1e-12), own.degrees, strict=True))
    for pair in pairs:
        variance, degrees = next(of_common if pair.row == EVERY else of_ops)
        yield float(variance), float(degrees)


def _difference(table: Table, pair: _Pair, width: float, chance: float) -> SetDifference:
    is_common = pair.row == EVERY
    return SetDifference(
        kind="slower" if pair.size > 0 else "faster",
        op=EVERY if is_common else int(table.ops[pair.row]),
        cpu_model=pair.cpu_model,
        ratio=math.exp(pair.size),
        ratio_low=math.exp(pair.size - width),
        ratio_high=math.exp(pair.size + width),
        before_ns=UNKNOWN if is_common else math.exp(pair.before),
        after_ns=UNKNOWN if is_common else math.exp(pair.before + pair.size),
        hosts=pair.hosts,
        runs=pair.runs,
        chance=chance,
    )
