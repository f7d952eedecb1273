"""Statistics of kernel calls as text, character for character in the layout of IREE's hook."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tracemap.measurements.hook.stats import DURATION, PairStats, ThreadStats
from tracemap.reports.escaping import for_hook_text
from tracemap.reports.html.document import SHADES, shade_level

_LABELS = {DURATION: "duration_ms"}
"""IREE's hook writes ms but means us. The text keeps that; JSON and CSV have the right unit."""


def stats_text(threads: Sequence[ThreadStats], buckets: int, gamma: float, *, tables: bool) -> str:
    """The statistics of all threads, in order."""
    return "".join(line + "\n" for thread in threads for line in _thread_lines(thread, buckets, gamma, tables))


def _thread_lines(thread: ThreadStats, buckets: int, gamma: float, tables: bool) -> Iterator[str]:
    yield f"Statistics for thread {for_hook_text(thread.thread)}:"
    yield f"  {thread.calls} matching calls, of which:"
    yield from (f"    {count} calls on cpu {cpu}" for cpu, count in thread.calls_of_cpu)
    for number, series in enumerate(thread.series):
        yield f"  {_label(series.name)}:"
        yield f"    mean: {_number(series.mean, 3)}"
        yield f"    {buckets}-ile means: " + " ".join(_number(mean, 3) for mean in series.bucket_means)
        first = number * (number - 1) // 2  # pairs of earlier series come first: 0 + 1 + … of them
        for pair in thread.pairs[first : first + number]:
            yield f"  correlation of {_label(pair.of)} vs. {_label(pair.given)}: {_number(pair.correlation, 2)}"
            if tables:
                yield from _table_lines(pair, buckets, gamma)


def _table_lines(pair: PairStats, buckets: int, gamma: float) -> Iterator[str]:
    of, given = _label(pair.of), _label(pair.given)
    yield f"  conditional probability of {of} {buckets}-ile (↓) given {given} {buckets}-ile (→):"
    yield " " * 8 + "".join(f" {column:2x}" for column in range(buckets))
    for row in range(buckets):
        yield f"      {row:2x}" + "".join(f" {SHADES[shade_level(float(cell), gamma)]}" for cell in pair.table[row])
    yield ""


def _label(name: str) -> str:
    return _LABELS.get(name, for_hook_text(name))


def _number(value: float, digits: int) -> str:
    """A number as C prints it; NaN as `-nan`, since x86's default NaN has its sign bit set."""
    return "-nan" if math.isnan(value) else f"{value:.{digits}g}"
