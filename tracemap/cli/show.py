"""`tracemap show`: print the map of a bundle."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("show")
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.argument("what", metavar="[WHAT]", required=False, default="")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="What to print."
)
def command(bundle: Path, what: str, form: str) -> None:
    """Print the map of BUNDLE: ops, sites, kernels and what links them.

    WHAT narrows it to a place (FILE:LINE), an op (op12), a site (site3), a kernel's name, or a scope and all below it,
    each with what is connected to it.

    \b
    Example:
      tracemap show model.tracemap model.mlir:12
      tracemap show model.tracemap h0/attn --format json
    """
    from tracemap.graph.bundle import load
    from tracemap.graph.query import everything, select

    graph = load(bundle).graph
    selection = select(graph, what) if what else everything(graph)
    if form == "json":
        from tracemap.reports.json import json_text, map_json

        click.echo(json_text(map_json(graph, selection)), nl=False)
    else:
        from tracemap.reports import text

        text.show(selection, graph, sys.stdout, whole=not what)
