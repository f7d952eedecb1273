"""`tracemap lower`: the loops that pass pipelines make of a model, and the ops that work in them."""

from __future__ import annotations

import sys

import click

from tracemap.cli.options import NAME, options_command
from tracemap.cli.streams import phases_shown, tell
from tracemap.options.compile import LowerOptions
from tracemap.outputs import is_standard


@options_command("lower", LowerOptions)
@click.argument("model", metavar="MODEL", type=NAME)
def command(model: str, options: LowerOptions) -> None:
    """Run pass pipelines over MODEL (MLIR text or bytecode, `-`: standard input) and link its ops to the loops made.

    Files of ONNX and torch are imported first, as `tracemap build` does.

    Of each resulting function the outermost loops (affine.for, scf.for, scf.forall, scf.parallel …) are linked to the
    ops that work in them: a fused loop to several, an op that was split to several loops. Pipelines run one after the
    other, and every stage is kept, so that an op can be followed from stage to stage.

    \b
    Example:
      tracemap lower model.mlir --pipeline 'builtin.module(cse)'
      tracemap lower model.mlir --html loops.html \\
        --pipeline 'builtin.module(func.func(convert-linalg-to-affine-loops))' \\
        --pipeline 'builtin.module(func.func(affine-loop-fusion))'
    """
    from tracemap.session.build import lower, show_lowering

    with phases_shown("lower") as progress:
        lowering = lower(model, options, progress)
    if options.output is None and not is_standard(options.html):
        show_lowering(lowering, options, sys.stdout)
    if options.html is not None and not is_standard(options.html):
        tell(f"page: {options.html}")
