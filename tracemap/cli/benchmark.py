"""`tracemap benchmark`: time a bundle's functions, for the number alone."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import phases_shown, tell
from tracemap.options.measure import BenchmarkOptions
from tracemap.units import listed


@options_command("benchmark", BenchmarkOptions)
@click.argument("bundle", type=PATH)
def command(bundle: Path, options: BenchmarkOptions) -> None:
    """Time calls of a function of BUNDLE by iree-benchmark-module, without any profiling.

    Where it has several functions and none is named, all that take no inputs are timed. What stands after -- goes to
    iree-benchmark-module. The JSON is Google Benchmark's own, which its compare.py reads.

    --dispatch-repeat N compiles the kernels again, from where they were configured and with the flags of the bundle,
    such that each dispatch runs N times in a call (--iree-hal-benchmark-dispatch-repeat-count), and divides times by N:
    they are closer to those of kernels alone. Outputs of such calls mean nothing.

    \b
    Example:
      tracemap benchmark model.tracemap
      tracemap benchmark model.tracemap --flagfile d.flags --repetitions 5
      tracemap benchmark model.tracemap --format json > times.json
      tracemap benchmark model.tracemap --serial --dispatch-repeat 16
      tracemap benchmark model.tracemap --time-unit us -- --device=local-sync
    """
    from tracemap.graph.bundle import load
    from tracemap.session.programs import not_called
    from tracemap.session.run import benchmark, show_times

    opened = load(bundle)
    with phases_shown("benchmark") as progress:
        made = benchmark(opened, options, progress)
    show_times(made, options, sys.stdout)
    if left_out := not_called(opened, options, [times.function for times in made.functions]):
        tell(f"not timed, as it takes inputs: {listed(left_out)}; name a function with --function")
