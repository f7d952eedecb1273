"""`tracemap stats`: the statistics of IREE's own hook, over calls of ours or of IREE's."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracemap.errors import UsageInvalid
from tracemap.units import plural

if TYPE_CHECKING:
    from tracemap.measurements.hook.stats import ThreadCalls

_NO_TABLE = "IREE_HOOK_NO_PROBABILITY_TABLE"


@click.command(name="stats")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--kernel", default="", envvar="IREE_HOOK_FILTER_NAME", help="Only calls of this kernel.  [default: all]")
@click.option(
    "--skip-ms",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    envvar="IREE_HOOK_SKIP_START_MS",
    help="Leave out each thread's first milliseconds, from its first call.",
)
@click.option(
    "--counters",
    default="",
    metavar="A,B",
    envvar="IREE_HOOK_PERF_EVENT_TYPES",
    help="Only these events, in this order.  [default: all that were counted]",
)
@click.option(
    "--buckets",
    type=click.IntRange(1, 1024),
    default=16,
    show_default=True,
    envvar="IREE_HOOK_BUCKET_COUNT",
    help="How many quantiles.",
)
@click.option("--no-table", is_flag=True, help="Leave out the tables of conditional probabilities.")
@click.option(
    "--gamma",
    type=click.FloatRange(min=0, min_open=True),
    default=0.5,
    show_default=True,
    envvar="IREE_HOOK_GAMMA",
    help="Shades show probability to this power.",
)
@click.option(
    "--csv",
    "csv_folder",
    type=click.Path(path_type=Path),
    envvar="IREE_HOOK_OUTPUT_CSV",
    help="Also write the calls into this folder, a CSV file per thread, as IREE's hook does.",
)
@click.option(
    "--calls",
    "table",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also write the calls as a table, one row per call of a workgroup: Parquet, or CSV if it ends in .csv.",
)
@click.option(
    "--html",
    "page",
    metavar="PAGE",
    type=click.Path(path_type=Path),
    help="Also write a page with histograms, correlations and heat maps.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The text of IREE's hook, or JSON.",
)
def command(  # noqa: PLR0913 - click hands over every option as an argument of its own
    *,
    run: Path,
    kernel: str,
    skip_ms: int,
    counters: str,
    buckets: int,
    no_table: bool,
    gamma: float,
    csv_folder: Path | None,
    table: Path | None,
    page: Path | None,
    force: bool,
    form: str,
) -> None:
    """Print statistics of the calls in RUN, per thread: means, quantiles, correlations, conditional probabilities.

    RUN is a folder in which the hook left its records (see tracemap hook), a CSV file of IREE's own hook, or a folder
    of such files. The variables IREE_HOOK_FILTER_NAME, _SKIP_START_MS, _PERF_EVENT_TYPES, _BUCKET_COUNT,
    _NO_PROBABILITY_TABLE, _GAMMA and _OUTPUT_CSV are honoured. As in IREE's hook the text calls microseconds
    duration_ms.

    \b
    Example:
      tracemap stats calls
      tracemap stats calls --kernel main_dispatch_4_matmul_64x768x256_f32 --buckets 8
      tracemap stats calls --calls calls.parquet --html calls.html
      tracemap stats iree_hook_worker-0.csv --format json
    """
    from tracemap.measurements.hook.stats import is_recording, read_calls, thread_stats
    from tracemap.options.option import split_names
    from tracemap.outputs import check_file
    from tracemap.reports.calls.json import stats_json
    from tracemap.reports.terminal.stats import stats_text

    tables = not no_table and _NO_TABLE not in os.environ
    events = split_names(counters)
    for target in (table, page):
        if target is not None:
            check_file(target, force=force)
    if table is not None and not is_recording(run):
        raise UsageInvalid(f"{run}: is of IREE's hook, which tells no kernels and starts; --calls needs our recording")
    found = read_calls(run, kernel=kernel, skip_ms=skip_ms, events=events)
    stats = [thread_stats(thread, buckets, tables=tables) for thread in found.threads]
    if page is not None:
        from tracemap.reports.calls.page import Chosen, build_stats_page, render_stats_page
        from tracemap.reports.html.document import write_page

        chosen = Chosen(run.resolve().name, kernel, skip_ms, buckets, gamma)
        write_page(render_stats_page(build_stats_page(found, stats, chosen)), page, force=force)
    if table is not None:
        _write_table(run, table, kernel, skip_ms, events, force=force)
    if csv_folder is not None:
        _write_csv(found.threads, csv_folder, force=force)
    for note in found.diagnostics:
        click.echo(f"tracemap: warning: {note.message} [{note.slug}]", err=True)
    if form == "json":
        click.echo(json.dumps(stats_json(stats, found.diagnostics, buckets), indent=1, ensure_ascii=False))
    else:
        click.echo(stats_text(stats, buckets, gamma, tables=tables), nl=False)


def _write_table(run: Path, table: Path, kernel: str, skip_ms: int, events: Sequence[str], *, force: bool) -> None:
    from tracemap.measurements.hook.recording import read_recording
    from tracemap.measurements.hook.table import write_calls

    count = write_calls(read_recording(run), table, kernel=kernel, skip_ms=skip_ms, events=events, force=force)
    click.echo(f"tracemap: {plural(count, 'call')} written to {table}", err=True)


def _write_csv(found: Sequence[ThreadCalls], folder: Path, *, force: bool) -> None:
    """One file per thread; threads of the same name are told apart by a number. Names are never taken as paths."""
    from tracemap.outputs import check_file, write_text
    from tracemap.reports.calls.csv import calls_csv

    names: dict[str, ThreadCalls] = {}
    for calls in found:
        plain = re.sub(r"[^\w.-]", "_", calls.thread) or "thread"
        number = next(n for n in itertools.count(1) if (plain if n == 1 else f"{plain}-{n}") not in names)
        names[plain if number == 1 else f"{plain}-{number}"] = calls
    for name in names:
        check_file(folder / f"iree_hook_{name}.csv", force=force)
    for name, calls in names.items():
        write_text(calls_csv(calls), folder / f"iree_hook_{name}.csv")
