"""A bundle's module as a program: its functions, device, and the sizes that its kernels are called with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import TracemapError, UsageInvalid
from tracemap.options.measure import CallOptions, FunctionOptions, call_of
from tracemap.owned.home import temporary_folder
from tracemap.units import UNKNOWN, Text

if TYPE_CHECKING:
    from tracemap.capture.calling import Program
    from tracemap.capture.input_shapes import Sizes
    from tracemap.capture.saved_inputs import Kept
    from tracemap.functions import Function
    from tracemap.graph.bundle import Bundle
    from tracemap.graph.documents import Keeping
    from tracemap.ir.numbers import Extent
    from tracemap.measurements.model import Run


# ---- programs
#
# A bundle's module as what is called: its functions, the device that it was compiled for.


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
    from tracemap.capture.saved_inputs import NOTHING_KEPT, Kept
    from tracemap.graph.documents import INPUTS_FOLDER, PARAMETERS_FOLDER

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
    from tracemap.capture.saved_inputs import loaded_array
    from tracemap.graph.documents import Keeping

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
    from tracemap.mapping.compiler.flags import targets_of

    found = {_DEVICES.get(target, UNKNOWN) for target in targets_of(bundle.graph.module.flags)}
    return found.pop() if len(found) == 1 else UNKNOWN


def functions_meant(bundle: Bundle, name: Text) -> list[Function]:
    """The functions of a bundle that are meant: that of the name, all where none is named."""
    return [function for function in bundle.graph.functions if name in (UNKNOWN, function.name)]


# ---- extents
#
# How large what the kernels of a bundle are given is, where the program's arguments decide it.


_MADE_UP = 64
"""The extent of a dimension that nothing tells."""
_ASYNCHRONOUS = "$async"
"""How IREE calls the body of a function that has fences besides."""


def extents(bundle: Bundle, options: FunctionOptions, function: Text = UNKNOWN, said: Sequence[str] = ()) -> Extent:
    """The extents of arguments: those of the inputs that options give, else `--dim`, else those of a run.

    Args:
        bundle: whose functions they are of.
        options: what was asked for.
        function: that of the run.
        said: what the run says of its inputs; none where there is no run.

    Raises:
        FunctionUnknown, InputInvalid, UsageInvalid: as `capture.sizes.called_sizes` does.
        UsageInvalid: there is a size for every `?`, and no `?`.
    """
    from tracemap.capture.benchmark import BENCHMARK_TOOL
    from tracemap.capture.input_shapes import called_sizes, said_sizes
    from tracemap.capture.inputs import check_size

    check_size(functions_meant(bundle, options.function), options.dim)
    called, given = str(function), said_sizes(said)
    otherwise = options.dim if isinstance(options.dim, int) else _MADE_UP
    if isinstance(options.dim, int) or options.function not in (UNKNOWN, function):
        given = ()
    if asks_for_call(options):
        program = program_of(bundle, CallOptions(**call_of(options)))
        of_call, specs = called_sizes(program, options, BENCHMARK_TOOL)
        called, given = (of_call, specs) if specs else (called, given)

    def extent(name: str, argument: int, dimension: int) -> int:
        same = name.removesuffix(_ASYNCHRONOUS) == called
        return _known(given, argument, dimension, otherwise) if same else otherwise

    return extent


def numbers_of_kernels(bundle: Bundle, runs: Sequence[Run]) -> dict[str, tuple[int, ...]]:
    """The numbers that kernels were called with in the first of some runs, by site.

    Sites are left out at which only the run itself tells one of them, such as the counter of a loop; all are where the
    bundle does not tell.
    """
    from tracemap.experiments.cases import sites_of_dispatches
    from tracemap.ir.executables import read_dispatches
    from tracemap.ir.parsing import MlirParser

    header = runs[0].header
    with suppress(TracemapError):
        extent = extents(bundle, FunctionOptions(), header.function, header.inputs)
        dispatches = read_dispatches(MlirParser().parse(bundle.configured()), extent)
        sites = sites_of_dispatches(bundle.graph, dispatches)
        return {
            site.id: dispatch.constants
            for number, dispatch in enumerate(dispatches)
            for site in sites.get(number, ())
            if not dispatch.stood_in
        }
    return {}


def _known(given: Sequence[Sizes], argument: int, dimension: int, otherwise: int) -> int:
    sizes = given[argument] if argument < len(given) else UNKNOWN
    return sizes[dimension] if isinstance(sizes, tuple) and dimension < len(sizes) else otherwise
