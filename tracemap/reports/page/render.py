"""Page data to the annotated page, one HTML file."""

from __future__ import annotations

from tracemap.attribution.model import Attribution
from tracemap.graph.bundle import Bundle
from tracemap.reports.html.blocks import block_sizes, in_blocks
from tracemap.reports.html.document import Kind, render
from tracemap.reports.page.build import build_page
from tracemap.reports.page.kernels_tab import kernels_of
from tracemap.reports.page.model import PageData
from tracemap.reports.page.script_data import bar_width, heat_level, page_json
from tracemap.units import format_count

_KIND = Kind(
    template="page/page.html.j2",
    styles=("shared/source.css", "shared/details.css", "page/heat.css", "page/kernels.css"),
    scripts=(
        "shared/data.js",
        "shared/views.js",
        "shared/details.js",
        "shared/keys.js",
        "page/state.js",
        "page/lines.js",
        "page/cards.js",
        "page/select.js",
        "page/table.js",
        "page/tables.js",
        "page/overview.js",
        "page/start.js",
        "page/rows.js",
        "page/kernels.js",
    ),
)


def bundle_page(bundle: Bundle, attribution: Attribution | None) -> str:
    """The whole HTML text of the page of a bundle, with the costs of a run or without."""
    return render_page(build_page(bundle.graph, attribution, bundle.source_text, kernels_of(bundle)))


def render_page(page: PageData) -> str:
    """The whole HTML text of a page."""
    return render(
        _KIND,
        page,
        sizes=block_sizes({f"F{source.index}": (source.columns, len(source.lines)) for source in page.sources}),
        data=page_json(page),
        in_blocks=in_blocks,
        measured={metric.name: metric.measured.exact for metric in page.metrics},
        count=format_count,
        level=heat_level,
        bar=bar_width,
    )
