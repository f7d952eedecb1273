"""The SQL side of attribution: finds the target of every event, and groups events by target.

Each run's file is read once, into a table of (target, values) of the engine's own, which may spill to disk. Sums and
percentiles of single targets are aggregates of it; those of several targets together are found in two steps, so that
only the values near a percentile are ever sorted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracemap.attribution.join import UNMATCHED_GROUP, Join, Target, join_run
from tracemap.attribution.model import PerCall
from tracemap.attribution.steps import NO_ADDRESS, StepRow
from tracemap.attribution.submissions import Submissions
from tracemap.errors import RunInvalid, UsageInvalid
from tracemap.graph.model import TraceGraph
from tracemap.measurements.badcells import explain_bad_cell
from tracemap.measurements.columns import events_sql
from tracemap.measurements.model import STEP_METRICS, TIME_METRICS, Metric, Run
from tracemap.measurements.sql import quoted
from tracemap.units import plural

if TYPE_CHECKING:
    import duckdb

Row = tuple[Any, ...]
"""A row as the engine hands it out: what it holds depends on the query."""

MILLIONTHS = 1_000_000
"""Metrics that are not whole numbers are attributed in millionths, so that they balance exactly too."""

# Residual classes as they stand in the column `target`; the targets of sites and transfers count from 0.
UNMATCHED, TRANSFER, MEMORY, EXECUTE, OUTSIDE_KERNELS = -1, -2, -3, -4, -5

_COVERED = "covered_ns"
_MOST_PLACES = 100_000
"""Commands of all recorded buffers up to which they are listed one by one."""


@dataclass(frozen=True, slots=True)
class Group:
    """Grouped events of one target: how many, and per metric the sum and the percentiles of the single values."""

    events: int
    sums: Mapping[str, int]
    per_call: Mapping[str, PerCall]


@dataclass
class Scan:
    """Resolves targets, reads the runs' files, groups."""

    connection: duckdb.DuckDBPyConnection
    graph: TraceGraph
    runs: Sequence[Run]
    metrics: tuple[Metric, ...] = ()
    targets: list[Target] = field(default_factory=list)
    groups: dict[int, Group] = field(default_factory=dict)
    joins: list[Join] = field(default_factory=list)
    execute_covered: dict[str, int] = field(default_factory=dict)
    unknown_values: dict[str, int] = field(default_factory=dict)
    step_metrics: tuple[Metric, ...] = ()
    """Of the rows of steps, which are no events of their own."""
    step_rows: list[StepRow] = field(default_factory=list)
    _target_ids: dict[Target, int] = field(default_factory=dict)

    def load(self) -> None:
        """Read all runs.

        Raises:
            RunInvalid: a cell is not what its column says.
            UsageInvalid: the runs have no metric in common.
        """
        self.step_metrics = _step_metrics(self.runs)
        self.metrics = _common_metrics(self.runs)
        joined = [self._joined_sql(index, run) for index, run in enumerate(self.runs)]
        self.query(f"CREATE TEMP TABLE resolved AS {' UNION ALL '.join(events for events, _ in joined)}")
        self._group()
        for run, (_, steps) in zip(self.runs, joined, strict=True):
            if steps:
                self._check_steps(run)
                self._add_steps(steps)
        self._cover_executes()

    # ---- targets of events

    def _joined_sql(self, index: int, run: Run) -> tuple[str, str]:
        """One run's events, warm-up left out, as target and metric values; and its rows of steps, summed up."""
        joined = join_run(self.graph, run.header)
        self.joins.append(joined)
        names = {name.strip().lower() for name in run.columns}
        has_steps = bool(run.step_metrics)
        of_kind = "NOT warmup AND kind {} 'step'" if has_steps else "NOT warmup"
        events = f"(SELECT * FROM ({events_sql(run)}) WHERE {of_kind.format('<>')})"
        told = Submissions(self, index, run, joined).tell_apart() if run.header.programs or run.has_header else None
        joins: list[str] = []
        found: list[str] = []
        if "site" in names and self._names_sites(run, joined):
            rows = [(site, self.target_id(target)) for site, target in joined.by_site.items()]
            self.table(f"sites_{index}", "site VARCHAR, by_site INTEGER", rows)
            joins.append(f"LEFT JOIN sites_{index} USING (site)")
            found.append("by_site")
        if told is not None and told.table:
            joins.append(f"LEFT JOIN {told.table} USING (submission_id)")
        if {"command_buffer_id", "command_index"} <= names and joined.by_command:
            found.append(self._by_command(index, joined, joins, bool(told and told.table)))
        if told is not None and told.places:
            joins.append(f"LEFT JOIN {told.places} USING (submission_id, start_ns)")
            found.append("by_place")
        if not (joined.trusts_buffers and run.has_header and joined.by_command):
            found.append(self._by_kernel(index, joined, joins))
        dispatch = f"coalesce({', '.join((*found, str(UNMATCHED)))})"
        transfer = str(TRANSFER)
        if told is not None and told.transfers:
            joins.append(told.transfers)
            transfer = f"coalesce(by_transfer, {TRANSFER})"
        kind = (
            f"CASE kind WHEN 'dispatch' THEN {dispatch} WHEN 'execute' THEN {EXECUTE} "
            f"WHEN 'copy' THEN {transfer} WHEN 'fill' THEN {transfer} WHEN 'update' THEN {transfer} "
            f"WHEN 'alloca' THEN {MEMORY} WHEN 'dealloca' THEN {MEMORY} ELSE {UNMATCHED} END"
        )
        own = {metric.name for metric in run.metrics}
        values = [_value(m) if m.name in own else f"CAST(NULL AS BIGINT) AS {quoted(m.name)}" for m in self.metrics]
        covered = f"CASE kind WHEN 'execute' THEN {_COVERED} END" if _COVERED in names else "CAST(NULL AS BIGINT)"
        resolved = (
            f"SELECT CAST({kind} AS INTEGER) AS target, {', '.join((*values, covered))} AS {quoted(_OWN_COVERED)} "
            f"FROM {events} AS event {' '.join(joins)}"
        )
        if not has_steps:
            return resolved, ""
        if not any(clause.startswith(f"LEFT JOIN kernels_{index} ") for clause in joins):
            found.append(self._by_kernel(index, joined, joins))
        inside = f"coalesce({', '.join((*found, str(UNMATCHED)))})"
        target = f"CASE WHEN event.kernel IS NULL THEN {OUTSIDE_KERNELS} ELSE {inside} END"
        seen = {metric.name for metric in run.step_metrics}
        sums = (f"sum({quoted(m.name)})" if m.name in seen else "0" for m in self.step_metrics)
        steps = (
            f"SELECT CAST({target} AS INTEGER) AS target, event.kernel, step, address, {', '.join(sums)} "
            f"FROM ({events_sql(run)}) AS event {' '.join(joins)} WHERE {of_kind.format('=')} GROUP BY ALL ORDER BY ALL"
        )
        return resolved, steps

    def _check_steps(self, run: Run) -> None:
        """Refuse what nobody would count: values in rows of a kind that does not have them, and negative counts."""
        doubts: dict[str, str] = {}
        for metric in run.metrics:
            name, value = metric.name, quoted(metric.name)
            if metric not in run.step_metrics:
                doubts[f"kind = 'step' AND {value} <> 0"] = f"of kind step with {name}, which is of dispatches"
                continue
            if metric.type == "DOUBLE":
                raise RunInvalid(f"{run.table}: column {name}: what is counted at steps must be whole numbers")
            doubts[f"kind <> 'step' AND {value} <> 0"] = f"with {name} but not of kind step: leave these cells empty"
            doubts[f"{value} < 0"] = f"with a negative number of {name}"
        counts = ", ".join(f"count(*) FILTER ({condition})" for condition in doubts)
        (found,) = self.query(f"SELECT {counts} FROM ({events_sql(run)})")
        for text, count in zip(doubts.values(), found, strict=True):
            if count:
                raise RunInvalid(f"{run.table}: {plural(count, 'row')} {text}")

    def _add_steps(self, query: str) -> None:
        for target, kernel, step, address, *values in self.query(query):
            counts = tuple(int(value or 0) for value in values)
            place = NO_ADDRESS if address is None else int(address)
            known = target < 0 or self._runs(target, kernel)
            row = StepRow(target if known else UNMATCHED, kernel or "", int(step or 0), place, counts)
            self.step_rows.append(row)

    def _runs(self, target: int, kernel: str) -> bool:
        """Whether a target's sites call a kernel: lines of another's text say nothing of them."""
        sites = (self.graph.site_by_id.get(site) for site in self.targets[target].sites)
        return all(site is not None and site.kernel == kernel for site in sites)

    def _names_sites(self, run: Run, joined: Join) -> bool:
        """Whether a run's column `site` is needed: a recorded run with all its buffers tells more by its commands.

        A CSV would have to be read whole to see whether there is any value.
        """
        if run.format == "csv":
            return not (joined.trusts_buffers and joined.by_command)
        return bool(self.query(f"SELECT site FROM ({events_sql(run)}) WHERE site IS NOT NULL LIMIT 1"))

    def _by_command(self, index: int, joined: Join, joins: list[str], told: bool) -> str:
        """The join by command buffer and index. One whole number for both is several times faster than two."""
        stride = 1 + max(key.command_index for key in joined.by_command)
        rows = [
            (key.group * stride + key.command_index, key.kernel, self.target_id(target))
            for key, target in joined.by_command.items()
        ]
        groups = joined.group_of_buffer
        known = [(buffer.id, groups.get(buffer.id, UNMATCHED_GROUP)) for buffer in joined.header.buffers]
        by_buffer = not told and joined.trusts_buffers and len(known) * stride <= _MOST_PLACES
        if by_buffer:
            # Few buffers: their commands are listed under the buffers' own numbers, which saves a join.
            rows = [(id_ * stride + row[0] % stride, *row[1:]) for id_, group in known for row in rows
                    if row[0] // stride == group]  # fmt: skip
            number = "command_buffer_id"
        else:
            self.table(f"buffers_{index}", "command_buffer_id BIGINT, buffer_group INTEGER", known)
            joins.append(f"LEFT JOIN buffers_{index} USING (command_buffer_id)")
            number = "coalesce(told_group, buffer_group)" if told else "buffer_group"
        self.table(f"commands_{index}", "place BIGINT, expected VARCHAR, by_command INTEGER", rows)
        place = f"CASE WHEN command_index < {stride} AND {number} >= 0 THEN {number} * {stride} + command_index END"
        joins.append(f"LEFT JOIN commands_{index} ON commands_{index}.place = {place}")
        if by_buffer:
            # The kernel is the command's: it was compared when the buffers were aligned. What comes first is all that
            # is computed for most rows.
            return f"by_command, CASE WHEN command_buffer_id IS NOT NULL THEN {UNMATCHED} END"
        matched = "CASE WHEN expected = event.kernel THEN by_command END"
        if not joined.trusts_buffers:
            return matched
        # A buffer that is known and has no such command is another module's, whatever its kernels are called.
        return f"CASE WHEN buffer_group IS NOT NULL THEN coalesce({matched}, {UNMATCHED}) END"

    def _by_kernel(self, index: int, joined: Join, joins: list[str]) -> str:
        rows = [(kernel, self.target_id(target)) for kernel, target in joined.by_kernel.items()]
        self.table(f"kernels_{index}", "kernel VARCHAR, by_kernel INTEGER", rows)
        joins.append(f"LEFT JOIN kernels_{index} USING (kernel)")
        return "by_kernel"

    def target_id(self, target: Target) -> int:
        """The number of a target in the column `target`."""
        if target not in self._target_ids:
            self._target_ids[target] = len(self.targets)
            self.targets.append(target)
        return self._target_ids[target]

    # ---- sums and percentiles

    def _group(self) -> None:
        sums = [f"CAST(sum({quoted(m.name)}) AS HUGEINT), count({quoted(m.name)})" for m in self.metrics]
        columns = ", ".join(("target", "count(*)", *sums, *_percentiles(self.metrics, _OF_TARGETS)))
        rows = self.query(f"SELECT {columns} FROM resolved GROUP BY target")
        count = len(self.metrics)
        for target, events, *values in sorted(rows):
            metric_sums = {m.name: int(values[2 * n] or 0) for n, m in enumerate(self.metrics)}
            self.groups[target] = Group(events, metric_sums, self._per_call(values[2 * count :]))
            if target >= 0 and not self._is_transfer(target):
                for n, metric in enumerate(self.metrics):
                    absent = events - values[2 * n + 1]
                    self.unknown_values[metric.name] = self.unknown_values.get(metric.name, 0) + absent

    def _is_transfer(self, target: int) -> bool:
        return self.targets[target].sites[0] in self.graph.transfer_by_id

    def pooled_per_call(self, target_sets: Sequence[frozenset[int]]) -> list[dict[str, PerCall]]:
        """The percentiles over all events of each set of targets."""
        if not target_sets:
            return []
        rows = [(number, target) for number, targets in enumerate(target_sets) for target in sorted(targets)]
        self.table("pools", "pool INTEGER, target INTEGER", rows)
        events = sum(group.events for group in self.groups.values())
        pooled = sum(self.groups[target].events for _, target in rows if target in self.groups)
        return self.pooled_at_once(len(target_sets)) if pooled <= events else self.pooled_in_steps(len(target_sets))

    def pooled_at_once(self, count: int) -> list[dict[str, PerCall]]:
        """For few pools: all values of each."""
        found: list[dict[str, PerCall]] = [{} for _ in range(count)]
        for pool, *lists in self.query(
            f"SELECT {', '.join(('pool', *_percentiles(self.metrics)))} FROM resolved JOIN pools USING (target) "
            "GROUP BY pool"
        ):
            found[pool] = self._per_call(lists)
        return found

    def pooled_in_steps(self, count: int) -> list[dict[str, PerCall]]:
        """For pools that share many targets: only the values that lie near a percentile."""
        found: list[dict[str, PerCall]] = [{} for _ in range(count)]
        for metric in self.metrics:
            query = _POOLED_SQL.format(value=quoted(metric.name), bucket=_BUCKET.format(quoted(metric.name)))
            for pool, p10, median, p90 in self.query(query):
                found[pool][metric.name] = PerCall(median=median, p10=p10, p90=p90)
        return found

    def _per_call(self, lists: Sequence[Sequence[int] | None]) -> dict[str, PerCall]:
        return {
            metric.name: PerCall(median=several[1], p10=several[0], p90=several[2])
            for metric, several in zip(self.metrics, lists, strict=True)
            if several is not None and several[0] is not None
        }

    def _cover_executes(self) -> None:
        """How much of the submissions' wall time their dispatches cover, where there are submissions."""
        self.execute_covered = {metric.name: 0 for metric in self.metrics}
        if EXECUTE not in self.groups or "duration_ns" not in self.execute_covered:
            return
        told = self.query(f"SELECT sum({quoted(_OWN_COVERED)}) FROM resolved WHERE target = {EXECUTE}")
        covered = int(told[0][0] or 0)
        for run in self.runs:
            if _COVERED not in {name.strip().lower() for name in run.columns}:
                rows = self.query(_COVERED_SQL.format(events=events_sql(run)))
                covered += int(rows[0][0] or 0)
        self.execute_covered["duration_ns"] = covered

    # ---- the engine

    def table(self, name: str, columns: str, rows: Sequence[Row]) -> None:
        """A temporary table of the engine's own, bound column by column."""
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} ({columns})")
        if rows:
            types = [column.split()[1] for column in columns.split(", ")]
            lists = ", ".join(f"unnest(CAST(? AS {kind}[]))" for kind in types)
            cells = [list(column) for column in zip(*rows, strict=True)]
            self.connection.execute(f"INSERT INTO {name} SELECT {lists}", cells)

    def query(self, text: str) -> list[Row]:
        """All rows of a query.

        Raises:
            RunInvalid: a cell is not what its column says.
        """
        import duckdb

        try:
            return self.connection.execute(text).fetchall()
        except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.OutOfRangeException) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> RunInvalid:
        for run in self.runs:
            explained = explain_bad_cell(run, error)
            if "line " in str(explained) or "row " in str(explained) or len(self.runs) == 1:
                return explained
        return RunInvalid(f"a run cannot be read: {error}")


_OWN_COVERED = "covered by dispatches"
"""Column of `resolved`; a name that no metric has, as metrics are named by files."""

# Roots are rounded correctly, so that larger values never have smaller buckets; one is about a hundredth wide.
_BUCKET = "CAST(sign({0}) * floor(sqrt(sqrt(abs({0}))) * 16) AS BIGINT)"

# Percentiles over pools of targets. First counts by bucket, which tell the bucket of each percentile and its rank
# there; then only values of these buckets are looked at one by one. Rank k of n is the least k with k/n >= p.
_POOLED_SQL = """
WITH member AS (SELECT DISTINCT target FROM pools),
     counted AS MATERIALIZED (SELECT target, {bucket} AS bucket, count(*) AS n FROM resolved SEMI JOIN member
                              USING (target) WHERE {value} IS NOT NULL GROUP BY ALL),
     pooled AS (SELECT pool, bucket, sum(n) AS n FROM counted JOIN pools USING (target) GROUP BY ALL),
     ranked AS (SELECT pool, bucket, n, sum(n) OVER (PARTITION BY pool ORDER BY bucket) AS upto,
                       sum(n) OVER (PARTITION BY pool) AS total FROM pooled),
     wanted AS MATERIALIZED (
        SELECT pool, tenths, bucket, (total * tenths + 9) // 10 - (upto - n) AS place
        FROM ranked, (VALUES (1), (5), (9)) AS percentile(tenths)
        WHERE (total * tenths + 9) // 10 > upto - n AND (total * tenths + 9) // 10 <= upto),
     needed AS (SELECT DISTINCT target, bucket FROM wanted JOIN pools USING (pool)),
     value AS (SELECT target, {bucket} AS bucket, {value} AS value, count(*) AS n
               FROM resolved SEMI JOIN needed ON resolved.target = needed.target AND {bucket} = needed.bucket
               GROUP BY ALL),
     placed AS (SELECT pool, tenths, value, place, sum(sum(n)) OVER (PARTITION BY pool, tenths ORDER BY value) AS upto
                FROM value JOIN pools USING (target) JOIN wanted USING (pool, bucket)
                GROUP BY pool, tenths, value, place)
SELECT pool, min(value) FILTER (tenths = 1), min(value) FILTER (tenths = 5), min(value) FILTER (tenths = 9)
FROM placed WHERE upto >= place GROUP BY pool ORDER BY pool
"""

# The union of a submission's dispatch intervals, clipped to the submission: dispatches overlap on several workers.
_COVERED_SQL = """
WITH event AS (SELECT kind, submission_id, start_ns, start_ns + duration_ns AS end_ns FROM ({events})
               WHERE NOT warmup AND submission_id IS NOT NULL AND start_ns IS NOT NULL AND duration_ns IS NOT NULL
               AND kind IN ('dispatch', 'execute')),
     span AS (SELECT submission_id, start_ns AS span_start, end_ns AS span_end FROM event WHERE kind = 'execute'),
     part AS (SELECT submission_id, greatest(start_ns, span_start) AS s, least(end_ns, span_end) AS e
              FROM event JOIN span USING (submission_id) WHERE kind = 'dispatch'),
     ordered AS (SELECT s, e, max(e) OVER (PARTITION BY submission_id ORDER BY s, e
                                           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached FROM part)
SELECT CAST(sum(greatest(0, e - greatest(s, coalesce(reached, s)))) AS BIGINT) FROM ordered
"""


def _common_metrics(runs: Sequence[Run]) -> tuple[Metric, ...]:
    """The metrics that all runs have (a sum over some runs would be nobody's): times first, then as in the file.

    Runs that have seen nothing but steps do not count here.
    """
    own = [[metric for metric in run.metrics if metric not in run.step_metrics] for run in runs]
    several = [metrics for metrics in own if metrics]
    if not several:
        return ()
    names = set.intersection(*({metric.name for metric in metrics} for metrics in several))
    common = [metric for metric in several[0] if metric.name in names]
    times = [metric for name in TIME_METRICS for metric in common if metric.name == name]
    found = (*times, *(metric for metric in common if metric not in times))
    if not found:
        raise UsageInvalid("the runs have no metric in common: attribute them one at a time")
    return found


def _step_metrics(runs: Sequence[Run]) -> tuple[Metric, ...]:
    """The metrics of steps that any run has: a run without samples has not seen none."""
    known = {metric.name: metric for run in runs for metric in run.step_metrics}
    both = sorted(known.keys() & {metric.name for metric in _common_metrics(runs)})
    if both:
        raise UsageInvalid(f"{both[0]} is of dispatches in one run, of steps in another: attribute them one at a time")
    return tuple(known[name] for name in STEP_METRICS if name in known)


_OF_TARGETS = " FILTER (WHERE target >= 0)"
"""Nobody asks for the percentiles of what has no target."""


def _percentiles(metrics: Sequence[Metric], of: str = "") -> Sequence[str]:
    return [f"quantile_disc({quoted(metric.name)}, [0.1, 0.5, 0.9]){of}" for metric in metrics]


def _value(metric: Metric) -> str:
    name = quoted(metric.name)
    return f"CAST(round({name} * {MILLIONTHS}) AS BIGINT) AS {name}" if metric.type == "DOUBLE" else name
