"""Statistics of calls as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracemap.diagnostics import Diagnostic
from tracemap.measurements.hook.stats import PairStats, SeriesStats, ThreadStats

Json = dict[str, Any]

SCHEMA_VERSION = 1
"""Version of the JSON. 1: first."""


def stats_json(threads: Sequence[ThreadStats], diagnostics: Sequence[Diagnostic], buckets: int) -> Json:
    """Plain JSON values; what is no number (an empty quantile, a correlation with a constant) is null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "stats",
        "buckets": buckets,
        "diagnostics": [{"slug": found.slug, "message": found.message} for found in diagnostics],
        "threads": [_thread(thread) for thread in threads],
    }


def _thread(thread: ThreadStats) -> Json:
    return {
        "thread": thread.thread,
        "calls": thread.calls,
        "cpus": [{"cpu": cpu, "calls": count} for cpu, count in thread.calls_of_cpu],
        "series": [_series(series) for series in thread.series],
        "pairs": [_pair(pair) for pair in thread.pairs],
    }


def _series(series: SeriesStats) -> Json:
    means = [_known(mean) for mean in series.bucket_means]
    return {"name": series.name, "mean": _known(series.mean), "bucket_means": means}


def _pair(pair: PairStats) -> Json:
    return {
        "of": pair.of,
        "given": pair.given,
        "correlation": _known(pair.correlation),
        "probabilities": [[float(cell) for cell in row] for row in pair.table],
    }


def _known(value: float) -> float | None:
    # NaN and infinities are not JSON.
    return value if math.isfinite(value) else None
