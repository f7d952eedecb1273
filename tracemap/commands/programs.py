"""A bundle's module as a program: its functions, its device, and the sizes in calls of its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.core.errors import TracemapError, UsageInvalid
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.units import UNKNOWN, Text
from tracemap.options.measure import CallOptions, FunctionOptions, call_of

if TYPE_CHECKING:
    from tracemap.capture.calling import Program
    from tracemap.capture.inputs import SavedInputs
    from tracemap.core.functions import Function
    from tracemap.ir.host_constants import Extent
    from tracemap.map.bundle import Bundle
    from tracemap.map.bundle_documents import CallToKeep
    from tracemap.runs.model import Run


_DEVICES = {"vulkan": "vulkan", "vulkan-spirv": "vulkan", "cuda": "cuda", "hip": "hip", "rocm": "hip"}
"""Runtime driver by the compiler's name of a target device or backend."""
_CPU = "llvm-cpu"


def program_of(bundle: Bundle, options: CallOptions) -> Program:
    """The bundle's module, with its own device unless the options name one."""
    from tracemap.capture.calling import Program

    device = device_of(bundle, options.runtime_flags)
    return Program(bundle.module_path, bundle.graph.functions, device, saved_inputs_of(bundle))


def saved_inputs_of(bundle: Bundle) -> SavedInputs:
    """Inputs and parameters that the bundle keeps for calls of its module.

    Raises:
        BundleInvalid, BundleVersion: the bundle is damaged, or has another format version.
    """
    from tracemap.capture.inputs import NO_SAVED_INPUTS, SavedInputs
    from tracemap.map.bundle_documents import INPUTS_FOLDER, PARAMETERS_FOLDER

    call = bundle.kept_call()
    if call is None:
        return NO_SAVED_INPUTS
    inputs = tuple(bundle.kept_file(INPUTS_FOLDER, item.file) for item in call.inputs)
    parameters = tuple(
        (item.scope, Path(item.path) if item.path else bundle.kept_file(PARAMETERS_FOLDER, item.file))
        for item in call.parameters
    )
    return SavedInputs(call.function, tuple(item.name for item in call.inputs), inputs, parameters)


def saved_inputs_to_copy(bundle: Bundle) -> CallToKeep:
    """Inputs and parameters that the bundle keeps, to copy into another bundle of the same program.

    Raises:
        BundleInvalid, BundleVersion, InputInvalid: the bundle is damaged, or has another format version.
    """
    from tracemap.capture.inputs import load_array
    from tracemap.map.bundle_documents import CallToKeep

    kept, call = saved_inputs_of(bundle), bundle.kept_call()
    inputs = tuple((name, load_array(file)) for name, file in zip(kept.names, kept.inputs, strict=True))
    external = {item.scope for item in call.parameters if item.path} if call is not None else set()
    return CallToKeep(
        kept.function,
        inputs,
        tuple((scope, path) for scope, path in kept.parameters if scope not in external),
        tuple((scope, path) for scope, path in kept.parameters if scope in external),
    )


def check_call(bundle: Bundle, options: CallOptions) -> None:
    """Reject calls that `record` would reject, before any expensive work.

    Raises:
        FunctionUnknown, InputInvalid, UsageInvalid: see `capture.calling.make_call`.
    """
    from tracemap.capture.benchmark import BENCHMARK_TOOL
    from tracemap.capture.calling import make_call
    from tracemap.capture.plan import check_call_flags, check_runtime_flags

    check_runtime_flags(options)
    with temporary_folder() as folder:
        check_call_flags(make_call(program_of(bundle, options), options, BENCHMARK_TOOL, folder))


def selects_call(options: FunctionOptions) -> bool:
    """Whether options select the function or its inputs; `--dim` alone does not."""
    names_function = options.function is not UNKNOWN or options.flagfile is not None
    return names_function or bool(options.inputs or options.runtime_flags)


def check_runs_on_cpu(bundle: Bundle, backends: frozenset[str], command: str) -> None:
    """Reject a bundle without kernels for a CPU, since only these can run alone.

    Raises:
        UsageInvalid: the message names the backends of the kernels.
    """
    if backends and _CPU not in backends:
        raise UsageInvalid(
            f"{bundle.path}: its kernels are for {', '.join(sorted(backends))}; `{command}` runs only kernels for CPUs "
            f"({_CPU}): build the model for a CPU"
        )


def skipped_functions(bundle: Bundle, options: CallOptions, called: Sequence[str]) -> list[str]:
    """Functions that were skipped because they take inputs and the options select no function."""
    if options.function is not UNKNOWN or options.inputs or options.flagfile is not None:
        return []
    return [function.name for function in bundle.graph.functions if function.arguments and function.name not in called]


def device_of(bundle: Bundle, runtime_flags: Sequence[str]) -> Text:
    """Runtime device that the module was compiled for; UNKNOWN for the host's, or if the flags name a device."""
    if any(flag.startswith("--device=") for flag in runtime_flags):
        return UNKNOWN
    from tracemap.map.build.compiler.flags import targets_of

    devices = {_DEVICES.get(target, UNKNOWN) for target in targets_of(bundle.graph.module.flags)}
    return devices.pop() if len(devices) == 1 else UNKNOWN


def selected_functions(bundle: Bundle, name: Text) -> list[Function]:
    """The function of this name; all functions of the bundle if the name is UNKNOWN."""
    return [function for function in bundle.graph.functions if name in (UNKNOWN, function.name)]


# ---- extents
#
# Extents of the kernels' operands that depend on the program's arguments.


_DEFAULT_EXTENT = 64
"""Extent of a dynamic dimension if neither options nor run have one."""
_ASYNCHRONOUS = "$async"
"""IREE's suffix for the asynchronous variant of a function, which has fences as additional arguments."""


def argument_extents(
    bundle: Bundle, options: FunctionOptions, function: Text = UNKNOWN, said: Sequence[str] = ()
) -> Extent:
    """Extents of arguments: from the inputs in the options, else from `--dim`, else from a run.

    Args:
        bundle: the bundle with the functions.
        options: function, inputs and `--dim`.
        function: the function of the run.
        said: input descriptions in the run's header; empty without a run.

    Raises:
        FunctionUnknown, InputInvalid, UsageInvalid: see `capture.calling.called_shapes`.
        UsageInvalid: `--dim` is set, but no argument has a `?`.
    """
    from tracemap.capture.benchmark import BENCHMARK_TOOL
    from tracemap.capture.calling import called_shapes, shapes_of_run
    from tracemap.capture.inputs import check_size

    check_size(selected_functions(bundle, options.function), options.dim)
    called_function, sizes = str(function), shapes_of_run(said)
    default = options.dim if isinstance(options.dim, int) else _DEFAULT_EXTENT
    if isinstance(options.dim, int) or options.function not in (UNKNOWN, function):
        sizes = ()
    if selects_call(options):
        program = program_of(bundle, CallOptions(**call_of(options)))
        function_of_call, specs = called_shapes(program, options, BENCHMARK_TOOL)
        called_function, sizes = (function_of_call, specs) if specs else (called_function, sizes)

    def extent(name: str, argument: int, dimension: int) -> int:
        if name.removesuffix(_ASYNCHRONOUS) != called_function or argument >= len(sizes):
            return default
        extents = sizes[argument]
        return extents[dimension] if isinstance(extents, tuple) and dimension < len(extents) else default

    return extent


def constants_by_site(bundle: Bundle, runs: Sequence[Run]) -> dict[str, tuple[int, ...]]:
    """Constants (push constants) of kernel calls in the first of the runs, by dispatch site.

    A site is missing if one of its constants is known only at run time, such as a loop counter. The result is empty if
    the bundle does not contain the constants.
    """
    from tracemap.ir.executables import read_dispatches
    from tracemap.ir.parsing import MlirParser
    from tracemap.kernels.bench_cases import sites_of_dispatches

    header = runs[0].header
    with suppress(TracemapError):
        extent = argument_extents(bundle, FunctionOptions(), header.function, header.inputs)
        dispatches = read_dispatches(MlirParser().parse(bundle.configured()), extent)
        sites = sites_of_dispatches(bundle.graph, dispatches)
        return {
            site.id: dispatch.constants
            for index, dispatch in enumerate(dispatches)
            for site in sites.get(index, ())
            if not dispatch.stood_in
        }
    return {}
