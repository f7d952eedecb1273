"""`tracemap sweep`: generated operations over sizes, types and configurations."""

from __future__ import annotations

import sys

import click

from tracemap.cli.options import options_command
from tracemap.cli.streams import show_phases, warn
from tracemap.diagnostics import Diagnostic
from tracemap.experiments.operations import KINDS
from tracemap.options.kernels import SweepOptions
from tracemap.outputs import use_utf8


@options_command("sweep", SweepOptions)
@click.argument("operation", metavar="OPERATION", type=click.Choice(list(KINDS)))
def command(operation: str, options: SweepOptions) -> None:
    """Generate an OPERATION in many sizes, compile each size with many configurations, then verify and time them.

    OPERATION is matmul (M, N, K), batch_matmul (B, M, N, K), splitk_matmul (M, N, K in P parts), conv2d_nhwc or
    conv2d_nchw (N, H, W, C, F, R, S, stride D), or depthwise_conv2d_nhwc. Products of f16 and bf16 are accumulated in
    f32, products of i8 in i32. The table has one row per operation and configuration; the fastest configuration of an
    operation comes first. Results are stored next to the table, so the same command resumes after an interruption. The
    exit status is 1 if a result is wrong or nothing compiles.

    \b
    Example:
      tracemap sweep matmul --size M=64:256:64 --size K=512 -o matmuls.csv
      tracemap sweep matmul --type i8 --config default --config tiles=32x64
    """
    from tracemap.session.sweep import sweep

    with show_phases("sweep") as progress:
        result = sweep(operation, options, progress)
    if options.output is None:
        use_utf8(sys.stdout)
        sys.stdout.write(result.table)
    if result.obstacles:
        warn([Diagnostic("not-compiled", result.not_compiled)])
    if result.has_failed:
        sys.exit(1)
