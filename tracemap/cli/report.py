"""`tracemap report`: the annotated page of a bundle, with the costs of its runs or of the map alone."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", "target", metavar="PAGE.html", type=click.Path(path_type=Path), required=True, help="The page."
)
@click.option(
    "--rule",
    type=click.Choice(["measured", "model", "root", "equal"]),
    help="How a site's cost is split over its ops.  [default: measured where a RUN has samples or counts, else model]",
)
@click.option("--allow-mismatch", is_flag=True, help="Join a run of another module all the same; the page says so.")
@click.option("--force", is_flag=True, help="Replace PAGE.html if it exists.")
def command(
    bundle: Path, runs: tuple[Path, ...], target: Path, rule: str | None, allow_mismatch: bool, force: bool
) -> None:
    """Write the annotated page of BUNDLE: one HTML file with coverage, sources, ops and sites.

    With RUNs the page carries their costs on the lines of the model and of its Python files; without, it shows where
    each op went. The page needs no network and no other file.

    \b
    Example:
      tracemap report model.tracemap run.parquet -o page.html
    """
    from tracemap.cli.progress import phases_shown
    from tracemap.graph.bundle import load
    from tracemap.options.attribute import Rule
    from tracemap.outputs import check_file
    from tracemap.reports.html.document import write_page
    from tracemap.reports.page.render import bundle_page
    from tracemap.session import attribute

    check_file(target, force=force)
    with phases_shown("report") as progress:
        progress("reading the map")
        loaded = load(bundle)
        attribution = None
        if runs:
            chosen = Rule(rule) if rule else None
            joined = attribute(runs, loaded, chosen, allow_mismatch=allow_mismatch, progress=progress)
            attribution = joined.attribution
        progress("writing the page")
        write_page(bundle_page(loaded, attribution), target, force=force)
