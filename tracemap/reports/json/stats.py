"""The JSON of `tracemap stats`: of each thread the means of its series, their quantiles, and how they go together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from tracemap.codec import Count, Document, Record, view
from tracemap.diagnostics import Diagnostic
from tracemap.measurements.hook.stats import ThreadStats

Number = Annotated[float | None, Meta(description="null: of nothing, such as the mean of an empty quantile.")]
"""The codec writes NaN as null, which is how statistics say that there is no number."""


class ShownCpu(Record, frozen=True):
    """A processor, and how many calls ran on it."""

    cpu: int
    calls: Count


class ShownSeries(Record, frozen=True):
    """A series (durations, or an event): its mean, and those of its quantiles, the lowest first."""

    name: str
    mean: Number
    bucket_means: tuple[Number, ...]


class ShownPair(Record, frozen=True):
    """Two series: Pearson's correlation, and P(quantile of `of`, a row | quantile of `given`, a column)."""

    of: str
    given: str
    correlation: Annotated[float | None, Meta(description="null: one of them is constant.")]
    probabilities: tuple[tuple[float, ...], ...]


class ShownThread(Record, frozen=True):
    """A thread's calls; `pairs` are each series with every earlier one."""

    thread: str
    calls: Count
    cpus: tuple[ShownCpu, ...]
    series: tuple[ShownSeries, ...]
    pairs: tuple[ShownPair, ...]


class ShownStats(Document, frozen=True, kw_only=True):
    """The statistics of recorded calls, thread by thread."""

    schema_version: Literal[1] = 1
    kind: Literal["stats"] = "stats"
    buckets: Annotated[Count, Meta(description="How many quantiles.")]
    diagnostics: tuple[Diagnostic, ...]
    threads: tuple[ShownThread, ...]


def shown_stats(threads: Sequence[ThreadStats], diagnostics: Sequence[Diagnostic], buckets: int) -> ShownStats:
    """The statistics as `tracemap stats --format json` prints them."""
    return ShownStats(buckets=buckets, diagnostics=tuple(diagnostics), threads=tuple(map(_thread, threads)))


def _thread(thread: ThreadStats) -> ShownThread:
    return view(
        ShownThread,
        thread,
        cpus=tuple(ShownCpu(cpu, calls) for cpu, calls in thread.calls_of_cpu),
        series=tuple(view(ShownSeries, series) for series in thread.series),
        pairs=tuple(
            view(ShownPair, pair, probabilities=tuple(map(tuple, pair.table.tolist()))) for pair in thread.pairs
        ),
    )
