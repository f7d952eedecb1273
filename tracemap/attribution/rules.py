"""The weights of a site's members under each rule, from what the map knows of them alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from tracemap.attribution.weights import Weights
from tracemap.graph.program import Membership, Site
from tracemap.measurements.header import Peaks
from tracemap.options.attribute import Rule
from tracemap.units import UNKNOWN, Integer


def weights(rule: Rule, site: Site, peaks: Peaks) -> Weights:
    """The weights of a site's members under a rule; the site must have members."""
    match rule:
        case Rule.ROOT:
            return _of([int(member.root) for member in site.members])
        case Rule.EQUAL:
            return _of([1] * len(site.members))
        case Rule.MODEL | Rule.MEASURED:  # the latter where nothing was seen of the site
            return _roofline(site, peaks)
        case _:
            assert_never(rule)


def _of(members: Sequence[int], *, equal: bool = False) -> Weights:
    """Rules leave nothing to nobody."""
    return Weights((*members, 0), equal=equal)


def _roofline(site: Site, peaks: Peaks) -> Weights:
    """Roofline times (Williams, Waterman, Patterson 2009), all multiplied by both peaks to stay whole numbers."""
    times = [_roofline_time(member, peaks) for member in site.members]
    known = [time for time in times if time is not UNKNOWN]
    if len(known) == len(times) and any(known):
        return _of(known)
    # A sole member has all of its site, whatever it costs.
    return _of([1] * len(times), equal=len(times) > 1)


def _roofline_time(member: Membership, peaks: Peaks) -> Integer:
    if member.operations is UNKNOWN or member.bytes is UNKNOWN:
        return UNKNOWN
    return max(member.operations * peaks.bytes_per_second, member.bytes * peaks.operations_per_second)
