"""`tracemap lower`: the loops that pass pipelines make of a model, and the ops that work in them."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tracemap.cli.progress import phases_shown

if TYPE_CHECKING:
    from tracemap.graph.lowering import Lowering


@click.command("lower")
@click.argument("model", metavar="MODEL")
@click.option(
    "--pipeline",
    "pipelines",
    metavar="PIPELINE",
    multiple=True,
    required=True,
    help="A pass pipeline as iree-opt takes it, builtin.module(…); the next one goes on from its result.  [repeatable]",
)
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="What to print."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write there instead of standard output.")
@click.option("--html", "page", metavar="PAGE", type=click.Path(path_type=Path), help="Write the page of stages too.")
@click.option("--force", is_flag=True, help="Replace outputs that exist.")
def command(
    *, model: str, pipelines: tuple[str, ...], form: str, output: Path | None, page: Path | None, force: bool
) -> None:
    """Run pass pipelines over MODEL (MLIR text or bytecode, `-`: standard input) and link its ops to the loops made.

    Of each resulting function the outermost loops (affine.for, scf.for, scf.forall, scf.parallel …) are linked to the
    ops that work in them: a fused loop to several, an op that was split to several loops. Pipelines run one after the
    other, and every stage is kept, so that an op can be followed from stage to stage.

    \b
    Example:
      tracemap lower model.mlir --pipeline 'builtin.module(func.func(convert-linalg-to-affine-loops))'
      tracemap lower model.mlir --pipeline 'builtin.module(func.func(convert-linalg-to-affine-loops))' \\
        --pipeline 'builtin.module(func.func(affine-loop-fusion))' --html loops.html
    """
    from tracemap.outputs import check_file, write_text
    from tracemap.session import lower

    for target in (output, page):
        if target is not None:
            check_file(target, force=force)
    with phases_shown("lower") as progress:
        lowering = lower(model, pipelines, progress)
        if page is not None:
            from tracemap.reports.html.document import write_page
            from tracemap.reports.lowering.page import render_lowering_page

            progress("writing the page")
            write_page(render_lowering_page(lowering), page, force=force)
    if output is None:
        _print(lowering, form, sys.stdout)
        return
    text = io.StringIO()
    _print(lowering, form, text)
    write_text(text.getvalue(), output)


def _print(lowering: Lowering, form: str, out: TextIO) -> None:
    from tracemap.codec import pretty
    from tracemap.reports.json.lowering import shown_lowering
    from tracemap.reports.terminal.lowering import print_lowering

    if form == "json":
        out.write(pretty(shown_lowering(lowering)))
    else:
        print_lowering(lowering, out)
