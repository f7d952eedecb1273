"""`tracemap report`: the annotated page of a bundle, with the costs of its runs or of the map alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tracemap.attribution.model import Attribution, Rule
    from tracemap.graph.bundle import Bundle


@click.command()
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", "target", metavar="PAGE.html", type=click.Path(path_type=Path), required=True, help="The page."
)
@click.option(
    "--rule",
    type=click.Choice(["model", "root", "equal"]),
    default="model",
    show_default=True,
    help="How a site's cost is split over its ops.",
)
@click.option("--allow-mismatch", is_flag=True, help="Join a run of another module all the same; the page says so.")
@click.option("--force", is_flag=True, help="Replace PAGE.html if it exists.")
def command(bundle: Path, runs: tuple[Path, ...], target: Path, rule: str, allow_mismatch: bool, force: bool) -> None:
    """Write the annotated page of BUNDLE: one HTML file with coverage, sources, ops and sites.

    With RUNs the page carries their costs on the lines of the model and of its Python files; without, it shows where
    each op went. The page needs no network and no other file.

    \b
    Example:
      tracemap report model.tracemap run.parquet -o page.html
    """
    from tracemap.attribution.model import Rule
    from tracemap.cli.progress import phases_shown
    from tracemap.graph.bundle import load
    from tracemap.reports.html import check_target, write_page
    from tracemap.reports.page import build_page

    check_target(target, force=force)
    with phases_shown("report") as progress:
        progress("reading the map")
        loaded = load(bundle)
        progress("attributing")
        attribution = _attribution(loaded, runs, Rule(rule), allow_mismatch) if runs else None
        progress("writing the page")
        write_page(build_page(loaded.graph, attribution, loaded.source_text), target, force=force)


def _attribution(bundle: Bundle, paths: tuple[Path, ...], rule: Rule, allow_mismatch: bool) -> Attribution:
    from tracemap.attribution.engine import Request, attribute
    from tracemap.cli.runs import open_runs

    return attribute(Request(bundle.graph, bundle.map_sha256, open_runs(paths), rule, allow_mismatch))
