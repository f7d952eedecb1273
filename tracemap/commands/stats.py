"""`tracemap stats`: the statistics of IREE's own hook, for recorded calls."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.streams import print_diagnostics, print_message, show_in_format
from tracemap.core.errors import UsageInvalid
from tracemap.core.files import check_files, is_standard, write_text
from tracemap.core.units import UNKNOWN, Integer, plural
from tracemap.options.measure import StatsOptions

if TYPE_CHECKING:
    from tracemap.runs.hook.stats import ThreadCalls, ThreadedCalls, ThreadStats


@dataclass(frozen=True, slots=True)
class CallStatistics:
    """Calls, their statistics per thread, and the number of rows in the table of calls (UNKNOWN: no table)."""

    call_set: ThreadedCalls
    threads: tuple[ThreadStats, ...]
    calls_written: Integer


def stats(run: Path, options: StatsOptions) -> CallStatistics:
    """Compute statistics of a recording by tracemap's or IREE's hook, and write the outputs that the options name.

    Raises:
        TracemapError: see `runs.hook.stats.read_calls` and `runs.hook.calls.write_calls`.
        TargetExists, TargetUnwritable: an output cannot be written.
        UsageInvalid: the options ask for a table of calls, which files of IREE's own hook cannot give.
    """
    from tracemap.runs.hook.stats import is_recording, read_calls, thread_stats

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
        from tracemap.reports.html import write_page
        from tracemap.reports.stats_page import build_stats_page, render_stats_page

        page = build_stats_page(call_set, threads, run.resolve().name, options)
        write_page(render_stats_page(page), options.html, force=options.force)
    written: Integer = UNKNOWN
    if options.calls is not None:
        from tracemap.runs.hook.calls import write_calls
        from tracemap.runs.hook.recording import read_recording

        written = write_calls(read_recording(run), options.calls, options)
    for target, calls in files.items():
        from tracemap.reports.csv_tables import calls_csv

        write_text(calls_csv(calls), target)
    return CallStatistics(call_set, tuple(threads), written)


def show_stats(statistics: CallStatistics, options: StatsOptions, out: TextIO) -> None:
    """Write statistics to a stream, in the format of the options."""
    from tracemap.reports.json_documents import shown_stats
    from tracemap.reports.terminal.bundles import stats_text

    def text(stream: TextIO) -> None:
        stream.write(stats_text(statistics.threads, options.buckets, options.gamma, tables=not options.no_table))

    show_in_format(
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


# ---- command line


_NO_TABLE = "IREE_HOOK_NO_PROBABILITY_TABLE"
"""Variable of IREE's hook; any value, even an empty one, means yes."""


@options_command("stats", StatsOptions)
@click.argument("run", metavar="RUN", type=PATH)
def command(run: Path, options: StatsOptions) -> None:
    """Print statistics of the calls in RUN per thread: means, quantiles, correlations, conditional probabilities.

    RUN is a folder with records of the hook (see `tracemap hook`), a CSV file of IREE's own hook, or a folder of such
    files. These environment variables of IREE's hook set defaults: IREE_HOOK_FILTER_NAME, _SKIP_START_MS,
    _PERF_EVENT_TYPES, _BUCKET_COUNT, _NO_PROBABILITY_TABLE, _GAMMA and _OUTPUT_CSV. As in IREE's hook, the text labels
    microseconds as duration_ms.

    \b
    Example:
      tracemap stats calls
      tracemap stats calls --kernel main_dispatch_4_matmul_64x64x64_f32
      tracemap stats calls --calls calls.parquet --html calls.html
      tracemap stats iree_hook_worker-0.csv --format json
    """
    if _NO_TABLE in os.environ:
        options = dataclasses.replace(options, no_table=True)
    statistics = stats(run, options)
    if isinstance(statistics.calls_written, int):
        print_message(f"tracemap: {plural(statistics.calls_written, 'call')} written to {options.calls}")
    print_diagnostics(statistics.call_set.diagnostics)
    if not (is_standard(options.calls) or is_standard(options.html)):
        show_stats(statistics, options, sys.stdout)
    if options.html is not None and not is_standard(options.html):
        print_message(f"page: {options.html}")
