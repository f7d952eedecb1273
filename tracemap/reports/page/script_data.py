"""The data that a page's script works on: page data as plain JSON values, short where there is one per op or line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from tracemap.reports.page.kernels_tab import kernel_page_json
from tracemap.reports.page.model import Amount, LineCost, LineLink, PageData, SourceLine, SourcePage, Spread
from tracemap.units import Unknown

Json = dict[str, Any]
"""A JSON object: what `json.dumps` takes."""

HEAT_LEVELS = 10
"""Each is a class in the style sheet, besides 0 for none."""

BAR_STEPS = 20
"""Of the width of a bar; each is a class in the style sheet."""


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
    """Page data as JSON: records as objects, but amounts `[exact, text, share]`, spreads and links as lists.

    Mappings are per metric and have every metric, in their order: their values alone are kept. Unknown is null.
    """
    if isinstance(value, Amount | Spread | LineLink):
        return [plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, LineCost):
        return [plain(value.attributed), plain(value.inclusive), heat_level(value)]
    if isinstance(value, Mapping):
        return [plain(each) for each in value.values()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(each) for each in value]
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return None if isinstance(value, Unknown) else value


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
