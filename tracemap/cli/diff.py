"""`tracemap diff`: what a change did, op by op."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.progress import phases_shown
from tracemap.cli.streams import warn_of
from tracemap.options.diff import DiffOptions


@options_command("diff", DiffOptions)
@click.argument("before", metavar="A", type=PATH)
@click.argument("after", metavar="B", type=PATH)
def command(before: Path, after: Path, options: DiffOptions) -> None:
    """Say what a change did: which ops cost more or less in B than in A, which are fused with others, which are new.

    A and B are runs or bundles; a bundle stands for its newest run, and where one has none the maps alone are compared.
    Ops are matched by what they compute, whatever they are called and wherever they stand. With --fail-over ends with
    status 1 where something costs more.

    \b
    Example:
      tracemap diff old.tracemap new.tracemap
      tracemap diff old.parquet new.parquet --by scope --fail-over 5
    """
    from tracemap.session.diff import diff, failing, show_diff

    with phases_shown("diff") as progress:
        made = diff(before, after, options, progress)
    if options.output is None:
        show_diff(made, options, sys.stdout)
    if found := failing(made, options):
        for line in found:
            warn_of(f"over {options.fail_over:g} %: {line}")
        sys.exit(1)
