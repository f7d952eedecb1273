"""`tracemap remarks`: what the compiler said of the code of each op."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import phases_shown
from tracemap.options.compile import RemarksOptions


@options_command("remarks", RemarksOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.argument("run", metavar="[RUN]", required=False, default=None, type=PATH)
def command(bundle: Path, run: Path | None, options: RemarksOptions) -> None:
    """Say what LLVM remarked on the code of BUNDLE: what it spilled, and did not vectorise, hoist or unroll, and why.

    BUNDLE is one that `tracemap build --remarks` made. Each remark stands at the line of the kernel that it names, with
    the ops of that step; those of the dearest ops in RUN come first, by default in the newest run of BUNDLE.

    \b
    Example:
      tracemap remarks model.tracemap --top 10
      tracemap remarks model.tracemap run.parquet --format json
    """
    from tracemap.graph.bundle import load
    from tracemap.session.remarks import remarks, show_remarks

    opened = load(bundle)
    with phases_shown("remarks") as progress:
        found = remarks(opened, run, options, progress)
    if options.output is None:
        show_remarks(found, opened, options, sys.stdout)
