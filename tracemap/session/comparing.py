"""Two bundles of one model called with the same inputs: whether their outputs agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import ProgramFailed
from tracemap.experiments.model import ComparedFunction, ComparedOutput
from tracemap.options.call import call_of
from tracemap.options.run import RunOptions
from tracemap.options.swap import SwapOptions
from tracemap.session.damage import whole_program
from tracemap.session.programs import program_of
from tracemap.toolchain import Progress

if TYPE_CHECKING:
    from tracemap.capture.calling import Call
    from tracemap.capture.expected import Tolerance
    from tracemap.capture.outputs import Array
    from tracemap.graph.bundle import Bundle


@dataclass(frozen=True, slots=True)
class Reference:
    """A call of a function of the original, and what came of it."""

    call: Call
    tolerance: Tolerance
    outputs: list[Array]


def references(bundle: Bundle, options: SwapOptions, folder: Path, progress: Progress) -> list[Reference]:
    """Call the functions of the original: the one that is asked for, or all without inputs.

    Args:
        bundle: the original.
        options: the function, its inputs, and within what the outputs are to agree.
        folder: for inputs and outputs; it is needed as long as the references are.
        progress: told what is done.

    Raises:
        TracemapError: as `session.run.run` does.
    """
    from tracemap.capture.calling import make_calls
    from tracemap.capture.expected import asked_of
    from tracemap.capture.outputs import RUN_TOOL, called_for_arrays

    run_options = _run_options(options)
    found = []
    calls = make_calls(program_of(bundle, options), run_options, RUN_TOOL, folder)
    with whole_program(bundle):
        for made in calls:
            call, asked = asked_of(made, run_options)
            progress(f"calling {call.entry.name} of the original")
            found.append(Reference(call, asked.tolerance, called_for_arrays(call, folder)))
    return found


def compared_with(
    bundle: Bundle, new: Bundle, found: list[Reference], folder: Path, progress: Progress
) -> Iterator[ComparedFunction]:
    """Call the same functions of the new bundle, and compare."""
    from tracemap.capture.expected import compared
    from tracemap.capture.outputs import called_for_arrays

    for each in found:
        progress(f"calling {each.call.entry.name} of the new bundle")
        said = tuple(given.said for given in each.call.inputs)
        try:
            outputs = called_for_arrays(each.call.with_module(bundle.module_path, new.module_path), folder)
        except ProgramFailed as error:
            yield ComparedFunction(each.call.entry.name, said, (), str(error))
            continue
        about = compared(outputs, each.outputs, each.tolerance)
        shown = tuple(ComparedOutput(one.place, one.type, one.said, one.matches) for one in about)
        yield ComparedFunction(each.call.entry.name, said, shown, "")


def _run_options(options: SwapOptions) -> RunOptions:
    return RunOptions(atol=options.atol, rtol=options.rtol, exact=options.exact, **call_of(options))
