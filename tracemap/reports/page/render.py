"""The annotated page: made from a map and an attribution, and rendered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Final

from tracemap.attribution.call_statistics import BINS_OF_OCTAVE
from tracemap.attribution.timeline import Excerpt
from tracemap.core.process.forked import in_child_process
from tracemap.core.units import Unknown, format_mean, format_share, plural
from tracemap.map.build_cost import BuildCost, build_cost
from tracemap.map.bundle import Bundle
from tracemap.map.memory_use import MemoryUse
from tracemap.map.model import SourceFile, TraceGraph
from tracemap.reports.advice import notices
from tracemap.reports.cost_lookup import MapCosts, default_metric
from tracemap.reports.escaping import as_shown, for_script, lines_of, short_name
from tracemap.reports.highlight import rules_of_mlir
from tracemap.reports.html import (
    APPLICATION,
    LINES_PER_BLOCK,
    SHADES,
    TINTS,
    PageKind,
    block_sizes,
    markup_of_lines,
    render,
    tints,
    write_page,
)
from tracemap.reports.page.memory import memory_curves
from tracemap.reports.page.model import (
    MemberRow,
    OpCostRow,
    OpRow,
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
    advice_of,
    balance,
    building_tables,
    calls,
    coverage,
    elapsed_shares,
    facts,
    families_of,
    invocations_of_elapsed,
    overhead_rows,
    roofline_of,
    unattributed,
)
from tracemap.reports.page.source_tabs import (
    KernelSources,
    kernel_pages,
    kernels_of,
    order_of_sources,
    source_page,
    source_rows,
)
from tracemap.reports.page.table_tabs import (
    Texts,
    correlations_by_site,
    hottest_ops,
    op_rows,
    scope_rows,
    site_rows,
    trees_of,
)
from tracemap.reports.page.timeline_tab import histograms_by_site, timeline_of

# ---- build


def texts_of(graph: TraceGraph, source_text: Callable[[SourceFile], str]) -> Texts:
    """The lines of the map's source files, in order."""
    return [lines_of(source_text(source)) for source in graph.sources]


def page_rows(costed: MapCosts, texts: Texts) -> PageRows:
    """The rows of source lines and ops."""
    sources = zip(costed.graph.sources, texts, strict=True)
    return PageRows(
        source_rows=tuple(
            source_rows(costed, index, source, len(lines)) for index, (source, lines) in enumerate(sources)
        ),
        ops=op_rows(costed, costed.graph.ops, texts),
    )


def page_data(
    costed: MapCosts,
    texts: Texts,
    kernels: KernelSources,
    excerpts: Sequence[Excerpt] = (),
    memory: Sequence[MemoryUse] = (),
    *,
    totals: bool,
    building: BuildCost | None = None,
) -> PageData:
    """The content of a page without its rows."""
    graph, attribution = costed.graph, costed.attribution
    families = families_of(graph) if attribution else {}
    sources = zip(graph.sources, texts, strict=True)
    order, nodes = order_of_sources(costed), sum(op.name.startswith("onnx.") for op in graph.ops)
    return PageData(
        title=_title(costed, order, nodes),
        order=order,
        nodes=nodes,
        notices=notices(costed),
        advice=advice_of(costed),
        rule=attribution.rule if attribution else None,
        metric=default_metric(costed.metrics),
        totals=totals,
        calls=calls(costed.metrics),
        facts=facts(costed),
        building=() if building is None else building_tables(building, graph),
        coverage=coverage(costed),
        metrics=tuple(balance(metric) for metric in costed.metrics),
        unattributed=unattributed(costed),
        diagnostics=graph.diagnostics + (attribution.diagnostics if attribution else ()),
        sources=tuple(source_page(index, source, lines) for index, (source, lines) in enumerate(sources)),
        hottest=op_rows(costed, hottest_ops(costed), texts),
        sites=site_rows(costed),
        scopes=scope_rows(costed),
        kernels=kernel_pages(costed, kernels),
        elapsed=elapsed_shares(costed),
        overhead=overhead_rows(costed),
        invocations=invocations_of_elapsed(costed),
        trees=trees_of(costed, families),
        roofline=roofline_of(costed),
        timeline=timeline_of(costed, excerpts, families),
        lengths=histograms_by_site(costed, excerpts),
        together=correlations_by_site(costed, excerpts),
        memory=memory_curves(graph, memory),
    )


def _title(costed: MapCosts, order: Sequence[int], nodes: int) -> str:
    """The user's own source, and the name of the model made from it."""
    graph = costed.graph
    if not order:
        return graph.module.name
    model, first = short_name(graph.sources[0].name), short_name(graph.sources[order[0]].name)
    if order[0]:
        stem, name = PurePath(first).stem, PurePath(model).stem
        return first if stem == name else f"{first}: {name}"
    return f"{PurePath(model).stem} (ONNX)" if nodes else model


# ---- render


BAR_STEPS = 20
"""Widths of bars; the style sheet has a class for each of them."""

_KIND = PageKind(
    template="page/page.html.j2",
    styles=(
        "shared/source.css",
        "shared/details.css",
        "shared/heat.css",
        "shared/kernels.css",
        "shared/splitter.css",
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
"""Records that the script gets as lists of field values."""


_ALIKE = ("sites", "scopes", "kernels", "elapsed", "trees", "roofline", "timeline", "lengths", "together")
"""Fields that the script gets as they are."""


def page_json(page: PageData) -> dict[str, object]:
    """The data of the page's script, without rows and without what is in the markup."""
    return {
        "fields": {kind.__name__: kind.__struct_encode_fields__ for kind in _LISTED},
        "lexer": rules_of_mlir(),
        **{name: getattr(page, name) for name in ("metrics", "metric", "totals", "calls", "rule", "invocations")},
        "sources": [
            {
                "label": source.label,
                "language": source.language,
                "colours": source.colours,
                "text": None if source.in_markup else as_shown("\n".join(source.text)),
            }
            for source in page.sources
        ],
        **{name: getattr(page, name) for name in _ALIKE},
        "bins_of_octave": BINS_OF_OCTAVE,
        "lines_per_block": LINES_PER_BLOCK,
        "shades": len(SHADES),
        "tints": TINTS,
    }


def bar_width(exact: int, measured: int) -> int:
    """A share in steps from 0 to `BAR_STEPS`; every share above 0 is at least 1."""
    if exact <= 0 or measured <= 0:
        return 0
    return min(BAR_STEPS, max(1, round(BAR_STEPS * exact / measured)))


_WORTH_A_PROCESS: Final = 5000
"""Number of ops from which making their rows takes much longer than starting a process."""


def write_bundle_page(
    bundle: Bundle,
    costed: MapCosts,
    target: Path,
    excerpts: Callable[[], Sequence[Excerpt]] = lambda: (),
    memory: Sequence[MemoryUse] = (),
    *,
    force: bool,
    totals: bool = False,
) -> None:
    """Write the page of a bundle, with or without the costs of a run.

    `excerpts` reads the invocations for the timeline, per run. `memory` is the memory of the functions to show.

    Raises:
        TargetExists, TargetUnwritable: the page cannot be written.
        BundleInvalid: a source cannot be read.
        TracemapError: `excerpts` failed.
    """
    texts = texts_of(costed.graph, bundle.source_text)

    def rows() -> bytes:
        return for_script(page_rows(costed, texts))().encode()

    with in_child_process(rows, worth_it=len(costed.graph.ops) >= _WORTH_A_PROCESS) as encoded_rows:
        building = build_cost(bundle) if bundle.timing() is not None else None
        data = page_data(costed, texts, kernels_of(bundle), excerpts(), memory, totals=totals, building=building)
        text = render_page(data, lambda: encoded_rows().decode())
    write_page(text, target, force=force)


def render_page(page: PageData, rows: Callable[[], str]) -> str:
    """The HTML text of a page; `rows` returns the rows as encoded by `for_script`, and may block."""
    return render(
        _KIND,
        page,
        sizes=tints()
        + block_sizes({f"F{source.index}": (source.columns, len(source.text)) for source in page.sources}),
        # The data follows the markup, and is compressed in parallel with it.
        data=(for_script(page_json(page)), rows),
        sources=[page.sources[index] for index in page.order],
        markup_of_lines=markup_of_lines,
        amount=partial(amount_text, totals=page.totals),
        plural=plural,
        calls=lambda count: format_mean(count, page.calls[page.totals], "count"),
        of_elapsed=lambda value, unit="ns": format_mean(value, 1 if page.totals else page.invocations, unit),
        per_gap=lambda row: format_mean(row.ns, row.gaps, "ns"),
        share=format_share,
        is_known=lambda value: not isinstance(value, Unknown),
        bar=bar_width,
    )
