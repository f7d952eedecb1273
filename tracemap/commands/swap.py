"""`tracemap swap`: kernels replaced, verified against the original, and both recorded in turn."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracemap.commands.diff import compare_with_references, references
from tracemap.commands.framework import PATH, options_command
from tracemap.commands.programs import check_call, saved_inputs_to_copy, selects_call
from tracemap.commands.record import turns
from tracemap.commands.runs import check_damage_on_failure, check_outputs
from tracemap.commands.streams import print_message, print_next, show_in_format, show_phases
from tracemap.core.errors import ModelInvalid, ToolFailed, UsageInvalid
from tracemap.core.files import use_utf8, write_text
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import UNKNOWN, join_names
from tracemap.kernels.model import KernelBench, KernelChange, Replacement, Status, Swapped
from tracemap.options.compile import BuildOptions
from tracemap.options.kernels import BenchOptions, SwapOptions
from tracemap.options.measure import CallOptions, RecordOptions, call_of
from tracemap.options.results import AttributeOptions

if TYPE_CHECKING:
    from tracemap.kernels.swap import Costs, Stage, Swap, SwappableExecutables
    from tracemap.map.bundle import Bundle
    from tracemap.runs.model import Peaks


_METRIC = "cpu_ns"


def dump(bundle: Bundle, kernel: str, options: SwapOptions) -> str:
    """Text of a kernel at the stage of `options.dump`, for editing; written if the options name an output.

    Raises:
        TracemapError: see `kernels.swap.SwappableExecutables.dumped`.
        TargetExists, TargetUnwritable: the file cannot be written.
    """
    from tracemap.kernels.swap import SwappableExecutables
    from tracemap.map.bundle import check_iree

    check_iree(bundle)
    check_outputs(options.output, force=options.force, bundles=[bundle.path])
    assert options.dump is not None
    with check_damage_on_failure(bundle), temporary_folder() as folder:
        text = SwappableExecutables(bundle).dumped(kernel, options.dump, folder)
    if options.output is not None:
        write_text(text, options.output)
    return text


def swap(
    bundle: Bundle, replacements: Mapping[str, Path], options: SwapOptions, progress: Progress = no_progress
) -> Swapped:
    """Build a bundle with replaced kernels, and compare it with the original.

    Args:
        bundle: the original.
        replacements: names of kernels or executables, mapped to the files that replace them.
        options: options of `tracemap swap`, including folders with more replacements.
        progress: receives the phase of the work.

    Raises:
        TracemapError: see `kernels.swap.SwappableExecutables.swap`, `commands.build.build`, `commands.bench.bench` and
            `commands.record.record`.
        UsageInvalid: no kernel is replaced, or the new bundle has no name.
    """
    from tracemap.map.bundle import check_iree

    check_iree(bundle)
    with check_damage_on_failure(bundle):
        return _swap(bundle, replacements, options, progress)


def _swap(bundle: Bundle, replacements: Mapping[str, Path], options: SwapOptions, progress: Progress) -> Swapped:
    from tracemap.kernels.swap import ReplacedKernels, SwappableExecutables, changes, same_kernels, total_ratio

    if options.output is None:
        raise UsageInvalid("the new bundle needs a name: pass -o NEW.tracemap")
    if options.output.resolve() == bundle.path.resolve():
        raise UsageInvalid(f"{options.output}: is the original bundle; choose another name for the new bundle with -o")
    _check_tolerance(options)
    swaps = _swaps(SwappableExecutables(bundle), replacements, options)
    if options.pairs or selects_call(options):
        check_call(bundle, options)
    with temporary_folder() as folder:
        # Called first, so that a function that cannot be called is reported before anything is written.
        expected = references(bundle, options, folder, progress) if options.verify_application else []
        new = _build_swapped(bundle, swaps, options, progress)
        functions = tuple(compare_with_references(bundle, new, expected, folder, progress))
    kernels = _kernels(bundle, new, swaps, options, progress)
    before, after = record_alternating(bundle, new, options, options.pairs, options.seconds, progress)
    replaced = {kernel for swap in swaps for kernel in swap.kernels}
    touched = ReplacedKernels(replaced, options.threshold, same_kernels(bundle.module_path, new.module_path) - replaced)
    return Swapped(
        original=bundle.name,
        bundle=new.name,
        replaced=tuple(Replacement(swap.executable, swap.kernels, str(swap.file), swap.stage) for swap in swaps),
        kernels=kernels,
        functions=functions,
        pairs=len(before),
        whole=total_ratio(before, after),
        ops=changes(bundle.graph, touched, before, after),
    )


def _check_tolerance(options: SwapOptions) -> None:
    """Reject tolerances without `--verify-application`, since they have no effect."""
    is_set = {"--atol": options.atol is not UNKNOWN, "--rtol": options.rtol is not UNKNOWN, "--exact": options.exact}
    names = ", ".join(name for name, value in is_set.items() if value)
    if names and not options.verify_application:
        raise UsageInvalid(f"{names}: outputs are only compared with --verify-application; pass it too")


def has_failed(result: Swapped) -> bool:
    """Whether the results of a replaced kernel or of a function differ from the original's."""
    wrong = any(kernel.verification.status is Status.FAILED for kernel in result.kernels)
    return wrong or not all(function.matches for function in result.functions)


def _swaps(swapping: SwappableExecutables, replacements: Mapping[str, Path], options: SwapOptions) -> list[Swap]:
    """Replacements from the arguments and from the folders in the options, at most one per executable."""
    swaps = [swapping.swap(name, file) for name, file in replacements.items()]
    folders: dict[Stage, Path | None] = {
        "source": options.sources_from,
        "configuration": options.configurations_from,
        "object": options.objects_from,
    }
    for stage, folder in folders.items():
        swaps += swapping.folder_swaps(folder, stage) if folder is not None else ()
    if not swaps:
        raise UsageInvalid(
            "no kernel is replaced: name KERNEL=FILE, or a folder with --sources-from, --configurations-from or "
            "--objects-from"
        )
    names = [swap.executable for swap in swaps]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise UsageInvalid(f"{duplicate}: is replaced twice; name one file for it")
    return swaps


def _build_swapped(bundle: Bundle, swaps: Sequence[Swap], options: SwapOptions, progress: Progress) -> Bundle:
    """The new bundle: the original's model compiled with its flags and the replacements.

    Raises:
        ToolFailed: the model cannot be compiled with the replacements.
        TracemapError: see `map.build.build.build`.
    """
    from tracemap.kernels.swap import flags_with_swaps
    from tracemap.map.build.build import BuildRequest, build
    from tracemap.map.bundle import SOURCE_FOLDER, path_in_bundle

    model = bundle.model()
    if not model:
        raise UsageInvalid(f"{bundle.path}: does not contain its model; build it again without --no-sources")
    flags = flags_with_swaps(bundle.graph.module.flags, swaps)
    assert options.output is not None
    build_options = BuildOptions(output=options.output, force=options.force, flags=flags, library=bundle.graph.library)
    name = bundle.graph.sources[0].name
    opaque = frozenset(kernel for swap in swaps if swap.stage == "object" for kernel in swap.kernels)
    folders = (path_in_bundle(bundle.path, SOURCE_FOLDER),)
    request = BuildRequest(model, name, options.output, build_options, own_folder=folders, opaque_kernels=opaque)
    try:
        return build(replace(request, keeping=saved_inputs_to_copy(bundle)), progress)
    except ModelInvalid as error:
        reason = str(error).removeprefix(f"{name}: cannot be compiled: ")
        files = ", ".join(f"{swap.file} in place of {swap.executable}" for swap in swaps)
        raise ToolFailed(f"the model cannot be compiled with {files}; correct this error: {reason}") from error


def _kernels(
    bundle: Bundle, new: Bundle, swaps: Sequence[Swap], options: SwapOptions, progress: Progress
) -> tuple[KernelChange, ...]:
    """Run the replaced kernels alone, before and after, and verify them with the original's reference."""
    from tracemap.commands.bench import bench_kernels

    names = tuple(kernel for swap in swaps for kernel in swap.kernels)
    call_fields = {name: value for name, value in call_of(options).items() if name != "serial"}
    bench_options = BenchOptions(no_verify=options.no_verify, **call_fields)
    before = bench_kernels(bundle, bench_options, names, progress)
    after = bench_kernels(new, bench_options, names, progress, reference=bundle.configured())
    old = {(kernel.kernel, kernel.sites): kernel for kernel in before}
    return tuple(_kernel_change(new, kernel, old.get((kernel.kernel, kernel.sites))) for kernel in after)


def _kernel_change(new: Bundle, after: KernelBench, before: KernelBench | None) -> KernelChange:
    kernel = new.graph.kernel_by_name.get(after.kernel)
    steps = sum(bool(step.ops) for step in kernel.steps) if kernel else 0
    return KernelChange(after.kernel, after.verification, before.time_ns if before else None, after.time_ns, steps)


def record_alternating(
    bundle: Bundle, new: Bundle, call: CallOptions, pairs: int, seconds: float, progress: Progress
) -> tuple[list[Costs], list[Costs]]:
    """Costs of ops in alternating recordings of two bundles, so that changes of the machine affect both alike.

    Raises:
        TracemapError: see `commands.record.record`.
    """
    from tracemap.commands.record import record
    from tracemap.commands.runs import common_peaks

    bundles = bundle, new
    runs: tuple[list[Path], list[Path]] = [], []
    with temporary_folder() as folder:
        for pair, side in turns(pairs, len(bundles)):
            progress(f"recording both bundles, {pair + 1} of {pairs}")
            run = folder / f"{side}-{pair}.parquet"
            record(bundles[side], RecordOptions(output=run, seconds=seconds, **call_of(call)))
            runs[side].append(run)
        peaks = common_peaks([*runs[0], *runs[1]])
        before, after = (
            [_costs(side, run, peaks) for run in side_runs] for side, side_runs in zip(bundles, runs, strict=True)
        )
    return before, after


def _costs(bundle: Bundle, run: Path, peaks: Peaks | None) -> Costs:
    from tracemap.commands.runs import Details, join_runs

    attribution = join_runs([run], bundle, AttributeOptions(), no_progress, Details(peaks=peaks)).attribution
    return {
        op.op: float(median)
        for op in attribution.ops
        if _METRIC in op.metrics and isinstance(median := op.metrics[_METRIC].per_invocation.median, int)
    }


# ---- command line


@options_command("swap", SwapOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.argument("kernels", metavar="[KERNEL=FILE]...", nargs=-1)
def command(bundle: Path, kernels: tuple[str, ...], options: SwapOptions) -> None:
    """Replace kernels of BUNDLE with the contents of FILE, and report what changes.

    A FILE is an edited file from --dump: a kernel's source, its configuration (tiles, vectors, pipeline), or an object.
    tracemap verifies each replaced kernel of the new bundle against the original. It then records both bundles
    alternately, and lists the ops whose cost changed. The exit status is 1 if a kernel computes different results.

    \b
    Example:
      tracemap swap model.tracemap main_dispatch_4 --dump source -o new.mlir
      tracemap swap model.tracemap main_dispatch_4=new.mlir -o new.tracemap
    """
    from tracemap.commands.programs import skipped_functions
    from tracemap.map.bundle import load
    from tracemap.reports.terminal.kernels import print_swap

    if options.dump is not None:
        if len(kernels) != 1 or "=" in kernels[0]:
            raise UsageInvalid("--dump writes one kernel: name one kernel without =FILE")
        text = dump(load(bundle), kernels[0], options)
        if options.output is None:
            use_utf8(sys.stdout)
            sys.stdout.write(text)
        return
    original = load(bundle)
    with show_phases("swap") as progress:
        result = swap(original, _replacements(kernels), options, progress)
    show_in_format(options.format, sys.stdout, partial(print_swap, result), lambda: result, original)
    called = [function.function for function in result.functions]
    if options.verify_application and (left_out := skipped_functions(original, options, called)):
        print_message(f"not called, since they take inputs: {join_names(left_out)}; select a function with --function")
    print_message(f"bundle: {options.output}")
    if has_failed(result):
        sys.exit(1)
    print_next("record", options.output)


def _replacements(words: tuple[str, ...]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for word in words:
        name, _, file = word.partition("=")
        if not file:
            raise UsageInvalid(f"{word}: write a replacement as KERNEL=FILE")
        if name in files:
            raise UsageInvalid(f"{name}: is replaced twice; name one file for it")
        files[name] = Path(file)
    return files
