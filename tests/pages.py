"""Pages of maps that tests make up, with their content at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tracemap.attribution.model import Attribution
from tracemap.attribution.timeline import Excerpt
from tracemap.map.model import SourceFile, TraceGraph
from tracemap.reports.cost_lookup import MapCosts
from tracemap.reports.escaping import for_script
from tracemap.reports.page import render
from tracemap.reports.page.model import Page
from tracemap.reports.page.source_tabs import KernelSources

NO_KERNELS: Final = KernelSources(lambda _: "", tuple)


def build_page(
    graph: TraceGraph,
    attribution: Attribution | None,
    source_text: Callable[[SourceFile], str],
    kernels: KernelSources = NO_KERNELS,
    excerpts: Sequence[Excerpt] = (),
    *,
    totals: bool = False,
) -> Page:
    """The content of a page of a map, with or without the costs of a run."""
    costed, texts = MapCosts(graph, attribution), render.texts_of(graph, source_text)
    data = render.page_data(costed, texts, kernels, excerpts, totals=totals)
    return Page(data, render.page_rows(costed, texts))


def render_page(page: Page) -> str:
    """The HTML text of a page."""
    return render.render_page(page.data, for_script(page.rows))
