"""`tracemap export`: costs in the formats of other tools."""

from __future__ import annotations

from pathlib import Path

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.runs import runs_of_bundles
from tracemap.commands.streams import print_message, show_phases
from tracemap.core.files import is_standard
from tracemap.options.reports import ExportOptions


@options_command("export", ExportOptions)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PATH)
def command(runs: tuple[Path, ...], options: ExportOptions) -> None:
    """Write the costs that `tracemap attribute` finds in each RUN in a format that other tools open.

    Sums equal those of `attribute` exactly. A cost that belongs to no op appears under `(unattributed)`, with
    the reason.

    \b
    Example:
      tracemap export run.csv --to pprof -o run.pb.gz
      tracemap export run.csv --to callgrind -o callgrind.out.run
      tracemap export run.csv --to speedscope --callers python -o run.json
      tracemap export run.csv --to collapsed | flamegraph.pl > run.svg
      tracemap export run.csv --to perfetto --invocation 17 -o run.pftrace
    """
    from tracemap.commands.report import export

    with show_phases("export") as progress:
        export(runs_of_bundles(runs, print_message), None, options, progress)
    if not is_standard(options.output):
        print_message(f"{options.to}: {options.output}")
