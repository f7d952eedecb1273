"""Statistics of calls as text, laid out to the last character as IREE's hook prints them, and as JSON and CSV."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tracemap.diagnostics import Diagnostic
from tracemap.measurements.hook.stats import DURATION, PairStats, ThreadCalls, ThreadStats

SHADES: Final = (
    *("  ", "_ ", "__", "▁_", "▁▁", "▂▁", "▂▂", "▃▂", "▃▃"),
    *("▄▃", "▄▄", "▅▄", "▅▅", "▆▅", "▆▆", "▇▆", "▇▇", "█▇", "██"),
)
"""From probability 0 to 1."""

_LABELS = {DURATION: "duration_ms"}
"""IREE's hook writes ms where it means us. The text keeps that, JSON and CSV have the right unit."""


def stats_text(threads: Sequence[ThreadStats], buckets: int, gamma: float, *, tables: bool) -> str:
    """The text for all threads, one after the other."""
    return "".join(line + "\n" for thread in threads for line in _thread_lines(thread, buckets, gamma, tables))


def _thread_lines(thread: ThreadStats, buckets: int, gamma: float, tables: bool) -> Iterator[str]:
    yield f"Statistics for thread {printable(thread.thread)}:"
    yield f"  {thread.calls} matching calls, of which:"
    yield from (f"    {count} calls on cpu {cpu}" for cpu, count in thread.calls_of_cpu)
    for place, series in enumerate(thread.series):
        yield f"  {_label(series.name)}:"
        yield f"    mean: {_number(series.mean, 3)}"
        yield f"    {buckets}-ile means: " + " ".join(_number(mean, 3) for mean in series.bucket_means)
        first = place * (place - 1) // 2
        for pair in thread.pairs[first : first + place]:
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


def shade_level(probability: float, gamma: float) -> int:
    """Which of `SHADES` a probability has."""
    return min(len(SHADES) - 1, math.floor(math.pow(probability, gamma) * len(SHADES)))


def _label(name: str) -> str:
    return _LABELS.get(name, printable(name))


def printable(name: str) -> str:
    """A name without control characters: threads name themselves."""
    return "".join(mark if mark.isprintable() else "?" for mark in name)


def _number(value: float, digits: int) -> str:
    """As C prints it, also what is no number: the processor's own NaN has its sign set."""
    return "-nan" if math.isnan(value) else f"{value:.{digits}g}"


def stats_json(threads: Sequence[ThreadStats], diagnostics: Sequence[Diagnostic], buckets: int) -> dict[str, Any]:
    """Plain JSON values; what is no number (an empty quantile, a correlation with a constant) is null."""
    return {
        "schema_version": 1,
        "kind": "stats",
        "buckets": buckets,
        "diagnostics": [{"slug": note.slug, "message": note.message} for note in diagnostics],
        "threads": [
            {
                "thread": thread.thread,
                "calls": thread.calls,
                "cpus": [{"cpu": cpu, "calls": count} for cpu, count in thread.calls_of_cpu],
                "series": [
                    {
                        "name": series.name,
                        "mean": _known(series.mean),
                        "bucket_means": [_known(mean) for mean in series.bucket_means],
                    }
                    for series in thread.series
                ],
                "pairs": [
                    {
                        "of": pair.of,
                        "given": pair.given,
                        "correlation": _known(pair.correlation),
                        "probabilities": [[float(cell) for cell in row] for row in pair.table],
                    }
                    for pair in thread.pairs
                ],
            }
            for thread in threads
        ],
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def calls_csv(calls: ThreadCalls) -> str:
    """The calls of a thread as IREE's hook writes them."""
    lines = [",".join(("thread", "cpu", "node", *calls.names))]
    thread = printable(calls.thread).replace(",", "?").replace('"', "?")
    durations, *events = (values.tolist() for values in calls.series)
    for place, duration in enumerate(durations):
        counts = "".join(f",{int(series[place])}" for series in events)
        lines.append(f"{thread},{calls.cpus[place]},{calls.nodes[place]},{duration:g}{counts}")
    return "\n".join(lines) + "\n"
