"""`stats`: statistics of recorded calls, and their output files."""

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
    """Calls, their statistics per thread, and the number of rows in the table of calls (UNKNOWN: no table)."""

    call_set: CallSet
    threads: tuple[ThreadStats, ...]
    calls_written: Integer


def stats(run: Path, options: StatsOptions) -> CallStatistics:
    """Compute statistics of a recording by tracemap's or IREE's hook, and write the outputs that the options name.

    Raises:
        TracemapError: see `measurements.hook.stats.read_calls` and `measurements.hook.calls.write_calls`.
        TargetExists, TargetUnwritable: an output cannot be written.
        UsageInvalid: the options ask for a table of calls, which files of IREE's own hook cannot give.
    """
    from tracemap.measurements.hook.stats import is_recording, read_calls, thread_stats

    check_files(options.calls, options.html, force=options.force)
    if options.calls is not None and run.exists() and not is_recording(run):
        raise UsageInvalid(
            f"{run}: comes from IREE's own hook and has no kernel names and start times; --calls needs a recording of "
            "tracemap's hook (`tracemap hook env`)"
        )
    call_set = read_calls(run, options)
    threads = [thread_stats(thread, options.buckets, tables=not options.no_table) for thread in call_set.threads]
    files = {} if options.csv is None else _csv_files(call_set.threads, options.csv)
    check_files(*files, force=options.force)
    if options.html is not None:
        from tracemap.reports.calls_page import build_stats_page, render_stats_page
        from tracemap.reports.html.document import write_page

        page = build_stats_page(call_set, threads, run.resolve().name, options)
        write_page(render_stats_page(page), options.html, force=options.force)
    written: Integer = UNKNOWN
    if options.calls is not None:
        from tracemap.measurements.hook.calls import write_calls
        from tracemap.measurements.hook.recording import read_recording

        written = write_calls(read_recording(run), options.calls, options)
    for target, calls in files.items():
        from tracemap.reports.csv_tables import calls_csv

        write_text(calls_csv(calls), target)
    return CallStatistics(call_set, tuple(threads), written)


def show_stats(statistics: CallStatistics, options: StatsOptions, out: TextIO) -> None:
    """Write statistics to a stream, in the format of the options."""
    from tracemap.reports.json_documents import shown_stats
    from tracemap.reports.terminal.stats import stats_text

    def text(stream: TextIO) -> None:
        stream.write(stats_text(statistics.threads, options.buckets, options.gamma, tables=not options.no_table))

    show_as(
        options.format,
        out,
        text,
        lambda: shown_stats(statistics.threads, statistics.call_set.diagnostics, options.buckets),
    )


def _csv_files(threads: Sequence[ThreadCalls], folder: Path) -> dict[Path, ThreadCalls]:
    """CSV file per thread. Threads with equal names get a number. Names are cleaned, so that none is a path."""
    calls_by_name: dict[str, ThreadCalls] = {}
    for calls in threads:
        plain = re.sub(r"[^\w.-]", "_", calls.thread) or "thread"
        number = next(n for n in itertools.count(1) if (plain if n == 1 else f"{plain}-{n}") not in calls_by_name)
        calls_by_name[plain if number == 1 else f"{plain}-{number}"] = calls
    return {folder / f"iree_hook_{name}.csv": calls for name, calls in calls_by_name.items()}
