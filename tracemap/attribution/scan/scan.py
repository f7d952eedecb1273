"""Reads the runs' files: what happened at each target, which is all that the split over ops needs to know."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tracemap.attribution.join.targets import EXECUTE, Join, Target, Targets
from tracemap.attribution.model import SlowCall
from tracemap.attribution.scan.connection import Tables, common_metrics, step_metrics
from tracemap.attribution.scan.invocations import Invocations, invocations
from tracemap.attribution.scan.lookups import Source, lookups, submission_lookups
from tracemap.attribution.scan.outliers import slowest_calls
from tracemap.attribution.scan.rows import (
    START,
    Resolved,
    StepRow,
    add_events,
    covered_ns,
    rounded_parts,
    shapes_of,
    step_rows,
)
from tracemap.attribution.scan.sums import Fenced, Spread, TargetSum, pooled, sums_by_target
from tracemap.diagnostics import DISTURBED, MEANS_ONLY, tells
from tracemap.graph.model import Command, TraceGraph
from tracemap.measurements.model import Metric, Run
from tracemap.units import UNKNOWN, Integer, sum_of

_WORTH_A_THREAD = 1_000_000
"""Rows of which single invocations are added up for long enough."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What all runs together have measured, by target.

    `by_target` has the events of `targets` under their numbers, and of what has none under negative ones;
    `execute_covered` is by metric how much of the executes' sums their dispatches' own rows cover; `surplus`: more
    memoized buffers were recorded than the map has of their kind; `untimed`: copies and fills that ran, within command
    buffers, and have no rows.
    """

    metrics: tuple[Metric, ...]
    targets: tuple[Target, ...]
    by_target: Mapping[int, TargetSum]
    execute_covered: Mapping[str, int]
    step_metrics: tuple[Metric, ...]
    """Of the rows of steps, which are no events of their own."""
    step_rows: tuple[StepRow, ...]
    surplus: bool
    untimed: tuple[Command, ...]
    invocations: Invocations
    slowest: Mapping[int, tuple[SlowCall, ...]]
    """By target the slowest of its calls."""
    recorded: Integer
    """How many events the runs say that they have; unknown where one does not say it."""
    rounded: Mapping[str, float]
    """What part of a metric is lost by rounding, in the run where it is the most; only of those with fractions."""
    same_group: str
    """Whether an `event` of the table `resolved` belongs to a row of the table `groups`, in SQL."""

    def measured(self, metric: Metric) -> int:
        """The sum of a metric over all that the runs have of it; what executes and their dispatches have both, once."""
        if metric not in self.step_metrics:
            total = sum(each.sums[metric.name] for each in self.by_target.values())
            return total - self.execute_covered[metric.name]
        number = self.step_metrics.index(metric)
        return sum(row.values[number] for row in self.step_rows)


def scan(tables: Tables, graph: TraceGraph, runs: Sequence[Run], *, keep_disturbed: bool = False) -> Scan:
    """Read all runs; `keep_disturbed`: what calls take beyond fences is not told apart.

    Raises:
        RunInvalid: a cell is not what its column says, or a file is damaged.
        UsageInvalid: the runs have no metric in common.
    """
    of_steps, metrics = step_metrics(runs), common_metrics(runs)
    targets, rows = Targets(), []
    sources: list[Source] = []
    rounded: dict[str, float] = {}
    # Not all runs need to tell it; events are read under all canonical names.
    has_starts = any(START in map(str.lower, run.columns) for run in runs)
    resolved = Resolved(tables, metrics, has_starts)
    for run in runs:
        source = Source(run, Join(graph, run.header, run.site_choices), tables.of_run(run), targets)
        of_events, of_rows = lookups(source, submission_lookups(source))
        if not sources:
            resolved.make(shapes_of(source, of_events) if len(runs) == 1 else {})
            if tables.most_rows > _WORTH_A_THREAD:
                _import_meanwhile("numpy")
        add_events(source, of_events, resolved)
        rounded |= {name: max(part, rounded.get(name, 0.0)) for name, part in rounded_parts(source, metrics).items()}
        rows += step_rows(source, of_rows, of_steps, graph)
        sources.append(source)
    of_all = invocations(tables, _idle(runs, resolved))
    # Calls of several places are several variants. Which of them recur is told by invocations only.
    several = [number for number, target in enumerate(targets) if not target.exact and of_all.count is UNKNOWN]
    # Means differ from each other by what rounding adds, which is no wait.
    fences = not keep_disturbed and not _says(runs, MEANS_ONLY)
    by_target = sums_by_target(resolved, of_all, Fenced(fences, several, is_disturbed(runs)))
    untimed = {place: command for source in sources for place, command in source.join.untimed.items()}
    covered = dict.fromkeys((metric.name for metric in metrics), 0)
    if EXECUTE in by_target and "duration_ns" in covered:
        covered["duration_ns"] = covered_ns(sources)
    return Scan(
        metrics=metrics,
        targets=tuple(targets),
        by_target=by_target,
        execute_covered=covered,
        step_metrics=of_steps,
        step_rows=tuple(rows),
        surplus=any(source.join.surplus for source in sources),
        untimed=tuple(command for _, command in sorted(untimed.items())),
        invocations=of_all,
        slowest=slowest_calls(resolved),
        recorded=sum_of(run.header.events for run in runs),
        rounded=rounded,
        same_group=resolved.same_group,
    )


def _idle(runs: Sequence[Run], resolved: Resolved) -> int:
    """How many invocations were measured of runs that have no events, though they would have been seen."""
    ends = (*resolved.first_rows[1:], resolved.rows)
    return sum(
        run.header.iterations
        for run, first, end in zip(runs, resolved.first_rows, ends, strict=True)
        if first == end and run.metrics != run.step_metrics and isinstance(run.header.iterations, int)
    )


def _import_meanwhile(name: str) -> None:
    """Import a package while the database reads the files: whoever imports it then waits until that is done."""
    threading.Thread(target=importlib.import_module, args=(name,), daemon=True).start()


def is_disturbed(runs: Sequence[Run]) -> bool:
    """Whether any run says that others held the processors that it wanted, for long."""
    return _says(runs, DISTURBED)


def _says(runs: Sequence[Run], slug: str) -> bool:
    return any(tells(run.header.diagnostics, slug) for run in runs)


def percentiles(tables: Tables, seen: Scan, pools: Iterable[frozenset[int]]) -> dict[frozenset[int], Spread]:
    """The percentiles of each target, and of all events of several."""
    several = sorted((pool for pool in set(pools) if len(pool) > 1), key=sorted)
    events_of = {number: each.events for number, each in seen.by_target.items()}
    found = pooled(tables, [metric.name for metric in seen.metrics], several, events_of)
    return {**found, **{frozenset({number}): each.per_call for number, each in seen.by_target.items()}}
