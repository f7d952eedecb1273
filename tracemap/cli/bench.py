"""`tracemap bench`: how long each kernel takes alone, and whether it is right."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import phases_shown
from tracemap.options.kernels import BenchOptions


@options_command("bench", BenchOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
def command(bundle: Path, options: BenchOptions) -> None:
    """Run each kernel of BUNDLE alone: how long a call takes or could take, and whether it computes what it should.

    Kernels get the sizes that the application gives them, and made-up data. What they compute is compared with numpy's
    results for the same kernel before code generation. Beside the time alone stands the time in the application, of the
    newest run of the bundle. Ends with status 1 where a kernel is wrong.

    \b
    Example:
      tracemap bench model.tracemap --top 5
      tracemap bench model.tracemap --op op12 --cold --format json
      tracemap bench model.tracemap --kernel '*matmul*' --format csv
    """
    from tracemap.graph.bundle import load
    from tracemap.session.bench import bench, has_failed, show_bench

    with phases_shown("bench") as progress:
        made = bench(load(bundle), options, progress)
    if options.output is None:
        show_bench(made, options, sys.stdout)
    if has_failed(made):
        sys.exit(1)
