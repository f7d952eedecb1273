"""Latency histograms and correlations of single calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracemap.attribution.join.targets import UNMATCHED
from tracemap.attribution.scan.connection import common_metrics, value_column, value_of
from tracemap.attribution.scan.lookups import Lookup, Source
from tracemap.attribution.scan.rows import first_of, joined
from tracemap.measurements.hook.stats import PairStats, SeriesStats, series_stats

# ---- lengths
#
# How long single calls of sites took, counted in bins: one query for all sites of a run.


BINS_OF_OCTAVE: Final = 16
"""Bin b has what took from 2^(b/16) to less than 2^((b+1)/16) nanoseconds."""
NO_TIME: Final = -1
"""The bin of what took no whole nanosecond."""

# Small counts of large tables: nothing but numbers of targets and bins leaves the query.
_LENGTHS: Final = """
SELECT CAST({dispatch} AS INTEGER) AS target,
       CASE WHEN event.duration_ns < 1 THEN {none}
            ELSE CAST(floor({bins} * log2(CAST(event.duration_ns AS DOUBLE))) AS INTEGER) END AS bin,
       count(*)
FROM (SELECT * FROM {events} WHERE NOT warmup AND kind = 'dispatch' AND duration_ns IS NOT NULL) AS event {joins}
GROUP BY ALL ORDER BY ALL
"""

Lengths = Mapping[str, Mapping[int, int]]
"""By site, how many of its calls lie in a bin; calls that may be of several sites are counted at each."""


def lengths(source: Source, of_events: Sequence[Lookup]) -> Lengths:
    """The calls of a run's sites by how long they took on the wall.

    Raises:
        RunInvalid: a cell is not what its column says.
    """
    query = _LENGTHS.format(
        dispatch=first_of((lookup.of_dispatch for lookup in of_events), UNMATCHED),
        none=NO_TIME,
        bins=BINS_OF_OCTAVE,
        events=source.events,
        joins=joined(of_events),
    )
    rows = source.tables.query(query)
    targets = list(source.targets)
    found: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for target, number, calls in rows:
        for place in targets[target].places if target >= 0 else ():
            found[place][int(number)] += int(calls)
    return {place: dict(bins) for place, bins in found.items()}


# ---- together
#
# How what was measured of single calls goes together: of the calls with the most misses, how many are the longest?
#
# Figures are those of `tracemap stats` (`measurements.hook.stats`), here by site instead of by thread. They are of as
# many calls as are enough for shares in percent; which these are depends on nothing but the run.


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    _Values = npt.NDArray[np.float64]

QUANTILES: Final = 8
MOST_CALLS: Final = 100_000
"""Of a run, of all its sites together; of more, every n-th call of the function is taken."""
MOST_SERIES: Final = 8
"""The first of a run: pairs grow with their square."""
LEAST_CALLS: Final = 4 * QUANTILES
"""Of a site: with fewer a quantile has no share to speak of."""

_CALLS: Final = """
SELECT * FROM (
    SELECT CAST({dispatch} AS INTEGER) AS target, {values}
    FROM (SELECT * FROM {events} WHERE NOT warmup AND kind = 'dispatch'{chosen}) AS event {joins})
WHERE target >= 0 AND {measured}
QUALIFY count(*) OVER (PARTITION BY target) >= {least}
ORDER BY ALL
"""


@dataclass(frozen=True, slots=True)
class SiteTogether:
    """Of the calls of a site that were taken: each series, and each pair of them."""

    calls: int
    series: tuple[SeriesStats, ...]
    pairs: tuple[PairStats, ...]


@dataclass(frozen=True, slots=True)
class Together:
    """By site, where two metrics or more were measured of enough calls; of every `one_of` calls of the function one."""

    sites: Mapping[str, SiteTogether]
    one_of: int


NOTHING: Final = Together({}, 1)


def together(source: Source, of_events: Sequence[Lookup], lengths: Lengths) -> Together:
    """How the metrics of a run's single calls go together, by site.

    Calls that lack a value are left out, and so are those that may be of several sites: their kernel alone is known.

    Args:
        source: the run.
        of_events: how its events find their sites.
        lengths: how many calls its sites have.

    Raises:
        RunInvalid: a cell is not what its column says.
    """
    metrics = common_metrics([source.run])[:MOST_SERIES]
    calls = sum(sum(bins.values()) for bins in lengths.values())
    one_of = -(-calls // MOST_CALLS) or 1
    if len(metrics) < 2 or not calls or (one_of > 1 and "invocation" not in source.columns):
        return NOTHING
    query = _CALLS.format(
        dispatch=first_of((lookup.of_dispatch for lookup in of_events), UNMATCHED),
        values=", ".join(
            f"CAST({value_of(each, source.run)} AS DOUBLE) AS {value_column(n)}" for n, each in enumerate(metrics)
        ),
        measured=" AND ".join(f"{value_column(n)} IS NOT NULL" for n in range(len(metrics))),
        least=LEAST_CALLS,
        events=source.events,
        chosen=f" AND invocation % {one_of} = 0" if one_of > 1 else "",
        joins=joined(of_events),
    )
    names = [metric.name for metric in metrics]
    found = {site: _site(names, values) for site, values in _by_site(source, query).items()}
    return Together(found, one_of)


def _by_site(source: Source, query: str) -> Mapping[str, _Values]:
    """Of each site with enough calls a row for each, a column for each metric."""
    import numpy as np

    columns = source.tables.columns(query)
    values = np.column_stack([columns[value_column(number)] for number in range(len(columns) - 1)])
    numbers, first, calls = np.unique(columns["target"], return_index=True, return_counts=True)
    targets = list(source.targets)
    return {
        targets[number].places[0]: values[begin : begin + count]
        for number, begin, count in zip(numbers.tolist(), first, calls, strict=True)
        if len(targets[number].places) == 1
    }


def _site(names: Sequence[str], values: _Values) -> SiteTogether:
    import numpy as np

    series, pairs = series_stats(names, [column.astype(np.float32) for column in values.T], QUANTILES)
    return SiteTogether(len(values), series, pairs)
