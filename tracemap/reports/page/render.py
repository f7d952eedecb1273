"""The annotated page: built from a map and an attribution, and rendered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tracemap.attribution.call_statistics import BINS_OF_OCTAVE
from tracemap.attribution.model import Attribution
from tracemap.attribution.timeline import Excerpt
from tracemap.forked import elsewhere
from tracemap.graph.bundle import Bundle
from tracemap.graph.model import SourceFile, TraceGraph
from tracemap.reports.cost_lookup import CostedMap, default_metric
from tracemap.reports.escaping import as_shown, for_script, lines_of, short_name
from tracemap.reports.highlight import rules_of_mlir
from tracemap.reports.html.document import (
    APPLICATION,
    LINES_PER_BLOCK,
    SHADES,
    TINTS,
    Kind,
    block_sizes,
    markup_of_lines,
    render,
    tints,
    write_page,
)
from tracemap.reports.page.kernels_tab import NO_KERNELS, KernelSources, kernel_pages, kernels_of
from tracemap.reports.page.model import (
    MemberRow,
    OpCostRow,
    OpRow,
    Page,
    PageData,
    PageRows,
    RoofPoint,
    ScopeRow,
    SiteCostRow,
    SiteRow,
    SlowCallRow,
    SourceLine,
    TimelineCall,
    TimelineItem,
    TreeNode,
    amount_text,
)
from tracemap.reports.page.overview_tab import (
    balance,
    calls,
    coverage,
    elapsed_parts,
    facts,
    families_of,
    residual,
    roofline_of,
)
from tracemap.reports.page.source_tabs import source_page, source_rows
from tracemap.reports.page.table_tabs import Texts, hottest_ops, op_rows, scope_rows, site_rows, together_of
from tracemap.reports.page.timeline_tab import lengths_of, timeline_of
from tracemap.reports.page.tree import trees_of
from tracemap.units import Unknown, format_mean, format_share, plural

# ---- build
#
# Builds an annotated page from a map, an attribution (or none) and the texts kept in the bundle.


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


# ---- render
#
# Page data to the annotated page, one HTML file, and to what its script works on.


BAR_STEPS = 20
"""Of the width of a bar; each is a class in the style sheet."""

_KIND = Kind(
    template="page/page.html.j2",
    styles=(
        "shared/source.css",
        "shared/details.css",
        "shared/heat.css",
        "shared/kernels.css",
        "shared/search.css",
        "page/page.css",
        "pictures/pictures.css",
        "pictures/timeline.css",
    ),
    libraries=("vendor/charts.js",),
    scripts=(
        *APPLICATION,
        "page/state.js",
        "shared/amounts.js",
        "page/texts.js",
        "page/lines.js",
        "page/folding.js",
        "page/minimap.js",
        "page/cards.js",
        "page/select.js",
        "shared/table.js",
        "shared/columns.js",
        "page/tables.js",
        "page/names.js",
        "shared/search.js",
        "pictures/icicle.js",
        "pictures/roofline.js",
        "pictures/overview.js",
        "pictures/histogram.js",
        "pictures/together.js",
        "pictures/spans.js",
        "pictures/timeline.js",
        "shared/moving.js",
        "page/start.js",
        "page/kernels.js",
    ),
)


_LISTED = (
    *(SourceLine, OpRow, OpCostRow, SiteRow, SiteCostRow, SlowCallRow, MemberRow, ScopeRow),
    *(TreeNode, RoofPoint, TimelineCall, TimelineItem),
)
"""Records that the script gets as lists of their fields."""


def page_json(page: PageData) -> dict[str, object]:
    """All that the script needs besides rows, as the codec takes it; what stands in the markup already is left out."""
    return {
        "fields": {kind.__name__: kind.__struct_fields__ for kind in _LISTED},
        "lexer": rules_of_mlir(),
        "metrics": page.metrics,
        "metric": page.metric,
        "totals": page.totals,
        "calls": page.calls,
        "sources": [
            {
                "label": source.label,
                "colours": source.colours,
                "text": None if source.in_markup else as_shown("\n".join(source.text)),
            }
            for source in page.sources
        ],
        "sites": page.sites,
        "scopes": page.scopes,
        "kernels": page.kernels,
        "elapsed": page.elapsed,
        "trees": page.trees,
        "roofline": page.roofline,
        "timeline": page.timeline,
        "lengths": page.lengths,
        "together": page.together,
        "bins_of_octave": BINS_OF_OCTAVE,
        "lines_per_block": LINES_PER_BLOCK,
        "shades": len(SHADES),
        "tints": TINTS,
    }


def bar_width(exact: int, measured: int) -> int:
    """A share in steps, 0 to `BAR_STEPS`; whatever is not nothing shows."""
    if exact <= 0 or measured <= 0:
        return 0
    return min(BAR_STEPS, max(1, round(BAR_STEPS * exact / measured)))


_WORTH_A_PROCESS: Final = 5000
"""From so many ops on it takes much longer to make their rows than to start a process."""


def write_bundle_page(
    bundle: Bundle,
    costed: CostedMap,
    target: Path,
    excerpts: Callable[[], Sequence[Excerpt]] = lambda: (),
    *,
    force: bool,
    totals: bool = False,
) -> None:
    """Write the page of a bundle, with the costs of a run, of one invocation or as sums, or without.

    `excerpts`: reads of each run the calls that its timeline shows.

    Raises:
        TargetExists, TargetUnwritable: the page cannot be written.
        BundleInvalid: the text of a source cannot be read.
        TracemapError: as `excerpts` does.
    """
    texts = texts_of(costed.graph, bundle.source_text)

    def rows() -> bytes:
        return for_script(page_rows(costed, texts))().encode()

    with elsewhere(rows, worth_it=len(costed.graph.ops) >= _WORTH_A_PROCESS) as made:
        data = page_data(costed, texts, kernels_of(bundle), excerpts(), totals=totals)
        text = _rendered(data, lambda: made().decode())
    write_page(text, target, force=force)


def render_page(page: Page) -> str:
    """The whole HTML text of a page."""
    return _rendered(page.data, for_script(page.rows))


def _rendered(page: PageData, rows: Callable[[], str]) -> str:
    """The same; `rows` gives those of the page, as `for_script` makes them, and may have to wait for them."""
    return render(
        _KIND,
        page,
        sizes=tints()
        + block_sizes({f"F{source.index}": (source.columns, len(source.text)) for source in page.sources}),
        # The data stands below the markup, and is compressed while that is made.
        data=(for_script(page_json(page)), rows),
        markup_of_lines=markup_of_lines,
        amount=partial(amount_text, totals=page.totals),
        plural=plural,
        calls=lambda count: format_mean(count, page.calls[page.totals], "count"),
        share=format_share,
        is_known=lambda value: not isinstance(value, Unknown),
        bar=bar_width,
    )
