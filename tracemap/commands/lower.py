"""`tracemap lower`: loops that pass pipelines generate from a model, linked to its ops."""

from __future__ import annotations

import sys

import click

from tracemap.commands.framework import NAME, options_command
from tracemap.commands.streams import print_message, show_phases
from tracemap.core.files import is_standard
from tracemap.options.compile import LowerOptions


@options_command("lower", LowerOptions)
@click.argument("model", metavar="MODEL", type=NAME)
def command(model: str, options: LowerOptions) -> None:
    """Run pass pipelines over MODEL and link its ops to the resulting loops.

    MODEL is MLIR text or bytecode; `-` reads it from standard input. Files of ONNX and torch are imported first, as in
    `tracemap build`.

    tracemap links the outermost loops of each resulting function (affine.for, scf.for, scf.forall, scf.parallel …) to
    the ops that they compute. A fused loop has several ops, and a split op has several loops. Pipelines run one after
    the other. Every stage is kept, so you can follow an op from stage to stage.

    \b
    Example:
      tracemap lower model.mlir --pipeline 'builtin.module(cse)'
      tracemap lower model.mlir --html loops.html \\
        --pipeline 'builtin.module(func.func(convert-linalg-to-affine-loops))' \\
        --pipeline 'builtin.module(func.func(affine-loop-fusion))'
    """
    from tracemap.commands.build import lower, show_lowering

    with show_phases("lower") as progress:
        lowering = lower(model, options, progress)
    if options.output is None and not is_standard(options.html):
        show_lowering(lowering, options, sys.stdout)
    if options.html is not None and not is_standard(options.html):
        print_message(f"page: {options.html}")
