"""The page of `store trend`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.codec import Record
from tracemap.measurements.columns import unit_of
from tracemap.reports.escaping import file_line_if_known
from tracemap.reports.html.document import Kind, render, write_page
from tracemap.store.model import FleetChange, FleetHost, FleetName, FleetPoint, FleetTrend, FleetTrends, titles
from tracemap.units import Integer, format_quantity, plural

# ---- multiples
#
# Small multiples: one little picture for each series, all drawn alike, so that they can be compared at a glance.


WIDTH: Final = 300
HEIGHT: Final = 88
BASE: Final = 70
_TOP: Final = 8
_LEFT: Final = 4
_MOST_TITLES: Final = 60
"""Nights up to which each has a dot with its cost as a title."""


class Dot(Record, frozen=True):
    """A night: where it is drawn, and what is said of it."""

    x: float
    y: float
    said: str


class Picture(Record, frozen=True):
    """A series as a picture: `path` is its line, `dots` its nights, `since` where it changed (none: nowhere).

    The axis of costs begins at 0, so that a series is drawn as steady as it is; that of a change begins at `least`,
    so that a small one is seen, too (empty: at 0). `levels` are heights of what it cost before and since.
    """

    path: str
    dots: tuple[Dot, ...]
    since: tuple[float, ...]
    levels: tuple[tuple[float, float, float], ...]
    first: str
    last: str
    most: str
    least: str
    heard: str


def picture(
    points: Sequence[FleetPoint], nights: Sequence[str], unit: str, since: str = "", levels: Sequence[int] = ()
) -> Picture:
    """Draw a series.

    Args:
        points: at least one.
        nights: all nights of the pictures that stand together, in their order.
        unit: of the costs.
        since: the night of a change.
        levels: what it cost before and since, where there is a change.
    """
    place = {night: number for number, night in enumerate(nights)}
    costs = [*(point.cost for point in points), *levels]
    highest, lowest = max(*costs, 1), 0
    if since:
        lowest = max(0, min(costs) - (highest - min(costs)) // 2)
    axis = _Axis(lowest, highest)
    spots = [(_x(place[point.night], len(nights)), axis.y(point.cost), point) for point in points]
    said = [f"{point.night}: {format_quantity(point.cost, unit)}" for point in points]
    dots = (
        tuple(Dot(x, y, text) for (x, y, _), text in zip(spots, said, strict=True))
        if len(spots) <= _MOST_TITLES
        else ()
    )
    return Picture(
        path=" ".join(f"{'L' if number else 'M'}{x} {y}" for number, (x, y, _) in enumerate(spots)),
        dots=dots,
        since=(_between(place, since, len(nights)),) if since in place else (),
        levels=tuple(_levels(place, since, [axis.y(level) for level in levels], len(nights))),
        first=nights[0],
        last=nights[-1],
        most=format_quantity(highest, unit),
        least=format_quantity(lowest, unit) if lowest else "",
        heard=f"{said[0]}, {said[-1]}",
    )


def _x(number: int, count: int) -> float:
    span = WIDTH - 2 * _LEFT
    return round(_LEFT + (span / 2 if count == 1 else number * span / (count - 1)), 1)


@dataclass(frozen=True, slots=True)
class _Axis:
    """The costs at the bottom and at the top of a picture."""

    lowest: int
    highest: int

    def y(self, cost: int) -> float:
        """The height at which a cost is drawn."""
        return round(BASE - (BASE - _TOP) * (cost - self.lowest) / max(1, self.highest - self.lowest), 1)


def _between(place: Mapping[str, int], since: str, count: int) -> float:
    """Half a night before the change."""
    number = place[since]
    return round((_x(number, count) + _x(max(0, number - 1), count)) / 2, 1)


def _levels(
    place: Mapping[str, int], since: str, levels: Sequence[float], count: int
) -> Sequence[tuple[float, float, float]]:
    if since not in place or len(levels) != 2:
        return ()
    x = _between(place, since, count)
    before, after = levels
    return (_LEFT, x, before), (x, WIDTH - _LEFT, after)


# ---- render
#
# The page of `tracemap store trend`: for each model what changed, odd hosts, and its dearest ops night by night.


_KIND: Final = Kind(
    template="fleet/fleet.html.j2",
    styles=("fleet/fleet.css",),
    scripts=("shared/views.js", "shared/keys.js", "shared/panels.js"),
)


class ChangePanel(Record, frozen=True):
    """A change: what is said of it, and its picture, where it has a series."""

    title: str
    where: str
    change: str
    slower: bool
    since: str
    about: str
    picture: Picture | None


class SeriesPanel(Record, frozen=True):
    """An op on a processor."""

    title: str
    where: str
    last: str
    picture: Picture


class HostRow(Record, frozen=True):
    """A host that is unlike others of its processor."""

    host: str
    cpu_model: str
    op: str
    change: str
    hosts: int


class ModelPanel(Record, frozen=True):
    """All of one model."""

    anchor: str
    name: str
    facts: tuple[tuple[str, str], ...]
    changes: tuple[ChangePanel, ...]
    hosts: tuple[HostRow, ...]
    dearest: tuple[SeriesPanel, ...]


class FleetPage(Record, frozen=True):
    """A whole page."""

    title: str
    facts: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]
    models: tuple[ModelPanel, ...]


def write_trends_page(found: FleetTrends, target: Path, *, force: bool) -> None:
    """Write the page.

    Raises:
        TargetExists: it exists and `force` is not set.
        TargetUnwritable: it cannot be written.
    """
    page = build_fleet_page(found)
    text = render(_KIND, page, title=page.title, width=WIDTH, height=HEIGHT, base=BASE)
    write_page(text, target, force=force)


def build_fleet_page(found: FleetTrends) -> FleetPage:
    """The data of the page."""
    unit = unit_of(found.metric)
    changes = sum(len(model.changes) for model in found.models)
    facts = (
        ("runs", str(found.looked.runs)),
        ("costs", f"{found.metric} of an invocation"),
        ("changes beyond chance", str(changes)),
        ("not there whole", str(found.looked.unfinished)),
        ("clocks ahead", str(found.looked.ahead)),
    )
    left_out = tuple(f"{each.file} {each.why}" for each in found.looked.skipped)
    named = zip(found.models, titles(found.models), strict=True)
    models = tuple(_model(model, title, f"m{number}", unit) for number, (model, title) in enumerate(named))
    return FleetPage("What changed in the fleet", facts, left_out, models)


def _model(trend: FleetTrend, title: str, anchor: str, unit: str) -> ModelPanel:
    there = {point.night for series in trend.dearest for point in series.points}
    nights = [night for night in trend.in_order if night in there]
    facts = (
        ("nights", str(trend.nights)),
        ("hosts", str(trend.hosts)),
        ("processor models", str(trend.cpu_models)),
        ("series looked at", str(trend.series)),
        ("runs left out", str(trend.untold)),
    )
    return ModelPanel(
        anchor,
        title,
        facts,
        tuple(_change(each, unit) for each in trend.changes),
        tuple(map(_host, trend.outliers)),
        tuple(_dearest(trend, nights, unit)),
    )


def _change(change: FleetChange, unit: str) -> ChangePanel:
    exact = change.night_low == change.night_high
    since = change.night if exact else f"{change.night} (between {change.night_low} and {change.night_high})"
    levels = [cost for cost in (change.before, change.after) if isinstance(cost, int)]
    about = (
        f"{_cost(change.before, unit)} → {_cost(change.after, unit)}; {_percent(change.ratio_low)} to "
        f"{_percent(change.ratio_high)}; {change.hosts_agree} of {plural(change.hosts, 'host')}"
    )
    nights = [point.night for point in change.series]
    return ChangePanel(
        title=_titled(change.op),
        where=f"{_named(change.cpu_model, 'all processors')}, {_named(change.host, 'all hosts')}",
        change=_percent(change.ratio),
        slower=change.kind == "slower",
        since=since,
        about=about,
        picture=picture(change.series, nights, unit, change.night, levels) if nights else None,
    )


def _dearest(trend: FleetTrend, nights: list[str], unit: str) -> Iterator[SeriesPanel]:
    for series in trend.dearest:
        yield SeriesPanel(
            title=_titled(series.op),
            where=series.cpu_model,
            last=_cost(series.points[-1].cost, unit),
            picture=picture(series.points, nights, unit),
        )


def _host(found: FleetHost) -> HostRow:
    return HostRow(found.host, found.cpu_model, _titled(found.op), _percent(found.ratio), found.hosts)


def _titled(op: FleetName) -> str:
    if not isinstance(op.name, str):
        return op.op
    place = file_line_if_known(op.file, op.line)
    return ", ".join(filter(None, (f"{op.op} {op.name}", place)))


def _named(value: object, otherwise: str) -> str:
    return value if isinstance(value, str) else otherwise


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _cost(value: Integer, unit: str) -> str:
    return format_quantity(value, unit) if isinstance(value, int) else "?"
