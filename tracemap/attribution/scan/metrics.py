"""The metrics that runs are attributed by, and their values in SQL: whole numbers that add up over all runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tracemap.errors import UsageInvalid
from tracemap.measurements.model import STEP_METRICS, TIME_METRICS, Metric, Run
from tracemap.measurements.sql import quoted

MILLIONTHS: Final = 1_000_000
"""Metrics that are not whole numbers are attributed in millionths, so that they balance exactly too."""
IN_MILLIONTHS: Final = "millionths"
"""The unit of what is attributed so."""

RANKED_BY = tuple(reversed(TIME_METRICS))
"""The times by which calls are slow, the first that there is: that on the wall tells when workers waited, too."""


def ranked_by(metrics: Sequence[Metric]) -> int | None:
    """The number of the metric by which calls are slow; None: there is no time."""
    numbers = {metric.name: number for number, metric in enumerate(metrics)}
    return next((numbers[name] for name in RANKED_BY if name in numbers), None)


def common_metrics(runs: Sequence[Run]) -> tuple[Metric, ...]:
    """The metrics that all runs have (a sum over some runs would be nobody's): times first, then as in the file.

    Runs that have seen nothing but steps do not count here. A metric is whole only if it is in all runs.

    Raises:
        UsageInvalid: the runs have no metric in common.
    """
    own = [_of_events(run) for run in runs]
    several = [metrics for metrics in own if metrics]
    if not several:
        return ()
    common = [name for name in several[0] if all(name in metrics for metrics in several)]
    if not common:
        raise UsageInvalid("the runs have no metric in common: attribute them one at a time")
    times = [name for name in TIME_METRICS if name in common]
    ordered = (*times, *(name for name in common if name not in times))
    return tuple(_over_all([metrics[name] for metrics in several]) for name in ordered)


def _of_events(run: Run) -> dict[str, Metric]:
    of_steps = frozenset(run.step_metrics)
    return {metric.name: metric for metric in run.metrics if metric not in of_steps}


def _over_all(same: Sequence[Metric]) -> Metric:
    """A metric of several runs: its values may have fractions as soon as those of one run have."""
    return replace(same[0], type="DOUBLE") if any(metric.type == "DOUBLE" for metric in same) else same[0]


def step_metrics(runs: Sequence[Run]) -> tuple[Metric, ...]:
    """The metrics of steps that any run has: a run without samples has not seen none.

    Raises:
        UsageInvalid: one of them is of dispatches in another run.
    """
    known = {metric.name: metric for run in runs for metric in run.step_metrics}
    both = sorted(known.keys() & {metric.name for metric in common_metrics(runs)})
    if both:
        raise UsageInvalid(f"{both[0]} is of dispatches in one run, of steps in another: attribute them one at a time")
    return tuple(known[name] for name in STEP_METRICS if name in known)


def value_of(metric: Metric, run: Run) -> str:
    """A metric of a run's events (named `event`) as a whole number; NULL in a run that has seen nothing but steps."""
    own = next((each for each in run.metrics if each.name == metric.name), None)
    if own is None:
        return "CAST(NULL AS BIGINT)"
    value = f"event.{quoted(metric.name)}"
    if metric.type != "DOUBLE":
        return value
    # Multiplying whole numbers as such keeps all their digits.
    return f"{value} * {MILLIONTHS}" if own.type == "BIGINT" else f"CAST({_in_millionths(value)} AS BIGINT)"


def _in_millionths(value: str) -> str:
    return f"round({value} * {MILLIONTHS})"


def rounded_metrics(metrics: Sequence[Metric], run: Run) -> dict[str, tuple[str, str]]:
    """Those that lose digits in a run's events (named `event`): in SQL, how large they are and what they lose."""
    own = {metric.name for metric in run.metrics if metric.type == "DOUBLE"}
    values = {metric.name: f"event.{quoted(metric.name)}" for metric in metrics if metric.name in own}
    return {
        name: (f"abs({value})", f"abs({_in_millionths(value)} / {MILLIONTHS} - {value})")
        for name, value in values.items()
    }


def value_column(number: int) -> str:
    """The column of the n-th metric in tables of ours: its own name is the file's, and may be any."""
    return f"value_{number}"
