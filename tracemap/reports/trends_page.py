"""The page of `store trend`: level shifts, odd hosts and the most expensive ops of every model by night."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.core.codec import Record
from tracemap.core.units import Integer, format_quantity, plural
from tracemap.reports.escaping import file_line_if_known
from tracemap.reports.html import PageKind, render, write_page
from tracemap.runs.columns import unit_of
from tracemap.store.model import (
    StoreChange,
    StoreHost,
    StoreOpName,
    StorePoint,
    StoreTrend,
    StoreTrends,
    model_headings,
)

# ---- small multiples: one small picture per series, in the same style, for comparison


WIDTH: Final = 300
HEIGHT: Final = 88
BASE: Final = 70
_TOP: Final = 8
_LEFT: Final = 4
_MOST_TITLES: Final = 60
"""Most nights of a picture that have dots with tooltips."""


class Dot(Record, frozen=True):
    """A night: its position and tooltip."""

    x: float
    y: float
    text: str


class Picture(Record, frozen=True):
    """The picture of a series.

    Attributes:
        path: its line.
        dots: its nights.
        since: positions of level shifts.
        levels: start, end and height of the cost before and after a level shift.
        first: first night.
        last: last night.
        most: highest cost of the axis.
        least: lowest cost of the axis, empty: 0. Pictures of level shifts start above 0 to show small ones.
        summary: text for screen readers.
    """

    path: str
    dots: tuple[Dot, ...]
    since: tuple[float, ...]
    levels: tuple[tuple[float, float, float], ...]
    first: str
    last: str
    most: str
    least: str
    summary: str


def picture(
    points: Sequence[StorePoint], nights: Sequence[str], unit: str, since: str = "", levels: Sequence[int] = ()
) -> Picture:
    """Draw a series.

    Args:
        points: the nights' costs, at least one.
        nights: all nights of the axis, in order.
        unit: unit of the costs.
        since: the first night after a level shift.
        levels: the costs before and after a level shift.
    """
    index = {night: number for number, night in enumerate(nights)}
    costs = [*(point.cost for point in points), *levels]
    highest, lowest = max(*costs, 1), 0
    if since:
        lowest = max(0, min(costs) - (highest - min(costs)) // 2)
    axis = _Axis(lowest, highest)
    positions = [(_x(index[point.night], len(nights)), axis.y(point.cost)) for point in points]
    texts = [f"{point.night}: {format_quantity(point.cost, unit)}" for point in points]
    has_dots = len(positions) <= _MOST_TITLES
    dots = tuple(Dot(x, y, text) for (x, y), text in zip(positions, texts, strict=True)) if has_dots else ()
    return Picture(
        path=" ".join(f"{'L' if number else 'M'}{x} {y}" for number, (x, y) in enumerate(positions)),
        dots=dots,
        since=(_half_night_before(index, since, len(nights)),) if since in index else (),
        levels=tuple(_levels(index, since, [axis.y(level) for level in levels], len(nights))),
        first=nights[0],
        last=nights[-1],
        most=format_quantity(highest, unit),
        least=format_quantity(lowest, unit) if lowest else "",
        summary=f"{texts[0]}, {texts[-1]}",
    )


def _x(number: int, count: int) -> float:
    span = WIDTH - 2 * _LEFT
    return round(_LEFT + (span / 2 if count == 1 else number * span / (count - 1)), 1)


@dataclass(frozen=True, slots=True)
class _Axis:
    """The vertical axis, from its lowest to its highest cost."""

    lowest: int
    highest: int

    def y(self, cost: int) -> float:
        """The vertical position of a cost."""
        return round(BASE - (BASE - _TOP) * (cost - self.lowest) / max(1, self.highest - self.lowest), 1)


def _half_night_before(index: Mapping[str, int], since: str, count: int) -> float:
    """The position half a night before a level shift."""
    number = index[since]
    return round((_x(number, count) + _x(max(0, number - 1), count)) / 2, 1)


def _levels(
    index: Mapping[str, int], since: str, levels: Sequence[float], count: int
) -> Sequence[tuple[float, float, float]]:
    if since not in index or len(levels) != 2:
        return ()
    x = _half_night_before(index, since, count)
    before, after = levels
    return (_LEFT, x, before), (x, WIDTH - _LEFT, after)


# ---- render


_KIND: Final = PageKind(
    template="store/store.html.j2",
    styles=("store/store.css",),
    scripts=("shared/views.js", "shared/keys.js", "shared/panels.js"),
)


class ChangePanel(Record, frozen=True):
    """A level shift: its texts, and the picture of its series if it has one."""

    title: str
    where: str
    change: str
    slower: bool
    since: str
    about: str
    picture: Picture | None


class SeriesPanel(Record, frozen=True):
    """The costs of an op on a processor model by night."""

    title: str
    where: str
    last: str
    picture: Picture


class HostRow(Record, frozen=True):
    """A host that differs from others with the same processor."""

    host: str
    cpu_model: str
    op: str
    change: str
    hosts: int


class ModelPanel(Record, frozen=True):
    """The content of a model's tab."""

    anchor: str
    name: str
    facts: tuple[tuple[str, str], ...]
    changes: tuple[ChangePanel, ...]
    hosts: tuple[HostRow, ...]
    most_expensive: tuple[SeriesPanel, ...]


class TrendsPage(Record, frozen=True):
    """The content of the page."""

    title: str
    facts: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]
    models: tuple[ModelPanel, ...]


def write_trends_page(trends: StoreTrends, target: Path, *, force: bool) -> None:
    """Write the page.

    Raises:
        TargetExists: the file exists and `force` is not set.
        TargetUnwritable: the file cannot be written.
    """
    page = build_trends_page(trends)
    text = render(_KIND, page, title=page.title, width=WIDTH, height=HEIGHT, base=BASE)
    write_page(text, target, force=force)


def build_trends_page(trends: StoreTrends) -> TrendsPage:
    """Make the content of the page."""
    unit = unit_of(trends.metric)
    changes = sum(len(model.changes) for model in trends.models)
    facts = (
        ("runs", str(trends.looked.runs)),
        ("costs", f"{trends.metric} per invocation"),
        ("level shifts", str(changes)),
        ("incomplete runs", str(trends.looked.unfinished)),
        ("runs with a clock that is ahead", str(trends.looked.ahead)),
    )
    left_out = tuple(f"{skipped.file} {skipped.why}" for skipped in trends.looked.skipped)
    model_titles = zip(trends.models, model_headings(trends.models), strict=True)
    models = tuple(_model(model, title, f"m{number}", unit) for number, (model, title) in enumerate(model_titles))
    return TrendsPage("Trends in the store", facts, left_out, models)


def _model(trend: StoreTrend, title: str, anchor: str, unit: str) -> ModelPanel:
    measured = {point.night for series in trend.most_expensive for point in series.points}
    nights = [night for night in trend.in_order if night in measured]
    facts = (
        ("nights", str(trend.nights)),
        ("hosts", str(trend.hosts)),
        ("processor models", str(trend.cpu_models)),
        ("series", str(trend.series)),
        ("runs left out", str(trend.runs_left_out)),
    )
    return ModelPanel(
        anchor,
        title,
        facts,
        tuple(_change(change, unit) for change in trend.changes),
        tuple(map(_host, trend.outliers)),
        tuple(_most_expensive(trend, nights, unit)),
    )


def _change(change: StoreChange, unit: str) -> ChangePanel:
    exact = change.night_low == change.night_high
    since = change.night if exact else f"{change.night} (between {change.night_low} and {change.night_high})"
    levels = [cost for cost in (change.before, change.after) if isinstance(cost, int)]
    details = (
        f"{_cost(change.before, unit)} → {_cost(change.after, unit)}; {_percent(change.ratio_low)} to "
        f"{_percent(change.ratio_high)}; {change.hosts_agree} of {plural(change.hosts, 'host')}"
    )
    nights = [point.night for point in change.series]
    return ChangePanel(
        title=_op_title(change.op),
        where=f"{_text_or(change.cpu_model, 'all processors')}, {_text_or(change.host, 'all hosts')}",
        change=_percent(change.ratio),
        slower=change.kind == "slower",
        since=since,
        about=details,
        picture=picture(change.series, nights, unit, change.night, levels) if nights else None,
    )


def _most_expensive(trend: StoreTrend, nights: list[str], unit: str) -> Iterator[SeriesPanel]:
    for series in trend.most_expensive:
        yield SeriesPanel(
            title=_op_title(series.op),
            where=series.cpu_model,
            last=_cost(series.points[-1].cost, unit),
            picture=picture(series.points, nights, unit),
        )


def _host(host: StoreHost) -> HostRow:
    return HostRow(host.host, host.cpu_model, _op_title(host.op), _percent(host.ratio), host.hosts)


def _op_title(op: StoreOpName) -> str:
    if not isinstance(op.name, str):
        return op.op
    line = file_line_if_known(op.file, op.line)
    return ", ".join(filter(None, (f"{op.op} {op.name}", line)))


def _text_or(value: object, default: str) -> str:
    return value if isinstance(value, str) else default


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _cost(value: Integer, unit: str) -> str:
    return format_quantity(value, unit) if isinstance(value, int) else "?"
