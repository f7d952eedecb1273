"""Attribution: SQL joins a run's events to targets; integer arithmetic splits their costs over sites and ops.

SQL (`scan`) returns a few rows per target. The arithmetic after it is exact, so that the result balances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import structs

from tracemap.attribution.diagnostics import (
    check_something_matches,
    disagreements,
    result_diagnostics,
    unattributed_rows,
)
from tracemap.attribution.kernel_lines.counts import StepCounts
from tracemap.attribution.kernel_lines.estimates import CodeEstimates, Numbers
from tracemap.attribution.model import (
    EXCLUDED_REASONS,
    NO_SERIES,
    Attribution,
    Basis,
    MetricTotal,
    OpResult,
    SiteResult,
    UnattributedRow,
)
from tracemap.attribution.overhead import find_overhead
from tracemap.attribution.sampled_times import with_sampling_error
from tracemap.attribution.scan.connection import IN_MILLIONTHS, Tables, open_tables
from tracemap.attribution.scan.scan import Scan, is_noisy, percentiles, scan
from tracemap.attribution.shares import (
    SplitInput,
    Totals,
    op_results,
    series_of,
    shares_of_invocations,
    site_results,
    totals,
    transfer_results,
    weights_by_site,
)
from tracemap.attribution.weights import Weights, best_peaks
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunMismatch, UsageInvalid
from tracemap.core.units import UNKNOWN, Text, plural, sum_of
from tracemap.machine.images import Image
from tracemap.map.bundle_documents import StoredEstimates
from tracemap.map.model import Site, TraceGraph
from tracemap.options.results import Rule
from tracemap.runs.elapsed import summed_parts
from tracemap.runs.model import (
    SAMPLES,
    UNKNOWN_INVOCATION,
    UNKNOWN_NOISE,
    Metric,
    Peaks,
    Run,
    RunHeader,
    differing_inputs,
)


def check_runs(graph: TraceGraph, runs: Sequence[Run], *, allow_mismatch: bool) -> list[Diagnostic]:
    """Reject runs that cannot be joined to the map or added up; return diagnostics about the others.

    Raises:
        RunMismatch: a run was recorded from a different build, and `allow_mismatch` is not set.
        UsageInvalid: the runs are from different devices or have different worker counts.
    """
    module_notes = list(_module_diagnostics(graph, runs, allow_mismatch=allow_mismatch))
    check_addable([(run.file, run.header) for run in runs])
    run_notes = (note for run in runs for note in run.header.diagnostics)
    return [*module_notes, *_input_diagnostics(runs), *run_notes]


def _input_diagnostics(runs: Sequence[Run]) -> Iterator[Diagnostic]:
    """A note on the first run whose inputs differ from those of the first run of the same function."""
    first_run_of: dict[Text, Run] = {}
    for run in [run for run in runs if run.header.inputs]:
        first = first_run_of.setdefault(run.header.function, run)
        for number, first_input, other_input in differing_inputs([first.header.inputs], [run.header.inputs])[:1]:
            text = (
                f"argument {number} is {first_input} in {first.file_name}, {other_input} in {run.file_name}: figures "
                "per call mix both; attribute the runs separately to distinguish them"
            )
            yield Diagnostic("settings-differ", text)
            return


def check_addable(runs: Sequence[tuple[str, RunHeader]]) -> None:
    """Reject runs, given as (file, header), from different devices or with different worker counts.

    Raises:
        UsageInvalid: the runs cannot be added up.
    """
    (path, first), *others = runs
    for other, header in others:
        if (header.device, header.workers) != (first.device, first.workers):
            raise UsageInvalid(
                f"{other} ran on {_device_and_workers(header)}, {path} on {_device_and_workers(first)}: their costs do "
                "not add up; attribute the runs separately"
            )


def _device_and_workers(header: RunHeader) -> str:
    device = "an unknown device" if header.device is UNKNOWN else header.device
    return f"{device} with {plural(header.workers, 'worker')}" if isinstance(header.workers, int) else str(device)


def _module_diagnostics(graph: TraceGraph, runs: Sequence[Run], *, allow_mismatch: bool) -> Iterator[Diagnostic]:
    """Notes on runs that were, or may have been, recorded from a different build than the map's."""
    for run in runs:
        digest = run.header.module_sha256
        if not run.has_header or digest is UNKNOWN:
            text = f"{run.file_name} does not say which module it was recorded from"
            if not run.has_header and "command_buffer_id" in map(str.lower, run.columns):
                text += (
                    ", nor what its command buffers contain; dispatch sites that share a kernel get equal parts of its "
                    "calls. Keep the header (.json) that `record` writes next to a CSV"
                )
            yield Diagnostic("run-unverified", text)
        elif digest != graph.module.sha256:
            text = f"{run.file} was recorded from a different build (module {digest[:12]}…) than the map"
            if not allow_mismatch:
                raise RunMismatch(f"{text} ({graph.module.sha256[:12]}…); record again, or pass --allow-mismatch")
            yield Diagnostic("run-mismatch", text)


@dataclass(frozen=True, slots=True)
class Request:
    """Input of attribution: a map, its SHA-256, runs of its module, and how to split.

    Without a rule the runs decide: `measured` if they saw enough inside kernels, else `code`; `model` if the module has
    no machine code.

    Attributes:
        images: reads the machine code.
        keep_outliers: attribute outlier time to ops as well.
        memory_mb: memory limit for rows; 0: the memory that the machine can spare.
        series: also keep the costs of ops in each invocation.
        timed: also read when work ran, for `overhead` and `what_if`.
        peaks: replaces the peaks of the runs for the rule `model`, so that compared runs are split in the same way.
        kept: reads the estimates that the bundle keeps.
        keep: stores estimates in the bundle.
        numbers: the integer arguments of kernels, requested only if the program computes sizes.
    """

    graph: TraceGraph
    map_sha256: str
    runs: Sequence[Run]
    rule: Rule | None = None
    allow_mismatch: bool = False
    images: Callable[[], Sequence[Image]] = tuple
    keep_outliers: bool = False
    memory_mb: int = 0
    series: bool = False
    timed: bool = False
    peaks: Peaks | None = None
    kept: Callable[[], StoredEstimates] = StoredEstimates
    keep: Callable[[StoredEstimates], object] = bool
    numbers: Callable[[], Numbers] = dict


class OpenAttribution(msgspec.Struct, frozen=True):
    """An attribution with its inputs: totals per place, and the events while the connection is open.

    `tables` has the events as the table `resolved` (`scan.rows`).
    """

    result: Attribution
    places: Totals
    tables: Tables


def attribute(request: Request) -> Attribution:
    """Join runs onto a map.

    Raises:
        TracemapError: as `joined` does.
    """
    with open_attribution(request) as attribution:
        return attribution.result


@contextmanager
def open_attribution(request: Request) -> Iterator[OpenAttribution]:
    """Join runs onto a map, and keep the events open.

    Raises:
        RunMismatch: a run was recorded from a different build or has no kernel of the map, and `allow_mismatch` is not
            set.
        RunInvalid: a cell does not have its column's type, or a file is damaged.
        UsageInvalid: the runs cannot be added up (different devices or worker counts, or no common metric), or the rule
            is `measured` and nothing was measured inside kernels.
        ModuleInvalid: the machine code cannot be read.
    """
    graph = request.graph
    diagnostics = check_runs(graph, request.runs, allow_mismatch=request.allow_mismatch)
    with open_tables(request.runs, request.memory_mb) as tables:
        scan_result = scan(tables, graph, request.runs, keep_outliers=request.keep_outliers, timed=request.timed)
        if not request.allow_mismatch:
            check_something_matches(graph, tables, scan_result)
        places = totals(scan_result)
        yield OpenAttribution(_result(request, tables, places, diagnostics), places, tables)


FEW_SAMPLES: Final = 100
"""Samples in all kernels below which the share of an op that has half of them is uncertain by 10 points or more."""


def _rule(requested: Rule | None, inside: Counter[str], images: Callable[[], Sequence[Image]]) -> Rule:
    """The requested rule; else `measured` if kernels have counts or enough samples, `code`, or `model`."""
    if requested is Rule.MEASURED and not inside.total():
        raise UsageInvalid(
            "the rule `measured` needs samples or simulated counts inside kernels; record with --sample or --cache-sim"
        )
    if requested:
        return requested
    if inside.total() > inside[SAMPLES] or inside[SAMPLES] >= FEW_SAMPLES:
        return Rule.MEASURED
    return Rule.CODE if any(image.functions for image in images()) else Rule.MODEL


def _sums_inside_kernels(scan_result: Scan) -> Counter[str]:
    names = [metric.name for metric in scan_result.step_metrics]
    sums = Counter[str]()
    for row in scan_result.step_rows:
        if row.kernel:
            sums.update(dict(zip(names, row.values, strict=True)))
    return sums


def _sample_diagnostics(rule: Rule, inside: Counter[str]) -> Iterator[Diagnostic]:
    if 0 < inside[SAMPLES] < FEW_SAMPLES:
        if rule is Rule.MEASURED and inside.total() > inside[SAMPLES]:
            consequence = "kernels' costs are split by simulated instructions"
        elif rule in (Rule.CODE, Rule.MODEL):
            consequence = f"the rule {rule.value} splits kernels' costs"
        else:
            consequence = f"the rule {rule.value} was requested"
        samples = plural(inside[SAMPLES], "sample")
        yield Diagnostic("few-samples", f"only {samples} in kernels, too few to split by: {consequence}; record longer")


def _result(request: Request, tables: Tables, place_totals: Totals, diagnostics: Sequence[Diagnostic]) -> Attribution:
    """Split the totals of places over ops, in whole numbers."""
    graph, scan_result = request.graph, place_totals.scan
    sums_inside = _sums_inside_kernels(scan_result)
    rule = _rule(request.rule, sums_inside, request.images)
    diagnostics = [*diagnostics, *_sample_diagnostics(rule, sums_inside)]
    pools = [frozenset(total.targets) for total in place_totals.places.values()]
    per_call = percentiles(tables, scan_result, pools)
    metrics = (*scan_result.metrics, *scan_result.step_metrics)
    names = [metric.name for metric in metrics]
    steps = place_totals.steps(graph, request.images)
    headers = [run.header for run in request.runs]
    header = _combined_header(headers)
    peaks = request.peaks or header.peaks
    estimates = CodeEstimates(graph, request.images, headers, request.kept, peaks, request.numbers)
    site_weights = weights_by_site(graph, rule, steps, estimates, place_totals.places.keys())
    by = SplitInput(rule, peaks, header.workers, names, place_totals, steps, per_call, site_weights)
    sites, transfers = site_results(graph, by), transfer_results(graph, by)
    result_of_place = {**{site.site: site for site in sites}, **{copy.transfer: copy for copy in transfers}}
    # Invocations of different functions have no common distribution.
    functions = tuple(dict.fromkeys(run.header.function for run in request.runs))
    shares = shares_of_invocations(tables, place_totals, result_of_place) if len(functions) == 1 else {}
    disagree = tuple(disagreements([*_evidence(graph, sites, steps, estimates)]))
    if estimates.new:
        request.keep(estimates.all_estimates())
    ops = op_results(graph, result_of_place, place_totals, shares, noisy=is_noisy(request.runs))
    samples = next((scan_result.measured(metric) for metric in metrics if metric.name == SAMPLES), 0)
    ops = with_sampling_error(ops, header, samples)
    unattributed = unattributed_rows(graph, place_totals, sites, names)
    series = series_of(tables, place_totals, result_of_place) if request.series else NO_SERIES
    return Attribution(
        map_sha256=request.map_sha256,
        rule=rule,
        run=header,
        metrics=tuple(_total(metric, request.runs, scan_result, ops, unattributed) for metric in metrics),
        ops=ops,
        sites=sites,
        unattributed=unattributed,
        diagnostics=(*diagnostics, *result_diagnostics(graph, sites, by, disagree)),
        transfers=transfers,
        kernels=steps.kernels,
        series=series,
        functions=functions,
        disagreements=disagree,
        timed=scan_result.timed,
        overhead=find_overhead(graph, headers, scan_result),
    )


def _evidence(
    graph: TraceGraph, sites: Sequence[SiteResult], steps: StepCounts, estimates: CodeEstimates
) -> Iterator[tuple[Site, Mapping[Basis, Weights]]]:
    """The weights of ops by each kind of evidence, for sites with measurements inside their kernel."""
    for result in sites:
        site = graph.site_by_id[result.site]
        sampled, simulated = steps.sampled(site), steps.simulated(site)
        if len(site.members) > 1 and (sampled or simulated):
            weights = {Basis.SAMPLES: sampled, Basis.SIMULATED: simulated, Basis.CODE: estimates.weights(site)}
            yield site, {basis: own for basis, own in weights.items() if own is not None}


def _combined_header(headers: Sequence[RunHeader]) -> RunHeader:
    """One header for all runs: the first run's, with sums of what adds up, and the best peaks.

    Several runs have no common median invocation, so those fields are unknown then.
    """
    untimed = {"invocation": UNKNOWN_INVOCATION, "noise": UNKNOWN_NOISE, "devices": ()}
    replaced: dict[str, Any] = {} if len(headers) == 1 else untimed
    for name in ("line_bytes", "simulated_line_bytes"):
        known = {getattr(header, name) for header in headers} - {UNKNOWN}
        replaced[name] = known.pop() if len(known) == 1 else UNKNOWN
    return structs.replace(
        headers[0],
        function=headers[0].function if len({header.function for header in headers}) == 1 else UNKNOWN,
        elapsed_ns=sum_of([header.elapsed_ns for header in headers]),
        iterations=sum_of([header.iterations for header in headers]),
        launches=sum(header.launches for header in headers),
        elapsed=summed_parts([header.elapsed for header in headers]),
        peaks=best_peaks([header.peaks for header in headers]),
        **replaced,
    )


def _total(
    metric: Metric,
    runs: Sequence[Run],
    scan_result: Scan,
    ops: Sequence[OpResult],
    unattributed: Sequence[UnattributedRow],
) -> MetricTotal:
    measured = scan_result.measured(metric)
    with_metric = [(run, own) for run in runs for own in run.metrics if own.name == metric.name]
    # Invocations of different functions have no common cost.
    same_function = len({run.header.function for run, _ in with_metric}) == 1
    return MetricTotal(
        name=metric.name,
        unit=IN_MILLIONTHS if metric.type == "DOUBLE" else metric.unit,
        aggregation=metric.aggregation,
        measured=measured,
        attributed=sum(op.metrics[metric.name].attributed for op in ops),
        unattributed=sum(row.metrics[metric.name] for row in unattributed),
        work=measured - sum(row.metrics[metric.name] for row in unattributed if row.reason in EXCLUDED_REASONS),
        invocations=sum_of([run.invocations_of(own) for run, own in with_metric]) if same_function else UNKNOWN,
    )
