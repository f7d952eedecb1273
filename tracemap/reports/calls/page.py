"""The page of `tracemap stats`: of each thread histograms, quantiles, correlations and heat maps; one HTML file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from tracemap.codec import Record
from tracemap.diagnostics import Diagnostic
from tracemap.errors import UsageInvalid
from tracemap.measurements.histograms import histogram
from tracemap.measurements.hook.stats import DURATION, CallSet, PairStats, SeriesStats, ThreadCalls, ThreadStats
from tracemap.options.stats import StatsOptions
from tracemap.reports.calls.plots import BASE, HEIGHT, WIDTH, Plot, describe, plot
from tracemap.reports.escaping import for_hook_text
from tracemap.reports.html.document import Kind, render
from tracemap.reports.html.shades import TINTS, shade_level, tints
from tracemap.units import format_average, format_count, format_ns

if TYPE_CHECKING:
    from tracemap.measurements.hook.stats import Floats

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
