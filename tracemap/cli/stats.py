"""`tracemap stats`: the statistics of IREE's own hook, for calls recorded by tracemap's hook or by IREE's."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import tell, warn
from tracemap.options.measure import StatsOptions
from tracemap.outputs import is_standard
from tracemap.units import plural

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
    from tracemap.session.stats import show_stats, stats

    if _NO_TABLE in os.environ:
        options = dataclasses.replace(options, no_table=True)
    statistics = stats(run, options)
    if isinstance(statistics.calls_written, int):
        tell(f"tracemap: {plural(statistics.calls_written, 'call')} written to {options.calls}")
    warn(statistics.call_set.diagnostics)
    if not (is_standard(options.calls) or is_standard(options.html)):
        show_stats(statistics, options, sys.stdout)
    if options.html is not None and not is_standard(options.html):
        tell(f"page: {options.html}")
