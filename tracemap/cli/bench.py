"""`tracemap bench`: time each kernel alone, and verify its results."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import show_phases
from tracemap.options.kernels import BenchOptions


@options_command("bench", BenchOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
def command(bundle: Path, options: BenchOptions) -> None:
    """Run each kernel of BUNDLE alone: time per call, best possible time, and whether the results are correct.

    Kernels run with the sizes of the application and made-up data. numpy computes the expected results from the IR
    before code generation. The table shows the time alone next to the time in the application, which comes from the
    newest run of BUNDLE. The exit status is 1 if a kernel fails or its results are wrong.

    \b
    Example:
      tracemap bench model.tracemap --top 5
      tracemap bench model.tracemap --op op12 --cold --format json
      tracemap bench model.tracemap --kernel '*matmul*' --format csv
    """
    from tracemap.graph.bundle import load
    from tracemap.session.bench import bench, has_failed, show_bench

    with show_phases("bench") as progress:
        results = bench(load(bundle), options, progress)
    if options.output is None:
        show_bench(results, options, sys.stdout)
    if has_failed(results):
        sys.exit(1)
