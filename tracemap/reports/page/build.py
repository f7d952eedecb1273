"""Builds the data of an annotated page from a map, an attribution (or none) and the texts kept in the bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from tracemap.attribution.model import RESIDUAL_TEXTS, Attribution, MetricTotal, ResidualReason
from tracemap.graph.model import Fate, SourceFile, TraceGraph
from tracemap.reports.page.join import Joined, amount, short_name, text_or_dash
from tracemap.reports.page.kernels import NO_KERNELS, KernelSources, kernel_pages
from tracemap.reports.page.model import Coverage, Fact, FateCount, MetricBalance, PageData, ResidualLine
from tracemap.reports.page.sources import source_page
from tracemap.reports.page.tables import op_rows, scope_rows, site_rows
from tracemap.units import Unknown, format_count, format_ns, format_share

DEFAULT_METRIC = "cpu_ns"
"""The metric shown first where a run has it: summed over workers, so it adds up."""


def build_page(
    graph: TraceGraph,
    attribution: Attribution | None,
    source_text: Callable[[SourceFile], str],
    kernels: KernelSources = NO_KERNELS,
) -> PageData:
    """The data of a page: of the map alone, or of a map with the costs of a run.

    Args:
        graph: the map.
        attribution: what the ops cost, or None for a page of the map alone.
        source_text: gives the text of a source file, e.g. `Bundle.source_text`.
        kernels: what the inside of kernels is read from.
    """
    joined = Joined(graph, attribution)
    sources = tuple(
        source_page(joined, index, source, source_text(source)) for index, source in enumerate(graph.sources)
    )
    return PageData(
        title=short_name(graph.sources[0].name) if graph.sources else graph.module.name,
        rule=attribution.rule if attribution else None,
        metric=default_metric(attribution) if attribution else "",
        facts=(*_module_facts(graph), *(_run_facts(attribution) if attribution else ())),
        coverage=_coverage(joined),
        metrics=tuple(_balance(metric) for metric in joined.metrics),
        residual=_residual(joined),
        diagnostics=graph.diagnostics + (attribution.diagnostics if attribution else ()),
        sources=sources,
        ops=op_rows(joined, sources),
        sites=site_rows(joined),
        scopes=scope_rows(joined),
        kernels=kernel_pages(graph, attribution, kernels),
    )


def default_metric(attribution: Attribution) -> str:
    """`cpu_ns` where the attribution has it, else its first metric; empty where it has none."""
    names = [metric.name for metric in attribution.metrics]
    return DEFAULT_METRIC if DEFAULT_METRIC in names else next(iter(names), "")


def explained_of_elapsed(attribution: Attribution) -> str:
    """How much of the elapsed time the run's rows account for; over 100 % where calls overlap, `–` where unknown.

    Submissions span their dispatches, so what is counted in both is taken once.
    """
    elapsed = attribution.run.elapsed_ns
    duration = next((metric for metric in attribution.metrics if metric.name == "duration_ns"), None)
    if isinstance(elapsed, Unknown) or duration is None:
        return "–"
    twice = sum(
        row.metrics["duration_ns"] for row in attribution.residual if row.reason is ResidualReason.COUNTED_IN_DISPATCHES
    )
    return format_share(duration.measured - twice, elapsed)


def _module_facts(graph: TraceGraph) -> Iterable[Fact]:
    module = graph.module
    yield Fact("module", module.name)
    yield Fact("SHA-256", module.sha256)
    yield Fact("compiler", module.iree_compiler)
    yield Fact("flags", " ".join(module.flags) or "–")


def _run_facts(attribution: Attribution) -> Iterable[Fact]:
    run = attribution.run
    yield Fact("function", text_or_dash(run.function))
    yield Fact("device", text_or_dash(run.device))
    yield Fact("workers", text_or_dash(run.workers))
    yield Fact("iterations", format_count(run.iterations))
    yield Fact("elapsed", format_ns(run.elapsed_ns))
    yield Fact("elapsed explained by rows", explained_of_elapsed(attribution))
    yield Fact("rule", attribution.rule.value)
    yield Fact("command", " ".join(run.command) or "–")


def _coverage(joined: Joined) -> Coverage:
    graph = joined.graph
    fates = Counter(op.fate for op in graph.ops)
    return Coverage(
        ops=len(graph.ops),
        by_fate=tuple(
            FateCount(fate.value, fates[fate], format_share(fates[fate], len(graph.ops)))
            for fate in Fate
            if fates[fate]
        ),
        sites=len(graph.sites),
        sites_with_members=sum(bool(site.members) for site in graph.sites),
        load_time_sites=sum(site.initializer for site in graph.sites),
        uncalled_sites=_uncalled_sites(joined),
        kernels=len(graph.kernels),
        inferred=sum(op.reason.inferred for op in graph.ops),
    )


def _uncalled_sites(joined: Joined) -> int:
    if joined.attribution is None:
        return 0
    called = {result.site for result in joined.site_results.values() if result.calls}
    return sum(not site.initializer and site.id not in called for site in joined.graph.sites)


def _balance(metric: MetricTotal) -> MetricBalance:
    return MetricBalance(
        metric.name,
        metric.unit,
        metric.aggregation,
        measured=amount(metric.measured, metric),
        attributed=amount(metric.attributed, metric),
        residual=amount(metric.residual, metric),
    )


def _residual(joined: Joined) -> tuple[ResidualLine, ...]:
    rows = joined.attribution.residual if joined.attribution else ()
    return tuple(
        ResidualLine(row.reason.value, RESIDUAL_TEXTS[row.reason], row.events, joined.amounts(row.metrics))
        for row in rows
    )
