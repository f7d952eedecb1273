"""Statistics of recorded calls, and the files that are made of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tracemap.errors import UsageInvalid
from tracemap.options.measure import StatsOptions
from tracemap.outputs import check_files, show_as, write_text
from tracemap.units import UNKNOWN, Integer

if TYPE_CHECKING:
    from tracemap.measurements.hook.stats import CallSet, ThreadCalls, ThreadStats


@dataclass(frozen=True, slots=True)
class CallStatistics:
    """Calls, the statistics of each thread's, and how many went to the table of calls (unknown: none was asked for)."""

    found: CallSet
    threads: tuple[ThreadStats, ...]
    calls_written: Integer


def stats(run: Path, options: StatsOptions) -> CallStatistics:
    """Statistics of the calls in a recording of ours or of IREE's hook; writes what the options name.

    Raises:
        TracemapError: as `measurements.hook.stats.read_calls` and `measurements.hook.calls.write_calls` do.
        TargetExists, TargetUnwritable: an output cannot be written.
        UsageInvalid: a table of calls is wanted of what IREE's own hook wrote.
    """
    from tracemap.measurements.hook.stats import is_recording, read_calls, thread_stats

    check_files(options.calls, options.html, force=options.force)
    if options.calls is not None and run.exists() and not is_recording(run):
        raise UsageInvalid(f"{run}: is of IREE's hook, which tells no kernels and starts; --calls needs our recording")
    found = read_calls(run, options)
    threads = [thread_stats(thread, options.buckets, tables=not options.no_table) for thread in found.threads]
    files = {} if options.csv is None else _csv_files(found.threads, options.csv)
    check_files(*files, force=options.force)
    if options.html is not None:
        from tracemap.reports.calls_page import build_stats_page, render_stats_page
        from tracemap.reports.html.document import write_page

        page = build_stats_page(found, threads, run.resolve().name, options)
        write_page(render_stats_page(page), options.html, force=options.force)
    written: Integer = UNKNOWN
    if options.calls is not None:
        from tracemap.measurements.hook.calls import write_calls
        from tracemap.measurements.hook.recording import read_recording

        written = write_calls(read_recording(run), options.calls, options)
    for target, calls in files.items():
        from tracemap.reports.csv_tables import calls_csv

        write_text(calls_csv(calls), target)
    return CallStatistics(found, tuple(threads), written)


def show_stats(made: CallStatistics, options: StatsOptions, out: TextIO) -> None:
    """Write statistics to a stream, in the format of the options."""
    from tracemap.reports.json_documents import shown_stats
    from tracemap.reports.terminal.stats import stats_text

    def text(stream: TextIO) -> None:
        stream.write(stats_text(made.threads, options.buckets, options.gamma, tables=not options.no_table))

    show_as(options.format, out, text, lambda: shown_stats(made.threads, made.found.diagnostics, options.buckets))


def _csv_files(found: Sequence[ThreadCalls], folder: Path) -> dict[Path, ThreadCalls]:
    """One file per thread; threads of the same name are told apart by a number. Names are never taken as paths."""
    names: dict[str, ThreadCalls] = {}
    for calls in found:
        plain = re.sub(r"[^\w.-]", "_", calls.thread) or "thread"
        number = next(n for n in itertools.count(1) if (plain if n == 1 else f"{plain}-{n}") not in names)
        names[plain if number == 1 else f"{plain}-{number}"] = calls
    return {folder / f"iree_hook_{name}.csv": calls for name, calls in names.items()}
