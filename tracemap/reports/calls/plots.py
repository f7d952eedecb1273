"""Histograms as pictures: bars, ticks and marks in the units of an SVG's view box; templates only loop over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from tracemap.codec import Record
from tracemap.measurements.histograms import Histogram
from tracemap.units import format_count, format_share, plural

WIDTH: Final = 640
HEIGHT: Final = 150
BASE: Final = 118
"""Where the bars stand; below are marks and labels of the axis."""
_TOP = 16
_LEFT = 10
_ZERO_BAR = 30
"""The room of the bar of zeros, left of a logarithmic axis."""
_ZERO_WIDTH = _ZERO_BAR - 8
"""The bar itself: a gap sets it apart, as 0 is not on a logarithmic axis."""
_MOST_TICKS = 7
_LEAST_HEIGHT = 1.5
"""Of a bar with any values: one call among thousands is to be seen."""

AmountText = Callable[[float], str]
"""How a value of the axis is written."""


class Bar(Record, frozen=True):
    """One bin: where its bar stands, how many values it has, and words for both."""

    x: float
    width: float
    height: float
    count: int
    span: str
    share: str

    @property
    def y(self) -> float:
        """Its upper end: bars stand on the base."""
        return round(BASE - self.height, 1)


class Tick(Record, frozen=True):
    """A label of the axis."""

    x: float
    text: str


class Plot(Record, frozen=True):
    """A histogram's picture; `mean` (empty or one) and `quantiles` are marks on its axis."""

    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    mean: tuple[float, ...]
    quantiles: tuple[float, ...]
    most: str
    scale: str


def plot(found: Histogram, mean: float, quantiles: Sequence[float], text: AmountText) -> Plot:
    """The picture of a histogram, with the mean of all values and those of their quantiles (NaN: left out)."""
    axis = _Axis(found)
    most = max(found.zeros, *found.counts)
    bars = [
        _bar(axis.edge(number), axis.edge(number + 1), count, most, axis.span(number, text), found)
        for number, count in enumerate(found.counts)
    ]
    if found.zeros:
        bars.insert(0, _bar(_LEFT, _LEFT + _ZERO_WIDTH, found.zeros, most, text(0), found))
    strokes = sorted({x for value in quantiles if (x := axis.x_of(value)) is not None})
    at_mean = axis.x_of(mean)
    return Plot(
        tuple(bars),
        tuple(axis.ticks(text)),
        () if at_mean is None else (at_mean,),
        tuple(strokes),
        plural(most, "call"),
        "logarithmic" if found.logarithmic else "linear",
    )


def _bar(left: float, right: float, count: int, most: int, span: str, found: Histogram) -> Bar:
    height = max((BASE - _TOP) * count / most, _LEAST_HEIGHT if count else 0)
    width = max(0.5, right - left - 1)  # a gap between bars, unless that would leave nothing of them
    return Bar(round(left, 1), round(width, 1), round(height, 1), count, span, format_share(count, found.total))


class _Axis:
    """From values to horizontal positions, in units of the view box."""

    def __init__(self, found: Histogram) -> None:
        self._found = found
        self._start = _LEFT + (_ZERO_BAR if found.zeros else 0)
        self._low, self._high = self._scaled(found.edges[0]), self._scaled(found.edges[-1])
        unit_bins = found.whole and len(found.edges) == found.edges[-1] - found.edges[0] + 1
        self._middle = 0.5 if unit_bins and not found.logarithmic else 0.0  # a whole number is its bin's middle

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._found.logarithmic else value

    def edge(self, number: int) -> float:
        """Where an edge of bins is; the ends of an axis without extent lie apart."""
        if self._low == self._high:
            return self._start if number == 0 else WIDTH - _LEFT
        return self._at(self._scaled(self._found.edges[number]))

    def _at(self, scaled: float) -> float:
        span = self._high - self._low
        share = (scaled - self._low) / span if span else 0.5
        return round(self._start + share * (WIDTH - _LEFT - self._start), 1)

    def x_of(self, value: float) -> float | None:
        """Where a value is, None: it is not on the axis."""
        if self._found.zeros and value == 0:
            return _LEFT + _ZERO_WIDTH / 2
        if math.isnan(value) or not self._found.edges[0] <= value <= self._found.edges[-1]:
            return None
        return self._at(self._scaled(value + self._middle))

    def span(self, number: int, text: AmountText) -> str:
        """The values of a bin, in words."""
        low, high = self._found.edges[number : number + 2]
        if self._found.whole:
            return text(low) if high - low <= 1 else f"{text(low)} to {text(high - 1)}"
        return text(low) if low == high else f"{text(low)} to {text(high)}"

    def ticks(self, text: AmountText) -> list[Tick]:
        """Labels at round values."""
        low, high = self._found.edges[0], self._found.edges[-1]
        values = _round_values_of_decades(low, high) if self._found.logarithmic else _round_values(low, high)
        if self._found.whole:
            values = [value for value in values if value == round(value) and (value < high or len(values) == 1)]
        found = [Tick(x, text(value)) for value in values or [low] if (x := self.x_of(value)) is not None]
        return [Tick(_LEFT + _ZERO_WIDTH / 2, text(0)), *found] if self._found.zeros else found


def _round_values(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    if low == high:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / _MOST_TICKS))
    step = next(step for factor in (1, 2, 5, 10) if (high - low) / (step := factor * power) <= _MOST_TICKS)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _round_values_of_decades(low: float, high: float) -> list[float]:
    """Powers of ten, every so many; with 2 and 5 times them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    # Rounded up, so that there are at most as many labels as have room.
    every = max(1, -(-(last - first) // _MOST_TICKS))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    values = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
    return [value for value in values if low <= value <= high]


def describe(shown: Plot) -> str:
    """A picture in one sentence, for those who hear it."""
    peak = max(shown.bars, key=lambda bar: bar.count)
    return f"{len(shown.bars)} bars on a {shown.scale} axis; the highest, {format_count(peak.count)}, at {peak.span}"
