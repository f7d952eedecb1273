"""`tracemap report`: the annotated page of a bundle, with the costs of its runs or of the map alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tracemap.attribution.model import Attribution
    from tracemap.graph.bundle import Bundle


@click.command()
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("-o", "--output", "target", metavar="PAGE.html", type=click.Path(path_type=Path), required=True)
@click.option(
    "--rule", type=click.Choice(["model", "root", "equal"]), help="How a kernel's cost is split over its ops."
)
@click.option("--force", is_flag=True, help="Replace PAGE.html if it exists.")
def command(bundle: Path, runs: tuple[Path, ...], target: Path, rule: str | None, force: bool) -> None:
    r"""Write the annotated page of BUNDLE: one HTML file with coverage, sources, ops and sites.

    With RUNs the page carries their costs on the lines of the model and of its Python files; without, it shows where
    each op went. The page needs no network and no other file.

    \b
    Example:
      tracemap report model.tracemap run.parquet -o page.html
    """
    from tracemap.cli.progress import phases_shown
    from tracemap.graph.bundle import load
    from tracemap.reports.html import check_target, write_page
    from tracemap.reports.page import build_page

    check_target(target, force=force)
    with phases_shown("report") as progress:
        progress("reading the map")
        loaded = load(bundle)
        progress("attributing")
        attribution = _attribution(loaded, runs, rule) if runs else None
        progress("writing the page")
        write_page(build_page(loaded.graph, attribution, loaded.source_text), target, force=force)


def _attribution(bundle: Bundle, paths: tuple[Path, ...], rule: str | None) -> Attribution:
    from tracemap.attribution.engine import Request, attribute
    from tracemap.attribution.model import Rule
    from tracemap.measurements.runfile import read_run

    runs = [read_run(path) for path in paths]
    return attribute(Request(bundle.graph, bundle.map_sha256, runs, Rule(rule) if rule else Rule.MODEL))
