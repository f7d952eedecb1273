"""Kernels of a bundle replaced, the new bundle verified against the original, and both recorded in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tracemap.errors import ModelInvalid, ToolFailed, UsageInvalid
from tracemap.experiments.model import KernelBench, KernelChange, Replacement, Status, Swapped
from tracemap.options.compile import BuildOptions
from tracemap.options.kernels import BenchOptions, SwapOptions
from tracemap.options.measure import CallOptions, RecordOptions, call_of
from tracemap.options.results import AttributeOptions
from tracemap.outputs import show_as, write_text
from tracemap.owned.home import temporary_folder
from tracemap.session.diff import compared_with, references
from tracemap.session.overwrite_guard import check_targets
from tracemap.session.programs import asks_for_call, check_call, keeping_of
from tracemap.session.record import turns
from tracemap.session.runs import damage_named
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN

if TYPE_CHECKING:
    from tracemap.attribution.model import Attribution
    from tracemap.experiments.paired_changes import Costs
    from tracemap.experiments.swapping import Stage, Swap, Swapping
    from tracemap.graph.bundle import Bundle
    from tracemap.measurements.model import Peaks

_METRIC = "cpu_ns"


def dump(bundle: Bundle, kernel: str, options: SwapOptions) -> str:
    """A kernel at the stage of the options, as a text that can be edited and put in its place; written where they say.

    Raises:
        TracemapError: as `experiments.swapping.Swapping.dumped` does.
        TargetExists, TargetUnwritable: the file cannot be written.
    """
    from tracemap.experiments.swapping import Swapping

    check_targets(options.output, force=options.force, bundles=[bundle.path])
    assert options.dump is not None
    with damage_named(bundle), temporary_folder() as folder:
        text = Swapping(bundle).dumped(kernel, options.dump, folder)
    if options.output is not None:
        write_text(text, options.output)
    return text


def swap(
    bundle: Bundle, replacements: Mapping[str, Path], options: SwapOptions, progress: Progress = no_progress
) -> Swapped:
    """Build a bundle with kernels replaced, and compare it with the original.

    Args:
        bundle: the original.
        replacements: names of kernels or executables, and the files that take their place.
        options: further ones, and how to compare.
        progress: told what is done.

    Raises:
        TracemapError: as `experiments.swapping.Swapping.swap`, `session.build.build`, `session.bench.bench` and
            `session.record.record` do.
        UsageInvalid: nothing is replaced, or the new bundle has no name.
    """
    with damage_named(bundle):
        return _swapped(bundle, replacements, options, progress)


def _swapped(bundle: Bundle, replacements: Mapping[str, Path], options: SwapOptions, progress: Progress) -> Swapped:
    from tracemap.experiments.paired_changes import Touched, changes, same_kernels, whole_of
    from tracemap.experiments.swapping import Swapping

    if options.output is None:
        raise UsageInvalid("the new bundle needs a name: -o NEW.tracemap")
    if options.output.resolve() == bundle.path.resolve():
        raise UsageInvalid(f"{options.output}: is the original, which the new bundle is compared with; name another")
    _check_tolerance(options)
    swaps = _swaps(Swapping(bundle), replacements, options)
    if options.pairs or asks_for_call(options):
        check_call(bundle, options)
    with temporary_folder() as folder:
        # Before anything is written: what cannot be called has no outputs to compare with.
        right = references(bundle, options, folder, progress) if options.verify_application else []
        new = _built(bundle, swaps, options, progress)
        functions = tuple(compared_with(bundle, new, right, folder, progress))
    kernels = _kernels(bundle, new, swaps, options, progress)
    before, after = recorded_in_turn(bundle, new, options, options.pairs, options.seconds, progress)
    replaced = {kernel for each in swaps for kernel in each.kernels}
    touched = Touched(replaced, options.threshold, same_kernels(bundle.module_path, new.module_path) - replaced)
    return Swapped(
        original=bundle.name,
        bundle=new.name,
        replaced=tuple(Replacement(each.executable, each.kernels, str(each.file), each.stage) for each in swaps),
        kernels=kernels,
        functions=functions,
        pairs=len(before),
        whole=whole_of(before, after),
        ops=changes(bundle.graph, touched, before, after),
    )


def _check_tolerance(options: SwapOptions) -> None:
    """Refuse a tolerance that nothing is compared within.

    Raises:
        UsageInvalid: there is one.
    """
    given = {"--atol": options.atol is not UNKNOWN, "--rtol": options.rtol is not UNKNOWN, "--exact": options.exact}
    names = ", ".join(name for name, is_given in given.items() if is_given)
    if names and not options.verify_application:
        raise UsageInvalid(f"{names}: outputs are compared with --verify-application only; pass it too")


def has_failed(made: Swapped) -> bool:
    """Whether a replaced kernel, or a function, computes something else than the original's."""
    wrong = any(kernel.verification.status is Status.FAILED for kernel in made.kernels)
    return wrong or not all(function.matches for function in made.functions)


def show_swap(made: Swapped, options: SwapOptions, out: TextIO) -> None:
    """Write what was found to a stream, in the format of the options."""
    from tracemap.reports.terminal.kernels import print_swap

    show_as(options.format, out, lambda stream: print_swap(made, stream), lambda: made)


def _swaps(swapping: Swapping, replacements: Mapping[str, Path], options: SwapOptions) -> list[Swap]:
    """All replacements, each of one executable."""
    found = [swapping.swap(name, file) for name, file in replacements.items()]
    folders: dict[Stage, Path | None] = {
        "source": options.sources_from,
        "configuration": options.configurations_from,
        "object": options.objects_from,
    }
    for stage, folder in folders.items():
        found += swapping.folder_swaps(folder, stage) if folder is not None else ()
    if not found:
        raise UsageInvalid("nothing is replaced: name KERNEL=FILE, or a folder with --sources-from or its like")
    names = [each.executable for each in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageInvalid(f"{twice}: is replaced twice; name one file for it")
    return found


def _built(bundle: Bundle, swaps: Sequence[Swap], options: SwapOptions, progress: Progress) -> Bundle:
    """The new bundle: the original's model compiled with its flags and the replacements.

    Raises:
        ToolFailed: a replacement cannot be compiled; the model alone could.
        TracemapError: as `mapping.build.build` does.
    """
    from tracemap.experiments.swapping import swapped_flags
    from tracemap.graph.bundle import SOURCE_FOLDER, inside
    from tracemap.mapping.build import BuildRequest, build

    model = bundle.model()
    if not model:
        raise UsageInvalid(f"{bundle.path}: does not keep its model (--no-sources); build it again with its text")
    flags = swapped_flags(bundle.graph.module.flags, swaps)
    assert options.output is not None
    of_build = BuildOptions(output=options.output, force=options.force, flags=flags, library=bundle.graph.library)
    name = bundle.graph.sources[0].name
    opaque = frozenset(kernel for each in swaps if each.stage == "object" for kernel in each.kernels)
    folders = (inside(bundle.path, SOURCE_FOLDER),)
    request = BuildRequest(model, name, options.output, of_build, own_folder=folders, opaque_kernels=opaque)
    try:
        return build(replace(request, keeping=keeping_of(bundle)), progress)
    except ModelInvalid as error:
        said = str(error).removeprefix(f"{name}: cannot be compiled: ")
        placed = ", ".join(f"{each.file} in the place of {each.executable}" for each in swaps)
        raise ToolFailed(f"the model cannot be compiled with {placed}; mend what is said: {said}") from error


def _kernels(
    bundle: Bundle, new: Bundle, swaps: Sequence[Swap], options: SwapOptions, progress: Progress
) -> tuple[KernelChange, ...]:
    """The replaced kernels alone, verified by the original's reference."""
    from tracemap.session.bench import bench_kernels

    names = tuple(kernel for each in swaps for kernel in each.kernels)
    called = {name: value for name, value in call_of(options).items() if name != "serial"}
    of_bench = BenchOptions(no_verify=options.no_verify, **called)
    before = bench_kernels(bundle, of_bench, names, progress)
    after = bench_kernels(new, of_bench, names, progress, reference=bundle.configured())
    old = {(each.kernel, each.sites): each for each in before}
    return tuple(_kernel_change(new, each, old.get((each.kernel, each.sites))) for each in after)


def _kernel_change(new: Bundle, after: KernelBench, before: KernelBench | None) -> KernelChange:
    kernel = new.graph.kernel_by_name.get(after.kernel)
    steps = sum(bool(step.ops) for step in kernel.steps) if kernel else 0
    return KernelChange(after.kernel, after.verification, before.time_ns if before else None, after.time_ns, steps)


def recorded_in_turn(
    bundle: Bundle, new: Bundle, call: CallOptions, pairs: int, seconds: float, progress: Progress
) -> tuple[list[Costs], list[Costs]]:
    """Costs of ops in recordings of two bundles, made in turn, so that what changes on the machine changes both.

    Raises:
        TracemapError: as `session.record.record` does.
    """
    from tracemap.session.record import record
    from tracemap.session.runs import told_peaks

    bundles = bundle, new
    runs: tuple[list[Path], list[Path]] = [], []
    with temporary_folder() as folder:
        for pair, side in turns(pairs, len(bundles)):
            progress(f"recording both, {pair + 1} of {pairs}")
            run = folder / f"{side}-{pair}.parquet"
            record(bundles[side], RecordOptions(output=run, seconds=seconds, **call_of(call)))
            runs[side].append(run)
        peaks = told_peaks([*runs[0], *runs[1]])
        before, after = ([_costs(each, run, peaks) for run in own] for each, own in zip(bundles, runs, strict=True))
    return before, after


def _costs(bundle: Bundle, run: Path, peaks: Peaks | None) -> Costs:
    from tracemap.session.runs import joined

    found: Attribution = joined([run], bundle, AttributeOptions(), no_progress, peaks=peaks).attribution
    return {
        op.op: float(median)
        for op in found.ops
        if _METRIC in op.metrics and isinstance(median := op.metrics[_METRIC].per_invocation.median, int)
    }
