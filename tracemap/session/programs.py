"""A bundle's module as what is called: its functions, the device that it was compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import UsageInvalid
from tracemap.owned.home import temporary_folder
from tracemap.units import UNKNOWN, Text

if TYPE_CHECKING:
    from tracemap.capture.calling import Program
    from tracemap.capture.kept import Kept
    from tracemap.functions import Function
    from tracemap.graph.bundle import Bundle
    from tracemap.graph.kept import Keeping
    from tracemap.options.call import CallOptions, FunctionOptions

_DEVICES = {"vulkan": "vulkan", "vulkan-spirv": "vulkan", "cuda": "cuda", "hip": "hip", "rocm": "hip"}
"""The runtime's drivers of what a module is compiled for, be it named as a device or as a backend."""
_CPU = "llvm-cpu"


def program_of(bundle: Bundle, options: CallOptions) -> Program:
    """The bundle's module, with its device where the options name none."""
    from tracemap.capture.calling import Program

    device = device_of(bundle, options.runtime_flags)
    return Program(bundle.module_path, bundle.graph.functions, device, kept_of(bundle))


def kept_of(bundle: Bundle) -> Kept:
    """What the bundle keeps to call its module with.

    Raises:
        BundleInvalid, BundleVersion: it is damaged, or was written in another format version.
    """
    from tracemap.capture.kept import NOTHING_KEPT, Kept
    from tracemap.graph.kept import INPUTS_FOLDER, PARAMETERS_FOLDER

    call = bundle.kept_call()
    if call is None:
        return NOTHING_KEPT
    inputs = tuple(bundle.kept_file(INPUTS_FOLDER, each.file) for each in call.inputs)
    parameters = tuple(
        (each.scope, Path(each.path) if each.path else bundle.kept_file(PARAMETERS_FOLDER, each.file))
        for each in call.parameters
    )
    return Kept(call.function, tuple(each.name for each in call.inputs), inputs, parameters)


def keeping_of(bundle: Bundle) -> Keeping:
    """What the bundle keeps to call its module with, for another bundle of the same program.

    Raises:
        BundleInvalid, BundleVersion, InputInvalid: it is damaged, or was written in another format version.
    """
    from tracemap.capture.kept import loaded_array
    from tracemap.graph.kept import Keeping

    kept, call = kept_of(bundle), bundle.kept_call()
    inputs = tuple((name, loaded_array(file)) for name, file in zip(kept.names, kept.inputs, strict=True))
    elsewhere = {each.scope for each in call.parameters if each.path} if call is not None else set()
    return Keeping(
        kept.function,
        inputs,
        tuple((scope, path) for scope, path in kept.parameters if scope not in elsewhere),
        tuple((scope, path) for scope, path in kept.parameters if scope in elsewhere),
    )


def check_call(bundle: Bundle, options: CallOptions) -> None:
    """Refuse what `record` would refuse to call, before other work that would be in vain.

    Raises:
        FunctionUnknown, InputInvalid, UsageInvalid: as `capture.calling.make_call` does.
    """
    from tracemap.capture.benchmark import BENCHMARK_TOOL
    from tracemap.capture.calling import make_call
    from tracemap.capture.plan import check_calls_made, check_runtime_flags

    check_runtime_flags(options)
    with temporary_folder() as folder:
        check_calls_made(make_call(program_of(bundle, options), options, BENCHMARK_TOOL, folder))


def asks_for_call(options: FunctionOptions) -> bool:
    """Whether options say which function is called, or with what; a size for `?` alone says neither."""
    named = options.function is not UNKNOWN or options.flagfile is not None
    return named or bool(options.inputs or options.runtime_flags)


def check_runs_on_cpu(bundle: Bundle, backends: frozenset[str], command: str) -> None:
    """Refuse a bundle whose kernels cannot be run alone here, as none of them has code for a CPU.

    Raises:
        UsageInvalid: the message names what they are for.
    """
    if backends and _CPU not in backends:
        raise UsageInvalid(
            f"{bundle.path}: its kernels are for {', '.join(sorted(backends))}; `{command}` runs those of CPUs "
            f"({_CPU}) alone: build the model for one"
        )


def not_called(bundle: Bundle, options: CallOptions, called: Sequence[str]) -> list[str]:
    """The functions that were left out where nothing said which of several is meant."""
    if options.function is not UNKNOWN or options.inputs or options.flagfile is not None:
        return []
    return [function.name for function in bundle.graph.functions if function.arguments and function.name not in called]


def device_of(bundle: Bundle, runtime_flags: Sequence[str]) -> Text:
    """The device that the module was compiled for; unknown where the user says it, or it runs on the host."""
    if any(flag.startswith("--device=") for flag in runtime_flags):
        return UNKNOWN
    from tracemap.mapping.compiler.targets import targets_of

    found = {_DEVICES.get(target, UNKNOWN) for target in targets_of(bundle.graph.module.flags)}
    return found.pop() if len(found) == 1 else UNKNOWN


def functions_meant(bundle: Bundle, name: Text) -> list[Function]:
    """The functions of a bundle that are meant: that of the name, all where none is named."""
    return [function for function in bundle.graph.functions if name in (UNKNOWN, function.name)]
