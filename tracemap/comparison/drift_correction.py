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
"""Of fewer nothing can be told of the machine."""
MOST_UNCHANGED: Final = 256
"""Ops that tell of the machine, the dearest ones: more would not change their median."""
_FEW: Final = 32
"""Up to so many each of them is judged by the others alone: the median of a few is not far from any of them."""
Unchanged = Sequence[tuple[OpId, float]]
"""Ops of a side to whose code nothing was done, each with what it costs in the first run before."""


class SteadyRun:
    """A run, in each of whose invocations the machine was so many times as slow as its unchanged ops tell.

    `unchanged`: of each of these what it costs in each invocation, in times of what it costs in the first run before,
    and what that is.
    """

    def __init__(self, run: Attribution, metric: str, unchanged: Mapping[OpId, tuple[Values, float]]) -> None:
        self._run, self._metric, self._unchanged = run, metric, unchanged
        self._slowness = _medians(list(unchanged.values()))

    def spread_of(self, op: OpId) -> Spread | None:
        """The median of what an op costs in an invocation, with its bounds; None where it is not known."""
        import numpy as np

        values = self._run.series.of(op, self._metric)
        if values is None:
            return None
        low, high = median_ranks(len(values))
        ordered = np.sort(values / self._slowness_beside(op))
        middle = (len(values) + 1) // 2
        return Spread(*(float(ordered[rank - 1]) for rank in (middle, low, high)))

    def _slowness_beside(self, op: OpId) -> Values:
        if op not in self._unchanged or len(self._unchanged) > _FEW:
            return self._slowness
        return _medians([each for other, each in self._unchanged.items() if other != op])


def steady(run: Attribution, metric: str, unchanged: Unchanged) -> SteadyRun | None:
    """A run without what the machine was slower in each invocation; None where that is not told."""
    found: dict[OpId, tuple[Values, float]] = {}
    for op, cost in sorted(unchanged, key=lambda each: (-each[1], each[0].number))[:MOST_UNCHANGED]:
        values = run.series.of(op, metric)
        if values is not None and len(values) >= FEWEST and cost > 0 and values.min() > 0:
            found[op] = (values / cost, cost)
    return SteadyRun(run, metric, found) if len(found) >= LEAST_UNCHANGED else None


def _medians(weighted: Sequence[tuple[Values, float]]) -> Values:
    """For each invocation the median of values, each with its weight: between the two nearest to the middle."""
    import numpy as np

    values, weights = np.array([each for each, _ in weighted]), np.array([weight for _, weight in weighted])
    order = np.argsort(values, axis=0, kind="stable")
    ordered, own = np.take_along_axis(values, order, axis=0), weights[order]
    middles = np.cumsum(own, axis=0) - own / 2
    half = weights.sum() / 2
    columns = range(values.shape[1])
    return np.array([np.interp(half, middles[:, column], ordered[:, column]) for column in columns])


def steady_spreads(
    runs: Sequence[Attribution], metric: str, unchanged: Unchanged, ops: Sequence[OpId]
) -> Mapping[OpId, tuple[Spread, ...]]:
    """Of each op that all runs of a side tell of what it costs in each; empty where a run does not tell the machine."""
    steadied = [steady(run, metric, unchanged) for run in runs]
    known = [run for run in steadied if run is not None]
    if len(known) < len(runs):
        return {}
    found: dict[OpId, tuple[Spread, ...]] = {}
    for op in ops:
        spreads = [spread for run in known if (spread := run.spread_of(op)) is not None]
        if len(spreads) == len(runs):
            found[op] = tuple(spreads)
    return found
