"""Attribution: SQL over a run's events joined to targets, then whole-number splitting over sites and members.

One scan reads each run's file and groups it by target; what comes back is a few rows per site. Percentiles of ops that
are members of several sites need the single values, which then are kept in a table of the engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracemap.attribution.join import Join, Target, join_run
from tracemap.attribution.model import (
    Attribution,
    MemberShare,
    MetricTotal,
    OpCost,
    OpResult,
    PerCall,
    ResidualReason,
    ResidualRow,
    Rule,
    RunSummary,
    SiteCost,
    SiteResult,
)
from tracemap.attribution.rules import weights
from tracemap.errors import RunInvalid, RunMismatch, UsageInvalid
from tracemap.graph.model import Diagnostic, Site, TraceGraph
from tracemap.measurements.model import TIME_METRICS, Metric, Peaks, Run
from tracemap.measurements.runfile import events_sql, explain_bad_cell
from tracemap.measurements.sql import quoted
from tracemap.units import UNKNOWN, Integer, plural, split_by_largest_remainder

if TYPE_CHECKING:
    import duckdb

Row = tuple[Any, ...]
"""A row as the engine hands it out: what it holds depends on the query."""

MILLIONTHS = 1_000_000
"""Metrics that are not whole numbers are attributed in millionths, so that they balance exactly too."""

_MEMORY_LIMIT = "700MB"

# Residual classes as they stand in the column `target` of grouped rows; sites' targets count from 0.
_UNMATCHED, _TRANSFER, _MEMORY, _EXECUTE = -1, -2, -3, -4
_REASON_OF = {
    _UNMATCHED: ResidualReason.UNMATCHED,
    _TRANSFER: ResidualReason.TRANSFER,
    _MEMORY: ResidualReason.MEMORY,
}


@dataclass(frozen=True, slots=True)
class Request:
    """What to attribute: a map, its SHA-256, runs of its module, and how to split."""

    graph: TraceGraph
    map_sha256: str
    runs: Sequence[Run]
    rule: Rule = Rule.MODEL
    allow_mismatch: bool = False


def attribute(request: Request) -> Attribution:
    """Join runs onto a map.

    Raises:
        RunMismatch: a run is of another module, and `allow_mismatch` is not set.
        RunInvalid: a cell is not what its column says.
        UsageInvalid: runs that must not be added up: of other devices or worker counts, or with no metric in common.
    """
    diagnostics = [*_check_runs(request), *_run_diagnostics(request.runs)]
    with _connection() as connection:
        scan = _Scan(connection, request)
        scan.load()
        sites = _SiteTotals(request.graph, scan)
        return _Assembly(request, scan, sites, diagnostics).result()


@contextmanager
def _connection() -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(f"SET memory_limit = '{_MEMORY_LIMIT}'")
        connection.execute("SET preserve_insertion_order = false")
        yield connection


def _check_runs(request: Request) -> list[Diagnostic]:
    """Refuse what must not be joined or added up; returns what a reader must know all the same."""
    found = []
    for run in request.runs:
        digest = run.header.module_sha256
        if not run.has_header or digest is UNKNOWN:
            text = f"{run.table.name} does not say which module it was recorded from"
            found.append(Diagnostic("run-unverified", text))
        elif digest != request.graph.module.sha256:
            text = f"{run.table} was recorded from another module ({digest[:12]}…) than the map's"
            if not request.allow_mismatch:
                raise RunMismatch(f"{text} ({request.graph.module.sha256[:12]}…); record again, or --allow-mismatch")
            found.append(Diagnostic("run-mismatch", text))
    first = request.runs[0].header
    for run in request.runs[1:]:
        if (run.header.device, run.header.workers) != (first.device, first.workers):
            raise UsageInvalid(
                f"{run.table} ran on {run.header.device} with {run.header.workers} workers, {request.runs[0].table} on "
                f"{first.device} with {first.workers}: they do not add up; attribute them one at a time"
            )
    return found


def _run_diagnostics(runs: Sequence[Run]) -> list[Diagnostic]:
    return [Diagnostic(each.slug, each.message) for run in runs for each in run.header.diagnostics]


@dataclass(frozen=True, slots=True)
class Group:
    """Grouped events of one target: how many, and per metric the sum and the percentiles of the single values."""

    events: int
    sums: Mapping[str, int]
    per_call: Mapping[str, PerCall]


@dataclass
class _Scan:
    """The SQL side: resolves targets, scans the runs' files, groups."""

    connection: duckdb.DuckDBPyConnection
    request: Request
    metrics: tuple[Metric, ...] = ()
    targets: list[Target] = field(default_factory=list)
    groups: dict[int, Group] = field(default_factory=dict)
    execute_covered: dict[str, int] = field(default_factory=dict)
    unknown_values: dict[str, int] = field(default_factory=dict)
    _target_ids: dict[Target, int] = field(default_factory=dict)

    def load(self) -> None:
        self.metrics = _common_metrics(self.request.runs)
        resolved = [self._resolved_sql(index, run) for index, run in enumerate(self.request.runs)]
        union = " UNION ALL BY NAME ".join(resolved)
        if self._needs_values():
            self._execute(f"CREATE TEMP TABLE resolved AS {union}")
            union = "SELECT * FROM resolved"
        self._group(union)
        self._cover_executes()

    def pooled_per_call(self, target_sets: Sequence[frozenset[int]]) -> list[dict[str, PerCall]]:
        """The percentiles over all events of each set of targets."""
        if not target_sets:
            return []
        rows = [(number, target) for number, targets in enumerate(target_sets) for target in sorted(targets)]
        self._table("pools", "pool INTEGER, target INTEGER", rows)
        lists = ", ".join(_percentiles(metric) for metric in self.metrics)
        found = self._execute(
            f"SELECT pool, {lists} FROM resolved JOIN pools USING (target) GROUP BY pool ORDER BY pool"
        )
        return [self._per_call(row[1:]) for row in found]

    def _needs_values(self) -> bool:
        """Whether percentiles over several targets can be asked for, so that single values must be kept."""
        seen: set[str] = set()
        for target in self.targets:
            for site in target.sites:
                for member in self.request.graph.site_by_id[site].members:
                    if member.op in seen:
                        return True
                seen.update(member.op for member in self.request.graph.site_by_id[site].members)
        return False

    def _resolved_sql(self, index: int, run: Run) -> str:
        """One run's events, warm-up left out, as target and metric values."""
        joined = join_run(self.request.graph, run.header)
        events = f"(SELECT * FROM ({events_sql(run)}) WHERE NOT warmup)"
        joins, found = self._joins(index, run, joined, events)
        kind = (
            f"CASE kind WHEN 'dispatch' THEN coalesce({found}, {_UNMATCHED}) WHEN 'execute' THEN {_EXECUTE} "
            f"WHEN 'copy' THEN {_TRANSFER} WHEN 'fill' THEN {_TRANSFER} WHEN 'update' THEN {_TRANSFER} "
            f"WHEN 'alloca' THEN {_MEMORY} WHEN 'dealloca' THEN {_MEMORY} ELSE {_UNMATCHED} END"
        )
        values = ", ".join(_value(metric) for metric in self.metrics)
        return f"SELECT CAST({kind} AS INTEGER) AS target, {values} FROM {events} AS event {joins}"

    def _joins(self, index: int, run: Run, joined: Join, events: str) -> tuple[str, str]:
        """The joins that find an event's target, the exact ones first; only those that the run's columns allow."""
        names = {name.strip().lower() for name in run.columns}
        joins: list[str] = []
        found: list[str] = []
        if "site" in names:
            self._table(f"sites_{index}", "site VARCHAR, by_site INTEGER", self._site_rows(joined))
            joins.append(f"LEFT JOIN sites_{index} USING (site)")
            found.append("by_site")
        if {"command_buffer_id", "command_index"} <= names and joined.by_command:
            self._command_tables(index, joined)
            joins.append(f"LEFT JOIN buffers_{index} USING (command_buffer_id)")
            joins.append(f"LEFT JOIN commands_{index} USING (buffer_group, command_index, kernel)")
            found.append("by_command")
        if {"submission_id", "command_index", "start_ns"} <= names and run.has_header:
            rows = self._sequence_rows(events, joined)
            if rows:
                self._table(f"places_{index}", "submission_id BIGINT, start_ns BIGINT, by_place INTEGER", rows)
                joins.append(f"LEFT JOIN places_{index} USING (submission_id, start_ns)")
                found.append("by_place")
        self._table(f"kernels_{index}", "kernel VARCHAR, by_kernel INTEGER", self._kernel_rows(joined))
        joins.append(f"LEFT JOIN kernels_{index} USING (kernel)")
        found.append("by_kernel")
        return " ".join(joins), f"coalesce({', '.join(found)})" if len(found) > 1 else found[0]

    def _command_tables(self, index: int, joined: Join) -> None:
        self._table(
            f"buffers_{index}",
            "command_buffer_id BIGINT, buffer_group INTEGER",
            list(joined.group_of_buffer.items()),
        )
        self._table(
            f"commands_{index}",
            "buffer_group INTEGER, command_index BIGINT, kernel VARCHAR, by_command INTEGER",
            [(key.group, key.command_index, key.kernel, self._id(target)) for key, target in joined.by_command.items()],
        )

    def _sequence_rows(self, events: str, joined: Join) -> list[tuple[int, int, int]]:
        """Targets of dispatches without a command index, by their place in their submission."""
        submissions = self._execute(
            f"SELECT submission_id, list(kernel ORDER BY start_ns), list(start_ns ORDER BY start_ns) FROM {events} "
            "WHERE kind = 'dispatch' AND command_index IS NULL AND submission_id IS NOT NULL GROUP BY submission_id"
        )
        rows = []
        for submission, kernels, starts in submissions:
            for start, target in zip(starts, joined.by_sequence.get(tuple(kernels), ()), strict=False):
                rows.append((submission, start, self._id(target)))
        return rows

    def _site_rows(self, joined: Join) -> list[tuple[str, int]]:
        return [(site, self._id(target)) for site, target in joined.by_site.items()]

    def _kernel_rows(self, joined: Join) -> list[tuple[str, int]]:
        return [(kernel, self._id(target)) for kernel, target in joined.by_kernel.items()]

    def _id(self, target: Target) -> int:
        if target not in self._target_ids:
            self._target_ids[target] = len(self.targets)
            self.targets.append(target)
        return self._target_ids[target]

    def _group(self, resolved: str) -> None:
        sums = ", ".join(f"CAST(sum({quoted(m.name)}) AS HUGEINT), count({quoted(m.name)})" for m in self.metrics)
        lists = ", ".join(_percentiles(metric) for metric in self.metrics)
        rows = self._execute(f"SELECT target, count(*), {sums}, {lists} FROM ({resolved}) GROUP BY target")
        count = len(self.metrics)
        for target, events, *values in sorted(rows):
            metric_sums = {m.name: int(values[2 * n] or 0) for n, m in enumerate(self.metrics)}
            self.groups[target] = Group(events, metric_sums, self._per_call(values[2 * count :]))
            if target >= 0:
                for n, metric in enumerate(self.metrics):
                    absent = events - values[2 * n + 1]
                    self.unknown_values[metric.name] = self.unknown_values.get(metric.name, 0) + absent

    def _per_call(self, lists: Sequence[Sequence[int] | None]) -> dict[str, PerCall]:
        found = {}
        for metric, values in zip(self.metrics, lists, strict=True):
            if values is not None and values[0] is not None:
                p10, median, p90 = values
                found[metric.name] = PerCall(median=median, p10=p10, p90=p90)
        return found

    def _cover_executes(self) -> None:
        """How much of the submissions' wall time their dispatches cover, where there are submissions."""
        self.execute_covered = {metric.name: 0 for metric in self.metrics}
        if _EXECUTE not in self.groups or "duration_ns" not in self.execute_covered:
            return
        for run in self.request.runs:
            rows = self._execute(_COVERED_SQL.format(events=events_sql(run)))
            self.execute_covered["duration_ns"] += int(rows[0][0] or 0)

    def _table(self, name: str, columns: str, rows: Sequence[Row]) -> None:
        """A temporary table of the engine's own, bound column by column."""
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} ({columns})")
        if rows:
            types = [column.split()[1] for column in columns.split(", ")]
            lists = ", ".join(f"unnest(CAST(? AS {kind}[]))" for kind in types)
            cells = [list(column) for column in zip(*rows, strict=True)]
            self.connection.execute(f"INSERT INTO {name} SELECT {lists}", cells)

    def _execute(self, query: str) -> list[Row]:
        import duckdb

        try:
            return self.connection.execute(query).fetchall()
        except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.OutOfRangeException) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> RunInvalid:
        for run in self.request.runs:
            explained = explain_bad_cell(run, error)
            if "line " in str(explained) or "row " in str(explained) or len(self.request.runs) == 1:
                return explained
        return RunInvalid(f"a run cannot be read: {error}")


# The union of a submission's dispatch intervals, clipped to the submission: dispatches overlap on several workers.
_COVERED_SQL = """
WITH event AS (SELECT kind, submission_id, start_ns, start_ns + duration_ns AS end_ns FROM ({events})
               WHERE NOT warmup AND submission_id IS NOT NULL AND start_ns IS NOT NULL AND duration_ns IS NOT NULL),
     span AS (SELECT submission_id, start_ns AS span_start, end_ns AS span_end FROM event WHERE kind = 'execute'),
     part AS (SELECT submission_id, greatest(start_ns, span_start) AS s, least(end_ns, span_end) AS e
              FROM event JOIN span USING (submission_id) WHERE kind = 'dispatch'),
     ordered AS (SELECT s, e, max(e) OVER (PARTITION BY submission_id ORDER BY s, e
                                           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached FROM part)
SELECT CAST(sum(greatest(0, e - greatest(s, coalesce(reached, s)))) AS BIGINT) FROM ordered
"""


def _common_metrics(runs: Sequence[Run]) -> tuple[Metric, ...]:
    """The metrics that all runs have (a sum over some runs would be nobody's): times first, then as in the file."""
    names = set.intersection(*({metric.name for metric in run.metrics} for run in runs))
    common = [metric for metric in runs[0].metrics if metric.name in names]
    times = [metric for name in TIME_METRICS for metric in common if metric.name == name]
    found = (*times, *(metric for metric in common if metric not in times))
    if not found:
        raise UsageInvalid("the runs have no metric in common: attribute them one at a time")
    return found


def _value(metric: Metric) -> str:
    name = quoted(metric.name)
    return f"CAST(round({name} * {MILLIONTHS}) AS BIGINT) AS {name}" if metric.type == "DOUBLE" else name


def _percentiles(metric: Metric) -> str:
    return f"quantile_disc({quoted(metric.name)}, [0.1, 0.5, 0.9])"


@dataclass
class _SiteTotals:
    """Calls and metric sums per site; targets of several sites are split evenly."""

    graph: TraceGraph
    scan: _Scan
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    sums: dict[str, dict[str, int]] = field(default_factory=dict)
    targets_of: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    split_events: int = 0

    def __post_init__(self) -> None:
        for number, target in enumerate(self.scan.targets):
            group = self.scan.groups.get(number)
            if group is not None:
                self._add(number, target, group)

    def _add(self, number: int, target: Target, group: Group) -> None:
        even = [1] * len(target.sites)
        if not target.exact:
            self.split_events += group.events
        for site, calls in zip(target.sites, split_by_largest_remainder(group.events, even), strict=True):
            self.calls[site] += calls
            self.targets_of[site].add(number)
        for metric, total in group.sums.items():
            for site, share in zip(target.sites, split_by_largest_remainder(total, even), strict=True):
                sums = self.sums.setdefault(site, {})
                sums[metric] = sums.get(metric, 0) + share

    def is_split(self, site: str) -> bool:
        """Whether events of the site could have been another's."""
        return any(not self.scan.targets[number].exact for number in self.targets_of[site])


@dataclass
class _Assembly:
    """Puts the result together from site totals."""

    request: Request
    scan: _Scan
    sites: _SiteTotals
    diagnostics: list[Diagnostic]
    _per_call: dict[frozenset[int], dict[str, PerCall]] = field(init=False)

    def __post_init__(self) -> None:
        self._per_call = self._pooled()

    def result(self) -> Attribution:
        graph = self.request.graph
        sites = tuple(self._site(site) for site in graph.sites if not site.initializer or self.sites.calls.get(site.id))
        ops = self._ops(sites)
        residual = self._residual()
        self._note(sites)
        return Attribution(
            map_sha256=self.request.map_sha256,
            rule=self.request.rule,
            run=_summary(self.request.runs),
            metrics=tuple(self._total(metric, ops, residual) for metric in self.scan.metrics),
            ops=ops,
            sites=sites,
            residual=residual,
            diagnostics=tuple(self.diagnostics),
        )

    @property
    def _peaks(self) -> Peaks:
        return self.request.runs[0].header.peaks

    def _targets_of_op(self) -> dict[str, frozenset[int]]:
        found: dict[str, set[int]] = defaultdict(set)
        for site in self.request.graph.sites:
            for member in site.members:
                found[member.op] |= self.sites.targets_of.get(site.id, set())
        return {op: frozenset(targets) for op, targets in found.items()}

    def _pooled(self) -> dict[frozenset[int], dict[str, PerCall]]:
        """Percentiles for every set of targets that a site or an op has events of."""
        sets = set(self._targets_of_op().values()) | {frozenset(targets) for targets in self.sites.targets_of.values()}
        several = sorted((each for each in sets if len(each) > 1), key=sorted)
        pooled = dict(zip(several, self.scan.pooled_per_call(several), strict=True))
        for number, group in self.scan.groups.items():
            pooled[frozenset({number})] = dict(group.per_call)
        return pooled

    def _site(self, site: Site) -> SiteResult:
        sums = self.sites.sums.get(site.id, {})
        per_call = self._per_call.get(frozenset(self.sites.targets_of.get(site.id, ())), {})
        metrics = {
            metric.name: SiteCost(sums.get(metric.name, 0), per_call.get(metric.name)) for metric in self.scan.metrics
        }
        shares, equal = self._shares(site, metrics)
        return SiteResult(
            site=site.id,
            calls=self.sites.calls.get(site.id, 0),
            metrics=metrics,
            shares=shares,
            split_evenly=self.sites.is_split(site.id),
            equal_members=equal,
        )

    def _shares(self, site: Site, metrics: Mapping[str, SiteCost]) -> tuple[tuple[MemberShare, ...], bool]:
        if not site.members:
            return (), False
        split = weights(self.request.rule, site, self._peaks)
        parts = {name: split.split(cost.total) for name, cost in metrics.items()}
        shares = tuple(
            MemberShare(member.op, {name: parts[name][place] for name in metrics})
            for place, member in enumerate(site.members)
        )
        return shares, split.equal

    def _ops(self, sites: Sequence[SiteResult]) -> tuple[OpResult, ...]:
        """Costs per op, for ops that are members of a site that can run, in the order of the model."""
        sums = _OpSums(self.request.graph, [metric.name for metric in self.scan.metrics])
        for site in sites:
            sums.add(site)
        targets = self._targets_of_op()
        return tuple(
            sums.result(op.id, self._per_call.get(targets.get(op.id, frozenset()), {}))
            for op in self.request.graph.ops
            if op.id in sums.calls
        )

    def _residual(self) -> tuple[ResidualRow, ...]:
        rows: dict[ResidualReason, tuple[int, dict[str, int]]] = {}
        for number, group in sorted(self.scan.groups.items(), reverse=True):
            if number in _REASON_OF:
                rows[_REASON_OF[number]] = (group.events, dict(group.sums))
        if _EXECUTE in self.scan.groups:
            group = self.scan.groups[_EXECUTE]
            covered = self.scan.execute_covered
            rows[ResidualReason.OVERHEAD] = (
                group.events,
                {name: total - covered[name] for name, total in group.sums.items()},
            )
            rows[ResidualReason.COUNTED_IN_DISPATCHES] = (group.events, dict(covered))
        made = self._compiler_made()
        if made is not None:
            rows[ResidualReason.COMPILER_MADE] = made
        return tuple(
            ResidualRow(reason, *rows[reason])
            for reason in ResidualReason
            if reason in rows and (any(rows[reason][1].values()) or reason is ResidualReason.UNMATCHED)
        )

    def _compiler_made(self) -> tuple[int, dict[str, int]] | None:
        """Sites that ran and have no member."""
        owned_by_nobody = [site.id for site in self.request.graph.sites if not site.members]
        calls = sum(self.sites.calls.get(site, 0) for site in owned_by_nobody)
        if not calls:
            return None
        return calls, {
            metric.name: sum(self.sites.sums.get(site, {}).get(metric.name, 0) for site in owned_by_nobody)
            for metric in self.scan.metrics
        }

    def _total(self, metric: Metric, ops: Sequence[OpResult], residual: Sequence[ResidualRow]) -> MetricTotal:
        measured = sum(group.sums[metric.name] for group in self.scan.groups.values())
        return MetricTotal(
            name=metric.name,
            unit="millionths" if metric.type == "DOUBLE" else metric.unit,
            aggregation=metric.aggregation,
            measured=measured,
            attributed=sum(op.metrics[metric.name].attributed for op in ops),
            residual=sum(row.metrics[metric.name] for row in residual),
        )

    def _note(self, sites: Sequence[SiteResult]) -> None:
        """What a reader must know before trusting the figures."""
        at_load = sum(1 for site in self.request.graph.sites if site.initializer)
        if at_load:
            text = f"{plural(at_load, 'site')} run at load, in no profile of the stock tools: not measured"
            self.diagnostics.append(Diagnostic("load-time-not-measured", text))
        if self.sites.split_events:
            text = (
                f"{plural(self.sites.split_events, 'event')} could be of several sites and were split evenly over them"
            )
            self.diagnostics.append(Diagnostic("split-evenly", text))
        equal = sum(1 for site in sites if site.equal_members and site.calls)
        if equal:
            text = f"the costs of the members of {plural(equal, 'site')} are unknown (dynamic shapes): split evenly"
            self.diagnostics.append(Diagnostic("equal-members", text))
        for metric, absent in self.scan.unknown_values.items():
            if absent:
                text = f"{plural(absent, 'dispatch event')} have no {metric}; they are not in its sum"
                self.diagnostics.append(Diagnostic("values-unknown", text))
        if not self.scan.groups:
            self.diagnostics.append(Diagnostic("no-events", "the run has no events: nothing was measured"))


@dataclass
class _OpSums:
    """Adds up site results per op."""

    graph: TraceGraph
    names: Sequence[str]
    calls: dict[str, int] = field(default_factory=dict)
    sums: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """(op, metric) -> inclusive, attributed, low."""

    def add(self, site: SiteResult) -> None:
        sole = len(site.shares) == 1
        for share in site.shares:
            self.calls[share.op] = self.calls.get(share.op, 0) + site.calls
            for name in self.names:
                whole = site.metrics[name].total
                sums = self.sums.setdefault((share.op, name), [0, 0, 0])
                sums[0] += whole
                sums[1] += share.attributed[name]
                sums[2] += whole if sole else 0

    def result(self, op: str, per_call: Mapping[str, PerCall]) -> OpResult:
        metrics = {}
        for name in self.names:
            inclusive, attributed, low = self.sums[op, name]
            metrics[name] = OpCost(inclusive, attributed, low=low, high=inclusive, per_call=per_call.get(name))
        return OpResult(op, self.calls[op], metrics)


def _summary(runs: Sequence[Run]) -> RunSummary:
    """Header values for the report; sums over several runs, unknown as soon as one is."""
    headers = [run.header for run in runs]
    return RunSummary(
        elapsed_ns=_sum([header.elapsed_ns for header in headers]),
        iterations=_sum([header.iterations for header in headers]),
        workers=headers[0].workers,
        device=headers[0].device,
        function=headers[0].function,
        command=headers[0].command,
    )


def _sum(values: Sequence[Integer]) -> Integer:
    known = [value for value in values if value is not UNKNOWN]
    return sum(known) if len(known) == len(values) else UNKNOWN
