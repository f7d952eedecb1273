"""How long the single calls of a site take over many runs: exact percentiles, or those of a histogram that says so.

Exact percentiles need all values at once. Beyond `MOST_EXACT` calls these are counted in buckets whose bounds lie 1 %
apart: a percentile is then known to within half of that, however many calls there are, and buckets of any number of
files add up (the idea of DDSketch: Masson, Rim and Lee, Proceedings of the VLDB 12, 2019).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from tracemap.errors import StoreInvalid, UsageInvalid
from tracemap.measurements.sql import quoted
from tracemap.store.engine import Engine
from tracemap.store.grouping import group_of, grouped, looked, register
from tracemap.store.headers import Header, Headers, check_spelling
from tracemap.store.layout import CALLS, TARGETS
from tracemap.store.lineage import Names
from tracemap.store.model import FleetCalls, GroupCalls, SiteCalls
from tracemap.store.tables import NO_METRICS, told

MOST_EXACT: Final = 20_000_000
FRACTIONS: Final = (0.1, 0.5, 0.9, 0.99)
GAMMA: Final = 1.01
"""The ratio of the bounds of a bucket."""

_PLACED: Final = """
FROM calls JOIN chosen ON chosen.number = calls.run
JOIN targets ON targets.run = calls.run AND targets.target = calls.target AND targets.position = 0
WHERE calls.target >= 0 AND calls.{metric} IS NOT NULL
"""
# Events that may be of several places are those of their kernel.
_SITE: Final = "CASE WHEN targets.places = 1 THEN targets.place END"
_PLACE: Final = f"chosen.grouping, chosen.map, targets.kernel, {_SITE} AS place"
_BY_PLACE: Final = f"GROUP BY chosen.grouping, chosen.map, targets.kernel, {_SITE}"
EXACT: Final = f"""
SELECT {_PLACE}, count(*) AS calls, max(calls.{{metric}}) AS most, {{percentiles}} {_PLACED} {_BY_PLACE}
"""
_PERCENTILE: Final = "percentile_cont({fraction}) WITHIN GROUP (ORDER BY calls.{metric})"
_SIZE: Final = f"floor(ln(abs(CAST(calls.{{metric}} AS DOUBLE)) + 1) / {math.log(GAMMA)!r})"
_BUCKET: Final = f"CAST(sign(calls.{{metric}}) * {_SIZE} AS INTEGER)"
"""Buckets below 0 are of values below 0, which a metric may have."""
BUCKETS: Final = f"""
SELECT {_PLACE}, {_BUCKET} AS bucket, count(*) AS calls, max(calls.{{metric}}) AS most {_PLACED} {_BY_PLACE}, {_BUCKET}
"""

_Place = tuple[int, int, str | None, str | None]
"""A group, a map, a kernel and a place."""


def fleet_calls(
    engine: Engine, headers: Headers, names: Names, metric: str, group_by: Sequence[str], most_exact: int = MOST_EXACT
) -> FleetCalls:
    """Percentiles of the calls of each site, of each group of runs and each map.

    Raises:
        UsageInvalid: no calls have the metric, or some under a name in other letters.
        StoreInvalid: a file cannot be read.
    """
    groups = grouped(headers.rows, group_by)
    register(engine, headers, names, groups)
    for table in (CALLS, TARGETS):
        engine.view(table, headers.files(table))
    if metric.lower() not in NO_METRICS:
        check_spelling(headers, [metric])
    if metric.lower() in NO_METRICS or metric not in engine.columns(CALLS):
        raise UsageInvalid(f"--metric {metric}: no calls have it; tracemap store query --metric says what runs have")
    exact = sum(row["calls"] or 0 for row in headers.rows) <= most_exact
    found = _exact(engine, metric) if exact else _sketched(engine, metric)
    by_group = _by_group(found)
    maps = [sha for _, sha in headers.maps_of_models]
    return FleetCalls(
        metric=metric,
        group_by=tuple(group_by),
        error_percent=0.0 if exact else round(50 * (GAMMA - 1), 3),
        groups=tuple(
            _group(runs, group_by, maps[number], sites)
            for place, runs in enumerate(groups)
            for number, sites in sorted(by_group[place].items())
        ),
        looked=looked(headers),
    )


def _exact(engine: Engine, metric: str) -> Mapping[_Place, SiteCalls]:
    name = quoted(metric)
    percentiles = ", ".join(_PERCENTILE.format(fraction=fraction, metric=name) for fraction in FRACTIONS)
    rows = engine.rows(EXACT.format(metric=name, percentiles=percentiles))
    return {
        (group, of_map, kernel, place): _site(place, kernel, calls, [*map(_whole, values)], most)
        for group, of_map, kernel, place, calls, most, *values in rows
    }


def _whole(value: float) -> int:
    """Rounded, halves up; engines that interpolate differ in the last digit, which is not to decide.

    Raises:
        StoreInvalid: it is no number, as no call of a file that is whole has it.
    """
    if not math.isfinite(value):
        raise StoreInvalid(f"the store cannot be read: what a call took is {value}")
    return math.floor(round(value, 3) + 0.5)


def _sketched(engine: Engine, metric: str) -> Mapping[_Place, SiteCalls]:
    buckets: dict[_Place, list[tuple[int, int, int]]] = defaultdict(list)
    for group, of_map, kernel, place, bucket, calls, most in engine.rows(BUCKETS.format(metric=quoted(metric))):
        buckets[group, of_map, kernel, place].append((bucket, calls, most))
    found = {}
    for key, counts in buckets.items():
        counts.sort()
        calls, most = sum(count for _, count, _ in counts), max(largest for *_, largest in counts)
        values = [min(most, _at(counts, fraction * (calls - 1))) for fraction in FRACTIONS]
        found[key] = _site(key[3], key[2], calls, values, most)
    return found


def _at(counts: Sequence[tuple[int, int, int]], rank: float) -> int:
    """The middle of the bucket that holds a rank, by ratio."""
    seen = 0
    for bucket, count, _ in counts:
        seen += count
        if seen > rank:
            return round(math.copysign(math.pow(GAMMA, abs(bucket) + 0.5) - 1, bucket))
    return counts[-1][2]


def _site(place: str | None, kernel: str | None, calls: int, values: Sequence[int], most: int) -> SiteCalls:
    p10, median, p90, p99 = values
    return SiteCalls(told(place), told(kernel), calls, p10=p10, median=median, p90=p90, p99=p99, most=int(most))


def _by_group(found: Mapping[_Place, SiteCalls]) -> Mapping[int, Mapping[int, list[SiteCalls]]]:
    """The sites of each group by the number of their map, those that take most time first."""
    sites: dict[int, dict[int, list[SiteCalls]]] = defaultdict(lambda: defaultdict(list))
    in_order = sorted(found.items(), key=lambda each: _dearness(each[1]))
    for (group, of_map, _, _), site in in_order:
        sites[group][of_map].append(site)
    return sites


def _dearness(site: SiteCalls) -> tuple[int, str, str]:
    return -site.calls * site.median, str(site.site), str(site.kernel)


def _group(runs: Sequence[Header], columns: Sequence[str], of_map: str, sites: Sequence[SiteCalls]) -> GroupCalls:
    own = [run for run in runs if run["map"] == of_map]
    return GroupCalls(runs[0]["model"], group_of(runs, columns), of_map, len(own), tuple(sites))
