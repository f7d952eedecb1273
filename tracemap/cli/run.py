"""`tracemap run`: run a bundle's functions for their outputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import show_phases, tell
from tracemap.options.measure import RunOptions
from tracemap.sanitize import lines_for_terminal
from tracemap.units import listed

if TYPE_CHECKING:
    from tracemap.session.run import Ran


@options_command("run", RunOptions)
@click.argument("bundle", type=PATH)
def command(bundle: Path, options: RunOptions) -> None:
    """Run a function of BUNDLE once, without profiling, and print, write or compare its outputs.

    If BUNDLE has several functions and --function names none, all functions without inputs are run. iree-run-module
    prints and writes the outputs; flags after -- go to it. Expected outputs are compared within tolerances. If an
    output differs, the message names it and its first different element, and the exit status is 1.

    \b
    Example:
      tracemap run model.tracemap
      tracemap run model.tracemap --flagfile d.flags --output=@y.npy
      tracemap run model.tracemap --flagfile d.flags --expected-output=@y.npy
      tracemap run model.tracemap -- --output_max_element_count=8
    """
    from tracemap.capture.expected import check_matches
    from tracemap.graph.bundle import load
    from tracemap.session.programs import skipped_functions
    from tracemap.session.run import run

    opened, done = load(bundle), []
    with show_phases("run") as progress:
        for ran in run(opened, options, progress):
            done.append(ran)
            _show(ran)
    if left_out := skipped_functions(opened, options, [ran.function for ran in done]):
        tell(f"not called, since they take inputs: {listed(left_out)}; select a function with --function")
    for ran in done:
        check_matches(ran.function, ran.compared)


def _show(ran: Ran) -> None:
    for index, text in enumerate(ran.inputs):
        if text.endswith("(made up)"):
            tell(f"input {index}: {text}")
    sys.stdout.write(lines_for_terminal(ran.printed))
    sys.stdout.writelines(lines_for_terminal(f"{output}\n") for output in ran.compared)
    sys.stdout.flush()
