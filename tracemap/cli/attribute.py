"""`tracemap attribute`: the cost of each op."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import show_phases, tell
from tracemap.options.results import AttributeOptions
from tracemap.outputs import is_standard


@options_command("attribute", AttributeOptions)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PATH)
def command(runs: tuple[Path, ...], options: AttributeOptions) -> None:
    """Show what each op costs: join each RUN onto its bundle, and split the cost of fused kernels over their ops.

    A RUN is a file from `tracemap record` (Parquet or CSV), or your own CSV with a kernel and a duration column. It may
    also come from another tool: an .ireeprof or its export, Google Benchmark's JSON, and others. `-` reads it from
    standard input. Several runs of one module are added up.

    \b
    Example:
      tracemap attribute run.csv --html page.html
      tracemap attribute run.csv --by caller --metric cpu_ns,D1mr
      tracemap attribute profile.ireeprof --map model.tracemap --format json
    """
    from tracemap.session.attribute import attribute, show_attribution

    with show_phases("attribute") as progress:
        attributed = attribute(runs, None, options, progress)
    if options.output is None and not is_standard(options.html):
        show_attribution(attributed, options, sys.stdout)
    if options.html is not None and not is_standard(options.html):
        tell(f"page: {options.html}")
