"""The columns of costs that all views have: metrics, per invocation or as sums, the share of the first, and ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

from tracemap.attribution.model import MetricTotal
from tracemap.errors import UsageInvalid
from tracemap.measurements.model import INSTRUCTIONS, LAST_LEVEL_MISSES, READ_MISSES, SAMPLES, STEP_METRICS, RunHeader
from tracemap.reports.advice import basis, divisor, known_invocations, shown_unit
from tracemap.reports.cost_lookup import default_metric
from tracemap.reports.views.model import NEVER, PERCENT, Cell, Column
from tracemap.units import Integer, Unknown

CLOCKS = {"cpu_ns": "cpu", "duration_ns": "wall"}
"""What people call the clocks of times: that of the workers' own time, summed over them, and that on the wall."""
SHARE = "share"
_MOST_OTHERS = 3
_LEADING = (INSTRUCTIONS, READ_MISSES, "DLmr", SAMPLES)
"""Metrics of steps that say most, in this order."""
_SIMULATED_MISSES = frozenset({"I1mr", "ILmr", "D1mr", "DLmr", "D1mw", "DLmw"})

# What goes first where there is no room has the largest number; further columns of a view stand between these.
LEAVE_METRIC = 20
LEAVE_RATIO = 65
LEAVE_FETCHED = 64


def shown_metrics(metrics: Sequence[MetricTotal], wanted: Sequence[str]) -> tuple[MetricTotal, ...]:
    """Those that are asked for; else time, and up to three others: counters, then what was seen inside of kernels.

    Raises:
        UsageInvalid: the runs have no such metric.
    """
    by_name = {metric.name: metric for metric in metrics}
    for name in wanted:
        if name not in by_name:
            raise UsageInvalid(f"the run has no metric {name!r}; it has: {', '.join(by_name)}")
    if wanted:
        return tuple(by_name[name] for name in dict.fromkeys(wanted))
    first = metrics[default_metric(metrics)]
    others = sorted((metric for metric in metrics if metric is not first), key=_lateness)
    return (first, *others[:_MOST_OTHERS])


def _lateness(metric: MetricTotal) -> int:
    """Counters come first, in the order of the run; then what leads among metrics of steps, times, and the rest."""
    if metric.name in _LEADING:
        return 1 + _LEADING.index(metric.name)
    if metric.name in CLOCKS:
        return 1 + len(_LEADING)
    return 2 + len(_LEADING) if metric.name in STEP_METRICS else 0


_LONGEST_NAME: Final = 24


def _beside(word: str, name: str, alone: str = "") -> str:
    """What stands above a column of the metric that is ranked by, which the title names: its name only if it is short.

    Those of Nsight Compute have up to a hundred letters; `alone` is what stands there without the name.
    """
    return f"{word} {name}" if len(name) <= _LONGEST_NAME else alone or word


@dataclass(frozen=True)
class Costs:
    """Which metrics are shown, the first to rank by, and whether as sums over all invocations.

    `all_metrics` are those that may be asked for as columns too; `header` is that of the runs.
    """

    all_metrics: tuple[MetricTotal, ...]
    shown: tuple[MetricTotal, ...]
    totals: bool
    header: RunHeader

    @property
    def lines(self) -> Mapping[str, tuple[Sequence[str], Integer]]:
        """By the key of a column of bytes, what fetches a line of the last-level cache, and how long that is."""
        return {
            "LL-bytes": (LAST_LEVEL_MISSES, self.header.simulated_line_bytes),
            "cache-bytes": (("cache-misses",), self.header.line_bytes),
        }

    @property
    def first(self) -> MetricTotal:
        """The metric that rows are ranked by."""
        return self.shown[0]

    def divisor(self, metric: MetricTotal) -> int:
        """What sums of a metric are divided by."""
        return divisor(metric, totals=self.totals)

    def name(self, metric: MetricTotal) -> str:
        """What stands above a metric: its clock, or its own name, and that it is a sum where others are none."""
        known = _plain(metric)
        return known if self.totals or known_invocations(metric) else f"{known} in all"

    def column(self, key: str, heading: str, metric: MetricTotal, leave: int, *, usual: bool = True) -> Column:
        """A column of sums of a metric, which are divided by the invocations they are of, unless sums are shown."""
        unit, scale = shown_unit(metric)
        per = self._of(metric)
        return Column(key, heading, unit, per, divisor=self.divisor(metric) * scale, leave=leave, usual=usual)

    def _of(self, metric: MetricTotal) -> str:
        """What stands above sums of a metric, where others beside it are sums of other numbers of invocations."""
        calls = known_invocations(metric)
        is_told = self.totals and calls and len({*map(known_invocations, self.shown)} | {calls}) > 1
        return f" of {calls:,}" if is_told else ""

    def of_first(self, key: str, word: str, leave: int, *, usual: bool = True) -> Column:
        """A column of other sums of the metric that is ranked by."""
        return self.column(key, _beside(word, self.name(self.first)), self.first, leave, usual=usual)

    def of_invocations(self, key: str, word: str, leave: int, *, usual: bool = True) -> Column:
        """A column of what single invocations took of the metric that is ranked by, beside sums too."""
        unit, scale = shown_unit(self.first)
        name, per = _beside(word, _plain(self.first)), "/invocation" if self._are_sums else ""
        return Column(key, name, unit, per, scale, leave, usual=usual)

    @property
    def _are_sums(self) -> bool:
        return self.totals or not known_invocations(self.first)

    def of_calls(self, key: str, word: str, leave: int) -> Column:
        """A column of what single calls took of the metric that is ranked by."""
        unit, scale = shown_unit(self.first)
        return Column(key, _beside(word, _plain(self.first)), unit, "/call", scale, leave)

    def calls(self, leave: int) -> Column:
        """A column of how often something ran, in the invocations of what is measured of whole dispatches."""
        return Column("calls", "calls", "count", divisor=self.divisor(self.all_metrics[0]), leave=leave)

    def columns(self) -> tuple[Column, ...]:
        """The first metric, its share, the others, and misses per thousand instructions."""
        return tuple(self._columns())

    def _columns(self) -> Iterator[Column]:
        rest = [metric for metric in self.all_metrics if metric not in self.shown]
        yield self.column(self.first.name, self.name(self.first), self.first, NEVER)
        yield Column(SHARE, _beside("of", _plain(self.first), "share"), PERCENT)
        for place, metric in enumerate([*self.shown[1:], *rest]):
            leave, usual = LEAVE_METRIC + place, metric in self.shown
            yield self.column(metric.name, self.name(metric), metric, leave, usual=usual)
        for place, (key, (misses, _)) in enumerate(self._ratios.items()):
            heading = key.replace("/", "/1000 ")
            yield Column(key, heading, "count", leave=LEAVE_RATIO + place, usual=misses in self.shown)
        for key, (fetches, _) in self._fetched.items():
            usual = any(metric in self.shown for metric in fetches)
            heading, divided = f"{key.removesuffix('-bytes')} fetched", self.divisor(fetches[0])
            per = self._of(fetches[0])
            yield Column(key, heading, "bytes", per, divisor=divided, leave=LEAVE_FETCHED, usual=usual)

    @cached_property
    def _ratios(self) -> dict[str, tuple[MetricTotal, MetricTotal]]:
        """Misses and the instructions that they are told per thousand of, by the key of the column."""
        by_name = {metric.name: metric for metric in self.all_metrics}
        found = {}
        for metric in self.all_metrics:
            per = by_name.get(INSTRUCTIONS if metric.name in STEP_METRICS else "instructions")
            if per is not None and per.invocations == metric.invocations and _counts_misses(metric.name):
                found[f"{metric.name}/{per.name}"] = (metric, per)
        return found

    @cached_property
    def _fetched(self) -> dict[str, tuple[Sequence[MetricTotal], int]]:
        """Misses of the last-level cache, and how many bytes it fetches for each, by the key of the column."""
        by_name = {metric.name: metric for metric in self.all_metrics}
        found: dict[str, tuple[Sequence[MetricTotal], int]] = {}
        for key, (names, line) in self.lines.items():
            misses = [by_name[name] for name in names if name in by_name]
            if not isinstance(line, Unknown) and len(misses) == len(names):
                found[key] = (misses, line)
        return found

    def cells(self, amounts: Mapping[str, int]) -> dict[str, Cell]:
        """The cells of these columns, from sums by metric name."""
        made: dict[str, Cell] = {metric.name: amounts.get(metric.name, 0) for metric in self.all_metrics}
        if self.first.work:
            made[SHARE] = Fraction(100 * amounts.get(self.first.name, 0), self.first.work)
        for key, (fetches, line) in self._fetched.items():
            made[key] = line * sum(amounts.get(each.name, 0) for each in fetches)
        for key, (misses, per) in self._ratios.items():
            instructions = amounts.get(per.name, 0)
            made[key] = Fraction(1000 * amounts.get(misses.name, 0), instructions) if instructions else None
        return made

    def basis(self) -> str:
        """Of what the numbers are, for the title of a table."""
        return basis(self.shown, totals=self.totals)


def _plain(metric: MetricTotal) -> str:
    """What people call a metric: the clock of a time, or its own name."""
    return CLOCKS.get(metric.name, metric.name.removesuffix("_ns") if metric.unit == "ns" else metric.name)


def _counts_misses(name: str) -> bool:
    return name in _SIMULATED_MISSES or name.endswith("misses")
