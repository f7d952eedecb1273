"""Latency histograms and correlations of single calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tracemap.attribution.scan.connection import common_metrics, value_column, value_of
from tracemap.attribution.scan.event_lookups import Lookup, Source, clauses
from tracemap.runs.hook.stats import PairStats, SeriesStats, series_stats

# ---- latency histograms


BINS_OF_OCTAVE: Final = 16
"""Bins per factor of 2: bin b has the durations from 2^(b/16) to less than 2^((b+1)/16) nanoseconds."""
NO_TIME: Final = -1
"""The bin of durations below a nanosecond."""

# The result is small even for a large table: only target numbers, bins and counts.
_HISTOGRAMS: Final = """
SELECT CAST({dispatch} AS INTEGER) AS target,
       CASE WHEN event.duration_ns < 1 THEN {none}
            ELSE CAST(floor({bins} * log2(CAST(event.duration_ns AS DOUBLE))) AS INTEGER) END AS bin,
       count(*)
FROM (SELECT * FROM {events} WHERE NOT warmup AND kind = 'dispatch' AND duration_ns IS NOT NULL) AS event {joins}
GROUP BY ALL ORDER BY ALL
"""

LatencyHistograms = Mapping[str, Mapping[int, int]]
"""Number of calls by dispatch site and bin; a call that may belong to several sites counts at all of them."""


def latency_histograms(source: Source, event_lookups: Sequence[Lookup]) -> LatencyHistograms:
    """Histograms of the wall times of calls, by dispatch site.

    Raises:
        RunInvalid: a cell does not have its column's type.
    """
    query = _HISTOGRAMS.format(none=NO_TIME, bins=BINS_OF_OCTAVE, **clauses(source, event_lookups))
    rows = source.tables.query(query)
    targets = list(source.targets)
    histograms: dict[str, Counter[int]] = defaultdict(Counter)
    for target, number, calls in rows:
        for place in targets[target].places if target >= 0 else ():
            histograms[place][number] += calls
    return {place: dict(bins) for place, bins in histograms.items()}


# ---- correlations
#
# Correlations between metrics of single calls: how many of the calls with the most misses are among the longest?
#
# The statistics are those of `tracemap stats` (`runs.hook.stats`), by dispatch site instead of by thread. They
# use a sample of calls that is large enough for percentages and that depends only on the run.


QUANTILES: Final = 8
MOST_CALLS: Final = 100_000
"""Most calls of a run, over all sites; a longer run is sampled by every n-th invocation."""
MOST_SERIES: Final = 8
"""Most metrics, the first of the run, because pairs grow with their square."""
LEAST_CALLS: Final = 4 * QUANTILES
"""Fewest calls of a site; with fewer, a quantile has too few calls for a percentage."""

_CALLS: Final = """
SELECT * FROM (
    SELECT CAST({dispatch} AS INTEGER) AS target, {values}
    FROM (SELECT * FROM {events} WHERE NOT warmup AND kind = 'dispatch'{chosen}) AS event {joins})
WHERE target >= 0 AND {measured}
QUALIFY count(*) OVER (PARTITION BY target) >= {least}
ORDER BY ALL
"""


@dataclass(frozen=True, slots=True)
class SiteCorrelations:
    """Statistics of a site's sampled calls: of the metrics, and of the pairs of metrics."""

    calls: int
    series: tuple[SeriesStats, ...]
    pairs: tuple[PairStats, ...]


@dataclass(frozen=True, slots=True)
class Together:
    """Correlations by site, for sites with at least two metrics and enough calls; from every `one_of`-th invocation."""

    sites: Mapping[str, SiteCorrelations]
    one_of: int


NO_CORRELATIONS: Final = Together({}, 1)


def together(source: Source, event_lookups: Sequence[Lookup], latency_histograms: LatencyHistograms) -> Together:
    """Correlations between the metrics of a run's single calls, by site.

    Calls without a value of some metric are excluded, and so are calls that may belong to several sites.

    Args:
        source: the run.
        event_lookups: the lookups of its events.
        latency_histograms: the histograms of its sites, for the number of calls.

    Raises:
        RunInvalid: a cell does not have its column's type.
    """
    import numpy as np

    metrics = common_metrics([source.run])[:MOST_SERIES]
    calls = sum(sum(bins.values()) for bins in latency_histograms.values())
    one_of = -(-calls // MOST_CALLS) or 1
    if len(metrics) < 2 or not calls or (one_of > 1 and "invocation" not in source.columns):
        return NO_CORRELATIONS
    query = _CALLS.format(
        values=", ".join(
            f"CAST({value_of(metric, source.run)} AS DOUBLE) AS {value_column(n)}" for n, metric in enumerate(metrics)
        ),
        measured=" AND ".join(f"{value_column(n)} IS NOT NULL" for n in range(len(metrics))),
        least=LEAST_CALLS,
        chosen=f" AND invocation % {one_of} = 0" if one_of > 1 else "",
        **clauses(source, event_lookups),
    )
    names = [metric.name for metric in metrics]
    columns = source.tables.columns(query)
    numbers, first, counts = np.unique(columns["target"], return_index=True, return_counts=True)
    targets = list(source.targets)
    by_site = {}
    for number, begin, count in zip(numbers.tolist(), first, counts, strict=True):
        if targets[number].exact:
            calls_of_site = slice(begin, begin + count)
            values = [columns[value_column(n)][calls_of_site].astype(np.float32) for n in range(len(metrics))]
            statistics = series_stats(names, values, QUANTILES)
            by_site[targets[number].places[0]] = SiteCorrelations(int(count), *statistics)
    return Together(by_site, one_of)
