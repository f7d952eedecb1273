"""`tracemap audit`: where each op went, and which phase lost its location."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.progress import phases_shown
from tracemap.errors import AuditFailed, QueryInvalid


@click.command("audit")
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Tables, or JSON that names every op.",
)
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="End with status 1, and a list, where fewer ops than this have a location of their own in the model.",
)
@click.option(
    "--pass",
    "ops",
    multiple=True,
    metavar="OP",
    help="Compile again, printing IR around passes, and name the pass that lost this op.  [repeatable]",
)
def command(bundle: Path, form: str, fail_under: float | None, ops: tuple[str, ...]) -> None:
    """Say of each phase of the compiler how many ops of BUNDLE it still locates, and what became of those it lost.

    An op is located after a phase as long as something in the phase's output, the op or a part of it, carries its
    location. Each op is lost at most once: in the first phase without it.

    \b
    Example:
      tracemap audit model.tracemap
      tracemap audit model.tracemap --pass op12
      tracemap audit model.tracemap --fail-under 95 --format json
    """
    from tracemap.graph.audit import audit
    from tracemap.graph.bundle import load

    opened = load(bundle)
    graph = opened.graph
    for name in ops:
        if name not in graph.op_by_id:
            raise QueryInvalid(f"{name}: no op of {bundle}; `tracemap show {bundle}` lists them")
    found = audit(graph)
    if ops:
        from tracemap.mapping.compiler.passes import find_spots

        with phases_shown("audit") as progress:
            spots = find_spots(opened, [graph.op_by_id[name] for name in dict.fromkeys(ops)], progress)
        found = audit(graph, spots)
    failed = fail_under is not None and found.share_located() < fail_under
    if form == "json":
        from tracemap.codec import pretty
        from tracemap.reports.json.audit import shown_audit

        click.echo(pretty(shown_audit(graph, found)), nl=False)
    else:
        from tracemap.reports.terminal.audit import print_audit

        print_audit(graph, found, sys.stdout, list_all=failed)
    for name in ops:
        if not any(spot.op == name for spot in found.spots):
            click.echo(f"{name}: still located after the last phase", err=True)
    if failed:
        own = found.ops - len(found.without_location)
        raise AuditFailed(
            f"{bundle}: {own} of {found.ops} ops ({found.share_located():.1f} %) have a location of their own, "
            f"fewer than the {fail_under:g} % asked for; print the model with its locations"
        )
