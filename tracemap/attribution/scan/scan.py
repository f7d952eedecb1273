"""Read the runs' files: totals per target, the input of the split over ops."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tracemap.attribution.join.targets import EXECUTE, Target, Targets
from tracemap.attribution.model import SlowCall, TimedWork
from tracemap.attribution.scan.connection import Tables, common_metrics, step_metrics
from tracemap.attribution.scan.event_lookups import Source, lookups, source_of
from tracemap.attribution.scan.gaps import Gaps, gaps_of
from tracemap.attribution.scan.invocations import Invocations, invocations
from tracemap.attribution.scan.outliers import slowest_calls
from tracemap.attribution.scan.rows import (
    START,
    Resolved,
    StepRow,
    add_events,
    covered_ns,
    rounding_losses,
    shapes_of,
    step_rows,
)
from tracemap.attribution.scan.sums import OutlierScope, Spread, TargetSum, pooled_percentiles, sums_by_target
from tracemap.attribution.scan.timed_work import TimedRows
from tracemap.core.diagnostics import MEANS_ONLY, NOISY, has_slug
from tracemap.core.units import UNKNOWN, Integer, sum_of
from tracemap.map.model import Command, TraceGraph
from tracemap.runs.model import Metric, Run

if TYPE_CHECKING:
    import numpy.typing as npt

_WORTH_A_THREAD = 1_000_000
"""Rows from which adding up single invocations takes long enough to import numpy in a thread."""


class Scan(msgspec.Struct, frozen=True):
    """The measurements of all runs together, by target.

    `by_target`: sums of events by target number; negative numbers stand for events without a target.
    `execute_covered`: the part of the executes' sums that rows of their dispatches count too, by metric. `surplus`:
    more memoized buffers of a kind were recorded than the map has. `untimed`: copies and fills in command buffers that
    ran but have no rows.
    """

    metrics: tuple[Metric, ...]
    targets: tuple[Target, ...]
    by_target: Mapping[int, TargetSum]
    execute_covered: Mapping[str, int]
    step_metrics: tuple[Metric, ...]
    """Metrics of `step` rows, which are not events."""
    step_rows: tuple[StepRow, ...]
    surplus: bool
    untimed: tuple[Command, ...]
    invocations: Invocations
    slowest: Mapping[int, tuple[SlowCall, ...]]
    """The slowest calls by target."""
    recorded: Integer
    """Number of events by the runs' headers; unknown if a header does not say."""
    rounded: Mapping[str, float]
    """Fraction of a metric that rounding loses, in the run with the largest loss; only for metrics with fractions."""
    gaps: tuple[Gaps, ...]
    """The gaps between kernels, by run; empty unless the scan also reads when work ran."""
    same_group: str
    """SQL condition: an `event` of the table `resolved` belongs to a row of the table `groups`."""
    timed: TimedWork | None = None
    """When work ran, if requested and known."""

    def measured(self, metric: Metric) -> int:
        """The sum of a metric over the runs; time that executes and their dispatches both have counts once."""
        if metric not in self.step_metrics:
            total = sum(target_sum.sums[metric.name] for target_sum in self.by_target.values())
            return total - self.execute_covered[metric.name]
        number = self.step_metrics.index(metric)
        return sum(row.values[number] for row in self.step_rows)


def scan(
    tables: Tables, graph: TraceGraph, runs: Sequence[Run], *, keep_outliers: bool = False, timed: bool = False
) -> Scan:
    """Read all runs; with `keep_outliers`, outlier time counts as work; with `timed`, read also when work ran.

    Raises:
        RunInvalid: a cell does not have its column's type, or a file is damaged.
        UsageInvalid: the runs have no metric in common.
    """
    metrics_of_steps, metrics = step_metrics(runs), common_metrics(runs)
    targets, rows = Targets(), []
    sources: list[Source] = []
    rounded: dict[str, float] = {}
    # Events are read under all canonical names, so one run with the column is enough.
    has_starts = any(START in map(str.lower, run.columns) for run in runs)
    resolved = Resolved(tables, metrics, has_starts)
    # Means of calls differ only by rounding, not by waits.
    enabled = not keep_outliers and not _has_note(runs, MEANS_ONLY)
    timed_rows = TimedRows(resolved)
    for run in runs:
        source = source_of(graph, run, tables.for_run(run), targets)
        event_lookups, step_lookups = lookups(source)
        if not sources:
            resolved.make(shapes_of(source, event_lookups) if len(runs) == 1 else {})
            if tables.most_rows > _WORTH_A_THREAD:
                # While the database reads the files; a later import waits for this one.
                threading.Thread(target=importlib.import_module, args=("numpy",), daemon=True).start()
        add_events(source, event_lookups, resolved)
        if timed:
            timed_rows.add(source, event_lookups)
        rounded |= {name: max(loss, rounded.get(name, 0.0)) for name, loss in rounding_losses(source, metrics).items()}
        rows += step_rows(source, step_lookups, metrics_of_steps, graph)
        sources.append(source)
    all_invocations = invocations(tables, _idle(runs, resolved))
    # Calls of several places are several variants. Only invocations show which of them recur.
    ambiguous = [
        number for number, target in enumerate(targets) if not target.exact and all_invocations.count is UNKNOWN
    ]
    outliers = OutlierScope(enabled, ambiguous, is_noisy(runs))
    by_target = sums_by_target(resolved, all_invocations, outliers)
    untimed = {place: command for source in sources for place, command in source.join.untimed.items()}
    covered = dict.fromkeys((metric.name for metric in metrics), 0)
    if EXECUTE in by_target and "duration_ns" in covered:
        covered["duration_ns"] = covered_ns(sources)
    when = timed_rows.rows() if timed else {}
    return Scan(
        metrics=metrics,
        targets=tuple(targets),
        by_target=by_target,
        execute_covered=covered,
        step_metrics=metrics_of_steps,
        step_rows=tuple(rows),
        surplus=any(source.join.surplus for source in sources),
        untimed=tuple(command for _, command in sorted(untimed.items())),
        invocations=all_invocations,
        slowest=slowest_calls(resolved),
        recorded=sum_of(run.header.events for run in runs),
        rounded=rounded,
        gaps=_gaps_by_run(when, tuple(targets), graph, len(runs), outliers) if timed else (),
        same_group=resolved.same_group,
        timed=timed_rows.work(when, tuple(targets), noisy=is_noisy(runs)) if timed else None,
    )


def _gaps_by_run(
    rows: Mapping[str, npt.NDArray[Any]],
    targets: Sequence[Target],
    graph: TraceGraph,
    runs: int,
    outliers: OutlierScope,
) -> tuple[Gaps, ...]:
    transfers = [
        number for number, target in enumerate(targets) if not graph.transfer_by_id.keys().isdisjoint(target.places)
    ]
    by_run = ({name: column[rows["run"] == run] for name, column in rows.items()} for run in range(runs))
    return tuple(gaps_of(own, transfers, outliers) for own in by_run)


def _idle(runs: Sequence[Run], resolved: Resolved) -> int:
    """Number of invocations in runs that measure events but have none."""
    ends = (*resolved.first_rows[1:], resolved.rows)
    return sum(
        run.header.iterations
        for run, first, end in zip(runs, resolved.first_rows, ends, strict=True)
        if first == end and run.metrics != run.step_metrics and isinstance(run.header.iterations, int)
    )


def is_noisy(runs: Sequence[Run]) -> bool:
    """Whether any run is marked as noisy: it waited long for CPUs that other programs held."""
    return _has_note(runs, NOISY)


def _has_note(runs: Sequence[Run], slug: str) -> bool:
    return any(has_slug(run.header.diagnostics, slug) for run in runs)


def percentiles(tables: Tables, scan_result: Scan, pools: Iterable[frozenset[int]]) -> dict[frozenset[int], Spread]:
    """Percentiles of calls, by single target and by pool of targets."""
    several = sorted((pool for pool in set(pools) if len(pool) > 1), key=sorted)
    events_of = {number: target_sum.events for number, target_sum in scan_result.by_target.items()}
    by_pool = pooled_percentiles(tables, [metric.name for metric in scan_result.metrics], several, events_of)
    return {
        **by_pool,
        **{frozenset({number}): target_sum.per_call for number, target_sum in scan_result.by_target.items()},
    }
