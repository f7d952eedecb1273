"""`tracemap tune`: better tiles and vectors for the kernels of an application."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import show_phases, warn
from tracemap.options.kernels import TuneOptions
from tracemap.outputs import is_standard


@options_command("tune", TuneOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
def command(bundle: Path, options: TuneOptions) -> None:
    """Search for better tile and vector sizes for kernels of BUNDLE, and write them as a tuning spec.

    Candidates are verified, and timed next to the compiler's own configuration. A plain iree-compile accepts the spec
    (--iree-codegen-tuning-spec-path). tracemap then builds the application with the spec, and records it with and
    without the spec in alternation. Gains within the noise are not reported.

    \b
    Example:
      tracemap tune model.tracemap --top 1
      tracemap tune model.tracemap --op op12 --candidates 40 -o spec.mlir
    """
    from tracemap.graph.bundle import load
    from tracemap.session.tune import show_tune, tune

    with show_phases("tune") as progress:
        result = tune(load(bundle), options, progress)
    warn(result.diagnostics)
    show_tune(result, options, sys.stderr if is_standard(options.output) else sys.stdout)
