"""`tracemap remarks`: the compiler's remarks on the code of each op, ranked by a run."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from msgspec import structs

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.runs import check_outputs, join_runs, newest_run
from tracemap.commands.streams import show_in_format, show_phases
from tracemap.core.errors import UsageInvalid
from tracemap.core.files import write_output_of
from tracemap.core.toolchain import Progress, no_progress
from tracemap.options.compile import RemarksOptions

if TYPE_CHECKING:
    from tracemap.attribution.model import MetricTotal
    from tracemap.map.bundle import Bundle
    from tracemap.map.bundle_documents import Remarks
    from tracemap.reports.cost_lookup import MapCosts


def remarks(bundle: Bundle, run: Path | None, options: RemarksOptions, progress: Progress = no_progress) -> Remarks:
    """Rank the compiler's remarks by the cost of their ops, and write them if the options name an output.

    Args:
        bundle: a bundle that was built with remarks.
        run: the run with the costs; None: the bundle's newest run, or without a run the order of the map.
        options: options of `tracemap remarks`.
        progress: receives the phase of the work.

    Raises:
        BundleInvalid: the bundle has no remarks, or they are damaged.
        UsageInvalid: the run lacks the metric, or the options name a metric but there is no run.
        TracemapError: see `commands.runs.join_runs`.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.map.bundle import check_iree
    from tracemap.reports.kernels import rank_by_cost, sort_remarks

    check_iree(bundle)
    path = run or newest_run(bundle)
    check_outputs(options.output, force=options.force, runs=() if path is None else (path,), bundles=[bundle.path])
    stored = bundle.remarks()
    if path is None:
        if options.metric is not None:
            raise UsageInvalid(f"--metric {options.metric}: the bundle has no run; record one, or leave --metric out")
        ordered = structs.replace(stored, remarks=sort_remarks(stored.remarks))
    else:
        costed = join_runs([path], bundle, options, progress).costed
        ordered = rank_by_cost(stored, costed, _metric(costed, options.metric), path.name)
    if options.output is not None:
        write_output_of(partial(show_remarks, ordered, bundle, options), options.output)
    return ordered


def _metric(costed: MapCosts, name: str | None) -> MetricTotal:
    from tracemap.reports.cost_lookup import default_metric

    names = [metric.name for metric in costed.metrics]
    if name is not None and name not in names:
        raise UsageInvalid(f"--metric {name}: the run lacks this metric; its metrics are: {', '.join(names) or 'none'}")
    if not names:
        raise UsageInvalid("the run has no metric to rank by")
    return costed.metrics[default_metric(costed.metrics) if name is None else names.index(name)]


def show_remarks(remarks: Remarks, bundle: Bundle, options: RemarksOptions, out: TextIO) -> None:
    """Write remarks to a stream, in the format of the options."""

    def text(stream: TextIO) -> None:
        from tracemap.reports.terminal.bundles import print_remarks

        print_remarks(remarks, bundle.graph, stream, options)

    show_in_format(options.format, out, text, lambda: remarks, bundle)


# ---- command line


@options_command("remarks", RemarksOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.argument("run", metavar="[RUN]", required=False, default=None, type=PATH)
def command(bundle: Path, run: Path | None, options: RemarksOptions) -> None:
    """Show LLVM's remarks on the code of BUNDLE: what it spilled or did not vectorise, hoist or unroll, and why.

    BUNDLE must come from `tracemap build --remarks`. Each remark is shown at the line of kernel IR that it names, with
    the ops of that line. Remarks on the most expensive ops of RUN come first. The default RUN is the newest in BUNDLE.

    \b
    Example:
      tracemap remarks model.tracemap --top 10
      tracemap remarks model.tracemap run.parquet --format json
    """
    from tracemap.map.bundle import load

    opened = load(bundle)
    with show_phases("remarks") as progress:
        ranked = remarks(opened, run, options, progress)
    if options.output is None:
        show_remarks(ranked, opened, options, sys.stdout)
