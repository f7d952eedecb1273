"""Correction for machine drift, estimated from unchanged code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tracemap.attribution.model import Attribution
from tracemap.comparison.findings import Spread
from tracemap.graph.model import OpId
from tracemap.measurements.medians import FEWEST, median_ranks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Values = npt.NDArray[np.float64]

LEAST_UNCHANGED: Final = 3
"""With fewer unchanged ops, drift is unknown."""
MOST_UNCHANGED: Final = 256
"""Number of unchanged ops that estimate drift, the most expensive ones. More would not change their median."""
_FEW: Final = 32
"""Up to this number, an unchanged op is corrected by the others alone, since it moves the median of a few itself."""
Unchanged = Sequence[tuple[OpId, float]]
"""Ops of a side with unchanged code, with their costs in the first run before."""


class CorrectedRun:
    """A run with an estimate of the machine's slowdown in each invocation, from ops with unchanged code.

    `unchanged`: for each such op, its cost in each invocation relative to its cost in the first run before, and that
    cost.
    """

    def __init__(self, run: Attribution, metric: str, unchanged: Mapping[OpId, tuple[Values, float]]) -> None:
        self._run, self._metric, self._unchanged = run, metric, unchanged
        self._slowness = _medians(list(unchanged.values()))

    def spread_of(self, op: OpId) -> Spread | None:
        """Median of an op's corrected cost per invocation, with its interval; None if unknown."""
        import numpy as np

        values = self._run.series.of(op, self._metric)
        if values is None:
            return None
        low, high = median_ranks(len(values))
        corrected = np.sort(values / self._slowness_for(op))
        middle = (len(values) + 1) // 2
        return Spread(*(float(corrected[rank - 1]) for rank in (middle, low, high)))

    def _slowness_for(self, op: OpId) -> Values:
        if op not in self._unchanged or len(self._unchanged) > _FEW:
            return self._slowness
        return _medians([values_and_cost for other, values_and_cost in self._unchanged.items() if other != op])


def correct_drift(run: Attribution, metric: str, unchanged: Unchanged) -> CorrectedRun | None:
    """Correct a run for drift in each invocation; None if drift is unknown."""
    unchanged_values: dict[OpId, tuple[Values, float]] = {}
    for op, cost in sorted(unchanged, key=lambda pair: (-pair[1], pair[0].number))[:MOST_UNCHANGED]:
        values = run.series.of(op, metric)
        if values is not None and len(values) >= FEWEST and cost > 0 and values.min() > 0:
            unchanged_values[op] = (values / cost, cost)
    return CorrectedRun(run, metric, unchanged_values) if len(unchanged_values) >= LEAST_UNCHANGED else None


def _medians(weighted: Sequence[tuple[Values, float]]) -> Values:
    """Weighted median of the values in each invocation, interpolated between the two nearest to half the weight."""
    import numpy as np

    values, weights = np.array([row for row, _ in weighted]), np.array([weight for _, weight in weighted])
    order = np.argsort(values, axis=0, kind="stable")
    ordered, sorted_weights = np.take_along_axis(values, order, axis=0), weights[order]
    middles = np.cumsum(sorted_weights, axis=0) - sorted_weights / 2
    half = weights.sum() / 2
    columns = range(values.shape[1])
    return np.array([np.interp(half, middles[:, column], ordered[:, column]) for column in columns])


def corrected_spreads(
    runs: Sequence[Attribution], metric: str, unchanged: Unchanged, ops: Sequence[OpId]
) -> Mapping[OpId, tuple[Spread, ...]]:
    """Corrected costs of ops, for each run of a side; without ops that a run lacks, and empty if drift is unknown."""
    results = [correct_drift(run, metric, unchanged) for run in runs]
    corrected_runs = [run for run in results if run is not None]
    if len(corrected_runs) < len(runs):
        return {}
    spreads_by_op: dict[OpId, tuple[Spread, ...]] = {}
    for op in ops:
        spreads = [spread for run in corrected_runs if (spread := run.spread_of(op)) is not None]
        if len(spreads) == len(runs):
            spreads_by_op[op] = tuple(spreads)
    return spreads_by_op
