"""`tracemap sweep`: generated operations over sizes, types and configurations."""

from __future__ import annotations

import sys

import click

from tracemap.cli.options import options_command
from tracemap.cli.streams import phases_shown, warn
from tracemap.diagnostics import Diagnostic
from tracemap.experiments.operations import KINDS
from tracemap.options.kernels import SweepOptions
from tracemap.outputs import as_programs_read


@options_command("sweep", SweepOptions)
@click.argument("operation", metavar="OPERATION", type=click.Choice(list(KINDS)))
def command(operation: str, options: SweepOptions) -> None:
    """Generate an OPERATION in many sizes, compile each with many configurations, verify and time them.

    OPERATION is matmul (M, N, K), batch_matmul (B, M, N, K), splitk_matmul (M, N, K in P parts), conv2d_nhwc or
    conv2d_nchw (N, H, W, C, F, R, S, stride D), or depthwise_conv2d_nhwc. Products of f16 and bf16 are summed up in
    f32, those of i8 in i32. The table has a row for each operation and configuration, of each operation the fastest
    first. What was done is kept beside the table: the same command goes on after an end of any kind. Ends with status 1
    where a result is wrong, or nothing could be compiled.

    \b
    Example:
      tracemap sweep matmul --size M=64:256:64 --size K=512 -o matmuls.csv
      tracemap sweep matmul --type i8 --config default --config tiles=32x64
    """
    from tracemap.session.sweep import sweep

    with phases_shown("sweep") as progress:
        made = sweep(operation, options, progress)
    if options.output is None:
        as_programs_read(sys.stdout)
        sys.stdout.write(made.table)
    if made.obstacles:
        warn([Diagnostic("not-compiled", made.not_compiled)])
    if made.has_failed:
        sys.exit(1)
