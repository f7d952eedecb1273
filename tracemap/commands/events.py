"""`tracemap events`: events that this machine can count."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, TextIO

import click

from tracemap.commands.framework import options_command
from tracemap.commands.streams import print_message
from tracemap.options.measure import EventsOptions

if TYPE_CHECKING:
    from tracemap.capture.counters import Availability


_READ = {"ring": "no system call", "rdpmc": "no system call", "group": "a system call"}
"""Cost of reading an event, by its mode."""


@options_command("events", EventsOptions)
@click.argument("names", nargs=-1, metavar="[NAME]...")
def command(names: tuple[str, ...], options: EventsOptions) -> None:
    """List the events that this machine can count. For other events, say why not and how to enable them.

    NAME is an event's Linux name, rHEX (a raw number), or PMU/terms/ as the kernel describes them below
    /sys/bus/event_source/devices. Without NAME, all named events are listed. tracemap opens each event to check that it
    works.

    \b
    Example:
      tracemap events
      tracemap events page-faults r00c0 cpu/event=0x3c,umask=0x00/
    """
    from tracemap.capture.counters import check_event, find_event, is_zen4, known_events, zen4_events
    from tracemap.commands.streams import show_in_format

    if options.device == "cuda":
        _list_gpu_events(names, options)
        return
    events = [find_event(name) for name in names] or known_events()
    if options.all and is_zen4() and not names:
        events += zen4_events()
    availabilities = [check_event(event) for event in events]
    show_in_format(options.format, sys.stdout, partial(print_events, availabilities), partial(_json, availabilities))
    if options.format == "text":
        opened = sum(item.opens for item in availabilities)
        print_message(f"{opened} of {len(availabilities)} events can be counted on this machine")


def _list_gpu_events(names: tuple[str, ...], options: EventsOptions) -> None:
    """List the events of GPUs; only a recording shows which of them a GPU has."""
    from tracemap.capture.cuda import check_cuda
    from tracemap.capture.gpu_counters import GPU_EVENTS, find_gpu_event
    from tracemap.commands.streams import show_in_format
    from tracemap.core.errors import ToolMissing
    from tracemap.hook.cuda import cupti_libraries

    events, reason = [find_gpu_event(name) for name in names] or list(GPU_EVENTS), ""
    try:
        check_cuda()
        reason = "" if cupti_libraries() else "CUPTI is not installed: pip install 'tracemap[cuda]'"
    except ToolMissing as error:
        reason = str(error)

    def text(out: TextIO) -> None:
        from tracemap.reports.terminal.tables import Heading, console, print_table

        headings = (Heading("event"), Heading("NVIDIA's name"), Heading("what it counts", words=True, least=20))
        title = f"Cannot be counted here: {reason}" if reason else "Counted by CUPTI if the GPU has them"
        print_table(console(out), title, headings, [(item.name, item.metric, item.description) for item in events])

    def rows() -> dict[str, object]:
        listed = [
            {
                "name": item.name,
                "opens": not reason,
                "mode": None,
                "unit": "bytes" if item.name.endswith("-bytes") else "count",
                "description": item.description or None,
                "setting": item.metric,
                "reason": reason or None,
            }
            for item in events
        ]
        return {"schema_version": 1, "kind": "events", "events": listed}

    show_in_format(options.format, sys.stdout, text, rows)


def _json(availabilities: Sequence[Availability]) -> dict[str, object]:
    rows = [
        {
            "name": item.event.name,
            "opens": item.opens,
            "mode": item.event.mode if item.opens else None,
            "unit": item.event.unit,
            "description": item.event.description or None,
            "setting": item.event.setting if item.opens else None,
            "reason": item.reason or None,
        }
        for item in availabilities
    ]
    return {"schema_version": 1, "kind": "events", "events": rows}


def print_events(availabilities: Sequence[Availability], out: TextIO) -> None:
    """Print the events that can be counted, then one table per reason for the others, in the order of the events."""
    from tracemap.reports.terminal.tables import Heading, console, print_table

    name, description = Heading("event"), Heading("what it counts", words=True, least=20)
    to, gap = console(out), False
    if opened := [item for item in availabilities if item.opens]:
        rows = [
            (item.event.name, _READ[item.event.mode], "; ".join(filter(None, (item.event.description, item.reason))))
            for item in opened
        ]
        print_table(to, "Can be counted here", (name, Heading("read with", leave=10), description), rows, gap=gap)
        gap = True
    for reason in dict.fromkeys(item.reason for item in availabilities if not item.opens):
        unavailable = [item.event for item in availabilities if not item.opens and item.reason == reason]
        cells = [(event.name, event.description) for event in unavailable]
        print_table(to, f"Cannot be counted here: {reason}", (name, description), cells, gap=gap)
        gap = True
