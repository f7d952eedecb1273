"""A bundle's functions timed, as IREE's own tool does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from tracemap.inert import lines_for_terminal
from tracemap.options.benchmark import BenchmarkOptions
from tracemap.outputs import show_as
from tracemap.owned.home import temporary_folder
from tracemap.session.damage import damage_named, whole_program
from tracemap.session.programs import program_of
from tracemap.toolchain import Progress, no_progress
from tracemap.units import listed

if TYPE_CHECKING:
    from tracemap.capture.timing import Timed
    from tracemap.graph.bundle import Bundle


def benchmark(
    bundle: Bundle, options: BenchmarkOptions, progress: Progress = no_progress, values: Sequence[object] = ()
) -> Timed:
    """Time a function, or where none of several is named all that take no inputs.

    `values`: inputs that no text can hold, such as arrays, one per argument; none: the options' inputs.

    Raises:
        FunctionUnknown: no such function, or several and none named.
        InputInvalid: the inputs do not fit, or cannot be made up.
        ProgramFailed: the program failed.
        UsageInvalid: options or flags that do not go together.
        BundleInvalid, ToolFailed, ToolMissing: the module cannot be compiled with repeated dispatches.
        BundleInvalid: the program failed, and the bundle's module is damaged.
    """
    from tracemap.capture.benchmark import BENCHMARK_TOOL
    from tracemap.capture.calling import make_calls
    from tracemap.capture.timing import timed

    with temporary_folder() as folder:
        progress("making inputs")
        calls = make_calls(program_of(bundle, options), options, BENCHMARK_TOOL, folder, values)
        if options.dispatch_repeat > 1:
            from tracemap.mapping.compiler.repeated import build_repeated

            progress("compiling with repeated dispatches")
            flags = bundle.graph.module.flags
            with damage_named(bundle):
                module = build_repeated(bundle.configured(), flags, folder, options.dispatch_repeat)
            calls = [call.with_module(bundle.module_path, module) for call in calls]
        progress(f"timing {listed([call.entry.name for call in calls])}")
        with whole_program(bundle):
            return timed(calls, options, folder)


def show_times(made: Timed, options: BenchmarkOptions, out: TextIO) -> None:
    """Write times to a stream, in the format of the options."""

    def text(stream: TextIO) -> None:
        stream.write(lines_for_terminal(f"{made.clocks}\n{made.table}"))

    show_as(options.format, out, text, lambda: made.report)
