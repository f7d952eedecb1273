"""How a site's cost is split over its members: weights in whole numbers, how sure they are, and those of each rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import assert_never

from tracemap.graph.model import Site
from tracemap.measurements.model import Peaks
from tracemap.options.results import Rule
from tracemap.units import UNKNOWN, Integer, split_by_largest_remainder

_Z = 1.959963984540054
"""Of the normal distribution, for 95 %."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a site's members, in member order, and of nobody after them.

    `seen`: how much was measured that they rest on; `sampled`: that is subject to chance; `assumed`: they are those of
    sizes that the program does not know before; `equal`: there was nothing to go by, so those of all members are the
    same. `factor`: they are estimates, and the cost of each member may be off by this factor; 1: they are not.
    `bounds`: the least and the most that the estimate of each may be, as data decides how often its code runs; none
    where it does not.
    """

    values: tuple[int, ...]
    seen: int = 0
    sampled: bool = False
    assumed: bool = False
    equal: bool = False
    factor: float = 1.0
    bounds: tuple[tuple[int, int], ...] = ()

    def split(self, total: int) -> list[int]:
        """A total split over members and nobody, exactly; without any weight evenly over members."""
        if not any(self.values):
            return [*split_by_largest_remainder(total, self.values[:-1]), 0]
        return split_by_largest_remainder(total, self.values)

    @property
    def deciding(self) -> tuple[int, ...]:
        """The weights that a total is split by: the same for all members where none has any."""
        return self.values if any(self.values) else (*[1] * (len(self.values) - 1), 0)

    @property
    def are_uncertain(self) -> bool:
        """Whether their parts of a total lie in intervals: samples are subject to chance, and estimates may be off."""
        return self.sampled or self.factor > 1

    def intervals(self, total: int) -> list[tuple[int, int]]:
        """The intervals of the parts of a total: those of 95 % where samples decide, else what estimates leave open."""
        bounds = [wilson(value, self.seen) for value in self.values] if self.sampled else self._estimated()
        return [
            (min(part, math.floor(total * low)), max(part, math.ceil(total * high)))
            for part, (low, high) in zip(self.split(total), bounds, strict=True)
        ]

    def _estimated(self) -> list[tuple[float, float]]:
        """The least and the most that parts of a whole may be: others are the most then, or the least."""
        bounds = self.bounds or [(value, value) for value in self.values]
        least, most = (sum(bound[number] for bound in bounds) for number in (0, 1))
        return [
            (_part(low, most - high, 1 / self.factor), _part(high, least - low, self.factor)) for low, high in bounds
        ]


@lru_cache(maxsize=1024)  # the layers of a model are alike, and so are the weights of their sites
def weights_by_name(values: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[Mapping[str, Fraction], ...]:
    """What of a total each member has before it is rounded to a whole number, by the names that weights are for."""
    wholes = {name: sum(each) for name, each in values}
    numbers = range(max((len(each) for _, each in values), default=0))
    return tuple({name: Fraction(each[number], wholes[name]) for name, each in values} for number in numbers)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson, JASA 22, 1927); within 0 and 1."""
    share, square = successes / trials, _Z * _Z / trials
    middle = share + square / 2
    half = _Z * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    low = (middle - half) / (1 + square) if successes else 0.0
    return low, (middle + half) / (1 + square) if successes < trials else 1.0


def _part(value: int, rest: int, factor: float) -> float:
    """What part of a whole a value is, if it is so many times as much; the rest is as it is.

    >>> _part(1, 1, 3.0), _part(1, 1, 1 / 3)
    (0.75, 0.25)
    """
    return factor * value / (factor * value + rest) if value else 0.0


def best_peaks(told: Sequence[Peaks]) -> Peaks:
    """The machine's limits by all that tell them, as what others take only makes a look worse; not empty.

    Those that were measured count, where any were. What is split by them does not depend on the order of runs.
    """
    looks = [each for each in told if each.source == "measured"] or told
    operations = max(each.operations_per_second for each in looks)
    caches = max((each.caches for each in looks), key=lambda each: [cache.bytes_per_second for cache in each])
    return Peaks(operations, max(each.bytes_per_second for each in looks), looks[0].source, caches)


def weights(rule: Rule, site: Site, peaks: Peaks) -> Weights:
    """The weights of a site's members under a rule; the site must have members."""
    match rule:
        case Rule.ROOT:
            return _of([int(member.root) for member in site.members])
        case Rule.EQUAL:
            return _of([1] * len(site.members))
        case Rule.MODEL | Rule.CODE | Rule.MEASURED:  # the others where they have nothing to go by
            return _roofline(site, peaks)
        case _:
            assert_never(rule)


def _of(members: Sequence[int], *, assumed: bool = False, equal: bool = False) -> Weights:
    """Rules leave nothing to nobody."""
    return Weights((*members, 0), assumed=assumed, equal=equal)


def _roofline(site: Site, peaks: Peaks) -> Weights:
    """Roofline times (Williams, Waterman, Patterson 2009), all multiplied by both peaks to stay whole numbers."""
    known = [_roofline_time(member.operations, member.bytes, peaks) for member in site.members]
    assumed = [_roofline_time(member.assumed_operations, member.assumed_bytes, peaks) for member in site.members]
    # A sole member has all of its site, whatever it costs.
    several = len(site.members) > 1
    for times in (known, assumed):
        told = [time for time in times if time is not UNKNOWN]
        if len(told) == len(times) and any(told):
            return _of(told, assumed=several and times is assumed)
    return _of([1] * len(site.members), equal=several)


def _roofline_time(operations: Integer, traffic: Integer, peaks: Peaks) -> Integer:
    if operations is UNKNOWN or traffic is UNKNOWN:
        return UNKNOWN
    return max(operations * peaks.bytes_per_second, traffic * peaks.operations_per_second)
