"""`tracemap attribute`: which op costs what."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracemap.cli.progress import phases_shown

if TYPE_CHECKING:
    from tracemap.attribution.model import Attribution
    from tracemap.graph.bundle import Bundle


@click.command("attribute")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--map", "map_path", metavar="BUNDLE", type=click.Path(path_type=Path), help="The runs' bundle.")
@click.option(
    "--rule",
    type=click.Choice(["measured", "model", "root", "equal"]),
    help="How a site's cost is split over its ops.  [default: measured where a RUN has samples or counts, else model]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
    help="What to print.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write there instead of standard output.")
@click.option("--html", "page", metavar="PAGE", type=click.Path(path_type=Path), help="Write the annotated page too.")
@click.option("--allow-mismatch", is_flag=True, help="Join a run of another module all the same; the report says so.")
@click.option("--all", "all_ops", is_flag=True, help="List all ops in the table, not only the most expensive.")
@click.option("--force", is_flag=True, help="Replace outputs that exist.")
def command(  # noqa: PLR0913, PLR0917 - click hands over every option as an argument of its own
    runs: tuple[Path, ...],
    map_path: Path | None,
    rule: str | None,
    form: str,
    output: Path | None,
    page: Path | None,
    allow_mismatch: bool,
    all_ops: bool,
    force: bool,
) -> None:
    """Say which op costs what: join each RUN onto its bundle and split the cost of fused kernels over their ops.

    A RUN is what `tracemap record` wrote (Parquet or CSV), a CSV of your own with a kernel and a duration column, or an
    .ireeprof made elsewhere; `-` reads a CSV from standard input. Several runs of one module are added up.

    \b
    Example:
      tracemap attribute run.csv --html page.html
      tracemap attribute profile.ireeprof --map model.tracemap --format json
    """
    from tracemap.graph.bundle import load
    from tracemap.options.attribute import Rule
    from tracemap.outputs import check_file
    from tracemap.session import attribute

    for target in (output, page):
        if target is not None:
            check_file(target, force=force)
    with phases_shown("attribute") as progress:
        named = load(map_path) if map_path is not None else None
        joined = attribute(runs, named, Rule(rule) if rule else None, allow_mismatch=allow_mismatch, progress=progress)
        bundle, result = joined.bundle, joined.attribution
        if page is not None:
            progress("writing the page")
            _write_page(bundle, result, page, force=force)
    _print(bundle, result, form, output, all_ops)
    if page is not None:
        click.echo(f"page: {page}", err=True)


def _write_page(bundle: Bundle, result: Attribution, page: Path, *, force: bool) -> None:
    from tracemap.reports.html.document import write_page
    from tracemap.reports.page.render import bundle_page

    write_page(bundle_page(bundle, result), page, force=force)


def _print(bundle: Bundle, result: Attribution, form: str, output: Path | None, all_ops: bool) -> None:
    if form == "text" and output is None:  # straight to the terminal, whose width and colours it asks for
        from tracemap.reports.terminal.attribution import print_attribution

        print_attribution(bundle.graph, result, sys.stdout, all_ops=all_ops)
        return
    printed = _printed(bundle, result, form, all_ops)
    if output is None:
        click.echo(printed, nl=False)
    else:
        from tracemap.outputs import write_text

        write_text(printed, output)


def _printed(bundle: Bundle, result: Attribution, form: str, all_ops: bool) -> str:
    if form == "json":
        from tracemap.codec import pretty
        from tracemap.reports.json.attribution import shown_attribution

        return pretty(shown_attribution(result))
    if form == "csv":
        from tracemap.reports.csv import attribution_csv

        return attribution_csv(bundle.graph, result)
    import io

    from tracemap.reports.terminal.attribution import print_attribution

    buffer = io.StringIO()
    print_attribution(bundle.graph, result, buffer, all_ops=all_ops)
    return buffer.getvalue()
