"""Costs as rows: the records, and how they are filled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

import msgspec

from tracemap.attribution.model import MetricTotal
from tracemap.attribution.program_metrics import PROGRAM_METRICS
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import Integer, Unknown
from tracemap.reports.advice import basis, display_unit, divisor, known_invocations
from tracemap.reports.cost_lookup import default_metric
from tracemap.runs.model import INSTRUCTIONS, LAST_LEVEL_MISSES, READ_MISSES, SAMPLES, STEP_METRICS, RunHeader

# ---- model
#
# Tables of costs: columns, and rows of texts and numbers.


Cell = str | int | Fraction | None
"""A text; a number in the unit of its column, not yet divided; or None for an empty cell."""
Row = Mapping[str, Cell]
"""Cells by column key; missing keys are empty cells."""


def known_cell(value: Integer) -> Cell:
    """A number as a cell; unknown numbers are empty."""
    return None if isinstance(value, Unknown) else value


class LazyRow(Mapping[str, Cell]):
    """A row with lazy cells: some are known, the others are made at the first access.

    Large models have many rows and show few. Sorting needs the known cells of all, the rest only for shown rows.
    """

    __slots__ = ("_cells", "_make")

    def __init__(self, cells: Mapping[str, Cell], make: Callable[[], Mapping[str, Cell]]) -> None:
        self._cells = cells
        self._make: Callable[[], Mapping[str, Cell]] | None = make

    def __getitem__(self, key: str) -> Cell:
        return self._cells[key] if key in self._cells else self._whole()[key]

    def get(self, key: str, default: Cell = None) -> Cell:  # type: ignore[override] # Mapping's own raises and catches
        """A cell, or the default."""
        return self._cells[key] if key in self._cells else self._whole().get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())

    def _whole(self) -> Mapping[str, Cell]:
        if self._make is not None:
            self._cells, self._make = {**self._make(), **self._cells}, None
        return self._cells


TEXT = ""
"""Unit of text columns."""
PERCENT = "%"
ULPS: Final = "ulps"
"""Unit of errors: units of the last place, as whole numbers or powers of ten."""

NEVER = 0
"""Value of `Column.leave`: never drop the column."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        key: its name in options.
        heading: the heading, followed by the unit and `per`.
        unit: unit of the numbers; empty for texts.
        per: suffix of the unit, such as `/call`.
        divisor: divides the numbers when they are shown, such as the invocations of a mean.
        leave: on narrow terminals, the column with the largest value is dropped first; 0: never.
        least: narrowest width of texts; they shrink before columns are dropped.
        usual: shown by default; else only if selected.
        words: the texts are sentences, which wrap.
    """

    key: str
    heading: str
    unit: str = TEXT
    per: str = ""
    divisor: int = 1
    leave: int = NEVER
    least: int = 0
    usual: bool = True
    words: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """A table.

    Attributes:
        noun: name of a row, in the singular.
        columns: all columns.
        rows: in the order of the map.
        rank: key of the column to sort by unless the user selects another.
        share: the shares of rows add up, so the text can give the share of hidden rows.
    """

    noun: str
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    rank: str
    share: bool = True


# ---- costs
#
# Cost columns of all views: metrics per invocation or as sums, the share of the first metric, and ratios.


CLOCKS = {"cpu_ns": "cpu", "duration_ns": "wall"}
"""Short names of time metrics: CPU time summed over workers, and wall time."""
SHARE = "share"
OVERHEAD: Final = "overhead_ns"
"""Key of the column of elapsed time without a kernel."""
_MOST_OTHERS = 3
_LEADING = (INSTRUCTIONS, READ_MISSES, "DLmr", SAMPLES)
"""The most useful metrics of samples and of the simulated cache, in order."""
_SIMULATED_MISSES = frozenset({"I1mr", "ILmr", "D1mr", "DLmr", "D1mw", "DLmw"})

# Columns with the largest number are dropped first on narrow terminals; views add columns with numbers in between.
LEAVE_METRIC = 20
LEAVE_RATIO = 65
LEAVE_FETCHED = 64


def shown_metrics(metrics: Sequence[MetricTotal], names: Sequence[str]) -> tuple[MetricTotal, ...]:
    """The named metrics; without names, time and up to three others: counters, then metrics inside kernels.

    Raises:
        UsageInvalid: the runs lack a named metric.
    """
    by_name = {metric.name: metric for metric in metrics}
    for name in names:
        if name not in by_name:
            measured = [other for other in by_name if other not in PROGRAM_METRICS]
            raise UsageInvalid(
                f"the run has no metric {name!r}; it has: {', '.join(measured)}; the program has: "
                f"{', '.join(PROGRAM_METRICS)}"
            )
    if names:
        return tuple(by_name[name] for name in dict.fromkeys(names))
    first = metrics[default_metric(metrics)]
    others = sorted((metric for metric in metrics if metric is not first), key=_position)
    return (first, *others[:_MOST_OTHERS])


def _position(metric: MetricTotal) -> int:
    """Sort key: counters in the order of the run, the leading metrics inside kernels, times, other metrics."""
    if metric.name in _LEADING:
        return 1 + _LEADING.index(metric.name)
    if metric.name in CLOCKS:
        return 1 + len(_LEADING)
    return 2 + len(_LEADING) if metric.name in STEP_METRICS else 0


_LONGEST_NAME: Final = 24


def _heading(word: str, name: str, without_name: str = "") -> str:
    """Heading of a column of the ranking metric, with the metric's name if that is short.

    Names of Nsight Compute have up to a hundred letters. The title of the table has the name, too. `without_name`
    replaces `word` if the name is too long.
    """
    return f"{word} {name}" if len(name) <= _LONGEST_NAME else without_name or word


class Costs(msgspec.Struct, frozen=True, dict=True):
    """The metrics to show, and how to format them.

    Attributes:
        all_metrics: the metrics of the runs; `--columns` may name any of them.
        shown: the metrics to show; rows are ranked by the first.
        totals: show sums over all invocations, not means.
        header: the header of the runs.
    """

    all_metrics: tuple[MetricTotal, ...]
    shown: tuple[MetricTotal, ...]
    totals: bool
    header: RunHeader

    @property
    def lines(self) -> Mapping[str, tuple[Sequence[str], Integer]]:
        """Metrics that fetch a line of the last-level cache, and bytes per line, by the key of their column."""
        return {
            "LL-bytes": (LAST_LEVEL_MISSES, self.header.simulated_line_bytes),
            "cache-bytes": (("cache-misses",), self.header.line_bytes),
        }

    @property
    def first(self) -> MetricTotal:
        """The ranking metric."""
        return self.shown[0]

    def divisor(self, metric: MetricTotal) -> int:
        """Invocations to divide sums of a metric by; 1 for sums."""
        return divisor(metric, totals=self.totals)

    def name(self, metric: MetricTotal) -> str:
        """Heading of a metric: its clock or name, with "in all" if it cannot be shown per invocation."""
        name = _plain(metric)
        return name if self.totals or known_invocations(metric) else f"{name} in all"

    def column(self, key: str, heading: str, metric: MetricTotal, leave: int, *, usual: bool = True) -> Column:
        """A column of a metric, per invocation or as sums."""
        unit, scale = display_unit(metric)
        per = self._number_of_invocations(metric)
        return Column(key, heading, unit, per, divisor=self.divisor(metric) * scale, leave=leave, usual=usual)

    def _number_of_invocations(self, metric: MetricTotal) -> str:
        """Suffix of the heading of sums if the shown metrics have different numbers of invocations, else empty."""
        invocations = known_invocations(metric)
        differs = self.totals and invocations and len({*map(known_invocations, self.shown)} | {invocations}) > 1
        return f" of {invocations:,}" if differs else ""

    def of_first(self, key: str, word: str, leave: int, *, usual: bool = True) -> Column:
        """A column of other sums of the ranking metric."""
        return self.column(key, _heading(word, self.name(self.first)), self.first, leave, usual=usual)

    def of_invocations(self, key: str, word: str, leave: int, *, usual: bool = True) -> Column:
        """A column of the ranking metric in single invocations, also if other columns are sums."""
        unit, scale = display_unit(self.first)
        name, per = _heading(word, _plain(self.first)), "/invocation" if self._are_sums else ""
        return Column(key, name, unit, per, scale, leave, usual=usual)

    @property
    def _are_sums(self) -> bool:
        return self.totals or not known_invocations(self.first)

    def of_calls(self, key: str, word: str, leave: int) -> Column:
        """A column of the ranking metric in single calls."""
        unit, scale = display_unit(self.first)
        return Column(key, _heading(word, _plain(self.first)), unit, "/call", scale, leave)

    def overhead(self, leave: int = NEVER, *, usual: bool = True) -> Column:
        """A column of elapsed time without a kernel, per invocation or as sums."""
        return Column(OVERHEAD, "overhead", "ns", divisor=self._elapsed_divisor, leave=leave, usual=usual)

    @property
    def _elapsed_divisor(self) -> int:
        iterations = self.header.iterations
        return iterations if isinstance(iterations, int) and iterations and not self.totals else 1

    def calls(self, leave: int) -> Column:
        """A column of calls, per invocation or as sums."""
        return Column("calls", "calls", "count", divisor=self.divisor(self.all_metrics[0]), leave=leave)

    def columns(self) -> tuple[Column, ...]:
        """The first metric, its share, the other metrics, misses per 1000 instructions, and fetched bytes."""
        return tuple(self._columns())

    def _columns(self) -> Iterator[Column]:
        rest = [metric for metric in self.all_metrics if metric not in self.shown]
        yield self.column(self.first.name, self.name(self.first), self.first, NEVER)
        yield Column(SHARE, _heading("of", _plain(self.first), "share"), PERCENT)
        for index, metric in enumerate([*self.shown[1:], *rest]):
            leave, usual = LEAVE_METRIC + index, metric in self.shown
            yield self.column(metric.name, self.name(metric), metric, leave, usual=usual)
        for index, (key, (misses, _)) in enumerate(self._ratios.items()):
            heading = key.replace("/", "/1000 ")
            yield Column(key, heading, "count", leave=LEAVE_RATIO + index, usual=misses in self.shown)
        for key, (fetches, _) in self._fetched.items():
            usual = any(metric in self.shown for metric in fetches)
            heading, invocations = f"{key.removesuffix('-bytes')} fetched", self.divisor(fetches[0])
            per = self._number_of_invocations(fetches[0])
            yield Column(key, heading, "bytes", per, divisor=invocations, leave=LEAVE_FETCHED, usual=usual)

    @cached_property
    def _ratios(self) -> dict[str, tuple[MetricTotal, MetricTotal]]:
        """Misses and instructions of the columns of misses per 1000 instructions, by key."""
        by_name = {metric.name: metric for metric in self.all_metrics}
        ratios = {}
        for metric in self.all_metrics:
            instructions = by_name.get(INSTRUCTIONS if metric.name in STEP_METRICS else "instructions")
            if instructions is None or not _counts_misses(metric.name):
                continue
            if instructions.invocations == metric.invocations:
                ratios[f"{metric.name}/{instructions.name}"] = (metric, instructions)
        return ratios

    @cached_property
    def _fetched(self) -> dict[str, tuple[Sequence[MetricTotal], int]]:
        """Misses of the last-level cache, and bytes fetched per miss, by the key of the column."""
        by_name = {metric.name: metric for metric in self.all_metrics}
        fetched: dict[str, tuple[Sequence[MetricTotal], int]] = {}
        for key, (names, line_bytes) in self.lines.items():
            misses = [by_name[name] for name in names if name in by_name]
            if not isinstance(line_bytes, Unknown) and len(misses) == len(names):
                fetched[key] = (misses, line_bytes)
        return fetched

    def cells(self, amounts: Mapping[str, int]) -> dict[str, Cell]:
        """The cells of these columns, from sums by metric name."""
        cells: dict[str, Cell] = {metric.name: amounts.get(metric.name, 0) for metric in self.all_metrics}
        if self.first.work:
            cells[SHARE] = Fraction(100 * amounts.get(self.first.name, 0), self.first.work)
        for key, (fetches, line_bytes) in self._fetched.items():
            cells[key] = line_bytes * sum(amounts.get(metric.name, 0) for metric in fetches)
        for key, (misses, per) in self._ratios.items():
            instructions = amounts.get(per.name, 0)
            cells[key] = Fraction(1000 * amounts.get(misses.name, 0), instructions) if instructions else None
        return cells

    def elapsed_basis(self) -> str:
        """The basis of parts of the elapsed time, for the title of a table."""
        invocations = self._elapsed_divisor
        return f"per invocation, mean of {invocations:,}" if invocations > 1 else "sums of the whole run"

    def basis(self) -> str:
        """The basis of the numbers, for the title of a table: per invocation or sums."""
        return basis(self.shown, totals=self.totals)


def _plain(metric: MetricTotal) -> str:
    """The short name of a metric: the clock of a time, else its name."""
    return CLOCKS.get(metric.name, metric.name.removesuffix("_ns") if metric.unit == "ns" else metric.name)


def _counts_misses(name: str) -> bool:
    return name in _SIMULATED_MISSES or name.endswith("misses")
