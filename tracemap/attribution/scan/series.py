"""The cost of each target in each single invocation, for callers that need values rather than distributions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tracemap.attribution.scan.connection import Tables
from tracemap.attribution.scan.invocations import place_of
from tracemap.attribution.scan.scan import Scan
from tracemap.core.units import UNKNOWN
from tracemap.runs.model import TIME_METRICS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Values = Mapping[int, npt.NDArray[np.float64]]
    """One value per invocation, in order, by target; 0 for an invocation in which it did not run."""

MOST_VALUES: Final = 1 << 24
"""Most values (targets times invocations) of a run whose series are kept; longer runs have enough for medians."""

_QUERY: Final = """
SELECT event.target, event.invocation,
       CAST(sum(CASE WHEN event.value_{number} > groups.threshold_{number} THEN groups.threshold_{number}
                     ELSE coalesce(event.value_{number}, 0) END) AS DOUBLE) AS total
FROM resolved AS event JOIN groups ON {same_group}
WHERE event.target >= 0 AND event.invocation IS NOT NULL GROUP BY ALL ORDER BY ALL
"""


def values_by_target(tables: Tables, scan: Scan) -> Mapping[str, Values]:
    """Costs of targets in each invocation by time metric, without outliers; empty if invocations are unknown."""
    import numpy as np

    count = scan.invocations.count
    if count is UNKNOWN or count * len(scan.targets) > MOST_VALUES:
        return {}
    places_of = place_of(tables, scan.invocations)
    values: dict[str, dict[int, npt.NDArray[np.float64]]] = {}
    for number, metric in enumerate(scan.metrics):
        if metric.name not in TIME_METRICS:
            continue
        rows = tables.columns(_QUERY.format(number=number, same_group=scan.same_group))
        places = places_of(rows["invocation"])  # a target need not run in every invocation
        begins = np.searchsorted(rows["target"], np.arange(len(scan.targets) + 1))
        of_metric = values[metric.name] = {}
        for target, (begin, end) in enumerate(pairwise(begins)):
            of_metric[target] = np.zeros(count)
            of_metric[target][places[begin:end]] = rows["total"][begin:end]
    return values
