"""`tracemap attribute`: the cost of each op."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.program_metrics import with_metrics_of_program
from tracemap.commands.runs import (
    BundleAttribution,
    check_not_inputs,
    check_outputs,
    excerpts,
    open_and_join_runs,
    runs_of_bundles,
    with_advice,
)
from tracemap.commands.streams import is_brief, is_quiet, print_message, print_next, show_in_format, show_phases
from tracemap.core.errors import UsageInvalid
from tracemap.core.files import is_standard, write_output_of
from tracemap.core.toolchain import Progress, no_progress
from tracemap.options.option import declared_options
from tracemap.options.results import AttributeOptions

if TYPE_CHECKING:
    from tracemap.map.bundle import Bundle


def attribute(
    runs: Sequence[Path], bundle: Bundle | None, options: AttributeOptions, progress: Progress = no_progress
) -> BundleAttribution:
    """Join runs (tables or `.ireeprof`) onto their bundle, and write the outputs that the options name.

    If `bundle` is None, the options name the bundle, or it is found from the first run.

    Raises:
        TracemapError: see `commands.runs.open_and_join_runs`, `excerpts` and `map.bundle.load`.
        TargetExists, TargetUnwritable: an output cannot be written.
        UsageInvalid: the table lacks a metric or column that the options name.
    """
    from tracemap.map.bundle import load

    _check_format(options)
    targets = options.output, options.html
    if bundle is None and options.map is not None:
        bundle = load(options.map)
    check_outputs(*targets, force=options.force, runs=runs, bundles=[] if bundle is None else [bundle.path])
    with open_and_join_runs(runs, bundle, options, progress, options.window) as (joined, opened):
        attributed = with_metrics_of_program(with_advice(joined, runs), options.metrics)
        check_not_inputs(*targets, bundles=[attributed.bundle.path])  # a named bundle was checked before any work
        if options.format == "text" or is_brief():
            from tracemap.reports.views.selection import check_selection

            check_selection(attributed.costed_only(options.only), attributed.attribution, options)
        if options.html is not None:
            from tracemap.commands.memory import memory_of_page
            from tracemap.reports.page.render import write_bundle_page

            progress("writing the page")
            shown = partial(excerpts, attributed.bundle.graph, opened, options.memory)
            write_bundle_page(
                attributed.bundle,
                attributed.costed,
                options.html,
                shown,
                memory_of_page(attributed.bundle, attributed.attribution.run),
                force=options.force,
                totals=options.totals,
            )
    if options.output is not None:
        write_output_of(partial(show_attribution, attributed, options), options.output)
    return attributed


_TEXT_OPTIONS: Final = ("by", "metrics", "balance", "notes", "top", "sort", "columns", "filters", "only")
"""Options of the text table. JSON and CSV always contain everything."""


def _check_format(options: AttributeOptions) -> None:
    """Reject options that have no effect on JSON and CSV."""
    from tracemap.attribution.program_metrics import PROGRAM_METRICS

    if options.format == "text" or is_brief():
        return
    if not set(options.metrics) <= set(PROGRAM_METRICS):  # JSON and CSV have these only on request
        raise UsageInvalid(
            f"{options.format} always has all metrics of the run; --metric can add {', '.join(PROGRAM_METRICS)}"
        )
    options = replace(options, metrics=())
    for declared in declared_options(AttributeOptions):
        if declared.name in _TEXT_OPTIONS and getattr(options, declared.name) != declared.default:
            raise UsageInvalid(
                f"{declared.names[0]} applies to the text table only; --format {options.format} always has all ops, "
                f"metrics and columns: leave {declared.names[0]} out"
            )


def show_attribution(attributed: BundleAttribution, options: AttributeOptions, out: TextIO) -> None:
    """Write the costs of ops to a stream, in the format of the options. Other formats are not imported."""
    graph, result = attributed.bundle.graph, attributed.attribution

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv_tables import attribution_csv

            stream.write(attribution_csv(graph, result))
        else:
            from tracemap.reports.terminal.attribution import print_costs

            print_costs(attributed.costed_only(options.only), result, stream, options, table_only=is_quiet())

    def value() -> object:
        if is_brief():
            from tracemap.reports.brief import attribution_with_costs

            return attribution_with_costs(attributed.costed_only(options.only), result, options)
        from tracemap.reports.json_documents import shown_attribution

        return shown_attribution(result, attributed.costed.ranked_gains)

    show_in_format(options.format, out, text, value, attributed.bundle)


# ---- command line


@options_command("attribute", AttributeOptions)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PATH)
def command(runs: tuple[Path, ...], options: AttributeOptions) -> None:
    """Show what each op costs: match each RUN with its bundle, and split the cost of fused kernels over their ops.

    A RUN is a file from `tracemap record` (Parquet or CSV), or your own CSV with a kernel and a duration column. It may
    also come from another tool: an .ireeprof or its export, Google Benchmark's JSON, and others. `-` reads it from
    standard input. Several runs of one module are added up. With -q the text is the table alone.

    \b
    Example:
      tracemap attribute run.csv --html page.html
      tracemap attribute run.csv --by caller --metric cpu_ns,D1mr
      tracemap attribute profile.ireeprof --map model.tracemap --format json
      tracemap attribute run.csv --metric live_bytes_at_peak,bytes_read,cpu_ns
    """
    # Attribution multiplies no matrices. numpy's BLAS would start a thread per core when it is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    runs = tuple(runs_of_bundles(runs, print_message))
    with show_phases("attribute") as progress:
        attributed = attribute(runs, None, options, progress)
    if options.output is None and not is_standard(options.html):
        show_attribution(attributed, options, sys.stdout)
    if options.html is not None and not is_standard(options.html):
        print_message(f"page: {options.html}")
    elif options.format == "text":
        print_next("report", attributed.bundle.path, *runs)
