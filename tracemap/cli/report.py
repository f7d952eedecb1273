"""`tracemap report`: the annotated page of a bundle, with or without the costs of its runs."""

from __future__ import annotations

from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import show_phases, tell
from tracemap.options.results import ReportOptions
from tracemap.outputs import is_standard


@options_command("report", ReportOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=PATH)
def command(bundle: Path, runs: tuple[Path, ...], options: ReportOptions) -> None:
    """Write the annotated page of BUNDLE: one HTML file with coverage, sources, ops and dispatch sites.

    With RUNs, the page shows their costs on the lines of the model and of its Python files. Without RUNs, it shows
    where each op went. The page needs no network and no other file.

    \b
    Example:
      tracemap report model.tracemap run.parquet -o page.html
    """
    from tracemap.graph.bundle import load
    from tracemap.session.report import report

    with show_phases("report") as progress:
        progress("reading the map")
        report(load(bundle), runs, options, progress)
    if not is_standard(options.output):
        tell(f"page: {options.output}")
