"""Small multiples: one little picture for each series, all drawn alike, so that they can be compared at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tracemap.codec import Record
from tracemap.store.changed import FleetPoint
from tracemap.units import format_quantity

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
