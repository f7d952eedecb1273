"""`run` and `benchmark`: functions of a bundle called or timed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tracemap.errors import FunctionUnknown, UsageInvalid
from tracemap.options.measure import BenchmarkOptions, RunOptions
from tracemap.outputs import show_as
from tracemap.owned.home import temporary_folder
from tracemap.sanitize import lines_for_terminal
from tracemap.session.overwrite_guard import check_spared
from tracemap.session.programs import program_of
from tracemap.session.runs import damage_named, whole_program
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN, listed

if TYPE_CHECKING:
    from tracemap.capture.calling import Call
    from tracemap.capture.expected import Asked, Compared
    from tracemap.capture.outputs import Array
    from tracemap.capture.timing import Timed
    from tracemap.graph.bundle import Bundle


# ---- benchmark
#
# A bundle's functions timed, as IREE's own tool does.


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
            from tracemap.mapping.compiler.simulated import build_repeated

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


# ---- run
#
# A bundle's functions called once: their outputs.


@dataclass(frozen=True, slots=True)
class Ran:
    """A function that was called: with what, and what became of it.

    `printed`: by IREE's program; `outputs`: where they were read; `compared`: where something was expected of them.
    """

    function: str
    inputs: tuple[str, ...]
    printed: str
    outputs: tuple[Array, ...]
    compared: tuple[Compared, ...]


def run(
    bundle: Bundle,
    options: RunOptions,
    progress: Progress = no_progress,
    values: Sequence[object] = (),
    *,
    arrays: bool = False,
) -> Iterator[Ran]:
    """Call a function, or where none of several is named all that take no inputs, one after the other.

    Args:
        bundle: whose functions they are.
        options: what was asked for.
        progress: told what is done.
        values: inputs that no text can hold, such as arrays, one per argument; none: the options' inputs.
        arrays: read the outputs, of one function, whatever else becomes of them.

    Raises:
        BundleInvalid: the program failed, and the bundle's module is damaged.
        FunctionUnknown: no such function, or several and none named.
        InputInvalid: the inputs do not fit, or cannot be made up.
        OutputInvalid: an output is to be read, or compared, that no array holds.
        ProgramFailed: the program failed.
        TargetExists, TargetUnwritable: an output cannot be written.
        UsageInvalid: options or flags that do not go together.
    """
    from tracemap.capture.calling import make_calls
    from tracemap.capture.expected import asked_of
    from tracemap.capture.outputs import RUN_TOOL

    with temporary_folder() as folder:
        progress("making inputs")
        calls = make_calls(program_of(bundle, options), options, RUN_TOOL, folder, values)
        every = [asked_of(call, options) for call in calls]
        if len(calls) > 1 and (arrays or every[0][1].targets or every[0][1].expected):
            names = listed([function.name for function in bundle.graph.functions])
            raise FunctionUnknown(f"outputs are those of one function; name it with --function: {names}")
        _check_tolerance(options, every[0][1])
        check_spared(*(Path(target[1:]) for target in every[0][1].targets if target[1:]), bundles=[bundle.path])
        with whole_program(bundle):
            for call, asked in every:
                progress(f"calling {call.entry.name}")
                yield _ran(call, asked, options, folder, arrays=arrays or bool(asked.expected))


def _check_tolerance(options: RunOptions, asked: Asked) -> None:
    given = options.exact or options.atol is not UNKNOWN or options.rtol is not UNKNOWN
    if given and not asked.expected:
        raise UsageInvalid("--atol, --rtol and --exact are for outputs that are compared: pass --expected-output too")


def _ran(call: Call, asked: Asked, options: RunOptions, folder: Path, *, arrays: bool) -> Ran:
    from tracemap.capture.expected import compared, expected_arrays
    from tracemap.capture.outputs import called_for_arrays, check_number, laid_aside, run_call

    check_number(call, asked.targets, "--output")
    check_number(call, asked.expected, "--expected-output")
    said = tuple(given.said for given in call.inputs)
    with laid_aside(asked.targets, folder, force=options.force) as targets:
        if not arrays:
            return Ran(call.entry.name, said, run_call(call, targets), (), ())
        _check_kept(asked.targets)
        outputs = called_for_arrays(call, folder)
        for place, target in enumerate(targets):
            if target:
                _keep(folder / f"array{place}.npy", Path(target[1:]), asked.targets[place])
    wanted = expected_arrays(asked.expected, outputs) if asked.expected else []
    about = compared(outputs, wanted, asked.tolerance) if wanted else ()
    return Ran(call.entry.name, said, "", tuple(outputs), about)


def _check_kept(targets: Sequence[str]) -> None:
    """Refuse what cannot be done with outputs that are read, too."""
    for target in targets:
        if target and not (target.startswith("@") and target.endswith(".npy")):
            raise UsageInvalid(f"--output={target}: outputs that are compared can be kept as @FILE.npy only")


def _keep(written: Path, kept: Path, target: str) -> None:
    if not written.is_file():
        raise UsageInvalid(f"--output={target}: numpy's files do not hold elements of this type")
    shutil.copyfile(written, kept)
