"""A badge of a store: the cost of a program per night as a small SVG picture, for a README."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import Final
from xml.etree import ElementTree

from tracemap._version import __version__
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import format_quantity, join_names, plural
from tracemap.reports.escaping import for_xml
from tracemap.runs.columns import unit_of
from tracemap.store.model import StoreSeries, StoreTrend, StoreTrends, model_headings

_HEIGHT: Final = 20
_LINE_WIDTH: Final = 80
"""Width of the line of nights."""
_MARGIN: Final = 6
_TOP, _BOTTOM = 4.0, 16.0
"""Vertical positions of the highest and the lowest cost."""
_CHARACTER: Final = 6.9
"""Mean width of a character of the font; that of Verdana, the widest of them."""
_LONGEST_NAME: Final = 24
_MOST_NIGHTS: Final = 30
_LEAST_RANGE: Final = 0.04
"""Least range of the vertical axis over the highest cost, so that noise looks flat."""

# The badge has its own background: a page may be dark while the reader's system is light. Contrast is at least 4.5.
_STYLE: Final = """
.back { fill: #ffffff; stroke: #d0d7de }
.name, .last { fill: #1f2328; font: 11px Verdana, "DejaVu Sans", Geneva, sans-serif }
.last { font-weight: bold }
.line { fill: none; stroke: #57606a; stroke-width: 1.25 }
.end { fill: #57606a }
.change { fill: #57606a; font: 11px Verdana, "DejaVu Sans", Geneva, sans-serif }
.slower { fill: #b42318 }
.faster { fill: #116329 }
@media (prefers-color-scheme: dark) {
 .back { fill: #161b22; stroke: #3d444d }
 .name, .last { fill: #e6edf3 }
 .line { stroke: #9198a1 }
 .end, .change { fill: #9198a1 }
 .slower { fill: #ff8a80 }
 .faster { fill: #57d977 }
}
"""


def trend_badge(trends: StoreTrends, threshold_percent: float) -> str:
    """The badge of a program: its name, a line of the last nights, the last cost, and the change.

    The change compares the last night with the median of the other nights of the line. Of the processor models of the
    last night, the badge shows the one that became slower by most; if none did, the one with the most nights.

    Args:
        trends: the answer of `store trend`, for one program.
        threshold_percent: changes below it have no colour and no arrow.

    Raises:
        UsageInvalid: there are several programs, or no op has a cost in every night.
    """
    trend, series = _one_program(trends, threshold_percent)
    points = series.points[-_MOST_NIGHTS:]
    costs, unit = [point.cost for point in points], unit_of(trends.metric)
    last = format_quantity(costs[-1], unit)
    change, kind = _change(costs, threshold_percent)
    name = trend.model if len(trend.model) <= _LONGEST_NAME else f"{trend.model[: _LONGEST_NAME - 1]}…"
    title = (
        f"{trend.model} on {series.cpu_model}: {last} of {trends.metric} per invocation, {points[-1].night}"
        f"{f'; {change} against the median of {plural(len(points) - 1, _night(trends))} before' if change else ''}"
    )
    return _drawn(title, name, costs, last, change, kind)


def _night(trends: StoreTrends) -> str:
    return "night" if trends.over == "date" else "compiler"


def _one_program(trends: StoreTrends, threshold_percent: float) -> tuple[StoreTrend, StoreSeries]:
    if len(trends.models) != 1:
        names = join_names([repr(heading) for heading in model_headings(trends.models)])
        raise UsageInvalid(
            f"--svg: the store has {plural(len(trends.models), 'program')}: {names}; select one with "
            "--where model=NAME, --where function=NAME or --where inputs=TYPES"
        )
    (trend,) = trends.models
    if not trend.program:
        raise UsageInvalid("--svg: no op has a cost in every night; select fewer, such as --where 'date>=2026-01-01'")
    newest = max(trend.in_order.index(series.points[-1].night) for series in trend.program)
    current = [series for series in trend.program if series.points[-1].night == trend.in_order[newest]]

    def rank(series: StoreSeries) -> tuple[float, int, str]:
        slower = max(threshold_percent, _percent([point.cost for point in series.points[-_MOST_NIGHTS:]]))
        return -slower, -len(series.points), series.cpu_model

    return trend, min(current, key=rank)


def _change(costs: Sequence[int], threshold_percent: float) -> tuple[str, str]:
    """The change of the last cost in words, and its style; empty for a single night."""
    if len(costs) < 2 or not any(costs[:-1]):
        return "", ""
    percent = _percent(costs)
    if abs(percent) < threshold_percent:
        return f"{percent:+.1f} %", ""
    return f"{'▲' if percent > 0 else '▼'} {percent:+.1f} %", "slower" if percent > 0 else "faster"


def _percent(costs: Sequence[int]) -> float:
    """The change of the last cost against the median of the others, in percent; 0 for a single one."""
    before = median_low(costs[:-1]) if len(costs) > 1 else 0
    return 100 * (costs[-1] - before) / before if before else 0.0


def _drawn(title: str, name: str, costs: Sequence[int], last: str, change: str, kind: str) -> str:
    name_end = _MARGIN + _width(name)
    line_end = name_end + _MARGIN + _LINE_WIDTH
    last_begin = line_end + _MARGIN + 2
    change_begin = last_begin + 1.12 * _width(last) + _MARGIN  # bold letters are wider
    width = round(change_begin + (_width(change) + _MARGIN if change else 0))
    svg = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": str(width),
            "height": str(_HEIGHT),
            "viewBox": f"0 0 {width} {_HEIGHT}",
            "role": "img",
            "aria-label": for_xml(title),
        },
    )
    ElementTree.SubElement(svg, "title").text = for_xml(title)
    ElementTree.SubElement(svg, "style").text = _STYLE
    size = {"x": "0.5", "y": "0.5", "width": str(width - 1), "height": str(_HEIGHT - 1), "rx": "3"}
    ElementTree.SubElement(svg, "rect", {"class": "back", **size})
    _write(svg, "name", _MARGIN, name)
    positions = _positions(costs, name_end + _MARGIN)
    if len(positions) > 1:
        points = " ".join(f"{x},{y}" for x, y in positions)
        ElementTree.SubElement(svg, "polyline", {"class": "line", "points": points})
    x, y = positions[-1]
    ElementTree.SubElement(svg, "circle", {"class": "end", "cx": str(x), "cy": str(y), "r": "2"})
    _write(svg, "last", last_begin, last)
    if change:
        _write(svg, f"change {kind}".strip(), change_begin, change)
    text = ElementTree.tostring(svg, encoding="unicode")
    return f"<!-- creator: tracemap {__version__} -->\n{text}\n"


def _width(text: str) -> float:
    return round(_CHARACTER * len(text), 1)


def _write(svg: ElementTree.Element, style: str, x: float, text: str) -> None:
    element = ElementTree.SubElement(svg, "text", {"class": style, "x": f"{x:.1f}", "y": "14"})
    element.text = for_xml(text)


def _positions(costs: Sequence[int], left: float) -> list[tuple[float, float]]:
    """The positions of the nights' costs, in order."""
    highest, lowest = max(costs), min(costs)
    span = max(highest - lowest, _LEAST_RANGE * highest, 1)
    middle = (highest + lowest) / 2
    step = _LINE_WIDTH / max(1, len(costs) - 1)
    begin = left if len(costs) > 1 else left + _LINE_WIDTH
    height, centre = _BOTTOM - _TOP, (_BOTTOM + _TOP) / 2
    return [
        (round(begin + index * step, 1), round(centre - height * (cost - middle) / span, 1))
        for index, cost in enumerate(costs)
    ]
