"""`tracemap benchmark`: time a bundle's functions without profiling."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.streams import print_message, show_phases
from tracemap.core.units import join_names
from tracemap.options.measure import BenchmarkOptions


@options_command("benchmark", BenchmarkOptions)
@click.argument("bundle", type=PATH)
def command(bundle: Path, options: BenchmarkOptions) -> None:
    """Time invocations of a function of BUNDLE with iree-benchmark-module, without profiling.

    If BUNDLE has several functions and --function names none, all functions without inputs are timed. Flags after -- go
    to iree-benchmark-module. The JSON is Google Benchmark's own format, which its compare.py reads.

    --dispatch-repeat N runs each dispatch N times per invocation (--iree-hal-benchmark-dispatch-repeat-count) and
    divides the times by N. These times are closer to those of the kernels alone. To do so, tracemap compiles the
    configured kernels again, with the bundle's flags. Outputs of such invocations are meaningless.

    \b
    Example:
      tracemap benchmark model.tracemap
      tracemap benchmark model.tracemap --flagfile d.flags --repetitions 5
      tracemap benchmark model.tracemap --format json > times.json
      tracemap benchmark model.tracemap --serial --dispatch-repeat 16
      tracemap benchmark model.tracemap --time-unit us -- --device=local-sync
    """
    from tracemap.commands.programs import skipped_functions
    from tracemap.commands.run import benchmark, show_times
    from tracemap.map.bundle import load

    opened = load(bundle)
    with show_phases("benchmark") as progress:
        times = benchmark(opened, options, progress)
    show_times(times, options, sys.stdout)
    if left_out := skipped_functions(opened, options, [entry.function for entry in times.functions]):
        print_message(f"not timed, since they take inputs: {join_names(left_out)}; select a function with --function")
