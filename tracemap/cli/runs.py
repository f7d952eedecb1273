"""The commands that make and read runs: `tracemap record`, `attribute`, `report`, `events`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tracemap.cli.messages import phases_shown, warn
from tracemap.cli.options import PATH, options_command
from tracemap.options.runs import AttributeOptions, EventsOptions, RecordOptions, ReportOptions
from tracemap.outputs import show_as
from tracemap.units import format_ns, plural

if TYPE_CHECKING:
    from tracemap.capture.counters.choosing import Availability
    from tracemap.capture.record import Recorded


@options_command("record", RecordOptions)
@click.argument("bundle", type=PATH)
def record(bundle: Path, options: RecordOptions) -> None:
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
    from tracemap.graph.bundle import load
    from tracemap.session import runs

    opened = load(bundle)
    with phases_shown("record") as progress:
        recorded = runs.record(opened, options, progress)
    click.echo(_summary(recorded), err=True)
    warn(recorded.header.diagnostics)
    click.echo(recorded.path)


def _summary(recorded: Recorded) -> str:
    header = recorded.header
    iterations = plural(header.iterations, "iteration") if isinstance(header.iterations, int) else "iterations unknown"
    return f"{header.function}: {iterations} in {format_ns(header.elapsed_ns)}, {plural(recorded.events, 'event')}"


@options_command("attribute", AttributeOptions)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PATH)
def attribute(runs: tuple[Path, ...], options: AttributeOptions) -> None:
    """Say which op costs what: join each RUN onto its bundle and split the cost of fused kernels over their ops.

    A RUN is what `tracemap record` wrote (Parquet or CSV), a CSV of your own with a kernel and a duration column, or an
    .ireeprof made elsewhere; `-` reads a CSV from standard input. Several runs of one module are added up.

    \b
    Example:
      tracemap attribute run.csv --html page.html
      tracemap attribute profile.ireeprof --map model.tracemap --format json
    """
    from tracemap.session import runs as session

    with phases_shown("attribute") as progress:
        made = session.attribute(runs, None, options, progress)
    if options.output is None:
        session.show_attribution(made, options, sys.stdout)
    if options.html is not None:
        click.echo(f"page: {options.html}", err=True)


@options_command("report", ReportOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=PATH)
def report(bundle: Path, runs: tuple[Path, ...], options: ReportOptions) -> None:
    """Write the annotated page of BUNDLE: one HTML file with coverage, sources, ops and sites.

    With RUNs the page carries their costs on the lines of the model and of its Python files; without, it shows where
    each op went. The page needs no network and no other file.

    \b
    Example:
      tracemap report model.tracemap run.parquet -o page.html
    """
    from tracemap.graph.bundle import load
    from tracemap.session import runs as session

    with phases_shown("report") as progress:
        progress("reading the map")
        session.report(load(bundle), runs, options, progress)


@options_command("events", EventsOptions)
@click.argument("names", nargs=-1, metavar="[NAME]...")
def events(names: tuple[str, ...], options: EventsOptions) -> None:
    """List the events that can be counted here, by opening each; for the others, say why not and what helps.

    NAME is an event's Linux name, rHEX (a raw number), or PMU/terms/ as the kernel describes them below
    /sys/bus/event_source/devices. Without a name all that have one are tried.

    \b
    Example:
      tracemap events
      tracemap events page-faults r00c0 cpu/event=0x3c,umask=0x00/
    """
    from tracemap.capture.counters.choosing import check_event
    from tracemap.capture.counters.names import amd_events, find_event, is_amd, known_events

    wanted = [find_event(name) for name in names] or known_events()
    if options.all and is_amd() and not names:
        wanted += amd_events()
    found = [check_event(event) for event in wanted]
    show_as(options.format, sys.stdout, partial(_print_events, found), partial(_shown_events, found))
    if options.format == "text":
        opened = sum(item.opens for item in found)
        click.echo(f"{opened} of {len(found)} can be counted on this machine", err=True)


def _shown_events(found: Sequence[Availability]) -> dict[str, object]:
    rows = [
        {
            "name": item.event.name,
            "opens": item.opens,
            "mode": item.event.mode if item.opens else None,
            "unit": item.event.unit,
            "setting": item.event.setting if item.opens else None,
            "reason": item.reason or None,
        }
        for item in found
    ]
    return {"schema_version": 1, "kind": "events", "events": rows}


def _print_events(found: Sequence[Availability], out: TextIO) -> None:
    width = max(len(item.event.name) for item in found)
    for item in found:
        state = f"yes ({item.event.mode})" if item.opens else "no"
        out.write(f"{item.event.name:<{width}}  {state:<11}  {item.reason}".rstrip() + "\n")
