"""`tracemap remarks`: the compiler's remarks on the code of each op."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import show_phases
from tracemap.options.compile import RemarksOptions


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
    from tracemap.graph.bundle import load
    from tracemap.session.remarks import remarks, show_remarks

    opened = load(bundle)
    with show_phases("remarks") as progress:
        ranked = remarks(opened, run, options, progress)
    if options.output is None:
        show_remarks(ranked, opened, options, sys.stdout)
