"""What `tracemap hook env` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tracemap.options.option import Options, option, required

_MOST_CALLS: Final = 1_000_000_000_000_000
"""The hook ignores a number that it cannot hold, and records all calls then."""


@dataclass(frozen=True, slots=True)
class HookEnvOptions(Options):
    """Which calls a program of somebody's own records, and where to."""

    output: Path = required(
        "The folder for the record files; it must exist. Each process adds files of its own.", "-o", "--output"
    )
    filter: str = option(
        "", "Only kernels whose name fits.  [default: all]", metavar="GLOB", variable="IREE_HOOK_FILTER_NAME"
    )
    skip_ms: int = option(
        0,
        "Pass over each thread's first milliseconds, from its first call.",
        metavar="MS",
        at_least=0,
        at_most=1_000_000_000,
        variable="IREE_HOOK_SKIP_START_MS",
    )
    calls: int = option(
        0, "Record so many calls in all.  [default: no limit]", metavar="N", at_least=0, at_most=_MOST_CALLS
    )
    every: int = option(1, "Record one call in so many.", metavar="N", at_least=1, at_most=_MOST_CALLS)
    thread_mb: int = option(
        1024, "Megabytes that the calls of each thread take at most.", metavar="MB", at_least=2, at_most=1_000_000
    )
    keep: Literal["oldest", "newest"] = option(
        "oldest",
        "Which calls to keep where there are more: the first ones, or the newest, as of a server that runs on.",
    )
    counters: tuple[str, ...] = option(
        (),
        "Events to count around each call; see tracemap events.",
        metavar="A,B",
        variable="IREE_HOOK_PERF_EVENT_TYPES",
        split=True,
    )
    export: bool = option(False, "Print lines for a shell to source, not words for env.")
