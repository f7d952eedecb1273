"""What runs have seen inside of kernels: their rows of steps, summed up per target and place in the machine code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracemap.attribution.join.targets import OUTSIDE_KERNELS, UNMATCHED, Target
from tracemap.attribution.scan.lookups import Lookup, Source
from tracemap.attribution.scan.resolving import first_of, joined
from tracemap.errors import RunInvalid
from tracemap.graph.model import TraceGraph
from tracemap.measurements.model import Metric
from tracemap.measurements.sql import quoted
from tracemap.units import plural

NO_ADDRESS = -1

# Summed up here, as a sampled run has a row for each sample.
_STEPS = f"""
SELECT CAST(CASE WHEN event.kernel IS NULL THEN {OUTSIDE_KERNELS} ELSE {{dispatch}} END AS INTEGER) AS target,
       event.kernel, event.step, event.address, {{sums}}
FROM {{events}} AS event {{joins}} WHERE NOT event.warmup AND event.kind = 'step' GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True, slots=True)
class StepRow:
    """What was seen at one address of a kernel, of one target: a value per metric."""

    target: int
    kernel: str
    step: int
    address: int
    values: tuple[int, ...]


def step_rows(source: Source, lookups: Sequence[Lookup], metrics: Sequence[Metric], graph: TraceGraph) -> list[StepRow]:
    """The rows of steps of a run; none where it has not looked inside.

    Raises:
        RunInvalid: values stand in rows of a kind that does not have them, or are no counts.
    """
    if not source.run.step_metrics:
        return []
    _check(source)
    own = {metric.name for metric in source.run.step_metrics}
    sums = (f"sum(event.{quoted(metric.name)})" if metric.name in own else "0" for metric in metrics)
    query = _STEPS.format(
        dispatch=first_of((lookup.of_dispatch for lookup in lookups), UNMATCHED),
        sums=", ".join(sums),
        events=source.events,
        joins=joined(lookups),
    )
    rows = source.tables.query(query)
    # Targets are added as runs are read: those of this run's rows are all known by now.
    targets = list(source.targets)
    return [
        StepRow(
            target if target < 0 or _runs(targets[target], kernel, graph) else UNMATCHED,
            kernel or "",
            int(step or 0),
            NO_ADDRESS if address is None else int(address),
            tuple(int(value or 0) for value in values),
        )
        for target, kernel, step, address, *values in rows
    ]


def _runs(target: Target, kernel: str, graph: TraceGraph) -> bool:
    """Whether a target's sites call a kernel: lines of another's text say nothing of them."""
    sites = (graph.site_by_id.get(place) for place in target.places)
    return all(site is not None and site.kernel == kernel for site in sites)


def _check(source: Source) -> None:
    """Refuse what nobody would count: values in rows of a kind that does not have them, and negative counts."""
    doubts = dict(_doubts(source))
    counts = ", ".join(f"count(*) FILTER ({condition})" for condition in doubts)
    (found,) = source.tables.query(f"SELECT {counts} FROM {source.events}")
    for text, count in zip(doubts.values(), found, strict=True):
        if count:
            raise RunInvalid(f"{source.run.table}: {plural(count, 'row')} {text}")


def _doubts(source: Source) -> Iterator[tuple[str, str]]:
    """Conditions that hold for no good row, and what to say of rows for which one holds."""
    for metric in source.run.metrics:
        name, value = metric.name, quoted(metric.name)
        if metric not in source.run.step_metrics:
            yield f"kind = 'step' AND {value} <> 0", f"of kind step with {name}, which is of dispatches"
            continue
        if metric.type == "DOUBLE":
            raise RunInvalid(f"{source.run.table}: column {name}: what is counted at steps must be whole numbers")
        yield f"kind <> 'step' AND {value} <> 0", f"with {name} but not of kind step: leave these cells empty"
        yield f"{value} < 0", f"with a negative number of {name}"
