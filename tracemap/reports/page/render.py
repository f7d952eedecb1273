"""Page data to the annotated page, one HTML file, and to the data that its script works on.

The script's data are plain JSON values, short where there is one per op or line.
"""

from __future__ import annotations

import functools
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from tracemap.attribution.model import Attribution
from tracemap.graph.bundle import Bundle
from tracemap.reports.html.blocks import block_sizes, in_blocks
from tracemap.reports.html.document import Kind, render, write_page
from tracemap.reports.page.build import build_page
from tracemap.reports.page.kernels_tab import kernel_page_json, kernels_of
from tracemap.reports.page.model import Amount, LineCost, LineLink, PageData, SourceLine, SourcePage, Spread
from tracemap.units import Unknown, format_count

Json = dict[str, Any]
"""A JSON object: what `json.dumps` takes."""

HEAT_LEVELS = 10
"""Each is a class in the style sheet, besides 0 for none."""

BAR_STEPS = 20
"""Of the width of a bar; each is a class in the style sheet."""

_KIND = Kind(
    template="page/page.html.j2",
    styles=("shared/source.css", "shared/details.css", "page/page.css"),
    scripts=(
        "shared/data.js",
        "shared/views.js",
        "shared/details.js",
        "shared/keys.js",
        "page/state.js",
        "page/lines.js",
        "page/cards.js",
        "page/select.js",
        "page/tables.js",
        "page/start.js",
        "page/rows.js",
        "page/kernels.js",
    ),
)


def page_json(page: PageData) -> Json:
    """All that the script needs; what is per metric is a list in the order of `metrics`."""
    names = [metric.name for metric in page.metrics]
    return {
        "metrics": [{"name": metric.name, "measured": metric.measured.exact} for metric in page.metrics],
        "metric": names.index(page.metric) if page.metric else -1,
        "sources": [_source(source) for source in page.sources],
        "ops": plain(page.ops),
        "sites": plain(page.sites),
        "scopes": plain(page.scopes),
        "kernels": [kernel_page_json(kernel) for kernel in page.kernels],
    }


def plain(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Page data as JSON: records as objects, but those that there are most of as lists, in the order of their fields.

    Mappings are per metric and have every metric, in their order: their values alone are kept.
    """
    # The most frequent kinds come first, by identity: a page of a large model has hundreds of thousands of values.
    kind: Any = value.__class__
    if kind in _SCALARS:
        return value
    if isinstance(value, Amount):
        return [value.exact, value.text, value.share]
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return [plain(each) for each in value.values()]
    if isinstance(value, str):
        return value
    if is_dataclass(value):
        names = _field_names(kind)
        # Names of fields would be most of the page where a row has a dozen of these for each metric.
        if kind in _AS_LISTS:
            return [plain(getattr(value, name)) for name in names]
        return {name: plain(getattr(value, name)) for name in names}
    assert isinstance(value, Unknown), f"no page data: {value!r}"
    return None


_SCALARS = frozenset({str, int, float, bool, type(None)})
_AS_LISTS = frozenset({LineCost, LineLink, Spread})


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - any class of page data
    return tuple(field.name for field in fields(kind))


def _source(source: SourcePage) -> Json:
    return {
        "label": source.label,
        "hottest": plain(source.hottest),
        "lines": {str(line.number): _line(line) for line in source.lines if line.ops or line.part_ops},
    }


def _line(line: SourceLine) -> Json:
    """What stands in the markup already is left out."""
    return {"ops": line.ops, "part_ops": line.part_ops, "sites": line.sites, "costs": plain(line.costs)}


def heat_level(cost: LineCost) -> int:
    """Heat in levels, 0 (none) to `HEAT_LEVELS`."""
    return 0 if cost.heat == 0 else max(1, round(cost.heat * HEAT_LEVELS))


def bar_width(exact: int, measured: int) -> int:
    """A share in steps, 0 to `BAR_STEPS`; whatever is not nothing shows."""
    if exact <= 0 or measured <= 0:
        return 0
    return min(BAR_STEPS, max(1, round(BAR_STEPS * exact / measured)))


def write_bundle_page(bundle: Bundle, attribution: Attribution | None, target: Path, *, force: bool) -> None:
    """Write the page of a bundle, with the costs of a run or without.

    Raises:
        TargetExists, TargetUnwritable: the page cannot be written.
    """
    page = build_page(bundle.graph, attribution, bundle.source_text, kernels_of(bundle))
    write_page(render_page(page), target, force=force)


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
