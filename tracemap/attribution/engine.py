"""Attribution: SQL over a run's events joined to targets, then whole-number splitting over sites and members.

What comes back from SQL (`scan`) is a few rows per target; the rest is arithmetic on whole numbers that balances.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tracemap.attribution.join import Target
from tracemap.attribution.model import (
    Attribution,
    MemberShare,
    MetricTotal,
    OpCost,
    OpResult,
    PerCall,
    ResidualReason,
    ResidualRow,
    RunSummary,
    SiteCost,
    SiteResult,
    TransferResult,
)
from tracemap.attribution.rules import weights
from tracemap.attribution.scan import EXECUTE, MEMORY, OUTSIDE_KERNELS, TRANSFER, UNMATCHED, Group, Scan
from tracemap.attribution.steps import MemberWeights, StepCounts
from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunMismatch, UsageInvalid
from tracemap.graph.model import OpId, Site, TraceGraph, Transfer
from tracemap.machine.images import Image
from tracemap.measurements.header import Peaks
from tracemap.measurements.model import INSTRUCTIONS, SAMPLES, TIME_METRICS, Metric, Run
from tracemap.measurements.sql import open_database
from tracemap.options.attribute import Rule
from tracemap.units import UNKNOWN, Integer, format_count, plural, split_by_largest_remainder

if TYPE_CHECKING:
    import duckdb

_MOST_NAMED = 5
"""Ambiguous targets that a diagnostic names."""

_REASON_OF = {
    UNMATCHED: ResidualReason.UNMATCHED,
    OUTSIDE_KERNELS: ResidualReason.OUTSIDE_KERNELS,
    TRANSFER: ResidualReason.TRANSFER,
    MEMORY: ResidualReason.MEMORY,
}


@dataclass(frozen=True, slots=True)
class Request:
    """What to attribute: a map, its SHA-256, runs of its module, and how to split.

    Without a rule the runs decide: `measured` where anything was seen inside of kernels, else `model`. `images` reads
    the module's machine code; it is asked only where runs have addresses.
    """

    graph: TraceGraph
    map_sha256: str
    runs: Sequence[Run]
    rule: Rule | None = None
    allow_mismatch: bool = False
    images: Callable[[], Sequence[Image]] = tuple


def attribute(request: Request) -> Attribution:
    """Join runs onto a map.

    Raises:
        RunMismatch: a run is of another module, and `allow_mismatch` is not set.
        RunInvalid: a cell is not what its column says.
        UsageInvalid: runs that must not be added up: of other devices or worker counts, or with no metric in common;
            the rule `measured`, where nothing was measured inside of kernels.
        ModuleInvalid: the machine code cannot be read.
    """
    diagnostics = [*_check_runs(request), *_run_diagnostics(request.runs)]
    with _connection() as connection:
        scan = Scan(connection, request.graph, request.runs)
        scan.load()
        sites = _SiteTotals(request.graph, scan)
        return _Assembly(request, _rule(request, scan), scan, sites, diagnostics).result()


def _rule(request: Request, scan: Scan) -> Rule:
    """The rule that was asked for; else what was seen inside of kernels decides."""
    seen = any(any(row.values) for row in scan.step_rows)
    if request.rule is Rule.MEASURED and not seen:
        raise UsageInvalid(
            "the rule `measured` needs a run that has seen the inside of kernels; record with --sample or --cache-sim"
        )
    return request.rule or (Rule.MEASURED if seen else Rule.MODEL)


@contextmanager
def _connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with open_database() as connection:
        connection.execute("SET preserve_insertion_order = false")
        # The size of a CSV is not known to the optimizer, which then takes all events for the small side of a join and
        # keeps them in memory. Our joins are written in the right order.
        connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
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


@dataclass
class _SiteTotals:
    """Calls and metric sums per site; targets of several sites are split evenly."""

    graph: TraceGraph
    scan: Scan
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

    def steps(self, images: Callable[[], Sequence[Image]]) -> StepCounts:
        """What was seen inside of kernels; of a target that is several sites, each has a part."""
        names = [metric.name for metric in self.scan.step_metrics]
        rows = [row for row in self.scan.step_rows if row.target >= 0]
        return StepCounts(self.graph, names, rows, self._parts_of, images)

    def _parts_of(self, number: int, seen: str) -> tuple[Sequence[str], Sequence[int]]:
        """Samples fall where time passes; counts of a simulator are the same on every call of the same code."""
        sites = self.scan.targets[number].sites
        for time in TIME_METRICS if seen == SAMPLES else ():
            costs = [self.sums.get(site, {}).get(time, 0) for site in sites]
            if any(costs):
                return sites, costs
        calls = [self.calls.get(site, 0) for site in sites]
        return sites, calls if any(calls) else [1] * len(sites)

    def is_split(self, site: str) -> bool:
        """Whether events of the site could have been another's."""
        return any(not self.scan.targets[number].exact for number in self.targets_of[site])


@dataclass
class _Assembly:
    """Puts the result together from site totals."""

    request: Request
    rule: Rule
    scan: Scan
    sites: _SiteTotals
    diagnostics: list[Diagnostic]
    _per_call: dict[frozenset[int], dict[str, PerCall]] = field(init=False)
    _steps: StepCounts = field(init=False)
    _by_model: int = 0
    """Sites that the rule `measured` has nothing of."""

    def __post_init__(self) -> None:
        self._per_call = self._pooled()
        self._steps = self.sites.steps(self.request.images)

    def result(self) -> Attribution:
        graph = self.request.graph
        ran = self.sites.calls.keys() | self._steps.totals.keys()
        sites = tuple(self._site(site) for site in graph.sites if not site.initializer or site.id in ran)
        transfers = tuple(
            self._transfer(each) for each in graph.transfers if each.ops and self.sites.calls.get(each.id)
        )
        ops = self._ops(sites, transfers)
        residual = self._residual(sites)
        self._note(sites)
        return Attribution(
            map_sha256=self.request.map_sha256,
            rule=self.rule,
            run=_summary(self.request.runs),
            metrics=tuple(self._total(metric, ops, residual) for metric in self._metrics),
            ops=ops,
            sites=sites,
            residual=residual,
            diagnostics=tuple(self.diagnostics),
            transfers=transfers,
            kernels=self._steps.kernels,
        )

    @property
    def _metrics(self) -> tuple[Metric, ...]:
        return (*self.scan.metrics, *self.scan.step_metrics)

    @property
    def _peaks(self) -> Peaks:
        return self.request.runs[0].header.peaks

    def _targets_of_op(self) -> dict[str, frozenset[int]]:
        found: dict[str, set[int]] = defaultdict(set)
        for site in self.request.graph.sites:
            for member in site.members:
                found[member.op] |= self.sites.targets_of.get(site.id, set())
        for transfer in self.request.graph.transfers:
            for op in transfer.ops:
                found[op] |= self.sites.targets_of.get(transfer.id, set())
        return {op: frozenset(targets) for op, targets in found.items()}

    def _pooled(self) -> dict[frozenset[int], dict[str, PerCall]]:
        """Percentiles for every set of targets that a site or an op has events of."""
        sets = set(self._targets_of_op().values()) | {frozenset(targets) for targets in self.sites.targets_of.values()}
        several = sorted((each for each in sets if len(each) > 1), key=sorted)
        pooled = dict(zip(several, self.scan.pooled_per_call(several), strict=True))
        for number, group in self.scan.groups.items():
            pooled[frozenset({number})] = dict(group.per_call)
        return pooled

    def _costs(self, place: str) -> dict[str, SiteCost]:
        """The costs of a site or transfer, by metric name."""
        sums = {**self.sites.sums.get(place, {}), **self._steps.totals.get(place, {})}
        per_call = self._per_call.get(frozenset(self.sites.targets_of.get(place, ())), {})
        return {metric.name: SiteCost(sums.get(metric.name, 0), per_call.get(metric.name)) for metric in self._metrics}

    def _transfer(self, transfer: Transfer) -> TransferResult:
        metrics = self._costs(transfer.id)
        even = [1] * len(transfer.ops)
        parts = {name: split_by_largest_remainder(cost.total, even) for name, cost in metrics.items()}
        return TransferResult(
            transfer=transfer.id,
            calls=self.sites.calls.get(transfer.id, 0),
            metrics=metrics,
            shares=tuple(
                MemberShare(op, {name: parts[name][place] for name in metrics}) for place, op in enumerate(transfer.ops)
            ),
            split_evenly=self.sites.is_split(transfer.id),
        )

    def _site(self, site: Site) -> SiteResult:
        metrics = self._costs(site.id)
        found = SiteResult(
            site=site.id,
            calls=self.sites.calls.get(site.id, 0),
            metrics=metrics,
            shares=(),
            split_evenly=self.sites.is_split(site.id),
            equal_members=False,
        )
        if not site.members:
            return found
        basis = self._steps.basis(site) if self.rule is Rule.MEASURED else None
        if basis is None and found.calls and self.rule is Rule.MEASURED and len(site.members) > 1:
            self._by_model += 1
        estimate = weights(self.rule, site, self._peaks)
        by = self._weights_by_metric(site, basis or MemberWeights((*estimate.values, 0), seen=0, sampled=False))
        return replace(
            found,
            shares=_shares(site, metrics, by),
            nobody={name: by[name].split(cost.total)[-1] for name, cost in metrics.items()},
            equal_members=basis is None and estimate.equal,
        )

    def _weights_by_metric(self, site: Site, basis: MemberWeights) -> Mapping[str, MemberWeights]:
        """Metrics of steps go by themselves where the rule goes by what was seen, all others by the basis."""
        if self.rule is not Rule.MEASURED:
            return {metric.name: basis for metric in self._metrics}
        return {metric.name: self._steps.seen_at(site, metric.name) or basis for metric in self._metrics}

    def _ops(self, sites: Sequence[SiteResult], transfers: Sequence[TransferResult]) -> tuple[OpResult, ...]:
        """Costs per op, for ops of sites that can run and of transfers that did, in the order of the model."""
        sums = _OpSums(self.request.graph, [metric.name for metric in self._metrics])
        for site in sites:
            sums.add(site)
        for transfer in transfers:
            sums.add(transfer)
        targets = self._targets_of_op()
        return tuple(
            sums.result(op.id, self._per_call.get(targets.get(op.id, frozenset()), {}))
            for op in self.request.graph.ops
            if op.id in sums.calls
        )

    def _residual(self, sites: Sequence[SiteResult]) -> tuple[ResidualRow, ...]:
        rows: dict[ResidualReason, tuple[int, dict[str, int]]] = {}
        for number, group in sorted(self.scan.groups.items(), reverse=True):
            if number in _REASON_OF:
                rows[_REASON_OF[number]] = (group.events, dict(group.sums))
        if EXECUTE in self.scan.groups:
            group = self.scan.groups[EXECUTE]
            covered = self.scan.execute_covered
            rows[ResidualReason.OVERHEAD] = (
                group.events,
                {name: total - covered[name] for name, total in group.sums.items()},
            )
            rows[ResidualReason.COUNTED_IN_DISPATCHES] = (group.events, dict(covered))
        self._add_ownerless_transfers(rows)
        made = self._compiler_made()
        if made is not None:
            rows[ResidualReason.COMPILER_MADE] = made
        nobody = [site for site in sites if any(site.nobody.values())]
        if nobody:
            total = {m.name: sum(site.nobody.get(m.name, 0) for site in nobody) for m in self._metrics}
            rows[ResidualReason.KERNEL_OVERHEAD] = (sum(site.calls for site in nobody), total)
        self._add_steps_of_none(rows)
        return tuple(
            ResidualRow(reason, rows[reason][0], {m.name: rows[reason][1].get(m.name, 0) for m in self._metrics})
            for reason in ResidualReason
            if reason in rows and (any(rows[reason][1].values()) or reason is ResidualReason.UNMATCHED)
        )

    def _add_ownerless_transfers(self, rows: dict[ResidualReason, tuple[int, dict[str, int]]]) -> None:
        """Transfers of the map that are of no op are residual as those that the map does not have."""
        for transfer in self.request.graph.transfers:
            sums = self.sites.sums.get(transfer.id)
            if sums and not transfer.ops:
                events, known = rows.get(ResidualReason.TRANSFER, (0, dict.fromkeys(sums, 0)))
                total = {name: known[name] + sums[name] for name in known}
                rows[ResidualReason.TRANSFER] = (events + self.sites.calls[transfer.id], total)

    def _add_steps_of_none(self, rows: dict[ResidualReason, tuple[int, dict[str, int]]]) -> None:
        """Rows of steps in kernels that the map does not have, and in none."""
        for row in self.scan.step_rows:
            if row.target < 0:
                events, known = rows.get(_REASON_OF[row.target], (0, {}))
                total = dict(known)
                for metric, value in zip(self.scan.step_metrics, row.values, strict=True):
                    total[metric.name] = total.get(metric.name, 0) + value
                rows[_REASON_OF[row.target]] = (events, total)

    def _compiler_made(self) -> tuple[int, dict[str, int]] | None:
        """Sites that ran and have no member."""
        owned_by_nobody = [site.id for site in self.request.graph.sites if not site.members]
        calls = sum(self.sites.calls.get(site, 0) for site in owned_by_nobody)
        if not calls and not any(site in self._steps.totals for site in owned_by_nobody):
            return None
        return calls, {
            metric.name: sum(self._costs(site)[metric.name].total for site in owned_by_nobody)
            for metric in self._metrics
        }

    def _total(self, metric: Metric, ops: Sequence[OpResult], residual: Sequence[ResidualRow]) -> MetricTotal:
        if metric in self.scan.step_metrics:
            place = self.scan.step_metrics.index(metric)
            measured = sum(row.values[place] for row in self.scan.step_rows)
        else:
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
                f"{plural(self.sites.split_events, 'event')} could be of several sites and were split evenly over "
                f"them: {self._ambiguous()}"
            )
            self.diagnostics.append(Diagnostic("split-evenly", text))
        if any(joined.surplus for joined in self.scan.joins):
            text = "more command buffers were recorded than the map has of their kind: another module has the same"
            self.diagnostics.append(Diagnostic("modules-alike", text))
        equal = sum(1 for site in sites if site.equal_members and site.calls)
        if equal:
            text = f"the costs of the members of {plural(equal, 'site')} are unknown (dynamic shapes): split evenly"
            self.diagnostics.append(Diagnostic("equal-members", text))
        for metric, absent in self.scan.unknown_values.items():
            if absent:
                text = f"{plural(absent, 'dispatch event')} have no {metric}; they are not in its sum"
                self.diagnostics.append(Diagnostic("values-unknown", text))
        self._note_steps()
        if not self.scan.groups and not self.scan.step_rows:
            self.diagnostics.append(Diagnostic("no-events", "the run has no events: nothing was measured"))

    def _note_steps(self) -> None:
        for metric in (SAMPLES, INSTRUCTIONS):
            if count := self._steps.spread[metric]:
                how = "the time that they took" if metric == SAMPLES else "how often they ran"
                text = f"{format_count(count)} {metric} name only kernels of several sites: spread over them by {how}"
                self.diagnostics.append(Diagnostic("steps-spread", text))
        if self.rule is not Rule.MEASURED:
            return
        text = (
            "shares of a kernel's ops are occupancy: how much of its time passed at their instructions, not how much "
            "less it would take without them, as what the processor does at once overlaps"
        )
        self.diagnostics.append(Diagnostic("shares-are-occupancy", text))
        if self._by_model:
            text = f"nothing was seen of the ops of {plural(self._by_model, 'site')}: split by the rule model"
            self.diagnostics.append(Diagnostic("split-by-model", text))

    def _ambiguous(self) -> str:
        """The candidates of ambiguous events, the most frequent first."""
        several = [
            (self.scan.groups[number].events, target)
            for number, target in enumerate(self.scan.targets)
            if not target.exact and number in self.scan.groups
        ]
        several.sort(key=lambda each: -each[0])
        named = [f"{format_count(events)} of {' or '.join(target.sites)}" for events, target in several[:_MOST_NAMED]]
        return "; ".join((*named, "…") if len(several) > _MOST_NAMED else named)


def _shares(site: Site, metrics: Mapping[str, SiteCost], by: Mapping[str, MemberWeights]) -> tuple[MemberShare, ...]:
    """A site's cost split over its members, by the weights of each metric."""
    parts = {name: by[name].split(cost.total) for name, cost in metrics.items()}
    bounds = {name: by[name].intervals(metrics[name].total) for name in metrics if by[name].sampled}
    return tuple(
        MemberShare(
            member.op,
            {name: parts[name][place] for name in metrics},
            {name: found[place] for name, found in bounds.items()},
        )
        for place, member in enumerate(site.members)
    )


@dataclass
class _OpSums:
    """Adds up site results per op."""

    graph: TraceGraph
    names: Sequence[str]
    calls: dict[str, int] = field(default_factory=dict)
    sums: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """(op, metric) -> inclusive, attributed, low."""
    sampled: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """(op, metric) -> bounds of what samples decided, as far as they lie from what was attributed."""

    def add(self, site: SiteResult | TransferResult) -> None:
        """Events that could be of other sites prove nothing of this one's."""
        sole = len(site.shares) == 1 and not site.split_evenly
        for share in site.shares:
            self.calls[share.op] = self.calls.get(share.op, 0) + site.calls
            for name in self.names:
                whole = site.metrics[name].total
                sums = self.sums.setdefault((share.op, name), [0, 0, 0])
                sums[0] += whole
                sums[1] += share.attributed[name]
                sums[2] += whole if sole else 0
                if name in share.sampled:
                    low, high = share.sampled[name]
                    bounds = self.sampled.setdefault((share.op, name), [0, 0])
                    bounds[0] += low - share.attributed[name]
                    bounds[1] += high - share.attributed[name]

    def result(self, op: OpId, per_call: Mapping[str, PerCall]) -> OpResult:
        metrics = {}
        for name in self.names:
            inclusive, attributed, low = self.sums[op, name]
            spread = self.sampled.get((op, name))
            metrics[name] = OpCost(
                inclusive,
                attributed,
                low=low,
                high=inclusive,
                per_call=per_call.get(name),
                sampled_low=UNKNOWN if spread is None else attributed + spread[0],
                sampled_high=UNKNOWN if spread is None else attributed + spread[1],
            )
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
