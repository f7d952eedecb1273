"""The annotated page of a bundle, with the costs of its runs or of the map alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.options.report import ReportOptions
from tracemap.session.runs import excerpts, joined_open
from tracemap.session.spared import check_targets
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle


def report(bundle: Bundle, runs: Sequence[Path], options: ReportOptions, progress: Progress = no_progress) -> None:
    """Write the page of a bundle.

    Raises:
        TracemapError: as `session.runs.joined_open` and `excerpts` do, where there are runs.
        TargetExists, TargetUnwritable: the page cannot be written.
        UsageInvalid: it would take the place of what is read.
    """
    from tracemap.reports.costed import CostedMap
    from tracemap.reports.page.render import write_bundle_page

    check_targets(options.output, force=options.force, runs=runs, bundles=[bundle.path])
    write = partial(write_bundle_page, bundle, target=options.output, force=options.force, totals=options.totals)
    if not runs:
        progress("writing the page")
        write(CostedMap(bundle.graph, None))
        return
    with joined_open(runs, bundle, options, progress, options.window) as (made, opened):
        progress("writing the page")
        write(made.costed, excerpts=partial(excerpts, bundle.graph, opened, options.memory))
