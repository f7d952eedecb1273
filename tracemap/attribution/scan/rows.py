"""The rows of runs with their targets: events in the table `resolved`, and sums of `step` rows.

`resolved` has every event of all runs except warm-up: target number, invocation, and values as integers. It is filled
in one pass over each run's file. It belongs to the connection and may spill to disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tracemap.attribution.join.targets import EXECUTE, MEMORY, MIGRATED, OUTSIDE_KERNELS, UNMATCHED, Target
from tracemap.attribution.scan.connection import MILLIONTHS, Tables, value_column, value_of
from tracemap.attribution.scan.event_lookups import SHAPE, SHAPE_OF_TILES, Lookup, Source, clauses
from tracemap.core.errors import RunInvalid
from tracemap.core.units import plural
from tracemap.map.model import TraceGraph
from tracemap.runs.events import covered_sql
from tracemap.runs.model import Metric
from tracemap.runs.sql import keep_compressed, quoted

TARGET: Final = f"""
CAST(CASE event.kind WHEN 'dispatch' THEN {{dispatch}} WHEN 'execute' THEN {EXECUTE}
                     WHEN 'copy' THEN {{transfer}} WHEN 'fill' THEN {{transfer}} WHEN 'update' THEN {{transfer}}
                     WHEN 'alloca' THEN {MEMORY} WHEN 'dealloca' THEN {MEMORY} WHEN 'migration' THEN {MIGRATED}
                     ELSE {UNMATCHED} END AS INTEGER)
"""
"""The target of an `event` in SQL, from the `clauses` for dispatches and transfers."""
_RESOLVED = f"""
SELECT {TARGET} AS target, {{invocation}} AS invocation{{shape}}{{start}}{{values}}
FROM (SELECT * FROM {{events}} WHERE {{which}}) AS event {{joins}}
"""

COVERED = "covered_ns"
"""The column of a file with the part of an execute in which its dispatches ran."""
START = "start_ns"
"""The column of `resolved` with the start of an event; it exists if a run has it."""

# Invocation numbers continue those of earlier runs. Numbers that do not fit 32 bits are unknown.
_INVOCATION = "TRY_CAST(TRY_CAST(event.invocation AS INTEGER) + CAST({first} AS BIGINT) AS INTEGER)"
_FIRST_INVOCATION = "TRY_CAST(event.invocation AS INTEGER)"
# The rows of dispatches count the covered part of an execute.
_UNCOVERED = f"CASE event.kind WHEN 'execute' THEN {{value}} - coalesce(event.{COVERED}, 0) ELSE {{value}} END"
NO_ADDRESS = -1

_IN_MEMORY = 0.5
"""The fraction of the memory up to which `resolved` is not compressed."""
BYTES_OF_VALUE = 8

# Added up in SQL, because a sampled run has a row per sample.
_STEPS = f"""
SELECT CAST(CASE WHEN event.kernel IS NULL THEN {OUTSIDE_KERNELS} ELSE {{dispatch}} END AS INTEGER) AS target,
       event.kernel, event.step, event.address, {{sums}}
FROM {{events}} AS event {{joins}} WHERE NOT event.warmup AND event.kind = 'step' GROUP BY ALL ORDER BY ALL
"""


@dataclass(slots=True)
class Resolved:
    """The table `resolved` while it is filled, with the first row and the first invocation of each run.

    `has_starts`: it has the column `START`. `has_shapes`: it has the column `shape`; otherwise every target has one
    shape, in the table `shapes`.
    """

    tables: Tables
    metrics: Sequence[Metric]
    has_starts: bool
    has_shapes: bool = True
    first_rows: list[int] = field(default_factory=list)
    first_invocations: list[int] = field(default_factory=list)

    def make(self, shapes: Mapping[int, int]) -> None:
        """Create the table without rows.

        It has as few columns as possible, because ten million rows are written and read several times.

        Args:
            shapes: the shape of each target's events, if every target has one shape in all runs; else empty.
        """
        self.has_shapes = not shapes
        self.tables.fill("shapes", "target INTEGER, shape BIGINT", list(shapes.items()))
        shape = ", shape BIGINT" if self.has_shapes else ""
        starts = f", {START} BIGINT" if self.has_starts else ""
        values = "".join(f", {value_column(number)} INTEGER" for number in range(len(self.metrics)))
        if self._may_be_large:
            keep_compressed(self.tables.connection)
        self.tables.query(f"CREATE TABLE resolved (target INTEGER, invocation INTEGER{shape}{starts}{values})")

    def add(self, query: str, tables: Tables) -> None:
        """Add the rows of a query, which reads the files of `tables`.

        Nearly all values are below 2^31 (two seconds in ns). If one is not, the columns are widened.

        Raises:
            RunInvalid, UsageInvalid: as in `Tables.query`.
        """
        insert = f"INSERT INTO resolved {query}"
        if not tables.fits(insert):
            for number in range(len(self.metrics)):
                tables.query(f"ALTER TABLE resolved ALTER {value_column(number)} TYPE BIGINT")
            tables.query(insert)

    @property
    def _may_be_large(self) -> bool:
        """Whether its rows may take more than their fraction of the memory, by the sizes of the runs' files."""
        columns = ("target and invocation", "shape", START, *self.metrics)
        return self.tables.most_rows * len(columns) * BYTES_OF_VALUE > _IN_MEMORY * self.tables.memory_bytes

    @property
    def rows(self) -> int:
        """Number of events."""
        ((rows,),) = self.tables.query("SELECT count(*) FROM resolved")
        return int(rows)

    @property
    def same_group(self) -> str:
        """SQL condition: an `event` of the table has the target and shape of a row of the table `groups`."""
        same_shape = " AND groups.shape = event.shape" if self.has_shapes else ""
        return f"groups.target = event.target{same_shape}"


def add_events(source: Source, lookups: Sequence[Lookup], resolved: Resolved) -> None:
    """Add the events of a run to the table."""
    # Step rows are not events: they would count as calls.
    which = "NOT warmup AND kind <> 'step'" if source.run.step_metrics else "NOT warmup"
    ((rows, last),) = resolved.tables.query("SELECT count(*), max(invocation) FROM resolved")
    first = 0 if last is None else int(last) + 1
    resolved.first_rows.append(int(rows))
    resolved.first_invocations.append(first)
    values = []
    for metric in resolved.metrics:
        value = value_of(metric, source.run)
        is_partial = metric.name == "duration_ns" and COVERED in source.columns
        values.append(f", {_UNCOVERED.format(value=value) if is_partial else value}")
    query = _RESOLVED.format(
        invocation=_INVOCATION.format(first=first) if first else _FIRST_INVOCATION,
        shape=f", {shape_sql(source, lookups)} AS shape" if resolved.has_shapes else "",
        start=f", event.{START}" if resolved.has_starts else "",
        values="".join(values),
        which=which,
        **clauses(source, lookups),
    )
    resolved.add(query, source.tables)


def shapes_of(source: Source, lookups: Sequence[Lookup]) -> Mapping[int, int]:
    """The shape of each target's events, if a single lookup by recorded commands finds all targets; else empty."""
    shapes = lookups[0].shapes if len(lookups) == 1 else {}
    return shapes if source.join.has_one_shape else {}


def shape_sql(source: Source, lookups: Sequence[Lookup]) -> str:
    """The shape of an event in SQL: its recorded command's if known, which saves reading three columns of counts."""
    if not source.join.has_one_shape:
        return SHAPE
    shapes = [lookup.of_shape for lookup in lookups if lookup.of_shape]
    return f"coalesce({', '.join(shapes)}, 0)" if shapes else SHAPE_OF_TILES


def covered_ns(sources: Sequence[Source]) -> int:
    """Nanoseconds of executes in which their dispatches ran, for the runs whose files lack that column."""
    covered = 0
    for source in sources:
        if COVERED not in source.columns:
            parts = covered_sql(f"(SELECT * FROM {source.events} WHERE NOT warmup)", "submission_id")
            ((nanoseconds,),) = source.tables.query(f"SELECT CAST(sum({COVERED}) AS BIGINT) FROM ({parts})")
            covered += int(nanoseconds or 0)
    return covered


def rounding_losses(source: Source, metrics: Sequence[Metric]) -> dict[str, float]:
    """Fraction of each metric with fractions that is lost by counting in millionths; 1 means all of it.

    A file without such a metric is not read.
    """
    with_fractions = {metric.name for metric in source.run.metrics if metric.type == "DOUBLE"}
    columns = {metric.name: f"event.{quoted(metric.name)}" for metric in metrics if metric.name in with_fractions}
    if not columns:
        return {}
    sums = ", ".join(
        f"sum(abs({value})), sum(abs(round({value} * {MILLIONTHS}) / {MILLIONTHS} - {value}))"
        for value in columns.values()
    )
    ((*values,),) = source.tables.query(
        f"SELECT {sums} FROM {source.events} AS event WHERE NOT event.warmup AND event.kind <> 'step'"
    )
    sizes, losses = values[::2], values[1::2]
    return {name: loss / size for name, size, loss in zip(columns, sizes, losses, strict=True) if size}


class StepRow(msgspec.Struct, frozen=True):
    """The sums at one address of a kernel, for one target: a value per metric."""

    target: int
    kernel: str
    step: int
    address: int
    values: tuple[int, ...]


def step_rows(source: Source, lookups: Sequence[Lookup], metrics: Sequence[Metric], graph: TraceGraph) -> list[StepRow]:
    """The sums of a run's `step` rows; empty if it has none.

    Raises:
        RunInvalid: a metric has values in rows of the wrong kind, or values that are not counts.
    """
    if not source.run.step_metrics:
        return []
    _check(source)
    run_metrics = {metric.name for metric in source.run.step_metrics}
    sums = (f"sum(event.{quoted(metric.name)})" if metric.name in run_metrics else "0" for metric in metrics)
    rows = source.tables.query(_STEPS.format(sums=", ".join(sums), **clauses(source, lookups)))
    # Targets are added as runs are read; by now all targets of this run's rows are known.
    targets = list(source.targets)
    return [
        StepRow(
            target if target < 0 or _calls_kernel(targets[target], kernel, graph) else UNMATCHED,
            kernel or "",
            int(step or 0),
            NO_ADDRESS if address is None else int(address),
            tuple(int(value or 0) for value in values),
        )
        for target, kernel, step, address, *values in rows
    ]


def _calls_kernel(target: Target, kernel: str, graph: TraceGraph) -> bool:
    """Whether all sites of a target call this kernel, so that its lines apply to them."""
    sites = (graph.site_by_id.get(place) for place in target.places)
    return all(site is not None and site.kernel == kernel for site in sites)


def _check(source: Source) -> None:
    """Reject values in rows of the wrong kind, and negative counts."""
    problems: dict[str, str] = {}  # descriptions of invalid rows by SQL condition
    for metric in source.run.metrics:
        name, value = metric.name, quoted(metric.name)
        if metric not in source.run.step_metrics:
            problems[f"kind = 'step' AND {value} <> 0"] = f"of kind step with {name}, which counts dispatches only"
            continue
        if metric.type == "DOUBLE":
            raise RunInvalid(f"{source.run.file}: column {name}: counts of steps must be whole numbers")
        problems[f"kind <> 'step' AND {value} <> 0"] = f"with {name} but not of kind step: leave these cells empty"
        problems[f"{value} < 0"] = f"with a negative number of {name}"
    filters = ", ".join(f"count(*) FILTER ({condition})" for condition in problems)
    (counts,) = source.tables.query(f"SELECT {filters} FROM {source.events}")
    for text, count in zip(problems.values(), counts, strict=True):
        if count:
            raise RunInvalid(f"{source.run.file}: {plural(count, 'row')} {text}")
