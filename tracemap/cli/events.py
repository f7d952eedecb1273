"""`tracemap events`: what this machine can count."""

from __future__ import annotations

import json

import click


@click.command(name="events")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="Also the raw events of AMD's processors, where this is one.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="A table, or JSON with what the hook is told of each event.",
)
def command(names: tuple[str, ...], everything: bool, form: str) -> None:
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
    if everything and is_amd() and not names:
        wanted += amd_events()
    found = [check_event(event) for event in wanted]
    if form == "json":
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
        click.echo(json.dumps({"schema_version": 1, "kind": "events", "events": rows}, indent=1))
        return
    width = max(len(item.event.name) for item in found)
    for item in found:
        state = f"yes ({item.event.mode})" if item.opens else "no"
        click.echo(f"{item.event.name:<{width}}  {state:<11}  {item.reason}".rstrip())
    opened = sum(item.opens for item in found)
    click.echo(f"{opened} of {len(found)} can be counted on this machine", err=True)
