"""How long single calls of sites took, counted in bins: one query for all sites of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from tracemap.attribution.join.run import UNMATCHED
from tracemap.attribution.scan.lookups import Lookup, Source
from tracemap.attribution.scan.rows import first_of, joined

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
