"""A bundle's remarks of the compiler, ranked by a run."""

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
    """What the compiler said of each kernel, the dearest ops first, and write it where the options name a file.

    Args:
        bundle: one that was built with remarks.
        run: what tells the costs; None: the newest run of the bundle, and where there is none the order of the map.
        options: what is wanted.
        progress: told what is done.

    Raises:
        BundleInvalid: the bundle keeps no remarks, or damaged ones.
        UsageInvalid: the run does not have the metric, or one is wanted without a run.
        TracemapError: as `session.runs.joined` does.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.reports.remarks import ranked

    path = run or newest_run(bundle)
    check_targets(options.output, force=options.force, runs=() if path is None else (path,), bundles=[bundle.path])
    kept = bundle.remarks()
    if path is None:
        if options.metric is not None:
            raise UsageInvalid(f"--metric {options.metric}: there is no run; record one, or leave it out")
        found = _in_order(kept)
    else:
        costed = joined([path], bundle, options, progress).costed
        found = ranked(kept, costed, _metric(costed, options.metric), path.name)
    if options.output is not None:
        write_shown(partial(show_remarks, found, bundle, options), options.output)
    return found


def _in_order(kept: Remarks) -> Remarks:
    from msgspec import structs

    from tracemap.reports.remarks import in_order

    return structs.replace(kept, remarks=in_order(kept.remarks))


def _metric(costed: CostedMap, wanted: str | None) -> MetricTotal:
    from tracemap.reports.cost_lookup import default_metric

    there = [metric.name for metric in costed.metrics]
    if wanted is not None and wanted not in there:
        raise UsageInvalid(f"--metric {wanted}: the run does not have it; it has: {', '.join(there) or 'none'}")
    if not there:
        raise UsageInvalid("the run has no metric to rank by")
    return costed.metrics[default_metric(costed.metrics) if wanted is None else there.index(wanted)]


def show_remarks(found: Remarks, bundle: Bundle, options: RemarksOptions, out: TextIO) -> None:
    """Write remarks to a stream, in the format of the options."""

    def text(stream: TextIO) -> None:
        from tracemap.reports.terminal.remarks import print_remarks

        print_remarks(found, bundle.graph, stream, options)

    show_as(options.format, out, text, lambda: found)
