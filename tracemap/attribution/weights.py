"""Weights that split a site's cost over its ops: whole numbers, their uncertainty, and the weights of each rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import assert_never

import msgspec

from tracemap.core.units import UNKNOWN, Integer, split_by_largest_remainder
from tracemap.map.model import Site
from tracemap.options.results import Rule
from tracemap.runs.model import Peaks

_Z = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


class Weights(msgspec.Struct, frozen=True):
    """Weights of the ops in a dispatch site, in the order of `Site.members`, then the weight of the unattributed part.

    `seen`: the number of samples or counts that the weights come from; `sampled`: they come from samples, which are
    subject to chance; `assumed`: they were computed with assumed sizes; `equal`: the ops' costs are unknown, so all
    weights are equal. `factor`: the weights are estimates, and an op's cost may be off by this factor; 1 if they are
    not. `bounds`: the smallest and the largest estimate of each weight if data decides how often code runs; else empty.
    """

    values: tuple[int, ...]
    seen: int = 0
    sampled: bool = False
    assumed: bool = False
    equal: bool = False
    factor: float = 1.0
    bounds: tuple[tuple[int, int], ...] = ()

    def split(self, total: int) -> list[int]:
        """Split a total over the ops and the unattributed part, exactly; evenly over the ops if all weights are 0."""
        if not any(self.values):
            return [*split_by_largest_remainder(total, self.values[:-1]), 0]
        return split_by_largest_remainder(total, self.values)

    @property
    def effective(self) -> tuple[int, ...]:
        """The weights that `split` uses: equal ones for the ops if all are 0."""
        return self.values if any(self.values) else (*[1] * (len(self.values) - 1), 0)

    @property
    def are_uncertain(self) -> bool:
        """Whether parts of a total have intervals: weights from samples and estimates do."""
        return self.sampled or self.factor > 1

    def intervals(self, total: int) -> list[tuple[int, int]]:
        """Intervals of the parts of a total: 95 % intervals for samples, ranges of error for estimates."""
        bounds = [wilson(value, self.seen) for value in self.values] if self.sampled else self._estimated()
        return [
            (min(part, math.floor(total * low)), max(part, math.ceil(total * high)))
            for part, (low, high) in zip(self.split(total), bounds, strict=True)
        ]

    def _estimated(self) -> list[tuple[float, float]]:
        """The smallest and largest fraction of each part: the others are at their largest, or smallest, then."""
        bounds = self.bounds or [(value, value) for value in self.values]
        least, most = (sum(bound[index] for bound in bounds) for index in (0, 1))
        return [
            (_part(low, most - high, 1 / self.factor), _part(high, least - low, self.factor)) for low, high in bounds
        ]


@lru_cache(maxsize=1024)  # the layers of a model have equal weights
def weights_by_name(values: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[Mapping[str, Fraction], ...]:
    """The exact fraction of each op, by metric name; `values` has the weights by metric name."""
    sums = {name: sum(weights) for name, weights in values}
    indices = range(max((len(weights) for _, weights in values), default=0))
    return tuple({name: Fraction(weights[index], sums[name]) for name, weights in values} for index in indices)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson, JASA 22, 1927), within 0 and 1."""
    share, square = successes / trials, _Z * _Z / trials
    middle = share + square / 2
    half = _Z * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    low = (middle - half) / (1 + square) if successes else 0.0
    return low, (middle + half) / (1 + square) if successes < trials else 1.0


def _part(value: int, rest: int, factor: float) -> float:
    """The fraction of a value in a whole after the value, but not the rest, is multiplied by `factor`.

    >>> _part(1, 1, 3.0), _part(1, 1, 1 / 3)
    (0.75, 0.25)
    """
    return factor * value / (factor * value + rest) if value else 0.0


def best_peaks(candidates: Sequence[Peaks]) -> Peaks:
    """The best peaks of several runs of one machine, because other programs only make a measurement worse.

    Peaks that a GPU's driver states take precedence over measured ones, and these over assumed ones. The result does
    not depend on the order of the runs, which must not be empty.
    """
    by_source = ([peaks for peaks in candidates if peaks.source == source] for source in ("specified", "measured"))
    used = next(filter(None, by_source), candidates)
    operations = max(peaks.operations_per_second for peaks in used)
    caches = max((peaks.caches for peaks in used), key=lambda levels: [cache.bytes_per_second for cache in levels])
    units = max((peaks.units for peaks in used), key=lambda own: [unit.operations_per_second for unit in own])
    return Peaks(operations, max(peaks.bytes_per_second for peaks in used), used[0].source, caches, units)


def weights(rule: Rule, site: Site, peaks: Peaks) -> Weights:
    """The weights of a site's ops by a rule; the site must have ops."""
    match rule:
        case Rule.ROOT:
            return Weights((*(int(member.root) for member in site.members), 0))
        case Rule.EQUAL:
            return Weights((*[1] * len(site.members), 0))
        case Rule.MODEL | Rule.CODE | Rule.MEASURED:  # the last two fall back to the model without machine code or data
            return _roofline(site, peaks)
        case _:
            assert_never(rule)


def _roofline(site: Site, peaks: Peaks) -> Weights:
    """Roofline times (Williams, Waterman, Patterson 2009), all multiplied by both peaks to stay whole numbers."""
    known = [_roofline_time(member.operations, member.bytes, peaks) for member in site.members]
    assumed = [_roofline_time(member.assumed_operations, member.assumed_bytes, peaks) for member in site.members]
    # The only op of a site gets the whole site, whatever its cost.
    several = len(site.members) > 1
    for times in (known, assumed):
        known_times = [time for time in times if time is not UNKNOWN]
        if len(known_times) == len(times) and any(known_times):
            return Weights((*known_times, 0), assumed=several and times is assumed)
    return Weights((*[1] * len(site.members), 0), equal=several)


def _roofline_time(operations: Integer, traffic: Integer, peaks: Peaks) -> Integer:
    if operations is UNKNOWN or traffic is UNKNOWN:
        return UNKNOWN
    return max(operations * peaks.bytes_per_second, traffic * peaks.operations_per_second)
