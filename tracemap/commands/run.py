"""`tracemap run` and `benchmark`: functions of a bundle called or timed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.programs import program_of
from tracemap.commands.runs import check_damage_on_failure, check_not_inputs, unchanged_module
from tracemap.commands.streams import print_message, show_in_format, show_phases
from tracemap.core.errors import FunctionUnknown, UsageInvalid
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.sanitize import lines_for_terminal
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import UNKNOWN, join_names
from tracemap.options.measure import BenchmarkOptions, RunOptions

if TYPE_CHECKING:
    from tracemap.capture.calling import Call
    from tracemap.capture.outputs import Array, OutputComparison, OutputRequest
    from tracemap.capture.timing import BenchmarkResult
    from tracemap.map.bundle import Bundle


# ---- benchmark
#
# Time a bundle's functions with IREE's own tool.


def benchmark(
    bundle: Bundle, options: BenchmarkOptions, progress: Progress = no_progress, values: Sequence[object] = ()
) -> BenchmarkResult:
    """Time the function that the options name; without a name, the only one, or all that take no inputs.

    `values`: inputs that are not text, such as arrays, one per argument; empty: the inputs in the options.

    Raises:
        FunctionUnknown: there is no such function, or several, and the options name none.
        InputInvalid: the inputs do not match the arguments, or cannot be made up.
        ProgramFailed: the program failed.
        UsageInvalid: the options or flags cannot be combined.
        BundleInvalid, ToolFailed, ToolMissing: the module cannot be compiled with repeated dispatches.
        BundleInvalid: the program failed, and the bundle's module is damaged.
    """
    from tracemap.capture.benchmark import BENCHMARK_TOOL
    from tracemap.capture.calling import make_calls
    from tracemap.capture.timing import run_benchmark_tool
    from tracemap.map.bundle import check_iree

    check_iree(bundle)
    with temporary_folder() as folder:
        progress("making inputs")
        calls = make_calls(program_of(bundle, options), options, BENCHMARK_TOOL, folder, values)
        if options.dispatch_repeat > 1:
            from tracemap.map.build.compiler.recompiled_kernels import build_repeated

            progress("compiling with repeated dispatches")
            flags = bundle.graph.module.flags
            with check_damage_on_failure(bundle):
                module = build_repeated(bundle.configured(), flags, folder, options.dispatch_repeat)
            calls = [call.with_module(bundle.module_path, module) for call in calls]
        progress(f"timing {join_names([call.entry.name for call in calls])}")
        with unchanged_module(bundle):
            return run_benchmark_tool(calls, options, folder)


def show_times(times: BenchmarkResult, options: BenchmarkOptions, out: TextIO) -> None:
    """Write times to a stream, in the format of the options."""

    def text(stream: TextIO) -> None:
        stream.write(lines_for_terminal(f"{times.clocks}\n{times.table}"))

    show_in_format(options.format, out, text, lambda: times.report)


# ---- run
#
# Call a bundle's functions once, and print, write or compare their outputs.


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of a function's call.

    `printed`: output of IREE's program; `outputs`: arrays, if they were read; `compared`: results of the comparison,
    if outputs were expected.
    """

    function: str
    inputs: tuple[str, ...]
    printed: str
    outputs: tuple[Array, ...]
    compared: tuple[OutputComparison, ...]


def run(
    bundle: Bundle,
    options: RunOptions,
    progress: Progress = no_progress,
    values: Sequence[object] = (),
    *,
    arrays: bool = False,
) -> Iterator[CallResult]:
    """Call the function that the options name; without a name, the only one, or all that take no inputs, in order.

    Args:
        bundle: the bundle.
        options: options of `tracemap run`.
        progress: receives the phase of the work.
        values: inputs that are not text, such as arrays, one per argument; empty: the inputs in the options.
        arrays: always read the outputs as arrays; requires a single function.

    Raises:
        BundleInvalid: the program failed, and the bundle's module is damaged.
        FunctionUnknown: there is no such function, or several, and the options name none.
        InputInvalid: the inputs do not match the arguments, or cannot be made up.
        OutputInvalid: an output cannot be read as an array.
        ProgramFailed: the program failed.
        TargetExists, TargetUnwritable: an output cannot be written.
        UsageInvalid: the options or flags cannot be combined.
    """
    from tracemap.capture.calling import make_calls
    from tracemap.capture.outputs import RUN_TOOL, output_request
    from tracemap.map.bundle import check_iree

    check_iree(bundle)
    with temporary_folder() as folder:
        progress("making inputs")
        calls = make_calls(program_of(bundle, options), options, RUN_TOOL, folder, values)
        planned_calls = [output_request(call, options) for call in calls]
        _, first = planned_calls[0]
        if len(calls) > 1 and (arrays or first.targets or first.expected):
            names = join_names([function.name for function in bundle.graph.functions])
            raise FunctionUnknown(f"several functions have outputs; select one with --function: {names}")
        has_tolerance = options.exact or options.atol is not UNKNOWN or options.rtol is not UNKNOWN
        if has_tolerance and not first.expected:
            raise UsageInvalid("--atol, --rtol and --exact need an output to compare: pass --expected-output too")
        check_not_inputs(*(Path(target[1:]) for target in first.targets if target[1:]), bundles=[bundle.path])
        with unchanged_module(bundle):
            for call, asked in planned_calls:
                progress(f"calling {call.entry.name}")
                yield _run_call(call, asked, options, folder, arrays=arrays or bool(asked.expected))


def _run_call(call: Call, asked: OutputRequest, options: RunOptions, folder: Path, *, arrays: bool) -> CallResult:
    from tracemap.capture.outputs import (
        call_for_arrays,
        check_option_count,
        compare_outputs,
        expected_arrays,
        run_call,
        temporary_targets,
    )

    check_option_count(call, asked.targets, "--output")
    check_option_count(call, asked.expected, "--expected-output")
    inputs = tuple(item.said for item in call.inputs)
    with temporary_targets(asked.targets, folder, force=options.force) as targets:
        if not arrays:
            return CallResult(call.entry.name, inputs, run_call(call, targets), (), ())
        for target in asked.targets:
            if target and not (target.startswith("@") and target.endswith(".npy")):
                raise UsageInvalid(f"--output={target}: outputs that are compared can only be written as @FILE.npy")
        outputs = call_for_arrays(call, folder)
        for index, target in enumerate(targets):
            array = folder / f"array{index}.npy"
            if target and not array.is_file():
                raise UsageInvalid(
                    f"--output={asked.targets[index]}: .npy files cannot hold this element type; write @FILE.bin "
                    "without --expected-output"
                )
            if target:
                shutil.copyfile(array, target[1:])
    expected = expected_arrays(asked.expected, outputs) if asked.expected else []
    results = compare_outputs(outputs, expected, asked.tolerance) if expected else ()
    return CallResult(call.entry.name, inputs, "", tuple(outputs), results)


# ---- command line


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
    from tracemap.capture.outputs import check_matches
    from tracemap.commands.programs import skipped_functions
    from tracemap.map.bundle import load

    opened, done = load(bundle), []
    with show_phases("run") as progress:
        for ran in run(opened, options, progress):
            done.append(ran)
            _show(ran)
    if left_out := skipped_functions(opened, options, [ran.function for ran in done]):
        print_message(f"not called, since they take inputs: {join_names(left_out)}; select a function with --function")
    for ran in done:
        check_matches(ran.function, ran.compared)


def _show(ran: CallResult) -> None:
    for index, text in enumerate(ran.inputs):
        if text.endswith("(made up)"):
            print_message(f"input {index}: {text}")
    sys.stdout.write(lines_for_terminal(ran.printed))
    sys.stdout.writelines(lines_for_terminal(f"{output}\n") for output in ran.compared)
    sys.stdout.flush()
