"""What each target cost in each single invocation: what distributions are made of, for who needs the values."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tracemap.attribution.scan.connection import Tables
from tracemap.attribution.scan.invocations import PlaceOf, place_of
from tracemap.attribution.scan.outliers import worked
from tracemap.attribution.scan.scan import Scan
from tracemap.measurements.model import TIME_METRICS
from tracemap.units import UNKNOWN

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Values = Mapping[int, npt.NDArray[np.float64]]
    """By target a value for each invocation, in their order; 0 where it did not run."""

MOST_VALUES: Final = 1 << 24
"""Of longer runs no series are kept: these have enough invocations for medians."""

_QUERY: Final = """
SELECT event.target, event.invocation, CAST(sum({worked}) AS DOUBLE) AS total
FROM resolved AS event JOIN groups ON {same_group}
WHERE event.target >= 0 AND event.invocation IS NOT NULL GROUP BY ALL ORDER BY ALL
"""


def values_by_target(tables: Tables, seen: Scan) -> Mapping[str, Values]:
    """By time metric what targets cost in each invocation, without what disturbed them; empty where it is not told."""
    count = seen.invocations.count
    if count is UNKNOWN or count * len(seen.targets) > MOST_VALUES:
        return {}
    times = [(number, metric.name) for number, metric in enumerate(seen.metrics) if metric.name in TIME_METRICS]
    places = place_of(tables, seen.invocations)
    return {name: _of_metric(tables, seen, number, places) for number, name in times}


def _of_metric(tables: Tables, seen: Scan, number: int, places_of: PlaceOf) -> Values:
    import numpy as np

    count = seen.invocations.count
    assert count is not UNKNOWN
    rows = tables.columns(_QUERY.format(worked=worked(number), same_group=seen.same_group))
    places = places_of(rows["invocation"])  # not every target runs in each
    begins = np.searchsorted(rows["target"], np.arange(len(seen.targets) + 1))
    found = {}
    for target, (begin, end) in enumerate(pairwise(begins)):
        found[target] = np.zeros(count)
        found[target][places[begin:end]] = rows["total"][begin:end]
    return found
