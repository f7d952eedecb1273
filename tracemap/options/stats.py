"""What `tracemap stats` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.option import Options, option


@dataclass(frozen=True, slots=True)
class StatsOptions(Options):
    """Which of the recorded calls to look at, what to tell of them, and where it goes."""

    kernel: str = option(
        "", "Only calls of this kernel.  [default: all]", metavar="NAME", variable="IREE_HOOK_FILTER_NAME"
    )
    skip_ms: int = option(
        0,
        "Leave out each thread's first milliseconds, from its first call.",
        metavar="MS",
        at_least=0,
        variable="IREE_HOOK_SKIP_START_MS",
    )
    counters: tuple[str, ...] = option(
        (),
        "Only these events, in this order.  [default: all that were counted]",
        metavar="A,B",
        variable="IREE_HOOK_PERF_EVENT_TYPES",
        split=True,
    )
    buckets: int = option(
        16, "How many quantiles.", metavar="N", at_least=1, at_most=1024, variable="IREE_HOOK_BUCKET_COUNT"
    )
    no_table: bool = option(False, "Leave out the tables of conditional probabilities.")
    gamma: float = option(
        0.5, "Shades show probability to this power.", metavar="G", above=0, variable="IREE_HOOK_GAMMA"
    )
    csv: Path | None = option(
        None,
        "Also write the calls into this folder, a CSV file per thread, as IREE's hook does.",
        variable="IREE_HOOK_OUTPUT_CSV",
    )
    calls: Path | None = option(
        None,
        "Also write the calls as a table, one row per call of a workgroup: Parquet, or CSV if it ends in .csv.",
        metavar="FILE",
    )
    html: Path | None = option(None, "Also write a page with histograms, correlations and heat maps.", metavar="PAGE")
    force: bool = option(False, "Replace files that exist.")
    format: Literal["text", "json"] = option("text", "The text of IREE's hook, or JSON.")
