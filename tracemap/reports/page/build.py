"""Builds an annotated page from a map, an attribution (or none) and the texts kept in the bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracemap.attribution.model import Attribution
from tracemap.attribution.timeline import Excerpt
from tracemap.graph.model import SourceFile, TraceGraph
from tracemap.reports.costed import CostedMap, default_metric
from tracemap.reports.labels import lines_of, short_name
from tracemap.reports.page.families import families_of
from tracemap.reports.page.kernels_tab import NO_KERNELS, KernelSources, kernel_pages
from tracemap.reports.page.model import Page, PageData, PageRows
from tracemap.reports.page.overview_tab import balance, calls, coverage, elapsed_parts, facts, residual
from tracemap.reports.page.roofline import roofline_of
from tracemap.reports.page.source_tabs import source_page, source_rows
from tracemap.reports.page.table_tabs import Texts, hottest_ops, op_rows, scope_rows, site_rows
from tracemap.reports.page.timeline_tab import lengths_of, timeline_of
from tracemap.reports.page.together import together_of
from tracemap.reports.page.tree import trees_of


def build_page(
    graph: TraceGraph,
    attribution: Attribution | None,
    source_text: Callable[[SourceFile], str],
    kernels: KernelSources = NO_KERNELS,
    excerpts: Sequence[Excerpt] = (),
    *,
    totals: bool = False,
) -> Page:
    """A page: of the map alone, or of a map with the costs of a run.

    Args:
        graph: the map.
        attribution: what the ops cost, or None for a page of the map alone.
        source_text: gives the text of a source file, e.g. `Bundle.source_text`.
        kernels: what the inside of kernels is read from.
        excerpts: of each run the calls that the timeline shows; none for a page without one.
        totals: whether it shows sums over the run first, not what one invocation costs.
    """
    costed, texts = CostedMap(graph, attribution), texts_of(graph, source_text)
    return Page(page_data(costed, texts, kernels, excerpts, totals=totals), page_rows(costed, texts))


def texts_of(graph: TraceGraph, source_text: Callable[[SourceFile], str]) -> Texts:
    """The lines of the source files of a map, in their order."""
    return [lines_of(source_text(source)) for source in graph.sources]


def page_rows(costed: CostedMap, texts: Texts) -> PageRows:
    """What a page has for each line and op."""
    sources = zip(costed.graph.sources, texts, strict=True)
    return PageRows(
        source_rows=tuple(source_rows(costed, index, each, len(lines)) for index, (each, lines) in enumerate(sources)),
        ops=op_rows(costed, costed.graph.ops, texts),
    )


def page_data(
    costed: CostedMap, texts: Texts, kernels: KernelSources, excerpts: Sequence[Excerpt] = (), *, totals: bool
) -> PageData:
    """All else that a page has."""
    graph, attribution = costed.graph, costed.attribution
    families = families_of(graph) if attribution else {}
    sources = zip(graph.sources, texts, strict=True)
    return PageData(
        title=short_name(graph.sources[0].name) if graph.sources else graph.module.name,
        rule=attribution.rule if attribution else None,
        metric=default_metric(costed.metrics),
        totals=totals,
        calls=calls(costed.metrics),
        facts=facts(costed),
        coverage=coverage(costed),
        metrics=tuple(balance(metric) for metric in costed.metrics),
        residual=residual(costed),
        diagnostics=graph.diagnostics + (attribution.diagnostics if attribution else ()),
        sources=tuple(source_page(index, each, lines) for index, (each, lines) in enumerate(sources)),
        hottest=op_rows(costed, hottest_ops(costed), texts),
        sites=site_rows(costed),
        scopes=scope_rows(costed),
        kernels=kernel_pages(graph, attribution, kernels),
        elapsed=elapsed_parts(costed),
        trees=trees_of(costed, families),
        roofline=roofline_of(costed),
        timeline=timeline_of(costed, excerpts, families),
        lengths=lengths_of(costed, excerpts),
        together=together_of(costed, excerpts),
    )
