"""`remarks`: the compiler's remarks in a bundle, ranked by the costs of a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tracemap.errors import UsageInvalid
from tracemap.options.compile import RemarksOptions
from tracemap.outputs import show_as, write_shown
from tracemap.session.overwrite_guard import check_targets
from tracemap.session.runs import joined, newest_run
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.attribution.model import MetricTotal
    from tracemap.graph.bundle import Bundle
    from tracemap.graph.documents import Remarks
    from tracemap.reports.cost_lookup import CostedMap


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
        TracemapError: see `session.runs.joined`.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.reports.remarks import ranked

    path = run or newest_run(bundle)
    check_targets(options.output, force=options.force, runs=() if path is None else (path,), bundles=[bundle.path])
    stored = bundle.remarks()
    if path is None:
        if options.metric is not None:
            raise UsageInvalid(f"--metric {options.metric}: the bundle has no run; record one, or leave --metric out")
        ordered = _in_order(stored)
    else:
        costed = joined([path], bundle, options, progress).costed
        ordered = ranked(stored, costed, _metric(costed, options.metric), path.name)
    if options.output is not None:
        write_shown(partial(show_remarks, ordered, bundle, options), options.output)
    return ordered


def _in_order(stored: Remarks) -> Remarks:
    from msgspec import structs

    from tracemap.reports.remarks import in_order

    return structs.replace(stored, remarks=in_order(stored.remarks))


def _metric(costed: CostedMap, name: str | None) -> MetricTotal:
    from tracemap.reports.cost_lookup import default_metric

    names = [metric.name for metric in costed.metrics]
    if name is not None and name not in names:
        raise UsageInvalid(f"--metric {name}: the run lacks this metric; its metrics are: {', '.join(names) or 'none'}")
    if not names:
        raise UsageInvalid("the run has no metric to rank by")
    return costed.metrics[default_metric(costed.metrics) if name is None else names.index(name)]


def show_remarks(ranked: Remarks, bundle: Bundle, options: RemarksOptions, out: TextIO) -> None:
    """Write remarks to a stream, in the format of the options."""

    def text(stream: TextIO) -> None:
        from tracemap.reports.terminal.remarks import print_remarks

        print_remarks(ranked, bundle.graph, stream, options)

    show_as(options.format, out, text, lambda: ranked)
