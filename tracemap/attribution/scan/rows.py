"""The rows of runs, each with its target: events in the table `resolved`, rows of steps summed up.

`resolved` has every event of all runs, warm-up left out, as the number of its target, its invocation and whole values.
Each run's file is read once for it. It is the connection's own, and may spill to disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.attribution.join.targets import EXECUTE, MEMORY, OUTSIDE_KERNELS, TRANSFER, UNMATCHED, Target
from tracemap.attribution.scan.connection import Tables, rounded_metrics, value_column, value_of
from tracemap.attribution.scan.lookups import SHAPE, TOLD_BY_TILES, Lookup, Source
from tracemap.errors import RunInvalid
from tracemap.graph.model import TraceGraph
from tracemap.measurements.events import covered_sql
from tracemap.measurements.model import Metric
from tracemap.measurements.sql import keep_compressed, quoted
from tracemap.units import plural

_RESOLVED = f"""
SELECT CAST(CASE event.kind WHEN 'dispatch' THEN {{dispatch}} WHEN 'execute' THEN {EXECUTE}
                            WHEN 'copy' THEN {{transfer}} WHEN 'fill' THEN {{transfer}} WHEN 'update' THEN {{transfer}}
                            WHEN 'alloca' THEN {MEMORY} WHEN 'dealloca' THEN {MEMORY} ELSE {UNMATCHED} END AS INTEGER)
       AS target, {{invocation}} AS invocation{{shape}}{{start}}{{values}}
FROM (SELECT * FROM {{events}} WHERE {{which}}) AS event {{joins}}
"""

COVERED = "covered_ns"
"""The column of files that tells how much of an execute its dispatches cover."""
START = "start_ns"
"""The column of `resolved` that has when an event began, where a run tells it."""

# A run's invocations follow those of the runs before. Numbers that are out of all reason are unknown.
_INVOCATION = "TRY_CAST(TRY_CAST(event.invocation AS INTEGER) + CAST({first} AS BIGINT) AS INTEGER)"
_FIRST_INVOCATION = "TRY_CAST(event.invocation AS INTEGER)"
# What an execute's dispatches cover is in their own rows.
_UNCOVERED = f"CASE event.kind WHEN 'execute' THEN {{value}} - coalesce(event.{COVERED}, 0) ELSE {{value}} END"
NO_ADDRESS = -1

_IN_MEMORY = 0.5
"""The part of the memory that `resolved` may take as it is; where it may be larger, it is kept compressed."""
BYTES_OF_VALUE = 8

# Summed up here, as a sampled run has a row for each sample.
_STEPS = f"""
SELECT CAST(CASE WHEN event.kernel IS NULL THEN {OUTSIDE_KERNELS} ELSE {{dispatch}} END AS INTEGER) AS target,
       event.kernel, event.step, event.address, {{sums}}
FROM {{events}} AS event {{joins}} WHERE NOT event.warmup AND event.kind = 'step' GROUP BY ALL ORDER BY ALL
"""


@dataclass(slots=True)
class Resolved:
    """The table, as far as it is filled: where the rows and the invocations of each run begin.

    `has_starts`: it has the column `START`. `has_shapes`: it has the column `shape`; else each target has one shape,
    which the table `shapes` has.
    """

    tables: Tables
    metrics: Sequence[Metric]
    has_starts: bool
    has_shapes: bool = True
    first_rows: list[int] = field(default_factory=list)
    first_invocations: list[int] = field(default_factory=list)

    def make(self, shapes: Mapping[int, int]) -> None:
        """Make it, without rows; `shapes` by target, where all events of all runs have that of their target.

        Columns are as few as can be: ten million rows are written and read several times.
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
        """Add the rows of a query, which reads the files that `tables` are of.

        Nearly all values are below 2^31, which is two seconds; where one is not, the columns become wider.

        Raises:
            RunInvalid, UsageInvalid: as `Tables.query` does.
        """
        insert = f"INSERT INTO resolved {query}"
        if not tables.fits(insert):
            for number in range(len(self.metrics)):
                tables.query(f"ALTER TABLE resolved ALTER {value_column(number)} TYPE BIGINT")
            tables.query(insert)

    @property
    def _may_be_large(self) -> bool:
        """Whether its rows may take more than their part of the memory, by the sizes of the runs' files."""
        columns = ("target and invocation", "shape", START, *self.metrics)
        return self.tables.most_rows * len(columns) * BYTES_OF_VALUE > _IN_MEMORY * self.tables.memory_bytes

    @property
    def rows(self) -> int:
        """How many events it has."""
        ((rows,),) = self.tables.query("SELECT count(*) FROM resolved")
        return int(rows)

    @property
    def same_group(self) -> str:
        """Whether an `event` of the table is of the target and the shape of a row of the table `groups`, in SQL."""
        same_shape = " AND groups.shape = event.shape" if self.has_shapes else ""
        return f"groups.target = event.target{same_shape}"

    def begin_run(self) -> int:
        """Note that the rows of a run follow; returns the number that its invocation 0 gets."""
        ((rows, last),) = self.tables.query("SELECT count(*), max(invocation) FROM resolved")
        self.first_rows.append(int(rows))
        self.first_invocations.append(0 if last is None else int(last) + 1)
        return self.first_invocations[-1]


def add_events(source: Source, lookups: Sequence[Lookup], resolved: Resolved) -> None:
    """Add the events of a run."""
    # Rows of steps are no events of their own: they would count as calls.
    which = "NOT warmup AND kind <> 'step'" if source.run.step_metrics else "NOT warmup"
    first = resolved.begin_run()
    query = _RESOLVED.format(
        dispatch=first_of((lookup.of_dispatch for lookup in lookups), UNMATCHED),
        transfer=first_of((lookup.of_transfer for lookup in lookups), TRANSFER),
        invocation=_INVOCATION.format(first=first) if first else _FIRST_INVOCATION,
        shape=f", {_shape(source, lookups)} AS shape" if resolved.has_shapes else "",
        start=f", event.{START}" if resolved.has_starts else "",
        values="".join(f", {_value(metric, source)}" for metric in resolved.metrics),
        events=source.events,
        which=which,
        joins=joined(lookups),
    )
    resolved.add(query, source.tables)


def _value(metric: Metric, source: Source) -> str:
    """A metric of an event as a whole number, of executes without what the file says that their dispatches cover."""
    value = value_of(metric, source.run)
    return _UNCOVERED.format(value=value) if metric.name == "duration_ns" and COVERED in source.columns else value


def shapes_of(source: Source, lookups: Sequence[Lookup]) -> Mapping[int, int]:
    """The shape of all events of each target, where the recorded commands tell it and nothing else finds targets."""
    sole = lookups[0].shapes if len(lookups) == 1 else {}
    return sole if source.join.has_one_shape else {}


def _shape(source: Source, lookups: Sequence[Lookup]) -> str:
    """The shape of an event: that of its command where the recorded ones tell, as its counts are three more columns."""
    if not source.join.has_one_shape:
        return SHAPE
    told = [lookup.of_shape for lookup in lookups if lookup.of_shape]
    return f"coalesce({', '.join(told)}, 0)" if told else TOLD_BY_TILES


def first_of(targets: Iterable[str], otherwise: int) -> str:
    """The first target that lookups give; else the number of what has none."""
    return f"coalesce({', '.join((*filter(None, targets), str(otherwise)))})"


def joined(lookups: Iterable[Lookup]) -> str:
    """The joins of lookups, in their order."""
    return " ".join(lookup.join for lookup in lookups)


def covered_ns(sources: Sequence[Source]) -> int:
    """Nanoseconds of executes in which a dispatch of theirs ran, of those runs whose files do not tell."""
    covered = 0
    for source in sources:
        if COVERED not in source.columns:
            parts = covered_sql(f"(SELECT * FROM {source.events} WHERE NOT warmup)", "submission_id")
            ((found,),) = source.tables.query(f"SELECT CAST(sum({COVERED}) AS BIGINT) FROM ({parts})")
            covered += int(found or 0)
    return covered


def rounded_parts(source: Source, metrics: Sequence[Metric]) -> dict[str, float]:
    """What part of each metric with fractions is lost, as its values are counted in millionths: 1 is all of it.

    A file without such a metric is not read for it.
    """
    columns = rounded_metrics(metrics, source.run)
    if not columns:
        return {}
    sums = ", ".join(f"sum({size}), sum({lost})" for size, lost in columns.values())
    ((*found,),) = source.tables.query(
        f"SELECT {sums} FROM {source.events} AS event WHERE NOT event.warmup AND event.kind <> 'step'"
    )
    sizes, losses = found[::2], found[1::2]
    return {name: lost / size for name, size, lost in zip(columns, sizes, losses, strict=True) if size}


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
            raise RunInvalid(f"{source.run.file}: {plural(count, 'row')} {text}")


def _doubts(source: Source) -> Iterator[tuple[str, str]]:
    """Conditions that hold for no good row, and what to say of rows for which one holds."""
    for metric in source.run.metrics:
        name, value = metric.name, quoted(metric.name)
        if metric not in source.run.step_metrics:
            yield f"kind = 'step' AND {value} <> 0", f"of kind step with {name}, which is of dispatches"
            continue
        if metric.type == "DOUBLE":
            raise RunInvalid(f"{source.run.file}: column {name}: what is counted at steps must be whole numbers")
        yield f"kind <> 'step' AND {value} <> 0", f"with {name} but not of kind step: leave these cells empty"
        yield f"{value} < 0", f"with a negative number of {name}"
