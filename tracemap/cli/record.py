"""`tracemap record`: run a bundle's module under the profiler and write a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import put, show_phases, tell, warn
from tracemap.options.measure import RecordOptions
from tracemap.outputs import is_standard

if TYPE_CHECKING:
    from tracemap.capture.record import Recorded


@options_command("record", RecordOptions)
@click.argument("bundle", type=PATH)
def command(bundle: Path, options: RecordOptions) -> None:
    """Run the module of BUNDLE under IREE's profiler until the result is precise enough, and write a run.

    `record` first warms up until invocation times are steady. It then measures until the median is within --precision
    or, with --sample, until kernels have 2,000 samples. It stops after --seconds in any case. --iterations N measures
    exactly N invocations instead. Inputs that are not given are made up from the declared types: zeros for integers,
    small random numbers for floats. Flags after -- go to iree-benchmark-module. The path of the run is printed.

    \b
    Example:
      tracemap record model.tracemap --serial --iterations 50 -o run.csv
      tracemap record model.tracemap --function decode --dim 128
      tracemap record model.tracemap --counters page-faults,context-switches
      tracemap record model.tracemap --sample --seconds 10
      tracemap record model.tracemap --cache-sim --cache-geometry LL=8388608,16,64
      tracemap record old.tracemap --repeat 5 --alternate new.tracemap
      tracemap record model.tracemap --flagfile d.flags -- --device=local-sync
    """
    from tracemap.graph.bundle import load
    from tracemap.session.record import record, record_repeatedly

    opened = load(bundle)
    if options.repeat > 1 or options.alternate is not None:
        bundles = [opened] if options.alternate is None else [opened, load(options.alternate)]
        with show_phases("record") as progress:
            for recorded in record_repeatedly(bundles, options, progress):
                _tell(recorded)
        return
    with show_phases("record") as progress:
        recorded = record(opened, options, progress)
    _tell(recorded)


def _tell(recorded: Recorded) -> None:
    tell(_summary(recorded))
    for line in _further(recorded):
        tell(line)
    warn(recorded.header.diagnostics)
    if not is_standard(recorded.path):
        put(str(recorded.path))


def _further(recorded: Recorded) -> Iterator[str]:
    from tracemap.reports.advice import devices_compared

    if recorded.enough:
        yield recorded.enough
    if compared := devices_compared(recorded.header.devices):
        yield compared
    if recorded.profile is not None:
        yield f"IREE's profile is kept: {recorded.profile}"


def _summary(recorded: Recorded) -> str:
    from tracemap.units import format_ns, plural

    header = recorded.header
    iterations = plural(header.iterations, "iteration") if isinstance(header.iterations, int) else "iterations unknown"
    return f"{header.function}: {iterations} in {format_ns(header.elapsed_ns)}, {plural(recorded.events, 'event')}"
