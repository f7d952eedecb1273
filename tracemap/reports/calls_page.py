"""The page of `stats`: histograms, quantiles and correlations per thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from tracemap.codec import Record
from tracemap.diagnostics import Diagnostic
from tracemap.errors import UsageInvalid
from tracemap.measurements.histograms import Histogram, histogram
from tracemap.measurements.hook.stats import DURATION, CallSet, PairStats, SeriesStats, ThreadCalls, ThreadStats
from tracemap.options.measure import StatsOptions
from tracemap.reports.escaping import for_hook_text
from tracemap.reports.html.document import TINTS, Kind, render, shade_level, tints
from tracemap.units import format_average, format_count, format_ns, format_share, plural

if TYPE_CHECKING:
    from tracemap.measurements.hook.stats import Floats


# ---- plots
#
# Histograms as pictures: bars, ticks and marks in the units of an SVG's view box; templates only loop over them.


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


# ---- page
#
# The page of `tracemap stats`: of each thread histograms, quantiles, correlations and heat maps; one HTML file.


_KIND = Kind(
    template="stats/stats.html.j2",
    styles=("shared/heat.css", "stats/stats.css"),
    scripts=("shared/views.js", "shared/keys.js", "shared/panels.js"),
)
MOST_CELLS: Final = 500_000
"""Of all heat maps of a page: browsers take seconds to show more."""


class SeriesPanel(Record, frozen=True):
    """One series: its histogram, its mean and those of its quantiles ("–": the quantile is empty)."""

    name: str
    mean: str
    bucket_means: tuple[str, ...]
    plot: Plot
    heard: str


class CorrelationCell(Record, frozen=True):
    """`tint` is -10 to 10; `anchor` leads to the pair's heat map, "" where there is none."""

    text: str
    tint: int
    anchor: str


class HeatCell(Record, frozen=True):
    """A probability: its shade (0 to 18, as in the text), in percent ("": no call is in the column), and exactly."""

    shade: int
    percent: str
    exact: str


class HeatMap(Record, frozen=True):
    """P(quantile of `of`, a row | quantile of `given`, a column), the lowest quantiles first."""

    anchor: str
    of: SeriesPanel
    given: SeriesPanel
    correlation: str
    rows: tuple[tuple[HeatCell, ...], ...]


class ThreadPanel(Record, frozen=True):
    """All of one thread; `correlations` has a row and a column for each series."""

    anchor: str
    name: str
    calls: str
    cpus: tuple[tuple[int, str], ...]
    series: tuple[SeriesPanel, ...]
    correlations: tuple[tuple[CorrelationCell, ...], ...]
    heat_maps: tuple[HeatMap, ...]


class StatsPage(Record, frozen=True):
    """A whole page."""

    title: str
    facts: tuple[tuple[str, str], ...]
    diagnostics: tuple[Diagnostic, ...]
    buckets: int
    threads: tuple[ThreadPanel, ...]


def build_stats_page(found: CallSet, stats: Sequence[ThreadStats], title: str, options: StatsOptions) -> StatsPage:
    """The data of the page.

    Args:
        found: the calls.
        stats: the statistics of each of its threads, in their order.
        title: what the page is of.
        options: what was asked for.

    Raises:
        UsageInvalid: the tables have more cells than a page can show.
    """
    cells = sum(pair.table.size for thread in stats for pair in thread.pairs)
    if cells > MOST_CELLS:
        raise UsageInvalid(
            f"the page would have {format_count(cells)} cells in its heat maps, at most {format_count(MOST_CELLS)} can "
            "be shown; ask for fewer --buckets or --counters, or for --no-table"
        )
    pairs = zip(found.threads, stats, strict=True)
    threads = tuple(_thread(calls, about, options, number) for number, (calls, about) in enumerate(pairs))
    return StatsPage(title, tuple(_facts(stats, options)), found.diagnostics, options.buckets, threads)


def _facts(stats: Sequence[ThreadStats], options: StatsOptions) -> list[tuple[str, str]]:
    left_out = f"the first {options.skip_ms} ms of each thread" if options.skip_ms else "nothing"
    return [
        ("calls of workgroups", format_count(sum(thread.calls for thread in stats))),
        ("threads", format_count(len(stats))),
        ("kernel", for_hook_text(options.kernel) or "all"),
        ("left out", left_out),
        ("quantiles", str(options.buckets)),
        ("shades of heat maps", f"probability to the power {options.gamma:g}"),
    ]


def _thread(calls: ThreadCalls, stats: ThreadStats, options: StatsOptions, number: int) -> ThreadPanel:
    anchor = f"T{number}"
    series = tuple(_series(about, values) for about, values in zip(stats.series, calls.singles, strict=True))
    count = len(series)
    # The statistics have a pair for each series and each one before it, in this order.
    numbers = [(of, given) for given in range(count) for of in range(given)]
    pairs = dict(zip(numbers, stats.pairs, strict=True))
    return ThreadPanel(
        anchor,
        for_hook_text(stats.thread) or "–",
        format_count(stats.calls),
        tuple((cpu, format_count(calls_there)) for cpu, calls_there in stats.calls_of_cpu),
        series,
        tuple(tuple(_correlation(anchor, row, column, pairs) for column in range(count)) for row in range(count)),
        tuple(
            _heat_map(_pair_anchor(anchor, of, given), series[of], series[given], pair, options.gamma)
            for (of, given), pair in pairs.items()
            if pair.table.size
        ),
    )


def _series(about: SeriesStats, values: Floats) -> SeriesPanel:
    text = _duration_text if about.name == DURATION else format_average
    means = tuple("–" if math.isnan(mean) else text(mean) for mean in about.bucket_means)
    shown = plot(histogram(values), about.mean, about.bucket_means, text)
    return SeriesPanel(for_hook_text(about.name), text(about.mean), means, shown, describe(shown))


def _duration_text(duration_us: float) -> str:
    return format_ns(round(duration_us * 1000))


def _pair_anchor(thread: str, of: int, given: int) -> str:
    return f"{thread}-{of}-{given}"


def _correlation(thread: str, row: int, column: int, pairs: dict[tuple[int, int], PairStats]) -> CorrelationCell:
    if row == column:
        return CorrelationCell("1", TINTS, "")
    # The matrix is symmetric, but each pair is kept once, the earlier series first.
    of, given = sorted((row, column))
    pair = pairs[of, given]
    anchor = _pair_anchor(thread, of, given) if pair.table.size else ""
    if not math.isfinite(pair.correlation):
        return CorrelationCell("–", 0, anchor)
    return CorrelationCell(f"{pair.correlation:.2g}", round(pair.correlation * TINTS), anchor)


def _heat_map(anchor: str, of: SeriesPanel, given: SeriesPanel, pair: PairStats, gamma: float) -> HeatMap:
    correlation = f"{pair.correlation:.2g}" if math.isfinite(pair.correlation) else "none: one of them is constant"
    # A column without calls has no probabilities at all, which is not the same as probabilities of 0.
    filled = [bool(column.any()) for column in pair.table.T]
    rows = tuple(tuple(map(partial(_cell, gamma), row, filled)) for row in pair.table.tolist())
    return HeatMap(anchor, of, given, correlation, rows)


def _cell(gamma: float, probability: float, filled: bool) -> HeatCell:
    percent = round(100 * probability)
    text = "<1" if probability and not percent else str(percent)
    return HeatCell(shade_level(probability, gamma), text if filled else "", f"{probability:.6g}")


def render_stats_page(page: StatsPage) -> str:
    """The whole HTML text of the page; the same statistics give the same bytes."""
    return render(_KIND, page, sizes=tints(), width=WIDTH, height=HEIGHT, base=BASE)
