"""The page of `stats`: histograms, quantiles, correlations and heat maps per thread, as one HTML file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from tracemap.core.codec import Record
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import format_average, format_count, format_ns, format_share, plural
from tracemap.options.measure import StatsOptions
from tracemap.reports.escaping import for_hook_text
from tracemap.reports.html import TINTS, PageKind, render, shade_level, tints
from tracemap.runs.hook.stats import DURATION, PairStats, SeriesStats, ThreadCalls, ThreadedCalls, ThreadStats
from tracemap.runs.statistics import Histogram, histogram

if TYPE_CHECKING:
    from tracemap.runs.hook.stats import Floats


# ---- plots: bars, ticks and marks in units of the SVG's view box


WIDTH: Final = 640
HEIGHT: Final = 150
BASE: Final = 118
"""Bottom of the bars; marks and labels of the axis are below."""
_TOP = 16
_LEFT = 10
_ZERO_BAR = 30
"""Space for the bar of zeros on the left of a logarithmic axis."""
_ZERO_WIDTH = _ZERO_BAR - 8
"""Width of the bar of zeros; a gap separates it, as 0 is not on a logarithmic axis."""
_MOST_TICKS = 7
_LEAST_HEIGHT = 1.5
"""Least height of bars with values, so that one call among thousands is visible."""

AmountText = Callable[[float], str]
"""Formats a value of the axis."""


class Bar(Record, frozen=True):
    """The bar of a bin: position, number of values, and texts for both."""

    x: float
    width: float
    height: float
    count: int
    span: str
    share: str

    @property
    def y(self) -> float:
        """The upper end."""
        return round(BASE - self.height, 1)


class Tick(Record, frozen=True):
    """A label of the axis."""

    x: float
    text: str


class Plot(Record, frozen=True):
    """The picture of a histogram; `mean` (no or one position) and `quantiles` are marks on its axis."""

    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    mean: tuple[float, ...]
    quantiles: tuple[float, ...]
    most: str
    scale: str


def plot(bins: Histogram, mean: float, quantiles: Sequence[float], text: AmountText) -> Plot:
    """Draw a histogram with the mean of all values and the means of their quantiles (NaN: left out)."""
    axis = _Axis(bins)
    most = max(bins.zeros, *bins.counts)
    bars = [
        _bar(axis.edge(number), axis.edge(number + 1), count, most, axis.span(number, text), bins)
        for number, count in enumerate(bins.counts)
    ]
    if bins.zeros:
        bars.insert(0, _bar(_LEFT, _LEFT + _ZERO_WIDTH, bins.zeros, most, text(0), bins))
    marks = sorted({x for value in quantiles if (x := axis.x_of(value)) is not None})
    mean_x = axis.x_of(mean)
    return Plot(
        tuple(bars),
        tuple(axis.ticks(text)),
        () if mean_x is None else (mean_x,),
        tuple(marks),
        plural(most, "call"),
        "logarithmic" if bins.logarithmic else "linear",
    )


def _bar(left: float, right: float, count: int, most: int, span: str, bins: Histogram) -> Bar:
    height = max((BASE - _TOP) * count / most, _LEAST_HEIGHT if count else 0)
    width = max(0.5, right - left - 1)  # with a gap, unless the bar is too narrow for one
    return Bar(round(left, 1), round(width, 1), round(height, 1), count, span, format_share(count, bins.total))


class _Axis:
    """The scale from values to horizontal positions."""

    def __init__(self, bins: Histogram) -> None:
        self._bins = bins
        self._start = _LEFT + (_ZERO_BAR if bins.zeros else 0)
        self._low, self._high = self._scaled(bins.edges[0]), self._scaled(bins.edges[-1])
        unit_bins = bins.whole and len(bins.edges) == bins.edges[-1] - bins.edges[0] + 1
        self._middle = 0.5 if unit_bins and not bins.logarithmic else 0.0  # integers are in the middle of unit bins

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._bins.logarithmic else value

    def edge(self, number: int) -> float:
        """Position of the edge of a bin; if all values are equal, the edges are the ends of the axis."""
        if self._low == self._high:
            return self._start if number == 0 else WIDTH - _LEFT
        return self._at(self._scaled(self._bins.edges[number]))

    def _at(self, scaled: float) -> float:
        span = self._high - self._low
        share = (scaled - self._low) / span if span else 0.5
        return round(self._start + share * (WIDTH - _LEFT - self._start), 1)

    def x_of(self, value: float) -> float | None:
        """Position of a value; None outside of the axis."""
        if self._bins.zeros and value == 0:
            return _LEFT + _ZERO_WIDTH / 2
        if math.isnan(value) or not self._bins.edges[0] <= value <= self._bins.edges[-1]:
            return None
        return self._at(self._scaled(value + self._middle))

    def span(self, number: int, text: AmountText) -> str:
        """The range of a bin, as text."""
        low, high = self._bins.edges[number : number + 2]
        if self._bins.whole:
            return text(low) if high - low <= 1 else f"{text(low)} to {text(high - 1)}"
        return text(low) if low == high else f"{text(low)} to {text(high)}"

    def ticks(self, text: AmountText) -> list[Tick]:
        """Ticks at round values."""
        low, high = self._bins.edges[0], self._bins.edges[-1]
        values = _round_values_of_decades(low, high) if self._bins.logarithmic else _round_values(low, high)
        if self._bins.whole:
            values = [value for value in values if value == round(value) and (value < high or len(values) == 1)]
        ticks = [Tick(x, text(value)) for value in values or [low] if (x := self.x_of(value)) is not None]
        return [Tick(_LEFT + _ZERO_WIDTH / 2, text(0)), *ticks] if self._bins.zeros else ticks


def _round_values(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    if low == high:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / _MOST_TICKS))
    step = next(step for factor in (1, 2, 5, 10) if (high - low) / (step := factor * power) <= _MOST_TICKS)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _round_values_of_decades(low: float, high: float) -> list[float]:
    """Powers of ten, with gaps on long axes; on short ones also 2 and 5 times them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    # Round up, so that there are at most _MOST_TICKS labels.
    step = max(1, -(-(last - first) // _MOST_TICKS))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    values = [factor * 10.0**power for power in range(first, last + 1, step) for factor in factors]
    return [value for value in values if low <= value <= high]


def describe(shown: Plot) -> str:
    """A sentence on a plot, for screen readers."""
    peak = max(shown.bars, key=lambda bar: bar.count)
    return f"{len(shown.bars)} bars on a {shown.scale} axis; the highest, {format_count(peak.count)}, at {peak.span}"


# ---- page


_KIND = PageKind(
    template="stats/stats.html.j2",
    styles=("shared/heat.css", "stats/stats.css"),
    scripts=("shared/views.js", "shared/keys.js", "shared/panels.js"),
)
MOST_CELLS: Final = 500_000
"""Most cells of all heat maps of a page; browsers take seconds to show more."""


class SeriesPanel(Record, frozen=True):
    """A series: its histogram, its mean, and the means of its quantiles ("–": the quantile is empty)."""

    name: str
    mean: str
    bucket_means: tuple[str, ...]
    plot: Plot
    summary: str
    """Text for screen readers."""


class CorrelationCell(Record, frozen=True):
    """A correlation. `tint` is -10 to 10; `anchor` is that of the pair's heat map, or ""."""

    text: str
    tint: int
    anchor: str


class HeatCell(Record, frozen=True):
    """A probability: shade (0 to 18, as in the text output), percent ("": no call is in the column), exact value."""

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
    """The content of a thread; `correlations` has a row and a column per series."""

    anchor: str
    name: str
    calls: str
    cpus: tuple[tuple[int, str], ...]
    series: tuple[SeriesPanel, ...]
    correlations: tuple[tuple[CorrelationCell, ...], ...]
    heat_maps: tuple[HeatMap, ...]


class StatsPage(Record, frozen=True):
    """The content of the page."""

    title: str
    facts: tuple[tuple[str, str], ...]
    diagnostics: tuple[Diagnostic, ...]
    buckets: int
    threads: tuple[ThreadPanel, ...]


def build_stats_page(
    call_set: ThreadedCalls, stats: Sequence[ThreadStats], title: str, options: StatsOptions
) -> StatsPage:
    """Make the content of the page.

    Args:
        call_set: the calls.
        stats: the statistics of its threads, in order.
        title: title of the page.
        options: the command's options.

    Raises:
        UsageInvalid: the heat maps have more cells than a page can show.
    """
    cells = sum(pair.table.size for thread in stats for pair in thread.pairs)
    if cells > MOST_CELLS:
        raise UsageInvalid(
            f"the heat maps would have {format_count(cells)} cells; a page can show {format_count(MOST_CELLS)}. "
            "Reduce --buckets or --counters, or pass --no-table"
        )
    pairs = zip(call_set.threads, stats, strict=True)
    threads = tuple(_thread(calls, thread_stats, options, number) for number, (calls, thread_stats) in enumerate(pairs))
    return StatsPage(title, tuple(_facts(stats, options)), call_set.diagnostics, options.buckets, threads)


def _facts(stats: Sequence[ThreadStats], options: StatsOptions) -> list[tuple[str, str]]:
    skipped = f"the first {options.skip_ms} ms of every thread" if options.skip_ms else "nothing"
    return [
        ("workgroup calls", format_count(sum(thread.calls for thread in stats))),
        ("threads", format_count(len(stats))),
        ("kernel", for_hook_text(options.kernel) or "all"),
        ("skipped", skipped),
        ("quantiles", str(options.buckets)),
        ("shades of heat maps", f"probability to the power {options.gamma:g}"),
    ]


def _thread(calls: ThreadCalls, stats: ThreadStats, options: StatsOptions, number: int) -> ThreadPanel:
    anchor = f"T{number}"
    series = tuple(
        _series(series_stats, values) for series_stats, values in zip(stats.series, calls.singles, strict=True)
    )
    count = len(series)
    # The statistics have pairs of a series with all earlier ones, in this order.
    numbers = [(of, given) for given in range(count) for of in range(given)]
    pairs = dict(zip(numbers, stats.pairs, strict=True))
    return ThreadPanel(
        anchor,
        for_hook_text(stats.thread) or "–",
        format_count(stats.calls),
        tuple((cpu, format_count(cpu_calls)) for cpu, cpu_calls in stats.calls_of_cpu),
        series,
        tuple(tuple(_correlation(anchor, row, column, pairs) for column in range(count)) for row in range(count)),
        tuple(
            _heat_map(_pair_anchor(anchor, of, given), series[of], series[given], pair, options.gamma)
            for (of, given), pair in pairs.items()
            if pair.table.size
        ),
    )


def _series(series: SeriesStats, values: Floats) -> SeriesPanel:
    text = _duration_text if series.name == DURATION else format_average
    means = tuple("–" if math.isnan(mean) else text(mean) for mean in series.bucket_means)
    shown = plot(histogram(values), series.mean, series.bucket_means, text)
    return SeriesPanel(for_hook_text(series.name), text(series.mean), means, shown, describe(shown))


def _duration_text(duration_us: float) -> str:
    return format_ns(round(duration_us * 1000))


def _pair_anchor(thread: str, of: int, given: int) -> str:
    return f"{thread}-{of}-{given}"


def _correlation(thread: str, row: int, column: int, pairs: dict[tuple[int, int], PairStats]) -> CorrelationCell:
    if row == column:
        return CorrelationCell("1", TINTS, "")
    # The matrix is symmetric; pairs are stored once, with the earlier series first.
    of, given = sorted((row, column))
    pair = pairs[of, given]
    anchor = _pair_anchor(thread, of, given) if pair.table.size else ""
    if not math.isfinite(pair.correlation):
        return CorrelationCell("–", 0, anchor)
    return CorrelationCell(f"{pair.correlation:.2g}", round(pair.correlation * TINTS), anchor)


def _heat_map(anchor: str, of: SeriesPanel, given: SeriesPanel, pair: PairStats, gamma: float) -> HeatMap:
    correlation = f"{pair.correlation:.2g}" if math.isfinite(pair.correlation) else "none, as a series is constant"
    # A column without calls has no probabilities, which differs from probabilities of 0.
    filled = [bool(column.any()) for column in pair.table.T]
    rows = tuple(tuple(map(partial(_cell, gamma), row, filled)) for row in pair.table.tolist())
    return HeatMap(anchor, of, given, correlation, rows)


def _cell(gamma: float, probability: float, filled: bool) -> HeatCell:
    percent = round(100 * probability)
    text = "<1" if probability and not percent else str(percent)
    return HeatCell(shade_level(probability, gamma), text if filled else "", f"{probability:.6g}")


def render_stats_page(page: StatsPage) -> str:
    """The HTML text of the page; deterministic."""
    return render(_KIND, page, sizes=tints(), width=WIDTH, height=HEIGHT, base=BASE)
