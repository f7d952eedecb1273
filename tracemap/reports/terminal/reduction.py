"""The model that `tracemap reduce` wrote, for people."""

from __future__ import annotations

from typing import TextIO

from tracemap.compare.reduction import Reduction
from tracemap.core.units import plural
from tracemap.reports.terminal.tables import console, say


def print_reduction(result: Reduction, anonymous: bool, out: TextIO) -> None:
    """Print what is left, what it shows, and the commands that show it."""
    terminal = console(out)
    say(terminal, result.what)
    say(terminal, f"{plural(result.ops, 'op')} of {result.ops_before} left, {plural(result.builds, 'part')} tried")
    for line in result.evidence:
        say(terminal, line)
    if not result.same_time:
        say(
            terminal, "The kernel is the same, and its time differs: operands are in other caches than in the original."
        )
    if anonymous:
        left = ", ".join(result.names)
        say(terminal, f"names of the original left: {len(result.names)}{f' ({left})' if left else ''}")
        for item in result.data:
            say(terminal, f"data of the original left, since the problem does not show without it: {item}")
    say(terminal, "")
    for path in (result.model, *result.inputs):
        say(terminal, str(path))
    for command in result.commands:
        say(terminal, f"  {command}")
