"""`tracemap doctor`: check what works on this machine."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, TextIO

import click

from tracemap.cli.options import options_command
from tracemap.cli.streams import warn_of
from tracemap.options.measure import DoctorOptions

if TYPE_CHECKING:
    from tracemap.session.doctor import Findings


@options_command("doctor", DoctorOptions)
def command(options: DoctorOptions) -> None:
    """Check what works on this machine, and say what to install or allow for the rest.

    `doctor` tries everything that tracemap builds on: compiler, runtime, devices, profiles, the hook, events of the
    processor, valgrind, a browser, packages for single formats, and the folder of temporary files. The exit status is 1
    if something is missing without which tracemap cannot build or record.

    \b
    Example:
      tracemap doctor
      tracemap doctor --format json
    """
    from tracemap.outputs import show_as
    from tracemap.session.doctor import doctor

    findings = doctor()
    show_as(options.format, sys.stdout, partial(print_findings, findings), lambda: findings)
    if not findings.ok:
        warn_of("something needed is missing: tracemap cannot build or record until you install it (see above)")
        click.get_current_context().exit(1)


def print_findings(findings: Findings, out: TextIO) -> None:
    """Print one row per ability, then the remedies."""
    from tracemap.reports.terminal.tables import Heading, console, print_table, say

    to = console(out)
    say(to, f"tracemap {findings.tracemap}, Python {findings.python}, {findings.platform}")
    state, status = Heading("state"), Heading("found", words=True, least=24)
    rows = [(item.name, item.state.value, item.found, item.used_by) for item in findings.abilities]
    print_table(to, "", (Heading(""), state, status, Heading("used by", words=True, leave=10, least=16)), rows)
    if remedies := [(item.name, item.remedy) for item in findings.abilities if item.remedy]:
        print_table(to, "How to fix", (Heading(""), Heading("", words=True, least=30)), remedies)
