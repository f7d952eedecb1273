"""`tracemap record`: run a bundle's module under the profiler and write a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tracemap.capture.record import Recorded


@click.command(name="record")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The run to write: Parquet, or CSV if it ends in .csv.  [default: BUNDLE/runs/run-NNN.parquet]",
)
@click.option("--function", metavar="F", help="The entry point to call.  [default: the only one]")
@click.option(
    "--input",
    "inputs",
    metavar="SPEC",
    multiple=True,
    help="An input as IREE writes it (4x4xf32=0.5, 7, @x.npy), one per argument.  [default: made up]",
)
@click.option("--dim", type=click.IntRange(min=0), metavar="N", help="The size of every `?` in made-up inputs.")
@click.option(
    "--flagfile",
    metavar="F",
    type=click.Path(path_type=Path),
    help="A flag file of IREE: function, inputs, parameters.",
)
@click.option("--serial", is_flag=True, help="One worker instead of all cores.")
@click.option("--iterations", type=click.IntRange(min=1), default=20, show_default=True, help="Measured calls.")
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Calls before them, which are marked and left out of reports.",
)
@click.option(
    "--counters",
    metavar="A,B",
    default="",
    help="Events to count in further executions, such as page-faults,cache-misses; see tracemap events.",
)
@click.option(
    "--counters-per-pass",
    type=click.IntRange(min=1),
    metavar="N",
    help="Count so many events in an execution.  [default: as many as the processor counts at a time]",
)
@click.option(
    "--sample",
    "sample_hz",
    metavar="HZ",
    type=click.IntRange(min=1, max=20_000),
    is_flag=False,
    flag_value=251,  # capture.sampling.DEFAULT_HZ, which is not imported for the help alone
    help="Sample the program counter so often per second and thread, for time per op in kernels.  [without HZ: 251]",
)
@click.option(
    "--cache-sim",
    is_flag=True,
    help="Simulate one call under valgrind, for instructions and cache misses by step of the kernels.",
)
@click.option(
    "--cache-geometry",
    metavar="CACHE=BYTES,WAYS,LINE",
    multiple=True,
    help="A cache to simulate, I1, D1 or LL: D1=32768,8,64.  [default: this machine's]",
)
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.argument("runtime_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- RUNTIME FLAGS]")
def command(  # noqa: PLR0913, PLR0917 - click hands over every option as an argument of its own
    bundle: Path,
    output: Path | None,
    function: str | None,
    inputs: tuple[str, ...],
    dim: int | None,
    flagfile: Path | None,
    serial: bool,
    iterations: int,
    warmup: int,
    counters: str,
    counters_per_pass: int | None,
    sample_hz: int | None,
    cache_sim: bool,
    cache_geometry: tuple[str, ...],
    force: bool,
    runtime_flags: tuple[str, ...],
) -> None:
    """Run the module of BUNDLE under IREE's profiler, an exact number of times, and write a run.

    Inputs that are not given are made up from the declared types: zeros for integers, small random floats.
    What stands after -- goes to iree-benchmark-module. The path of the run is printed.

    \b
    Example:
      tracemap record model.tracemap --serial --iterations 50 -o run.csv
      tracemap record model.tracemap --function decode --dim 128
      tracemap record model.tracemap --counters page-faults,context-switches
      tracemap record model.tracemap --iterations 500 --sample
      tracemap record model.tracemap --cache-sim --cache-geometry LL=8388608,16,64
      tracemap record model.tracemap --flagfile decode.flags -- --device=local-sync
    """
    from tracemap.capture.counters import split_names
    from tracemap.cli.progress import phases_shown
    from tracemap.graph.bundle import load
    from tracemap.session import RunOptions, record
    from tracemap.units import UNKNOWN

    options = RunOptions(
        function=function or UNKNOWN,
        inputs=inputs,
        dim=UNKNOWN if dim is None else dim,
        flagfile=flagfile,
        serial=serial,
        iterations=iterations,
        warmup=warmup,
        runtime_flags=runtime_flags,
        counters=tuple(split_names(counters)),
        counters_per_pass=counters_per_pass or 0,
        sample_hz=sample_hz or 0,
        cache_sim=cache_sim,
        cache_geometry=cache_geometry,
        force=force,
    )
    opened = load(bundle)
    with phases_shown("record") as progress:
        recorded = record(opened, output, options, progress)
    click.echo(_summary(recorded), err=True)
    click.echo(recorded.path)


def _summary(recorded: Recorded) -> str:
    from tracemap.units import format_ns, plural

    header = recorded.header
    iterations = plural(header.iterations, "iteration") if isinstance(header.iterations, int) else "iterations unknown"
    lines = [f"{header.function}: {iterations} in {format_ns(header.elapsed_ns)}, {plural(recorded.events, 'event')}"]
    lines += [f"warning: {item.message} [{item.slug}]" for item in header.diagnostics]
    return "\n".join(lines)
