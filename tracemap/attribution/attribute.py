"""Attribution: SQL over a run's events joined to targets, then whole-number splitting over sites and members.

What comes back from SQL (`scan`) is a few rows per target; the rest is arithmetic on whole numbers that balances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from msgspec import structs

from tracemap.attribution.model import (
    NO_SERIES,
    NO_WORK,
    Attribution,
    Basis,
    MetricTotal,
    OpResult,
    ResidualRow,
    SiteResult,
)
from tracemap.attribution.result.diagnostics import check_something_matches, disagreements, result_diagnostics
from tracemap.attribution.result.residual import residual_rows
from tracemap.attribution.result.shares import (
    Splitting,
    Totals,
    bases,
    op_results,
    series_of,
    shares_of_invocations,
    site_results,
    totals,
    transfer_results,
)
from tracemap.attribution.scan.connection import IN_MILLIONTHS, Tables, open_tables
from tracemap.attribution.scan.scan import Scan, is_disturbed, percentiles, scan
from tracemap.attribution.steps.counts import StepCounts
from tracemap.attribution.steps.estimates import CodeEstimates, Numbers
from tracemap.attribution.weights import Weights, best_peaks
from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunMismatch, UsageInvalid
from tracemap.graph.documents import KeptEstimates
from tracemap.graph.model import Site, TraceGraph
from tracemap.machine.images import Image
from tracemap.measurements.elapsed import added
from tracemap.measurements.model import SAMPLES, UNOBSERVED, UNTIMED, Metric, Peaks, Run, RunHeader, differing_inputs
from tracemap.options.results import Rule
from tracemap.units import UNKNOWN, Integer, Text, plural, sum_of


def check_runs(graph: TraceGraph, runs: Sequence[Run], *, allow_mismatch: bool) -> list[Diagnostic]:
    """Refuse what must not be joined or added up; returns what a reader must know all the same.

    Raises:
        RunMismatch: a run is of another module, and `allow_mismatch` is not set.
        UsageInvalid: the runs are of other devices or worker counts.
    """
    found = list(_modules(graph, runs, allow_mismatch=allow_mismatch))
    check_addable([(run.file, run.header) for run in runs])
    return [*found, *_other_inputs(runs), *(each for run in runs for each in run.header.diagnostics)]


def _other_inputs(runs: Sequence[Run]) -> Iterator[Diagnostic]:
    """The first run that was called with other inputs than the first of its function: figures mix both."""
    first_of: dict[Text, Run] = {}
    for run in [each for each in runs if each.header.inputs]:
        first = first_of.setdefault(run.header.function, run)
        for number, one, other in differing_inputs([first.header.inputs], [run.header.inputs])[:1]:
            text = (
                f"argument {number} is {one} in {first.file_name}, {other} in {run.file_name}: what is said of a call "
                "is of calls with both; attribute them one at a time to tell these apart"
            )
            yield Diagnostic("settings-differ", text)
            return


def check_addable(runs: Sequence[tuple[str, RunHeader]]) -> None:
    """Refuse to add up runs, each with its file, of other devices or worker counts.

    Raises:
        UsageInvalid: they are.
    """
    (path, first), *others = runs
    for other, header in others:
        if (header.device, header.workers) != (first.device, first.workers):
            raise UsageInvalid(
                f"{other} ran on {_where(header)}, {path} on {_where(first)}: they do not add up; "
                "attribute them one at a time"
            )


def _where(header: RunHeader) -> str:
    """The device of a run and its workers, for a sentence."""
    device = "a device that it does not tell" if header.device is UNKNOWN else header.device
    return f"{device} with {plural(header.workers, 'worker')}" if isinstance(header.workers, int) else str(device)


def _modules(graph: TraceGraph, runs: Sequence[Run], *, allow_mismatch: bool) -> Iterator[Diagnostic]:
    """Which runs are, or may be, of another module than the map's."""
    for run in runs:
        digest = run.header.module_sha256
        if not run.has_header or digest is UNKNOWN:
            text = f"{run.file_name} does not say which module it was recorded from"
            if not run.has_header and "command_buffer_id" in map(str.lower, run.columns):
                text += (
                    ", nor what its command buffers hold, as the header that `record` writes beside a CSV does: sites "
                    "that share a kernel have even parts of its calls"
                )
            yield Diagnostic("run-unverified", text)
        elif digest != graph.module.sha256:
            text = f"{run.file} was recorded from another module ({digest[:12]}…) than the map's"
            if not allow_mismatch:
                raise RunMismatch(f"{text} ({graph.module.sha256[:12]}…); record again, or --allow-mismatch")
            yield Diagnostic("run-mismatch", text)


@dataclass(frozen=True, slots=True)
class Request:
    """What to attribute: a map, its SHA-256, runs of its module, and how to split.

    Without a rule the runs decide: `measured` where enough was seen inside of kernels, else `code`, and `model` where
    the module has no machine code. `images` reads that. `kept` has what the bundle keeps of estimates that were made
    of it, and `keep` takes those to keep; `numbers` are those that kernels are called with, asked for where the program
    computes sizes. `keep_disturbed`: what calls take beyond the
    fence of calls like them is split over ops as all else. `series`: what ops cost in each invocation is kept, too.
    `memory_mb`: what rows may hold of the memory; 0: what the
    machine can spare. `peaks`: what the rule `model` goes by in place of what the runs tell, so that runs which are
    compared are split alike.
    """

    graph: TraceGraph
    map_sha256: str
    runs: Sequence[Run]
    rule: Rule | None = None
    allow_mismatch: bool = False
    images: Callable[[], Sequence[Image]] = tuple
    keep_disturbed: bool = False
    memory_mb: int = 0
    series: bool = False
    peaks: Peaks | None = None
    kept: Callable[[], KeptEstimates] = KeptEstimates
    keep: Callable[[KeptEstimates], object] = bool
    numbers: Callable[[], Numbers] = dict


@dataclass(frozen=True, slots=True)
class Joined:
    """An attribution, with what it was made of: what happened at each place, and the events, for as long as it is open.

    `tables` has them as the table `resolved` (`scan.rows`).
    """

    result: Attribution
    places: Totals
    tables: Tables


def attribute(request: Request) -> Attribution:
    """Join runs onto a map.

    Raises:
        TracemapError: as `joined` does.
    """
    with joined(request) as made:
        return made.result


@contextmanager
def joined(request: Request) -> Iterator[Joined]:
    """The same, with its events.

    Raises:
        RunMismatch: a run is of another module or has no kernel of the map, and `allow_mismatch` is not set.
        RunInvalid: a cell is not what its column says, or a file is damaged.
        UsageInvalid: runs that must not be added up: of other devices or worker counts, or with no metric in common;
            the rule `measured`, where nothing was measured inside of kernels.
        ModuleInvalid: the machine code cannot be read.
    """
    graph = request.graph
    diagnostics = check_runs(graph, request.runs, allow_mismatch=request.allow_mismatch)
    with open_tables(request.runs, request.memory_mb) as tables:
        seen = scan(tables, graph, request.runs, keep_disturbed=request.keep_disturbed)
        if not request.allow_mismatch:
            check_something_matches(graph, tables, seen)
        places = totals(seen)
        yield Joined(_result(request, tables, places, diagnostics), places, tables)


FEW_SAMPLES: Final = 100
"""With fewer samples in all kernels the share of an op that has half of them is not known to within 10 points."""


def _rule(wanted: Rule | None, inside: Counter[str], images: Callable[[], Sequence[Image]]) -> Rule:
    """The rule that was asked for; else what was seen inside of kernels decides, if it is more than a few samples.

    Without that it is the machine code, where the module has some.
    """
    if wanted is Rule.MEASURED and not inside.total():
        raise UsageInvalid(
            "the rule `measured` needs a run that has seen the inside of kernels; record with --sample or --cache-sim"
        )
    decides = _is_counted(inside) or inside[SAMPLES] >= FEW_SAMPLES
    if wanted or decides:
        return wanted or Rule.MEASURED
    return Rule.CODE if any(image.functions for image in images()) else Rule.MODEL


def _seen_inside(seen: Scan) -> Counter[str]:
    """What was seen inside of kernels, by metric."""
    found = Counter[str]()
    for row in seen.step_rows:
        if row.kernel:
            found.update({metric.name: value for metric, value in zip(seen.step_metrics, row.values, strict=True)})
    return found


def _is_counted(inside: Counter[str]) -> bool:
    """Whether more was seen than samples."""
    return inside.total() > inside[SAMPLES]


def _of_samples(rule: Rule, inside: Counter[str]) -> Iterator[Diagnostic]:
    """Samples that are too few to decide by."""
    if 0 < inside[SAMPLES] < FEW_SAMPLES:
        if rule is Rule.MEASURED and _is_counted(inside):
            decides = "kernels' costs are split by simulated instructions"
        elif rule in (Rule.CODE, Rule.MODEL):
            decides = f"the rule {rule.value} splits kernels' costs"
        else:
            decides = f"the rule {rule.value} was asked for"
        lie = f"{plural(inside[SAMPLES], 'sample')} {'lies' if inside[SAMPLES] == 1 else 'lie'} in kernels"
        yield Diagnostic("few-samples", f"only {lie}, too few to decide by: {decides}; record longer")


def _result(request: Request, tables: Tables, of_places: Totals, diagnostics: Sequence[Diagnostic]) -> Attribution:
    """Everything that follows from what the runs have, in whole numbers."""
    graph, seen = request.graph, of_places.scan
    seen_inside = _seen_inside(seen)
    rule = _rule(request.rule, seen_inside, request.images)
    diagnostics = [*diagnostics, *_of_samples(rule, seen_inside)]
    per_call = percentiles(tables, seen, of_places.pools)
    metrics = (*seen.metrics, *seen.step_metrics)
    names = [metric.name for metric in metrics]
    steps = of_places.steps(graph, request.images)
    header = _added_up([run.header for run in request.runs])
    peaks = request.peaks or header.peaks
    headers = [run.header for run in request.runs]
    estimates = CodeEstimates(graph, request.images, headers, request.kept, peaks, request.numbers)
    inside = bases(graph, rule, steps, estimates, of_places.places.keys())
    by = Splitting(rule, peaks, header.workers, names, of_places, steps, per_call, inside)
    sites, transfers = site_results(graph, by), transfer_results(graph, by)
    of_works = {**{site.site: site for site in sites}, **{each.transfer: each for each in transfers}}
    # A call of one function says nothing of how a call of another differs from it.
    functions = tuple(dict.fromkeys(run.header.function for run in request.runs))
    shares = shares_of_invocations(tables, of_places, of_works) if len(functions) == 1 else {}
    disagree = tuple(disagreements([*_evidence(graph, sites, steps, estimates)]))
    if estimates.made:
        request.keep(estimates.all_made())
    ops = op_results(graph, of_works, of_places, shares, disturbed=is_disturbed(request.runs))
    residual = residual_rows(graph, of_places, sites, names)
    series = series_of(tables, of_places, of_works) if request.series else NO_SERIES
    return Attribution(
        map_sha256=request.map_sha256,
        rule=rule,
        run=header,
        metrics=tuple(_total(metric, request.runs, seen, ops, residual) for metric in metrics),
        ops=ops,
        sites=sites,
        residual=residual,
        diagnostics=(*diagnostics, *result_diagnostics(graph, sites, by, disagree)),
        transfers=transfers,
        kernels=steps.kernels,
        series=series,
        functions=functions,
        disagreements=disagree,
    )


def _evidence(
    graph: TraceGraph, sites: Sequence[SiteResult], steps: StepCounts, estimates: CodeEstimates
) -> Iterator[tuple[Site, Mapping[Basis, Weights]]]:
    """What each way tells of the members of sites whose inside was seen."""
    for result in sites:
        site = graph.site_by_id[result.site]
        seen = {Basis.SAMPLES: steps.sampled(site), Basis.SIMULATED: steps.simulated(site)}
        if len(site.members) > 1 and any(each is not None for each in seen.values()):
            told = {**seen, Basis.CODE: estimates.weights(site)}
            yield site, {way: weights for way, weights in told.items() if weights is not None}


def _added_up(headers: Sequence[RunHeader]) -> RunHeader:
    """The header of all runs: the first one's, with what adds up, and the best peaks; of several there is no median
    call.
    """
    untimed = {"invocation": UNTIMED, "disturbance": UNOBSERVED, "devices": ()}
    of_one: dict[str, Any] = {} if len(headers) == 1 else untimed
    for name in ("line_bytes", "simulated_line_bytes"):
        of_one[name] = _common([getattr(header, name) for header in headers])
    return structs.replace(
        headers[0],
        function=headers[0].function if len({header.function for header in headers}) == 1 else UNKNOWN,
        elapsed_ns=sum_of([header.elapsed_ns for header in headers]),
        iterations=sum_of([header.iterations for header in headers]),
        launches=sum(header.launches for header in headers),
        elapsed=added([header.elapsed for header in headers]),
        peaks=best_peaks([header.peaks for header in headers]),
        **of_one,
    )


def _common(values: Sequence[Integer]) -> Integer:
    """The one value of those that tell any; unknown where they differ."""
    known = {value for value in values if value is not UNKNOWN}
    return known.pop() if len(known) == 1 else UNKNOWN


def _total(
    metric: Metric, runs: Sequence[Run], seen: Scan, ops: Sequence[OpResult], residual: Sequence[ResidualRow]
) -> MetricTotal:
    measured = seen.measured(metric)
    return MetricTotal(
        name=metric.name,
        unit=IN_MILLIONTHS if metric.type == "DOUBLE" else metric.unit,
        aggregation=metric.aggregation,
        measured=measured,
        attributed=sum(op.metrics[metric.name].attributed for op in ops),
        residual=sum(row.metrics[metric.name] for row in residual),
        work=measured - sum(row.metrics[metric.name] for row in residual if row.reason in NO_WORK),
        invocations=_invocations(metric.name, runs),
    )


def _invocations(metric: str, runs: Sequence[Run]) -> Integer:
    """In how many calls a metric was measured, over the runs that have it."""
    have = [(run, each) for run in runs for each in run.metrics if each.name == metric]
    # A call of one function and one of another have no common cost.
    alike = len({run.header.function for run, _ in have}) == 1
    return sum_of([run.invocations_of(each) for run, each in have]) if alike else UNKNOWN
