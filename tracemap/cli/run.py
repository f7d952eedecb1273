"""`tracemap run`: call a bundle's functions, for their outputs alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import phases_shown, tell
from tracemap.options.measure import RunOptions
from tracemap.sanitize import lines_for_terminal
from tracemap.units import listed

if TYPE_CHECKING:
    from tracemap.session.run import Ran


@options_command("run", RunOptions)
@click.argument("bundle", type=PATH)
def command(bundle: Path, options: RunOptions) -> None:
    """Call a function of BUNDLE once, without any profiling, and print its outputs, write them, or compare them.

    Where it has several functions and none is named, all that take no inputs are called. Outputs are printed and
    written by iree-run-module, to which goes what stands after --. What is expected is compared within its tolerances;
    the first output that differs is named with its first element that does, and the status is 1.

    \b
    Example:
      tracemap run model.tracemap
      tracemap run model.tracemap --flagfile d.flags --output=@y.npy
      tracemap run model.tracemap --flagfile d.flags --expected-output=@y.npy
      tracemap run model.tracemap -- --output_max_element_count=8
    """
    from tracemap.capture.expected import check_matches
    from tracemap.graph.bundle import load
    from tracemap.session.programs import not_called
    from tracemap.session.run import run

    opened, done = load(bundle), []
    with phases_shown("run") as progress:
        for ran in run(opened, options, progress):
            done.append(ran)
            _show(ran)
    if left_out := not_called(opened, options, [ran.function for ran in done]):
        tell(f"not called, as it takes inputs: {listed(left_out)}; name a function with --function")
    for ran in done:
        check_matches(ran.function, ran.compared)


def _show(ran: Ran) -> None:
    for place, said in enumerate(ran.inputs):
        if said.endswith("(made up)"):
            tell(f"input {place}: {said}")
    sys.stdout.write(lines_for_terminal(ran.printed))
    sys.stdout.writelines(lines_for_terminal(f"{output}\n") for output in ran.compared)
    sys.stdout.flush()
