"""`tracemap tune`: better tiles and vectors for the kernels of an application."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import phases_shown, warn
from tracemap.options.kernels import TuneOptions
from tracemap.outputs import is_standard


@options_command("tune", TuneOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
def command(bundle: Path, options: TuneOptions) -> None:
    """Look for better tiles and vector sizes for kernels of BUNDLE, and write what was found as a tuning spec.

    Candidates are verified, and timed next to the compiler's own configuration. The spec is what a plain iree-compile
    takes (--iree-codegen-tuning-spec-path). Then the application is built with it, and both are recorded in turn. No
    gain is claimed that is inside the noise.

    \b
    Example:
      tracemap tune model.tracemap --top 1
      tracemap tune model.tracemap --op op12 --candidates 40 -o spec.mlir
    """
    from tracemap.graph.bundle import load
    from tracemap.session.tune import show_tune, tune

    with phases_shown("tune") as progress:
        made = tune(load(bundle), options, progress)
    warn(made.diagnostics)
    show_tune(made, options, sys.stderr if is_standard(options.output) else sys.stdout)
