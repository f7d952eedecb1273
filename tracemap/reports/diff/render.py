"""Data of a comparison to its page, one HTML file, and to the data that its script works on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tracemap.comparison.model import Comparison
from tracemap.comparison.sides import Compared
from tracemap.graph.bundle import Bundle
from tracemap.reports.diff.build import PageSide, build_diff_page
from tracemap.reports.diff.model import (
    DiffBox,
    DiffGroup,
    DiffLine,
    DiffMetric,
    DiffOp,
    DiffPage,
    DiffRemark,
    DiffScope,
    DiffSource,
)
from tracemap.reports.escaping import for_script
from tracemap.reports.highlight.colours import rules_of_mlir
from tracemap.reports.html.blocks import block_sizes, markup_of_lines
from tracemap.reports.html.document import APPLICATION, Kind, render, write_page
from tracemap.reports.page.kernels_tab import kernels_of
from tracemap.units import Unknown, format_mean, format_ns, format_share

_KIND: Final = Kind(
    template="diff/diff.html.j2",
    styles=(
        "shared/source.css",
        "shared/details.css",
        "shared/kernels.css",
        "shared/search.css",
        "pictures/pictures.css",
        "diff/diff.css",
    ),
    libraries=("vendor/charts.js",),
    scripts=(
        *APPLICATION,
        "diff/state.js",
        "shared/amounts.js",
        "diff/changes.js",
        "diff/sources.js",
        "diff/groups.js",
        "diff/cards.js",
        "shared/table.js",
        "shared/columns.js",
        "diff/tables.js",
        "diff/names.js",
        "shared/search.js",
        "diff/overview.js",
        "diff/kernels.js",
        "shared/moving.js",
        "diff/start.js",
    ),
)
MOST_FINDINGS: Final = 20
"""That stand unfolded."""
_LISTED: Final = (DiffOp, DiffLine, DiffBox, DiffGroup, DiffRemark, DiffScope)
"""Records that the script gets as lists of their fields."""


def write_diff_page(
    made: Comparison, before: tuple[Bundle, Compared], after: tuple[Bundle, Compared], target: Path, *, force: bool
) -> None:
    """Write the page of a comparison.

    Raises:
        TargetExists, TargetUnwritable: the page cannot be written.
    """
    sides = [
        PageSide(compared, bundle.source_text, kernels_of(bundle), bundle.path.resolve().parent)
        for bundle, compared in (before, after)
    ]
    write_page(render_diff_page(build_diff_page(made, *sides)), target, force=force)


def render_diff_page(page: DiffPage) -> str:
    """The whole HTML text of a page; the same comparison gives the same bytes."""
    return render(
        _KIND,
        page,
        sizes=block_sizes(dict(_sizes(page))),
        data=(for_script(diff_json(page)),),
        markup_of_lines=markup_of_lines,
        text=amount_text,
        most_findings=MOST_FINDINGS,
        share=format_share,
        time=lambda value: "–" if isinstance(value, Unknown) else format_ns(value),
    )


def amount_text(value: int, metric: DiffMetric) -> str:
    """An amount for people."""
    return format_mean(value, metric.shown[0].divisor, metric.shown_unit) if value else "0"


def _sizes(page: DiffPage) -> Iterator[tuple[str, tuple[int, int]]]:
    for source in page.sources:
        for text in source.texts:
            yield f"{text.side}{source.index}", (text.columns, len(text.rows))


def diff_json(page: DiffPage) -> dict[str, object]:
    """All that the script needs; what stands in the markup already is left out."""
    return {
        "fields": {kind.__name__: kind.__struct_fields__ for kind in _LISTED},
        "lexer": rules_of_mlir(),
        "metrics": page.metrics,
        "metric": page.metric,
        "totals": False,
        "sources": [_source_json(source) for source in page.sources],
        "ops": page.ops,
        "groups": page.groups,
        "kernels": page.kernels,
        "remarks": page.remarks,
        "scopes": page.scopes,
        "fates": page.fates,
    }


def _source_json(source: DiffSource) -> Mapping[str, object]:
    texts = [{"side": text.side, "colours": text.colours, "uses": text.uses} for text in source.texts]
    return {"label": source.label, "language": source.language, "same": source.same, "texts": texts}
