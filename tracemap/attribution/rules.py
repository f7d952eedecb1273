"""How a site's cost is split over its members: weights per rule, in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from tracemap.graph.model import Membership, Site
from tracemap.measurements.header import Peaks
from tracemap.options.attribute import Rule
from tracemap.units import UNKNOWN, Integer, split_by_largest_remainder


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a site's members, in member order. `equal`: the rule had nothing to go by, so all are the same."""

    values: tuple[int, ...]
    equal: bool

    def split(self, total: int) -> list[int]:
        """A total split by the weights, exactly."""
        return split_by_largest_remainder(total, self.values)


def weights(rule: Rule, site: Site, peaks: Peaks) -> Weights:
    """The weights of a site's members under a rule; the site must have members."""
    match rule:
        case Rule.ROOT:
            return Weights(tuple(int(member.root) for member in site.members), equal=False)
        case Rule.EQUAL:
            return Weights((1,) * len(site.members), equal=False)
        case Rule.MODEL | Rule.MEASURED:  # the latter where nothing was seen of the site
            return _roofline(site, peaks)
        case _:
            assert_never(rule)


def _roofline(site: Site, peaks: Peaks) -> Weights:
    """Roofline times (Williams, Waterman, Patterson 2009), all multiplied by both peaks to stay whole numbers."""
    times = [_roofline_time(member, peaks) for member in site.members]
    known = [time for time in times if time is not UNKNOWN]
    if len(site.members) > 1 and (len(known) < len(times) or not any(known)):
        return Weights((1,) * len(times), equal=True)
    if not any(known):
        return Weights((1,) * len(times), equal=False)
    return Weights(tuple(known), equal=False)


def _roofline_time(member: Membership, peaks: Peaks) -> Integer:
    if member.operations is UNKNOWN or member.bytes is UNKNOWN:
        return UNKNOWN
    return max(member.operations * peaks.bytes_per_second, member.bytes * peaks.operations_per_second)
