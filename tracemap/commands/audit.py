"""`tracemap audit`: where each op went, and which phase lost its location."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.streams import print_message, show_phases
from tracemap.core.errors import AuditFailed
from tracemap.core.units import UNKNOWN
from tracemap.options.compile import AuditOptions


@options_command("audit", AuditOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
def command(bundle: Path, options: AuditOptions) -> None:
    """Show how many ops of BUNDLE still have a location after each compiler phase, and the outcome of the others.

    An op counts as located if the phase's output contains its location, on the op or on a part of it. The first phase
    without the location is the one that lost it, so no op is counted twice.

    \b
    Example:
      tracemap audit model.tracemap
      tracemap audit model.tracemap --pass op12
      tracemap audit model.tracemap --fail-under 95 --format json
    """
    from tracemap.commands.runs import check_damage_on_failure
    from tracemap.commands.streams import show_in_format
    from tracemap.map.bundle import load
    from tracemap.map.query import audit, ops_of, resolve
    from tracemap.reports.terminal.map import print_audit

    opened = load(bundle)
    graph = opened.graph
    chosen = dict.fromkeys(
        op for what in options.ops for op in ops_of(graph, resolve(graph, what, opened.source_text).names)
    )
    result = audit(graph)
    if chosen:
        from tracemap.map.build.compiler.losing_pass import find_losing_passes

        with show_phases("audit") as progress, check_damage_on_failure(opened):
            spots = find_losing_passes(opened, list(chosen), progress)
        result = audit(graph, spots)
    failed = options.fail_under is not UNKNOWN and result.share_located() < options.fail_under
    text = partial(print_audit, graph, result, list_all=failed)

    def value() -> object:
        from tracemap.reports.json_documents import shown_audit

        return shown_audit(graph, result)

    show_in_format(options.format, sys.stdout, text, value, opened)
    for op in chosen:
        if not any(spot.op == op.id for spot in result.spots):
            print_message(f"{op.id}: still located after the last phase")
    if failed:
        own = result.ops - len(result.without_location)
        raise AuditFailed(
            f"{bundle}: {own} of {result.ops} ops ({result.share_located():.1f} %) have a location of their own, "
            f"less than --fail-under {options.fail_under:g} %; print the model with its locations"
        )
